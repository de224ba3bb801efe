"""Certainty is believed as far as degraded source images say so."""

from dataclasses import replace

import numpy as np
import pytest

from zotta_edge import AdaptiveModel
from zotta_edge.calibration.calibrate import Report, Settings, calibrate, store
from zotta_edge.calibration.reliability import LEAST_ERROR, Stream, assess, curve, fitted
from zotta_edge.calibration.selection import Choice
from zotta_edge.corruptions import corrupt_batch
from zotta_edge.models import embedded
from zotta_edge.runtime.engine.model_info import read_info


def test_the_curve_is_the_one_that_the_answers_came_from() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20_000, 2)) * [1.0, 5.0]
    p = 1 / (1 + np.exp(-(1.5 * x[:, 0] - 0.2 * x[:, 1] + 0.5)))
    right = (rng.random(len(x)) < p).astype(np.float64)
    np.testing.assert_allclose(curve(x, right, np.ones(len(x))), [1.5, -0.2, 0.5], atol=0.06)


def test_answers_that_are_all_right_give_a_finite_curve() -> None:
    assert np.isfinite(curve(np.ones((8, 1)), np.ones(8), np.ones(8))).all()


def test_kinds_that_do_not_follow_the_others_widen_the_interval() -> None:
    def streams(odd: float) -> list[Stream]:
        rng = np.random.default_rng(0)
        kinds = [(f"kind {i}", x, x) for i, x in enumerate(np.linspace(0.1, 0.9, 12))]
        return [
            Stream(
                kind,
                False,
                rng.standard_normal((200, 4)).astype(np.float32),
                np.arange(200) < 200 * share,
                np.array([np.log(x / (1 - x))]),
            )
            for kind, x, share in [*kinds, ("odd", 0.8, odd)]
        ]

    assert fitted(streams(0.8), labelled=True).error == LEAST_ERROR
    assert fitted(streams(0.1), labelled=True).error > 0.1


@pytest.fixture(scope="module")
def assessed() -> Report:
    digits = embedded.digits(256)
    settings = Settings(choice=Choice(layers=(1, 2)))
    return assess(calibrate(embedded.MODEL, digits, settings=settings), digits, settings)


@pytest.mark.slow
def test_the_estimate_follows_the_truth(
    assessed: Report, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Without labels: the truth is then agreement with the answers to the clean images."""
    path = store(assessed, tmp_path_factory.mktemp("model") / "assessed.onnx")
    plain = AdaptiveModel.load(path, method="none")
    digits = embedded.digits(256)
    clean = plain.predict(digits).labels
    errors = []
    for corruption in ("gaussian_noise", "fog", "contrast", "pixelate"):
        plain.reset()
        result = plain.predict(corrupt_batch(digits, corruption, 3))
        estimate = plain.status()["accuracy"]
        errors.append(abs(estimate["accuracy"] - (result.labels == clean).mean()))
    assert np.mean(errors) < 0.15


def test_the_file_keeps_what_was_learned(assessed: Report, tmp_path: object) -> None:
    from zotta_edge.format import from_metadata, to_metadata

    again = from_metadata(to_metadata(assessed.info))
    assert again.reliability == assessed.info.reliability
    assert not again.reliability.labelled  # type: ignore[union-attr]


@pytest.mark.slow
def test_primed_files_are_also_assessed_as_they_adapt(assessed: Report) -> None:
    """The embedded model is primed: twice as many streams, and a curve of its own."""
    digits = embedded.digits(64)
    settings = Settings(choice=Choice(layers=(1, 2)), samples=64)
    primed = read_info(embedded.MODEL)
    assert primed.prime is not None
    assert primed.calibration is not None
    report = replace(assessed, info=primed, calibration=primed.calibration)
    known = assess(report, digits, settings).info.reliability
    assert known is not None
    assert assessed.info.reliability is not None
    assert known.streams == 2 * assessed.info.reliability.streams
    assert known.stream != assessed.info.reliability.stream
