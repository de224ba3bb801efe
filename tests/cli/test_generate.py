"""`zotta-edge generate` and the export of decoders: what a user sees, and one-line errors."""

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from tiny_decoders import TOKENIZER, tiny_decoder

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


def test_an_answer_ends_before_a_stop(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*arguments: str) -> str:
        command = ["generate", "--model", str(path), "--max-tokens", "9", "--threads", "1"]
        assert main([*command, *arguments]) == 0
        return capsys.readouterr().out.strip()

    (tmp_path / "q.jsonl").write_text('{"prompt": "a b c"}')
    whole = said("--prompt", "a b c")
    stop = ["--stop", "none of it", "--stop", whole[4:6]]
    expected = whole[: whole.index(whole[4:6])].strip()
    assert said("--prompt", "a b c", *stop) == expected != whole
    reply = json.loads(said("--jsonl", str(tmp_path / "q.jsonl"), *stop))["reply"]
    assert reply.strip() == expected


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
        (["--jsonl", "/dev/zero"], "larger than 64 MB"),
        (["--prompt", "a", "--tokenizer", "/dev/zero"], "larger than 64 MB"),
        (["--prompt", "a", "--answers"], "--answers needs --jsonl"),
        (["--prompt", "a", "--stop", ""], "--stop needs a text"),
        (["--prompt", "a", "--report", "r.json"], "--report needs --jsonl"),
        (["--prompt", "a", "--output", "/dev/null"], "no file that could be replaced"),
        (["--prompt", "a", "--output", "missing/a.jsonl"], "there is no folder missing"),
        (["--prompt", "a", "--threads", "100000"], "threads must be from 1 to 1024"),
        (["--image", "a.png"], "nothing was asked"),
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
        ([[[]]] * 2, "q.jsonl:2: expected an object"),
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


def test_questions_nested_too_deep_are_no_json(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "q.jsonl").write_text("[" * 100_000)
    assert main(["generate", "--model", str(path), "--jsonl", str(tmp_path / "q.jsonl")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "q.jsonl:1 is no JSON" in line


def test_half_of_a_surrogate_pair_is_written_as_it_came(path: Path, tmp_path: Path) -> None:
    """All questions were answered, and then none was written."""
    questions, output = tmp_path / "q.jsonl", tmp_path / "out.jsonl"
    questions.write_text('{"prompt": "a", "note": "\\ud800"}')
    command = ["generate", "--model", str(path), "--jsonl", str(questions)]
    assert main([*command, "--output", str(output)]) == 0
    assert json.loads(output.read_text())["note"] == "\ud800"


@pytest.mark.parametrize("raw", [[], ["--raw"]])
def test_a_prompt_of_megabytes_is_not_turned_into_tokens(
    path: Path, raw: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "q.jsonl").write_text(json.dumps({"prompt": "a" * 10**6}))
    questions = ["--jsonl", str(tmp_path / "q.jsonl")]
    assert main(["generate", "--model", str(path), *questions, *raw]) == 1
    assert "the prompt has 1000000 characters: at most" in capsys.readouterr().err


def test_a_terminal_that_lacks_a_character(path: Path, tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"prompt": "a \u4e2d"}', encoding="utf-8")
    command = [sys.executable, "-m", "zotta_edge", "generate", "--model", str(path), "--jsonl"]
    done = subprocess.run(
        [*command, str(tmp_path / "q.jsonl"), "--threads", "1"],
        check=False,
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
    )
    assert done.returncode == 0, done.stderr
    assert b"a \\u4e2d" in done.stdout


def test_the_report_and_the_settings(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "q.jsonl").write_text('\ufeff{"prompt": "a\u2028b"}\r\n\n', encoding="utf-8")
    command = ["generate", "--model", str(path), "--jsonl", str(tmp_path / "q.jsonl")]
    assert main([*command, "--report", str(tmp_path / "r.json"), "--threads", "1"]) == 0
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["questions"], report["right"], report["status"]["prompts"]) == (1, None, 1)
    capsys.readouterr()
    assert main(["generate", "--list-settings"]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()} >= set(
        report["settings"]
    )


def test_unknown_tokenizers(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.json").write_text("{}")
    command = ["generate", "--model", str(path), "--prompt", "a", "--tokenizer"]
    assert main([*command, str(tmp_path / "t.json")]) == 1
    assert "unknown tokenizer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "none"}}, "Missing [UNK]"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, "charsmap"),
    ],
)
def test_tokenizers_that_fail_late(
    path: Path,
    change: dict[str, object],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The package raises as it reads the prompt, or panics."""
    (tmp_path / "t.json").write_text(json.dumps(TOKENIZER | change))
    command = ["generate", "--model", str(path), "--prompt", "zz", "--tokenizer"]
    assert main([*command, str(tmp_path / "t.json")]) == 1
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_images_for_a_model_that_reads_text_alone(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import cv2

    cv2.imwrite(str(tmp_path / "x.png"), embedded.digits(1)[0])
    command = ["generate", "--model", str(path), "--prompt", "a"]
    assert main([*command, "--image", str(tmp_path / "x.png")]) == 1
    assert "reads text alone" in capsys.readouterr().err


def test_classifiers_and_decoders_are_told_apart(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = tmp_path / "white.pgm"
    image.write_bytes(b"P5 1 1 255 \xff")
    assert main(["generate", "--model", str(embedded.MODEL), "--prompt", "a"]) == 1
    assert "zotta-edge adapt" in capsys.readouterr().err
    assert main(["adapt", "--model", str(path), "--data", str(image)]) == 1
    assert "zotta-edge generate" in capsys.readouterr().err


def test_inspect_shows_a_decoder(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(embedded.VLM)]) == 0
    text = capsys.readouterr().out
    for part in ("int8 decoder", "context of 96", "{image}{prompt}", "64 x 16", "384 scales"):
        assert part in text
    assert "layers.3.post_attention_layernorm" in text
    assert main(["inspect", str(path), "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert (described["kind"], described["vision"], described["scales"]) == ("decoder", None, 96)


def test_inspect_of_what_is_no_adaptable_decoder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(embedded.VLM.with_suffix(".vision.onnx"))]) == 1
    assert "digits_vlm_int8.onnx beside it" in capsys.readouterr().err
    foreign = Path(__file__).parents[1] / "export" / "decoders" / "files"
    for tool in ("optimum", "genai"):
        assert main(["inspect", str(foreign / tool / "model.onnx")]) == 0
        assert "can be adapted: 2 norms behind attention" in capsys.readouterr().out


def test_files_that_were_not_exported_or_were_already(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF location")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text("{}")
    commands = (["generate", "--prompt", "a"], ["serve"])
    for source, command in product(("m.gguf", "folder"), commands):
        assert main([*command, "--model", str(tmp_path / source)]) == 1
        assert "with `zotta-edge export` first" in capsys.readouterr().err
    assert main(["export", str(path), "-o", str(tmp_path / "again.onnx")]) == 1
    assert "already exported by zotta-edge" in capsys.readouterr().err


def test_export_of_a_decoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = Path(__file__).parents[1] / "export" / "decoders" / "files" / "genai" / "model.onnx"
    target = tmp_path / "out.onnx"
    assert main(["export", str(source), "-o", str(target)]) == 0
    assert "2 norms with 64 scales" in capsys.readouterr().out
    (tmp_path / "no.gguf").write_bytes(b"GGUF nonsense")
    assert main(["export", str(tmp_path / "no.gguf"), "-o", str(target)]) == 1
    assert "not a GGUF file" in capsys.readouterr().err
    assert main(["export", str(source), "-o", str(target), "--layers", "["]) == 1
    assert "'[' is not a regular expression" in capsys.readouterr().err
    assert main(["export", str(source), "-o", str(target), "--mean", "0.5"]) == 1
    assert "--mean is for classifiers" in capsys.readouterr().err


def test_a_source_is_never_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "model.gguf"
    source.write_bytes(b"GGUF of hours")
    assert main(["export", str(source), "-o", str(tmp_path / "." / "model.gguf")]) == 1
    assert "would take the place of its own source" in capsys.readouterr().err
    assert source.read_bytes() == b"GGUF of hours"


@pytest.mark.parametrize("command", ["adapt", "generate", "serve"])
def test_eyes_are_no_model(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    eyes, image = embedded.VLM.with_suffix(".vision.onnx"), grey(tmp_path / "x.pgm", 64, 16)
    more = {"adapt": ["--data", image], "generate": ["--prompt", "a"], "serve": []}[command]
    assert main([command, "--model", str(eyes), *more]) == 1
    assert "the eyes of a decoder" in capsys.readouterr().err


def test_an_image_has_no_place_without_the_template(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = grey(tmp_path / "x.pgm", 64, 16)
    assert main(["generate", "--image", image, "--prompt", "how many?", "--raw"]) == 1
    assert "--raw leaves out the template" in capsys.readouterr().err


def grey(path: Path, width: int, height: int) -> str:
    path.write_bytes(f"P5 {width} {height} 255 ".encode() + bytes(width * height))
    return str(path)


def test_an_image_of_another_size_is_resized(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As for classifiers: a picture and the same in twice the size are answered alike."""
    import cv2

    picture = embedded.drifted_questions(1)[0].picture
    large = cv2.resize(picture, None, fx=2, fy=2, interpolation=cv2.INTER_NEAREST)
    answers = []
    for name, image in (("as it is", picture), ("large", large)):
        cv2.imwrite(str(tmp_path / f"{name}.png"), image)
        command = ["generate", "--image", str(tmp_path / f"{name}.png"), "--threads", "1"]
        assert main([*command, "--prompt", "what is the sum of the digits?"]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1] != "\n"


@pytest.mark.parametrize(("width", "height"), [(10000, 1), (1, 10000)])
def test_strips_are_refused(
    tmp_path: Path, width: int, height: int, capsys: pytest.CaptureFixture[str]
) -> None:
    image = grey(tmp_path / "strip.pgm", width, height)
    assert main(["generate", "--image", image, "--prompt", "how many digits?"]) == 1
    error = capsys.readouterr().err
    assert f"{width} x {height} pixels" in error
    assert error.count("\n") == 1


def test_what_was_answered_before_a_bad_image_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grey(tmp_path / "good.pgm", 64, 16)
    (tmp_path / "bad.png").write_text("no image")
    rows = [{"prompt": "how many digits?", "image": name} for name in ("good.pgm", "bad.png")]
    (tmp_path / "q.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    output = tmp_path / "a.jsonl"
    command = ["generate", "--jsonl", str(tmp_path / "q.jsonl"), "--output", str(output)]
    assert main([*command, "--threads", "1"]) == 1
    assert "question 2:" in capsys.readouterr().err
    assert len(output.read_text().splitlines()) == 1
