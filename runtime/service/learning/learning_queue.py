"""Images that were answered and wait to be learned from."""

from collections import deque
from collections.abc import Iterable

from zotta_edge.format import Floats


class LearningQueue:
    """A bounded queue that drops the oldest images when learning is slower than their arrival.

    >>> import numpy as np
    >>> queue = LearningQueue(limit=3)
    >>> queue.add(np.zeros((4, 1, 2, 2), np.float32))  # dropped
    1
    >>> len(queue.take(2)), len(queue)
    (2, 1)
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._images: deque[Floats] = deque()

    def __len__(self) -> int:
        return len(self._images)

    def add(self, images: Iterable[Floats]) -> int:
        """Append images [C, H, W]; return how many older ones were dropped."""
        # Copies: a view would keep its whole request in memory.
        self._images.extend([image.copy() for image in images])  # all of them or none
        excess = max(0, len(self._images) - self._limit)
        self.take(excess)
        return excess

    def take(self, count: int) -> list[Floats]:
        """Remove and return the oldest images, at most `count`."""
        return [self._images.popleft() for _ in range(min(count, len(self._images)))]

    def clear(self) -> None:
        self._images.clear()
