"""Serve one recording's page and files to browsers of this machine alone.

The server listens on the loopback address, and every path begins with a random token, so that
another user of the machine or a web page that tries ports finds nothing. Requests that name
another host are refused: a foreign name may resolve to this machine. Only files inside the
recording are served, and only its page as HTML.
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import shutil
import sys
from contextlib import ExitStack
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import jinja2

LOOPBACK = "127.0.0.1"
PAGE = "report.html"
HANDOVER = "perfetto"
_TRACE = "torch/trace.json.gz"
_TYPES = {
    ".json": "application/json; charset=utf-8",
    ".gz": "application/gzip",
    ".log": "text/plain; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".dat": "text/plain; charset=utf-8",
}


class RecordingServer(ThreadingHTTPServer):
    """A server of the recording in `folder`; `port` 0 takes a free one.

    Raise OSError where the port is taken.
    """

    daemon_threads = True
    # Two servers on one port would answer in turn.
    allow_reuse_address = False

    def __init__(self, folder: Path, *, port: int = 0) -> None:
        self.folder = folder.resolve()
        self.token = secrets.token_urlsafe(24)
        super().__init__((LOOPBACK, port), _Handler)

    def server_bind(self) -> None:
        """Bind without asking a name server for this machine's name."""
        # HTTPServer's method looks the name up, which can take seconds and uses the network.
        super(ThreadingHTTPServer, self).server_bind()
        self.server_name, self.server_port = LOOPBACK, self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print errors, but not those of a browser that leaves in the middle of an answer."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        """Return the address of the recording, with a slash at the end."""
        return f"http://{LOOPBACK}:{self.server_address[1]}/{self.token}/"

    @property
    def page_address(self) -> str:
        """Return the address of the page."""
        return self.address + PAGE

    @property
    def handover_address(self) -> str | None:
        """Return the address that hands the trace to Perfetto; None without a trace."""
        return self.address + HANDOVER if self.file(_TRACE) is not None else None

    @property
    def hosts(self) -> tuple[str, str]:
        """Return the names by which a request may call this server."""
        port = self.server_address[1]
        return f"{LOOPBACK}:{port}", f"localhost:{port}"

    def file(self, name: str) -> Path | None:
        """Return the recording's file of this name; None where it has none."""
        try:
            path = (self.folder / name).resolve()
            inside = path.is_relative_to(self.folder) and path.is_file()
        except (OSError, ValueError):
            return None
        return path if inside else None

    @cached_property
    def handover(self) -> tuple[bytes, str]:
        """Return the page that hands the trace to Perfetto, and its content security policy."""
        script = _template("handover.js")
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
        text = environment.from_string(_template("handover.html.j2")).render(
            script=script, trace=quote(_TRACE), title=self.folder.name, page=PAGE
        )
        policy = (
            f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
            "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        )
        return text.encode("utf-8", "replace"), policy


class _Handler(BaseHTTPRequestHandler):
    """Answer GET and HEAD below the token; refuse everything else."""

    server: RecordingServer
    server_version = "profstack"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        """Answer with a file of the recording."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Answer with the head that GET would have."""
        self._answer(with_body=False)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Print nothing: paths contain the token."""

    def _answer(self, *, with_body: bool) -> None:
        name = self._wanted()
        if name is None:
            self._refuse(with_body=with_body)
        elif name == HANDOVER and self.server.handover_address is not None:
            body, policy = self.server.handover
            self._begin("text/html; charset=utf-8", len(body), policy=policy)
            if with_body:
                self.wfile.write(body)
        else:
            self._give(name or PAGE, with_body=with_body)

    def _wanted(self) -> str | None:
        """Return the name below the token; None where the host or the token is wrong."""
        if self.headers.get("Host") not in self.server.hosts:
            return None
        token, _, name = urlsplit(self.path).path.lstrip("/").partition("/")
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            return None
        return unquote(name)

    def _give(self, name: str, *, with_body: bool) -> None:
        path = self.server.file(name)
        with ExitStack() as files:
            try:
                source = files.enter_context(open(path or os.devnull, "rb"))
            except OSError:
                path = None
            if path is None:
                self._refuse(with_body=with_body)
                return
            size = source.seek(0, 2)
            source.seek(0)
            self._begin(self._type(path), size)
            if with_body:
                shutil.copyfileobj(source, self.wfile)

    def _type(self, path: Path) -> str:
        """Return the content's type; a file's name alone never makes it a page."""
        if path == self.server.folder / PAGE:
            return "text/html; charset=utf-8"
        return _TYPES.get(path.suffix, "application/octet-stream")

    def _begin(self, kind: str, size: int, *, policy: str | None = None) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(size))
        if policy is not None:
            self.send_header("Content-Security-Policy", policy)
        self._guard()
        self.end_headers()

    def _refuse(self, *, with_body: bool) -> None:
        """Send one answer for everything that is not served, so that it discloses nothing."""
        body = b"not found\n"
        self.send_response(HTTPStatus.NOT_FOUND)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self._guard()
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def _guard(self) -> None:
        """Send headers that keep the content's type, and the address with its token, here."""
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cache-Control", "no-store")


def _template(name: str) -> str:
    file = resources.files("profstack.report") / "templates" / name
    return file.read_text(encoding="utf-8")
