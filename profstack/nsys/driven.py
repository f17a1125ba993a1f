"""Runs a script under Nsight Systems, for a bounded time, and keeps the report.

nsys is told to end by itself: the engine ends the script after the steps that are wanted, and
where there are none, or the script will not end, nsys does at its time limit. What the script
prints is thrown away, since it printed the same in the run before this one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from profstack.nsys import tool
from profstack.nsys.tool import Nsys, NsysError

# Safe in containers, where sampling and context switches need rights that nobody has.
_SAFE = ("--sample=none", "--cpuctxsw=none")
_ON_THE_HOST = ("--trace=nvtx,osrt",)
# Memory is told by the call that takes it of the device; PyTorch makes few of them.
_ON_A_DEVICE = ("--trace=cuda,nvtx,osrt,cudnn,cublas", "--cuda-memory-usage=true")
_OF_NSYS = re.compile(r"^Importer error|QDSTRM")
# What nsys may take to write its files once the script has ended.
_WRITING_S = 600
# How long it may take to end when it is told to.
_GRACE_S = 30


@dataclass(frozen=True)
class Captured:
    """What came of it: `report` is what nsys left, `timed_out` if the time limit ended the script.

    `exit_code` is the script's, 128 + n for signal n; `said` the last line on its standard error.
    """

    report: Path
    exit_code: int
    timed_out: bool
    said: str


def capture(
    nsys: Nsys,
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    *,
    on_device: bool,
    limit_s: int,
) -> Captured:
    """Run `command` under nsys for `limit_s` seconds at most; its report lies in `folder`.

    `on_device` says whether the script uses CUDA, whose calls are traced only then. Raises
    NsysError where nsys leaves nothing, and KeyboardInterrupt, once nsys has ended, where SIGINT
    or SIGTERM come in.
    """
    output = folder / "capture"
    traced = _ON_A_DEVICE if on_device else _ON_THE_HOST
    words = [nsys.path, "profile", *traced, *_SAFE]
    words += [f"--duration={limit_s}", "--kill=sigterm", "--wait=primary"]
    words += [f"--output={output}", "--force-overwrite=true", *command]
    begun = time.monotonic()
    with tempfile.TemporaryFile() as errors:
        code = _run(words, environment, errors, limit_s + _WRITING_S)
        lasted_s = time.monotonic() - begun
        errors.seek(0)
        said = _said(errors.read().decode(errors="replace"))
    report = _left(output)
    if report is None:
        raise NsysError(f"nsys {nsys.version} left no report (code {code}): {said}")
    if report.suffix == ".qdstrm" and nsys.importer is not None:
        report = tool.report_of(report, folder, nsys)
    timed_out = lasted_s >= limit_s and code == 128 + signal.SIGTERM
    return Captured(report, code, timed_out, said)


def keep(report: Path, folder: Path, *, force: bool) -> Path:
    """Move a report beside the recording in `folder`, under its name; where it lies now.

    It is not put inside: it holds the environment's variables and what the script printed. A file
    that is there already stays, unless `force` is given.
    """
    number = 1
    place = folder.resolve()
    kept = place.with_name(f"{place.name}{report.suffix}")
    while kept.exists() and not force:
        number += 1
        kept = place.with_name(f"{place.name}-{number}{report.suffix}")
    shutil.move(report, kept)
    return kept


def _run(
    words: Sequence[str], environment: Mapping[str, str], errors: IO[Any], limit_s: int
) -> int:
    """Start nsys in a session of its own and wait; its exit code, negative where it was killed."""
    with _ended_by_signals():
        process = subprocess.Popen(
            words,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return _end(process)
        except BaseException:
            _end(process)
            raise


def _end(process: subprocess.Popen[bytes]) -> int:
    """Tell nsys to end the script and itself; it passes the signal on to the script."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_GRACE_S)
    return process.wait()


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as SIGINT does: else nsys would go on without a parent."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {each: signal.signal(each, interrupt) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _left(output: Path) -> Path | None:
    """The file that nsys wrote: a report, or what its importer makes one of."""
    for suffix in (".nsys-rep", ".qdrep", ".qdstrm"):
        found = output.with_name(output.name + suffix)
        if found.is_file():
            return found
    return None


def _said(text: str) -> str:
    """The last line that the script wrote, rather than nsys of an importer that it lacks."""
    lines = [line for line in re.split(r"[\r\n]+", text) if not _OF_NSYS.search(line)]
    return tool.last_line("\n".join(lines))
