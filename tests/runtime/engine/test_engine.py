"""The engine: what it runs, what it counts and what it refuses."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import toy

from zotta_edge.errors import ZottaError
from zotta_edge.format import Floats, to_metadata
from zotta_edge.runtime.engine.engine import Engine, Outputs
from zotta_edge.runtime.engine.model_info import read_info

SCALE, SHIFT = "blocks.1.norm.scale", "blocks.1.norm.shift"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.build(tmp_path_factory.mktemp("toy") / "toy.onnx")


@pytest.fixture
def engine(model: Path) -> Engine:
    return Engine.open(model, threads=1)


def _affine(engine: Engine, name: str, rows: int = 1, seed: int = 0) -> Floats:
    noise = np.random.default_rng(seed).normal(0, 0.2, (rows, 1, toy.WIDTH))
    return engine.info.affines[name] + noise.astype(np.float32)


def test_opens_the_calibrated_layers(engine: Engine) -> None:
    assert engine.chosen == toy.CHOSEN
    assert engine.info.chosen == toy.CHOSEN
    assert 0 < engine.cone_share < 1


def test_chosen_layers_may_come_in_any_order(model: Path) -> None:
    assert Engine.open(model, chosen=[3, 1, 3]).chosen == (1, 3)


def test_outputs(engine: Engine) -> None:
    outputs = engine.cone(engine.stem(toy.images(6)), {})
    assert outputs.logits.shape == (6, toy.CLASSES)
    assert outputs.embedding.shape == (6, toy.WIDTH)
    assert [feature.shape for feature in outputs.features] == [(6, toy.WIDTH)] * toy.BLOCKS
    assert {array.dtype for array in (outputs.logits, *outputs.features)} == {np.dtype("float32")}


def test_missing_names_keep_their_source_value(engine: Engine) -> None:
    stem, scale = engine.stem(toy.images(4)), _affine(engine, SCALE)
    others = {
        name: value
        for name, value in engine.info.affines.items()
        if name != SCALE and name.split(".")[1] in map(str, toy.CHOSEN)
    }
    alone = engine.cone(stem, {SCALE: scale})
    spelled_out = engine.cone(stem, {SCALE: scale, **others})
    np.testing.assert_array_equal(alone.logits, spelled_out.logits)
    assert np.abs(alone.logits - engine.cone(stem, {}).logits).max() > 1e-3


def test_an_affine_for_each_sample(engine: Engine) -> None:
    images, scales = toy.images(4), _affine(engine, SCALE, rows=4)
    together = engine.cone(engine.stem(images), {SCALE: scales})
    for i in range(4):
        alone = engine.cone(engine.stem(images[i : i + 1]), {SCALE: scales[i : i + 1]})
        np.testing.assert_allclose(together.logits[i], alone.logits[0], atol=1e-5)


def test_a_stem_serves_any_number_of_cones(engine: Engine) -> None:
    stem = engine.stem(toy.images(4))
    before = engine.cone(stem, {})
    engine.cone(stem, {SCALE: _affine(engine, SCALE)})
    after = engine.cone(stem, {})
    np.testing.assert_array_equal(before.logits, after.logits)


def test_passes_are_counted(engine: Engine) -> None:
    """One stem and eleven cones over five samples."""
    stem = engine.stem(toy.images(5))
    assert engine.passes == pytest.approx(5 * (1 - engine.cone_share))
    for _ in range(11):
        engine.cone(stem, {})
    share = engine.cone_share
    assert engine.passes == pytest.approx(5 * (1 - share + 11 * share))


def test_no_chosen_layer_is_plain_inference(model: Path, engine: Engine) -> None:
    plain, images = Engine.open(model, chosen=(), threads=1), toy.images(3)
    whole, halves = (one.cone(one.stem(images), {}) for one in (plain, engine))
    np.testing.assert_array_equal(whole.logits, halves.logits)
    assert plain.passes == 3
    assert plain.cone_share == 0
    with pytest.raises(ZottaError, match=f"{SCALE} is no affine of the chosen layers"):
        plain.cone(plain.stem(images), {SCALE: engine.info.affines[SCALE]})


def test_non_contiguous_images(engine: Engine) -> None:
    images = toy.images(6)
    strided, copied = (engine.cone(engine.stem(x), {}) for x in (images[::2], images[::2].copy()))
    np.testing.assert_array_equal(strided.logits, copied.logits)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (
            np.zeros((2, 1, 8, 9), np.float32),
            r"images: expected \[batch, 1, 8, 8\], got \[2, 1, 8, 9\]",
        ),
        (np.zeros((1, 8, 8), np.float32), r"expected \[batch, 1, 8, 8\], got \[1, 8, 8\]"),
        (np.zeros((0, 1, 8, 8), np.float32), r"expected \[batch, 1, 8, 8\], got \[0, 1, 8, 8\]"),
        (np.zeros((), np.float32), r"got \[\]"),
        (np.zeros((2, 1, 8, 8)), "images: expected a float32 array, got float64"),
        (np.zeros((2, 1, 8, 8), np.uint8), "got uint8"),
        ([[0.0]], "images: expected a float32 array, got list"),
    ],
)
def test_bad_images(engine: Engine, images: Floats, message: str) -> None:
    with pytest.raises(ZottaError, match=message):
        engine.stem(images)
    assert engine.passes == 0


@pytest.mark.parametrize(
    ("affine", "message"),
    [
        (np.ones((2, 1, 16), np.float32), f"{SCALE} has 2 rows for a batch of 3: give 1 or 3"),
        (np.ones((1, 16), np.float32), rf"{SCALE}: expected \[batch, 1, 16\], got \[1, 16\]"),
        (np.ones((1, 1, 8), np.float32), r"got \[1, 1, 8\]"),
        (np.ones((1, 1, 16)), f"{SCALE}: expected a float32 array, got float64"),
    ],
)
def test_bad_affines(engine: Engine, affine: Floats, message: str) -> None:
    stem = engine.stem(toy.images(3))
    with pytest.raises(ZottaError, match=message):
        engine.cone(stem, {SCALE: affine})


def test_affines_of_layers_that_were_not_chosen(engine: Engine) -> None:
    stem, name = engine.stem(toy.images(3)), "blocks.3.norm.scale"
    with pytest.raises(ZottaError, match=rf"{name} is no affine of the chosen layers \[1, 2\]"):
        engine.cone(stem, {name: engine.info.affines[name]})


def test_not_calibrated(tmp_path: Path) -> None:
    path = toy.build(tmp_path / "fresh.onnx", calibrated=False)
    with pytest.raises(ZottaError, match=r"fresh\.onnx is not calibrated: run `zotta-edge calib"):
        Engine.open(path)
    assert Engine.open(path, chosen=(1,)).chosen == (1,)


def test_a_layer_without_norms(tmp_path: Path) -> None:
    path = toy.build(tmp_path / "bare.onnx")
    info, content = read_info(path), onnx.load(path)
    bare = replace(info.layers[2], norms=())
    layers = (*info.layers[:2], bare, info.layers[3])
    affines = {name: value for name, value in info.affines.items() if "blocks.2" not in name}
    del content.metadata_props[:]
    for key, value in to_metadata(replace(info, layers=layers, affines=affines)).items():
        content.metadata_props.add(key=key, value=value)
    onnx.save(content, path)
    with pytest.raises(ZottaError, match=r"the chosen layers \[2\] have no norms to adapt"):
        Engine.open(path, chosen=(2,))
    assert Engine.open(path, chosen=(1, 2)).chosen == (1, 2)


@pytest.mark.parametrize("chosen", [None, (1,), ()])
def test_files_that_cannot_be_opened(tmp_path: Path, chosen: tuple[int, ...] | None) -> None:
    with pytest.raises(ZottaError, match=r"none\.onnx does not exist"):
        Engine.open(tmp_path / "none.onnx", chosen=chosen)
    with pytest.raises(ZottaError, match="is not a file"):
        Engine.open(tmp_path, chosen=chosen)
    junk = tmp_path / "junk.onnx"
    junk.write_bytes(b"hello world")
    with pytest.raises(ZottaError, match=r"junk\.onnx is not an ONNX model, or is damaged"):
        Engine.open(junk, chosen=chosen)


def test_an_unavailable_provider(model: Path) -> None:
    with pytest.raises(ZottaError, match="provider nonsense is not available"):
        Engine.open(model, provider="nonsense")


def test_many_threads_at_once(engine: Engine) -> None:
    """Each gets what it would have got alone, and every pass is counted."""

    def one(seed: int) -> Outputs:
        stem = engine.stem(toy.images(4, seed=seed))
        return engine.cone(stem, {SHIFT: _affine(engine, SHIFT, rows=4, seed=seed)})

    alone = [one(seed) for seed in range(40)]
    before = engine.passes
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(one, range(40)))
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_array_equal(a.logits, b.logits)
        np.testing.assert_array_equal(a.features[-1], b.features[-1])
    assert engine.passes - before == pytest.approx(160)


def test_a_warm_start_loads_numpy_and_onnxruntime_alone(model: Path, engine: Engine) -> None:
    assert engine.chosen  # the model is cut by now
    code = (
        "import sys; from zotta_edge.runtime.engine.engine import Engine; "
        "Engine.open(sys.argv[1]); "
        "print(sorted({'onnx', 'torch', 'cv2', 'sklearn', 'safetensors'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(model)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
