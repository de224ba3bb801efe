"""Accuracy along a stream, adapted and not, as a picture.

pip install 'zotta-edge[bench]'
python examples/plot_accuracy.py accuracy.png
"""

import sys

import numpy as np
from matplotlib.figure import Figure

from zotta_edge import AdaptiveModel
from zotta_edge.models import embedded

STREAMS, BATCH, WINDOW = ("fog", "contrast"), 16, 160


def right(model: AdaptiveModel) -> np.ndarray:
    """1 for each image that was classified correctly, one corruption after the other."""
    truth, answers = np.load(embedded.STREAM)["labels"], []
    for corruption in STREAMS:
        images = [sample.image for sample in embedded.corrupted_stream(corruption)]
        for start in range(0, len(images), BATCH):
            answers.append(model.predict(images[start : start + BATCH]).labels)
    return (np.concatenate(answers) == np.tile(truth, len(STREAMS))).astype(float)


def main(path: str) -> None:
    adapting = AdaptiveModel.load(embedded.MODEL)
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for name, model in (("adapted", adapting), ("unadapted", adapting.unadapted())):
        # The mean of the last WINDOW images, from when there are as many.
        curve = np.convolve(right(model), np.full(WINDOW, 1 / WINDOW), mode="valid")
        axes.plot(np.arange(WINDOW, WINDOW + len(curve)), 100 * curve, label=name)
    length = len(np.load(embedded.STREAM)["labels"])
    axes.axvline(length, color="grey", linestyle=":")
    for index, corruption in enumerate(STREAMS):
        axes.text(length * (index + 0.5), 2, corruption, ha="center")
    axes.set(xlabel="image", ylabel=f"% right of the last {WINDOW}", ylim=(0, 100))
    axes.legend()
    figure.savefig(path)
    print(f"wrote {path}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "accuracy.png")
