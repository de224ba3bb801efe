"""Progress in a log: rare lines that say how long the rest will take."""

import io
import sys

import pytest

from zotta_edge.progress import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def lines(monkeypatch: pytest.MonkeyPatch, total: int | None, step: float, steps: int) -> list[str]:
    """What a run writes whose steps take so many seconds each."""
    stream, clock = io.StringIO(), Clock()
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress("working", total, "(hint)", clock=clock) as progress:
        for _ in range(steps):
            clock.now += step
            progress.advance(note="note")
    return stream.getvalue().splitlines()


def test_short_work_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines(monkeypatch, total=90, step=0.1, steps=90) == []


def test_lines_are_ten_seconds_and_five_percent_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    by_time = lines(monkeypatch, total=50, step=1, steps=50)
    assert by_time[0] == "working 10/50, 20 %, 40 s left  note  (hint)"
    assert len(by_time) == 5
    by_share = lines(monkeypatch, total=1000, step=10, steps=1000)
    assert by_share[0] == "working 1/1000, 0 %, 2.8 h left  note  (hint)"
    assert by_share[1] == "working 51/1000, 5 %, 2.6 h left  note  (hint)"
    assert len(by_share) == 20


def test_work_without_an_end_reports_by_the_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines(monkeypatch, total=None, step=1, steps=130) == [
        "working 60  note  (hint)",
        "working 120  note  (hint)",
    ]


def test_steps_of_an_earlier_run_say_nothing_about_the_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream, clock = io.StringIO(), Clock()
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress("priming", 100, clock=clock) as progress:
        progress.skip(50)
        clock.now = 20
        progress.advance(10)
    assert stream.getvalue() == "priming 60/100, 60 %, 80 s left\n"


def test_a_terminal_gets_one_line_that_is_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream, clock = Terminal(), Clock()
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress("working", 4, clock=clock) as progress:
        clock.now = 1
        progress.advance()
    assert stream.getvalue() == "\r\x1b[Kworking 1/4, 25 %, 3 s left\r\x1b[K"
