"""`profstack view --serve`: who may read the recording, what is given out, and the hand-over."""

from __future__ import annotations

import gzip
import http.client
import http.server
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import page_browser
import pytest
from data_report import build
from page_browser import EXECUTABLE, Browser, texts

from profstack.commands import main
from profstack.report import files, html
from profstack.report.serving import RecordingServer

TRACE = gzip.compress(b'{"traceEvents": []}')


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A recording as a run leaves it, in a folder with a name that would be markup."""
    folder = tmp_path / "runs" / "<b>train-0001"
    (folder / "torch").mkdir(parents=True)
    (folder / "recording.sqlite").touch()
    (folder / "torch" / "trace.json.gz").write_bytes(TRACE)
    (folder / "torch" / "x.html").write_text("<script>alert(1)</script>")
    (tmp_path / "runs" / "secret.txt").write_text("not for anybody")
    files.write(build(), folder / "report.json")
    html.write(build(), folder / "report.html")
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[RecordingServer]:
    """A server of that recording, running."""
    with RecordingServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(
    server: RecordingServer, path: str, *, host: str | None = None, method: str = "GET"
) -> tuple[int, dict[str, str], bytes]:
    """Status, head and body of an answer, asked for without a client's tidying of the path."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    connection.putheader("Host", host or f"127.0.0.1:{server.server_address[1]}")
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def below(server: RecordingServer, name: str) -> str:
    """The path of a name below the token."""
    return urlsplit(server.address).path + name


def test_the_page_and_the_files_are_given_out_below_the_token(
    server: RecordingServer, folder: Path
) -> None:
    for name in ("", "report.html"):
        status, head, body = ask(server, below(server, name))
        assert (status, head["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert body == (folder / "report.html").read_bytes()
    status, head, body = ask(server, below(server, "torch/trace.json.gz"))
    assert (status, head["Content-Type"], body) == (200, "application/gzip", TRACE)
    assert "Content-Encoding" not in head
    assert ask(server, below(server, "report.json"))[1]["Content-Type"].startswith("application/")
    status, head, body = ask(server, below(server, "report.html"), method="HEAD")
    assert (status, body) == (200, b"")
    assert int(head["Content-Length"]) == (folder / "report.html").stat().st_size


def test_nothing_is_given_out_without_the_token(server: RecordingServer) -> None:
    other = "x" * len(server.token)
    for path in ("/", "/report.html", f"/{other}/report.html", "//report.html", "/%C3%A9"):
        status, _, body = ask(server, path)
        assert (status, body) == (404, b"not found\n")
    assert ask(server, f"/{server.token}"[:-1] + "/report.html")[0] == 404
    assert len(server.token) >= 32


def test_a_foreign_name_for_this_machine_is_refused(server: RecordingServer) -> None:
    port = server.server_address[1]
    path = below(server, "report.html")
    assert ask(server, path, host=f"localhost:{port}")[0] == 200
    for host in (f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", "evil.example"):
        assert ask(server, path, host=host)[0] == 404


def test_nothing_outside_the_recording_is_given_out(server: RecordingServer, folder: Path) -> None:
    os.symlink(folder.parent / "secret.txt", folder / "link.txt")
    for name in (
        "../secret.txt", "%2e%2e/secret.txt", "..%2fsecret.txt", "link.txt", "torch",
        str(folder.parent / "secret.txt"), "%2f" + str(folder.parent / "secret.txt")[1:],
        "torch/../../secret.txt", "no%00name", "missing.txt",
    ):  # fmt: skip
        status, _, body = ask(server, below(server, name))
        assert (status, body) == (404, b"not found\n"), name


def test_only_the_page_is_html(server: RecordingServer) -> None:
    status, head, _ = ask(server, below(server, "torch/x.html"))
    assert (status, head["Content-Type"]) == (200, "application/octet-stream")
    assert head["X-Content-Type-Options"] == "nosniff"
    assert head["Referrer-Policy"] == "no-referrer"


def test_nothing_is_written(server: RecordingServer) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(server, below(server, "report.html"), method=method)[0] == 501


def test_it_listens_on_the_loopback_address_alone(server: RecordingServer) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"


def test_a_browser_that_goes_away_is_not_told_of(
    server: RecordingServer, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with open(folder / "large.bin", "wb") as large:
        large.truncate(64 << 20)
    with socket.create_connection(("127.0.0.1", server.server_address[1])) as client:
        host = f"127.0.0.1:{server.server_address[1]}"
        client.sendall(
            f"GET {below(server, 'large.bin')} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
        )
        assert client.recv(8)
    time.sleep(0.3)
    assert ask(server, below(server, "report.html"))[0] == 200
    assert capfd.readouterr().err == ""


def test_the_hand_over_shows_names_as_text(server: RecordingServer) -> None:
    status, head, body = ask(server, below(server, "perfetto"))
    assert (status, head["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "script-src 'sha256-" in head["Content-Security-Policy"]
    assert b"<b>train" not in body
    assert b"&lt;b&gt;train-0001" in body


def test_without_a_trace_there_is_no_hand_over(server: RecordingServer, folder: Path) -> None:
    (folder / "torch" / "trace.json.gz").unlink()
    assert server.handover_address is None
    assert ask(server, below(server, "perfetto"))[0] == 404


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_interrupted(folder: Path, ending: signal.Signals) -> None:
    command = [sys.executable, "-m", "profstack", "view", "--serve", "--no-browser", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().removeprefix("page: ").strip()
        assert "perfetto" in process.stdout.readline()
        assert "Ctrl-C" in process.stdout.readline()
        parts = urlsplit(address)
        assert (parts.hostname, parts.scheme) == ("127.0.0.1", "http")
        connection = http.client.HTTPConnection("127.0.0.1", parts.port, timeout=10)
        connection.request("GET", parts.path)
        assert connection.getresponse().read() == (folder / "report.html").read_bytes()
        connection.close()
        process.send_signal(ending)
        assert process.wait(10) == (0 if ending == signal.SIGINT else 143)


def test_bad_ports_and_options_are_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for argv, said in (
            (["--serve", "--port", port], "is not free"),
            (["--port", "8000"], "--port needs --serve"),
            (["--serve", "--port", "0"], "is no port"),
            (["--serve", "--snakeviz"], "not allowed with"),
        ):
            assert main(["view", *argv, str(folder)]) == 2
            printed = capsys.readouterr()
            assert said in printed.err
            assert "Traceback" not in printed.err


PERFETTO = b"""<!doctype html><title>stand-in</title><script>
window.addEventListener("message", (event) => {
  if (event.data === "PING") event.source.postMessage("PONG", event.origin);
  else if (event.data.perfetto) fetch("/got/" + event.data.perfetto.buffer.byteLength + "/"
    + encodeURIComponent(event.data.perfetto.title), { method: "POST" });
});
</script>"""


class StandIn(http.server.BaseHTTPRequestHandler):
    """Answers in Perfetto's place: that site is out of reach, its protocol is not."""

    got: list[str]

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(PERFETTO)))
        self.end_headers()
        self.wfile.write(PERFETTO)

    def do_POST(self) -> None:
        self.got.append(self.path)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def stand_in(tmp_path: Path) -> Iterator[tuple[int, list[str]]]:
    """A site with a certificate of its own making: its port and what was handed to it."""
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1",
         "-subj", "/CN=ui.perfetto.dev", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    handler = type("Handler", (StandIn,), {"got": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as site:
        site.socket = context.wrap_socket(site.socket, server_side=True)
        thread = threading.Thread(target=site.serve_forever, daemon=True)
        thread.start()
        yield site.server_address[1], handler.got
        site.shutdown()
        thread.join()


@pytest.mark.skipif(EXECUTABLE is None, reason="there is no Chromium on this machine")
def test_the_served_page_leads_to_the_hand_over_and_a_file_does_not(
    server: RecordingServer, folder: Path
) -> None:
    browser = page_browser.shared()
    ways = "[...document.querySelectorAll('#artifact-table a')].map(one => one.href)"
    browser.open(folder / "report.html", at="environment")
    assert [way for way in browser.evaluate(ways) if way.endswith("perfetto")] == []
    browser.call("Page.navigate", url=server.page_address + "#environment")
    wait_for(lambda: server.handover_address in browser.evaluate(ways))
    assert browser.errors() == []


@pytest.mark.skipif(
    EXECUTABLE is None or shutil.which("openssl") is None, reason="needs Chromium and openssl"
)
def test_the_trace_is_handed_over_when_the_user_asks(
    server: RecordingServer,
    stand_in: tuple[int, list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port, got = stand_in
    way = (
        f"--host-resolver-rules=MAP ui.perfetto.dev:443 127.0.0.1:{port}",
        "--ignore-certificate-errors",
    )
    monkeypatch.setattr(page_browser, "_FLAGS", (*page_browser._FLAGS, *way))
    address = server.handover_address
    assert address is not None
    with Browser(tmp_path / "profile") as browser:
        browser.call("Page.navigate", url=address)
        wait_for(lambda: texts(browser, "#hand") == ["Open the trace in Perfetto"])
        assert got == []
        assert [url for url in browser.requests() if "perfetto.dev" in url] == []
        browser.call(
            "Runtime.evaluate",
            expression="document.getElementById('hand').click()",
            userGesture=True,
        )
        wait_for(lambda: texts(browser, "#said") == ["Handed over."])
        wait_for(lambda: bool(got))
        assert got == [f"/got/{len(TRACE)}/%3Cb%3Etrain-0001"]
        assert browser.errors() == []


def wait_for(holds: object) -> None:
    """Wait until something is so; a minute is far more than it takes."""
    assert callable(holds)
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)
