"""Answers that take turns in one thread."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from zotta_edge.runtime.service.generating.turns import Turns


def test_pieces_of_two_answers_alternate() -> None:
    """A long answer that came first keeps a short one waiting for a piece, not for its end."""
    made: list[str] = []
    both_there = threading.Event()

    def answer(name: str, count: int) -> Iterator[str]:
        both_there.wait(30)
        for number in range(count):
            made.append(f"{name}{number}")
            yield made[-1]

    async def ask(turns: Turns) -> None:
        async def take(pieces: Iterator[str]) -> list[str]:
            return [piece async for piece in turns.run(pieces)]

        long = asyncio.create_task(take(answer("long", 6)))
        short = asyncio.create_task(take(answer("short", 2)))
        await asyncio.sleep(0)
        both_there.set()
        assert await short == ["short0", "short1"]
        assert len(await long) == 6

    asyncio.run(ask(Turns()))
    assert made[:5] == ["long0", "short0", "long1", "short1", "long2"]


def test_an_error_reaches_the_one_who_asked_and_nobody_else() -> None:
    def broken() -> Iterator[str]:
        yield "a"
        raise ValueError("no more")

    async def ask() -> None:
        turns = Turns()
        with pytest.raises(ValueError, match="no more"):
            async for _ in turns.run(broken()):
                pass
        assert await turns.call(lambda: 7) == 7

    asyncio.run(ask())


def test_an_answer_that_nobody_waits_for_ends_in_its_own_thread() -> None:
    ended_in: list[str] = []

    def endless() -> Iterator[int]:
        try:
            while True:
                yield 0
        finally:
            ended_in.append(threading.current_thread().name)

    async def ask() -> None:
        turns = Turns()
        pieces = turns.run(endless())
        await anext(pieces)
        await pieces.aclose()  # type: ignore[attr-defined]
        while turns.busy or not ended_in:
            await asyncio.sleep(0.01)
        assert ended_in == [turns.thread.name]

    asyncio.run(ask())
