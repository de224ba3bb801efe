"""What the documents point at is there."""

import re
import subprocess
from pathlib import Path

import pytest

from zotta_edge import __version__

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(page for pattern in ("*.md", "docs/*.md") for page in ROOT.glob(pattern))


def lines_under(page: str, heading: str) -> list[str]:
    text = (ROOT / page).read_text()
    return text.split(f"## {heading}", 1)[1].split("\n## ", 1)[0].splitlines()


def test_each_of_the_nine_questions_has_one_file() -> None:
    rows = [row for row in lines_under("ARCHITECTURE.md", "Where do I change") if "](" in row]
    assert len(rows) == 9
    for row in rows:
        _, question, file, name, _ = (cell.strip() for cell in row.split("|"))
        path = re.findall(r"\]\((.+)\)", file)[0]
        assert file == f"[`{path}`]({path})", question
        assert name.strip("`") in (ROOT / path).read_text(), question


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        name, _, anchor = target.partition("#")
        path = page.parent / name if name else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_files_and_folders_that_are_named_exist() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for page in ("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"):
        for name in re.findall(r"`([\w/]+(?:\.py|/))`", (ROOT / page).read_text()):
            assert any(f"/{name}" in f"/{path}" for path in tracked), f"{page}: {name}"


def test_the_citation_names_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {__version__}\n" in citation
    assert citation.startswith("cff-version: 1.2.0\n")
    assert "arXiv:2603.14254" in citation


def test_commands_for_contributors_are_real() -> None:
    makefile, page = (ROOT / "Makefile").read_text(), (ROOT / "CONTRIBUTING.md").read_text()
    targets = re.findall(r"^make (\w+)", page, re.MULTILINE)
    assert targets
    assert all(f"\n{target}:" in makefile for target in targets)
    for path in re.findall(r"^\.venv-test/bin/pytest (tests/\S+)", page, re.MULTILINE):
        assert (ROOT / path).is_dir()
