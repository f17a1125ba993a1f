"""A headless Chromium for tests, driven over its DevTools pipe with the standard library alone.

Chromium reads commands from file descriptor 3 and writes answers and events to 4, each a JSON
text that ends in a zero byte. Every console error and every request that is not the page itself
is kept, so that a test can say there was none.
"""

import atexit
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
from pathlib import Path

_NAMES = ("chromium", "chromium-browser", "google-chrome")
EXECUTABLE = next((found for name in _NAMES if (found := shutil.which(name))), None)
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-extensions", "--no-first-run", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
# Gives the two pipes the numbers that Chromium expects. Both are first moved out of each other's
# way; a shell cannot do it, since some know descriptors up to 9 only.
_LAUNCH = """
import fcntl, os, sys
pipes = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 20) for number in sys.argv[1:3]]
os.dup2(pipes[0], 3)
os.dup2(pipes[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
# What an expression looks like that does more than read.
_TOUCHES = re.compile(
    r"click|dispatch|scroll(?:To|By|Into)|focus\(|blur|Storage|history|location|remove|append"
    r"|replaceC|prepend|setAttribute|classList|Promise|setTimeout|\.\w+\s*\+?=(?![=>])"
    r"|\]\s*=(?![=>])|delete ")  # fmt: skip


@functools.cache
def snippet(name):
    """The JavaScript of a file of `snippets`."""
    return (Path(__file__).parent / "snippets" / f"{name}.js").read_text(encoding="utf-8")


class Browser:
    """One Chromium with one page; used with `with`."""

    def __init__(self, profile):
        assert EXECUTABLE is not None, "no Chromium on this machine"
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        numbers = (str(to_browser), str(from_browser))
        flags = (*_FLAGS, f"--user-data-dir={profile}", "about:blank")
        self._process = subprocess.Popen([sys.executable, "-S", "-c", _LAUNCH, *numbers, EXECUTABLE,
            *flags], pass_fds=(to_browser, from_browser), **dict.fromkeys(("stdin", "stdout",
            "stderr"), subprocess.DEVNULL))  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number, self._opened = b"", 0, 0
        # Whether anything but reading was done since the page was opened, and what it is the page
        # of: so long as it was only read it is as good as opened anew.
        self.touched, self.shows = False, None
        self._session, self._events = None, []
        target = self._send("Target.createTarget", {"url": "about:blank"}, None)["targetId"]
        attached = self._send("Target.attachToTarget", {"targetId": target, "flatten": True}, None)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.close()

    def close(self):
        """End the browser, by force if it does not go by itself."""
        try:
            self._send("Browser.close", {}, None)
            self._process.wait(timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def open(self, path, *, at="", width=1400, height=900, dark=False):
        """Load a file and wait until it has drawn itself; `at` is what stands after the #."""
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        # With a number in the address it is a new page even where only the part after # differs.
        self._opened += 1
        self.shows = None
        way = f"{Path(path).resolve().as_uri()}?{self._opened}"
        self.call("Page.navigate", url=f"{way}#{at}" if at else way)
        deadline = time.monotonic() + 30
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            assert time.monotonic() < deadline, "the page did not load"
            self._receive(deadline)
        self.settle()
        self.touched = False

    def resize(self, width, height):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)

    def settle(self):
        """Wait until the view is drawn and nothing of the page changes for some frames."""
        self._run(snippet("settled"))

    def wait_for(self, condition, longest_s=60):
        """Wait until an expression is true: a minute is far more than it takes."""
        deadline = time.monotonic() + longest_s
        while not self._run(f"Boolean({condition})"):
            assert time.monotonic() < deadline, f"not yet: {condition}"
            time.sleep(0.02)

    def evaluate(self, expression):
        """The value of a JavaScript expression on the page; its exception is an AssertionError."""
        self.touched = self.touched or _TOUCHES.search(expression) is not None
        return self._run(expression)

    def go(self, address):
        """Go to what stands after the # of an address."""
        self.evaluate(f"location.hash = {json.dumps('#' + address)}")
        self.settle()

    def look_at(self, selector):
        """Bring an element to the middle of the window, which is no more than reading."""
        self._run(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")

    def _run(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
            awaitPromise=True)  # fmt: skip
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def click(self, selector, number=0):
        """Click an element as a script does and let the page draw."""
        target = f"document.querySelectorAll({json.dumps(selector)})[{number}]"
        self.evaluate(f"{target}.dispatchEvent(new MouseEvent('click', {{bubbles: true}}))")
        self.settle()

    def key(self, key):
        """Press a key on whatever has the focus."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, **text)
        self.settle()

    def errors(self):
        """Console errors, uncaught exceptions and broken policies since the page was opened."""
        found, bad = [], ("error", "warning")
        for event in self._events:
            method, values = event["method"], event["params"]
            if method == "Runtime.exceptionThrown":
                found.append(str(values["exceptionDetails"]))
            elif method == "Log.entryAdded" and values["entry"]["level"] in bad:
                found.append(values["entry"]["text"])
            elif method == "Runtime.consoleAPICalled" and values["type"] in bad:
                found.append(str(values["args"]))
        return found

    def requests(self):
        """Addresses that were asked for since the page was opened, the page itself excepted.

        What lies in the page or in its own memory is no request to anybody.
        """
        sent = [one for one in self._events if one["method"] == "Network.requestWillBeSent"]
        asked = [event["params"]["request"]["url"] for event in sent]
        return [url for url in asked[1:] if not url.startswith(("data:", "blob:"))]

    def call(self, method, **parameters):
        """Send one command to the page and return its answer."""
        touching = ("Input.", "Emulation.", "Page.set", "Page.print")
        self.touched = self.touched or method.startswith(touching)
        return self._send(method, parameters, self._session)

    def _send(self, method, parameters, session):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        if method == "Browser.close":
            return {}
        deadline = time.monotonic() + 60
        while (answer := self._receive(deadline)).get("id") != self._number:
            pass
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def _receive(self, deadline):
        """The next message; events are kept for later."""
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(deadline - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser has ended"
            self._buffer += piece
        text, self._buffer = self._buffer.split(b"\0", 1)
        message = json.loads(text)
        if "method" in message:
            self._events.append(message)
        return message


@functools.cache
def shared():
    """The one browser of a test run: starting one takes longer than most tests."""
    profile = tempfile.TemporaryDirectory(prefix="page-browser-")
    browser = Browser(Path(profile.name))
    atexit.register(profile.cleanup)
    atexit.register(browser.close)
    return browser


def texts(browser, selector):
    """The text of every element a selector finds."""
    found = f"[...document.querySelectorAll({selector!r})].map(one => one.textContent)"
    return browser.evaluate(found)


def count(browser, selector):
    return len(texts(browser, selector))


def column(browser, box, number):
    """The texts of a table's column, counted from 1."""
    return texts(browser, f"{box} tbody tr td:nth-child({number})")


def choose(browser, box, text):
    """Press the button with this text."""
    browser.evaluate(f"[...document.querySelectorAll({box!r} + ' button')]"
        f".find(one => one.textContent === {text!r}).click()")  # fmt: skip
    browser.settle()
