"""Why a script has no steps, as far as its own process can tell."""

from __future__ import annotations

from profstack.merge.recorded import Recorded

# The fact that says how many processes the script had `multiprocessing` make.
PROCESSES_MADE = "processes_made"


def why_no_steps(recorded: Recorded) -> str | None:
    """Why no step was recorded; None where one was."""
    if len(recorded.frames["steps"]):
        return None
    made = int(recorded.facts.get(PROCESSES_MADE) or 0)
    text = "no step was found in the script"
    if not made:
        return text
    which = "a process" if made == 1 else f"{made} processes"
    return f"{text}: it started {which} by multiprocessing, and what those do is not measured"
