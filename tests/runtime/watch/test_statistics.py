"""Statistics that several parts share."""

import numpy as np

from zotta_edge.runtime.watch.statistics import shrunk


def test_shrinking_takes_out_what_sampling_explains() -> None:
    shift, variance = np.array([3.0, 4.0]), np.array([2.0, 3.0])
    np.testing.assert_allclose(shrunk(shift, variance), shift * (1 - 5 / 25))
    assert not shrunk(shift, variance * 10).any()
    assert not shrunk(np.zeros(2), variance).any()
