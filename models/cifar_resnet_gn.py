"""Small pre-activation ResNets with GroupNorm for 32x32 images (He et al., 2016).

Three stages of basic blocks; a shortcut that changes shape is an average pool with zero channels
appended, so it has no parameters.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_GROUPS = 8


@dataclass(frozen=True)
class SmallResNetShape:
    widths: tuple[int, int, int] = (16, 32, 64)
    blocks: int = 4  # in each stage
    channels: int = 3


class SmallResNetGN(nn.Module):
    """Image [batch, channels, 32, 32] -> logits [batch, classes]; 4 blocks a stage: ResNet-26."""

    def __init__(self, shape: SmallResNetShape, classes: int) -> None:
        super().__init__()
        first, second, third = shape.widths
        self.conv1 = nn.Conv2d(shape.channels, first, 3, padding=1, bias=False)
        self.layer1 = _stage(first, first, shape.blocks, stride=1)
        self.layer2 = _stage(first, second, shape.blocks, stride=2)
        self.layer3 = _stage(second, third, shape.blocks, stride=2)
        self.bn = nn.GroupNorm(_GROUPS, third)
        self.fc = nn.Linear(third, classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.conv1(image))))
        logits: Tensor = self.fc(torch.relu(self.bn(x)).mean((2, 3)))
        return logits


class PreActivationBlock(nn.Module):
    """x + conv(relu(norm(conv(relu(norm(x))))))."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, self.appended = stride, outputs - inputs
        self.bn1 = nn.GroupNorm(_GROUPS, inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.GroupNorm(_GROUPS, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv1(torch.relu(self.bn1(x)))
        y = self.conv2(torch.relu(self.bn2(y)))
        return self._shortcut(x) + y

    def _shortcut(self, x: Tensor) -> Tensor:
        if self.stride > 1:
            x = F.avg_pool2d(x, self.stride)
        return F.pad(x, (0, 0, 0, 0, 0, self.appended)) if self.appended else x


def _stage(inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
    first = PreActivationBlock(inputs, outputs, stride)
    return nn.Sequential(
        first, *(PreActivationBlock(outputs, outputs, 1) for _ in range(blocks - 1))
    )
