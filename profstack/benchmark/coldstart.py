"""The first calls of a fresh process, and the same number of calls once it is warm.

Nothing within one process is as cold as a fresh one: there libraries are loaded, thread pools and
contexts opened, kernels chosen and code compiled at the first call. So the target is loaded again
in processes of their own, one after another. Run as a module it is such a process: the request
comes as JSON on standard input, and the times go to the file that the argument names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from profstack.benchmark.blocks import timed_block
from profstack.benchmark.clock import Clock
from profstack.benchmark.conditions import undisturbed
from profstack.benchmark.subject import Request, Subject

# More starts than an interval needs would cost more time than they tell.
_MOST_STARTS = 6
_MOST_CALLS, _FEWEST_CALLS = 10, 3
# Between the cold and the warm calls the process gets this long, and so many calls.
_WARMING_S, _MOST_WARMING = 1.0, 100
# Python, torch and the target's own imports.
_LOADING_S = 300.0


@dataclass(frozen=True)
class Start:
    """Times of one start in seconds per call: the first calls, and as many of the warm process."""

    cold_s: Sequence[float]
    warm_s: Sequence[float]

    @property
    def reports(self) -> tuple[float, float]:
        """What a loop over these calls reports, cold and warm: total time over calls."""
        return fmean(self.cold_s), fmean(self.warm_s)


def calls_of_a_start(call_s: float, seconds: float) -> int:
    """How many first calls are looked at, where a warm one takes `call_s`."""
    return max(_FEWEST_CALLS, min(_MOST_CALLS, int(seconds / max(call_s, 1e-9))))


def fresh_processes(
    subject: Subject, calls: int, call_s: float, seconds: float
) -> tuple[list[Start], str | None]:
    """Starts of the subject in fresh processes, and why there are no more of them, if it failed.

    After `seconds` no process is begun; one is, whatever it takes.
    """
    if subject.request is None:
        return [], "a program's own object cannot be loaded by another process"
    request = subject.request
    if subject.model is None:
        # Said outright, or loading would have to call it to see what it is.
        request = replace(request, kind="step")
    clock, starts = Clock(), list[Start]()
    began = clock.now()
    limit_s = _LOADING_S + 10.0 * call_s * (3 * calls + _MOST_WARMING)
    while len(starts) < _MOST_STARTS and (not starts or clock.now() - began < seconds):
        made = _start(request, calls, limit_s)
        if isinstance(made, str):
            return starts, made
        starts.append(made)
    return starts, None


def _start(request: Request, calls: int, limit_s: float) -> Start | str:
    """One fresh process, or what went wrong with it."""
    question = json.dumps({"request": request.as_json(), "calls": calls})
    with tempfile.TemporaryDirectory() as name:
        answer = Path(name) / "start.json"
        command = [sys.executable, "-m", __spec__.name, str(answer)]
        try:
            done = subprocess.run(
                command,
                input=question,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                # The target may use profstack itself; nothing is to be recorded here.
                env={**os.environ, "PROFSTACK": "0"},
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"a fresh process was not done after {limit_s:.0f} s"
        if done.returncode or not answer.exists():
            said = done.stderr.strip().splitlines()
            return f"a fresh process failed ({said[-1] if said else f'exit {done.returncode}'})"
        return Start(**json.loads(answer.read_text(encoding="utf-8")))


def time_a_start(request: Request, calls: int) -> Start:
    """Load the target and time it from its very first call on; to be called in a fresh process."""
    # Loading needs torch; the parent's side of this module does without.
    from profstack.benchmark.loading import load

    loaded = load(request)
    subject, clock = loaded.subject, Clock()
    already = [] if loaded.first_s is None else [loaded.first_s]
    with subject.conditions(), undisturbed():
        step = subject.step
        cold = already + timed_block(step, calls - len(already), 1, clock).host_s
        warming = max(_FEWEST_CALLS, min(_MOST_WARMING, int(_WARMING_S / cold[-1])))
        timed_block(step, warming, 1, clock)
        return Start(cold, timed_block(step, calls, 1, clock).host_s)


def _main() -> None:
    question: dict[str, Any] = json.load(sys.stdin)
    start = time_a_start(Request(**question["request"]), question["calls"])
    answer = {"cold_s": start.cold_s, "warm_s": start.warm_s}
    Path(sys.argv[1]).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    _main()
