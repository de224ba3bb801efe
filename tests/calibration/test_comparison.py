"""What calibration measures of channel moments."""

from pathlib import Path

import pytest

from zotta_edge.calibration import comparison
from zotta_edge.calibration.calibrate import Settings, calibrate
from zotta_edge.calibration.selection import Choice
from zotta_edge.models import embedded


def test_a_site_takes_back_the_share_that_regains_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "SHARES", (1e-6, 0.5))
    settings, digits = Settings(Choice(layers=(1,)), samples=64, threads=1), embedded.digits(64)
    report = calibrate(Path(embedded.RESNET), digits, settings=settings)
    moments = comparison.compare_methods(report, digits, settings).info.moments
    assert moments is not None
    assert moments.share == 0.5
    assert moments.gains["moments"] > 0
