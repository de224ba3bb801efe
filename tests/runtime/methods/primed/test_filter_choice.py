"""The choice of a filter, with a model whose features are plain properties of the image."""

import numpy as np
import pytest
from pixels import PIXELS, P, normalized

from zotta_edge.format import Calibration, Floats
from zotta_edge.runtime.engine.engine import Outputs
from zotta_edge.runtime.events import Event, Events, FilterChosen
from zotta_edge.runtime.methods.primed.filter_choice import FilterChoice
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
def choice() -> FilterChoice:
    return made(Events())


def made(events: Events, contrast: bool = True) -> FilterChoice:
    """With all filters, or as in a version that does not know `contrast` yet."""
    seen = features(normalized(images(256, seed=9)))
    mean, std = seen.mean(axis=0), seen.std(axis=0)
    calibration = Calibration(
        (mean,), (std,), mean, std, (0,), (), 256, "given", 0.6, 0, "", "", 0.0, PIXELS
    )
    return FilterChoice(Filters(P, PIXELS if contrast else None), calibration, Settings(), events)


def test_no_filter_at_first(choice: FilterChoice) -> None:
    assert choice.name == AS_IS


def test_salt_asks_for_the_median(choice: FilterChoice) -> None:
    choice.try_on(normalized(salted(images(64))), outputs)
    assert choice.name == "median"


def test_haze_asks_for_contrast(choice: FilterChoice) -> None:
    choice.try_on(normalized(0.3 * images(64) + 0.6), outputs)
    assert choice.name == "contrast"


def test_the_source_asks_for_nothing(choice: FilterChoice) -> None:
    for seed in range(5):
        choice.try_on(normalized(images(64, seed)), outputs)
    assert choice.name == AS_IS


def test_no_doubt_at_all_is_no_reason_for_a_filter(choice: FilterChoice) -> None:
    """Entropy 0 makes every loss 0."""

    def sure(batch: Floats) -> Outputs:
        seen = outputs(batch)
        return Outputs(np.full((len(batch), 2), [2e3, 0]), seen.features, seen.embedding)

    choice.use("median")
    choice.try_on(normalized(salted(images(64))), sure)
    assert choice.name == AS_IS


def test_unsure_answers_count_against_a_filter(choice: FilterChoice) -> None:
    """The median fits the salt, but what it leaves cannot be told apart."""

    def answer(batch: Floats) -> Outputs:
        seen = outputs(batch)
        rough = features(batch)[:, 2:] > 0.27
        return Outputs(np.where(rough, [[19.0, 0]], [[0.0, 0]]), seen.features, seen.embedding)

    stream = normalized(salted(images(64)))
    assert (features(stream)[:, 2] > 0.27).all()
    choice.try_on(stream, answer)
    assert choice.name == AS_IS


def test_a_trial_looks_at_a_few_images(choice: FilterChoice) -> None:
    seen: list[int] = []

    def answer(batch: Floats) -> Outputs:
        seen.append(len(batch))
        return outputs(batch)

    choice.try_on(normalized(images(64)), answer)
    assert seen == [TRIAL] * len(Filters(P, PIXELS).names)


def test_a_batch_may_begin_with_another_stream(choice: FilterChoice) -> None:
    before, after = 0.3 * images(40) + 0.6, salted(images(24))
    choice.try_on(normalized(np.concatenate([before, after])), outputs)
    assert choice.name == "median"


@pytest.mark.parametrize("batch", [1, 4, 5])
def test_small_batches_make_one_trial_together(choice: FilterChoice, batch: int) -> None:
    stream = normalized(salted(images(64)))
    for start in range(0, 64, batch):
        choice.try_on(stream[start : start + batch], outputs)
        if not choice.trying:
            break
        assert choice.name == AS_IS
    assert TRIAL <= start + batch < TRIAL + batch
    assert choice.name == "median"


def test_the_first_trial_of_a_stream_needs_no_savings(choice: FilterChoice) -> None:
    assert choice.reserve == 0
    choice.try_on(normalized(images(64)), outputs)
    assert choice.reserve == TRIAL * len(Filters(P, PIXELS).names)
    choice.reset()
    assert choice.reserve == 0


def test_a_choice_is_final_at_last(choice: FilterChoice) -> None:
    for seed in range(6):
        assert not choice.settled
        choice.try_on(normalized(images(64, seed)), outputs)
    assert choice.settled
    assert choice.reserve == 0


def test_later_trials_can_take_a_choice_back(choice: FilterChoice) -> None:
    choice.try_on(normalized(salted(images(64))), outputs)
    assert choice.name == "median"
    for seed in range(30):
        choice.try_on(normalized(images(64, seed)), outputs)
    assert choice.name == AS_IS


def filtered(choice: FilterChoice, batch: Floats) -> bool:
    return choice.still_fits(batch, Filters(P, PIXELS)(choice.name, batch))


@pytest.mark.parametrize("batch", [1, 16, 64])
def test_a_filter_with_less_to_do_is_noticed(choice: FilterChoice, batch: int) -> None:
    choice.try_on(normalized(salted(images(64))), outputs)
    assert choice.name == "median"
    salt, clean = (normalized(stream) for stream in (salted(images(256, 3)), images(256, 3)))
    parts = range(0, 256, batch)
    assert all(filtered(choice, salt[start : start + batch]) for start in parts)
    assert not all(filtered(choice, clean[start : start + batch]) for start in parts)


def test_without_a_filter_there_is_nothing_to_watch(choice: FilterChoice) -> None:
    for stream in (images(64), salted(images(64)), 0.1 * images(64)):
        assert filtered(choice, normalized(stream))


def test_it_goes_on_where_it_stopped(choice: FilterChoice) -> None:
    stream = normalized(salted(images(64)))
    choice.try_on(stream[:5], outputs)
    kept = {name: value.copy() for name, value in choice.state().items()}
    choice.try_on(stream[5:], outputs)
    after = choice.state()
    choice.reset()
    choice.restore(kept)
    assert choice.trying
    choice.try_on(stream[5:], outputs)
    assert choice.name == "median"
    for name, value in choice.state().items():
        np.testing.assert_array_equal(value, after[name])


def test_a_choice_is_reported() -> None:
    events, received = Events(), list[Event]()
    events.subscribe(received.append)
    choice = made(events)
    choice.try_on(normalized(salted(images(64))), outputs)
    (event,) = received
    assert isinstance(event, FilterChosen)
    assert (event.kind, event.before, event.after) == ("filter", "none", "median")
    assert event.loss < 0.7 * event.unfiltered_loss
    assert event.reason.startswith("none -> median: loss ")


def test_a_state_that_does_not_know_a_filter_yet_still_loads() -> None:
    stream = normalized(salted(images(64)))
    old, new = made(Events(), contrast=False), made(Events())
    old.try_on(stream[:5], outputs)
    assert new.state().keys() > old.state().keys()
    new.restore(old.state())
    assert new.trying
    new.try_on(stream[5:], outputs)
    assert new.name == "median"


NOTHING = {"smooth": 0.5, "median": 0.5, "sharpen": 0.5, "contrast": 0.5}


def test_what_promises_nothing_is_not_tried(choice: FilterChoice) -> None:
    passes: list[int] = []

    def answer(batch: Floats) -> Outputs:
        passes.append(len(batch))
        return outputs(batch)

    expected = NOTHING | {"smooth": -0.3, "median": -0.15}
    for seed in range(2):  # the second trial has the first one's candidates
        choice.try_on(normalized(salted(images(64, seed))), answer, expected)
        expected = NOTHING
    assert passes == [TRIAL] * 2 * 3
    assert choice.reserve == TRIAL * 3


@pytest.mark.parametrize(
    ("expected", "open_ones"),
    [
        ({}, ["none"]),
        ({"median": -0.1}, ["none", "median"]),
        ({"median": -0.3}, ["median"]),
        ({"median": -0.6, "sharpen": 0.1}, ["median"]),
        ({"smooth": -0.5, "sharpen": -0.4, "median": -0.2}, ["smooth", "sharpen"]),
    ],
)
def test_a_trial_is_between_those_that_are_predicted_alike(
    choice: FilterChoice, expected: dict[str, float], open_ones: list[str]
) -> None:
    assert choice.open_between(NOTHING | expected) == open_ones


@pytest.mark.parametrize("promise", [-0.3, 0.0])
def test_prediction_and_trial_agree_on_the_median(choice: FilterChoice, promise: float) -> None:
    expected = NOTHING | {"median": promise, "smooth": promise}
    choice.try_on(normalized(salted(images(64))), outputs, expected)
    assert choice.name == "median"


def test_a_trial_alone_does_not_outvote_a_prediction(choice: FilterChoice) -> None:
    """Haze asks for contrast; here the images' own signatures say that it would do much harm."""
    expected = dict.fromkeys(NOTHING, 0.1)
    choice.try_on(normalized(0.3 * images(64) + 0.6), outputs, expected)
    assert choice.name == "contrast"
    choice.try_on(normalized(0.3 * images(64) + 0.6), outputs, expected | {"contrast": 9.0})
    assert choice.name != "contrast"
