"""A memory of classes behind methods that have none, and none behind those that do."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from zotta_edge import AdaptiveModel, Settings
from zotta_edge.models import embedded
from zotta_edge.runtime.io.sources import Sample

METHODS = pytest.mark.parametrize("method", ["none", "neo", "primed"])


@pytest.fixture(scope="module")
def fog() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Digits in fog, sorted by class."""
    samples: list[Sample] = list(embedded.corrupted_stream())[:300]
    labels = np.load(embedded.STREAM)["labels"][:300]
    order = np.argsort(labels, kind="stable")
    return np.stack([samples[row].image for row in order]), labels[order]


def load(method: str, memory: str) -> AdaptiveModel:
    settings = Settings().override([f"class_memory={memory}"])
    return AdaptiveModel.load(embedded.MODEL, settings, method, threads=1)


def answers(model: AdaptiveModel, images: NDArray[np.uint8]) -> NDArray[np.float32]:
    parts = [images[start : start + 16] for start in range(0, len(images), 16)]
    return np.concatenate([model.predict(part).logits for part in parts])


@METHODS
def test_runs_of_classes_help(
    method: str, fog: tuple[NDArray[np.uint8], NDArray[np.int64]]
) -> None:
    images, labels = fog
    right = {
        memory: float((answers(load(method, memory), images).argmax(axis=1) == labels).mean())
        for memory in ("on", "off")
    }
    assert right["on"] > right["off"] + 0.05


@METHODS
def test_digits_in_no_order_are_answered_as_without(method: str) -> None:
    images = np.load(embedded.STREAM)["images"][:160]
    np.testing.assert_array_equal(
        answers(load(method, "on"), images), answers(load(method, "off"), images)
    )


@METHODS
def test_a_state_continues_and_reading_changes_nothing(
    method: str, fog: tuple[NDArray[np.uint8], NDArray[np.int64]], tmp_path: Path
) -> None:
    images, _ = fog
    model, other = load(method, "on"), load(method, "on")
    answers(model, images[:200])
    assert model.status()["class_memory"]["active"]
    model.save_state(tmp_path / "state")
    other.load_state(tmp_path / "state")
    other.predict(images[:32], adapt=False)
    np.testing.assert_array_equal(answers(model, images[200:]), answers(other, images[200:]))
    model.reset()
    assert not model.status()["class_memory"]["active"]


def test_a_state_without_a_memory_is_taken(
    fog: tuple[NDArray[np.uint8], NDArray[np.int64]], tmp_path: Path
) -> None:
    model, other = load("neo", "auto"), load("neo", "on")
    answers(model, fog[0][:64])
    model.save_state(tmp_path / "state")
    other.load_state(tmp_path / "state")
    assert other.status()["distance"] == model.status()["distance"]
