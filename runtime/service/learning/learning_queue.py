"""Images that were answered and wait to be learned from, the oldest given up first."""

from collections import deque
from collections.abc import Iterable

from zotta_edge.format import Floats


class Lessons:
    """A bounded queue: a model that learns more slowly than images come skips some of them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._images: deque[Floats] = deque()

    def __len__(self) -> int:
        return len(self._images)

    def add(self, images: Iterable[Floats]) -> int:
        """Append images [C, H, W]; how many older ones had to make room."""
        # Copies: a view would keep the whole request that it is a part of.
        self._images.extend([image.copy() for image in images])  # all of them or none
        excess = max(0, len(self._images) - self._limit)
        self.take(excess)
        return excess

    def take(self, count: int) -> list[Floats]:
        """Remove and return the oldest, at most `count`."""
        return [self._images.popleft() for _ in range(min(count, len(self._images)))]

    def clear(self) -> None:
        self._images.clear()
