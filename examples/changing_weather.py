"""A video whose weather changes: what the model notices, and what it does about it.

    python examples/changing_weather.py [--save video.avi]

Writes a film of handwritten digits (clear, fog, frost, clear), then watches it as a camera would.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import numpy as np

from zotta_edge import AdaptiveModel
from zotta_edge.models import embedded

SCENES = ("clear", "fog", "frost", "clear")
FRAMES, BATCH, SIDE = 192, 16, 32  # of each scene, of each prediction, of a frame


def film(path: Path) -> None:
    """One scene after the other, as MJPEG: OpenCV writes and reads that everywhere."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 25, (SIDE, SIDE))
    for number, scene in enumerate(SCENES):
        for image in digits(scene)[FRAMES * number : FRAMES * (number + 1)]:
            writer.write(cv2.cvtColor(image, cv2.COLOR_GRAY2BGR))
    writer.release()


def digits(scene: str) -> list[np.ndarray]:
    """The embedded test digits, as they are or in bad weather."""
    if scene != "clear":
        return [sample.image for sample in embedded.corrupted_stream(scene)]
    with np.load(embedded.STREAM) as stream:
        return [cv2.resize(image, (SIDE, SIDE), interpolation=2) for image in stream["images"]]


def batches(path: Path) -> Iterator[list[np.ndarray]]:
    """Frames as they come, RGB, a few at a time."""
    video, waiting = cv2.VideoCapture(str(path)), []
    while (frame := video.read())[0]:
        waiting.append(cv2.cvtColor(frame[1], cv2.COLOR_BGR2RGB))
        if len(waiting) == BATCH:
            yield waiting
            waiting = []
    video.release()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", type=Path, metavar="FILE.avi", help="keep the film")
    with TemporaryDirectory() as folder:
        path = parser.parse_args().save or Path(folder) / "weather.avi"
        film(path)
        watch(path)


def watch(path: Path) -> None:
    adapting = AdaptiveModel.load(embedded.MODEL)
    plain = adapting.unadapted()  # the same file, to compare with
    # Whatever adaptation decides is an event: another stream, a filter, a phase, a collapse.
    adapting.events.subscribe(lambda event: print(f"  {event.kind}: {event.reason}"))
    labels = np.load(embedded.STREAM)["labels"]
    right = {"adapting": 0, "plain": 0}

    for number, images in enumerate(batches(path), start=1):
        truth = labels[(number - 1) * BATCH : number * BATCH]
        right["adapting"] += int((adapting.predict(images).labels == truth).sum())
        right["plain"] += int((plain.predict(images).labels == truth).sum())
        scene, last = divmod(number * BATCH, FRAMES)
        if last == 0:
            shares = ", ".join(f"{name} {count / FRAMES:.1%}" for name, count in right.items())
            print(f"{SCENES[scene - 1]}: {shares}")
            right = dict.fromkeys(right, 0)


if __name__ == "__main__":
    main()
