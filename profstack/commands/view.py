"""`profstack view`: open or serve a recording's page, or its Python profile in snakeviz."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from profstack.commands.options import open_page
from profstack.errors import RecordingError, UsageError
from profstack.report import files

if TYPE_CHECKING:
    import argparse
    from pathlib import Path
    from types import FrameType

HELP = "Open or serve a recording's page in a browser, or its Python profile in snakeviz."
_PROFILES = ("cprofile/profile.prof", "cprofile/startup.prof")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("folder", nargs="?", metavar="DIR", help=files.FOLDER_HELP)
    served = parser.add_mutually_exclusive_group()
    served.add_argument(
        "--serve",
        action="store_true",
        help="serve the page and the recording's files to browsers of this machine only, behind a "
        "random token, until Ctrl-C; from there the trace can be handed to Perfetto",
    )
    served.add_argument(
        "--snakeviz",
        action="store_true",
        help="serve cprofile/profile.prof with snakeviz on this machine only, until Ctrl-C",
    )
    parser.add_argument(
        "--port", type=_port, metavar="N", help="with --serve: listen on this port, not a free one"
    )
    parser.add_argument(
        "--no-browser", action="store_true", help="print the address and open nothing"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Open the page, or serve the profile."""
    if arguments.port is not None and not arguments.serve:
        raise UsageError("--port needs --serve", where="view", next_step="profstack view --serve")
    folder = files.recording_folder(arguments.folder)
    if arguments.snakeviz:
        return _serve_profile(folder, browser=not arguments.no_browser)
    page = folder / "report.html"
    if not page.is_file():
        from profstack.report import html

        html.write(files.load(folder), page)
        print(f"Wrote {page}")
    if arguments.serve:
        return _serve_recording(folder, arguments.port or 0, browser=not arguments.no_browser)
    if not arguments.no_browser:
        open_page(page)
    print(page.resolve().as_uri())
    return 0


def _port(text: str) -> int:
    """Return a port number."""
    import argparse

    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 65_535:
        raise argparse.ArgumentTypeError(f"'{text}' is no port: it is a number from 1 to 65535")
    return int(text)


def _serve_recording(folder: Path, port: int, *, browser: bool) -> int:
    """Serve the page and the files until interrupted."""
    from profstack.report.serving import RecordingServer

    try:
        server = RecordingServer(folder, port=port)
    except OSError as error:
        raise UsageError(
            f"port {port} is not free ({error.strerror})",
            where="view",
            next_step="give another --port, or none",
        ) from error
    signal.signal(signal.SIGTERM, _leave)
    with server:
        lines = [f"page: {server.page_address}"]
        if server.handover_address is not None:
            lines.append(f"trace, to hand to Perfetto: {server.handover_address}")
        # Flushed, or the addresses would not appear where the output is no terminal.
        print("\n".join([*lines, "Serving to this machine only, until Ctrl-C."]), flush=True)
        if browser:
            import webbrowser

            webbrowser.open(server.page_address)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0


def _serve_profile(folder: Path, *, browser: bool) -> int:
    """Run snakeviz on the loopback address, with the recording's profile, until interrupted."""
    from importlib.util import find_spec

    profiles = [folder / name for name in _PROFILES if (folder / name).is_file()]
    if not profiles:
        raise RecordingError(
            f"no {_PROFILES[0]} in it: the cprofile layer recorded nothing",
            where=str(folder),
            next_step="record one with 'profstack run --layers cprofile script.py'",
        )
    if find_spec("snakeviz") is None:
        raise UsageError(
            "snakeviz is not installed", where="view", next_step="pip install snakeviz"
        )
    # Unbuffered, or the address would not appear where the output is no terminal.
    command = [sys.executable, "-u", "-m", "snakeviz", "-H", "127.0.0.1"]
    if not browser:
        command.append("-s")
    # After '--' a profile's name is no option, whatever it begins with.
    server = subprocess.Popen([*command, "--", str(profiles[0].resolve())])
    signal.signal(signal.SIGTERM, _leave)
    try:
        return server.wait()
    except KeyboardInterrupt:
        # Ctrl-C reached snakeviz too, which ends by itself if it is given the time.
        with suppress(subprocess.TimeoutExpired):
            server.wait(timeout=3)
        return 0
    finally:
        if server.poll() is None:
            server.terminate()
            server.wait()


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    """Exit through `finally`, so that a terminated view leaves no server behind."""
    raise SystemExit(128 + number)
