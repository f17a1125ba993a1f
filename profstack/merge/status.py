"""Whether a recording is complete: whether all that it was made for came to its end, or why not."""

from __future__ import annotations

import re
import signal
from typing import Any

from profstack.benchfolder import FACT
from profstack.engine.layerstate import WITH_DATA
from profstack.merge.nsys import is_import_alone
from profstack.merge.recorded import Recorded


def status(recorded: Recorded, run: dict[str, Any]) -> str:
    """`status` of the report: complete, partial or failed."""
    bench = recorded.facts.get(FACT)
    if bench is not None:
        return _bench_status(recorded, run, bench)
    if is_import_alone(recorded):
        return "complete"
    if not len(recorded.frames["steps"]) and not _whole(recorded):
        # Between steps that were not found the watch may have looked.
        return "partial" if recorded.frames["layers"]["status"].isin(WITH_DATA).any() else "failed"
    ended = "recording_ended" in recorded.facts
    # A session ends while its process goes on.
    clean_exit = run.get("run", {}).get("exit_code") is not None or run.get("in_process", False)
    cut_short = "uncaught" in recorded.facts
    return "complete" if ended and clean_exit and not cut_short else "partial"


def status_reason(recorded: Recorded, run: dict[str, Any]) -> str | None:
    """How a run ended that is not complete; None for one that is.

    Of a benchmark only why it has no figures: all else is among its warnings.
    """
    bench = recorded.facts.get(FACT)
    if bench is not None:
        problems = bench["problems"] if bench["figures"] is None else ()
        return next((_of_target(problem) for problem in problems), None)
    if status(recorded, run) == "complete":
        return None
    facts = run.get("run", {})
    if recorded.facts.get("uncaught") is not None:
        return f"it ended with {recorded.facts['uncaught']}"
    if facts.get("signal") is not None:
        return f"it was ended by {_signal_name(facts['signal'])}"
    code = facts.get("exit_code")
    if code is None:
        return None if run.get("in_process") else "profstack itself was ended before the script"
    had_torch = recorded.facts.get("environment", {}).get("torch") is not None
    if had_torch and "recording_ended" not in recorded.facts:
        return f"it ended with exit code {code} at once, as by os._exit: what was open is lost"
    if code:
        return f"it ended with exit code {code}"
    return "no step was found" if had_torch else "it never imported torch"


def _of_target(problem: str) -> str:
    """What kept a benchmark from its figures: an error of the target's, or how a process ended."""
    own = re.sub(r"^process \d+: ", "", problem)
    return own if own.startswith(("ended", "interrupted")) else f"the target raised {own}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _whole(recorded: Recorded) -> bool:
    """Whether a script without steps was measured as a whole."""
    slices = recorded.frames["slices"]
    return bool(len(slices)) and bool((slices["kind"] == "whole").any())


def _bench_status(recorded: Recorded, run: dict[str, Any], bench: dict[str, Any]) -> str:
    """Of a benchmark: whether it measured, and whether all that was asked for came to its end."""
    if bench["figures"] is None:
        return "failed"
    code = run.get("run", {}).get("exit_code")
    ended = code == 0 or run.get("in_process", False)
    layers_ended = "recording_ended" in recorded.facts or not len(recorded.frames["steps"])
    cut_short = bench["problems"] or bench["figures"].get("part_problems")
    return "complete" if ended and layers_ended and not cut_short else "partial"
