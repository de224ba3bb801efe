"""Decoding: what cameras and people really hand over, and what must be refused."""

import struct
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from zotta_edge import ZottaError
from zotta_edge.runtime.io import images
from zotta_edge.runtime.io.images import Image, decode, list_images, read_image
from zotta_edge.runtime.io.stills import still


@pytest.fixture
def picture() -> Image:
    """A smooth RGB image whose four corners differ, so that a turned or swapped one is seen."""
    rows, columns = np.mgrid[0:48, 0:64]
    return np.stack([rows * 5, columns * 3, 255 - rows * 2], axis=-1).astype(np.uint8)


def encode(image: np.ndarray, extension: str) -> bytes:
    bgr = image[..., [2, 1, 0, *range(3, image.shape[2])]] if image.ndim == 3 else image
    return bytes(cv2.imencode(extension, np.ascontiguousarray(bgr))[1])


def size(data: bytes) -> tuple[int, int]:
    found = still(data, "it")
    return found.width, found.height


def with_orientation(jpeg: bytes, orientation: int) -> bytes:
    entry = struct.pack("<HHIHH", 0x0112, 3, 1, orientation, 0)
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 1) + entry + bytes(4)
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + jpeg[2:]


@pytest.mark.parametrize("extension", [".png", ".bmp", ".ppm"])
def test_lossless_formats_come_back_as_rgb(picture: Image, extension: str) -> None:
    assert np.array_equal(decode(encode(picture, extension)), picture)


@pytest.mark.parametrize(("extension", "error"), [(".jpg", 2), (".webp", 2)])
def test_lossy_formats_come_back_nearly(picture: Image, extension: str, error: float) -> None:
    decoded = decode(encode(picture, extension))
    assert decoded.shape == picture.shape
    assert np.abs(decoded.astype(int) - picture).mean() < error


def test_grey_gets_three_equal_channels(picture: Image) -> None:
    decoded = decode(encode(picture[..., 0], ".png"))
    assert np.array_equal(decoded, np.repeat(picture[..., :1], 3, axis=2))


def test_alpha_is_dropped_not_composited(picture: Image) -> None:
    transparent = np.dstack([picture, np.zeros(picture.shape[:2], np.uint8)])
    assert np.array_equal(decode(encode(transparent, ".png")), picture)


def test_sixteen_bits_keep_the_high_byte(picture: Image) -> None:
    deep = picture.astype(np.uint16) << 8 | 0x80
    assert np.array_equal(decode(encode(deep, ".png")), picture)


def test_exif_orientation_is_applied(picture: Image) -> None:
    jpeg = encode(picture, ".jpg")
    upright = decode(jpeg)
    turned = decode(with_orientation(jpeg, 6))  # the camera was held upright
    assert np.array_equal(turned, np.rot90(upright, -1))


@pytest.mark.parametrize("extension", [".jpg", ".png", ".webp", ".bmp", ".ppm"])
@pytest.mark.parametrize("kept", [0.0, 0.01, 0.5, 0.9])
def test_a_cut_off_file_is_an_error_that_names_it(
    picture: Image, extension: str, kept: float, tmp_path: Path
) -> None:
    data = encode(picture, extension)
    path = tmp_path / f"broken{extension}"
    path.write_bytes(data[: int(kept * len(data))])
    with pytest.raises(ZottaError, match=f"broken\\{extension}"):
        read_image(path)


def test_no_bytes_of_any_kind_get_past_as_something_else() -> None:
    rng = np.random.default_rng(0)
    starts = [b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"RIFF1234WEBPVP8 ", b"II*\0", b"BM"]
    for start in [*starts, b"GIF89a", b"P6\n", b"P5 90 90 255\n", b"MM\0*"]:
        for length in (0, 3, 40, 400):
            with pytest.raises(ZottaError):
                decode(start + rng.bytes(length))


@pytest.mark.parametrize("extension", [".jpg", ".png", ".webp", ".bmp", ".ppm"])
def test_the_size_is_read_from_the_header(picture: Image, extension: str) -> None:
    assert size(encode(picture, extension)) == (64, 48)


def test_an_extended_webp_has_the_size_of_its_pixels(picture: Image) -> None:
    bgra = np.dstack([picture, picture[..., 0]])
    transparent = bytes(cv2.imencode(".webp", bgra, [cv2.IMWRITE_WEBP_QUALITY, 80])[1])
    assert transparent[12:16] == b"VP8X"
    assert size(transparent) == (64, 48)


def test_too_many_pixels_are_refused_before_decoding(picture: Image) -> None:
    bomb = bytearray(encode(picture, ".png"))
    bomb[16:24] = struct.pack(">II", 30_000, 30_000)
    with pytest.raises(ZottaError, match="30000 x 30000"):
        decode(bytes(bomb))


@pytest.mark.parametrize("between", [b"\xff\x01", b"\xff\xd0", b"\xff\xff\xff", b"\xff\x00\x12"])
def test_jpeg_markers_without_a_length(picture: Image, between: bytes) -> None:
    jpeg = encode(picture, ".jpg")
    assert size(jpeg[:2] + between + jpeg[2:]) == (64, 48)


def test_headers_are_read_as_opencv_does(picture: Image) -> None:
    bitmap = bytearray(encode(picture, ".bmp"))
    bitmap[14:18] = struct.pack("<I", 0x10C)  # not 12
    assert size(bytes(bitmap)) == (64, 48)
    assert size(b"P6 #\r64 48 \n8 8 255\n") == (64, 48)


def test_opencv_knows_the_limit_itself() -> None:
    """In a process of its own: OpenCV is told before it is imported, or never."""
    code = (
        "import zotta_edge.runtime.io.images, cv2, numpy as np\n"
        "try: cv2.imdecode(np.frombuffer(b'P5 9000 9000 255 ', np.uint8), 1)\n"
        "except cv2.error as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "MAX_IMAGE_PIXELS" in done.stdout


def test_too_many_bytes_are_refused_before_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "MAX_BYTES", 2**20)
    path = tmp_path / "huge.jpg"
    path.write_bytes(bytes(2**20 + 1))
    with pytest.raises(ZottaError, match="larger than 1 MB"):
        read_image(path)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ZottaError, match="nowhere.png"):
        read_image("nowhere.png")


def test_folders_are_listed_in_natural_order(picture: Image, tmp_path: Path) -> None:
    names = ["a/img10.jpg", "a/img2.JPG", "b/0.png", "img1.webp", "a/notes.txt", "a/._img2.jpg"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a" / "circle").symlink_to(tmp_path)
    listed = [str(path.relative_to(tmp_path)) for path in list_images(tmp_path)]
    assert listed == ["a/img2.JPG", "a/img10.jpg", "b/0.png", "img1.webp"]
    assert [path.name for path in list_images(tmp_path, recursive=False)] == ["img1.webp"]
    assert [path.name for path in list_images(f"{tmp_path}/a/*.jpg")] == ["img10.jpg"]
    assert [path.name for path in list_images(tmp_path / "b" / "0.png")] == ["0.png"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("**/*.png", ["0.png", "[a]/1.png", "b/c/2.png"]),
        ("**", ["0.png", "[a]/1.png", "b/c/2.png"]),
        ("**/c/**/*.png", ["b/c/2.png"]),
        ("*/**/*.png", ["[a]/1.png", "b/c/2.png"]),
        ("b/**/2.*", ["b/c/2.png"]),
    ],
)
def test_stars_do_not_follow_links_in_circles(
    tmp_path: Path, pattern: str, found: list[str]
) -> None:
    """Of two that lead back up, glob makes 2^40 paths."""
    for name in ("0.png", "[a]/1.png", "b/c/2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).touch()
    for link in ("up", "also"):
        (tmp_path / "b" / link).symlink_to(tmp_path / "b")
    listed = [
        path.relative_to(tmp_path).as_posix() for path in list_images(f"{tmp_path}/{pattern}")
    ]
    assert listed == found


def test_nothing_to_list_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZottaError, match="no images in"):
        list_images(tmp_path)
    with pytest.raises(ZottaError, match="does not exist"):
        list_images(tmp_path / "absent")
    with pytest.raises(ZottaError, match="no images in"):
        list_images(f"{tmp_path}/*.png")


def test_real_photographs(shared_data: Path) -> None:
    paths = list_images(shared_data / "imagenet-val-2000")
    assert len(paths) >= 128
    assert paths[0].name == "0000.jpg"
    assert read_image(paths[0]).shape == (224, 224, 3)


def test_opencv_4_is_silenced_by_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[int] = []

    def set_level(level: int) -> int:
        levels.append(level)
        return 3

    monkeypatch.setattr(cv2, "setLogLevel", set_level, raising=False)
    decode(b"P6 1 1 255 abc")
    assert levels == [0, 3]
