"""The corruptions: their contract, their arithmetic, and an independent implementation of them."""

import colorsys
import importlib.util
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from zotta_edge import ZottaError
from zotta_edge.__main__ import main
from zotta_edge.corruptions import (
    ALL,
    CORRUPTIONS,
    EXTRA,
    blur,
    corrupt,
    corrupt_batch,
    corrupt_stream,
    digital,
    frost,
    weather,
)
from zotta_edge.corruptions.constants import CONSTANTS
from zotta_edge.runtime.io.images import list_images, read_image

Image = NDArray[np.uint8]
DETERMINISTIC = {
    "defocus_blur",
    "zoom_blur",
    "gaussian_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
    "saturate",
}


def package(name: str) -> Path:
    """Where a package lies, without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        pytest.skip(f"needs {name}")
    return Path(spec.origin).parent


@pytest.fixture(scope="module")
def photographs() -> list[Image]:
    """Two photographs that come with scikit-learn, 224 x 224."""
    folder = package("sklearn") / "datasets" / "images"
    decoded = [cv2.imread(str(folder / name)) for name in ("china.jpg", "flower.jpg")]
    cropped = [cv2.resize(image[:, 100:527], (224, 224))[..., ::-1] for image in decoded]
    return [np.ascontiguousarray(image) for image in cropped]


def flat(level: int, *size: int) -> Image:
    return np.full((*size, 3), level, np.uint8)


def test_the_fifteen_and_the_four() -> None:
    assert len(CORRUPTIONS) == 15
    assert EXTRA == ("speckle_noise", "gaussian_blur", "spatter", "saturate")
    for scale in CONSTANTS.values():
        assert set(scale) == set(ALL)
        assert all(len(severities) == 5 for severities in scale.values())


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "shape", [(32, 32, 3), (32, 32), (37, 53, 3), (53, 37, 1), (1, 1, 3), (2, 90, 3), (300, 70)]
)
def test_any_size_and_grey(name: str, shape: tuple[int, ...]) -> None:
    image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    for severity in (1, 5):
        for scale in ("imagenet", "cifar"):
            corrupted = corrupt(image, name, severity, scale=scale)
            assert corrupted.shape == shape
            assert corrupted.dtype == np.uint8


@pytest.mark.parametrize("name", ALL)
def test_the_seed_decides(name: str, photographs: list[Image]) -> None:
    image = photographs[0].copy()
    first = corrupt(image, name, 4, seed=7)
    assert np.array_equal(image, photographs[0])  # the input is left alone
    assert np.array_equal(first, corrupt(image, name, 4, seed=7))
    assert np.array_equal(first, corrupt(image, name, 4, seed=8)) == (name in DETERMINISTIC)


@pytest.mark.parametrize("name", sorted(set(ALL) - {"saturate", "elastic_transform", "spatter"}))
@pytest.mark.parametrize("scale", ["imagenet", "cifar"])
def test_severity_orders_the_damage(name: str, scale: Any, photographs: list[Image]) -> None:
    """Not saturate, elastic and spatter, which change in kind between the severities."""
    images = photographs
    if scale == "cifar":
        images = [cv2.resize(image, (32, 32), interpolation=cv2.INTER_AREA) for image in images]
    damage = [
        np.mean(
            [
                np.abs(corrupt(image, name, severity, seed) - image.astype(float)).mean()
                for image in images
                for seed in range(3)
            ]
        )
        for severity in range(1, 6)
    ]
    rises = np.diff(damage)
    assert damage[4] > 1.15 * damage[0]
    assert (rises > -0.15 * damage[4]).all()


def test_small_images_get_cifar_s_constants(photographs: list[Image]) -> None:
    small = cv2.resize(photographs[0], (64, 64))
    assert np.array_equal(corrupt(small, "contrast"), corrupt(small, "contrast", scale="cifar"))
    large = cv2.resize(photographs[0], (65, 40))
    assert np.array_equal(corrupt(large, "contrast"), corrupt(large, "contrast", scale="imagenet"))


def test_workers_do_not_change_the_result(photographs: list[Image]) -> None:
    images = np.stack([cv2.resize(photographs[i % 2], (80, 80)) for i in range(20)])
    for name in ("gaussian_noise", "glass_blur", "frost", "snow"):
        alone = corrupt_batch(images, name, 3, seed=5, workers=1)
        assert isinstance(alone, np.ndarray)
        for workers in (2, 7):
            assert np.array_equal(alone, corrupt_batch(images, name, 3, 5, workers))
        assert np.array_equal(alone[9], corrupt(images[9], name, 3, seed=[5, 9]))
    listed = corrupt_batch(list(images), "fog", 3, seed=5)
    streamed = list(corrupt_stream(iter(images), "fog", 3, seed=5))
    assert isinstance(listed, list)
    assert np.array_equal(np.stack(listed), np.stack(streamed))


@pytest.mark.parametrize(
    ("image", "name", "severity", "message"),
    [
        (flat(0, 8, 8), "rain", 3, "unknown corruption 'rain': one of gaussian_noise"),
        (flat(0, 8, 8), "fog", 6, "severity 6"),
        (flat(0, 8, 8), "fog", 0, "severity 0"),
        (flat(0, 8, 8).astype(np.float32), "fog", 1, "float32"),
        (np.zeros((8, 8, 4), np.uint8), "fog", 1, r"\[8, 8, 4\]"),
        (np.zeros((0, 8, 3), np.uint8), "fog", 1, r"\[0, 8, 3\]"),
    ],
)
def test_what_cannot_be_corrupted_is_refused(
    image: Any, name: str, severity: int, message: str
) -> None:
    with pytest.raises(ZottaError, match=message):
        corrupt(image, name, severity)


@pytest.mark.parametrize("scale", ["imagenet", "cifar"])
@pytest.mark.parametrize("severity", [1, 3, 5])
def test_noise_has_the_published_strength(scale: Any, severity: int) -> None:
    """Moments on flat grey, far enough from 0 and 1 for little to be clipped."""

    def noisy(name: str, level: int) -> NDArray[np.float64]:
        return corrupt(flat(level, 250, 250), name, severity, scale=scale) / 255.0

    (sigma,) = CONSTANTS[scale]["gaussian_noise"][severity - 1]
    inside = np.random.default_rng(0).normal(128 / 255, sigma, 200_000).clip(0, 1)
    assert noisy("gaussian_noise", 128).std() == pytest.approx(inside.std(), rel=0.02)

    (photons,) = CONSTANTS[scale]["shot_noise"][severity - 1]
    counts = (np.random.default_rng(0).poisson(photons * 77 / 255, 200_000) / photons).clip(0, 1)
    assert noisy("shot_noise", 77).mean() == pytest.approx(counts.mean(), abs=0.004)
    assert noisy("shot_noise", 77).std() == pytest.approx(counts.std(), rel=0.02)

    (amount,) = CONSTANTS[scale]["impulse_noise"][severity - 1]
    impulses = noisy("impulse_noise", 128)
    assert (impulses == 0).mean() == pytest.approx(amount / 2, rel=0.1)
    assert (impulses == 1).mean() == pytest.approx(amount / 2, rel=0.1)

    (sigma,) = CONSTANTS[scale]["speckle_noise"][severity - 1]
    assert noisy("speckle_noise", 64).std() == pytest.approx(
        np.clip(64 / 255 * (1 + np.random.default_rng(0).normal(0, sigma, 200_000)), 0, 1).std(),
        rel=0.03,
    )


def test_noise_is_independent_between_channels_and_neighbours() -> None:
    for name in ("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise"):
        noise = corrupt(flat(128, 224, 224), name, 3) - 128.0
        for a, b in (
            (noise[..., 0], noise[..., 1]),
            (noise[1:], noise[:-1]),
            (noise[:, 1:], noise[:, :-1]),
        ):
            assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.02


@pytest.mark.parametrize(
    "name", ["defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "gaussian_blur"]
)
def test_blurs_and_warps_leave_a_flat_image_flat(name: str) -> None:
    for severity in range(1, 6):
        for shape in ((100, 80), (32, 32)):
            assert np.ptp(corrupt(flat(99, *shape), name, severity)) <= 1


def test_a_defocused_point_is_a_disk() -> None:
    point = np.zeros((61, 61, 1), np.float32)
    point[30, 30] = 1
    spread = blur.defocus_blur(point, np.random.default_rng(0), 10, 0.5)[..., 0]
    rows, columns = np.mgrid[-30:31, -30:31]
    distance = np.hypot(rows, columns)
    assert spread.sum() == pytest.approx(1, abs=0.02)  # the published kernel gains a little
    assert np.allclose(spread[distance < 8], spread[30, 30], rtol=1e-4)
    assert spread[30, 30] == pytest.approx(1 / (np.pi * 10**2), rel=0.03)
    assert np.abs(spread[distance > 12.5]).max() < 1e-8


@pytest.mark.parametrize("degrees", [-135.0, -90.0, -45.0, 0.0, 20.0, 45.0])
def test_a_moving_point_draws_half_a_gaussian(degrees: float) -> None:
    point = np.zeros((121, 121, 1), np.float32)
    point[60, 60] = 1
    trace = blur.smear(point, 20, 15, degrees)[..., 0]
    assert trace.sum() == pytest.approx(1, abs=1e-5)
    angle = np.deg2rad(degrees)
    rows, columns = np.mgrid[-60:61, -60:61]
    along = -(rows * np.sin(angle) + columns * np.cos(angle))
    across = rows * np.cos(angle) - columns * np.sin(angle)
    weights = np.exp(-(np.arange(41) ** 2) / (2 * 15**2))
    mean = (weights * np.arange(41)).sum() / weights.sum()
    assert (trace * along).sum() == pytest.approx(mean, abs=0.3)
    assert np.abs(across[trace > 1e-6]).max() < 0.75
    assert along[trace > 1e-6].max() == pytest.approx(40, abs=0.75)


def test_glass_moves_pixels_as_the_sequential_loop_does() -> None:
    height, width, reach = 23, 31, 3
    fast = blur._shuffle(height, width, reach, np.random.default_rng(4))
    moves = np.random.default_rng(4).integers(
        -reach, reach, (2, height - 2 * reach, width - 2 * reach)
    )
    slow = np.arange(height * width).reshape(height, width)
    for row in range(height - reach, reach, -1):
        for column in range(width - reach, reach, -1):
            down, right = moves[:, row - reach - 1, column - reach - 1]
            slow[row, column] = slow[row + down, column + right]
    assert np.array_equal(fast, slow.ravel())


def test_zoom_is_the_mean_of_enlargements(photographs: list[Image]) -> None:
    x = photographs[0].astype(np.float32) / 255
    factors = np.arange(1, 1.31, 0.03)
    assert np.allclose(blur.enlarged(x, 1), x, atol=1e-5)
    double = blur.enlarged(x, 2)
    assert np.allclose(double[0, 0], x[56, 56], atol=1e-5)  # corner on corner
    assert np.allclose(double[-1, -1], x[167, 167], atol=1e-5)
    expected = (x + sum(blur.enlarged(x, factor) for factor in factors)) / (len(factors) + 1)
    assert np.abs(corrupt(photographs[0], "zoom_blur", 5) - expected * 255).max() <= 1


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_brightness_and_saturate_work_in_hsv(severity: int, photographs: list[Image]) -> None:
    image = photographs[1][::16, ::16].copy()
    image[0, :4] = [[0, 0, 0], [255, 255, 255], [80, 80, 80], [255, 0, 10]]
    (amount,) = CONSTANTS["imagenet"]["brightness"][severity - 1]
    factor, offset = CONSTANTS["imagenet"]["saturate"][severity - 1]
    brighter = corrupt(image, "brightness", severity, scale="imagenet")
    saturated = corrupt(image, "saturate", severity, scale="imagenet")
    for place in np.ndindex(image.shape[:2]):
        h, s, v = colorsys.rgb_to_hsv(*(image[place] / 255))
        expected = np.array(colorsys.hsv_to_rgb(h, s, min(v + amount, 1))) * 255
        assert np.abs(brighter[place] - expected).max() <= 1.01
        expected = np.array(colorsys.hsv_to_rgb(h, min(s * factor + offset, 1), v)) * 255
        assert np.abs(saturated[place] - expected).max() <= 1.01


def test_contrast_pulls_towards_the_mean(photographs: list[Image]) -> None:
    image = photographs[0]
    mean = image.mean(axis=(0, 1))
    expected = (image - mean) * 0.05 + mean
    assert np.abs(corrupt(image, "contrast", 5) - expected).max() <= 1.01


def test_pixelate_repeats_block_means(photographs: list[Image]) -> None:
    image = photographs[0]
    blocks = corrupt(image, "pixelate", 5).reshape(56, 4, 56, 4, 3)
    assert np.ptp(blocks, axis=(1, 3)).max() == 0
    means = image.reshape(56, 4, 56, 4, 3).mean(axis=(1, 3))
    assert np.abs(blocks[:, 0, :, 0] - means).max() <= 0.51


def test_jpeg_is_opencv_s_at_that_quality(photographs: list[Image]) -> None:
    _, encoded = cv2.imencode(".jpg", photographs[0][..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 7])
    assert np.array_equal(
        corrupt(photographs[0], "jpeg_compression", 5), cv2.imdecode(encoded, 1)[..., ::-1]
    )


def test_elastic_displaces_by_the_published_lengths() -> None:
    """Warp an image of coordinates: the output says where each pixel came from."""
    side = 224
    columns, rows = np.meshgrid(np.arange(side), np.arange(side))
    coordinates = np.stack([columns, rows, rows * 0], axis=-1).astype(np.float32)
    amplitude, smoothness, _ = CONSTANTS["imagenet"]["elastic_transform"][4]
    found = [
        digital.elastic_transform(
            coordinates, np.random.default_rng(seed), amplitude, smoothness, 0
        )
        for seed in range(4)
    ]
    moved = np.stack(found)[:, 40:-40, 40:-40, :2] - coordinates[40:-40, 40:-40, :2]
    sigma = smoothness * side
    # Uniform noise of variance 1/3 under a 2-d Gaussian filter keeps 1 / (4 pi sigma^2) of it.
    expected = amplitude * side * (1 / 3 / (4 * np.pi * sigma**2)) ** 0.5
    assert moved.std() == pytest.approx(expected, rel=0.08)


def test_plasma_fills_the_unit_interval_and_wraps() -> None:
    field = weather.plasma(128, 2, np.random.default_rng(0))
    assert field.min() == 0
    assert field.max() == 1
    inner = np.abs(np.diff(field, axis=0)).mean()
    assert np.abs(field[0] - field[-1]).mean() < 3 * inner
    rough = weather.plasma(128, 1.4, np.random.default_rng(0))
    assert np.abs(np.diff(rough, axis=0)).mean() > 2 * inner


def test_fog_hides_and_keeps_the_brightest(photographs: list[Image]) -> None:
    for severity, (thickness, _) in enumerate(CONSTANTS["imagenet"]["fog"], start=1):
        foggy = corrupt(photographs[0], "fog", severity)
        visible = 1 / (1 + thickness)  # the share of the image's own light
        fine = [np.diff(image.astype(float), axis=0).std() for image in (foggy, photographs[0])]
        assert fine[0] / fine[1] == pytest.approx(visible, rel=0.25)
        assert foggy.max() <= photographs[0].max()


def test_snow_whitens_and_falls(photographs: list[Image]) -> None:
    black = corrupt(flat(0, 224, 224), "snow", 5).astype(float)
    assert black.min() >= 0.45 * 0.5 * 255 - 2  # (1 - kept) * the whitening of black
    flakes = black[..., 0] - black[..., 0].min()
    assert np.array_equal(black[..., 0], black[::-1, ::-1, 0])  # once more, upside down
    assert np.abs(np.diff(flakes, axis=0)).mean() < np.abs(np.diff(flakes, axis=1)).mean()


@pytest.mark.parametrize(("severity", "brighter"), [(1, True), (3, True), (4, False), (5, False)])
def test_spatter_is_water_then_mud(severity: int, brighter: bool) -> None:
    image = flat(120, 224, 224)
    spattered = corrupt(image, "spatter", severity).astype(int)
    touched = (spattered != image).any(axis=2)
    assert 0.02 < touched.mean() < 0.7
    assert (spattered[touched].mean() > 120) == brighter
    assert (spattered[~touched] == 120).all()


def test_panes_are_as_bright_and_rough_as_they_say() -> None:
    for number, pane in enumerate(frost.PANES):
        drawn = frost.texture(number, 1, 224) * 255
        assert np.abs(drawn.mean(axis=(0, 1)) - pane.colour).max() < 6
        assert drawn.mean(axis=2).std() == pytest.approx(pane.roughness, rel=0.15)
    assert frost.texture(0, 1, 900).shape == (900, 900, 3)
    assert frost.texture(0, 0.2, 32).shape == (128, 128, 3)


@pytest.fixture(scope="module")
def reference() -> Iterator[Any]:
    """The package imagecorruptions, an independent implementation; not a dependency of ours."""
    root, *_ = (package(name) for name in ("imagecorruptions", "skimage", "scipy"))
    with pytest.MonkeyPatch.context() as patched:
        # Three names it relies on have left setuptools, NumPy and scikit-image since.
        resources = types.ModuleType("pkg_resources")
        resources.resource_filename = lambda _, name: str(root / name)  # type: ignore[attr-defined]
        patched.setitem(sys.modules, "pkg_resources", resources)
        patched.setattr(np, "float_", np.float64, raising=False)
        module = importlib.import_module("imagecorruptions.corruptions")
        gaussian = importlib.import_module("skimage.filters").gaussian
        patched.setattr(
            module,
            "gaussian",
            lambda x, sigma, multichannel=False, **rest: gaussian(
                x, sigma=sigma, channel_axis=-1 if multichannel else None, **rest
            ),
        )
        yield importlib.import_module("imagecorruptions").corrupt


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("severity", [1, 3, 5])
@pytest.mark.parametrize("name", sorted(DETERMINISTIC))
def test_without_chance_both_implementations_agree(
    name: str, severity: int, reference: Any, photographs: list[Image]
) -> None:
    for image in photographs:
        ours = corrupt(image, name, severity).astype(float)
        theirs = reference(image, corruption_name=name, severity=severity).astype(float)
        difference = np.abs(ours - theirs)
        # Fractional pixels: we weigh them, PIL takes them or leaves them.
        allowed = 4 if name == "pixelate" and severity < 5 else 0.6
        assert difference.mean() < allowed
        assert np.corrcoef(ours.ravel(), theirs.ravel())[0, 1] > 0.995


# What may differ in the mean level and its spread over the image, in grey levels: little for noise,
# more where one draw of angle, haze or pane colours the whole image. Frost's panes are our own.
_TOLERANCE = {"fog": 14.0, "frost": 22.0, "snow": 6.0, "motion_blur": 4.0, "spatter": 4.0}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("severity", [1, 3, 5])
@pytest.mark.parametrize("name", sorted(set(ALL) - DETERMINISTIC - {"elastic_transform"}))
def test_with_chance_both_implementations_agree_in_distribution(
    name: str, severity: int, reference: Any, photographs: list[Image]
) -> None:
    image = photographs[0]
    if name == "glass_blur":
        image = np.ascontiguousarray(image[50:130, 50:130])  # theirs takes seconds
    seeds = range(1 if name == "glass_blur" else 8)
    ours = np.stack([corrupt(image, name, severity, seed) for seed in seeds]).astype(float)
    np.random.seed(0)
    theirs = np.stack(
        [reference(image, corruption_name=name, severity=severity) for _ in seeds]
    ).astype(float)
    tolerance = _TOLERANCE.get(name, 1.5)
    for a, b in zip(_statistics(ours, image), _statistics(theirs, image), strict=True):
        assert abs(a - b) < tolerance


@pytest.mark.filterwarnings("ignore")
def test_elastic_agrees_in_distribution(reference: Any, photographs: list[Image]) -> None:
    """With the constants of imagecorruptions, which are not ImageNet-C's: no affine map."""
    x = photographs[0].astype(np.float32) / 255
    warped = [
        digital.elastic_transform(x, np.random.default_rng(seed), 0.005 * 250 * 0.12, 0.01, 0)
        for seed in range(8)
    ]
    np.random.seed(0)
    theirs = np.stack(
        [
            reference(photographs[0], corruption_name="elastic_transform", severity=5)
            for _ in range(8)
        ]
    ).astype(float)
    ours = np.stack(warped) * 255
    for a, b in zip(
        _statistics(ours, photographs[0]), _statistics(theirs, photographs[0]), strict=True
    ):
        assert abs(a - b) < 1


def _statistics(corrupted: NDArray[np.float64], image: Image) -> tuple[float, ...]:
    """Mean, spread, fine detail and damage, averaged over draws; in grey levels."""
    return (
        corrupted.mean(),
        corrupted.std(axis=(1, 2, 3)).mean(),
        np.abs(np.diff(corrupted, axis=1)).mean(),
        np.abs(np.diff(corrupted, axis=2)).mean(),
        np.abs(corrupted - image).mean(),
    )


@pytest.fixture
def folder(photographs: list[Image], tmp_path: Path) -> Path:
    for index, image in enumerate(photographs * 3):
        path = tmp_path / "photos" / f"class{index % 2}" / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), image[: 64 + 8 * index, :80, ::-1])
    return tmp_path / "photos"


def test_command_corrupts_a_folder(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "noisy"
    arguments = ["corrupt", str(folder), "-o", str(out), "--corruption", "gaussian_noise"]
    assert main([*arguments, "--severity", "3", "--seed", "5", "--workers", "2"]) == 0
    assert "6 images, gaussian_noise 3, seed 5" in capsys.readouterr().out
    written = list_images(out)
    assert [path.relative_to(out) for path in written] == [
        path.relative_to(folder) for path in list_images(folder)
    ]
    originals = [read_image(path) for path in list_images(folder)]
    expected = corrupt_batch(originals, "gaussian_noise", 3, seed=5)
    for path, image in zip(written, expected, strict=True):
        assert np.array_equal(read_image(path), image)
    assert main(arguments) == 1
    assert "--force" in capsys.readouterr().err
    assert main([*arguments, "--force", "--format", "jpg"]) == 0
    assert len(list(out.rglob("*.jpg"))) == 6


def test_command_lays_several_out_as_imagenet_c(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "photos-c"
    assert main(["corrupt", str(folder), "-o", str(out), "--corruption", "extra"]) == 0
    assert {path.name for path in out.iterdir()} == set(EXTRA)
    assert all(len(list_images(out / name / "5" / "class0")) == 3 for name in EXTRA)
    assert not list(out.rglob("*.part"))


def test_command_corrupts_arrays_and_keeps_labels(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), np.uint8)
    np.savez(tmp_path / "test.npz", images=images, labels=np.arange(5))
    arguments = ["corrupt", str(tmp_path / "test.npz"), "--corruption"]
    assert main([*arguments, "fog", "-o", str(tmp_path / "foggy.npz")]) == 0
    with np.load(tmp_path / "foggy.npz") as foggy:
        assert np.array_equal(foggy["images"], corrupt_batch(images, "fog", 5))
        assert np.array_equal(foggy["labels"], np.arange(5))
    assert main([*arguments, "fog,contrast", "--severity", "2", "-o", str(tmp_path / "c")]) == 0
    assert {path.name for path in (tmp_path / "c").iterdir()} == {"fog-2.npz", "contrast-2.npz"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--corruption": "rain"}, "unknown corruption 'rain'"),
        ({"--severity": "9"}, "severity 9"),
        ({"--seed": "-1"}, "expected 0 or more"),
        ({"-o": "{}/all.npz", "--corruption": "all"}, "give a folder for 15"),
        ({"-o": "{}/sizes.npz"}, "differ in size"),
        ({"": "{}/absent"}, "does not exist"),
        ({"": "-"}, "is not known"),
    ],
)
def test_command_refuses(
    change: dict[str, str],
    message: str,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = {"": str(folder), "-o": "{}/out", "--corruption": "contrast"} | change
    words = [word.format(tmp_path) for pair in options.items() for word in pair if word]
    assert main(["corrupt", *words]) == 1
    error = capsys.readouterr().err.splitlines()
    assert message in error[-1]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["{folder}/a.png", "../photos/a.png", "."])
def test_command_writes_below_its_output_alone(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A list of paths had every photograph replaced by its corrupted copy."""
    photo = tmp_path / "photos" / "a.png"
    photo.parent.mkdir()
    cv2.imwrite(str(photo), np.full((32, 32, 3), 90, np.uint8))
    before = photo.read_bytes()
    listed = tmp_path / "lists" / "list.csv"
    listed.parent.mkdir()
    listed.write_text(name.format(folder=photo.parent) + ",1\n")
    out = tmp_path / "out"
    assert main(["corrupt", str(listed), "-o", str(out), "--corruption", "fog"]) == 1
    assert "would not lie in OUT" in capsys.readouterr().err
    assert photo.read_bytes() == before
    assert not out.exists()


def test_command_reports_what_it_skips(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "class0" / "0.png").write_bytes(b"broken")
    out = str(tmp_path / "out")
    assert main(["corrupt", str(folder), "-o", out, "--corruption", "contrast"]) == 0
    printed = capsys.readouterr()
    assert "5 images" in printed.out
    assert "skipped" in printed.err
    (folder / "class1" / "1.jpg").write_bytes((folder / "class1" / "1.png").read_bytes())
    assert main(["corrupt", str(folder), "-o", out + "2", "--corruption", "contrast"]) == 1
    assert "two images called class1/1" in capsys.readouterr().err


def test_command_lists(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["corrupt", "--list"])
    assert stopped.value.code == 0
    assert len(capsys.readouterr().out.splitlines()) == 19
