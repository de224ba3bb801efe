"""Streams that show too little to be a world: a parked camera, a few scenes, one class."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from zotta_edge import AdaptiveModel
from zotta_edge.corruptions import corrupt
from zotta_edge.models import embedded

Pixels = NDArray[np.uint8]
MODELS = pytest.mark.parametrize("path", [embedded.MODEL, embedded.RESNET], ids=["vit", "resnet"])


@pytest.fixture(scope="module")
def digits() -> tuple[Pixels, NDArray[np.int64]]:
    content = np.load(embedded.STREAM)
    return content["images"], content["labels"]


def answers(model: AdaptiveModel, images: Pixels, batch: int = 16) -> NDArray[np.int64]:
    model.reset()
    parts = [images[start : start + batch] for start in range(0, len(images), batch)]
    return np.concatenate([model.predict(part).logits.argmax(axis=1) for part in parts])


@MODELS
def test_a_parked_camera_changes_no_answer(
    path: Path, digits: tuple[Pixels, NDArray[np.int64]]
) -> None:
    model, plain = (AdaptiveModel.load(path, method=name) for name in ("primed", "none"))
    for scene in digits[0][:8]:
        frames = np.repeat(scene[None], 96, axis=0)
        np.testing.assert_array_equal(answers(model, frames), answers(plain, frames))


@MODELS
def test_noise_alone_is_nothing_new(path: Path, digits: tuple[Pixels, NDArray[np.int64]]) -> None:
    """A still scene whose every frame has noise of its own."""
    model, plain = (AdaptiveModel.load(path, method=name) for name in ("primed", "none"))
    for scene in digits[0][:4]:
        frames = np.stack([corrupt(scene, "gaussian_noise", 3, seed) for seed in range(64)])
        np.testing.assert_array_equal(answers(model, frames), answers(plain, frames))


@MODELS
def test_clean_digits_sorted_by_class_lose_little(
    path: Path, digits: tuple[Pixels, NDArray[np.int64]]
) -> None:
    images, labels = digits[0][:400], digits[1][:400]
    order = np.argsort(labels, kind="stable")
    images, labels = images[order], labels[order]
    primed, none = (
        np.mean(answers(AdaptiveModel.load(path, method=name), images) == labels)
        for name in ("primed", "none")
    )
    assert primed >= none - 0.01
