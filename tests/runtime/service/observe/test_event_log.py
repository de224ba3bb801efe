"""Events of the model reach the API, the metrics and the log."""

import json
from typing import Any

import pytest
import served
from served import ADAPTATION, Server

from zotta_edge.runtime import events
from zotta_edge.runtime.events import (
    Collapsed,
    Event,
    Events,
    FilterChosen,
    PhaseChanged,
    Returned,
    StepShortened,
)
from zotta_edge.runtime.service.observe import event_log
from zotta_edge.runtime.service.observe.event_log import EventLog
from zotta_edge.runtime.service.observe.metrics import DECISIONS, Metrics


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("digits", "int8", "primed")


@pytest.fixture
def heard(metrics: Metrics) -> tuple[Events, EventLog]:
    """A model's events, and the log that listens to them."""
    hub, log = Events(), EventLog(metrics)
    hub.subscribe(log.record)
    return hub, log


def counted(metrics: Metrics, sample: str) -> float:
    lines = metrics.text().decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{sample} "))


def test_events_are_kept_with_their_figures_and_counted(
    heard: tuple[Events, EventLog], metrics: Metrics
) -> None:
    hub, log = heard
    hub.report(PhaseChanged("watching", "adapting", "drift 1.2"))
    hub.report(FilterChosen("none", "contrast", loss=0.5, unfiltered_loss=2.0))
    phase, filtered = log.recent()
    assert (phase["kind"], phase["before"], phase["after"]) == ("phase", "watching", "adapting")
    assert (filtered["kind"], filtered["after"], filtered["loss"]) == ("filter", "contrast", 0.5)
    assert filtered["reason"] == FilterChosen("none", "contrast", 0.5, 2.0).reason
    assert phase["time"] <= filtered["time"]
    assert counted(metrics, 'zotta_adaptation_events_total{kind="filter"}') == 1
    assert counted(metrics, 'zotta_adaptation_events_total{kind="collapse"}') == 0


def test_only_the_last_events_are_kept(heard: tuple[Events, EventLog]) -> None:
    hub, log = heard
    for drift in range(event_log.KEPT + 5):
        hub.report(events.StreamChanged(float(drift)))
    drifts = [event["drift"] for event in log.recent()]
    assert drifts == [float(drift) for drift in range(5, event_log.KEPT + 5)]


def test_details_of_steps_are_counted_but_not_kept(
    heard: tuple[Events, EventLog], metrics: Metrics
) -> None:
    hub, log = heard
    hub.report(StepShortened(length=0.2, limit=0.1))
    assert log.recent() == []
    assert counted(metrics, 'zotta_adaptation_events_total{kind="shortened"}') == 1


@pytest.mark.parametrize("event", [Collapsed(3, 0.1), Returned(0.4)])
def test_returns_to_the_source_are_resets(
    heard: tuple[Events, EventLog], metrics: Metrics, event: Event
) -> None:
    hub, log = heard
    assert log.last_reset is None
    hub.report(event)
    assert log.last_reset is not None
    assert log.last_reset["reason"] == event.kind
    assert counted(metrics, f'zotta_resets_total{{reason="{event.kind}"}}') == 1


def test_every_kind_of_event_has_its_counter_from_the_start() -> None:
    kinds = {
        kind.kind
        for kind in vars(events).values()
        if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
    }
    assert kinds == set(DECISIONS)


def test_the_api_tells_what_adaptation_decided(adapted: Server) -> None:
    status = adapted.get(ADAPTATION)
    started = next(event for event in status["events"] if event["kind"] == "phase")
    assert (started["before"], started["after"]) == ("watching", "adapting")
    chosen = [event for event in status["events"] if event["kind"] == "filter"]
    assert chosen[-1]["after"] == status["filter"] != "none"
    assert chosen[-1]["loss"] < chosen[-1]["unfiltered_loss"]
    assert all(event["reason"] for event in status["events"])
    sample = 'zotta_adaptation_events_total{kind="filter"}'
    assert adapted.metric(sample) == len(chosen)


def test_json_logs_carry_them(images: Any) -> None:
    with served.serving("--log", "json", "--deadline", "60") as server:
        served.feed(server, images[:96])
        server.stop()
        entries = [json.loads(line) for line in server.lines]
    chosen = [entry for entry in entries if entry.get("kind") == "filter"]
    assert chosen
    assert chosen[-1]["loss"] < chosen[-1]["unfiltered_loss"]
    assert chosen[-1]["message"].startswith("filter: none -> ")
