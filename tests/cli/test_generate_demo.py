"""`zotta-edge generate` with the embedded model."""

from pathlib import Path

import cv2
import pytest

from zotta_edge.__main__ import main
from zotta_edge.models import embedded
from zotta_edge.models.picture_questions import questions


def test_without_arguments_it_proves_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--limit", "16", "--threads", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7
    assert lines[0].startswith("[3 _ 3 5]  add the digits.")
    assert lines[-2].startswith("right      zotta ")
    assert "unadapted" in lines[-2]


def test_the_embedded_model_answers_a_question(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = questions(embedded.digits(1000), embedded.labels(1000), 1, seed=0)[0]
    cv2.imwrite(str(tmp_path / "digits.png"), asked.picture)
    image = ["--image", str(tmp_path / "digits.png")]
    assert main(["generate", "--prompt", asked.text, *image, "--threads", "1"]) == 0
    assert capsys.readouterr().out.strip() == asked.answer


def test_a_model_without_a_question_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--model", str(embedded.VLM)]) == 1
    assert "give --prompt" in capsys.readouterr().err
