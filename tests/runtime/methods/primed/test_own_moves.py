"""Each image's own filter and move, of files that were signed."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from zotta_edge import AdaptiveModel, Settings
from zotta_edge.format import Floats
from zotta_edge.models import embedded
from zotta_edge.runtime.methods.primed.method import Primed
from zotta_edge.runtime.methods.primed.own_lens import OwnLens
from zotta_edge.runtime.methods.primed.sameness import Sameness
from zotta_edge.runtime.methods.primed.settings import PrimedSettings

Image = NDArray[np.uint8]


@pytest.fixture(scope="module")
def digits() -> Image:
    return np.asarray(embedded.digits(96))[48:]  # those before it was signed on


@pytest.fixture(scope="module")
def mixed(digits: Image) -> Image:
    """Clean, hazy and noisy digits in turns."""
    rng = np.random.default_rng(0)
    seen = digits.copy()
    seen[1::3] = digits[1::3] // 4 + 128
    noise = rng.integers(-90, 90, digits[2::3].shape)
    seen[2::3] = (digits[2::3].astype(int) + noise).clip(0, 255).astype(np.uint8)
    return seen


def load(path: Path, **settings: object) -> AdaptiveModel:
    return AdaptiveModel.load(path, Settings(**settings), threads=1)  # type: ignore[arg-type]


def test_alone_an_image_has_one_answer(signed_digits: Path, mixed: Image) -> None:
    """In any company, after any stream; nothing is learned."""
    model = load(signed_digits, episodic=True)
    before = {name: array.copy() for name, array in model.arrays().items() if "method" in name}
    together = model.predict(mixed)
    one_by_one = [model.predict(image[None]).logits[0] for image in mixed]
    assert not together.adapted
    np.testing.assert_array_equal(together.labels, np.argmax(one_by_one, axis=1))
    for name, array in before.items():
        np.testing.assert_array_equal(array, model.arrays()[name], err_msg=name)
    assert model.passes == pytest.approx(2 * len(mixed))


def test_each_image_gets_what_it_needs(signed_digits: Path, mixed: Image) -> None:
    own, none = load(signed_digits, episodic=True), load(signed_digits).unadapted()
    moved = np.abs(own.predict(mixed).logits - none.predict(mixed).logits).mean(axis=1)
    assert moved[1::3].mean() > 3 * moved[0::3].mean()  # haze, and clean


def test_a_still_frame_keeps_its_answer(signed_digits: Path, mixed: Image) -> None:
    for frame in mixed[:6]:
        model = load(signed_digits)
        answers = [model.predict(frame[None]).labels[0] for _ in range(24)]
        assert len(set(answers)) == 1


@pytest.mark.parametrize("batch", [1, 16])
def test_the_budget_is_kept_at_any_length(signed_digits: Path, mixed: Image, batch: int) -> None:
    model = load(signed_digits)
    shown = 0
    for start in range(0, 2 * len(mixed), batch):
        images = np.concatenate([mixed, mixed])[start : start + batch]
        model.predict(images)
        shown += len(images)
        assert model.passes <= 1.08 * shown + 1e-6


def test_reading_uses_what_the_stream_has_in_common(signed_digits: Path, digits: Image) -> None:
    model = load(signed_digits)
    hazy = digits // 4 + 128
    for start in range(0, 48, 16):
        model.predict(hazy[start : start + 16])
    read, predicted = model.predict(hazy[:16], adapt=False), model.predict(hazy[:16])
    assert (read.labels == predicted.labels).mean() > 0.9


def test_filters_may_be_left_out(signed_digits: Path, digits: Image) -> None:
    model = load(signed_digits, filters=False)
    model.predict(digits[:32] // 4 + 128)
    assert model.status()["filter"] == "none"


def test_signatures_may_be_left_out(signed_digits: Path, mixed: Image) -> None:
    """The same answers as from the file without."""
    without, unsigned = load(signed_digits, signatures=False), load(embedded.MODEL)
    for _ in range(2):
        one, other = without.predict(mixed).logits, unsigned.predict(mixed).logits
        np.testing.assert_array_equal(one, other)


def test_mirrored_answers_are_paid_for(signed_digits: Path, mixed: Image) -> None:
    model = load(signed_digits, budget=2.2, mirror_agreement=0.0)
    for _ in range(3):
        model.predict(mixed[1::3])
    assert np.isfinite(model.predict(mixed[1::3]).logits).all()


def gains(worlds: list[list[float]], spread: float, count: int) -> Floats:
    rng = np.random.default_rng(0)
    means = np.array([worlds[index % len(worlds)] for index in range(count)])
    return (means + np.sqrt(spread / 2) * rng.standard_normal(means.shape)).astype(np.float32)


def test_one_world_has_a_filter_in_common() -> None:
    same = Sameness(2, spread=0.2, settings=PrimedSettings())
    same.observe(gains([[-0.3, 0.2]], 0.15, 64))
    assert same.common.share > 0.8
    odd = np.array([[0.3, 0.1]], np.float32)
    assert same.common.chosen(odd, 0.1).tolist() == [1]


@pytest.mark.parametrize("tried", [None, 1])
def test_an_image_of_another_world_chooses_for_itself(tried: int | None) -> None:
    same = Sameness(2, spread=0.2, settings=PrimedSettings())
    same.observe(gains([[-0.3, 0.2]], 0.15, 64))
    images = np.array([[-0.2, 0.1], [0.6, -0.9], [0.9, 0.9]], np.float32)
    assert same.common._replace(tried=tried).chosen(images, 0.1).tolist() == [1, 2, 0]


def test_many_worlds_have_nothing_in_common() -> None:
    same = Sameness(2, spread=0.2, settings=PrimedSettings())
    same.observe(gains([[-0.8, 0.9], [0.9, -0.8], [0.7, 0.8]], 0.15, 64))
    assert same.common.share < 0.1


def test_one_image_has_nothing_in_common_yet() -> None:
    same = Sameness(2, spread=0.2, settings=PrimedSettings())
    assert same.common.share == 0
    same.observe(gains([[0.5, 0.5]], 0.1, 1))
    assert same.common.share == 0


def test_a_trial_holds_while_predictions_leave_it_open(signed_digits: Path) -> None:
    primed = AdaptiveModel.load(signed_digits, method="primed", threads=1)._method
    assert isinstance(primed, Primed)
    assert isinstance(primed._lens, OwnLens)
    lens, images = primed._lens, np.zeros((12, 1, 32, 32), np.float32)
    expected = dict(zip(lens._names[1:], (-0.4, -0.5, 0.3, 0.3), strict=True))
    needed = np.array([list(expected.values())], np.float32)
    lens._same.observe(needed.repeat(64, axis=0))
    lens._choice.try_on(images, lens._source_answer, expected)
    lens._choice.use("smooth")
    assert lens.common.tried == lens._names.index("smooth") == 1
    lens._same.observe((needed + [[0.4, 0, 0, 0]]).repeat(64, axis=0).astype(np.float32))
    assert lens.common.tried is None
    assert lens.filter == "median"
