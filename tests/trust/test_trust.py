"""The studies of trust in their short forms; each file's docstring has the long one."""

import subprocess
import sys
from pathlib import Path

import access
import concurrency
import determinism
import disk
import http_requests
import kills
import long_run
import numerics
import numpy as np
import poison
import pytest
import signals
import state_files
import text_concurrency
import uploads
import wrong_model
from concurrency import Call

from zotta_edge import AdaptiveModel
from zotta_edge.corruptions import corrupt_batch
from zotta_edge.models import embedded


@pytest.mark.slow
def test_nobody_gets_in() -> None:
    assert access.main([]) == 0


@pytest.mark.slow
def test_a_killed_writer_leaves_the_old_state_or_the_new_one() -> None:
    assert kills.main(["--count", "25", "--services", "1"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["state", "calibrate"])
def test_a_failing_disk_harms_no_file(operation: str) -> None:
    """In a process of its own: the study forks, which threads of other tests do not survive."""
    command = [sys.executable, disk.__file__, "--only", operation, "--step", "9"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_damaged_states_are_refused() -> None:
    few = ["--flips", "100", "--forged", "60", "--step", "211"]
    assert state_files.main(few) == 0


@pytest.mark.slow
def test_hostile_requests_harm_nobody() -> None:
    assert http_requests.main(["--count", "1500"]) == 0


@pytest.mark.slow
def test_hostile_requests_to_a_decoder_harm_nobody() -> None:
    assert http_requests.main(["--count", "300", "--generate"]) == 0


@pytest.mark.slow
def test_eight_clients_of_a_decoder_are_answered_as_if_alone() -> None:
    assert text_concurrency.main(["--requests", "48"]) == 0


@pytest.mark.slow
def test_uploads_that_never_end_keep_nobody_out() -> None:
    assert uploads.main(["--uploads", "9", "--seconds", "4"]) == 0


@pytest.mark.slow
def test_what_threads_see_could_have_come_one_after_the_other() -> None:
    assert concurrency.main(["--operations", "32", "--methods", "primed"]) == 0


def test_a_lost_update_would_be_noticed(tmp_path: Path) -> None:
    """One learned batch less than a thread was told of: no order explains the state."""
    model = AdaptiveModel.load(embedded.MODEL, threads=1)
    model.predict(concurrency.stream()[:16])  # as `Specification` does
    model.reset()
    history = [
        Call(kind, number, number, number + 2, concurrency.act(model, kind, number, tmp_path))
        for number, kind in enumerate(["learn", "ask", "learn", "state"])
    ]

    def explained(calls: list[Call], name: str) -> bool:
        alone = AdaptiveModel.load(embedded.MODEL, threads=1)
        return concurrency.explained(calls, concurrency.Specification(alone, tmp_path / name))

    assert explained(history, "whole")
    assert not explained(history[1:], "lost")


def test_the_same_stream_gives_the_same_state() -> None:
    assert determinism.main(["--images", "32", "--methods", "primed,zotta,neo"]) == 0


@pytest.mark.slow
def test_numbers_stay_finite() -> None:
    assert numerics.main(["--repeat", "1", "--methods", "primed,t3a"]) == 0


def test_calibrate_notices_the_wrong_preprocessing_labels_and_images() -> None:
    assert wrong_model.main([]) == 0


@pytest.mark.slow
def test_poison_leaves_the_model_as_good_as_its_source() -> None:
    few = ["--frames", "160", "--rows", "0:160"]
    assert poison.main([*few, "--streams", "black,noise,not a number,one class,steering"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("poison", "lost"), [("black", 0), ("one frame", 0), ("noise", 12)])
def test_fog_after_poison_is_met_as_soon_as_without(poison: str, lost: float) -> None:
    """Points lost on the first 128 images after 512 of poison; then none. 640 it once took."""
    digits, labels = embedded.digits(384), embedded.labels(384)
    fog, rng = corrupt_batch(digits, "fog", 5), np.random.default_rng(0)
    frames = {
        "black": lambda: [np.zeros_like(digits[0])] * 16,
        "one frame": lambda: [digits[3]] * 16,
        "noise": lambda: list(rng.integers(0, 256, (16, *digits[0].shape), dtype=np.uint8)),
    }[poison]
    fresh, poisoned = (AdaptiveModel.load(embedded.MODEL, threads=1) for _ in range(2))
    for _ in range(32):
        poisoned.predict(frames())
    right = [
        np.concatenate([model.predict(fog[at : at + 16]).labels for at in range(0, 384, 16)])
        == labels
        for model in (fresh, poisoned)
    ]
    first, later = (100 * (right[0][part].mean() - right[1][part].mean())
                    for part in (slice(128), slice(128, None)))  # fmt: skip
    assert first <= lost
    assert later <= 1.0


@pytest.mark.slow
def test_services_and_streams_end_in_order() -> None:
    assert signals.main(["--count", "1"]) == 0


@pytest.mark.slow
def test_nothing_grows_or_wears_out() -> None:
    assert long_run.main(["--batches", "500"]) == 0
