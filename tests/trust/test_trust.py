"""The studies of trust in their short forms; each file's docstring has the long one."""

import access
import disk
import kills
import pytest


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
