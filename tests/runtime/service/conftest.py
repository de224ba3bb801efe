"""The embedded stream in fog, and a service that has adapted to some of it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import served
from numpy.typing import NDArray
from served import Server

Stream = tuple[NDArray[np.uint8], NDArray[np.integer[Any]]]


@pytest.fixture(scope="session")
def stream() -> Stream:
    """Images and labels."""
    return served.digits()


@pytest.fixture(scope="session")
def images(stream: Stream) -> NDArray[np.uint8]:
    return stream[0]


@pytest.fixture(scope="module")
def adapted(images: NDArray[np.uint8]) -> Iterator[Server]:
    """A service that has learned from 96 images."""
    with served.serving("--deadline", "60") as server:
        served.feed(server, images[:96])
        yield server
