"""The service's options: flags win over the environment (ZOTTA_...), which wins over a file."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from zotta_edge.errors import ZottaError
from zotta_edge.files import read_text
from zotta_edge.options import Options, blaming, option, read_toml

PREFIX = "ZOTTA_"


@dataclass(frozen=True)
class Config(Options):
    """The options of `zotta-edge serve`, with defaults for a device and its own cameras.

    `zotta-edge serve --help` explains each; values are checked when they are given.

    >>> Config(adapt="background", batch_size=8).local
    True
    >>> Config(batch_size=0)
    Traceback (most recent call last):
    zotta_edge.errors.ZottaError: batch_size is 0: expected a number at least 1
    """

    model: Path | None = option(
        None, "a calibrated model file; unset: the embedded digits", metavar="FILE"
    )
    host: str = option("127.0.0.1", "address to listen on; any but loopback needs a token")
    port: int = option(8080, "port to listen on; 0: any free port", low=0, high=65535, metavar="N")
    token_file: Path | None = option(
        None,
        "file with the token that clients must send as `Authorization: Bearer TOKEN`",
        metavar="FILE",
    )
    state: Path | None = option(
        None, "folder for what was learned: loaded at start, saved while running", metavar="DIR"
    )
    save_every: int = option(50, "adaptation steps between two saves", low=1, metavar="STEPS")
    adapt: Literal["inline", "background", "off"] = option(
        "inline", "inline: adapt, then answer; background: answer, then adapt; off: never"
    )
    method: str | None = option(
        None, "how to adapt, see `zotta-edge adapt --help`; unset: as there"
    )
    batch_size: int = option(16, "images to adapt on at a time", low=1, metavar="N")
    max_wait: float = option(
        0.02,
        "seconds that inline requests wait for others to fill a batch",
        low=0,
        metavar="SECONDS",
    )
    deadline: float = option(
        1.0,
        "seconds that an answer waits for adaptation before the current model answers",
        low=0,
        metavar="SECONDS",
    )
    max_body: float = option(32.0, "largest request, after decompression", low=0.001, metavar="MB")
    max_requests: int = option(
        64, "requests at the same time; further ones get status 503", low=1, metavar="N"
    )
    provider: str | None = option(None, "cpu (default), cuda, tensorrt, ...")
    threads: int | None = option(None, "unset: physical cores", low=1, metavar="N")
    log: Literal["plain", "json"] = option("plain", "format of the log: text or JSON lines")

    @property
    def local(self) -> bool:
        """Whether only this machine can reach the address."""
        return is_local(self.host)

    def read_token(self) -> str | None:
        """The token in the file; None, which is allowed for loopback only, without a file."""
        if self.token_file is None:
            if not self.local:
                raise ZottaError(
                    f"refusing to listen on {self.host} without a token: anyone could change the "
                    "model; write a secret to a file and give it as --token-file"
                )
            return None
        token = read_text(self.token_file, f"the token in {self.token_file}").strip()
        if len(token) < 8 or not token.isascii() or not token.isprintable() or " " in token:
            raise ZottaError(
                f"the token in {self.token_file} must be one word of 8 or more ASCII characters"
            )
        return token


def is_local(host: str) -> bool:
    """Whether a name or an address can only be reached from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def load(
    flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None
) -> tuple[Config, dict[str, Any]]:
    """Combine all places that options may stand in.

    Parameters
    ----------
    flags
        Of the command line, by name; None for those not given.
    environment
        Variables; those with our prefix are read.
    file
        TOML, if any.

    Returns
    -------
    The options, and the file's [settings] of adaptation.
    """
    table = read_toml(file) if file else {}
    settings = table.pop("settings", {})
    if not isinstance(settings, dict):
        raise ZottaError(f"{file}: settings must be a table, [settings]")
    with blaming(str(file)):
        config = Config().replace(table)
    config = config.from_environment(environment, PREFIX)
    given = {name: flags[name] for name in config.to_dict() if flags.get(name) is not None}
    return config.replace(given), settings
