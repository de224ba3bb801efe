"""The source's channel moments: where they can be aligned, and what they are."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from zotta_edge.calibration.features import in_batches
from zotta_edge.errors import ZottaError
from zotta_edge.format import IMAGE, Floats, ModelInfo
from zotta_edge.format.moments import Site, SourceMoments
from zotta_edge.graph.index import Graph
from zotta_edge.graph.shapes import ShapeProbe
from zotta_edge.graph.subgraph import parse
from zotta_edge.progress import tracked
from zotta_edge.runtime.engine.model_info import image_axes
from zotta_edge.runtime.methods.moments.graph import INSTANCE, add_moments
from zotta_edge.runtime.methods.moments.sites import find_sites
from zotta_edge.runtime.watch.statistics import Doubles
from zotta_edge.sessions import open_session


def source_moments(
    path: Path, info: ModelInfo, images: Floats, threads: int | None = None
) -> SourceMoments:
    """Measure every site on source images, with the file's own passes.

    Raises
    ------
    ZottaError
        If the network has no tensor to align.
    """
    model = parse(path.read_bytes(), str(path))
    sites = _sites(model, info)
    if not sites:
        raise ZottaError(f"{path} has neither norms nor convolutions whose moments can be aligned")
    rows = _instances(model, info, _blank(sites), images, threads)
    first, second = _by_site(rows, sites)
    mean = np.concatenate([m.mean(axis=0) for m in first])
    squares = np.concatenate([q.mean(axis=0) for q in second])
    width = 2 * sites[0].channels
    source = SourceMoments(
        sites=sites,
        mean=mean.astype(np.float32),
        variance=np.maximum(squares - np.square(mean), 0).astype(np.float32),
        energy=np.zeros(len(sites), np.float32),
        first_mean=rows[:, :width].mean(axis=0).astype(np.float32),
        first_std=rows[:, :width].std(axis=0).astype(np.float32),
        samples=len(images),
        gains={},
    )
    return replace(source, energy=source.distances(rows).mean(axis=0).astype(np.float32))


def _sites(model: onnx.ModelProto, info: ModelInfo) -> tuple[Site, ...]:
    graph = Graph(model)
    names = [name for node in graph.nodes for name in node.output if name]
    shapes = ShapeProbe(model, names).run(IMAGE, image_axes(info.preprocessing), 1)
    return find_sites(graph, info, shapes)


def _blank(sites: tuple[Site, ...]) -> SourceMoments:
    """Moments that nothing is aligned to: the graph is asked for the instances' alone."""
    width = sum(site.channels for site in sites)
    zeros, ones = np.zeros(width, np.float32), np.ones(width, np.float32)
    first = np.zeros(2 * sites[0].channels, np.float32)
    energy = np.ones(len(sites), np.float32)
    return SourceMoments(sites, zeros, ones, energy, first, first, 1, {})


def _instances(
    model: onnx.ModelProto,
    info: ModelInfo,
    blank: SourceMoments,
    images: Floats,
    threads: int | None,
) -> Floats:
    """Every image's own moments, [image, 2 D]."""
    add_moments(model, blank, info)
    session = open_session(model.SerializeToString(), threads=threads)
    batches = tracked(in_batches(images), "measuring moments")
    rows = np.concatenate([session.run([INSTANCE], {IMAGE: batch})[0] for batch in batches])
    if not np.isfinite(rows).all():
        raise ZottaError("the model gives channel moments that are not finite: export it again")
    return rows


def _by_site(rows: Floats, sites: tuple[Site, ...]) -> tuple[list[Doubles], list[Doubles]]:
    """First and second moments of each site, [image, C]."""
    ends = np.cumsum([site.channels for site in sites for _ in range(2)])
    parts = np.split(rows.astype(np.float64), ends[:-1], axis=1)
    return parts[::2], parts[1::2]
