"""Serve one recording's page and files to browsers of this machine alone.

The server listens on the loopback address, and every path begins with a random token, so that
another user of the machine or a web page that tries ports finds nothing. Requests that name
another host are refused: a foreign name may resolve to this machine. Only files inside the
recording are served, and only its page as HTML.
"""

from __future__ import annotations

import io
import secrets
import shutil
import sys
from contextlib import suppress
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, unquote, urlsplit

from profstack.report.html import Markup, filled, script_digest, template

LOOPBACK = "127.0.0.1"
PAGE = "report.html"
HANDOVER = "perfetto"
_TRACE = "torch/trace.json.gz"
_TEXT = "text/plain; charset=utf-8"
_TYPES = {
    ".json": "application/json; charset=utf-8",
    ".gz": "application/gzip",
    **dict.fromkeys((".log", ".txt", ".dat"), _TEXT),
}


_PAGE_TYPE = "text/html; charset=utf-8"
# Headers that keep the content's type, and the address with its token, here.
_GUARD = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
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
        # The names by which a request may call this server.
        self.hosts = (f"{LOOPBACK}:{self.server_port}", f"localhost:{self.server_port}")
        self.address = f"http://{self.hosts[0]}/{self.token}/"
        self.page_address = self.address + PAGE

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
    def handover_address(self) -> str | None:
        """Return the address that hands the trace to Perfetto; None without a trace."""
        return self.address + HANDOVER if self.file(_TRACE) is not None else None

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
        script = template("handover.js")
        text = filled(
            template("handover.html"),
            script=Markup(script),
            trace=quote(_TRACE),
            title=self.folder.name,
            page=PAGE,
        )
        policy = (
            f"default-src 'none'; script-src '{script_digest(script)}'; style-src 'unsafe-inline'; "
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

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Print nothing: paths contain the token."""

    def do_GET(self) -> None:
        """Answer with a file of the recording."""
        with self._send_head() as body:
            shutil.copyfileobj(body, self.wfile)

    def do_HEAD(self) -> None:
        """Answer with the head that GET would have."""
        self._send_head().close()

    def _send_head(self) -> BinaryIO:
        """Send the head of the answer, and return its body.

        Everything that is not served has one answer, so that it discloses nothing.
        """
        token, _, below = urlsplit(self.path).path.lstrip("/").partition("/")
        known = secrets.compare_digest(token.encode(), self.server.token.encode())
        name = unquote(below) if known and self.headers.get("Host") in self.server.hosts else None
        if name == HANDOVER and self.server.handover_address is not None:
            page, policy = self.server.handover
            return self._begin(HTTPStatus.OK, _PAGE_TYPE, io.BytesIO(page), policy)
        path = self.server.file(name or PAGE) if name is not None else None
        status, kind = HTTPStatus.NOT_FOUND, _TEXT
        body: BinaryIO = io.BytesIO(b"not found\n")
        if path is not None:
            with suppress(OSError):
                body = open(path, "rb")  # noqa: SIM115 - the caller closes it
                status, kind = HTTPStatus.OK, _TYPES.get(path.suffix, "application/octet-stream")
                # A file's name alone never makes it a page.
                if path == self.server.folder / PAGE:
                    kind = _PAGE_TYPE
        return self._begin(status, kind, body)

    def _begin(
        self, status: HTTPStatus, kind: str, body: BinaryIO, policy: str | None = None
    ) -> BinaryIO:
        """Send the status and the headers of a body, and return the body."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(body.seek(0, 2)))
        body.seek(0)
        if policy is not None:
            self.send_header("Content-Security-Policy", policy)
        for name, value in _GUARD.items():
            self.send_header(name, value)
        self.end_headers()
        return body
