"""Vision Transformer (Dosovitskiy et al., 2021; DeiT by Touvron et al., 2021), with timm's names.

Pre-norm blocks on patch tokens and one class token; a state dict of timm's
`vit_*_patch16_224` or `deit_*_patch16_224` loads as it is.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

_EPSILON = 1e-6  # of every LayerNorm, as the published checkpoints were trained


@dataclass(frozen=True)
class ViTShape:
    """The sizes that tell one Vision Transformer from another."""

    width: int
    depth: int
    heads: int
    image: int = 224  # side, in pixels
    patch: int = 16
    channels: int = 3


TINY = ViTShape(192, depth=12, heads=3)
SMALL = ViTShape(384, depth=12, heads=6)
BASE = ViTShape(768, depth=12, heads=12)
LARGE = ViTShape(1024, depth=24, heads=16)


class VisionTransformer(nn.Module):
    """Image [batch, channels, side, side] -> logits [batch, classes]."""

    def __init__(self, shape: ViTShape, classes: int) -> None:
        super().__init__()
        tokens = (shape.image // shape.patch) ** 2 + 1
        self.cls_token = nn.Parameter(torch.zeros(1, 1, shape.width))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, tokens, shape.width))
        self.patch_embed = PatchEmbedding(shape)
        self.blocks = nn.Sequential(*(Block(shape.width, shape.heads) for _ in range(shape.depth)))
        self.norm = nn.LayerNorm(shape.width, eps=_EPSILON)
        self.head = nn.Linear(shape.width, classes)

    def forward(self, image: Tensor) -> Tensor:
        patches = self.patch_embed(image)  # [batch, patches, width]
        cls_token = self.cls_token.expand(patches.shape[0], -1, -1)
        tokens = torch.cat([cls_token, patches], dim=1) + self.pos_embed
        tokens = self.norm(self.blocks(tokens))
        logits: Tensor = self.head(tokens[:, 0])
        return logits


class PatchEmbedding(nn.Module):
    """Cut the image into patches and project each to a token."""

    def __init__(self, shape: ViTShape) -> None:
        super().__init__()
        self.proj = nn.Conv2d(shape.channels, shape.width, shape.patch, stride=shape.patch)

    def forward(self, image: Tensor) -> Tensor:
        grid: Tensor = self.proj(image)  # [batch, width, rows, columns]
        return grid.flatten(2).transpose(1, 2)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=_EPSILON)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=_EPSILON)
        self.mlp = Mlp(width)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attn(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """softmax(q k^T / sqrt(d)) v, a head at a time.

    Written out instead of `scaled_dot_product_attention`, which exports with extra scaling nodes.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        batch, count, width = tokens.shape
        split = (batch, count, self.heads, width // self.heads)
        query, key, value = (part.reshape(split) for part in self.qkv(tokens).chunk(3, dim=-1))
        scores = (query.transpose(1, 2) * self.scale) @ key.permute(0, 2, 3, 1)
        mixed = scores.softmax(dim=-1) @ value.transpose(1, 2)  # [batch, head, token, d]
        attended: Tensor = self.proj(mixed.transpose(1, 2).reshape(batch, count, width))
        return attended


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.fc2(self.act(self.fc1(tokens)))
        return hidden
