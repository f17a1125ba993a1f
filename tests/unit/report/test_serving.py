"""The server of a recording: who may read it, what it gives out, and the hand-over of a trace."""

import base64
import gzip
import hashlib
import http.client
import os
import re
import threading
from urllib.parse import urlsplit

import pytest

from profstack.report.serving import RecordingServer

TRACE = gzip.compress(b'{"traceEvents": []}')
PAGE = b"<!doctype html>the page"
NOT_FOUND = (404, b"not found\n")


@pytest.fixture
def folder(tmp_path):
    """A recording in a folder whose name would be markup."""
    folder = tmp_path / "runs" / "<b>train-0001"
    (folder / "torch").mkdir(parents=True)
    (folder / "report.html").write_bytes(PAGE)
    (folder / "torch" / "trace.json.gz").write_bytes(TRACE)
    for name in ("torch/x.html", "report.json", "run.log", "../secret.txt"):
        (folder / name).write_text("<script>alert(1)</script>")
    return folder


@pytest.fixture
def server(folder):
    with RecordingServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server, path, *, host=None, method="GET"):
    """Status, body and head of an answer, asked for without a client's tidying of the path."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body, dict(answer.getheaders())


def below(server, name):
    """The path of a name below the token."""
    return urlsplit(server.address).path + name


def test_files_are_given_out_below_the_token(server, folder):
    for name, kind in (
            ("", "text/html; charset=utf-8"), ("torch/trace.json.gz", "application/gzip"),
            ("run.log", "text/plain; charset=utf-8"),
            # Only the page is HTML.
            ("report.json", "application/json; charset=utf-8"),
            ("torch/x.html", "application/octet-stream")):  # fmt: skip
        content = (folder / (name or "report.html")).read_bytes()
        status, body, head = ask(server, below(server, name))
        assert (status, body, head["Content-Type"]) == (200, content, kind)
        wanted = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
        wanted |= {"X-Frame-Options": "DENY", "Cache-Control": "no-store"}
        wanted["Cross-Origin-Resource-Policy"] = "same-origin"
        assert {key: head[key] for key in wanted} == wanted
        assert "Content-Encoding" not in head
        status, body, head = ask(server, below(server, name), method="HEAD")
        assert (status, body, int(head["Content-Length"])) == (200, b"", len(content))
    assert ask(server, below(server, ""), method="POST")[0] == 501


def test_nothing_is_given_out_without_the_token_or_by_a_foreign_name(server):
    port, token, other = server.server_port, server.token, "x" * len(server.token)
    for path in ("/", "/report.html", f"/{other}/report.html", "//report.html", "/%C3%A9",
                 f"/{token[:-1]}/report.html"):  # fmt: skip
        assert ask(server, path)[:2] == NOT_FOUND
    assert (len(token), server.socket.getsockname()[0]) == (32, "127.0.0.1")
    assert server.page_address == f"http://127.0.0.1:{port}/{token}/report.html"
    path = below(server, "report.html")
    assert ask(server, path, host=f"localhost:{port}")[:2] == (200, PAGE)
    for host in (f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", "evil.example"):
        assert ask(server, path, host=host)[:2] == NOT_FOUND


def test_nothing_outside_the_recording_is_given_out(server, folder):
    secret = folder.parent / "secret.txt"
    os.symlink(secret, folder / "link.txt")
    for name in (
        "../secret.txt", "%2e%2e/secret.txt", "..%2fsecret.txt", "link.txt", "torch", str(secret),
        "%2f" + str(secret)[1:], "torch/../../secret.txt", "no%00name", "missing.txt",
    ):  # fmt: skip
        assert ask(server, below(server, name))[:2] == NOT_FOUND, name
    os.symlink(folder / "report.json", folder / "inside.json")
    assert ask(server, below(server, "inside.json"))[0] == 200


def test_the_hand_over_shows_names_as_text(server, folder):
    assert server.handover_address == f"{server.address}perfetto"
    status, body, head = ask(server, below(server, "perfetto"))
    assert (status, head["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert (b"<b>train" in body, b"&lt;b&gt;train-0001" in body) == (False, True)
    [script] = re.findall(rb"<script>(.*?)</script>", body, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    policy = {*head["Content-Security-Policy"].split("; ")}
    none = {"default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'"}
    assert {*none, f"script-src 'sha256-{digest}'"} <= policy
    (folder / "torch" / "trace.json.gz").unlink()
    assert server.handover_address is None
    assert ask(server, below(server, "perfetto"))[:2] == NOT_FOUND
