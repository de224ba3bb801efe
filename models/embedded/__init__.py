"""The INT8 models and the stream that `zotta-edge adapt` uses when it is given nothing else.

Made by `python -m zotta_edge.models.train_digits`, and by `train_vlm`.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from zotta_edge.models.picture_questions import Question
    from zotta_edge.runtime.io.sources import Source

MODEL = Path(__file__).with_name("digits_vit_int8.onnx")
RESNET = Path(__file__).with_name("digits_resnet_gn_int8.onnx")
VLM = Path(__file__).with_name("digits_vlm_int8.onnx")  # answers questions about pictures
STREAM = Path(__file__).with_name("digits_stream.npz")  # 1,079 clean digits and their labels
CORRUPTION, SEVERITY = "fog", 5
ABOUT_QUESTIONS = "pictures of handwritten digits in low contrast, severity 3"
ABOUT = f"the embedded ViT on 1,079 handwritten digits in {CORRUPTION}, severity {SEVERITY}"


def digits(count: int) -> "NDArray[np.uint8]":
    """The first clean digits of the stream, for examples.

    >>> digits(2).shape
    (2, 8, 8)
    """
    import numpy as np

    images: NDArray[np.uint8] = np.load(STREAM)["images"][:count]
    return images


def labels(count: int) -> "NDArray[np.int64]":
    """What the first digits of the stream show.

    >>> labels(3)
    array([9, 6, 4])
    """
    import numpy as np

    shown: NDArray[np.int64] = np.load(STREAM)["labels"][:count]
    return shown


def corrupted_stream(corruption: str = CORRUPTION, severity: int = SEVERITY) -> "Source":
    """The held-out digits at the models' size, 32x32, each corrupted anew; the same every time."""
    import numpy as np

    from zotta_edge.corruptions import corrupt_stream
    from zotta_edge.runtime.io.arrays import Labelled, load_images
    from zotta_edge.runtime.io.layouts import in_memory
    from zotta_edge.runtime.io.preprocessing import resample
    from zotta_edge.runtime.io.sources import Stored

    clean = load_images(STREAM)
    size = (32, 32)
    images = [resample(image[..., None], *size, size, "bicubic") for image in clean.images]
    corrupted = list(corrupt_stream(images, corruption, severity, seed=0))
    content = Labelled(np.stack(corrupted), clean.labels)
    return Stored(in_memory(f"digits in {corruption}", content))


def drifted_questions(count: int, seed: int = 0) -> "list[Question]":
    """Questions about pictures in low contrast, of digits that training has not seen.

    >>> [question.answer for question in drifted_questions(3)]
    ['11', '1', '2']
    """
    from dataclasses import replace

    from zotta_edge.corruptions import corrupt_stream
    from zotta_edge.models.picture_questions import questions

    asked = questions(digits(10**6), labels(10**6), count, seed)
    pictures = [question.picture[..., None] for question in asked]
    drifted = corrupt_stream(pictures, "contrast", 3, seed)
    pairs = zip(asked, drifted, strict=True)
    return [replace(question, picture=picture[..., 0]) for question, picture in pairs]
