"""What torch.compile did in the measured process, read from dynamo's own books when a slice ends.

Dynamo keeps a record of every compilation, with its time and the guard that failed, and a list of
the graph breaks. They are only read, never cleared, and only where the script itself has imported
dynamo. No version of torch promises any of it: what is missing is None, and books that can not be
read end this log with a reason.
"""

from __future__ import annotations

import json
import re
import sys
import time
from typing import Any

from profstack.interrupts import is_scripts
from profstack.wrapper import Records

# A guard and the line it stands on fit into so many characters; the rest is dynamo's own advice.
LONGEST_TEXT = 600
# A program that is compiled more often than this has been told of often enough.
_MOST_ROWS = 2000
# The innermost frames of a graph break: the user's own code is among them.
_MOST_FRAMES = 12
# A guard on what the environment holds would show its value.
_SECRET = re.compile(r"environ|getenv", re.IGNORECASE)
HIDDEN = "a guard on an environment variable, whose value is not recorded"


class CompileLog:
    """Reads what was compiled since it was made; `origin` is the recording's zero of time."""

    def __init__(self, origin: float) -> None:
        self._origin = origin
        self._latest: Any = None
        self._breaks: list[Any] = []
        self._breaks_read = self._rows = 0
        # Why later compilations are missing, or None.
        self.reason: str | None = None
        # What was compiled before this recording began is not its own.
        self.frames()
        self._rows = 0

    def frames(self) -> dict[str, Records]:
        """Rows of `compilations` and `graph_breaks` since the last call; none without dynamo."""
        utils = sys.modules.get("torch._dynamo.utils")
        if utils is None or self.reason is not None:
            return {}
        try:
            rows = {"compilations": self._compiled(utils), "graph_breaks": self._broken(utils)}
        except Exception as error:
            if is_scripts(error):
                raise
            self.reason = f"dynamo's books could not be read: {type(error).__name__}: {error}"
            return {}
        self._rows += sum(map(len, rows.values()))
        if self._rows > _MOST_ROWS:
            self.reason = (
                f"the first {_MOST_ROWS} compilations and graph breaks alone were recorded"
            )
        return {table: records for table, records in rows.items() if records}

    def _compiled(self, utils: Any) -> list[dict[str, Any]]:
        read = getattr(utils, "get_compilation_metrics", None)
        known = list(read()) if read is not None else []
        if not known:
            self._latest = None
            return []
        # The books hold the latest few alone, and the script may clear them.
        places = [place for place, each in enumerate(known) if each is self._latest]
        fresh = known[places[-1] + 1 :] if places else known
        self._latest = known[-1]
        zero = time.time() - time.perf_counter() + self._origin
        return [_compilation(utils, each, zero) for each in fresh]

    def _broken(self, utils: Any) -> list[dict[str, Any]]:
        known = getattr(utils, "graph_break_reasons", None)
        if not isinstance(known, list):
            return []
        if known is not self._breaks or len(known) < self._breaks_read:
            self._breaks, self._breaks_read = known, 0
        fresh, self._breaks_read = known[self._breaks_read :], len(known)
        return [_graph_break(each) for each in fresh]


def _compilation(utils: Any, metrics: Any, zero: float) -> dict[str, Any]:
    """One record of dynamo's; `zero` is the recording's zero in seconds since 1970."""
    begun_us = getattr(metrics, "start_time_us", None)
    lasted_us = getattr(metrics, "duration_us", None)
    forward = getattr(metrics, "is_forward", None)
    file = getattr(metrics, "co_filename", None)
    line = getattr(metrics, "co_firstlineno", None)
    again = getattr(metrics, "cache_size", None)
    reason = getattr(metrics, "recompile_reason", None)
    if reason is None and again and not hasattr(metrics, "recompile_reason"):
        reason = _last_failure(utils, file, line)
    return {
        "t_s": None if begun_us is None else begun_us / 1e6 - zero,
        "wall_s": None if lasted_us is None else lasted_us / 1e6,
        "compile_id": _text(getattr(metrics, "compile_id", None)),
        "name": _text(getattr(metrics, "co_name", None)),
        "file": _text(file),
        "line": line,
        "backward": None if forward is None else int(not forward),
        "versions": again,
        "operators": getattr(metrics, "graph_op_count", None),
        "reason": _text(reason),
        "failure": _text(getattr(metrics, "fail_reason", None)),
    }


def _last_failure(utils: Any, file: Any, line: Any) -> str | None:
    """The latest guard that failed of a function, where its record does not say."""
    failures = getattr(utils, "guard_failures", None) or {}
    for code, reasons in list(failures.items()):
        place = (getattr(code, "co_filename", None), getattr(code, "co_firstlineno", None))
        if place == (file, line) and reasons:
            latest = reasons[-1]
            return str(getattr(latest, "reason", latest))
    return None


def _graph_break(reason: Any) -> dict[str, Any]:
    stack = list(getattr(reason, "user_stack", None) or ())
    return {
        "reason": _text(getattr(reason, "reason", None)),
        "stack": json.dumps(
            [[frame.filename, frame.lineno, frame.name] for frame in stack[-_MOST_FRAMES:]]
        ),
    }


def _text(value: Any) -> str | None:
    """A bounded text, without what the environment holds."""
    if value is None:
        return None
    text = str(value)
    return HIDDEN if _SECRET.search(text) else text[:LONGEST_TEXT]
