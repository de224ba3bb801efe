"""Labelled images in every layout, and one line of reason for what is not one."""

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from zotta_edge.bench.data.datasets import Dataset, check_classes, open_dataset
from zotta_edge.errors import ZottaError
from zotta_edge.runtime.io.classes import Classes


def write_image(path: Path, level: int) -> None:
    """A plain grey image: its level says which one it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.full((8, 8, 3), level, np.uint8))


def shown(data: Dataset, domain: str = "clean", severity: int = 5) -> list[tuple[int, int]]:
    """Label and level of every image."""
    images = data.images(domain, severity)
    return [(int(label), int(images.read(i)[0, 0, 0])) for i, label in enumerate(images.labels)]


def test_folder_with_csv(tmp_path: Path) -> None:
    for name, level in (("a.png", 10), ("b.png", 20), ("c.png", 30)):
        write_image(tmp_path / "photos" / name, level)
    labels = tmp_path / "labels.csv"
    labels.write_text("file,label\nb.png,1\na.png,0\nc.png,4\n")
    data = open_dataset(tmp_path / "photos", Classes(5), labels)
    assert shown(data) == [(0, 10), (1, 20), (4, 30)]


def test_folder_has_its_own_csv(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png", 10)
    (tmp_path / "labels.csv").write_text("a.png,3\n")
    assert shown(open_dataset(tmp_path, Classes(5))) == [(3, 10)]


def test_class_folders_are_numbered_in_order(tmp_path: Path) -> None:
    for level, wnid in enumerate(("n02", "n01", "n10")):
        write_image(tmp_path / wnid / "x.png", level)
    data = open_dataset(tmp_path, Classes(3))
    assert shown(data) == [(0, 1), (1, 0), (2, 2)]
    assert data.among is None


def test_folders_that_are_numbers_mean_themselves(tmp_path: Path) -> None:
    for number in (2, 10):
        write_image(tmp_path / str(number) / "x.png", number)
    data = open_dataset(tmp_path, Classes(11))
    assert shown(data) == [(2, 2), (10, 10)]
    assert data.among == (2, 10)


def test_some_of_the_classes_need_a_list(tmp_path: Path) -> None:
    """ImageNet-R and -A hold 200 of 1,000 classes, and answers are taken among those."""
    for level, wnid in enumerate(("n01", "n04")):
        write_image(tmp_path / "data" / wnid / "x.png", level)
    with pytest.raises(ZottaError, match="are 2, the model has 5 classes.*--classes"):
        open_dataset(tmp_path / "data", Classes(5))
    order = tmp_path / "classes.txt"
    order.write_text("n00 tench, Tinca tinca\nn01\nn02\nn03\nn04 hen\n")
    data = open_dataset(tmp_path / "data", Classes(5), order=order)
    assert shown(data) == [(1, 0), (4, 1)]
    assert data.among == (1, 4)


@pytest.mark.parametrize("group", ["", "weather/"])
def test_imagenet_c(tmp_path: Path, group: str) -> None:
    for level, wnid in enumerate(("n01", "n02")):
        for severity in (3, 5):
            write_image(tmp_path / f"{group}fog/{severity}/{wnid}/x.png", 10 * severity + level)
    data = open_dataset(tmp_path, Classes(2))
    assert data.shifts == ("fog",)
    assert shown(data, "fog", 3) == [(0, 30), (1, 31)]
    with pytest.raises(ZottaError, match="no snow: it holds fog"):
        data.images("snow", 3)
    with pytest.raises(ZottaError, match="has no folder 1"):
        data.images("fog", 1)


@pytest.mark.parametrize("written", [5, 1])
def test_cifar_c(tmp_path: Path, written: int) -> None:
    """Five severities after one another; the labels are repeated for each, or written once."""
    levels = np.repeat(np.arange(10, 60, 10, dtype=np.uint8), 3) + np.tile(np.arange(3), 5)
    images = np.broadcast_to(levels[:, None, None, None], (15, 32, 32, 3)).astype(np.uint8)
    np.save(tmp_path / "fog.npy", images)
    np.save(tmp_path / "labels.npy", np.tile([7, 8, 9], written))
    data = open_dataset(tmp_path, Classes(10))
    assert data.shifts == ("fog",)
    assert shown(data, "fog", 2) == [(7, 20), (8, 21), (9, 22)]
    assert shown(data, "fog", 5) == [(7, 50), (8, 51), (9, 52)]


def test_npz(tmp_path: Path) -> None:
    images = np.broadcast_to(np.array([1, 2], np.uint8)[:, None, None, None], (2, 8, 8, 3))
    np.savez(tmp_path / "test.npz", images=images, labels=np.array([4, 0]))
    assert shown(open_dataset(tmp_path / "test.npz", Classes(5))) == [(4, 1), (0, 2)]


def test_arrays_of_one_shape_are_told_apart(tmp_path: Path) -> None:
    """Or a run with new data would find its conditions done already."""
    path, identities = tmp_path / "test.npz", set()
    for level in (0, 0, 255):
        np.savez(path, images=np.full((2, 8, 8), level, np.uint8), labels=np.array([4, 0]))
        identities.add(open_dataset(path, Classes(5)).images("clean", 5).identity)
    assert len(identities) == 2


def _unlabelled_array(path: Path) -> None:
    np.save(path / "x.npy", np.zeros((2, 8, 8, 3), np.uint8))


def _array_of_other_length(path: Path) -> None:
    np.save(path / "fog.npy", np.zeros((7, 8, 8, 3), np.uint8))
    np.save(path / "labels.npy", np.zeros(7, np.int64))


def _arrays_without_labels(path: Path) -> None:
    np.save(path / "fog.npy", np.zeros((5, 8, 8, 3), np.uint8))


@pytest.mark.parametrize(
    ("make", "where", "message"),
    [
        (lambda path: None, "nowhere", "does not exist"),
        (
            lambda path: write_image(path / "a.png", 0),
            ".",
            "no labels: expected labels.csv or class folders",
        ),
        (_unlabelled_array, "x.npy", "no labels: .* `labels` in an .npz"),
        (_array_of_other_length, ".", "7 images: expected 5 severities"),
        (_arrays_without_labels, ".", "no labels.npy"),
        (lambda path: (path / "x.npz").write_bytes(b"PK damaged"), "x.npz", "cannot read"),
    ],
)
def test_what_is_no_dataset(
    tmp_path: Path, make: Callable[[Path], object], where: str, message: str
) -> None:
    make(tmp_path)
    with pytest.raises(ZottaError, match=message) as error:
        open_dataset(tmp_path / where, Classes(5)).images("fog", 5)
    assert "\n" not in str(error.value)


def test_labels_of_another_model(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", images=np.zeros((1, 8, 8), np.uint8), labels=np.array([12]))
    with pytest.raises(
        ZottaError, match="0 is labelled 12, which is no class of the model: it knows 0 to 9"
    ):
        open_dataset(tmp_path / "x.npz", Classes(10))
    data = open_dataset(tmp_path / "x.npz", Classes(20))
    with pytest.raises(ZottaError, match="class 12, the model knows 0 to 9"):
        check_classes(data.images("clean", 5), 10, data.name)


def test_images_without_a_label_are_left_out(tmp_path: Path) -> None:
    levels = np.array([1, 2, 3], np.uint8)[:, None, None, None]
    images = np.broadcast_to(levels, (3, 8, 8, 3))
    np.savez(tmp_path / "x.npz", images=images, labels=np.array([4, -1, 0]))
    assert shown(open_dataset(tmp_path / "x.npz", Classes(5))) == [(4, 1), (0, 3)]
    for name, level in (("a.png", 10), ("b.png", 20), ("c.png", 30)):
        write_image(tmp_path / "photos" / name, level)
    (tmp_path / "photos" / "labels.csv").write_text("a.png,cat\nb.png,\nc.png,-1\n")
    classes = Classes(2, ("dog", "cat"))
    assert shown(open_dataset(tmp_path / "photos", classes)) == [(1, 10)]


def test_class_folders_by_the_names_of_the_classes(tmp_path: Path) -> None:
    for level, name in enumerate(("cat", "dog", "1")):
        write_image(tmp_path / name / "x.png", level)
    assert shown(open_dataset(tmp_path, Classes(3, ("dog", "cow", "cat")))) == [
        (1, 2), (2, 0), (0, 1)]  # fmt: skip
    with pytest.raises(
        ZottaError, match="'cat', which is no class of the model: did you mean 'cats'"
    ):
        open_dataset(tmp_path, Classes(3, ("dog", "cow", "cats")))


def test_a_csv_of_names(tmp_path: Path) -> None:
    for name, level in (("a.png", 10), ("b.png", 20)):
        write_image(tmp_path / "photos" / name, level)
    (tmp_path / "list.csv").write_text("photos/b.png,1\nphotos/a.png,0\n")
    assert shown(open_dataset(tmp_path / "list.csv", Classes(2))) == [(1, 20), (0, 10)]
    (tmp_path / "list.csv").write_text("photos/b.png,1\nphotos/absent.png,0\n")
    with pytest.raises(ZottaError, match=r"cannot read .*absent\.png"):
        open_dataset(tmp_path / "list.csv", Classes(2))
