"""The torch references: one contract for all, and what is known of each."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from zotta_edge.corruptions import corrupt_batch
from zotta_edge.errors import ZottaError
from zotta_edge.format import ModelInfo
from zotta_edge.models.embedded import MODEL, RESNET, STREAM
from zotta_edge.models.registry import ARCHITECTURES
from zotta_edge.runtime.engine.engine import Outputs
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.io.preprocessing import fit, prepare
from zotta_edge.runtime.watch.statistics import Queue, Source, entropies
from zotta_edge.runtime.zeroth.objective import EntropyAndAlignment
from zotta_edge.sessions import open_session

torch = pytest.importorskip("torch")

from zotta_edge.bench.references import (  # noqa: E402
    REFERENCES,
    Network,
    Reference,
    find,
    roid,  # noqa: E402
)
from zotta_edge.bench.references.backprop import Backprop, Settings, moments  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SURENESS = 5  # times the weights of a random head
FILES = {"digits_vit": MODEL, "digits_resnet_gn": RESNET}
BATCH = 32

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Net:
    """The layers of an embedded file with random weights, and images: the source, low contrast."""

    module: torch.nn.Module
    weights: Path
    file: Path
    info: ModelInfo
    source: Floats
    stream: Floats

    def network(self) -> Network:
        return Network(self.module, self.info)

    def reference(self, name: str, seed: int = 0) -> Reference:
        return find(name)(self.network(), self.source, seed=seed)

    def batches(self, count: int) -> list[Floats]:
        return [self.stream[start * BATCH :][:BATCH] for start in range(count)]


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Net]:
    folder = tmp_path_factory.mktemp("nets")
    return {name: _net(name, file, folder) for name, file in FILES.items()}


@pytest.fixture(params=FILES)
def net(nets: dict[str, Net], request: pytest.FixtureRequest) -> Net:
    return nets[request.param]


@pytest.fixture
def vit(nets: dict[str, Net]) -> Net:
    return nets["digits_vit"]


def _net(name: str, file: Path, folder: Path) -> Net:
    from safetensors.torch import save_file

    from zotta_edge.export.sources.torch_source import randomized

    architecture, info = ARCHITECTURES[name], read_info(file)
    module = randomized(architecture.build(10)).eval()
    with torch.no_grad():  # as sure of its answers as a trained net
        module.get_submodule(architecture.head).weight *= SURENESS
    save_file(module.state_dict(), folder / f"{name}.safetensors")
    digits = np.load(STREAM)["images"]
    large = [fit(image, info.preprocessing) for image in digits[: 4 * BATCH]]
    stream = prepare(corrupt_batch(large, "contrast", 2), info.preprocessing)
    source = prepare(digits[-64:], info.preprocessing)
    return Net(module, folder / f"{name}.safetensors", file, info, source, stream)


def _parameters(reference: Reference) -> dict[str, torch.Tensor]:
    network: Network = getattr(reference, "network", None) or reference.student
    return {name: value.detach().clone() for name, value in network.module.named_parameters()}


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ZottaError, match="no reference is called tend: there are none, backprop"):
        find("tend")


def test_a_module_that_is_not_the_files_is_refused(vit: Net) -> None:
    with pytest.raises(ZottaError, match=r"no blocks\.0\.norm1"):
        Network(torch.nn.Linear(2, 2), vit.info)


@pytest.mark.parametrize("name", FILES)
def test_features_are_the_exported_files(nets: dict[str, Net], name: str, tmp_path: Path) -> None:
    from zotta_edge.export.pipeline import ExportOptions, export_model

    net, file = nets[name], tmp_path / "fp32.onnx"
    info = export_model(name, file, ExportOptions(precision="fp32", weights=net.weights))
    names = ["logits", *(layer.feature for layer in info.layers)]
    logits, *features = open_session(file).run(names, {"image": net.stream[:8]})
    with torch.no_grad():
        ours, pooled = Network(net.module, info).outputs(torch.from_numpy(net.stream[:8]))
    np.testing.assert_allclose(ours.numpy(), logits, atol=1e-4)
    np.testing.assert_allclose(pooled.numpy(), np.concatenate(features, axis=1), atol=1e-4)


@pytest.mark.parametrize("name", REFERENCES)
def test_a_reset_one_is_as_new(net: Net, name: str) -> None:
    reference = net.reference(name)
    source = _parameters(reference)
    first = [reference.predict(batch) for batch in net.batches(3)]
    reference.reset()
    assert all(torch.equal(source[key], value) for key, value in _parameters(reference).items())
    again = [reference.predict(batch) for batch in net.batches(3)]
    other = net.reference(name)
    new = [other.predict(batch) for batch in net.batches(3)]
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, new)
    assert first[0].dtype == np.float32
    assert first[0].shape == (BATCH, 10)


@pytest.mark.parametrize("name", [name for name in REFERENCES if name not in ("none", "cotta")])
def test_only_norms_are_trained_and_they_are(net: Net, name: str) -> None:
    reference = net.reference(name)
    if name == "deyo":  # random nets see no shapes
        reference.settings = replace(reference.settings, drop=-1.0)
    before = _parameters(reference)
    reference.predict(net.stream[:BATCH])
    moved = {
        key for key, value in _parameters(reference).items() if not torch.equal(before[key], value)
    }
    layers = net.info.layers
    if name.startswith("backprop"):
        layers = tuple(layers[index] for index in net.info.chosen)
    elif name == "eata-last":
        layers = net.network().blocks()[-2:]
    elif name in ("sar", "deyo"):
        layers = net.network().lower_layers()
        assert 0 < len(layers) < len(net.info.layers) - 1
    norms = {norm.name for layer in layers for norm in layer.norms}
    assert moved == {f"{norm}.{part}" for norm in norms for part in ("weight", "bias")}


@pytest.mark.parametrize("name", REFERENCES)
def test_one_image_at_a_time(net: Net, name: str) -> None:
    reference = net.reference(name)
    for image in net.stream[:3]:
        assert np.isfinite(reference.predict(image[None])).all()


def test_passes_count_a_backward_pass_as_two_up_to_where_it_ends(vit: Net) -> None:
    batch = vit.stream[:BATCH]
    passes: dict[str, float] = {}
    for name in ("none", "tent", "backprop"):
        reference = vit.reference(name)
        reference.predict(batch)
        passes[name] = reference.passes / BATCH
    assert passes["none"] == 1
    assert 2.9 < passes["tent"] < 3  # all but the patches' embedding
    depth = len(vit.info.layers) - 1  # the last one is a norm
    assert passes["backprop"] == pytest.approx(1 + 2 * (depth - 1) / depth, abs=0.05)


def test_tent_answers_before_its_step_and_its_entropy_falls(net: Net) -> None:
    plain, tent = net.reference("none"), net.reference("tent")
    batch = net.stream[:64]
    first = tent.predict(batch)
    np.testing.assert_allclose(first, plain.predict(batch), atol=1e-5)
    for _ in range(10):
        last = tent.predict(batch)
    assert entropies(last).mean() < 0.95 * entropies(first).mean()


def test_small_batches_take_small_steps(vit: Net) -> None:
    from zotta_edge.bench.references.learner import published_rate

    network = vit.network()
    assert published_rate(network, 64) == published_rate(network, 128) == 1e-3
    assert published_rate(network, 16) == pytest.approx(1e-3 / 4)


def test_eata_weighs_by_the_squared_gradient_of_its_own_answers(vit: Net) -> None:
    eata = vit.reference("eata")
    network = vit.network()
    parameters = network.affines(vit.info.layers)
    for value in parameters:
        value.requires_grad_(True)
    logits = network.module(torch.from_numpy(vit.source))
    loss = torch.nn.functional.cross_entropy(logits, logits.argmax(dim=1))
    for fisher, gradient in zip(eata.fisher, torch.autograd.grad(loss, parameters), strict=True):
        torch.testing.assert_close(fisher, gradient**2)
    assert eata.passes == 0


def test_checkpointing_learns_the_same_and_passes_once_more(net: Net) -> None:
    plain, frugal = net.reference("eata"), net.reference("eata-gc")
    for batch in net.batches(3):
        np.testing.assert_allclose(plain.predict(batch), frugal.predict(batch), atol=1e-5)
    assert plain.passes < frugal.passes < plain.passes * 4 / 3 + 1e-6


def test_checkpointing_keeps_less_for_the_way_back(vit: Net) -> None:
    def kept(name: str) -> int:
        sizes: list[int] = []

        def note(tensor: torch.Tensor) -> torch.Tensor:
            sizes.append(tensor.numel())
            return tensor

        reference = vit.reference(name)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            reference.network.logits(torch.from_numpy(vit.stream[:BATCH]))
        return sum(sizes)

    assert kept("eata-gc") < kept("eata") / 2


def test_eata_learns_from_sure_and_novel_samples_alone(vit: Net) -> None:
    eata = vit.reference("eata")
    logits = torch.zeros(3, 10)
    logits[0, 4] = logits[1, 7] = 9.0  # the third is unsure
    entropy = torch.tensor(entropies(logits.numpy()))
    assert eata._kept(logits, entropy).tolist() == [True, True, False]
    assert eata._kept(logits[:1], entropy[:1]).tolist() == [False]  # seen before
    other = torch.zeros(1, 10)
    other[0, 0] = 9.0
    assert eata._kept(other, entropy[:1]).tolist() == [True]


def test_sar_steps_along_the_gradient_at_the_worst_point_nearby(vit: Net) -> None:
    sar = vit.reference("sar")
    sar.margin = np.inf  # all samples are sure
    batch = vit.stream[:64]
    sar.predict(batch)
    network = vit.network()
    parameters = network.affines(network.lower_layers())
    source = [value.clone() for value in parameters]
    for value in parameters:
        value.requires_grad_(True)

    def gradient() -> tuple[torch.Tensor, ...]:
        log_p = network.module(torch.from_numpy(batch)).log_softmax(dim=1)
        return torch.autograd.grad(-(log_p.exp() * log_p).sum(dim=1).mean(), parameters)

    here = gradient()
    norm = torch.cat([part.flatten() for part in here]).norm()
    with torch.no_grad():
        for value, part in zip(parameters, here, strict=True):
            value += 0.05 * part / norm
    for moved, start, part in zip(sar.learner.parameters, source, gradient(), strict=True):
        torch.testing.assert_close(moved.detach() - start, -1e-3 * part, rtol=1e-3, atol=2e-7)


def test_sar_starts_anew_when_it_collapses(vit: Net) -> None:
    sar = vit.reference("sar")
    source = _parameters(sar)
    sar.margin = np.inf
    sar.predict(vit.stream[:BATCH])
    assert not torch.equal(
        _parameters(sar)["blocks.0.norm1.weight"], source["blocks.0.norm1.weight"]
    )
    sar.average = -10.0  # one more batch cannot lift it above 0.2
    sar.predict(vit.stream[:BATCH])
    assert all(torch.equal(source[key], value) for key, value in _parameters(sar).items())
    assert sar.average is None


def test_deyo_shuffles_patches_and_keeps_their_pixels(vit: Net) -> None:
    deyo = vit.reference("deyo")
    images = torch.arange(2 * 32 * 32, dtype=torch.float32).reshape(2, 1, 32, 32)
    mixed = deyo._shuffled(images)
    assert mixed.shape == images.shape
    assert not torch.equal(mixed, images)

    def patches(image: torch.Tensor) -> set[tuple[float, ...]]:
        cut = image.reshape(4, 8, 4, 8).transpose(1, 2).reshape(16, 64)
        return {tuple(patch.tolist()) for patch in cut}

    for before, after in zip(images, mixed, strict=True):
        assert patches(before[0]) == patches(after[0])


def test_cotta_answers_with_a_slow_teacher(net: Net) -> None:
    cotta, plain = net.reference("cotta"), net.reference("none")
    batch = net.stream[:BATCH]
    np.testing.assert_allclose(cotta.predict(batch), plain.predict(batch), atol=1e-5)
    assert cotta.passes / BATCH == pytest.approx(3 + 2)  # anchor, teacher, student; backward
    student = cotta.student.module.state_dict()
    for name, slow in cotta.teacher.module.named_parameters():
        source = net.module.state_dict()[name]
        torch.testing.assert_close(
            slow.detach(), source.lerp(student[name], 0.001), atol=1e-5, rtol=0
        )


def test_cotta_asks_many_views_when_the_source_is_lost(vit: Net) -> None:
    cotta = vit.reference("cotta")
    cotta.settings = replace(cotta.settings, threshold=1.1, augmentations=5)
    batch = vit.stream[:8]
    view = cotta.augment(torch.from_numpy(batch))
    assert view.shape == batch.shape
    assert 0.01 < float((view - torch.from_numpy(batch)).abs().mean()) < 1
    cotta.predict(batch)
    assert cotta.passes / 8 == pytest.approx(1 + 5 + 1 + 2)


def test_roids_likelihood_ratio_by_hand() -> None:
    p = torch.tensor([[0.7, 0.2, 0.1], [1.0, 0.0, 0.0]], dtype=torch.float64)
    found = roid.likelihood_ratio((p + 1e-30).log(), clip=0.99)
    by_hand = [sum(-q * np.log(q / (1 - q) + 1e-5) for q in (0.7, 0.2, 0.1)), -0.99 * np.log(99)]
    np.testing.assert_allclose(found.numpy(), by_hand, rtol=1e-3)


def test_roid_learns_from_diverse_samples_and_more_from_sure_ones(vit: Net) -> None:
    one = vit.reference("roid")
    logits = torch.zeros(4, 10)
    logits[0, 4], logits[1, 7], logits[2, 7] = 9.0, 9.0, 3.0  # the last is like the average
    weights = one._weights(logits)
    assert weights[3] == 0
    assert weights[:2].tolist() == pytest.approx([np.exp(3)] * 2, rel=0.05)
    assert 0 <= weights[2] < weights[1]
    assert float(one.average.sum()) == pytest.approx(1)


def test_roid_corrects_answers_by_the_classes_of_the_batch() -> None:
    """(p_hat + s) / (1 + s C), s = max(1/B, 1/C) / max p_hat, times the probabilities."""
    logits = torch.tensor([[2.0, 1.9, 0.0], [3.0, 0.0, 0.0], [3.0, 0.0, 0.0], [3.0, 0.0, 0.0]])
    p = logits.softmax(dim=1)
    mean = p.mean(dim=0)
    smooth = (1 / 3) / mean.max()
    prior = (mean + smooth) / (1 + 3 * smooth)
    assert float(prior.sum()) == pytest.approx(1)
    found = roid.prior_corrected(logits).softmax(dim=1)
    torch.testing.assert_close(found, (p * prior) / (p * prior).sum(dim=1, keepdim=True))
    assert found[0, 0] > p[0, 0]


def test_roid_keeps_near_its_source(vit: Net) -> None:
    """Averaged after each step: what a step added is 0.99 of it."""
    free, held = vit.reference("roid"), vit.reference("roid")
    free.settings = replace(free.settings, kept=1.0)
    for one in (free, held):
        one.predict(vit.stream[:BATCH])
    moved = zip(free.learner.parameters, held.learner.parameters, free.learner.source, strict=True)
    for far, near, source in moved:
        torch.testing.assert_close((near - source), 0.99 * (far - source), rtol=1e-2, atol=1e-7)


@pytest.mark.parametrize("weights", [(0.0, 1.0), (1.0, 0.4)])
def test_backprop_follows_the_products_objective(net: Net, weights: tuple[float, float]) -> None:
    """Its gradient against central differences of Eq. 5 as the runtime computes it, in double."""
    backprop = Backprop(net.network(), net.source, settings=Settings(*weights))
    module, parameters = backprop.network.module.double(), backprop.learner.parameters
    images = torch.from_numpy(net.stream[:16]).double()
    source = Source(backprop.mean.double().numpy(), backprop.std.double().numpy(), 64, np.array([]))
    objective = EntropyAndAlignment(source, *weights, "mean", Queue(1, len(backprop.mean)))

    def numpy_loss() -> float:
        with torch.no_grad():
            logits, features = backprop.network.outputs(images)
        return objective(Outputs(logits.numpy(), (features.numpy(),), features.numpy()))

    backprop.learner.backward(backprop.loss(*backprop.network.outputs(images)), 16)
    assert module is backprop.network.module
    for parameter in parameters[:: max(1, len(parameters) // 4)]:
        direction = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
        slope = _slope(numpy_loss, parameter, direction.double())
        assert float((parameter.grad * direction).sum()) == pytest.approx(slope, rel=1e-5)


def _slope(
    loss: Callable[[], float], parameter: torch.Tensor, direction: torch.Tensor, by: float = 1e-6
) -> float:
    values = []
    for sign in (1, -2, 1):  # ahead, behind, and back where it was
        with torch.no_grad():
            parameter += sign * by * direction
        values.append(loss())
    return (values[0] - values[1]) / (2 * by)


def test_backprop_brings_the_statistics_back(net: Net) -> None:
    backprop = net.reference("backprop")

    def distance() -> float:
        with torch.no_grad():
            features = backprop.network.outputs(torch.from_numpy(net.stream[:64]))[1]
        return float((moments(features)[0] - backprop.mean).square().sum())

    before = distance()
    for _ in range(10):
        backprop.predict(net.stream[:64])
    assert distance() < 0.8 * before


def test_backprop_needs_chosen_layers(vit: Net) -> None:
    uncalibrated = Network(vit.module, vit.info.with_calibration(None))
    with pytest.raises(ZottaError, match="no chosen layers"):
        Backprop(uncalibrated, vit.source)
