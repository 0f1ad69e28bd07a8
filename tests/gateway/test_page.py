"""The door's page in a headless Chromium, in front of a real pair: an engine is killed, and the page says so."""

import asyncio
import signal
import threading
from pathlib import Path

import pytest

from tests.engine.shims import House
from tests.gateway.door import GatewayProgram, Stream
from tests.gateway.test_failover import house
from tests.gateway.under_load import pair, whole
from tests.support.browser import TAB, Browser
from tests.support.waiting import until

__all__ = ["house"]
pytestmark = pytest.mark.slow
HOSTILE = "<img src=x onerror='window.hit=1'>"


def test_the_page_shows_a_failover_as_it_happens_and_asks_nothing_but_this_door(house: House, tmp_path: Path) -> None:
    shims = pair(house)
    lock = house.lock
    assert lock is not None
    with Browser() as page:
        door = GatewayProgram(house).serving()
        active, standby = whole(shims)
        old, new = active.engine_id, standby.engine_id
        page.looks(1280)
        page.open(f"{door.url}/failover/")
        page.until_text(f"{old} serves; {new} is ready to take over.", "None since the door began.")
        page.run(
            "window.said = []; new MutationObserver(() => said.push(document.querySelector('h1').textContent))"
            ".observe(document.querySelector('h1'), {childList: true, characterData: true, subtree: true})"
        )
        answer = Stream({"prompt": "The sea", "max_tokens": 400, "temperature": 0, "ignore_eos": True})
        client = threading.Thread(target=lambda: asyncio.run(answer.run(door.port)))
        client.start()
        page.until_text("in flight\n1")
        active.main().kill()
        page.until_text(f"{new} serves", f"{old} → {new}", "until the next one was granted", "life lock proven after")
        assert any(f"{new} serves" in said for said in page.run("return window.said"))
        page.until_text(f"{new} serves; {old} is ready to take over.", "first answer goes on", "1 answer paused: ")
        client.join()
        assert answer.whole, answer.error

        nodes = page.tell("Accessibility.getFullAXTree")["nodes"]
        heard = {
            (node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]
        }
        assert ("heading", f"{new} serves; {old} is ready to take over.") in heard
        assert any(role in ("image", "img") and name.startswith("proof of its end") for role, name in heard), heard
        assert page.run("return document.querySelector('h1').closest('[aria-live=polite]') !== null")

        for width, dark in ((1280, False), (1280, True), (360, False), (360, True)):
            page.looks(width, dark=dark)
            assert page.run("return document.documentElement.scrollWidth") <= width
            light = page.run(
                "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0] > 128"
            )
            assert light is not dark
            page.picture(tmp_path / f"{width}{'-dark' if dark else ''}.png")

        focus = "return document.activeElement.tagName"
        page.press(TAB)
        assert page.run(focus) == "SUMMARY", "the keyboard comes to the failover first"
        shown = "return document.activeElement.parentNode.open"
        was = page.run(shown)
        page.press("\ue007")
        assert page.run(shown) is not was
        page.run("window.before = seen; seen.pairs[0].failovers[0].from = 'x'; draw(seen)")
        until(lambda: page.run("return seen !== window.before"), "the next document")
        assert page.run(focus) == "SUMMARY" and page.run(shown) is not was, "what is drawn anew keeps its focus"
        page.press(TAB)
        assert page.run(focus) == "A"

        page.run(f"seen.pairs[0].alarms = [{HOSTILE!r}]; seen.pairs[0].engines[0].why = {HOSTILE!r}; draw(seen)")
        assert page.run("return document.querySelector('img') === null && window.hit === undefined")

        lock.signal(signal.SIGSTOP)
        page.until_text("No lock server has answered since", f"{new} serves on", "stopped (state T in ps: kill -CONT)?")
        lock.signal(signal.SIGCONT)
        page.until_text(f"{new} serves; {old} is ready to take over.")

        door.kill()
        page.until_text("The door hasn't answered since", "Not known. Last seen:")
        asked = [url for url in page.asked() if not url.startswith("data:")]
        assert {url.removeprefix(f"{door.url}/failover/") for url in asked} == {"", "events"}
        refused = [
            line for line in page.complaints() if "ERR_CONNECTION_REFUSED" not in line and "ERR_INCOMPLETE" not in line
        ]
        assert refused == []
