"""The service's settings: flags, then the environment (ZOTTA_...), then a TOML file."""

import ipaddress
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from zotta_edge.errors import ZottaError

PREFIX = "ZOTTA_"


def _option(default: Any, about: str, low: float = -math.inf, value: str = "") -> Any:
    """A field that is also a flag, an environment variable and a TOML key."""
    return field(default=default, metadata={"about": about, "low": low, "value": value})


@dataclass(frozen=True)
class Config:
    """Everything that can be set, with defaults for one device and its own cameras."""

    model: Path | None = _option(
        None, "a calibrated model file; unset: embedded digits", value="FILE"
    )
    host: str = _option("127.0.0.1", "address to listen on; others than loopback need a token")
    port: int = _option(8080, "0: any free one", low=0, value="N")
    token_file: Path | None = _option(
        None, "file whose only line clients must send as `Authorization: Bearer`", value="FILE"
    )
    state: Path | None = _option(
        None, "folder for what was learned: restored at start, saved while running", value="DIR"
    )
    save_every: int = _option(50, "steps between two saves", low=1, value="STEPS")
    adapt: Literal["inline", "background", "off"] = _option(
        "inline", "inline: adapt, then answer; background: answer, then adapt; off: never"
    )
    method: str | None = _option(None, "way to adapt; unset: that of `zotta-edge adapt`")
    batch_size: int = _option(16, "images to adapt on at a time", low=1, value="N")
    max_wait: float = _option(
        0.02, "seconds that inline requests wait for others to fill a batch", low=0, value="SECONDS"
    )
    deadline: float = _option(
        1.0,
        "seconds that an answer waits for adaptation; then the model answers as it is",
        low=0,
        value="SECONDS",
    )
    max_body: float = _option(32.0, "largest request in MB, decompressed", low=0.001, value="MB")
    max_requests: int = _option(64, "at once; more are told to try again", low=1, value="N")
    provider: str | None = _option(None, "cpu (default), cuda, tensorrt, ...")
    threads: int | None = _option(None, "unset: physical cores", low=1, value="N")
    log: Literal["plain", "json"] = _option("plain", "lines for people, or JSON objects")

    def __post_init__(self) -> None:
        for item in fields(self):
            _check_range(item.name, getattr(self, item.name), item.metadata["low"])

    @property
    def local(self) -> bool:
        """Whether only this machine can reach the address."""
        return is_local(self.host)

    def read_token(self) -> str | None:
        """The token, without which only loopback is served."""
        if self.token_file is None:
            if not self.local:
                raise ZottaError(
                    f"refusing to listen on {self.host} without a token: anyone could change the "
                    "model; write a secret to a file and give it as --token-file"
                )
            return None
        try:
            token = self.token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not text"
            raise ZottaError(f"cannot read the token in {self.token_file}: {reason}") from error
        if len(token) < 8 or not token.isascii() or not token.isprintable() or " " in token:
            raise ZottaError(
                f"the token in {self.token_file} must be one word of 8 or more ASCII characters"
            )
        return token


def is_local(host: str) -> bool:
    """Whether a name or an address is this machine's for itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def load(
    flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None
) -> tuple[Config, dict[str, Any]]:
    """The configuration, and the file's [settings] of adaptation."""
    table = _table(file) if file else {}
    settings = table.pop("settings", {})
    if not isinstance(settings, dict):
        raise ZottaError(f"{file}: settings must be a table, [settings]")
    types = get_type_hints(Config)
    known = {item.name for item in fields(Config)}
    if unknown := sorted(set(table) - known):
        names = ", ".join(sorted(known))
        raise ZottaError(f"{file}: no option is called {unknown[0]}: there are {names}")
    values = {name: _typed(name, value, types[name], str(file)) for name, value in table.items()}
    for name in known:
        variable = PREFIX + name.upper()
        if text := environment.get(variable, ""):
            values[name] = _typed(name, text, types[name], variable)
    values |= {name: flags[name] for name in known if flags.get(name) is not None}
    return Config(**values), settings


def _table(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ZottaError(f"cannot read {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ZottaError(f"{file} is not valid TOML: {error}") from error


def kind_of(expected: Any) -> Any:
    """The type behind `X | None`, or `str` behind a choice of words."""
    options = [option for option in get_args(expected) if option is not type(None)]
    if options and all(isinstance(option, str) for option in options):
        return str
    return options[0] if options else expected


def _typed(name: str, value: Any, expected: Any, where: str) -> Any:
    """A TOML value or an environment variable's text as the field's type."""
    kind = kind_of(expected)
    try:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError
        if kind is int and isinstance(value, float):
            raise ValueError
        typed = kind(value)
    except ValueError:
        raise ZottaError(f"{where}: {name} is {value!r}, expected {_KINDS[kind]}") from None
    words = [option for option in get_args(expected) if isinstance(option, str)]
    if words and typed not in words:
        raise ZottaError(f"{where}: {name} is {value!r}, expected one of {', '.join(words)}")
    return typed


_KINDS = {int: "a whole number", float: "a number", str: "a text", Path: "a path"}


def _check_range(name: str, value: Any, low: float) -> None:
    if isinstance(value, int | float) and not (low <= value < math.inf):
        raise ZottaError(f"{name.replace('_', '-')} is {value}: expected a number from {low:g} up")
