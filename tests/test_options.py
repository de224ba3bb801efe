"""Options: every place a value can come from ends in the same checks, and names the culprit."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from zotta_edge.errors import ZottaError
from zotta_edge.options import Options, describe, option


@dataclass(frozen=True)
class Camera(Options):
    rate: float = option(25.0, "pictures a second", low=1, high=100)
    buffer: int | None = option(None, "pictures kept", low=0)
    mode: Literal["grey", "colour"] = option("colour", "what is read")
    mirrored: bool = option(False, "flip left and right")
    folder: Path | None = option(None, "where pictures go", metavar="DIR")
    name: str = option("front", "in listings")


def test_environment_gives_typed_values() -> None:
    environment = {
        "CAM_RATE": ".5e1", "CAM_BUFFER": "3", "CAM_MIRRORED": "true", "CAM_FOLDER": "2024",
        "CAM_NAME": "7", "CAM_MODE": "", "OTHER": "x",
    }  # fmt: skip
    camera = Camera().from_environment(environment, "CAM_")
    assert camera == Camera(
        rate=5.0, buffer=3, mirrored=True, folder=Path("2024"), name="7", mode="colour"
    )


def test_a_value_given_in_code_is_checked_and_converted() -> None:
    camera = Camera(rate=5, folder="there")  # type: ignore[arg-type]
    assert type(camera.rate) is float
    assert camera.folder == Path("there")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rate": 101}, "rate is 101.0: expected a number from 1 to 100"),
        ({"buffer": -1}, "buffer is -1: expected a number at least 0"),
        ({"buffer": True}, "buffer is True: expected a whole number"),
        ({"rate": None}, "rate is None: expected a number"),
        ({"mode": "infrared"}, "mode is 'infrared': expected one of grey, colour"),
        ({"mode": ["grey"]}, "mode is ['grey']: expected one of grey, colour"),
        ({"folder": 3}, "folder is 3: expected a path"),
        ({"name": 3}, "name is 3: expected a text"),
        ({"mirored": True}, "no option is called mirored: did you mean mirrored?"),
        ({"x": 1}, "no option is called x: there are rate, buffer, mode, mirrored, folder, name"),
        ({"rate": 10**400}, "rate is 100000000000000000...0000000000000000000: expected a number"),
        ({"rate": "x" * 10**6}, "rate is 'xxxxxxxxxxxx...xxxxxxxxxxxxx': expected a number"),
        ({"rate": float("inf")}, "rate is inf: expected a number from 1 to 100"),
        (
            {"buffer": -(10**400)},
            "buffer is -10000000000000000...0000000000000000000: expected a number at least 0",
        ),
        (
            {"mirrore" + "d" * 10**6: True},
            "no option is called mirrore" + "d" * 33 + ": there are "
            "rate, buffer, mode, mirrored, folder, name",
        ),
    ],
)
def test_errors_name_the_option(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ZottaError) as caught:
        Camera().replace(values)
    assert str(caught.value) == message


def test_errors_name_where_the_value_came_from(tmp_path: Path) -> None:
    with pytest.raises(ZottaError, match="^CAM_BUFFER: buffer is 'many': expected a whole number"):
        Camera().from_environment({"CAM_BUFFER": "many"}, "CAM_")
    path = tmp_path / "camera.toml"
    path.write_text("rate = 0")
    with pytest.raises(ZottaError, match=r"camera\.toml: rate is 0.0: expected a number from 1"):
        Camera.from_toml(path)


def test_a_whole_number_of_hundreds_of_digits() -> None:
    """It ended `--set`, and a request for text, in an OverflowError."""
    assert Camera().replace({"buffer": 10**400}).buffer == 10**400


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 60_000])
def test_what_the_toml_reader_gives_up_on(tmp_path: Path, value: str) -> None:
    with pytest.raises(ZottaError, match=r"rate is '.{,40}': expected a number"):
        Camera().override([f"rate={value}"])
    path = tmp_path / "camera.toml"
    path.write_text(f"rate = {value}")
    with pytest.raises(ZottaError, match=r"camera\.toml is not valid TOML"):
        Camera.from_toml(path)


def test_description_for_a_command_line() -> None:
    described = {each.name: each for each in describe(Camera)}
    assert list(described) == ["rate", "buffer", "mode", "mirrored", "folder", "name"]
    assert described["buffer"].kind is int
    assert described["mode"].choices == ("grey", "colour")
    assert described["folder"].metavar == "DIR"
    assert described["rate"].default == 25.0
