"""TTN's alphas: how much of the batch's statistics each BatchNorm channel should take.

python benchmarks/ttn.py --module efficientnet:lite0 --model eff_int8.onnx \
    --source labelled.npz --output alphas.npz
zotta-edge bench ... --variant 'ttn=alpha_bn;alpha_file=alphas.npz'

Lim et al., ICLR 2023: alpha starts from how far the affines' gradients of labelled source images
turn when the images are altered, and is then learned on altered images, held near that start. Runs
in torch on the module that the file was exported from. Alterations are CoTTA's; constants are the
published ones as far as known (Adam 1e-3, weight 1 of the distance to the start).
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zotta_edge.bench.references.augment import Augmentation
from zotta_edge.errors import ZottaError
from zotta_edge.export.sources.torch_source import from_factory
from zotta_edge.format import Preprocessing
from zotta_edge.runtime.engine.model_info import read_info
from zotta_edge.runtime.io.preprocessing import as_batch

_TINY = 1e-12


class Interpolated(nn.Module):
    """A BatchNorm whose statistics lie between the source's and the batch's, by channel."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.norm = norm
        self.alpha = nn.Parameter(torch.zeros(norm.num_features))

    def forward(self, x: Tensor) -> Tensor:
        a, norm = self.alpha.clamp(0, 1), self.norm
        assert norm.running_mean is not None
        assert norm.running_var is not None
        variance, mean = torch.var_mean(x, dim=(0, 2, 3), correction=0)
        apart = a * (1 - a) * (mean - norm.running_mean).square()
        own = a * mean + (1 - a) * norm.running_mean
        spread = a * variance + (1 - a) * norm.running_var + apart
        hat = (x - own[:, None, None]) * (spread[:, None, None] + norm.eps).rsqrt()
        return hat * norm.weight[:, None, None] + norm.bias[:, None, None]


def interpolated(module: nn.Module) -> dict[str, Interpolated]:
    """Put one in the place of every BatchNorm; by name."""
    found = {name: part for name, part in module.named_modules() if _is_norm(part)}
    for name, norm in found.items():
        parent, _, last = name.rpartition(".")
        setattr(module.get_submodule(parent), last, Interpolated(norm))
    return {name: module.get_submodule(name) for name in found}  # type: ignore[misc]


def _is_norm(part: nn.Module) -> bool:
    return isinstance(part, nn.BatchNorm2d)


class Source:
    """Labelled clean images in batches, each with its altered copy."""

    def __init__(self, path: Path, p: Preprocessing, batch: int, seed: int) -> None:
        with np.load(path) as stored:
            self.images, self.labels = stored["images"], torch.from_numpy(stored["labels"]).long()
        self.pixels, self.batch = p, batch
        self.generator = torch.Generator().manual_seed(seed)
        self.altered = Augmentation(p, self.generator)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        order = torch.randperm(len(self.images), generator=self.generator)
        for rows in order.split(self.batch):
            clean = torch.from_numpy(as_batch(list(self.images[rows.numpy()]), self.pixels))
            yield clean, self.altered(clean), self.labels[rows]


def start(module: nn.Module, norms: dict[str, Interpolated], source: Source) -> None:
    """alpha = the squared share of the largest 1 - cos between both gradients, by channel."""
    affines = [value for one in norms.values() for value in (one.norm.weight, one.norm.bias)]
    for value in affines:
        value.requires_grad_(True)
    total: list[Tensor] = [torch.zeros(one.norm.num_features) for one in norms.values()]
    for clean, altered, labels in source:
        pair = []
        for images in (clean, altered):
            loss = F.cross_entropy(module(images), labels)
            flat = torch.autograd.grad(loss, affines)
            pair.append([torch.stack(two) for two in zip(flat[::2], flat[1::2], strict=True)])
        for sum_, one, other in zip(total, *pair, strict=True):
            sum_ += 1 - F.cosine_similarity(one, other, dim=0)
    low, high = min(float(d.min()) for d in total), max(float(d.max()) for d in total)
    for one, distance in zip(norms.values(), total, strict=True):
        one.norm.requires_grad_(False)
        one.alpha.data = ((distance - low) / max(high - low, _TINY)).square()


def learn(
    module: nn.Module, norms: dict[str, Interpolated], source: Source, epochs: int, rate: float
) -> None:
    """Cross-entropy of altered images, and the distance to where alpha started."""
    alphas = [one.alpha for one in norms.values()]
    first = [alpha.detach().clone() for alpha in alphas]
    optimizer = torch.optim.Adam(alphas, rate)
    for epoch in range(epochs):
        losses = []
        for _, altered, labels in source:
            kept = torch.cat(
                [(now - then).square() for now, then in zip(alphas, first, strict=True)]
            )
            loss = F.cross_entropy(module(altered), labels) + kept.mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(float(loss.detach()))
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.3f}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--module", required=True, help="package.module:factory, as for export")
    parser.add_argument("--model", type=Path, required=True, help="exported from it")
    parser.add_argument("--source", type=Path, required=True, help=".npz of images and labels")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args(arguments)
    module = from_factory(args.module, None, False).module.eval().requires_grad_(False)
    norms = interpolated(module)
    source = Source(args.source, read_info(args.model).preprocessing, args.batch_size, args.seed)
    start(module, norms, source)
    learn(module, norms, source, args.epochs, args.rate)
    alphas = {name: one.alpha.detach().clamp(0, 1).numpy() for name, one in norms.items()}
    np.savez(args.output, **alphas)
    print(f"alpha {np.mean(np.concatenate(list(alphas.values()))):.3f} on average")


if __name__ == "__main__":
    try:
        main()
    except ZottaError as error:
        raise SystemExit(f"error: {error}") from None
