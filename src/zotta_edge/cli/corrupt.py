"""`zotta-edge corrupt`"""

import argparse
import os
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from zotta_edge.errors import ZottaError, visible
from zotta_edge.files import replacing
from zotta_edge.progress import Progress

if TYPE_CHECKING:
    from zotta_edge.corruptions import Scale
    from zotta_edge.runtime.io.images import Image
    from zotta_edge.runtime.io.sources import Sample, Source

HELP = """Corrupt images as ImageNet-C does

  zotta-edge corrupt photos/ -o noisy/ --corruption gaussian_noise --severity 5
  zotta-edge corrupt photos/ -o photos-c/ --corruption all         # photos-c/fog/5/...
  zotta-edge corrupt test.npz -o foggy.npz --corruption fog --severity 3
  zotta-edge corrupt --list

The same seed gives the same images for any number of workers. Image files are written as PNG, in
the same subfolders; arrays (.npz, .npy) are written as .npz, with their labels.
"""

_JPEG_QUALITY = 95


@dataclass(frozen=True)
class Job:
    """One corruption of the whole input, and where it goes."""

    name: str
    severity: int
    seed: int
    workers: int
    scale: "Scale | None"
    output: Path  # a folder of images, or an .npz
    extension: str

    @property
    def as_array(self) -> bool:
        return self.output.suffix == ".npz"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", metavar="INPUT", help="image folder, glob, .npz, .npy or video")
    parser.add_argument(
        "-o", "--output", required=True, type=Path, metavar="OUT", help="folder, or a file .npz"
    )
    parser.add_argument(
        "--corruption",
        required=True,
        metavar="NAME",
        help="one or more names, with commas; all: the 15 of the benchmark; extra: the other 4",
    )
    parser.add_argument(
        "--severity", type=int, default=5, metavar="N", help="1 (mild) to 5 (default)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument(
        "--scale",
        choices=["imagenet", "cifar"],
        help="which benchmark's constants (default: cifar for images up to 64 pixels)",
    )
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, metavar="N", help="default: all cores"
    )
    parser.add_argument(
        "--format", choices=["png", "jpg"], default="png", help="jpg: quality 95 (default: png)"
    )
    parser.add_argument("--force", action="store_true", help="overwrite what is in OUT")
    parser.add_argument("--list", action=_List, nargs=0, help="list the corruptions and stop")


def run(args: argparse.Namespace) -> int:
    from zotta_edge.runtime.io.sources import open_source

    source = open_source(args.input, on_bad=_report_bad)
    if len(source) == 0:
        raise ZottaError(
            f"the length of {args.input} is not known: expected a folder, a glob, an array or a "
            "video"
        )
    if args.seed < 0:
        raise ZottaError(f"the seed is {args.seed}: expected 0 or more")
    jobs = _jobs(args, source)
    _check_names(source)
    for job in jobs:
        _check_free(job.output, args.force)
    for job in jobs:
        count = _write_array(source, job) if job.as_array else _write_images(source, job)
        if count == 0:
            raise ZottaError(f"none of the images in {args.input} could be read")
        print(f"{job.output}: {count} images, {job.name} {job.severity}, seed {job.seed}")
    return 0


class _List(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        from zotta_edge.corruptions import CORRUPTIONS, EXTRA

        print("\n".join([*CORRUPTIONS, *(f"{name} (extra)" for name in EXTRA)]))
        parser.exit()


def _jobs(args: argparse.Namespace, source: "Source") -> list[Job]:
    """A job for each corruption; several go to <corruption>/<severity>, as in ImageNet-C."""
    from zotta_edge.runtime.io.sources import Stored

    names = _names(args.corruption, args.severity)
    if args.output.suffix == ".npz":
        if len(names) > 1:
            raise ZottaError(f"{args.output} holds one corruption: give a folder for {len(names)}")
        outputs = [args.output]
    elif isinstance(source, Stored) and source.images.array:
        outputs = [args.output / f"{name}-{args.severity}.npz" for name in names]
    elif len(names) == 1:
        outputs = [args.output]
    else:
        outputs = [args.output / name / str(args.severity) for name in names]
    return [
        Job(name, args.severity, args.seed, args.workers, args.scale, output, args.format)
        for name, output in zip(names, outputs, strict=True)
    ]


def _names(text: str, severity: int) -> list[str]:
    from zotta_edge.corruptions import CORRUPTIONS, EXTRA, check

    groups: dict[str, Sequence[str]] = {"all": CORRUPTIONS, "extra": EXTRA}
    names = [name for part in text.split(",") for name in groups.get(part, [part.strip()])]
    for name in names:
        check(name, severity)
    return list(dict.fromkeys(names))


def _check_free(output: Path, force: bool) -> None:
    """Refuse to mix new images with old ones."""
    held = output.exists() and (not output.is_dir() or any(output.iterdir()))
    if held and not force:
        raise ZottaError(f"{output} exists already: give another -o, or --force to overwrite it")


def _check_names(source: "Source") -> None:
    """`a.jpg` and `a.png` would both become `a.png`; `/photos/a.png` would replace itself."""
    names = [PurePosixPath(name) for name in source.names()]
    for name in names:
        if name.is_absolute() or ".." in name.parts or not name.name:
            raise ZottaError(
                f"{source.name} names {name}, whose copy would not lie in OUT: expected names "
                "below its own folder"
            )
    stems = Counter(name.with_suffix("") for name in names)
    twice = [stem for stem, count in stems.items() if count > 1]
    if twice:
        raise ZottaError(f"{source.name} has two images called {twice[0]}: rename one of them")


def _write_images(source: "Source", job: Job) -> int:
    count = 0
    for name, image in _corrupted(source, job):
        target = (job.output / name).with_suffix(f".{job.extension}")
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as temporary:
            temporary.write_bytes(_encoded(image, job.extension))
        count += 1
    return count


def _write_array(source: "Source", job: Job) -> int:
    import numpy as np

    corrupted = dict(_corrupted(source, job))
    if not corrupted:
        return 0
    if len({image.shape for image in corrupted.values()}) > 1:
        raise ZottaError(f"the images differ in size and do not fit in {job.output}: give a folder")
    arrays = {"images": np.stack(list(corrupted.values()))}
    written = source.written()
    if written and all(isinstance(label, int) for label in written.labels.values()):
        arrays["labels"] = np.array([written.labels.get(name, -1) for name in corrupted])
    job.output.parent.mkdir(parents=True, exist_ok=True)
    with replacing(job.output) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, allow_pickle=False, **arrays)
    return len(corrupted)


def _corrupted(source: "Source", job: Job) -> Iterator[tuple[str, "Image"]]:
    from zotta_edge.corruptions import corrupt_stream

    names: deque[str] = deque()
    images = _noting(source, names)
    stream = corrupt_stream(images, job.name, job.severity, job.seed, job.workers, job.scale)
    with Progress(f"{job.name} {job.severity}", len(source) or None) as progress:
        for image in stream:
            yield names.popleft(), image
            progress.advance()


def _noting(samples: Iterable["Sample"], names: deque[str]) -> Iterator["Image"]:
    """The images of samples; their names are queued until the corrupted images come back."""
    for sample in samples:
        names.append(sample.name)
        yield sample.image


def _encoded(image: "Image", extension: str) -> bytes:
    import cv2

    png, jpeg = (cv2.IMWRITE_PNG_COMPRESSION, 1), (cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY)
    bgr = image[..., ::-1] if image.ndim == 3 and image.shape[2] == 3 else image
    return bytes(cv2.imencode(f".{extension}", bgr, png if extension == "png" else jpeg)[1])


def _report_bad(message: str) -> None:
    print(f"skipped: {visible(message)}", file=sys.stderr)
