"""Accuracy and latency of a served model under concurrent clients, against the library itself.

python benchmarks/service.py --clients 8 --output service.json
python benchmarks/service.py --model deit_int8.onnx --data imagenet-val/ --labels labels.csv \
    --corruption gaussian_noise --images 500 --rate 10

Every image is one request, sent by whichever client is free; the stream is seen once a mode, from a
freshly started service. Without --rate clients ask as fast as they are answered; with it, that many
images a second arrive in all. Latency is the client's. `plain` is the same stream, clients and rate
with ONNX Runtime called in this process: no HTTP, no gathering, no adaptation. `adapt` is the
accuracy of `zotta-edge adapt` on the same stream.
"""

import argparse
import http.client
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zotta_edge import AdaptiveModel
from zotta_edge.corruptions import corrupt_batch
from zotta_edge.export.quantize.target import describe_machine
from zotta_edge.models import embedded
from zotta_edge.runtime.io.preprocessing import fit
from zotta_edge.runtime.io.sources import Sample, open_source
from zotta_edge.runtime.job import adapt_stream

MODES = ("off", "background", "inline")
Ask = Callable[[NDArray[np.uint8]], int]  # one image [1, H, W, C] -> its class


def main() -> None:
    args = _arguments()
    samples, labels = _stream(args)
    truth = np.array([labels[sample.name] for sample in samples])
    rows = [adapt(args, samples, labels), plain(args, samples, truth)]
    for mode in args.modes.split(","):
        rows.append(serve(args, mode, samples, truth))
    base = rows[1]["p99"]
    for row in rows:
        row["p99_ratio"] = row["p99"] / base if row.get("p99") else None
        print(_line(row), flush=True)
    if args.output:
        about = {"machine": describe_machine(), "model": args.model.name, "images": len(samples)}
        flags = {name: str(value) for name, value in vars(args).items()}
        args.output.write_text(json.dumps(about | {"flags": flags, "rows": rows}, indent=2) + "\n")


def adapt(args: argparse.Namespace, samples: list[Sample], labels: Any) -> dict[str, Any]:
    model = AdaptiveModel.load(args.model, threads=args.threads)
    batches = (samples[at : at + args.batch_size] for at in range(0, len(samples), args.batch_size))
    tally = adapt_stream(model, batches, labels=labels)
    return {"mode": "adapt", "accuracy": tally.accuracy(tally.adapted)}


def plain(args: argparse.Namespace, samples: list[Sample], truth: Any) -> dict[str, Any]:
    model = AdaptiveModel.load(args.model, method="none", threads=args.threads)
    found = run(samples, args.clients, args.rate, lambda: lambda x: int(model.predict(x).labels[0]))
    return {"mode": "plain"} | _measured(*found, truth)


def serve(args: argparse.Namespace, mode: str, samples: list[Sample], truth: Any) -> dict[str, Any]:
    with serving(args, mode) as port:
        found = run(samples, args.clients, args.rate, lambda: client(port, args.model.stem))
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", f"/v2/models/{args.model.stem}/adaptation")
        status = json.loads(connection.getresponse().read())
    kept = {key: status[key] for key in ("answered", "images", "waiting", "dropped", "steps")}
    return {"mode": mode} | _measured(*found, truth) | kept


def run(
    samples: list[Sample], clients: int, rate: float, connect: Callable[[], Ask]
) -> tuple[NDArray[Any], NDArray[Any], float]:
    """Every sample once, by several clients: classes, seconds of each, seconds of all."""
    answers, seconds = np.full(len(samples), -1), np.zeros(len(samples))
    indices, lock = iter(range(len(samples))), threading.Lock()
    begun = time.perf_counter()

    def work() -> None:
        ask = connect()
        while True:
            with lock:
                index = next(indices, None)
            if index is None:
                return
            if rate:
                time.sleep(max(0.0, begun + index / rate - time.perf_counter()))
            # What was due and had to wait for a client has waited for the service.
            started = begun + index / rate if rate else time.perf_counter()
            answers[index] = ask(samples[index].image[None])
            seconds[index] = time.perf_counter() - started

    threads = [threading.Thread(target=work) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers, seconds, time.perf_counter() - begun


def client(port: int, model: str) -> Ask:
    connection = http.client.HTTPConnection("127.0.0.1", port)

    def ask(image: NDArray[np.uint8]) -> int:
        entry = {"name": "image", "datatype": "UINT8", "shape": list(image.shape)}
        entry["parameters"] = {"binary_data_size": image.nbytes}
        outputs = [{"name": "probabilities"}]
        text = json.dumps({"inputs": [entry], "outputs": outputs}).encode()
        headers = {"Inference-Header-Content-Length": str(len(text))}
        path = f"/v2/models/{model}/infer"
        connection.request("POST", path, text + image.tobytes(), headers)
        reply = json.loads(connection.getresponse().read())
        return int(np.argmax(reply["outputs"][0]["data"]))

    return ask


@contextmanager
def serving(args: argparse.Namespace, mode: str) -> Iterator[int]:
    command = [sys.executable, "-m", "zotta_edge", "serve", "--model", str(args.model)]
    command += ["--port", "0", "--adapt", mode, "--batch-size", str(args.batch_size)]
    command += ["--deadline", str(args.deadline), "--threads", str(args.threads)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if address := re.search(r"serving .* at http://\S+:(\d+)", line):
                break
        else:
            raise SystemExit("the service did not start")
        threading.Thread(target=process.stderr.read, daemon=True).start()
        try:
            yield int(address[1])
        finally:
            process.send_signal(signal.SIGTERM)


def _measured(answers: Any, seconds: Any, total: float, truth: Any) -> dict[str, Any]:
    assert (answers >= 0).all(), "a request was lost"
    p50, p99 = np.percentile(seconds, [50, 99])
    return {
        "accuracy": float((answers == truth).mean()),
        "p50": float(p50),
        "p99": float(p99),
        "images_per_second": len(answers) / total,
    }


def _stream(args: argparse.Namespace) -> tuple[list[Sample], Any]:
    if args.data is None:
        source = embedded.corrupted_stream(args.corruption, args.severity)
        return list(source)[: args.images], source.labels()
    pixels = AdaptiveModel.load(args.model, method="none").info.preprocessing
    source = open_source(args.data, limit=args.images)
    samples = [Sample(sample.name, fit(sample.image, pixels)) for sample in source]
    images = [sample.image for sample in samples]
    corrupted = corrupt_batch(images, args.corruption, args.severity, seed=0)
    stream = [Sample(one.name, image) for one, image in zip(samples, corrupted, strict=True)]
    return stream, source.labels(args.labels)


def _line(row: dict[str, Any]) -> str:
    text = f"{row['mode']:<11} accuracy {100 * row['accuracy']:5.1f} %"
    if row.get("p99"):
        text += f"   p50 {1000 * row['p50']:7.1f} ms   p99 {1000 * row['p99']:7.1f} ms"
        text += f"   p99 / plain {row['p99_ratio']:5.2f}   {row['images_per_second']:6.1f} images/s"
    if "steps" in row:
        text += f"   {row['steps']} steps, {row['dropped']} images given up"
    return text


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=embedded.MODEL)
    parser.add_argument("--data", type=Path, help="images; unset: the embedded digits")
    parser.add_argument("--labels", type=Path)
    parser.add_argument("--corruption", default=embedded.CORRUPTION)
    parser.add_argument("--severity", type=int, default=embedded.SEVERITY)
    parser.add_argument("--images", type=int)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rate", type=float, default=0.0, help="images a second in all")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--deadline", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
