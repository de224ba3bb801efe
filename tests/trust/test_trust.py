"""The studies of trust in their short forms; each file's docstring has the long one."""

import access
import disk
import http_requests
import kills
import pytest
import state_files


@pytest.mark.slow
def test_nobody_gets_in() -> None:
    assert access.main([]) == 0


@pytest.mark.slow
def test_a_killed_writer_leaves_the_old_state_or_the_new_one() -> None:
    assert kills.main(["--count", "25", "--services", "1"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["state", "calibrate", "export"])
def test_a_failing_disk_harms_no_file(operation: str) -> None:
    assert disk.main(["--only", operation, "--step", "9"]) == 0


def test_damaged_states_are_refused() -> None:
    few = ["--flips", "100", "--forged", "60", "--step", "211"]
    assert state_files.main(few) == 0


@pytest.mark.slow
def test_hostile_requests_harm_nobody() -> None:
    assert http_requests.main(["--count", "1500"]) == 0
