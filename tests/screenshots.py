"""`python tests/screenshots.py` takes the pictures of the documentation, of a model at work."""

import tempfile
import time
from base64 import b64decode
from pathlib import Path

import served
from browser import Browser, browsing
from served import ADAPTATION, Client

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
BATCHES = 60


def take(browser: Browser, name: str) -> None:
    shot = browser.tell("Page.captureScreenshot", captureBeyondViewport=name == "dashboard.png")
    (IMAGES / name).write_bytes(b64decode(shot["data"]))


def work(server: served.Server) -> None:
    """A stream in fog, and a person who takes a snapshot halfway."""
    images, _ = served.digits()
    client = Client(server.port)
    for batch in range(BATCHES):
        at = 16 * batch
        assert client.infer(images[at : at + 16]).status == 200
        if batch in (20, 40):
            server.post(f"{ADAPTATION}/snapshots")


def main() -> None:
    import cv2

    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, served.serving() as server:
        digit = Path(folder) / "digit.png"
        cv2.imwrite(str(digit), served.digits()[0][5])
        work(server)
        with browsing(Path(folder) / "profile") as browser:
            browser.tell("Emulation.setScrollbarsHidden", hidden=True)
            for name, width, height, phone in (
                ("dashboard.png", 1180, 1560, False),
                ("dashboard-phone.png", 390, 844, True),
            ):
                browser.prefer(prefers_color_scheme="dark" if phone else "light")
                browser.screen(width, height, phone=phone, scale=2 if phone else 1)
                browser.open(f"http://127.0.0.1:{server.port}/")
                browser.wait(lambda: browser.find_all("#layers li"))
                browser.find("#file").send_keys(str(digit))
                browser.wait(lambda: browser.find_all("#top li"))
                time.sleep(1)  # the bars have grown
                take(browser, name)


if __name__ == "__main__":
    main()
