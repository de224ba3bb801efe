"""docs/format.md lists what the files hold: every name of the code, and no other."""

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zotta_edge import AdaptiveModel, Settings
from zotta_edge.errors import ZottaError
from zotta_edge.format import (
    FORMAT_VERSION,
    STATISTICS,
    Calibration,
    Layer,
    Norm,
    Preprocessing,
    Prime,
    Recipe,
    Reliability,
    Trial,
    to_metadata,
)
from zotta_edge.format.moments import Site, SourceMoments
from zotta_edge.format.signatures import MAPS, UNITS, Signatures
from zotta_edge.models import embedded
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.methods.registry import METHODS
from zotta_edge.runtime.state import file as states

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "format.md").read_text()
MODEL, STATE = PAGE.split("\n## ")[1:]


def table(text: str, heading: str) -> list[str]:
    """The first column of the table under a heading, line by line."""
    rows = text.split(heading, 1)[1].split("|", 1)[1].split("\n\n", 1)[0].splitlines()
    return [row.split(" | ")[0] for row in rows if row.startswith("| `")]


def names(rows: list[str]) -> list[str]:
    """The names in code style; `.field` goes on from the name before it."""
    found: list[str] = []
    for name in (name for row in rows for name in re.findall(r"`([^`]+)`", row)):
        found.append(found[-1].rpartition(".")[0] + name if name.startswith(".") else name)
    return found


def test_keys_of_the_model_file() -> None:
    info = AdaptiveModel.load(embedded.MODEL).info
    optional = ("zotta.trial", "zotta.outputs")
    vector = np.ones(2, np.float32)
    site = Site("hat", "map", 2, 1, "norm")
    moments = SourceMoments((site,), vector, vector, vector[:1], *2 * [vector.repeat(2)], 8, {})
    known = Reliability((1.0, 0.0), (1.0,), error=0.05, labelled=True, streams=1)
    info = replace(info, moments=moments, reliability=known)
    assert set(names(table(MODEL, "| key | meaning |"))) == {*to_metadata(info), *optional}
    assert f"format {FORMAT_VERSION}" in MODEL.splitlines()[0]


@pytest.mark.parametrize(
    ("key", "kind", "arrays"),
    [
        ("trial", Trial, ()),
        ("preprocessing", Preprocessing, ()),
        ("layers", Layer, ()),
        ("recipe", Recipe, ()),
        ("calibration", Calibration, STATISTICS),
        ("prime", Prime, ("features", "shifts")),
        ("moments", SourceMoments, ("mean", "variance", "energy", "first_mean", "first_std")),
        ("reliability", Reliability, ()),
        ("signatures", Signatures, (*MAPS, *UNITS)),
    ],
)
def test_fields_of_the_model_file(key: str, kind: Any, arrays: tuple[str, ...]) -> None:
    told = names(table(MODEL, f"\n`zotta.{key}`"))
    assert told == [name for name in told if name in {field.name for field in fields(kind)}]
    assert set(told) == {field.name for field in fields(kind)} - set(arrays)


def test_keys_of_a_signed_file(signed_digits: Path) -> None:
    told = names(table(MODEL, "| key | meaning |"))
    told += names(table(MODEL, "| key of signed files | meaning |"))
    held = set(to_metadata(read_info(signed_digits)))
    assert set(told) == held | {
        *(
            "zotta.trial",
            "zotta.outputs",
            "zotta.moments",
            "zotta.moments.values",
            "zotta.reliability",
        )
    }


def test_fields_of_a_norm() -> None:
    (row,) = re.findall(r"\| `norms` \| (.*) \|", MODEL)
    assert names([row]) == [field.name for field in fields(Norm)]


def test_header_of_the_state_file(tmp_path: Path) -> None:
    from safetensors import safe_open

    AdaptiveModel.load(embedded.MODEL).save_state(tmp_path / "digits.state")
    with safe_open(tmp_path / "digits.state", framework="numpy") as file:
        assert set(names(table(STATE, "| header | meaning |"))) == set(file.metadata())
    assert f"format {states.FORMAT_VERSION}" in STATE.splitlines()[0]


def adaptable(settings: Settings) -> Iterator[str]:
    """The methods that the embedded model can be adapted with."""
    for method in METHODS:
        try:
            AdaptiveModel.load(embedded.MODEL, settings, method=method)
        except ZottaError:
            continue
        yield method


def test_fields_of_every_state(token_statistics: Path) -> None:
    settings = Settings(pea_statistics=str(token_statistics))
    digits = np.load(embedded.STREAM)["images"][:16]
    shared = set(names(table(STATE, "| every method | meaning |")))
    for method in adaptable(settings):
        model = AdaptiveModel.load(embedded.MODEL, settings, method=method)
        model.predict(digits)
        held = {re.sub(r"tried\[\w+\]", "tried[{filter}]", name) for name in model.arrays()}
        heading = f"| {method} | meaning |"
        own = set(names(table(STATE, heading))) if heading in STATE else set()
        assert shared | own == held, method


def test_fields_of_a_signed_files_state(signed_digits: Path) -> None:
    held = set(AdaptiveModel.load(signed_digits).arrays())
    told = names(table(STATE, "| every method | meaning |"))
    told += names(table(STATE, "| primed | meaning |"))
    heading = "| primed, of a signed file | meaning, beside the above |"
    held = {re.sub(r"tried\[\w+\]", "tried[{filter}]", name) for name in held}
    assert set(told + names(table(STATE, heading))) == held
