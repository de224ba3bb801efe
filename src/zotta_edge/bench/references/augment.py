"""CoTTA's random views of a batch: colour, a small turn and shift, a flip, a little noise."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from zotta_edge.format import Preprocessing

_BRIGHTNESS, _CONTRAST, _SATURATION, _GAMMA = 0.4, 0.3, 0.5, 0.3  # about 1
_TURN = math.radians(15)
_SHIFT = 1 / 8  # of half the side
_ZOOM = 0.1
_NOISE = 0.005


@dataclass(frozen=True)
class Augmentation:
    """Every image gets a view of its own.

    Left out of the published chain, as too weak to matter: a hue turned by 6 %, and a blur of at
    most half a pixel.
    """

    preprocessing: Preprocessing
    generator: torch.Generator

    def __call__(self, images: Tensor) -> Tensor:
        """Normalized images [batch, C, H, W] as normalized images."""
        mean, std = (
            torch.tensor(values)[:, None, None]
            for values in (self.preprocessing.mean, self.preprocessing.std)
        )
        pixels = (images * std + mean).clamp(0, 1)
        pixels = self._placed(self._coloured(pixels))
        pixels = pixels + _NOISE * torch.randn(pixels.shape, generator=self.generator)
        return (pixels.clamp(0, 1) - mean) / std

    def _coloured(self, pixels: Tensor) -> Tensor:
        count = len(pixels)
        pixels = (pixels * self._factor(count, _BRIGHTNESS)).clamp(0, 1)
        grey = pixels.mean(dim=(1, 2, 3), keepdim=True)
        pixels = (grey + (pixels - grey) * self._factor(count, _CONTRAST)).clamp(0, 1)
        grey = pixels.mean(dim=1, keepdim=True)
        pixels = (grey + (pixels - grey) * self._factor(count, _SATURATION)).clamp(0, 1)
        return pixels ** self._factor(count, _GAMMA)

    def _placed(self, pixels: Tensor) -> Tensor:
        count = len(pixels)
        angle, zoom = self._within(count, _TURN), 1 + self._within(count, _ZOOM)
        flip = torch.rand(count, generator=self.generator).round() * 2 - 1
        cosine, sine = zoom * angle.cos(), zoom * angle.sin()
        shift = torch.stack([self._within(count, _SHIFT) for _ in range(2)], dim=1)
        turn = torch.stack([flip * cosine, -sine, flip * sine, cosine], dim=1).view(-1, 2, 2)
        grid = F.affine_grid(
            torch.cat([turn, shift[..., None]], dim=2), list(pixels.shape), align_corners=False
        )
        return F.grid_sample(pixels, grid, padding_mode="border", align_corners=False)

    def _factor(self, count: int, spread: float) -> Tensor:
        return 1 + self._within(count, spread)[:, None, None, None]

    def _within(self, count: int, limit: float) -> Tensor:
        """Uniform between -limit and limit, [count]."""
        return (2 * torch.rand(count, generator=self.generator) - 1) * limit
