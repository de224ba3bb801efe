"""Damaged state files: every one is refused or harmless, and the source stays in force.

    python benchmarks/trust/state_files.py --flips 10000

Every byte of the header flipped, single bits flipped at random, the file cut at every length, and,
as somebody who can write the file would do it, numbers changed under a checksum that fits. What is
refused must leave the model as it was to the bit; what loads must still answer in finite numbers.
"""

import argparse
import struct
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from study import Record, state_of, stream

from zotta_edge import AdaptiveModel, ZottaError
from zotta_edge.models import embedded
from zotta_edge.progress import Progress
from zotta_edge.runtime.state.file import save

EXTREMES = (0.0, -1.0, 1e-320, 1e30, -1e30, float("nan"), float("inf"), 2**62, -(2**62))


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    record, rng = Record("state files"), np.random.default_rng(args.seed)
    model = AdaptiveModel.load(args.model, method=args.method, threads=1)
    source = state_of(model)
    for at in range(0, 128, 16):
        model.predict(stream()[at : at + 16])
    learned = state_of(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "site.state"
        model.save_state(path)
        model.reset()
        _damage(record, model, path, learned, damaged(path.read_bytes(), args, rng))
        _forge(record, model, path, args.forged, rng)
    model = AdaptiveModel.load(args.model, method=args.method, threads=1)
    record.require(state_of(model) == source, "a new model starts elsewhere")
    return record.close()


def damaged(
    content: bytes, args: argparse.Namespace, rng: np.random.Generator
) -> Iterator[tuple[str, bytes]]:
    """What happened to the file, and its content then."""
    header = 8 + struct.unpack("<Q", content[:8])[0]
    for place in range(0, header, args.step):
        for bits in (0x01, 0x80, 0xFF):
            yield "header bytes", _flipped(content, place, bits)
    for place in rng.integers(0, len(content), args.flips):
        yield "bits", _flipped(content, int(place), 1 << int(rng.integers(8)))
    for length in range(0, len(content), args.step):
        yield "lengths", content[:length]
    for more in (b"\0", content, bytes(100_000)):
        yield "longer files", content + more


def _flipped(content: bytes, place: int, bits: int) -> bytes:
    changed = bytearray(content)
    changed[place] ^= bits
    return bytes(changed)


def _damage(
    record: Record,
    model: AdaptiveModel,
    path: Path,
    learned: str,
    files: Iterator[tuple[str, bytes]],
) -> None:
    before = state_of(model)
    with Progress("damaged states") as progress:
        for number, (kind, content) in enumerate(files):
            path.write_bytes(content)
            try:
                model.load_state(path)
            except ZottaError as error:
                record.saw(f"{kind} refused")
                record.require("\n" not in str(error), f"{kind} {number}: more than one line")
                record.require(state_of(model) == before, f"{kind} {number}: changed the model")
            except Exception as error:
                record.require(False, f"{kind} {number}: {type(error).__name__}: {error}")
            else:
                record.saw(f"{kind} harmless")
                record.require(state_of(model) == learned, f"{kind} {number}: another state")
                model.reset()
                before = state_of(model)
            progress.advance()


def _forge(
    record: Record, model: AdaptiveModel, path: Path, count: int, rng: np.random.Generator
) -> None:
    """States with a checksum that fits and a number that does not."""
    true = model.arrays()
    names = sorted(true)
    for number in range(count):
        arrays = {name: array.copy() for name, array in true.items()}
        name = names[int(rng.integers(len(names)))]
        array = arrays[name].reshape(-1)
        value = EXTREMES[int(rng.integers(len(EXTREMES)))]
        with warnings.catch_warnings(action="ignore"):  # of numbers that do not fit
            place = rng.integers(array.size) if array.size and number % 2 else ...
            array[place] = np.array(value).astype(array.dtype)
        save(path, arrays, model.fingerprint, model.method)
        with record.step(f"forged {name} = {value}"):
            record.saw(f"forged {_answered(model, path)}")


def _answered(model: AdaptiveModel, path: Path) -> str:
    try:
        model.load_state(path)
    except ZottaError:
        return "refused"
    with warnings.catch_warnings(action="ignore"):
        assert all(
            np.isfinite(model.predict(stream()[at : at + 16]).logits).all() for at in (0, 16)
        )
    model.reset()
    return "answer"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--flips", type=int, default=10_000, help="bits flipped, one at a time")
    parser.add_argument("--forged", type=int, default=1000, help="with a checksum that fits")
    parser.add_argument("--step", type=int, default=1, help="try every so-manieth place")
    parser.add_argument("--model", type=Path, default=embedded.MODEL)
    parser.add_argument("--method")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
