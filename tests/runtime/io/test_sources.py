"""Streams: every kind of source, the labels that go with it, and what is wrong with either."""

import io
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from zotta_edge import ZottaError
from zotta_edge.runtime.io.classes import Classes
from zotta_edge.runtime.io.sources import Sample, Source, batches, open_source


def write_image(path: Path, level: int, size: int = 8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.full((size, size, 3), level, np.uint8))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes of four images; the level of an image tells which it is."""
    for index in range(12):
        write_image(tmp_path / "images" / f"class{index % 3}" / f"{index}.png", 10 * index)
    return tmp_path / "images"


def levels(source: Source) -> list[int]:
    return [int(sample.image[0, 0, 0]) for sample in source]


def test_a_folder_of_class_folders(folder: Path) -> None:
    source = open_source(str(folder))
    assert len(source) == 12
    assert [sample.name for sample in source][:5] == [
        "class0/0.png",
        "class0/3.png",
        "class0/6.png",
        "class0/9.png",
        "class1/1.png",
    ]
    assert levels(source) == levels(source)  # may be read twice
    assert levels(source)[:5] == [0, 30, 60, 90, 10]
    assert source.labels() is None
    labels = source.labels("folders", Classes(3))
    assert labels is not None
    assert [labels[name] for name in source.names()] == [0] * 4 + [1] * 4 + [2] * 4


def test_class_folders_that_name_classes_are_labels(folder: Path) -> None:
    source = open_source(folder)
    named = source.labels(classes=Classes(4, ("other", "class2", "class0", "class1")))
    assert named is not None
    assert [named[name] for name in source.names()] == [2] * 4 + [3] * 4 + [1] * 4
    some = source.labels(classes=Classes(2, ("class2", "class0")))
    assert some is not None
    assert [some.get(name) for name in source.names()] == [1] * 4 + [None] * 4 + [0] * 4
    assert source.labels(classes=Classes(3, ("monday", "tuesday", "friday"))) is None
    with pytest.raises(ZottaError, match="'class1', which is no class of the model: did you mean"):
        source.labels("folders", Classes(2, ("class2", "class0")))


def test_a_single_folder_of_digits_may_be_anything(tmp_path: Path) -> None:
    for index in range(3):
        write_image(tmp_path / "fog" / "5" / f"{index}.png", 10 * index)
    assert open_source(tmp_path).labels(classes=Classes(10)) is None


def test_a_folder_and_its_labels(folder: Path) -> None:
    """Images that its CSV leaves out are not scored: nobody named the file."""
    (folder / "labels.csv").write_text("class0/0.png,7\nclass1/1.png,8\n")
    assert dict(open_source(folder).labels() or {}) == {"class0/0.png": 7, "class1/1.png": 8}


def test_a_csv_of_names(folder: Path) -> None:
    listed = folder.parent / "list.csv"
    listed.write_text("images/class1/1.png\nimages/class0/3.png\n")
    source = open_source(listed)
    assert levels(source) == [10, 30]
    assert source.labels() is None
    listed.write_text("file,label\nimages/class1/1.png,2\nimages/class0/3.png,-1\nabsent.png,3\n")
    told: list[str] = []
    source = open_source(listed, on_bad=told.append)
    assert levels(source) == [10, 30]
    assert "absent.png" in told[0]
    assert dict(source.labels() or {}) == {"images/class1/1.png": 2, "absent.png": 3}


def test_a_csv_of_names_with_two_labels(tmp_path: Path) -> None:
    """The last one counted, and nobody was told."""
    (tmp_path / "list.csv").write_text("a.png,1\nb.png,2\na.png,3\n")
    with pytest.raises(ZottaError, match=r"list\.csv line 3: a\.png has two labels"):
        open_source(tmp_path / "list.csv")


def test_a_glob_and_a_single_file(folder: Path) -> None:
    source = open_source(f"{folder}/*/1*.png")
    assert levels(source) == [10, 100, 110]
    assert source.names() == ["class1/1.png", "class1/10.png", "class2/11.png"]
    assert open_source(folder / "class0" / "0.png").names() == ["0.png"]


def test_unreadable_images_are_reported_and_skipped(folder: Path) -> None:
    (folder / "class0" / "3.png").write_bytes(b"not an image")
    told: list[str] = []
    assert len(levels(open_source(folder, on_bad=told.append))) == 11
    assert len(told) == 1
    assert "3.png" in told[0]
    with pytest.raises(ZottaError, match=r"3\.png"):
        levels(open_source(folder, strict=True))


def test_limits_and_batches(folder: Path) -> None:
    source = open_source(folder, limit=7)
    assert len(source) == 7
    grouped = list(batches(source, 3))
    assert [len(batch) for batch in grouped] == [3, 3, 1]
    assert [sample.name for batch in grouped for sample in batch] == source.names()
    halved = next(batches(source, 2, transform=lambda image: image[:4, :4]))
    assert halved[0].image.shape == (4, 4, 3)


def test_batches_are_made_as_samples_arrive() -> None:
    taken: list[int] = []

    def camera() -> Any:
        for index in range(100):
            taken.append(index)
            yield Sample(str(index), np.zeros((2, 2, 3), np.uint8))

    next(batches(camera(), 4))
    assert taken == [0, 1, 2, 3]


def test_npz_with_labels(tmp_path: Path) -> None:
    images = np.arange(5, dtype=np.uint8)[:, None, None, None] * np.ones((4, 4, 3), np.uint8)
    np.savez_compressed(tmp_path / "stream.npz", images=images, labels=[3, 1, 4, 1, 5])
    source = open_source(tmp_path / "stream.npz", limit=4)
    assert len(source) == 4
    assert levels(source) == [0, 1, 2, 3]
    labels = source.labels()
    assert labels is not None
    assert [labels[sample.name] for sample in source] == [3, 1, 4, 1]


def test_the_layout_of_cifar_10_c(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (50, 32, 32, 3), np.uint8)
    np.save(tmp_path / "gaussian_noise.npy", images)
    np.save(tmp_path / "labels.npy", np.arange(50, dtype=np.uint8) % 10)
    source = open_source(tmp_path / "gaussian_noise.npy")
    assert (source.labels() or {})["13"] == 3  # those beside it
    assert np.array_equal(np.stack([sample.image for sample in source]), images)
    labels = source.labels(tmp_path / "labels.npy")
    assert labels is not None
    assert labels["13"] == 3


def test_real_arrays(shared_data: Path) -> None:
    source = open_source(shared_data / "cifar10_test_5000.npz")
    labels = source.labels()
    assert labels is not None
    assert len(labels) == len(source) >= 200
    assert set(labels.values()) == set(range(10))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": np.zeros((3, 4, 4, 3), np.float32)}, "images float32"),
        ({"images": np.zeros((3, 4), np.uint8)}, r"images uint8 \[3, 4\]"),
        ({"images": np.zeros((0, 4, 4, 3), np.uint8)}, "expected uint8"),
        (
            {"images": np.zeros((3, 4, 4, 3), np.uint8), "labels": np.zeros(2, int)},
            "2 labels for 3",
        ),
        ({"images": np.zeros((3, 4, 4, 3), np.uint8), "labels": np.zeros(3)}, "float64"),
        ({"images": np.zeros((3, 4, 4, 3), np.uint8), "labels": np.array([0, -2, 2])}, "negative"),
        ({"images": np.array([object()])}, "cannot read"),
        ({}, "holds nothing"),
        (
            {"a": np.zeros((3, 4, 4), np.uint8), "b": np.zeros((3, 4, 4), np.uint8)},
            "expected uint8",
        ),
    ],
)
def test_arrays_that_are_not_a_stream(
    arrays: dict[str, NDArray[Any]], message: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "bad.npz", allow_pickle=True, **arrays)
    with pytest.raises(ZottaError, match=message):
        open_source(tmp_path / "bad.npz")


def test_damaged_arrays_give_one_line(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    stream, path = io.BytesIO(), tmp_path / "damaged.npz"
    np.savez_compressed(stream, images=rng.integers(0, 9, (20, 8, 8, 3), np.uint8))
    whole = stream.getvalue()
    refused: list[str] = []
    for _ in range(60):
        data = bytearray(whole)
        for place in rng.integers(0, len(data), 8):
            data[place] ^= rng.integers(1, 256)
        path.write_bytes(bytes(data[: rng.integers(1, len(data))] if rng.random() < 0.3 else data))
        try:
            open_source(path)
        except ZottaError as error:
            refused.append(str(error))
    assert len(refused) > 50
    assert all("damaged.npz" in message and "\n" not in message for message in refused)
    for content in (b"", b"junk", b"\x93NUMPY\x01\x00v\x00{'descr': '<f4'"):
        for name in ("empty.npz", "empty.npy"):
            (tmp_path / name).write_bytes(content)
            with pytest.raises(ZottaError, match="empty"):
                open_source(tmp_path / name)
    with pytest.raises(ZottaError, match="does not exist"):
        open_source(tmp_path / "absent.npz")


def test_a_video_file(tmp_path: Path) -> None:
    path = tmp_path / "clip.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10, (64, 48))
    for index in range(9):
        frame = np.zeros((48, 64, 3), np.uint8)
        frame[..., 2] = 25 * index  # red, in OpenCV's order
        writer.write(frame)
    writer.release()
    source = open_source(path)
    assert len(source) == 9
    samples = list(source)
    assert [sample.name for sample in samples] == [str(index) for index in range(9)]
    assert samples[0].image.shape == (48, 64, 3)
    red = [float(sample.image[..., 0].mean()) for sample in samples]
    assert np.allclose(red, 25 * np.arange(9), atol=6)
    assert samples[8].image[..., 2].mean() < 10
    assert len(list(open_source(path, limit=4))) == 4


@pytest.mark.parametrize("name", ["camera:97", "97"])
def test_a_camera_that_is_not_there(name: str) -> None:
    source = open_source(name)
    assert len(source) == 0
    assert source  # of unknown length, not empty
    with pytest.raises(ZottaError, match="camera 97"):
        next(iter(source))


def test_a_file_that_only_looks_like_a_video(tmp_path: Path) -> None:
    (tmp_path / "clip.mp4").write_bytes(b"no frames in here" * 100)
    with pytest.raises(ZottaError, match=r"clip\.mp4"):
        list(open_source(tmp_path / "clip.mp4"))


def test_paths_on_stdin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [str(folder / "class0" / "3.png"), "", "absent.png", str(folder / "class1" / "1.png")]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines) + "\n"))
    told: list[str] = []
    source = open_source("-", on_bad=told.append)
    assert len(source) == 0
    samples = list(source)
    assert [sample.name for sample in samples] == [lines[0], lines[3]]
    assert told == ["cannot read absent.png: No such file or directory"]


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    for spec in ("nowhere", "nowhere/*.png", "nowhere.mp4", str(tmp_path)):
        with pytest.raises(ZottaError, match="nowhere|no images"):
            open_source(spec)


def test_labels_of_more_images_than_there_are(folder: Path, tmp_path: Path) -> None:
    lines = [f"{index}.png,{index % 3}" for index in range(100)]
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    source = open_source(folder)
    labels = source.labels(tmp_path / "labels.csv")
    assert labels is not None
    assert [labels[sample.name] for sample in source] == [0] * 4 + [1] * 4 + [2] * 4


def test_folders_as_labels_need_folders(tmp_path: Path) -> None:
    write_image(tmp_path / "flat" / "a.png", 0)
    with pytest.raises(ZottaError, match="no class folders"):
        open_source(tmp_path / "flat").labels("folders")
    with pytest.raises(ZottaError, match="single class folder"):
        open_source(tmp_path).labels("folders")


def test_real_labels(shared_data: Path) -> None:
    path = shared_data / "imagenet-val-2000" / "labels.csv"
    source = open_source(path.parent, limit=3)
    labels = source.labels(path)
    assert labels is not None
    rows = [line.split(",") for line in path.read_text().splitlines()[1:4]]
    assert [labels[sample.name] for sample in source] == [int(label) for _, label in rows]
