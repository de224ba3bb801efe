"""Signatures: what is fitted, what rounding costs, and that stopped work goes on."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import signed

from zotta_edge.calibration import signatures
from zotta_edge.calibration.observed import Observed
from zotta_edge.calibration.ridge import principal, ridge
from zotta_edge.calibration.sign import Signing
from zotta_edge.calibration.signatures import LEAST_RANK, RANK, Size, size_of
from zotta_edge.errors import ZottaError
from zotta_edge.format import from_metadata, to_metadata
from zotta_edge.format.signatures import MAPS, Signatures
from zotta_edge.models import embedded
from zotta_edge.runtime.engine.model_info import read_info


@pytest.fixture
def stored(signed_digits: Path) -> Signatures:
    signatures = read_info(signed_digits).signatures
    assert signatures is not None
    return signatures


def test_ridge_finds_a_linear_map() -> None:
    rng = np.random.default_rng(0)
    x = np.c_[rng.standard_normal((200, 5)), np.ones(200)].astype(np.float32)
    map_ = rng.standard_normal((6, 3))
    found = ridge(x, (x @ map_).astype(np.float32), 1e-3, np.ones(200))
    np.testing.assert_allclose(found, map_, atol=1e-3)
    main = principal(x @ map_ @ np.diag([5.0, 1.0, 0.0]), np.ones(200), 2)
    np.testing.assert_allclose(main[2], 0, atol=1e-6)


def test_bytes_in_a_matrix_cost_nothing(stored: Signatures) -> None:
    """What the maps say of random inputs, before and after they are rounded."""
    rng = np.random.default_rng(0)
    for name in MAPS:
        exact = getattr(stored, name) + 0.2 * rng.standard_normal(getattr(stored, name).shape)
        wide = replace(stored, **{name: exact.astype(np.float32)})
        info = read_info(embedded.MODEL)
        read = from_metadata(to_metadata(replace(info, signatures=wide))).signatures
        assert read is not None
        inputs = rng.standard_normal((64, len(exact))).astype(np.float32)
        one, other = inputs @ exact, inputs @ getattr(read, name)
        assert np.linalg.norm(one - other) < 0.02 * np.linalg.norm(one), name


def test_the_file_says_what_was_fitted(signed_digits: Path, stored: Signatures) -> None:
    assert stored.filters == ("smooth", "median", "sharpen", "contrast")
    assert (stored.images, stored.copies) == (signed.IMAGES, 12)
    assert stored.energy > 0
    info = read_info(signed_digits)
    assert from_metadata(to_metadata(info)).signatures is not None
    unsigned = {key: value for key, value in to_metadata(info).items() if "signatures" not in key}
    assert from_metadata(unsigned).signatures is None


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("zotta.maps", lambda text: text[:-8]),
        ("zotta.units", lambda text: text[:-16]),
        ("zotta.signatures", lambda text: text.replace('"spread":', '"spread":-')),
        ("zotta.signatures", lambda text: text.replace('"filters":["smooth",', '"filters":[')),
    ],
)
def test_damaged_signatures_are_refused(signed_digits: Path, key: str, change: object) -> None:
    metadata = to_metadata(read_info(signed_digits))
    with pytest.raises(ZottaError, match="is damaged"):
        from_metadata(metadata | {key: change(metadata[key])})  # type: ignore[operator]


def test_the_rank_is_what_the_file_can_pay_for() -> None:
    size = Size(measures=30, filters=4, stem=16, features=160, embedding=64)
    assert size.rank(0) == LEAST_RANK
    assert size.rank(1e9) == RANK
    assert size.bytes(size.rank(20_000)) <= 20_000


class Stopped(Signing):
    """Interrupted after what was seen has been written once."""

    def _keep(self, so_far: Observed) -> None:
        super()._keep(so_far)
        if self._path.exists():
            raise KeyboardInterrupt


def test_stopped_work_goes_on(tmp_path: Path, stored: Signatures) -> None:
    model = Path(shutil.copy(embedded.MODEL, tmp_path / "digits.onnx"))
    work, report = signed.signing(model)
    assert report.info.prime is not None
    stopped = Stopped.__new__(Stopped)
    stopped.__dict__.update(vars(work))
    with pytest.raises(KeyboardInterrupt):
        stopped.signatures(report.info.prime)
    (kept,) = tmp_path.glob(".*signatures.npz")
    done = len(np.load(kept)["measures"])
    assert 0 < done < len(work._observer.copies)
    again = work.signatures(report.info.prime)
    assert not kept.exists()
    for name in MAPS:
        np.testing.assert_allclose(getattr(again, name), getattr(stored, name), atol=0.01)
    assert size_of(work._observer).bytes(again.inward.shape[1]) == again.stored_bytes


def test_a_quarter_of_the_moved_passes_tells_nearly_as_much(
    tmp_path: Path, stored: Signatures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signatures, "MOVED", 1)
    work, report = signed.signing(Path(shutil.copy(embedded.MODEL, tmp_path / "digits.onnx")))
    assert report.info.prime is not None
    every = work.signatures(report.info.prime).deltas
    off = np.linalg.norm(stored.deltas - every)
    assert off < 0.4 * np.linalg.norm(every)  # without the passes before the moves: 0.8
