"""The dashboard, used in Chromium as a person would: what it shows is what the API says."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
import served
from browser import Browser, browsing
from served import ADAPTATION, CLASSIFY, Client, Server

from zotta_edge.models import embedded

HOSTILE = "<img src=x onerror=alert(1)>"
TOKEN = "correct-horse-battery"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser) -> Browser:
    chromium.open("about:blank")
    chromium.screen(1180, 900)
    chromium.prefer(prefers_color_scheme="light")
    chromium.complaints(), chromium.hosts()  # of what was before
    return chromium


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A model that has seen enough fog to adapt."""
    with served.serving("--deadline", "60") as running:
        feed(running, 0, 12)
        yield running


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Browser]:
    """The dashboard of the adapting model; whatever is done, nothing breaks and no one else is
    asked for anything."""
    visit(browser, server)
    yield browser
    assert browser.complaints() == []
    assert browser.hosts() == {f"127.0.0.1:{server.port}"}


@pytest.fixture(scope="module")
def digit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import cv2

    path = tmp_path_factory.mktemp("images") / "digit.png"
    cv2.imwrite(str(path), served.digits()[0][5])
    return path


def feed(server: Server, first: int, last: int) -> None:
    images, _ = served.digits()
    client = Client(server.port)
    for batch in range(first, last):
        assert client.infer(images[16 * batch : 16 * batch + 16]).status == 200
    client.close()


def visit(browser: Browser, server: Server) -> None:
    browser.open(f"http://127.0.0.1:{server.port}/")
    browser.wait(lambda: browser.find_all("#layers li"))


def percent(share: float) -> str:
    return "< 0.1 %" if share < 0.0005 else f"{100 * share:.1f} %"


def state(browser: Browser) -> str:
    return browser.text("#state b")


def value(browser: Browser, card: str) -> str:
    return browser.text(f"#{card} .value span")


def test_shows_what_the_api_says(page: Browser, server: Server) -> None:
    feed(server, 12, 14)  # while someone looks
    page.wait(lambda: value(page, "steps") == "14")
    now, points = server.get(ADAPTATION), server.get(f"{ADAPTATION}/history")["points"]
    assert page.text("h1") == now["name"]
    assert state(page) == now["phase"].capitalize() == "Adapting"
    assert value(page, "drift") == f"{now['drift']:.2f}"
    assert float(value(page, "drift")) > 0.2  # beyond what the filter has taken back
    assert page.text("#drift .more") == f"{now['significance']:.0f} times chance"
    assert value(page, "entropy") == f"{now['entropy']:.2f}"
    assert page.text("#entropy .more") == f"{math.log(10):.2f} is guessing"
    assert page.text("#steps .more") == f"{now['images']} images seen"
    shown = float(value(page, "latency").replace(",", ""))
    assert shown == pytest.approx(1000 * now["latency"]["p50"], rel=0.01)
    for card, now_too in (("drift", 1), ("entropy", 0), ("steps", 1), ("latency", 0)):
        line = page.find(f"#{card} .line").get_attribute("d") or ""
        assert line.count("L") == len(points) - 1 + now_too
        assert page.text(f"#{card} .foot").startswith(f"{len(points)} batches, up to ")
    answers = [f"{one['label']}\n{one['count']}" for one in now["recent"]]
    assert page.texts("#recent li") == answers[:10]


def test_shows_the_filter_and_why_it_was_chosen(page: Browser, server: Server) -> None:
    now = server.get(ADAPTATION)
    chosen = [event for event in now["events"] if event["kind"] == "filter"]
    assert chosen, "fog is answered with a filter"
    assert value(page, "filter") == now["filter"] == chosen[-1]["after"] != "none"
    assert page.text("#filter .more").startswith("since ")
    (entry,) = [text for text in page.texts("#events li") if f"Filter: {now['filter']}" in text]
    assert chosen[-1]["reason"] in entry


def test_bars_are_as_long_as_the_layers_have_moved(page: Browser, server: Server) -> None:
    layers = server.get(ADAPTATION)["layers"]
    farthest = max(layer["distance"] for layer in layers)
    assert farthest > 0.01
    told = [f"{100 * one['distance']:.1f} %" if one["chosen"] else "fixed" for one in layers]
    names = [layer["name"] for layer in layers]
    assert page.texts("#layers li") == [f"{n}\n{t}" for n, t in zip(names, told, strict=True)]
    lengths = """[...document.querySelectorAll('#layers .track')].map(
        t => t.firstChild.getBoundingClientRect().width / t.getBoundingClientRect().width)"""
    expected = pytest.approx([layer["distance"] / farthest for layer in layers], abs=0.01)
    page.wait(lambda: page.run(lengths) == expected)


def test_dropped_image_is_classified(page: Browser, server: Server, digit: Path) -> None:
    before = server.get(ADAPTATION)
    page.drop(digit)
    page.wait(lambda: len(page.find_all("#top li")) == 5)
    expected = server.request("POST", f"{CLASSIFY}?adapt=false", digit.read_bytes()).json["top"]
    rows = [f"{one['label']}\n{percent(one['probability'])}" for one in expected]
    assert page.texts("#top li") == rows
    assert page.text("#verdict") == f"{rows[0].replace(chr(10), ': ')} sure"
    page.wait(lambda: page.run("document.querySelector('#answer img').naturalWidth") == 32)
    after = server.get(ADAPTATION)
    assert after["answered"] == before["answered"] + 2
    assert after["waiting"] == before["waiting"] == 0  # looked at, not learned from


def test_chosen_image_may_be_learned_from(page: Browser, server: Server, digit: Path) -> None:
    page.click("#learn")
    page.find("#file").send_keys(str(digit))
    page.wait(lambda: page.find_all("#top li"))
    server.wait_until(lambda now: now["waiting"] == 1)


def test_says_why_a_file_is_refused(browser: Browser, server: Server, tmp_path: Path) -> None:
    visit(browser, server)
    text = tmp_path / "notes.png"
    text.write_text("not an image")
    browser.drop(text)
    refusal = server.request("POST", CLASSIFY, text.read_bytes()).json["error"]
    browser.wait(lambda: browser.text("#verdict") == f"No answer: {refusal}.")
    assert browser.find_all("#top li") == []
    assert state(browser) == "Adapting"


def test_pause_and_resume_by_keyboard(page: Browser, server: Server) -> None:
    page.run("document.querySelector('#pause').focus()")
    page.press("Enter")
    page.wait(lambda: state(page) == "Paused")
    assert server.get(ADAPTATION)["paused"]
    assert page.text("#pause") == "Resume"
    assert page.run("document.activeElement.id") == "pause"
    assert page.texts("#events li")[0].endswith("Paused")
    page.press("Enter")
    page.wait(lambda: state(page) == "Adapting")
    assert not server.get(ADAPTATION)["paused"]


def test_snapshot_reset_restore(page: Browser, server: Server) -> None:
    learned = server.get(ADAPTATION)
    assert learned["distance"] > 0
    page.click("#snapshot")
    page.wait(lambda: len(page.find_all("#snapshots li")) == 1)
    (taken,) = server.get(f"{ADAPTATION}/snapshots")["snapshots"]
    assert f"after {taken['steps']} steps" in page.text("#snapshots li")

    page.click("#reset")
    page.press("Escape")  # a second thought
    assert server.get(ADAPTATION)["distance"] == learned["distance"]
    page.click("#reset")
    page.click("#yes")
    page.wait(lambda: page.text("#distance-note").startswith("0.0 %"))
    assert server.get(ADAPTATION)["distance"] == 0
    assert "on request" in page.text("#last-reset")

    page.click("#snapshots button")
    page.click("#yes")
    page.wait(lambda: page.text("#distance-note").startswith(f"{100 * learned['distance']:.1f} %"))
    restored = server.get(ADAPTATION)
    assert restored["distance"] == learned["distance"]
    assert restored["layers"] == learned["layers"]
    assert [event["kind"] for event in restored["events"][-3:]] == ["snapshot", "reset", "restore"]


@pytest.mark.parametrize("width", [320, 390])
def test_fits_a_phone(page: Browser, digit: Path, width: int) -> None:
    page.screen(width, 780, phone=True)
    page.drop(digit)
    page.wait(lambda: page.find_all("#top li"))
    assert page.run("innerWidth") == width
    assert page.run("document.documentElement.scrollWidth") <= width
    outside = """[...document.querySelectorAll('body *')].filter(e => e.checkVisibility()
        && !e.closest('svg') && e.getBoundingClientRect().right > innerWidth + 0.5)
        .map(e => e.outerHTML.slice(0, 80))"""
    assert page.run(outside) == []
    page.driver.refresh()
    page.wait(lambda: page.find("#camera").is_displayed())
    low = "[...document.querySelectorAll('#steer button')].filter(b => b.offsetHeight < 44).length"
    assert page.run(low) == 0


def test_dark_and_without_motion(page: Browser) -> None:
    def ground() -> float:
        colour = str(page.run("getComputedStyle(document.body).backgroundColor"))
        return sum(map(int, colour.strip("rgb()").split(",")))

    moving = "getComputedStyle(document.querySelector('.fill')).transitionDuration"
    assert ground() > 600
    assert page.run(moving) == "0.3s"
    page.prefer(prefers_color_scheme="dark", prefers_reduced_motion="reduce")
    assert ground() < 150
    assert page.run(moving) == "0s"


def test_nothing_runs_but_the_page(browser: Browser, server: Server) -> None:
    policy = server.request("GET", "/").headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    visit(browser, server)
    browser.run(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'hit = 1'}))"
    )
    assert browser.run("typeof hit") == "undefined"
    assert any("Content Security Policy" in line for line in browser.complaints())


def test_names_are_text_and_a_token_is_asked_for(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    model = hostile_model(tmp_path / "hostile.onnx")
    with served.serving("--model", model, "--token-file", tmp_path / "token") as server:
        visit(browser, server)
        adaptation = "/v2/models/hostile/adaptation"
        browser.click("#pause")
        browser.wait(lambda: browser.find("#ask").is_displayed())
        browser.find("#token").send_keys("wrong-token", "\n")
        browser.wait(lambda: "refused" in browser.text("#ask-label"))
        assert not server.get(adaptation)["paused"]
        browser.find("#token").send_keys(TOKEN, "\n")
        browser.wait(lambda: state(browser) == "Paused")
        assert server.get(adaptation)["paused"]

        browser.driver.refresh()
        browser.wait(lambda: state(browser) == "Paused")
        browser.drop(tmp_path / "hostile.png")
        browser.wait(lambda: browser.texts("#recent li") == [f"{HOSTILE}\n1"])
        assert browser.text("#verdict").startswith(f"{HOSTILE}: ")
        assert browser.run("document.querySelectorAll('img').length") == 1
        body, headers = served.infer_body(served.digits()[0][:16])
        headers |= {"Authorization": f"Bearer {TOKEN}"}
        assert server.request("POST", "/v2/models/hostile/infer", body, headers).status == 200
        rows = [f"{one['label']}\n{one['count']}" for one in server.get(adaptation)["recent"]]
        assert len(rows) > 1
        browser.wait(lambda: browser.texts("#recent li") == rows)
        browser.click("#forget")
        assert browser.run("sessionStorage.length") == 0


def hostile_model(path: Path) -> Path:
    """The digits with names that no one should have; beside it one of their images."""
    import cv2

    model = onnx.load(embedded.MODEL)
    for entry in model.metadata_props:
        if entry.key == "zotta.labels":
            entry.value = json.dumps([HOSTILE] * 10)
    onnx.save(model, path)
    cv2.imwrite(str(path.with_suffix(".png")), served.digits()[0][5])
    return path


def test_says_when_the_service_is_gone_and_comes_back(browser: Browser) -> None:
    with served.serving() as server:
        visit(browser, server)
        assert state(browser) == "Waiting"
        server.process.kill()
        browser.wait(lambda: state(browser) == "Disconnected")
        assert not browser.find("#pause").is_enabled()
        port = server.port
    with served.serving("--port", str(port), "--adapt", "off") as again:
        browser.click("#retry")
        browser.wait(lambda: state(browser) == "Off")
        assert again.get(ADAPTATION)["mode"] == "off"
        assert not browser.find("#pause").is_enabled()
        assert browser.find("#reset").is_enabled()
