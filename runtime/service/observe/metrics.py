"""Prometheus metrics, in base units."""

import math

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

from zotta_edge.runtime.service.learning.worker import Learned, Report
from zotta_edge.version import __version__

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
DECISIONS = (
    *("phase", "changed", "filter", "shortened", "bounded", "rollback", "collapse", "returned"),
    *("classes", "discarded", "unlearned", "held"),
)
REQUESTS = ("reset", "pause", "resume", "snapshot", "restore")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """The metrics of one app, in their own registry: a process may hold several apps."""

    def __init__(self, model: str, precision: str, method: str) -> None:
        self._registry = registry = CollectorRegistry()

        def timed(name: str, about: str) -> Histogram:
            return Histogram(name, about, buckets=_SECONDS, registry=registry)

        self.requests = Counter(
            "zotta_requests", "HTTP requests.", ["endpoint", "code"], registry=registry
        )
        self.inference = timed(
            "zotta_inference_duration_seconds", "From a request's arrival to its answer."
        )
        self._images = Counter("zotta_images", "Images answered.", registry=registry)
        self._steps = Counter(
            "zotta_adapt_steps",
            "Batches learned from: their update held or was rolled back, or none was asked for.",
            ["outcome"],
            registry=registry,
        )
        self._adapt = timed(
            "zotta_adapt_duration_seconds", "Learning from a batch, its answers included."
        )
        self.dropped = Counter(
            "zotta_adapt_dropped_images",
            "Images answered but never learned from: the queue was full.",
            registry=registry,
        )
        self.resets = Counter(
            "zotta_resets", "Returns to the source parameters.", ["reason"], registry=registry
        )
        self._events = Counter(
            "zotta_adaptation_events",
            "What adaptation decided, and what was asked of it.",
            ["kind"],
            registry=registry,
        )
        self._drift = Gauge(
            "zotta_drift_score",
            "Distance of the stream from the source, in its standard deviations.",
            registry=registry,
        )
        self._distance = Gauge(
            "zotta_affine_distance_ratio",
            "Distance of the parameters from the source, relative to its norm.",
            registry=registry,
        )
        self._entropy = Gauge(
            "zotta_prediction_entropy", "Mean of the recent answers, in nats.", registry=registry
        )
        self._accuracy = Gauge(
            "zotta_accuracy_estimate_ratio",
            "Share of the recent answers that are right, estimated without labels.",
            registry=registry,
        )
        self._accuracy.set(math.nan)
        for outcome in ("held", "rolled_back", "skipped"):
            self._steps.labels(outcome)
        for reason in ("request", "collapse", "returned"):
            self.resets.labels(reason)
        for kind in (*DECISIONS, *REQUESTS):
            self._events.labels(kind)
        Info("zotta_build", "What is running.", registry=registry).info(
            {"version": __version__, "model": model, "precision": precision, "method": method}
        )

    def answered(self, images: int, entropy: float | None) -> None:
        self._images.inc(images)
        self._entropy.set(entropy or 0.0)

    def event(self, kind: str) -> None:
        self._events.labels(kind).inc()

    def learned(self, before: Report, learned: Learned) -> None:
        if not learned.batches:
            return
        self._adapt.observe(learned.seconds)
        rolled_back = _rollbacks(learned.report) - _rollbacks(before)
        rolled_back = min(max(rolled_back, 0), learned.adapted)  # a restore may lower the count
        self._steps.labels("held").inc(learned.adapted - rolled_back)
        self._steps.labels("rolled_back").inc(rolled_back)
        self._steps.labels("skipped").inc(learned.batches - learned.adapted)

    def state(self, report: Report) -> None:
        self._drift.set(report.status.get("drift") or 0.0)
        self._distance.set(report.status.get("distance") or 0.0)
        self._accuracy.set((report.status.get("accuracy") or {}).get("accuracy", math.nan))

    def text(self) -> bytes:
        return generate_latest(self._registry)


def _rollbacks(report: Report) -> int:
    return int(report.status.get("guard", {}).get("rollback", 0))
