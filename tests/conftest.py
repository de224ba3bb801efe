"""Fixtures every test may use."""

import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

# As the command line does, and so every service that a test starts: bits depend on it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when NumPy is imported, below

import onnx  # noqa: E402
import onnxruntime as ort  # noqa: E402
import pytest  # noqa: E402
import toy  # noqa: E402

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "data"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever runs a published model, or makes its stand-in, takes seconds."""
    for item in items:
        if "shared_data" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """A service that a test starts in this process sets up the log, for good."""
    loggers = logging.getLogger(), logging.getLogger("zotta_edge")
    before = [(logger, logger.level, logger.handlers[:]) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.fixture(scope="session")
def shared_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Published models and images, which may not be copied into the project, or their stand-in."""
    if SHARED.is_dir():
        return SHARED
    import stand_in

    return stand_in.make(tmp_path_factory.mktemp("shared"))


@pytest.fixture(scope="session")
def published_data() -> Path:
    """The published models and images themselves: for tests of how accurate they are."""
    if not SHARED.is_dir():
        pytest.skip("needs the published weights and images beside the checkout")
    return SHARED


@pytest.fixture(scope="session")
def token_statistics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the embedded digits model, for PEA."""
    import numpy as np

    from zotta_edge.__main__ import main
    from zotta_edge.models import embedded

    folder = tmp_path_factory.mktemp("tokens")
    clean = np.load(embedded.STREAM)["images"][:64].repeat(4, axis=1).repeat(4, axis=2)
    np.save(folder / "clean.npy", clean)
    shutil.copy(embedded.MODEL, folder / "digits.onnx")
    asked = ["--layers", "1", "--token-statistics", str(folder / "tokens.npz")]
    asked += ["--source", str(folder / "clean.npy")]
    assert main(["calibrate", str(folder / "digits.onnx"), *asked]) == 0
    return folder / "tokens.npz"


@pytest.fixture(scope="session")
def signed_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded ViT with signatures, from the few digits that ship with it."""
    import signed

    return signed.make(tmp_path_factory.mktemp("signed") / "signed.onnx")


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every session that is opened."""
    opened: list[object] = []
    start = ort.InferenceSession.__init__

    def counted(self: object, *arguments: object, **options: object) -> None:
        opened.append(self)
        start(self, *arguments, **options)

    monkeypatch.setattr(ort.InferenceSession, "__init__", counted)
    return opened


@pytest.fixture(scope="session")
def residual_net() -> onnx.ModelProto:
    return toy.residual_net()
