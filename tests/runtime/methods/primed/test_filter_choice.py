"""The choice of a filter, with a model whose features are plain properties of the image."""

import numpy as np
import pytest
from pixels import PIXELS, P, normalized

from zotta_edge.format import Calibration, Floats
from zotta_edge.runtime.engine.engine import Outputs
from zotta_edge.runtime.methods.primed.filter_choice import Correction
from zotta_edge.runtime.methods.primed.filters import AS_IS, Filters
from zotta_edge.runtime.settings import Settings

TRIAL = 12


def images(count: int, seed: int = 0) -> Floats:
    """The source: blurry squares of all brightnesses."""
    rng = np.random.default_rng(seed)
    coarse = rng.uniform(0.1, 0.9, (count, 3, 8, 8))
    batch: Floats = np.kron(coarse, np.ones((8, 8))).astype(np.float32)
    return batch


def salted(batch: Floats, share: float = 0.05) -> Floats:
    white = np.random.default_rng(1).random(batch.shape) < share
    return np.where(white, np.float32(1), batch)


def features(batch: Floats) -> Floats:
    """Brightness, contrast and roughness of each image."""
    rough = np.abs(np.diff(batch, axis=3)).mean(axis=(1, 2, 3))
    return np.stack([batch.mean(axis=(1, 2, 3)), batch.std(axis=(1, 2, 3)), rough], axis=1)


def outputs(batch: Floats) -> Outputs:
    """Always as sure."""
    seen = features(batch)
    return Outputs(np.zeros((len(batch), 2), np.float32), (seen,), seen)


@pytest.fixture
def correction() -> Correction:
    seen = features(normalized(images(256, seed=9)))
    mean, std = seen.mean(axis=0), seen.std(axis=0)
    calibration = Calibration(
        (mean,), (std,), mean, std, (0,), (), 256, "given", 0.6, 0, "", "", 0.0, PIXELS
    )
    return Correction(Filters(P, PIXELS), calibration, Settings())


def test_no_filter_at_first(correction: Correction) -> None:
    assert correction.name == AS_IS


def test_salt_asks_for_the_median(correction: Correction) -> None:
    correction.try_on(normalized(salted(images(64))), outputs)
    assert correction.name == "median"


def test_haze_asks_for_contrast(correction: Correction) -> None:
    correction.try_on(normalized(0.3 * images(64) + 0.6), outputs)
    assert correction.name == "contrast"


def test_the_source_asks_for_nothing(correction: Correction) -> None:
    for seed in range(5):
        correction.try_on(normalized(images(64, seed)), outputs)
    assert correction.name == AS_IS


def test_no_doubt_at_all_is_no_reason_for_a_filter(correction: Correction) -> None:
    """Entropy 0 makes every loss 0."""

    def sure(batch: Floats) -> Outputs:
        seen = outputs(batch)
        return Outputs(np.full((len(batch), 2), [2e3, 0]), seen.features, seen.embedding)

    correction._use("median")
    correction.try_on(normalized(salted(images(64))), sure)
    assert correction.name == AS_IS


def test_unsure_answers_count_against_a_filter(correction: Correction) -> None:
    """The median fits the salt, but what it leaves cannot be told apart."""

    def answer(batch: Floats) -> Outputs:
        seen = outputs(batch)
        rough = features(batch)[:, 2:] > 0.27
        return Outputs(np.where(rough, [[19.0, 0]], [[0.0, 0]]), seen.features, seen.embedding)

    stream = normalized(salted(images(64)))
    assert (features(stream)[:, 2] > 0.27).all()
    correction.try_on(stream, answer)
    assert correction.name == AS_IS


def test_a_trial_looks_at_a_few_images(correction: Correction) -> None:
    seen: list[int] = []

    def answer(batch: Floats) -> Outputs:
        seen.append(len(batch))
        return outputs(batch)

    correction.try_on(normalized(images(64)), answer)
    assert seen == [TRIAL] * len(Filters(P, PIXELS).names)


def test_a_batch_may_begin_with_another_stream(correction: Correction) -> None:
    before, after = 0.3 * images(40) + 0.6, salted(images(24))
    correction.try_on(normalized(np.concatenate([before, after])), outputs)
    assert correction.name == "median"


@pytest.mark.parametrize("batch", [1, 4, 5])
def test_small_batches_make_one_trial_together(correction: Correction, batch: int) -> None:
    stream = normalized(salted(images(64)))
    for start in range(0, 64, batch):
        correction.try_on(stream[start : start + batch], outputs)
        if not correction.trying:
            break
        assert correction.name == AS_IS
    assert TRIAL <= start + batch < TRIAL + batch
    assert correction.name == "median"


def test_the_first_trial_of_a_stream_needs_no_savings(correction: Correction) -> None:
    assert correction.reserve == 0
    correction.try_on(normalized(images(64)), outputs)
    assert correction.reserve == TRIAL * len(Filters(P, PIXELS).names)
    correction.reset()
    assert correction.reserve == 0


def test_a_choice_is_final_at_last(correction: Correction) -> None:
    for seed in range(6):
        assert not correction.settled
        correction.try_on(normalized(images(64, seed)), outputs)
    assert correction.settled
    assert correction.reserve == 0


def test_later_trials_can_take_a_choice_back(correction: Correction) -> None:
    correction.try_on(normalized(salted(images(64))), outputs)
    assert correction.name == "median"
    for seed in range(30):
        correction.try_on(normalized(images(64, seed)), outputs)
    assert correction.name == AS_IS


def filtered(correction: Correction, batch: Floats) -> bool:
    return correction.still_right(batch, Filters(P, PIXELS)(correction.name, batch))


@pytest.mark.parametrize("batch", [1, 16, 64])
def test_a_filter_with_less_to_do_is_noticed(correction: Correction, batch: int) -> None:
    correction.try_on(normalized(salted(images(64))), outputs)
    assert correction.name == "median"
    salt, clean = (normalized(stream) for stream in (salted(images(256, 3)), images(256, 3)))
    parts = range(0, 256, batch)
    assert all(filtered(correction, salt[start : start + batch]) for start in parts)
    assert not all(filtered(correction, clean[start : start + batch]) for start in parts)


def test_without_a_filter_there_is_nothing_to_watch(correction: Correction) -> None:
    for stream in (images(64), salted(images(64)), 0.1 * images(64)):
        assert filtered(correction, normalized(stream))


def test_it_goes_on_where_it_stopped(correction: Correction) -> None:
    stream = normalized(salted(images(64)))
    correction.try_on(stream[:5], outputs)
    kept = {name: value.copy() for name, value in correction.state().items()}
    correction.try_on(stream[5:], outputs)
    after = correction.state()
    correction.reset()
    correction.restore(kept)
    assert correction.trying
    correction.try_on(stream[5:], outputs)
    assert correction.name == "median"
    for name, value in correction.state().items():
        np.testing.assert_array_equal(value, after[name])
