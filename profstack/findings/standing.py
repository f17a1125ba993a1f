"""Where the steps' thread stands still, when neither data nor files nor other ranks explain it.

How long it does so is told by its own clock (`stepcut`); here is looked for the function in which
it does: the built-in one with most time, and the user's own function that asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from profstack.findings.iotime import asked_for, callers_of, name_of
from profstack.findings.stepcut import Cut
from profstack.findings.verdictrules import STANDING
from profstack.ownfiles import BUILTIN_FILE
from profstack.units import format_share

# As much of the time must be in one function to name it.
_MOSTLY = 0.5
_METHOD = re.compile(r"<method '(?P<name>.+)' of '(?P<type>.+)' objects>")
_FUNCTION = re.compile(r"<built-in method (?P<name>.+)>")


def most_unknown(known: Mapping[str, float], idle: float) -> float:
    """What a share that is not known can be at most, beside those that are and the idle one."""
    return max(1 - idle - sum(known.values()), 0.0)


def stands_still(
    tables: Mapping[str, Any],
    cut: Cut,
    step: str,
    idle: float,
    shares: Mapping[str, float | None],
) -> str | None:
    """Why the verdict is unclear where the thread stands still for longer than for any cause.

    `idle` is for what share of the clean step it does so, `step` names that step, `shares` are
    the tests' measures. None where it is less than `STANDING`, than one of them, or than one that
    is not known can be.
    """
    known = {slug: share for slug, share in shares.items() if share is not None}
    untold = most_unknown(known, idle) if len(known) < len(shares) else 0.0
    if idle < STANDING or idle <= max([*known.values(), untold]):
        return None
    return (
        f"for {format_share(idle)} of {step} its thread stands still{_where(tables, cut, idle)}, "
        "which no wait for data, for files or for other ranks explains"
    )


def _where(tables: Mapping[str, Any], cut: Cut, share: float) -> str:
    """The function in which it stands, and who calls that; nothing where no function has most."""
    rows = [row for row in tables["functions"] if row.get("phase") == "step"]
    built_in = [row for row in rows if row["file"] == BUILTIN_FILE and row["self_s"]]
    first = max(built_in, key=lambda row: float(row["self_s"]), default=None)
    if first is None or float(first["self_s"]) < _MOSTLY * share * cut.median_s:
        return ""
    by_name = {name_of(row): row for row in rows}
    caller = asked_for({name_of(first): 1.0}, callers_of(tables["calls"]), by_name)
    if caller is None:
        return f" in {_short(str(first['name']))}"
    file = str(caller["file"]).replace("\\", "/").rsplit("/", 1)[-1]
    place = f"{caller['name']}, {file}:{caller['line']}"
    return f" in {_short(str(first['name']))} ({place})"


def _short(name: str) -> str:
    """A built-in function without what Python puts round its name."""
    if found := _METHOD.fullmatch(name):
        return f"{found['type']}.{found['name']}"
    found = _FUNCTION.fullmatch(name)
    return found["name"] if found else name
