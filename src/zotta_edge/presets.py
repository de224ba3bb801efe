"""Usual ways to normalise images, by name."""

from dataclasses import replace

from zotta_edge.format import Order, Preprocessing

Preset = tuple[tuple[float, ...], tuple[float, ...], str]

# Mean and std of red, green and blue on the 0..1 scale; the order of the network's channels.
PRESETS: dict[str, Preset] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "RGB"),
    "half": ((0.5,), (0.5,), "RGB"),  # -1 to 1
    "none": ((0.0,), (1.0,), "RGB"),  # 0 to 1
    "raw": ((0.0,), (1 / 255,), "RGB"),  # 0 to 255
    "caffe": ((123.68 / 255, 116.779 / 255, 103.939 / 255), (1 / 255,), "BGR"),
}


def usual(p: Preprocessing) -> dict[str, Preprocessing]:
    """The preprocessings to try for a network of `p.channels` channels, otherwise as `p`.

    >>> list(usual(Preprocessing(32, 32, (0.5,), (0.5,))))
    ['half', 'none', 'raw']
    """
    if p.channels == 1:
        return {name: as_preset(p, name) for name in ("half", "none", "raw")}
    ways = {}
    for name, (*_, own) in PRESETS.items():
        for order in ("RGB", "BGR"):
            ways[name if order == own else f"{name} {order}"] = as_preset(p, name, order)
    return ways


def as_preset(p: Preprocessing, name: str, order: str | None = None) -> Preprocessing:
    """`p` with the mean and std of a preset, in the order of the network's channels."""
    mean, std, own = PRESETS[name]
    return normalised(p, mean, std, order or own)


def normalised(
    p: Preprocessing, mean: tuple[float, ...], std: tuple[float, ...], order: str
) -> Preprocessing:
    """`p` with this mean and std of red, green and blue; one number stands for all channels."""
    step = 1 if order == "RGB" else -1
    mean, std = ((v * p.channels if len(v) == 1 else v)[::step] for v in (mean, std))
    kind: Order = "RGB" if order == "RGB" else "BGR"
    return replace(p, mean=mean, std=std, order=kind, assumed=False)
