"""Drifted images found at the start of a stream."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from zotta_edge.__main__ import main
from zotta_edge.calibration.samples import Samples
from zotta_edge.calibration.stream import gather
from zotta_edge.corruptions import corrupt_batch
from zotta_edge.errors import ZottaError
from zotta_edge.models import embedded
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.io.preprocessing import fit

Images = NDArray[np.uint8]


@pytest.fixture(scope="module")
def digits() -> Images:
    pixels = read_info(embedded.MODEL).preprocessing
    return np.stack([fit(image, pixels) for image in np.load(embedded.STREAM)["images"][:700]])


@pytest.fixture(scope="module")
def drifted(digits: Images) -> Images:
    return np.stack(corrupt_batch(list(digits[300:]), "fog", 5, 0))


def calibrated(folder: Path, capsys: pytest.CaptureFixture[str], *asked: str) -> dict[str, Any]:
    model = Path(shutil.copy(embedded.MODEL, folder / "m.onnx"))
    assert main(["calibrate", str(model), "--samples", "64", "--json", *asked]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_it_chooses_as_given_images_do(
    tmp_path: Path, digits: Images, drifted: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    source, stream = str(tmp_path / "source.npy"), str(tmp_path / "stream.npy")
    np.save(source, digits[:300])
    np.save(stream, drifted)
    given = calibrated(tmp_path, capsys, "--source", source, "--ood", stream)
    found = calibrated(tmp_path, capsys, "--source", source, "--stream", stream)
    assert found["chosen"] == given["chosen"]
    purity = [[layer["score"] for layer in one["layers"]] for one in (given, found)]
    np.testing.assert_allclose(*purity, atol=0.12)
    assert np.corrcoef(*purity)[0, 1] > 0.9


def test_a_stream_alone_has_its_own_source(
    tmp_path: Path, digits: Images, drifted: Images, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stream that is clean at first: the statistics are of images the model is sure of."""
    stream = str(tmp_path / "stream.npy")
    np.save(stream, np.concatenate([digits[:100], drifted]))
    found = calibrated(tmp_path, capsys, "--stream", stream)
    assert found["samples"] == 64
    assert found["chosen"]
    info = read_info(tmp_path / "m.onnx")
    assert info.calibration is not None
    clean, known = read_info(embedded.MODEL).calibration, info.calibration
    assert clean is not None
    apart = [
        np.linalg.norm(a - b) / np.linalg.norm(s)
        for a, b, s in zip(clean.mean, known.mean, clean.std, strict=True)
    ]
    assert max(apart) < 0.7


def test_unsure_images_are_taken_in_order(digits: Images, drifted: Images) -> None:
    info = read_info(embedded.MODEL)
    found = gather(embedded.MODEL, info, drifted, 16, Samples(digits[:300]))
    assert len(found.drifted) == 16
    assert found.source is None
    places = [
        int(np.flatnonzero((drifted == image).all(axis=(1, 2, 3)))[0])
        for image in found.drifted.images
    ]
    assert places == sorted(places)
    assert max(places) < found.looked_at <= len(drifted)


def test_a_stream_like_the_source_is_refused(digits: Images) -> None:
    with pytest.raises(ZottaError, match="does not look drifted"):
        gather(embedded.MODEL, read_info(embedded.MODEL), digits[300:], 16, Samples(digits[:300]))
    with pytest.raises(ZottaError, match="unsure of fewer than 8"):
        gather(embedded.MODEL, read_info(embedded.MODEL), digits[:40], 16)


@pytest.mark.parametrize(
    ("asked", "message"),
    [([], "give --source"), (["--stream", "a.npy", "--ood", "b.npy"], "give one of them")],
)
def test_what_cannot_be_meant(
    asked: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = shutil.copy(embedded.MODEL, tmp_path / "m.onnx")
    assert main(["calibrate", str(model), *asked]) == 1
    assert message in capsys.readouterr().err
