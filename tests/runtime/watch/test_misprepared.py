"""Batches prepared for another model are answered by the source, and nothing is learned of them."""

import numpy as np
import pytest

from zotta_edge import AdaptiveModel
from zotta_edge.format import Floats, Preprocessing
from zotta_edge.models import embedded
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.events import Event, Events
from zotta_edge.runtime.io.preprocessing import prepare, value_range
from zotta_edge.runtime.settings import Settings
from zotta_edge.runtime.watch.misprepared import Misprepared, MispreparedSettings

HALF = Preprocessing(8, 8, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
IMAGENET = Preprocessing(8, 8, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
NONE = Preprocessing(8, 8, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
PIXELS = np.random.default_rng(0).integers(0, 256, (16, 8, 8, 3), dtype=np.uint8)


def watch(p: Preprocessing) -> Misprepared:
    return Misprepared(p, MispreparedSettings(), Events())


@pytest.mark.parametrize(("own", "other"), [(HALF, IMAGENET), (NONE, HALF), (NONE, IMAGENET)])
def test_values_beyond_black_and_white_are_noticed(
    own: Preprocessing, other: Preprocessing
) -> None:
    assert watch(own).complaint(prepare(PIXELS, other))
    assert not watch(own).complaint(prepare(PIXELS, own))


def test_noise_that_is_not_clipped_may_be_an_image() -> None:
    noise = np.random.default_rng(0).normal(0, 0.7, (16, 3, 8, 8)).astype(np.float32)
    assert not watch(HALF).complaint(prepare(PIXELS // 2 + 64, HALF) + noise)


def hazy(images: int) -> Floats:
    """Digits that an embedded model would learn from, prepared with too small a std."""
    p = read_info(embedded.MODEL).preprocessing
    black, white = value_range(p)
    batch = prepare(embedded.digits(images) // 4 + 128, p)
    return 4 * (batch - (black + white) / 2)


def test_the_source_answers_them_and_learns_nothing() -> None:
    model, seen = AdaptiveModel.load(embedded.MODEL), list[Event]()
    before = {name: array.copy() for name, array in model.arrays().items()}
    model.events.subscribe(seen.append)
    batch = hazy(32)
    expected = model.unadapted().predict(batch).logits
    assert np.array_equal(model.predict(batch).logits, expected)
    assert np.array_equal(model.predict(batch, adapt=False).logits, expected)
    model.predict(batch)
    assert [event.kind for event in seen] == ["discarded"]  # once, not at every batch
    assert "check the mean and std" in seen[0].reason
    for name, array in model.arrays().items():
        if name.startswith("method."):
            np.testing.assert_array_equal(array, before[name])


def test_they_are_learned_from_where_that_is_wished() -> None:
    model = AdaptiveModel.load(embedded.MODEL, Settings(misprepared=1.0))
    assert model.predict(hazy(32)).drift is not None
