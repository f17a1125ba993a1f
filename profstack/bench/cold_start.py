"""The first calls of a fresh process, and the same number of calls once it is warm.

Only a fresh process is cold: there the first call loads libraries, opens thread pools and contexts,
chooses kernels and compiles code. So the target is loaded again in processes of their own, one
after another; `main` is the work of such a process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean

from profstack.bench.fresh_process import FreshProcess, receive
from profstack.bench.subject import Request, Subject
from profstack.stats.blocks import timed_block, undisturbed
from profstack.stats.clock import Clock

# As many as an interval needs.
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
        """The mean times of these calls, cold and warm."""
        return fmean(self.cold_s), fmean(self.warm_s)


def calls_of_a_start(call_s: float, seconds: float) -> int:
    """Return how many first calls to time, where a warm one takes `call_s`."""
    return max(_FEWEST_CALLS, min(_MOST_CALLS, int(seconds / max(call_s, 1e-9))))


def fresh_processes(
    subject: Subject, calls: int, call_s: float, seconds: float
) -> tuple[list[Start], str | None]:
    """Start the subject in fresh processes; return the starts, and the reason if one failed.

    The first process is started in any case, no further one after `seconds`.
    """
    request = subject.request
    if request is None:
        return [], "a program's own object cannot be loaded by another process"
    if subject.model is None:
        # Else loading would call the function to see its kind.
        request = replace(request, kind="step")
    clock, starts = Clock(), list[Start]()
    began = clock.now()
    limit_s = _LOADING_S + 10.0 * call_s * (3 * calls + _MOST_WARMING)
    while len(starts) < _MOST_STARTS and (not starts or clock.now() - began < seconds):
        with FreshProcess(__name__, {"request": asdict(request), "calls": calls}) as process:
            answer = process.answer(limit_s)
            if answer is None:
                code = process.exit_code()
                if code is None:
                    return starts, f"a fresh process was not done after {limit_s:.0f} s"
                return starts, f"a fresh process failed ({process.last_words() or f'exit {code}'})"
            starts.append(Start(**answer))
    return starts, None


def main() -> None:
    """Load the target in this fresh process and time it from its first call on."""
    # Loading needs torch; the parent's side of this module does not.
    from profstack.bench.target import load

    question, answer = receive()
    calls = question["calls"]
    loaded = load(Request(**question["request"]))
    subject, clock = loaded.subject, Clock()
    already = [] if loaded.first_s is None else [loaded.first_s]
    with subject.conditions(), undisturbed():
        step = subject.step
        cold = already + timed_block(step, calls - len(already), 1, clock).host_s
        warming = max(_FEWEST_CALLS, min(_MOST_WARMING, int(_WARMING_S / cold[-1])))
        timed_block(step, warming, 1, clock)
        answer(asdict(Start(cold, timed_block(step, calls, 1, clock).host_s)))
