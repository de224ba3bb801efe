"""Events: what a listener, a log and a report get."""

import json
import logging
import math

import pytest

from zotta_edge.runtime.events import (
    Collapsed,
    DistanceBounded,
    Event,
    Events,
    FilterChosen,
    PhaseChanged,
    Returned,
    RolledBack,
    StepShortened,
    StreamChanged,
)

EVERY = (
    PhaseChanged("watching", "adapting", "drift 1.00"),
    StreamChanged(1.25),
    FilterChosen("none", "median", 0.1, 0.4),
    StepShortened(2.0, 0.5),
    DistanceBounded(math.nan, 0.5),
    RolledBack(1.0, math.inf),
    Collapsed(3, 0.25),
    Returned(0.1),
)


@pytest.mark.parametrize("event", EVERY, ids=lambda event: event.kind)
def test_every_event_is_a_line_of_json(event: Event) -> None:
    found = json.loads(json.dumps(event.to_dict(), allow_nan=False))
    assert found["kind"] == event.kind
    assert found["reason"] == event.reason
    assert "\n" not in event.reason


def test_kinds_differ() -> None:
    assert len({event.kind for event in EVERY}) == len(EVERY)


def test_what_is_not_finite_is_said_in_words() -> None:
    assert DistanceBounded(math.nan, 0.5).reason == "the update is not finite"


def test_events_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for event in EVERY:
            Events().report(event)
    assert "filter: none -> median: loss 0.1, 0.4 without" in caplog.text
    levels = [record.levelno for record in caplog.records]
    assert levels == [event.level for event in EVERY]


def test_a_listener_may_leave_while_it_is_told() -> None:
    events, received = Events(), list[Event]()

    def once(event: Event) -> None:
        received.append(event)
        events.unsubscribe(once)

    events.subscribe(once)
    events.report(StreamChanged(1.0))
    events.report(StreamChanged(2.0))
    assert received == [StreamChanged(1.0)]


def test_a_listener_that_fails_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    events, received = Events(), list[Event]()

    def fail(event: Event) -> None:
        raise RuntimeError("no disk")

    events.subscribe(fail)
    events.subscribe(received.append)
    events.report(StreamChanged(1.0))
    assert received == [StreamChanged(1.0)]
    assert "a listener failed on changed" in caplog.text


def test_listening_ends_with_its_block() -> None:
    events, received = Events(), list[Event]()
    with events.listening(received.append):
        events.report(StreamChanged(1.0))
    events.report(StreamChanged(2.0))
    assert received == [StreamChanged(1.0)]
