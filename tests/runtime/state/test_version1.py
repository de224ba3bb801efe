"""State files that zotta-edge 0.1.0 wrote, after 64 digits in fog in batches of 16."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import safe_open

from zotta_edge import AdaptiveModel, ZottaError
from zotta_edge.models import embedded
from zotta_edge.runtime.state import fields, file

DATA = Path(__file__).parent / "data"


def raw(method: str) -> tuple[dict[str, str], dict[str, NDArray[np.generic]]]:
    with safe_open(DATA / f"{method}-0.1.0.state", framework="numpy") as stored:
        return stored.metadata(), {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118


def upgraded(method: str) -> dict[str, NDArray[np.generic]]:
    header, _ = raw(method)
    model = AdaptiveModel.load(embedded.MODEL, method=method, threads=1)
    path = DATA / f"{method}-0.1.0.state"
    return file.load(path, model.arrays(), header["model"], method)


def test_a_primed_state_keeps_every_number() -> None:
    _, old = raw("primed")
    new = fields.section(upgraded("primed"), "method")
    assert old["method.numbers"].tolist() == [
        *new["alignment.steps"], *new["lens.watch.unchanged"], *new["budget.credit"]
    ]  # fmt: skip
    for before, after in (
        ("theta", "alignment.theta"),
        ("shift.mean", "alignment.mean"),
        ("offset.mean", "embedding.mean"),
        ("answers.mean", "mix.mean"),
        ("drift.reference", "lens.watch.drift.reference"),
        ("correction.contrast.mean", "lens.filter.tried[contrast].mean"),
        ("guard.shares", "collapse.shares"),
    ):
        np.testing.assert_array_equal(old[f"method.{before}"], new[after], err_msg=after)
    assert old["method.answers.numbers"].tolist() == [*new["mix.samples"], *new["mix.variance"]]
    assert fields.text_from_array(new["lens.filter.name"], ["contrast"]) == "contrast"


def test_a_zotta_state_keeps_every_number() -> None:
    _, old = raw("zotta")
    new = fields.section(upgraded("zotta"), "method")
    assert fields.text_from_array(new["gate.phase"], ["adapting"]) == "adapting"
    gate = old["method.gate.numbers"].tolist()
    assert gate[1:] == [*new["gate.previous"], *new["gate.total"], *new["gate.samples"]]
    events = old["method.guard.events"].tolist()
    kinds = ("shortened", "bounded", "rollback", "collapse", "returned")
    assert events == [int(new[f"counts.{kind}"][0]) for kind in kinds]
    np.testing.assert_array_equal(old["method.rng"], new["rng"])
    assert old["method.guard.numbers"][0] == new["region.trust"]


@pytest.mark.parametrize("method", ["primed", "zotta"])
def test_adaptation_goes_on_and_is_saved_as_the_new_version(method: str, tmp_path: Path) -> None:
    header, _ = raw(method)
    model = AdaptiveModel.load(embedded.MODEL, method=method, threads=1)
    if header["model"] != model.fingerprint:
        pytest.skip("the embedded model is no longer the one that 0.1.0 had")
    model.load_state(DATA / f"{method}-0.1.0.state")
    assert model.status()["images"] == 64
    model.save_state(tmp_path / "new.state")
    with safe_open(tmp_path / "new.state", framework="numpy") as stored:
        assert stored.metadata()["format"] == "2"
    images = [sample.image for sample in embedded.corrupted_stream()][64:80]
    other = AdaptiveModel.load(embedded.MODEL, method=method, threads=1)
    other.load_state(tmp_path / "new.state")
    np.testing.assert_array_equal(model.predict(images).logits, other.predict(images).logits)


def test_one_that_does_not_map_is_refused_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, odd = tmp_path / "odd.state", {"counts": np.arange(3), "method.gate.numbers": np.ones(2)}
    with monkeypatch.context() as older:
        older.setattr(file, "FORMAT_VERSION", "1")
        file.save(path, odd, "f" * 64, "zotta")
    with pytest.raises(ZottaError, match=r"state format 1 \(zotta-edge 0.1.0\)") as caught:
        file.load(path, {}, "f" * 64, "zotta")
    assert "\n" not in str(caught.value)


def test_a_damaged_one_is_refused(tmp_path: Path) -> None:
    content = bytearray((DATA / "zotta-0.1.0.state").read_bytes())
    content[-1] ^= 1
    (tmp_path / "damaged.state").write_bytes(content)
    model = AdaptiveModel.load(embedded.MODEL, method="zotta", threads=1)
    with pytest.raises(ZottaError, match="damaged"):
        model.load_state(tmp_path / "damaged.state")
