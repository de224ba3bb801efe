"""Labels: the files they stand in, the classes they name, and what is wrong with either."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from zotta_edge import ZottaError
from zotta_edge.runtime.io.classes import Classes
from zotta_edge.runtime.io.labels import Labels, read_labels
from zotta_edge.runtime.io.tables import read_rows

PETS = Classes(3, ("cat", "dog", "golden retriever"))


def numbers(path: Path, names: Sequence[str] = (), classes: Classes | None = None) -> Labels[int]:
    return read_labels(path, names).numbers(classes or Classes(10))


@pytest.mark.parametrize(
    "text",
    [
        "a.png,3\nb.png,0\n",
        "file,label\na.png,3\nb.png,0\n",
        "label,image,split\n3,a.png,val\n0,b.png,val\n",
        "\ufeffa.png;3\r\nb.png;0\r\n",
        "x/y/a.png\t3\n\nx/y/b.png\t0\n",
        "a.png 3\nb.png 0\n",
        "a,3\nb,0",
    ],
)
def test_layouts_of_labels(text: str, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text(text, encoding="utf-8")
    labels = numbers(tmp_path / "labels.csv", ["a.png", "b.png"])
    assert (labels["a.png"], labels["b.png"]) == (3, 0)
    assert "c.png" not in labels


def test_an_empty_label_leaves_an_image_unscored(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("a.png,1\nb.png,\n")
    labels = numbers(tmp_path / "labels.csv", ["a.png", "b.png"])
    assert "a.png" in labels
    assert "b.png" not in labels


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("file,label\n", "no labels"),
        ("a.png\nb.png\n", "no labels"),
        ("a.png,1\n", r"no label for 1 of 2 images, the first x/b\.png"),
        ("a.png,1\n,2\n", "line 2"),
        ("a.png,1\nb.png,dog\n", r"x/b\.png is labelled 'dog', which is no class"),
        ("a.png,1\nb.png,-2\n", r"x/b\.png is labelled '-2', which is no class"),
        ("a.png,1\nb.png,2.5\n", r"labelled '2\.5', which is no class.*numbers from 0 to 9"),
        ("a.png,1\nb.png,10\n", "labelled '10', which is no class.*it knows 0 to 9"),
        ("a.png,1\nb.png,2\na.png,2\n", "line 3: a.png has two labels"),
    ],
)
def test_labels_that_do_not_match(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(ZottaError, match=message):
        numbers(tmp_path / "labels.csv", ["a.png", "x/b.png"])


def test_names_that_could_mean_two_images(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("a.png,1\n")
    with pytest.raises(ZottaError, match=r"which a\.png"):
        read_labels(tmp_path / "labels.csv", ["x/a.png", "y/a.png"])
    (tmp_path / "labels.csv").write_text("x/a.png,1\ny/a.png,2\n")
    labels = numbers(tmp_path / "labels.csv", ["x/a.png", "y/a.png"])
    assert (labels["x/a.png"], labels["y/a.png"]) == (1, 2)


def test_labels_that_are_not_text(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_bytes(bytes(range(256)))
    with pytest.raises(ZottaError, match=r"labels\.csv"):
        read_labels(tmp_path / "labels.csv")
    with pytest.raises(ZottaError, match=r"absent\.csv"):
        read_labels(tmp_path / "absent.csv")


def test_class_names(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("a.png,dog\nb.png,golden retriever\nc.png,0\n")
    assert dict(numbers(path, classes=PETS)) == {"a.png": 1, "b.png": 2, "c.png": 0}
    path.write_text("a.png,dog\nb.png,golden retreiver\n")
    with pytest.raises(ZottaError, match=r"b\.png .*did you mean 'golden retriever'"):
        numbers(path, classes=PETS)
    path.write_text("a.png,submarine\n")
    with pytest.raises(ZottaError, match="its classes are cat, dog, golden retriever"):
        numbers(path, classes=PETS)
    with pytest.raises(ZottaError, match="no class names .*numbers from 0 to 4"):
        numbers(path, classes=Classes(5))


def test_a_name_of_digits_is_a_name_first() -> None:
    limits = Classes(3, ("30", "2", "50"))
    assert [limits.number(label) for label in ("30", "50", "2", 2)] == [0, 2, 1, 2]


@pytest.mark.parametrize("unlabelled", ["", "-1", " -1 "])
def test_unlabelled_images_are_skipped(unlabelled: str, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text(f"x/a.png,{unlabelled}\ny/a.png,2\n")
    for names in ([], ["x/a.png", "y/a.png"]):
        labels = numbers(tmp_path / "labels.csv", names)
        assert "x/a.png" not in labels  # nor is it taken for the other a.png
        assert labels["y/a.png"] == 2


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("a.png,cat\nb.png,dog\n", [("a.png", "cat"), ("b.png", "dog")]),
        ("photo,kind\na,3\nb,4\n", [("a", "3"), ("b", "4")]),
        ("image,class_name\na,cat\n", [("a", "cat")]),
        ("my photo 1.jpg\nmy photo 2.jpg\n", [("my photo 1.jpg", ""), ("my photo 2.jpg", "")]),
        ("file\na.png\nb.png\n", [("a.png", ""), ("b.png", "")]),
        ("a.png\tgolden retriever\n", [("a.png", "golden retriever")]),
    ],
)
def test_lists_of_images(text: str, rows: list[tuple[str, str]], tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text(text)
    assert [(row.name, row.label) for row in read_rows(tmp_path / "list.csv")] == rows
