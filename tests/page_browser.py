"""A headless Chromium for tests, driven over its DevTools pipe with the standard library alone.

Chromium reads commands from file descriptor 3 and writes answers and events to 4, each a JSON
text that ends in a zero byte. Every console error and every request that is not the page itself
is kept, so that a test can say there was none.
"""

from __future__ import annotations

import atexit
import base64
import functools
import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome")
EXECUTABLE = next((found for name in _NAMES if (found := shutil.which(name))), None)
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-extensions",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)

# Gives the two pipes the numbers that Chromium expects. Both are first moved out of each other's
# way; a shell cannot do it, since some know descriptors up to 9 only.
_LAUNCH = """
import fcntl, os, sys
pipes = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 20) for number in sys.argv[1:3]]
os.dup2(pipes[0], 3)
os.dup2(pipes[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""

# Resolves when no view is being drawn, and nothing was changed for so many milliseconds.
_SETTLED = """
new Promise(done => {
  let last = performance.now();
  const changes = new MutationObserver(() => { last = performance.now(); });
  changes.observe(document, {
    subtree: true, childList: true, attributes: true, characterData: true,
  });
  const look = () => {
    if (document.querySelector('main[aria-busy]')) last = performance.now();
    if (performance.now() - last < %d) { requestAnimationFrame(look); return; }
    changes.disconnect();
    done();
  };
  requestAnimationFrame(look);
})
"""

# What an expression looks like that does more than read.
_TOUCHES = re.compile(
    r"click|dispatch|scroll(?:To|By|Into)|focus\(|blur|Storage|history|location|remove|append|replaceC|prepend"
    r"|setAttribute|classList|Promise|setTimeout|\.\w+\s*\+?=(?![=>])|\]\s*=(?![=>])|delete "
)


class Browser:
    """One Chromium with one page; used with `with`."""

    def __init__(self, profile: Path) -> None:
        assert EXECUTABLE is not None, "no Chromium on this machine"
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        numbers = (str(to_browser), str(from_browser))
        flags = (*_FLAGS, f"--user-data-dir={profile}", "about:blank")
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", _LAUNCH, *numbers, EXECUTABLE, *flags],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self._opened = 0
        # Whether anything but reading was done since the page was opened, and what it is the page
        # of: so long as it was only read it is as good as opened anew.
        self.touched = False
        self.shows: str | None = None
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        self._connect()

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser, by force if it does not go by itself."""
        try:
            self._send("Browser.close", {}, None)
            self._process.wait(timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def open(
        self, path: Path, *, at: str = "", width: int = 1400, height: int = 900, dark: bool = False
    ) -> None:
        """Load a file and wait until it has drawn itself; `at` is what stands after the #."""
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        # With a number in the address it is a new page even where only the part after # differs.
        self._opened += 1
        self.shows = None
        way = f"{path.resolve().as_uri()}?{self._opened}"
        self.call("Page.navigate", url=f"{way}#{at}" if at else way)
        deadline = time.monotonic() + 30
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            assert time.monotonic() < deadline, "the page did not load"
            self._receive(deadline)
        self.settle()
        self.touched = False

    def resize(self, width: int, height: int) -> None:
        """Give the window another size."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)

    def settle(self, quiet_ms: int = 50) -> None:
        """Wait until the view is drawn and nothing of the page changes for some milliseconds.

        Longer than two frames: what observers of sizes cause comes in the frame after.
        """
        self._run(_SETTLED % quiet_ms)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression on the page; its exception is an AssertionError."""
        self.touched = self.touched or _TOUCHES.search(expression) is not None
        return self._run(expression)

    def look_at(self, selector: str) -> None:
        """Bring an element to the middle of the window, which is no more than reading."""
        self._run(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")

    def _run(self, expression: str) -> Any:
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def click(self, selector: str, number: int = 0) -> None:
        """Click an element as a script does and let the page draw."""
        target = f"document.querySelectorAll({json.dumps(selector)})[{number}]"
        self.evaluate(f"{target}.dispatchEvent(new MouseEvent('click', {{bubbles: true}}))")
        self.settle()

    def type(self, selector: str, text: str) -> None:
        """Put text into a field as if typed."""
        target = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(
            f"(() => {{ const field = {target}; field.value = {json.dumps(text)};"
            " field.dispatchEvent(new Event('input', {bubbles: true}));"
            " field.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )
        # What is searched for is looked up when nothing was typed for 80 ms.
        self.settle(120)

    def key(self, key: str) -> None:
        """Press a key on whatever has the focus."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, **text)
        self.settle()

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Save a picture of the window, or of the whole page."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def errors(self) -> list[str]:
        """Console errors, uncaught exceptions and broken policies since the page was opened."""
        found = []
        for event in self._events:
            method, values = event["method"], event["params"]
            if method == "Runtime.exceptionThrown":
                found.append(str(values["exceptionDetails"]))
            elif method == "Log.entryAdded" and values["entry"]["level"] in ("error", "warning"):
                found.append(values["entry"]["text"])
            elif method == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning"):
                found.append(str(values["args"]))
        return found

    def requests(self) -> list[str]:
        """Addresses that were asked for since the page was opened, the page itself excepted.

        What lies in the page or in its own memory is no request to anybody.
        """
        asked = [
            event["params"]["request"]["url"]
            for event in self._events
            if event["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in asked[1:] if not url.startswith(("data:", "blob:"))]

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command to the page and return its answer."""
        self.touched = self.touched or method.startswith(
            ("Input.", "Emulation.", "Page.set", "Page.print")
        )
        return self._send(method, parameters, self._session)

    def _connect(self) -> None:
        target = self._send("Target.createTarget", {"url": "about:blank"}, None)["targetId"]
        attached = self._send("Target.attachToTarget", {"targetId": target, "flatten": True}, None)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _send(self, method: str, parameters: dict[str, Any], session: str | None) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        if method == "Browser.close":
            return {}
        deadline = time.monotonic() + 60
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self, deadline: float) -> dict[str, Any]:
        """The next message; events are kept for later."""
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(deadline - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser has ended"
            self._buffer += piece
        text, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self._events.append(message)
        return message


@functools.cache
def shared() -> Browser:
    """The one browser of a test run: starting one takes longer than most tests."""
    profile = tempfile.TemporaryDirectory(prefix="page-browser-")
    browser = Browser(Path(profile.name))
    atexit.register(profile.cleanup)
    atexit.register(browser.close)
    return browser


@contextmanager
def pages(folder: Path) -> Iterator[Callable[..., Browser]]:
    """A function that writes and opens the page of a report; at the end nothing may be broken.

    It opens with all views one under the other, or at the address that is given. A page that the
    browser shows already, and that was only read since it was opened, is taken as it is, but for
    what wants a `fresh` one.
    """
    from profstack.report import html

    def open_page(
        report: dict[str, Any], at: str = "all", *, fresh: bool = False, **window: Any
    ) -> Browser:
        browser = shared()
        wanted = repr((at, window, report))
        if fresh or browser.touched or browser.shows != wanted:
            path = folder / "report.html"
            html.write(report, path)
            browser.open(path, at=at, **window)
            browser.shows = wanted
        return browser

    yield open_page
    assert shared().errors() == []
    assert shared().requests() == []
    assert shared().evaluate("document.querySelectorAll('.broken:not(noscript *)').length") == 0


def texts(browser: Browser, selector: str) -> list[str]:
    """The text of every element a selector finds."""
    found = browser.evaluate(
        f"[...document.querySelectorAll({selector!r})].map(one => one.textContent)"
    )
    assert isinstance(found, list)
    return found


def count(browser: Browser, selector: str) -> int:
    """How many elements a selector finds."""
    return len(texts(browser, selector))


def column(browser: Browser, box: str, number: int) -> list[str]:
    """The texts of a table's column, counted from 1."""
    return texts(browser, f"{box} tbody tr td:nth-child({number})")


def choose(browser: Browser, box: str, text: str) -> None:
    """Press the button with this text."""
    browser.evaluate(
        f"[...document.querySelectorAll({box!r} + ' button')]"
        f".find(one => one.textContent === {text!r}).click()"
    )
    browser.settle()
