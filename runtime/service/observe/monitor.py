"""The figures behind the dashboard and the API: recent answers, latencies and the drift."""

import time
from collections import Counter, deque
from typing import Any

import numpy as np

from zotta_edge.format import ModelInfo
from zotta_edge.json_numbers import finite
from zotta_edge.runtime.adaptive import Result
from zotta_edge.runtime.service.learning.worker import Learned, Report
from zotta_edge.runtime.service.observe.event_log import EventLog
from zotta_edge.runtime.service.observe.metrics import Metrics
from zotta_edge.runtime.watch.statistics import entropies

ANSWERS = 256  # images behind the recent classes and the entropy
REQUESTS = 512  # behind the latencies
POINTS = 300  # of the history


class Monitor:
    """Keeps recent answers, latencies and the last report. Only for use in the event loop.

    Parameters
    ----------
    info
        The model's labels and layers.
    report
        Its state at the start.
    metrics
        Get the same figures.
    """

    def __init__(self, info: ModelInfo, report: Report, metrics: Metrics) -> None:
        self._info, self._metrics = info, metrics
        self.report = report
        self._labels: deque[int] = deque(maxlen=ANSWERS)
        self._entropies: deque[float] = deque(maxlen=ANSWERS)
        self._seconds: deque[float] = deque(maxlen=REQUESTS)
        self._points: deque[dict[str, Any]] = deque(maxlen=POINTS)
        self.events = EventLog(metrics)
        self.images = self.dropped_images = 0
        metrics.state(report)

    def name(self, index: int) -> str:
        return label(self._info, index)

    def answered(self, result: Result, seconds: float) -> None:
        """Take in a group's answers, given `seconds` after its first request arrived."""
        entropy = entropies(result.logits)
        self.images += len(entropy)
        self._labels.extend(result.labels.tolist())
        self._entropies.extend(entropy.tolist())
        status = self.report.status
        point = {
            "time": time.time(),
            "drift": status.get("drift"),
            "entropy": float(entropy.mean()),
            "steps": status.get("steps", 0),
            "latency": seconds,
            "images": len(entropy),
        }
        self._points.append(finite(point))
        self._metrics.answered(len(entropy), self.entropy)

    def record_latency(self, seconds: float) -> None:
        """Take in how long a request took, its time in the queue included."""
        self._seconds.append(seconds)
        self._metrics.inference.observe(seconds)

    def learned(self, learned: Learned) -> None:
        self._metrics.learned(self.report, learned)
        self.changed(learned.report)

    def changed(self, report: Report) -> None:
        """Keep the latest report: they may arrive in another order than they were made."""
        if report.moment >= self.report.moment:
            self.report = report
            self._metrics.state(report)

    def dropped(self, images: int) -> None:
        self.dropped_images += images
        self._metrics.dropped.inc(images)

    @property
    def entropy(self) -> float | None:
        return float(np.mean(self._entropies)) if self._entropies else None

    def classes(self) -> list[dict[str, Any]]:
        """The recent answers by class, most frequent first."""
        counts = Counter(self._labels).most_common()
        return [
            {"label": self.name(index), "index": index, "count": count} for index, count in counts
        ]

    def latency(self) -> dict[str, float | None]:
        """Seconds from a request's arrival to its answer."""
        if not self._seconds:
            return {"p50": None, "p99": None}
        p50, p99 = np.percentile(self._seconds, [50, 99]).tolist()
        return {"p50": p50, "p99": p99}

    def layers(self) -> list[dict[str, Any]]:
        """Every layer's distance from the source; 0 for layers that are not adapted."""
        chosen = self.report.status.get("layers", ())
        return [
            {
                "index": index,
                "name": layer.name,
                "distance": self.report.distances.get(index, 0.0),
                "chosen": index in chosen,
            }
            for index, layer in enumerate(self._info.layers)
        ]

    def history(self) -> list[dict[str, Any]]:
        return list(self._points)


def label(info: ModelInfo, index: int) -> str:
    return info.labels[index] if info.labels else str(index)
