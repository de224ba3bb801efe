"""Where a network's channel moments are aligned, and what they are on the source domain."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from zotta_edge.format.packing import Floats, decode, encode
from zotta_edge.tensor_layouts import LAYOUTS, Kind

_SITES, _VALUES = "zotta.moments", "zotta.moments.values"
_LEAST_VARIANCE = 1e-3  # of a site's mean variance: a dead channel has no spread to align


@dataclass(frozen=True)
class Site:
    """A tensor before an activation, whose channels are aligned."""

    tensor: str  # in the graph
    kind: Kind
    channels: int
    positions: int  # pixels or tokens of one image
    norm: str = ""  # the exposed norm whose affine takes the alignment; "": one is inserted

    @property
    def affine_shape(self) -> tuple[int, ...]:
        return LAYOUTS[self.kind].affine_shape(self.channels)


@dataclass(frozen=True)
class SourceMoments:
    """Mean and variance of every site's channels, and how far single source images are off."""

    sites: tuple[Site, ...]
    mean: Floats  # [D], the sites' channels side by side
    variance: Floats  # [D]
    energy: Floats  # [site], mean squared distance of one image: see `runtime/methods/moments`
    first_mean: Floats  # [2 C] of the first site's instance moments over the images
    first_std: Floats  # [2 C]
    samples: int
    gains: Mapping[str, float]  # method -> what it regained of degraded source images' answers
    share: float = 0.5  # of a drift that each site takes back: later ones see the rest

    @property
    def ends(self) -> NDArray[np.intp]:
        return np.cumsum([site.channels for site in self.sites])

    def distances(self, moments: NDArray[np.floating]) -> NDArray[np.float64]:
        """e of every site, [..., site], of first and second moments, [..., 2 D].

        e = |(m - m_S) / sigma_S|^2 + |log(v / v_S)|^2
        """
        sizes = [site.channels for site in self.sites for _ in range(2)]
        parts = np.split(moments.astype(np.float64), np.cumsum(sizes)[:-1], axis=-1)
        means, variances = (np.split(x, self.ends[:-1]) for x in (self.mean, self.variance))
        found = []
        for m_s, v_s, m, square in zip(means, variances, parts[::2], parts[1::2], strict=True):
            unit = floored(v_s)
            d = np.log(np.maximum(square - np.square(m), least_variance(unit)) / unit)
            found.append((np.square(m - m_s) / unit + np.square(d)).sum(axis=-1))
        return np.stack(found, axis=-1)


def least_variance(variance: Floats) -> float:
    return float(_LEAST_VARIANCE * variance.mean()) or 1e-12


def floored(variance: Floats) -> Floats:
    """A channel that hardly varies on the source counts as one that varies a little."""
    floor: Floats = np.maximum(variance, least_variance(variance))
    return floor


def moments_to_metadata(moments: SourceMoments) -> dict[str, str]:
    plain = {
        "sites": [asdict(site) for site in moments.sites],
        "samples": moments.samples,
        "gains": dict(moments.gains),
        "share": moments.share,
    }
    values = (moments.mean, moments.variance, moments.energy)
    flat = np.concatenate([*values, moments.first_mean, moments.first_std])
    return {
        _SITES: json.dumps(plain, separators=(",", ":")),
        _VALUES: encode(flat),
    }


def moments_from_metadata(metadata: Mapping[str, str]) -> SourceMoments | None:
    """The reverse of `moments_to_metadata`; None where nothing was measured."""
    if _SITES not in metadata:
        return None
    plain = json.loads(metadata[_SITES])
    sites = tuple(Site(**site) for site in plain["sites"])
    if not sites or any(site.kind not in LAYOUTS for site in sites):
        raise ValueError("moments without sites, or of an unknown layout")
    flat = decode(metadata[_VALUES])
    channels, first = sum(site.channels for site in sites), 2 * sites[0].channels
    sizes = [channels, channels, len(sites), first, first]
    if len(flat) != sum(sizes) or plain["samples"] < 1:
        raise ValueError(f"{len(flat)} values of moments for {channels} channels")
    mean, variance, energy, first_mean, first_std = np.split(flat, np.cumsum(sizes)[:-1])
    share = float(plain.get("share", SourceMoments.share))
    if not 0 < share <= 1:
        raise ValueError(f"a share of {share} that each site takes back")
    values = (mean, variance, energy, first_mean, first_std)
    return SourceMoments(sites, *values, plain["samples"], plain["gains"], share)
