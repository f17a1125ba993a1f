"""Measure the peaks of a machine after a run, in a process that nobody waits for.

The first run on a machine writes its page without them. This process measures them when the script
and its page are done, keeps them in the cache, and writes the page again:

    python -m profstack.launch.background_peaks FOLDER RUN

where RUN is the recording's number. A recording that was deleted, moved or replaced meanwhile is
left alone. It gives way to another run that begins: measuring ends at once, and is tried again when
no run goes on. Where the process is ended early, as all of a container's are, the page stays as it
is, and the next run on the machine measures.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from profstack.cache import cache_file
from profstack.environment import under_nsys
from profstack.launch.other_runs import is_running, run_giving_way
from profstack.launch.peaks import are_pending, keep_peaks, processor_name, program
from profstack.storage.folder import process_folders, read_run

# It ends by then, whatever it waits for: a run that takes longer measures after its own end.
LONGEST_S = 300
_PAUSE_S = 0.2
_LOWEST_PRIORITY = 19


def begin(folder: Path) -> bool:
    """Start the process for a recording in a session of its own; return whether it was started."""
    # Nsight Systems waits for every process that was started under it.
    run = _run_of(folder)
    if run is None or under_nsys() or not hasattr(signal, "alarm"):
        return False
    try:
        subprocess.Popen(
            [*program(__name__), str(folder.resolve()), run],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # No folder of the user's is kept busy, and no signal to the run's group reaches it.
            cwd="/",
            start_new_session=True,
        )
    except OSError:
        return False
    return True


def _run_of(folder: Path) -> str | None:
    """Return the number of the run that is recorded in a folder; None where there is none."""
    number = read_run(folder).get("run", {}).get("id")
    return str(number) if number is not None else None


def complete(folder: Path, run: str) -> None:
    """Measure the peaks that a recording lacks while no run goes on, and write its page again."""
    from profstack.report.files import write_report

    lacking = True
    while lacking:
        _wait_for_runs()
        with _alone():
            # Another run may have measured them meanwhile: then they are cached.
            if _run_of(folder) != run or _is_exclusive():
                return
            lacking = keep_peaks(folder, run=run_giving_way)
    _wait_for_runs()
    if _run_of(folder) == run and not process_folders(folder):
        write_report(folder)


def _wait_for_runs() -> None:
    """Wait until no run goes on, the one that started this process among them."""
    while is_running():
        time.sleep(_PAUSE_S)


def take_in(folder: Path) -> None:
    """Write peaks into a recording that were measured after its run, on the machine of the run."""
    machine = (read_run(folder).get("environment") or {}).get("cpu")
    if are_pending(folder) and machine == processor_name():
        keep_peaks(folder, later=True)


@contextmanager
def _alone() -> Iterator[None]:
    """Wait until no other such process measures: both would find lower rates."""
    path, lock = cache_file("peaks.lock"), -1
    with suppress(ImportError, OSError):
        import fcntl

        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if lock >= 0:
            os.close(lock)


def _is_exclusive() -> bool:
    """Return whether only one process may use a GPU here: the user's next one would be refused."""
    ask = ["nvidia-smi", "--query-gpu=compute_mode", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(ask, capture_output=True, text=True, timeout=20, check=False)
        return "Exclusive" in answer.stdout
    return False


def main() -> None:
    """Complete the recording that is named on the command line."""
    signal.alarm(LONGEST_S)
    os.nice(_LOWEST_PRIORITY)
    complete(Path(sys.argv[1]), sys.argv[2])


if __name__ == "__main__":
    main()
