"""The purity curve, as in the paper's figure."""

from importlib.util import find_spec
from pathlib import Path

from zotta_edge.errors import ZottaError
from zotta_edge.files import replacing
from zotta_edge.format import Calibration, ModelInfo

FORMATS = (".png", ".pdf", ".svg")
_CHOSEN, _OTHER, _TAU = "#1f6fb4", "#a8b0ba", "#b3382c"


def require_matplotlib(path: Path) -> None:
    """Fail before the work, not after it."""
    if path.suffix not in FORMATS:
        raise ZottaError(f"cannot draw {path}: expected a name that ends in {', '.join(FORMATS)}")
    if find_spec("matplotlib") is None:
        raise ZottaError("drawing needs matplotlib: pip install 'zotta-edge[bench]'")


def plot_purity(info: ModelInfo, calibration: Calibration, path: Path) -> None:
    """Purity by layer, the threshold, and the layers chosen."""
    require_matplotlib(path)
    from matplotlib.figure import Figure

    names = [layer.name for layer in info.layers]
    colours = [_CHOSEN if i in calibration.chosen else _OTHER for i in range(len(names))]
    figure = Figure(figsize=(max(5.0, 0.5 * len(names) + 1.5), 3.6), layout="constrained")
    axes = figure.subplots()
    axes.plot(calibration.purity, color=_OTHER, zorder=1)
    axes.scatter(range(len(names)), calibration.purity, c=colours, s=48, zorder=2)
    axes.axhline(calibration.tau, color=_TAU, linewidth=1, linestyle="--")
    axes.annotate(
        f"tau = {calibration.tau:g}", (1, calibration.tau), (-4, 3), ("axes fraction", "data"),
        "offset points", color=_TAU, ha="right",
    )  # fmt: skip
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axes.set_ylim(0.48, 1.02)
    axes.set_ylabel("clustering purity")
    n = calibration.samples
    axes.set_title(f"{info.recipe.precision}, {n} + {n} images; blue: chosen", fontsize=10)
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:], dpi=150)
