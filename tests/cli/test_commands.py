"""Every command that a help text, a message or a document names is one that the parser takes."""

import argparse
import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest

from zotta_edge.__main__ import COMMANDS, main, parser
from zotta_edge.models import embedded

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("benchmarks", "calibration", "export", "models", "runtime", "src")
_NAMED = re.compile(rf"zotta-edge +(?=(?:{'|'.join(COMMANDS)})\b)")
_SHELL = re.compile(r"\s+(?:#|\||>|&).*")  # comments, pipes and redirections end a command
_VALUE = "1"  # for a placeholder: a number is also a name


def documents() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "*.md", "deploy"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listed.stdout.split()]


def in_text(text: str) -> Iterator[str]:
    """Commands that start a line or stand in backticks; in prose, only the options that follow."""
    text = text.replace("\\\n", " ").replace("```", "")
    for place in _NAMED.finditer(text):
        before, rest = text[: place.start()], text[place.start() :]
        if before.count("`") % 2:
            yield " ".join(rest.split("`", 1)[0].split())
        elif not before.rpartition("\n")[2].strip(" |$") or "| " in before[-4:]:
            yield _SHELL.sub("", rest.split("\n", 1)[0])
        else:
            yield re.match(r"zotta-edge +\w+(?: +--[\w-]+)*", rest)[0]  # type: ignore[index]


def in_literals(path: Path) -> Iterator[str]:
    """The texts of a module; what is filled in is a placeholder."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "X" for part in node.values]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def collected() -> list[tuple[str, str]]:
    """Where a command stands, and the command."""
    texts = [(path, path.read_text()) for path in documents()]
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            texts += [(path, text) for text in in_literals(path)]
    return list(dict.fromkeys(
        (str(path.relative_to(ROOT)), command) for path, text in texts for command in in_text(text)
    ))  # fmt: skip


class RefusedError(Exception):
    pass


def subparsers(whole: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (commands,) = [a for a in whole._actions if isinstance(a, argparse._SubParsersAction)]
    return commands.choices


def lenient() -> argparse.ArgumentParser:
    """The real parser, but what is required may be left out: people also name parts of commands."""
    whole = parser()
    whole.error = _refuse
    for own in subparsers(whole).values():
        own.error = _refuse
        for action in own._actions:
            action.required = False
            if not action.option_strings:
                action.nargs = "?"
    return whole


def _refuse(message: str) -> None:
    raise RefusedError(message)


def refusal(command: str) -> str | None:
    """What the parser has against a command; an option may be named without its value."""
    try:
        lenient().parse_args(words(command))
    except RefusedError as error:
        return None if str(error).endswith("expected one argument") else str(error)
    return None


def words(command: str) -> list[str]:
    """The arguments; a placeholder after an option may stand for a number."""
    found = [word for word in shlex.split(command)[1:] if word not in ("...", "…")]
    return [
        _VALUE if before.startswith("--") and re.fullmatch("[A-Z]+", word) else word
        for before, word in zip(["", *found], found, strict=False)
    ]


def test_there_are_commands_to_check() -> None:
    assert len(collected()) > 60
    assert {command.split()[1] for _, command in collected()} == set(COMMANDS)


@pytest.mark.parametrize(("where", "command"), collected())
def test_named_commands_exist(where: str, command: str) -> None:
    if "--help" in command or "--list" in command.split():
        return  # these end the program; they are run below
    assert refusal(command) is None, f"{where} names `{command}`"


def options() -> dict[str, int]:
    """Every option of every command, and how many values it takes at most."""
    return {
        option: 0 if action.nargs == 0 else 9 if action.nargs == "+" else 1
        for own in subparsers(parser()).values()
        for action in own._actions
        for option in action.option_strings
    }


_OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]+)((?: +(?:[A-Z]{2,}|N)\b)*)")
_OTHERS = {"--version", "--data-binary"}  # the program's own, curl's


def named_options() -> list[tuple[str, str, int]]:
    """Options in messages, help texts and docstrings, with the values that are named for them."""
    return sorted({
        (str(path.relative_to(ROOT)), match[1], len(match[2].split()))
        for folder in SOURCES
        if folder != "benchmarks"  # which have options of their own
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.parent.name != "report"  # whose style sheets have variables
        for text in in_literals(path)
        for match in _OPTION.finditer(text)
    })  # fmt: skip


def test_named_options_exist_and_take_what_is_named() -> None:
    known = options() | dict.fromkeys(_OTHERS, 1)
    wrong = [(where, option, values) for where, option, values in named_options()
             if option not in known or values > known[option]]  # fmt: skip
    assert len(named_options()) > 60
    assert not wrong


def test_a_command_that_does_not_exist_is_found() -> None:
    assert refusal("zotta-edge inspect --check") == "unrecognized arguments: --check"
    assert refusal("zotta-edge export net.onnx --size 224 320") == "unrecognized arguments: 320"
    assert "invalid choice" in str(refusal("zotta-edge export net.onnx --precision int3"))


@pytest.fixture(scope="module")
def workplace(residual_net: onnx.ModelProto, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that help texts name, all of them small."""
    folder = tmp_path_factory.mktemp("help")
    shutil.copy(embedded.MODEL, folder / "vit_int8.onnx")
    onnx.save(residual_net, folder / "deit_tiny.onnx")
    stored = np.load(embedded.STREAM)
    images, labels = stored["images"][:16], stored["labels"][:16]
    np.savez(folder / "test.npz", images=images, labels=labels)
    for name, shade in (("photos", 1), ("rainy", 2)):
        (folder / name).mkdir()
        for index, image in enumerate(images):
            large = cv2.resize(image // shade, (32, 32))
            cv2.imwrite(str(folder / name / f"{index}.jpg"), large)
    lines = [f"{index}.jpg,{label}" for index, label in enumerate(labels)]
    (folder / "labels.csv").write_text("\n".join(lines))
    return folder


def helped(command: str) -> list[str]:
    """The commands of a help text that are over soon and need no camera."""
    named = in_text(import_module(f"zotta_edge.cli.{command}").HELP)
    return [text for text in named if text.startswith(f"zotta-edge {command} ")
            and "camera" not in text]  # fmt: skip


@pytest.mark.parametrize("command", ["export", "calibrate", "adapt", "corrupt"])
def test_commands_of_help_texts_run(command: str, workplace: Path) -> None:
    assert helped(command)
    for text in helped(command):
        arguments = [sys.executable, "-m", "zotta_edge", *shlex.split(text)[1:]]
        paths = "\n".join(map(str, sorted((workplace / "photos").iterdir())))
        done = subprocess.run(
            arguments, cwd=workplace, capture_output=True, text=True, check=False, input=paths
        )
        assert done.returncode == 0, f"{text}: {done.stderr}"


@pytest.mark.parametrize("model", [embedded.MODEL, embedded.RESNET, embedded.VLM])
def test_inspect_for_machines(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of every calibrated file it had ended in a traceback."""
    assert main(["inspect", "--json", str(model)]) == 0
    assert json.loads(capsys.readouterr().out)["exported"]


@pytest.mark.parametrize(
    "command",
    [
        "--version",
        "--help",
        *(f"{name} --help" for name in COMMANDS),
        "corrupt --list",
        "export --list",
        "adapt --list-settings",
    ],  # fmt: skip
)
def test_what_only_tells(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with suppress(SystemExit):
        main(command.split())
    told = capsys.readouterr()
    assert told.out
    assert not told.err
