"""A headless Chromium, driven by chromedriver over plain HTTP: what a page shows, and what it asks for."""

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.support.waiting import DEADLINE_S, until

QUIET = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)
TAB = "\ue004"


class Browser:
    def __init__(self) -> None:
        driver, chromium = shutil.which("chromedriver"), shutil.which("chromium") or shutil.which("google-chrome")
        if driver is None or chromium is None:
            pytest.skip("no Chromium here: apt-get install chromium chromium-driver")
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        log = Path(self._profile.name) / "driver.log"
        with log.open("wb") as said:
            self._driver = subprocess.Popen(
                [driver, "--port=0"], stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
            )
        self._session = ""
        try:
            text = until(lambda: _after(log.read_text(), "successfully on port "), "chromedriver says its port")
            self._url = f"http://127.0.0.1:{text.partition('.')[0]}"
            arguments = [*QUIET, f"--user-data-dir={self._profile.name}/profile"]
            wanted: dict[str, Any] = {"goog:chromeOptions": {"binary": chromium, "args": arguments}}
            wanted["goog:loggingPrefs"] = {"performance": "ALL", "browser": "ALL"}
            session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
            self._session = f"/session/{session['sessionId']}"
            self.open("about:blank")  # its own first page asks for things of its own
            self.asked()
        except BaseException:
            self.close()
            raise

    def open(self, url: str) -> None:
        self._ask("POST", f"{self._session}/url", {"url": url})

    def run(self, script: str) -> Any:
        """What this JavaScript returns."""
        return self._ask("POST", f"{self._session}/execute/sync", {"script": script, "args": []})

    def text(self) -> str:
        return str(self.run("return document.body.innerText"))

    def until_text(self, *words: str) -> str:
        """Waits until the page shows all of them."""
        last = [""]

        def there() -> str:
            last[0] = self.text()
            return last[0] if all(word in last[0] for word in words) else ""

        try:
            return until(there, f"the page shows {words}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it shows:\n{last[0]}") from None

    def press(self, key: str) -> None:
        actions = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self._ask("POST", f"{self._session}/actions", {"actions": [{"type": "key", "id": "k", "actions": actions}]})

    def tell(self, command: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        return self._ask("POST", f"{self._session}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def looks(self, width: int, *, dark: bool = False, height: int = 900) -> None:
        self.tell(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.tell("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path) -> None:
        """All of the page."""
        shot = self.tell("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def asked(self) -> list[str]:
        """Every address that the page wanted since this was asked last."""
        log = self._ask("POST", f"{self._session}/se/log", {"type": "performance"})
        said = [json.loads(entry["message"])["message"] for entry in log]
        return [one["params"]["request"]["url"] for one in said if one["method"] == "Network.requestWillBeSent"]

    def complaints(self) -> list[str]:
        """What the browser has to say against the page since this was asked last: errors, and what it didn't allow."""
        return [entry["message"] for entry in self._ask("POST", f"{self._session}/se/log", {"type": "browser"})]

    def close(self) -> None:
        if self._session:
            with contextlib.suppress(OSError):
                self._ask("DELETE", self._session)
        with contextlib.suppress(ProcessLookupError):  # its session is its own: whatever it has started ends with it
            os.killpg(self._driver.pid, signal.SIGKILL)
        self._driver.wait()
        self._profile.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"content-type": "application/json"}, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=DEADLINE_S) as reply:
            return json.load(reply)["value"]


def _after(text: str, words: str) -> str:
    return text.partition(words)[2]
