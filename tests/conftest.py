"""Fixtures every test may use."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real models and images that may not be copied into the project."""
    if not SHARED.is_dir():
        pytest.skip("needs the shared models and images beside the checkout")
    return SHARED
