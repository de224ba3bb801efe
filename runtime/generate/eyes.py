"""The vision file beside a decoder's: from pictures to rows of `image_embeds`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from zotta_edge.decoder_format import IMAGE_ROWS, DecoderInfo, Vision
from zotta_edge.errors import ZottaError, one_line
from zotta_edge.format import IMAGE, Floats, Preprocessing
from zotta_edge.runtime.io.preprocessing import as_batch
from zotta_edge.sessions import ORT_ERRORS, open_session

_STRIP = 200  # times another shape than the model's; Qwen2.5-VL refuses as much


class Eyes:
    """Images in, rows out: `rows(images)[i]` are the rows of image i."""

    def __init__(self, session: ort.InferenceSession, vision: Vision) -> None:
        self._session, self.vision = session, vision

    @classmethod
    def open(
        cls, path: Path, info: DecoderInfo, threads: int | None = None, provider: str | None = None
    ) -> "Eyes":
        """The vision file of the decoder's file `path`."""
        if info.vision is None:
            raise ZottaError(f"{path} reads text alone: leave --image out")
        file = path.with_suffix(".vision.onnx")
        if not file.exists():
            raise ZottaError(f"{path} sees through {file.name}: copy that file beside it")
        session = open_session(file, threads=threads, provider=provider)
        pixels = info.vision.preprocessing
        wanted = [pixels.channels, pixels.height, pixels.width], [info.shape.hidden]
        found = (
            [each.shape[1:] for each in session.get_inputs() if each.name == IMAGE],
            [each.shape[1:] for each in session.get_outputs() if each.name == IMAGE_ROWS],
        )
        if found != ([wanted[0]], [wanted[1]]):
            raise ZottaError(f"{file.name} belongs to another model than {path.name}")
        return cls(session, info.vision)

    def rows(self, images: Sequence[NDArray[Any]]) -> list[Floats]:
        """uint8 images of any size are resized as the file says; float ones must fit."""
        for image in images:
            _check_sides(image, self.vision.preprocessing)
        batch = as_batch(images, self.vision.preprocessing)
        try:
            (rows,) = self._session.run([IMAGE_ROWS], {IMAGE: batch})
        except ORT_ERRORS as error:
            raise ZottaError(f"ONNX Runtime could not run the eyes: {one_line(error)}") from error
        return list(np.split(rows, len(batch)))


def _check_sides(image: NDArray[Any], p: Preprocessing) -> None:
    """Refuse a strip: resized to the model's input, nothing of it would be left to see."""
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or 0 in image.shape:
        return  # what else is wrong with it is said where it is resized
    height, width = image.shape[:2]
    stretch = (width * p.height) / (height * p.width)
    if not 1 / _STRIP <= stretch <= _STRIP:
        raise ZottaError(
            f"the image has {width} x {height} pixels, the model sees {p.width} x {p.height}: "
            f"its sides differ more than {_STRIP} times, crop it"
        )
