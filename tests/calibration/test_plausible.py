"""What calibration says where model, preprocessing and images do not belong together."""

from dataclasses import replace

import numpy as np
import pytest

from zotta_edge.calibration.plausible import doubts
from zotta_edge.calibration.samples import Samples
from zotta_edge.models import embedded
from zotta_edge.presets import as_preset
from zotta_edge.runtime.engine.model_info import read_info


def digits(count: int) -> Samples:
    return Samples(embedded.digits(count))


def test_nothing_is_said_of_the_right_preprocessing() -> None:
    assert doubts(embedded.MODEL, read_info(embedded.MODEL), digits(64), 1) == []


@pytest.mark.parametrize("count", [24, 64, 100])
def test_the_right_preprocessing_is_named_among_the_wrong_ones(count: int) -> None:
    info = read_info(embedded.MODEL)
    wrong = replace(info, preprocessing=as_preset(info.preprocessing, "raw"))
    (said,) = (note for note in doubts(embedded.MODEL, wrong, digits(count), 1) if "makes" in note)
    assert "prepared as `half`" in said


def test_ways_that_are_far_behind_are_tried_on_the_first_images_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from zotta_edge.calibration import plausible

    prepared: list[int] = []

    def counting(images: np.ndarray, p: object) -> np.ndarray:
        prepared.append(len(images))
        return prepare(images, p)

    prepare = plausible.prepare
    monkeypatch.setattr(plausible, "prepare", counting)
    doubts(embedded.MODEL, read_info(embedded.MODEL), digits(64), 1)
    assert 64 < sum(prepared) < 3 * 64  # as stated, `none` and `raw`
