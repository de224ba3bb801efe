"""Eq. 1, with and without momentum."""

import numpy as np
import pytest

from zotta_edge.runtime.zeroth.optimiser import Sgd

GRADIENTS = [np.array([1.0, -2.0], np.float32), np.array([0.5, 0.5], np.float32)]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_equals_torch(momentum: float) -> None:
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    reference = torch.optim.SGD([parameter], lr=0.1, momentum=momentum)
    theta, ours = np.array([1.0, 2.0], np.float32), Sgd(2, momentum)
    for gradient in GRADIENTS * 3:
        parameter.grad = torch.tensor(gradient)
        reference.step()
        theta = ours.step(theta, gradient, 0.1)
    np.testing.assert_allclose(theta, parameter.detach().numpy(), rtol=1e-6)


def test_leaves_the_given_theta_alone() -> None:
    theta = np.ones(2, np.float32)
    moved = Sgd(2).step(theta, GRADIENTS[0], 0.1)
    np.testing.assert_array_equal(theta, 1)
    assert moved.dtype == np.float32


def test_reset_and_state() -> None:
    first, second = Sgd(2, 0.9), Sgd(2, 0.9)
    first.step(np.ones(2, np.float32), GRADIENTS[0], 0.1)
    second.restore(first.state())
    a, b = (one.step(np.ones(2, np.float32), GRADIENTS[1], 0.1) for one in (first, second))
    np.testing.assert_array_equal(a, b)
    first.reset()
    np.testing.assert_array_equal(first.state()["velocity"], 0)
