"""A classifier inside your own loop: it answers, adapts, and goes on tomorrow where it stopped.

    python examples/embed_in_a_loop.py

The device needs no more than `pip install zotta-edge`.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from zotta_edge import AdaptiveModel
from zotta_edge.models import embedded


def main() -> None:
    # Your own: AdaptiveModel.load("deit_int8.onnx"). Loading takes a second, predicting does not.
    model = AdaptiveModel.load(embedded.MODEL)
    stream = embedded.corrupted_stream("fog")
    truth = stream.labels()
    right = []

    for number, sample in enumerate(stream, start=1):
        # Images are uint8, of any size, one or many at a time. Single images work as well as
        # batches; a batch costs less time an image.
        result = model.predict([sample.image])
        right.append(result.labels[0] == truth[sample.name])
        if number % 200 == 0:
            accuracy = sum(right[-200:]) / 200
            print(f"image {number}: {accuracy:.1%} of the last 200 right, drift {result.drift:.2f}")

    # What was learned is a small file. Another process goes on from it, bit for bit.
    with TemporaryDirectory() as folder:
        state = Path(folder) / "site-7.state"
        model.save_state(state)
        tomorrow = AdaptiveModel.load(embedded.MODEL)
        tomorrow.load_state(state)
        print(f"{state.stat().st_size / 1000:.0f} kB of state, {tomorrow.status()['steps']} steps")

    model.freeze()  # keep what was learned, learn no more (unfreeze goes on)
    model.reset()  # back to the model as it was shipped


if __name__ == "__main__":
    main()
