"""ResNet-50 with GroupNorm, with the names of timm's `resnet50_gn`.

The norms are called `bn1`, `bn2`, ... there because they stand where BatchNorm stood.
"""

from torch import Tensor, nn

_GROUPS = 32
_EXPANSION = 4  # output channels of a bottleneck over its inner width
_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # inner width, blocks, stride


class ResNet50GN(nn.Module):
    """Image [batch, 3, height, width] -> logits [batch, classes]."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.GroupNorm(_GROUPS, 64)
        self.act1 = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        inputs = 64
        for index, (width, blocks, stride) in enumerate(_STAGES, start=1):
            self.add_module(f"layer{index}", _stage(inputs, width, blocks, stride))
            inputs = width * _EXPANSION
        self.fc = nn.Linear(inputs, classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.maxpool(self.act1(self.bn1(self.conv1(image))))
        for index in range(1, len(_STAGES) + 1):
            x = self.get_submodule(f"layer{index}")(x)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


class Bottleneck(nn.Module):
    """1x1 reduce, 3x3 (which carries the stride), 1x1 expand, around a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * _EXPANSION
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.GroupNorm(_GROUPS, width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.GroupNorm(_GROUPS, width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.GroupNorm(_GROUPS, outputs)
        self.act = nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False),
                nn.GroupNorm(_GROUPS, outputs),
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.bn1(self.conv1(x)))
        y = self.act(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        output: Tensor = self.act(y + self.downsample(x))
        return output


def _stage(inputs: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    first = Bottleneck(inputs, width, stride)
    return nn.Sequential(
        first, *(Bottleneck(width * _EXPANSION, width, 1) for _ in range(blocks - 1))
    )
