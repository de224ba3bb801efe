"""The scores of the rules that DRLS is compared with, against exact values."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from zotta_edge.calibration import scores
from zotta_edge.calibration.statistics import source_statistics
from zotta_edge.errors import ZottaError
from zotta_edge.export.pipeline import ExportOptions, export_model
from zotta_edge.format import Calibration, Floats, ModelInfo
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.zeroth.parameters import Parameters


@pytest.fixture(scope="module")
def path(residual_net: onnx.ModelProto, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scores")
    onnx.save(residual_net, folder / "net.onnx")
    options = ExportOptions("fp32", mean=(0.5,), std=(0.5,))
    export_model(str(folder / "net.onnx"), folder / "fp32.onnx", options)
    return folder / "fp32.onnx"


@pytest.fixture(scope="module")
def images() -> Floats:
    return np.random.default_rng(0).standard_normal((scores.IMAGES, 3, 16, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def info(path: Path, images: Floats) -> ModelInfo:
    """The net, with the statistics of a source domain that the images have drifted from."""
    plain = read_info(path)
    found = vars(source_statistics(path, plain, images * 0.5 + 0.3)).values()
    return plain.with_calibration(
        Calibration(*found, (1,), (), len(images), "given", 0.6, 0, "", "", 0.0)
    )


def test_gradients_are_those_of_finite_differences(
    path: Path, info: ModelInfo, images: Floats, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, objective = scores._forward(path, info, images, None), scores._objective(info)
    exact = []
    for layer in range(len(info.layers)):
        parameters = Parameters(info, [layer])
        gradient = []
        for step in 1e-2 * np.eye(len(parameters), dtype=np.float32):
            sides = (parameters.source + step, parameters.source - step)
            plus, minus = (objective(forward(parameters.affines(side))) for side in sides)
            gradient.append((plus - minus) / 2e-2)
        exact.append(np.sqrt(np.mean(np.square(gradient))))
    monkeypatch.setattr(scores, "PERTURBATION", 0.01)
    monkeypatch.setattr(scores, "DIRECTIONS", 300)
    found = scores.gradient_scores(path, info, images, seed=0)
    np.testing.assert_allclose(found, exact, rtol=0.2)


def test_influence_is_proportional_to_a_small_perturbation(
    path: Path, info: ModelInfo, images: Floats, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for size in (0.002, 0.004):
        monkeypatch.setattr(scores, "PERTURBATION", size)
        found.append(np.array(scores.influence_scores(path, info, images, seed=0)))
    np.testing.assert_allclose(found[1] / found[0], 2, rtol=0.05)


def test_parameters_score_their_mean_magnitude(info: ModelInfo) -> None:
    first = info.layers[0].norms[0]
    values = np.concatenate([np.ravel(info.affines[n]) for n in (first.scale, first.shift)])
    assert scores.parameter_scores(info)[0] == pytest.approx(np.abs(values).mean())


def test_the_gradient_rule_needs_statistics(path: Path, info: ModelInfo, images: Floats) -> None:
    with pytest.raises(ZottaError, match="calibrate the model first"):
        scores.gradient_scores(path, replace(info, calibration=None), images, seed=0)
