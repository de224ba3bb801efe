"""Usual ways to normalise images, by name."""

Preset = tuple[tuple[float, ...], tuple[float, ...], str]

# Mean and std of red, green and blue on the 0..1 scale; the order of the network's channels.
PRESETS: dict[str, Preset] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "RGB"),
    "half": ((0.5,), (0.5,), "RGB"),  # -1 to 1
    "none": ((0.0,), (1.0,), "RGB"),  # 0 to 1
    "raw": ((0.0,), (1 / 255,), "RGB"),  # 0 to 255
    "caffe": ((123.68 / 255, 116.779 / 255, 103.939 / 255), (1 / 255,), "BGR"),
}
