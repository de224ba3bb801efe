"""A torch classifier seen as its model file sees it: layers, norms, pooled features, passes."""

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from zotta_edge.errors import ZottaError
from zotta_edge.format import Floats, Layer, ModelInfo
from zotta_edge.tensor_layouts import LAYOUTS

_BACKWARD = 2.0  # forward passes that a whole backward pass counts as
_CHUNK = 64  # source images in one pass


class Network:
    """A frozen copy of `module`, with the layers that `info` names.

    `passes` adds up images x full forward passes. A backward pass counts as two, as is usual,
    times the share of the forward arithmetic that lies behind the first trained parameter, where
    it ends. (With frozen weights about half of that is really computed.)

    BatchNorm keeps the statistics of the source: the systems here are for nets without it.
    """

    def __init__(self, module: nn.Module, info: ModelInfo) -> None:
        self.module = copy.deepcopy(module).float().eval().requires_grad_(False)
        self.info = info
        self.passes = 0.0
        self._backward = _BACKWARD
        _check(self.module, info)

    @property
    def is_transformer(self) -> bool:
        return self.info.layers[0].kind == "tokens"

    def logits(self, images: Tensor) -> Tensor:
        self.passes += len(images)
        logits: Tensor = self.module(images)
        return logits

    def outputs(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [batch, class], and v_l of all layers side by side, [batch, D]."""
        with self._tapped() as features:
            logits = self.logits(images)
        return logits, torch.cat(features, dim=1)

    def source_features(self, source: Floats) -> Tensor:
        """v of the source images, [N, D]."""
        with self.uncounted(), torch.no_grad():
            return torch.cat([self.outputs(images)[1] for images in chunks(source)])

    def affines(self, layers: Sequence[Layer]) -> list[nn.Parameter]:
        """Scale and shift of every norm in `layers`."""
        norms = [norm.name for layer in layers for norm in layer.norms]
        return [value for name in norms for value in self.module.get_submodule(name).parameters()]

    def lower_layers(self) -> tuple[Layer, ...]:
        """All but the last quarter of the blocks (blocks 9-11 of 12), or the last stage, and what
        follows: the layers that SAR and those after it train."""
        body = self.blocks()
        return body[: -max(1, len(body) // 4)]

    def blocks(self) -> tuple[Layer, ...]:
        """All layers but a norm that stands alone."""
        return tuple(layer for layer in self.info.layers if not self._is_norm(layer))

    def share_behind(self, parameters: Sequence[nn.Parameter]) -> float:
        """Of the forward arithmetic, the share that a gradient of `parameters` runs back over."""
        p = self.info.preprocessing
        wanted = {id(value) for value in parameters}
        before: list[int] = []
        with contextlib.ExitStack() as stack, torch.no_grad():
            counter = stack.enter_context(FlopCounterMode(display=False))

            def note(*_: Any) -> None:
                before.append(counter.get_total_flops())

            for module in self.module.modules():
                if any(id(value) in wanted for value in module.parameters(recurse=False)):
                    stack.callback(module.register_forward_pre_hook(note).remove)
            self.module(torch.zeros(1, p.channels, p.height, p.width))
            total = int(counter.get_total_flops())
        return 1 - min(before, default=0) / total

    def count_backward(self, images: int, share: float) -> None:
        self.passes += self._backward * share * images

    def recompute(self) -> None:
        """From now on keep what enters a block alone; the way back runs the block again."""
        self._backward = _BACKWARD + 1
        for layer in self.blocks():
            block = self.module.get_submodule(layer.name)
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """What is done before the stream is not on its bill."""
        passes = self.passes
        yield
        self.passes = passes

    @contextlib.contextmanager
    def _tapped(self) -> Iterator[list[Tensor]]:
        """While open, each forward pass appends every layer's pooled feature to the list."""
        features: list[Tensor] = []
        with contextlib.ExitStack() as stack:
            for index in range(len(self.info.layers)):
                stack.callback(self._tap(index, features.append))
            yield features

    def _tap(self, index: int, take: Callable[[Tensor], None]) -> Callable[[], None]:
        """Where the exporter cut the graph: a layer ends in what leaves it, or enters the next.

        A norm before a convolutional net's head ends behind its activation, in what the head reads.
        """
        layer, later = self.info.layers[index], self.info.layers[index + 1 :]
        ends_in_head = layer.kind == "map" and self._is_norm(layer)
        if layer.name in dict(self.module.named_modules()) and not ends_in_head:
            ending = self.module.get_submodule(layer.name)
            return ending.register_forward_hook(lambda *call: take(_pooled(call[2], layer))).remove
        reader = self.module.get_submodule(later[0].name) if later else self._head()
        return reader.register_forward_pre_hook(
            lambda _, inputs: take(_pooled(inputs[0], layer))
        ).remove

    def _is_norm(self, layer: Layer) -> bool:
        return [norm.name for norm in layer.norms] == [layer.name]

    def _head(self) -> nn.Module:
        return [part for part in self.module.modules() if isinstance(part, nn.Linear)][-1]


def chunks(source: Floats) -> Iterator[Tensor]:
    yield from torch.split(torch.from_numpy(source), _CHUNK)


def _pooled(tensor: Tensor, layer: Layer) -> Tensor:
    """Mean over all but samples and channels; a vector is pooled already."""
    return tensor if tensor.ndim == 2 else tensor.mean(LAYOUTS[layer.kind].pooled_axes)


def _check(module: nn.Module, info: ModelInfo) -> None:
    there = dict(module.named_modules())
    missing = [norm.name for norm in info.norms if norm.name not in there]
    if missing:
        raise ZottaError(
            f"the torch module has no {missing[0]}, which the model file names: give the "
            "architecture and the checkpoint that the file was exported from"
        )
