"""The trace of a served recording is handed over to Perfetto when the user asks for it."""

import gzip
import http.server
import shutil
import ssl
import subprocess
import threading
import time
from contextlib import contextmanager

import pytest

from profstack.report import html
from profstack.report.serving import RecordingServer
from tests.support import browser as page_browser
from tests.support.browser import Browser, texts
from tests.support.processes import TESTS
from tests.support.reports import build

TRACE = gzip.compress(b'{"traceEvents": []}')


@contextmanager
def serving(server):
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()


@pytest.fixture
def folder(tmp_path):
    """A recording as a run leaves it, in a folder with a name that would be markup."""
    folder = tmp_path / "runs" / "<b>train-0001"
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "trace.json.gz").write_bytes(TRACE)
    html.write(build(), folder / "report.html")
    return folder


@pytest.fixture
def server(folder):
    with RecordingServer(folder) as server, serving(server):
        yield server


PERFETTO = (TESTS / "support" / "snippets" / "perfetto.html").read_bytes()


class StandIn(http.server.BaseHTTPRequestHandler):
    """Answers in Perfetto's place: that site is out of reach, its protocol is not."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(PERFETTO)))
        self.end_headers()
        self.wfile.write(PERFETTO)

    def do_POST(self):
        self.got.append(self.path)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_args):
        pass


@pytest.fixture
def stand_in(tmp_path):
    """A site with a certificate of its own making: its port and what was handed to it."""
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    made = [
        "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj",
        "/CN=ui.perfetto.dev",
    ]  # fmt: skip
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    handler = type("Handler", (StandIn,), {"got": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as site:
        site.socket = context.wrap_socket(site.socket, server_side=True)
        with serving(site):
            yield site.server_address[1], handler.got


def test_the_served_page_leads_to_the_hand_over_and_a_file_does_not(server, folder):
    browser = page_browser.shared()
    ways = "[...document.querySelectorAll('#artifact-table a')].map(one => one.href)"
    browser.open(folder / "report.html", at="environment")
    assert [way for way in browser.evaluate(ways) if way.endswith("perfetto")] == []
    browser.call("Page.navigate", url=server.page_address + "#environment")
    wait_for(lambda: server.handover_address in browser.evaluate(ways))
    assert browser.errors() == []


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_the_trace_is_handed_over_when_the_user_asks(server, stand_in, tmp_path, monkeypatch):
    port, got = stand_in
    way = (
        f"--host-resolver-rules=MAP ui.perfetto.dev:443 127.0.0.1:{port}",
        "--ignore-certificate-errors",
    )
    monkeypatch.setattr(page_browser, "_FLAGS", (*page_browser._FLAGS, *way))
    with Browser(tmp_path / "profile") as browser:
        browser.call("Page.navigate", url=server.handover_address)
        wait_for(lambda: texts(browser, "#hand") == ["Open the trace in Perfetto"])
        assert (got, [url for url in browser.requests() if "perfetto.dev" in url]) == ([], [])
        browser.call(
            "Runtime.evaluate",
            expression="document.getElementById('hand').click()",
            userGesture=True,
        )
        wait_for(lambda: texts(browser, "#said") == ["Handed over."])
        wait_for(lambda: bool(got))
        assert (got, browser.errors()) == ([f"/got/{len(TRACE)}/%3Cb%3Etrain-0001"], [])


def wait_for(holds):
    """Wait until something is so; a minute is far more than it takes."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)
