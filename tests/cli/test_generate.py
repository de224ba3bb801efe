"""`zotta-edge generate` and the export of decoders: what a user sees, and one-line errors."""

import json
from pathlib import Path

import pytest
from tiny_decoders import tiny_decoder

from zotta_edge.__main__ import main
from zotta_edge.export.decoders.pipeline import DecoderOptions, export_decoder
from zotta_edge.models import embedded


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("decoder") / "tiny.onnx"
    export_decoder(tiny_decoder(), file, DecoderOptions(precision="int8"))
    return file


@pytest.mark.parametrize("method", ["none", "zotta", "perplexity", "slot"])
def test_a_prompt(path: Path, method: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", "--model", str(path), "--prompt", "a b c", "--max-tokens", "5"]
    assert main([*command, "--method", method, "--threads", "1"]) == 0
    output = capsys.readouterr()
    assert len(output.out.split()) == 5
    assert "passes" in output.err


def test_questions_are_scored_and_learned_from(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": "a b", "answer": ["zz", "nothing"]}, {"prompt": "c", "answer": "zz"}]
    (tmp_path / "q.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    out, state = tmp_path / "a.jsonl", tmp_path / "s.state"
    command = ["generate", "--model", str(path), "--jsonl", str(tmp_path / "q.jsonl"), "--answers"]
    command += ["--output", str(out), "--max-tokens", "4", "--method", "zotta", "--threads", "1"]
    assert main([*command, "--state", str(state)]) == 0
    assert "right      0 of 2" in capsys.readouterr().err
    replies = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["prompt"] for row in replies] == ["a b", "c"]
    assert all(row["reply"] and row["right"] is False for row in replies)
    assert state.exists()
    right = [row | {"answer": reply["reply"]} for row, reply in zip(rows, replies, strict=True)]
    (tmp_path / "q.jsonl").write_text("\n".join(json.dumps(row) for row in right))
    assert main(command) == 0
    assert "right      2 of 2 (100.0%)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--prompt", "a " * 99], "none of the context"),
        (["--prompt", "a", "--method", "magic"], "no method for decoders"),
        (["--prompt", "a", "--tokenizer", "missing.json"], "cannot read the tokenizer"),
        (["--prompt", "a", "--set", "pears=3"], "did you mean pairs"),
        (["--jsonl", "missing.jsonl"], "cannot read missing.jsonl"),
        (["--prompt", "a", "--answers"], "--answers needs --jsonl"),
    ],
)
def test_bad_input(
    path: Path, arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "--model", str(path), *arguments]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "c"}, "q.jsonl:2: the question has no answer"),
        ({"prompt": "c", "answer": "d", "image": "gone.png"}, "q.jsonl:2: there is no image"),
        ({"answer": "d"}, 'q.jsonl:2: expected an object with "prompt"'),
    ],
)
def test_questions_are_refused_before_the_first_is_answered(
    path: Path, tmp_path: Path, row: object, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": "a b", "answer": "b"}, row]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    command = ["generate", "--model", str(path), "--jsonl", str(tmp_path / "q.jsonl"), "--answers"]
    assert main([*command, "--output", str(tmp_path / "out.jsonl")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line
    assert not (tmp_path / "out.jsonl").exists()


def test_unknown_tokenizers(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.json").write_text("{}")
    command = ["generate", "--model", str(path), "--prompt", "a", "--tokenizer"]
    assert main([*command, str(tmp_path / "t.json")]) == 1
    assert "unknown tokenizer" in capsys.readouterr().err


def test_images_for_a_model_that_reads_text_alone(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import cv2

    cv2.imwrite(str(tmp_path / "x.png"), embedded.digits(1)[0])
    command = ["generate", "--model", str(path), "--prompt", "a"]
    assert main([*command, "--image", str(tmp_path / "x.png")]) == 1
    assert "reads text alone" in capsys.readouterr().err


def test_classifiers_and_decoders_are_told_apart(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "--model", str(embedded.MODEL), "--prompt", "a"]) == 1
    assert "zotta-edge adapt" in capsys.readouterr().err
    assert main(["inspect", str(path)]) == 1
    assert "zotta-edge generate" in capsys.readouterr().err


def test_export_of_a_decoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = Path(__file__).parents[1] / "export" / "decoders" / "files" / "genai" / "model.onnx"
    target = tmp_path / "out.onnx"
    assert main(["export", str(source), "-o", str(target)]) == 0
    assert "2 norms with 64 scales" in capsys.readouterr().out
    (tmp_path / "no.gguf").write_bytes(b"GGUF nonsense")
    assert main(["export", str(tmp_path / "no.gguf"), "-o", str(target)]) == 1
    assert "not a GGUF file" in capsys.readouterr().err
