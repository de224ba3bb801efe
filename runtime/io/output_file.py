"""The outputs of a network as they are, in one .npz: a row an image, in order, and their names."""

import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

import numpy as np

from zotta_edge.errors import ZottaError
from zotta_edge.files import replacing
from zotta_edge.format import Floats

NAMES = "names"
_CHUNK = 1 << 20  # bytes copied at a time


class Keeper(Protocol):
    def __call__(self, names: Sequence[str], outputs: Mapping[str, Floats]) -> None:
        """Keep one batch."""
        ...


@contextmanager
def outputs_to(path: Path) -> Iterator[Keeper]:
    """Open a file for the outputs of one stream; rows wait on the disk, not in memory.

    Examples
    --------
    >>> path = Path(tempfile.mkdtemp(), "boxes.npz")
    >>> with outputs_to(path) as keep:
    ...     keep(["a.png", "b.png"], {"boxes": np.zeros((2, 6, 10), np.float32)})
    >>> stored = np.load(path)
    >>> stored["names"].tolist(), stored["boxes"].shape
    (['a.png', 'b.png'], (2, 6, 10))
    """
    if path.suffix != ".npz":
        raise ZottaError(
            f"the model gives no class scores, its outputs go to an .npz file, not to {path}"
        )
    with replacing(path) as part, tempfile.TemporaryDirectory(dir=path.parent) as folder:
        rows = _Rows(Path(folder))
        yield rows
        rows.write(part)


class _Rows:
    """What was kept so far: the names, and one file of raw rows for each output."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._names = folder, list[str]()
        self._files: dict[str, IO[bytes]] = {}
        self._axes: dict[str, tuple[int, ...]] = {}

    def __call__(self, names: Sequence[str], outputs: Mapping[str, Floats]) -> None:
        self._names.extend(names)
        for name, values in outputs.items():
            if name not in self._files:
                self._files[name] = (self._folder / str(len(self._files))).open("w+b")
                self._axes[name] = values.shape[1:]
            self._files[name].write(np.ascontiguousarray(values, "<f4").tobytes())

    def write(self, path: Path) -> None:
        """As numpy's own format."""
        with zipfile.ZipFile(path, "w") as archive:
            for name, file in self._files.items():
                header = {"descr": "<f4", "fortran_order": False}
                header["shape"] = (len(self._names), *self._axes[name])
                with archive.open(f"{name.replace('/', '_')}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array_header_1_0(entry, header)
                    file.seek(0)
                    while chunk := file.read(_CHUNK):
                        entry.write(chunk)
                file.close()
            with archive.open(f"{NAMES}.npy", "w") as entry:
                np.lib.format.write_array(entry, np.array(self._names), allow_pickle=False)
