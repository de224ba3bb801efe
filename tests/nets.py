"""Small torch nets, one for each way of writing norms, and their export to ONNX."""

import warnings
from collections.abc import Callable
from functools import cache
from io import BytesIO
from itertools import pairwise

import onnx
import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIZE = 16  # height and width of the images
Factory = Callable[[int], nn.Module]


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        weights = (query @ key.transpose(-2, -1) * (width // 2) ** -0.5).softmax(-1)
        return self.proj((weights @ value).transpose(1, 2).reshape(batch, tokens, width))


class TorchAttention(nn.Module):
    """torch's own, which moves the batch behind the tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


class Block(nn.Module):
    def __init__(self, width: int, norm: Factory, attention: Factory) -> None:
        super().__init__()
        self.norm1, self.norm2 = norm(width), norm(width)
        self.attn = attention(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, norm: Factory = nn.LayerNorm, attention: Factory = Attention) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.cls = nn.Parameter(torch.randn(1, 1, 16))
        self.pos = nn.Parameter(torch.randn(1, 17, 16))
        self.blocks = nn.Sequential(*[Block(16, norm, attention) for _ in range(3)])
        self.norm = norm(16)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.pos
        return self.head(self.norm(self.blocks(x))[:, 0])


class RMSNorm(nn.Module):
    """As language models write it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, norm: Factory) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = norm(outputs), norm(outputs)
        down = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        self.down = nn.Sequential(down, norm(outputs)) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.down(x))


class ResNet(nn.Module):
    def __init__(self, norm: Factory) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, 1, 1), norm(8)
        self.layer1 = nn.Sequential(Residual(8, 8, 1, norm), Residual(8, 8, 1, norm))
        self.layer2 = nn.Sequential(Residual(8, 16, 2, norm), Residual(16, 16, 1, norm))
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        return self.fc(self.layer2(self.layer1(x)).mean((2, 3)))


class PreActivation(nn.Module):
    """BatchNorm before the convolutions: there are no weights to fold its statistics into."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(inputs), nn.BatchNorm2d(outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, outputs // inputs, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.skip = nn.Conv2d(inputs, outputs, 1, outputs // inputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.relu(self.norm1(x)))
        return self.skip(x) + self.conv2(F.relu(self.norm2(y)))


class PreActResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, 1, 1)
        self.layer1, self.layer2 = PreActivation(8, 8), PreActivation(8, 16)
        self.norm = nn.BatchNorm2d(16)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.layer2(self.layer1(self.conv(x)))))
        return self.fc(x.mean((2, 3)))


class VGG(nn.Module):
    """Plain convolutions, BatchNorm of vectors, and a Softmax at the end."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise((3, 8, 8, 16, 16)):
            layers += [nn.Conv2d(inputs, outputs, 3, 1, 1), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.features = nn.Sequential(*layers[:6], nn.MaxPool2d(2), *layers[6:], nn.MaxPool2d(2))
        self.fc, self.norm = nn.Linear(256, 20), nn.BatchNorm1d(20)
        self.classifier = nn.Linear(20, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x).softmax(-1)

    def logits(self, x: Tensor) -> Tensor:
        return self.classifier(F.relu(self.norm(self.fc(self.features(x).flatten(1)))))


class LayerNorm2d(nn.Module):
    """Over the channels of a map, as ConvNeXt has it; x - mean is computed twice."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, 1, 1, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        return x + self.down(F.gelu(self.up(y))).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        stem = nn.Sequential(nn.Conv2d(3, 8, 2, 2), LayerNorm2d(8))
        down = nn.Sequential(LayerNorm2d(8), nn.Conv2d(8, 16, 2, 2))
        self.downsample_layers = nn.ModuleList([stem, down])
        self.stages = nn.ModuleList(
            [nn.Sequential(ConvNeXtBlock(8), ConvNeXtBlock(8)), ConvNeXtBlock(16)]
        )
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        for down, stage in zip(self.downsample_layers, self.stages, strict=True):
            x = stage(down(x))
        return self.head(self.norm(x.mean((2, 3))))


class SwinBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:  # [batch, height, width, channel]
        batch, side, _, width = x.shape
        windows = self.norm1(x).view(batch, side // 4, 4, side // 4, 4, width)
        y = self.attn(windows.permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, width))
        y = y.view(batch, side // 4, side // 4, 4, 4, width).permute(0, 1, 3, 2, 4, 5)
        x = x + y.reshape(batch, side, side, width)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Swin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.patch_norm = nn.Conv2d(3, 8, 2, 2), nn.LayerNorm(8)
        self.layers = nn.Sequential(*[nn.Sequential(SwinBlock(8), SwinBlock(8)) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_norm(self.patch(x).permute(0, 2, 3, 1))
        return self.head(self.norm(self.layers(x)).mean((1, 2)))


def group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(2, channels)


def instance_norm(channels: int) -> nn.Module:
    return nn.InstanceNorm2d(channels, affine=True)


NETS: dict[str, Callable[[], nn.Module]] = {
    "vit": ViT,
    "vit-rms": lambda: ViT(RMSNorm),
    "vit-torch-rms": lambda: ViT(nn.RMSNorm),
    "vit-torch-attention": lambda: ViT(attention=TorchAttention),
    "resnet-bn": lambda: ResNet(nn.BatchNorm2d),
    "resnet-gn": lambda: ResNet(group_norm),
    "resnet-in": lambda: ResNet(instance_norm),
    "preact": PreActResNet,
    "vgg": VGG,
    "convnext": ConvNeXt,
    "swin": Swin,
}


def make(name: str) -> nn.Module:
    """A net with no two affines alike, so that a mix-up shows."""
    torch.manual_seed(0)
    net = NETS[name]().eval()
    for key, value in [*net.named_parameters(), *net.named_buffers()]:
        if value.ndim == 1 and value.is_floating_point():
            positive = key.endswith(("weight", "var"))
            fresh = torch.rand_like(value) + 0.5 if positive else 0.2 * torch.randn_like(value)
            value.data.copy_(fresh)
    return net


@cache
def exported(name: str, opset: int, batch: int | None = None) -> bytes:
    """A serialized net: exports take seconds, and many tests can share one."""
    return export(make(name), opset, batch=batch).SerializeToString()


def load(name: str, opset: int, batch: int | None = None) -> onnx.ModelProto:
    return onnx.load_from_string(exported(name, opset, batch))


def export(
    net: nn.Module, opset: int, *, batch: int | None = None, size: int = SIZE
) -> onnx.ModelProto:
    """By TorchScript below opset 18 and by dynamo from there on; `batch` fixes the batch size."""
    images = torch.randn(batch or 2, 3, size, size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if opset >= 18:
            dynamic = None if batch else ({0: torch.export.Dim("batch")},)
            program = torch.onnx.export(
                net, (images,), opset_version=opset, dynamic_shapes=dynamic, verbose=False
            )
            assert program is not None
            return program.model_proto
        stream = BytesIO()
        torch.onnx.export(
            net,
            (images,),
            stream,
            dynamo=False,
            opset_version=opset,
            input_names=["pixels"],
            output_names=["scores"],
            dynamic_axes=None if batch else {"pixels": {0: "b"}},
            training=torch.onnx.TrainingMode.PRESERVE,  # otherwise BatchNorm goes into Conv
            do_constant_folding=opset != 11,
        )
        return onnx.load_from_string(stream.getvalue())
