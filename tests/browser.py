"""A real Chromium without a window, and what a person does with it."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.remote.webelement import WebElement

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync
    --disable-background-networking --disable-component-update --disable-dev-shm-usage"""


class Browser:
    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        self.driver.get(address)

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element("css selector", selector)

    def find_all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements("css selector", selector)

    def click(self, selector: str) -> None:
        self.wait(lambda: self.find(selector).is_displayed() and self.find(selector).is_enabled())
        self.driver.execute_script(
            "arguments[0].scrollIntoView({block: 'center'})", self.find(selector)
        )
        self.find(selector).click()

    def press(self, key: str) -> None:
        """A key, wherever the focus is."""
        ActionChains(self.driver).send_keys(getattr(Keys, key.upper())).perform()

    def text(self, selector: str) -> str:
        return self.find(selector).text

    def texts(self, selector: str) -> list[str]:
        return [element.text for element in self.find_all(selector)]

    def run(self, script: str) -> Any:
        return self.driver.execute_script(f"return {script}")

    def wait(self, condition: Callable[[], Any], seconds: float = 10) -> Any:
        """The condition's value once it holds; entries of a list may be replaced meanwhile."""
        end = time.monotonic() + seconds
        while True:
            try:
                if value := condition():
                    return value
            except StaleElementReferenceException:
                pass
            assert time.monotonic() < end, f"still not so: {self.text('body')}"
            time.sleep(0.05)

    def tell(self, method: str, **parameters: Any) -> Any:
        """The browser itself, beside the page."""
        return self.driver.execute_cdp_cmd(method, parameters)

    def drop(self, *files: Path, over: str = "body") -> None:
        """Drag files from the desktop and let go: the events are the browser's own."""
        box = self.find(over).rect
        place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + min(box["height"], 400) / 2}
        data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.tell("Input.dispatchDragEvent", type=kind, data=data, **place)

    def screen(self, width: int, height: int, *, phone: bool = False, scale: float = 1) -> None:
        self.tell(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=scale, mobile=phone,
        )  # fmt: skip
        self.tell("Emulation.setTouchEmulationEnabled", enabled=phone)

    def prefer(self, **features: str) -> None:
        """Media features, such as prefers_color_scheme="dark"."""
        chosen = [{"name": n.replace("_", "-"), "value": v} for n, v in features.items()]
        self.tell("Emulation.setEmulatedMedia", features=chosen)

    def complaints(self) -> list[str]:
        """Everything in the console since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def hosts(self) -> set[str]:
        """Whom the browser has asked for anything since the last call."""
        messages = [json.loads(e["message"])["message"] for e in self.driver.get_log("performance")]
        requests = [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]
        return {urlsplit(url).netloc for url in requests if url.startswith("http")}


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("needs Chromium and its driver: apt install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS.split(), f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Service(DRIVER))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
