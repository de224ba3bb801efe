"""Harm is noticed and undone; answers that merely differ are not harm."""

import numpy as np
import pytest

from zotta_edge.format import Floats, Reliability
from zotta_edge.runtime.events import Event, Events
from zotta_edge.runtime.settings import Settings
from zotta_edge.runtime.watch.audit import Audit

CLASSES = 10
KNOWN = Reliability((1.0, 0.0), (1.0, 0.0, 0.0), error=0.05, labelled=True, streams=1)
IMAGES = np.arange(16, dtype=np.float32)[:, None]


def answers(labels: list[int], sure: float) -> Floats:
    return (sure * np.eye(CLASSES)[labels]).astype(np.float32)


SURE, UNSURE, OTHER = (
    answers([1] * 16, 8.0),
    answers([1] * 16, 3.0),
    answers([2] * 16, 3.0),
)


def audit(source: Floats, events: Events | None = None, **settings: float) -> Audit:
    def ask_source(images: Floats) -> Floats:
        return source[images[:, 0].astype(int)]

    return Audit(KNOWN, Settings(**settings), events or Events(), ask_source)  # type: ignore[arg-type]


def images_to_a_verdict(watch: Audit, adapted: Floats, most: int = 100) -> int | None:
    for batch in range(most):
        if watch.finds_harm(IMAGES, adapted):
            return 16 * (batch + 1)
    return None


def test_a_source_that_is_surer_where_answers_differ_shows_harm() -> None:
    events, seen = Events(), list[Event]()
    events.subscribe(seen.append)
    watch = audit(SURE, events)
    assert images_to_a_verdict(watch, OTHER) == 32  # the first eight raise a doubt
    assert watch.holding
    assert watch.holds == 1
    assert [event.kind for event in seen] == ["held"]
    assert "it answers the next 256 images" in seen[0].reason


def test_harm_that_comes_later_is_found_by_the_few_that_are_compared() -> None:
    watch = audit(SURE, audit_first=0)
    assert images_to_a_verdict(watch, OTHER) == 64  # one in 33, then all of them


@pytest.mark.parametrize("source", [UNSURE, OTHER, answers([3] * 16, 1.0)])
def test_answers_that_are_as_sure_as_the_sources_or_the_same_are_no_harm(source: Floats) -> None:
    assert images_to_a_verdict(audit(source), OTHER) is None


def test_a_hold_ends_after_its_images_and_the_next_is_twice_as_long() -> None:
    watch = audit(SURE)
    images_to_a_verdict(watch, OTHER)
    watch.wait(255)
    assert watch.holding
    watch.wait(16)
    assert not watch.holding
    assert images_to_a_verdict(watch, OTHER) == 16  # all are compared right after a hold
    watch.wait(511)
    assert watch.holding


def test_the_share_of_images_that_are_compared_is_as_set_whatever_the_batches() -> None:
    asked: list[int] = []

    def ask_source(images: Floats) -> Floats:
        asked.extend(images[:, 0].astype(int).tolist())
        return np.zeros((len(images), CLASSES), np.float32)

    def compared(size: int) -> list[int]:
        asked.clear()
        watch = Audit(KNOWN, Settings(audit=0.1, audit_first=20), Events(), ask_source)
        for start in range(0, 960, size):
            images = np.arange(start, start + size, dtype=np.float32)[:, None]
            watch.finds_harm(images, np.zeros((size, CLASSES), np.float32))
        return asked.copy()

    assert compared(1)[:20] == list(range(20))
    assert len(compared(1)) == 20 + 94
    assert compared(1) == compared(16) == compared(64)


def test_a_suspicion_that_nothing_confirms_costs_a_bounded_share() -> None:
    """One image in sixteen differs: too few for a verdict within what a doubt may cost."""
    adapted, asked = UNSURE.copy(), 0
    adapted[0] = OTHER[0]

    def ask_source(images: Floats) -> Floats:
        nonlocal asked
        asked += len(images)
        return SURE[images[:, 0].astype(int)]

    watch = Audit(KNOWN, Settings(audit_least=60), Events(), ask_source)
    assert images_to_a_verdict(watch, adapted) is None
    assert asked <= 8 + 64 + 0.08 * 1600 + 1


def test_without_reliability_or_with_no_share_nothing_is_asked() -> None:
    def ask_source(images: Floats) -> Floats:
        raise AssertionError("asked")

    for known, share in ((None, 1.0), (KNOWN, 0.0)):
        watch = Audit(known, Settings(audit=share), Events(), ask_source)
        assert not watch.finds_harm(IMAGES, OTHER)


def test_a_restored_audit_goes_on_as_the_first_would() -> None:
    first, second = audit(SURE, audit=1.0, audit_least=30), audit(SURE, audit=1.0, audit_least=30)
    for _ in range(2):
        assert not first.finds_harm(IMAGES, OTHER)
    second.restore(first.state())
    assert [first.finds_harm(IMAGES, OTHER), second.finds_harm(IMAGES, OTHER)] == [True, True]
    assert all(np.array_equal(a, second.state()[name]) for name, a in first.state().items())
