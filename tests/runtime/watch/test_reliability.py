"""What an estimate of accuracy is made of, against brute force."""

import itertools

import numpy as np

from zotta_edge.format import Calibration, Floats
from zotta_edge.runtime.watch.reliability import Summary, log_odds
from zotta_edge.runtime.watch.statistics import log_softmax

CLASSES = 4


def summary() -> Summary:
    layer = (np.full(3, 0.5, np.float32), np.full(3, 2.0, np.float32))
    calibration = Calibration(
        mean=(layer[0],),
        std=(layer[1],),
        embedding_mean=layer[0],
        embedding_std=layer[1],
        chosen=(0,),
        purity=(),
        samples=8,
        rule="given",
        tau=0.6,
        seed=0,
        source="",
        ood="none",
        seconds=0.0,
    )
    return Summary(calibration, CLASSES)


def batch(size: int = 32) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(0)
    logits = 3 * rng.standard_normal((size, CLASSES))
    return logits.astype(np.float32), rng.standard_normal((size, 3)).astype(np.float32)


def test_the_summary_is_the_means_and_the_chance_that_two_images_get_the_same_answer() -> None:
    logits, features = batch()
    known = summary()
    known.add(logits, [features])
    p = np.exp(log_softmax(logits))
    pairs = [float(p[i] @ p[j]) for i, j in itertools.permutations(range(len(p)), 2)]
    distance = np.log(np.square((features - 0.5) / 2).mean(axis=1)).mean()
    expected = [log_odds(logits).mean(), np.log1p(CLASSES * np.mean(pairs)), distance]
    np.testing.assert_allclose(known.values(), expected, rtol=1e-5)


def test_batches_of_any_size_add_up_to_the_same_summary() -> None:
    logits, features = batch()
    whole, parts = summary(), summary()
    whole.add(logits, [features])
    for i in range(0, 32, 4):
        parts.add(logits[i : i + 4], [features[i : i + 4]])
    np.testing.assert_allclose(whole.values(), parts.values(), rtol=1e-6)


def test_a_long_stream_forgets_its_beginning() -> None:
    logits, features = batch()
    known = summary()
    for _ in range(100):
        known.add(logits, [features])
    for _ in range(100):
        known.add(-logits, [features])
    again = summary()
    again.add(-logits, [features])
    np.testing.assert_allclose(known.values()[0], again.values()[0], rtol=1e-3)


def test_certain_answers_have_bounded_odds() -> None:
    sure = np.array([[1e4, 0.0]], np.float32)
    assert np.isfinite(log_odds(sure)).all()
