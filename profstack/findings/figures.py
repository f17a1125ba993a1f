"""What the rules ask of a finished report again and again: the clean step, links, what calls what.

Links name a row of the page as `<view>/<key>`; the page itself escapes the key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Report = Mapping[str, Any]
Row = Mapping[str, Any]
# File, line and name of a function.
Key = tuple[str, int, str]

_PLACE = re.compile(r"(?P<file>.*):(?P<line>\d+)\((?P<name>.*)\)$", re.DOTALL)


def clean_step_s(report: Report) -> float | None:
    """Seconds of the median clean step; None where there is none."""
    median = (report.get("benchmark") or {}).get("median_s")
    return float(median) if median else None


def calibrated(report: Report, raw_s: float | None) -> float | None:
    """A time per step of the torch layer's slices, at the speed of the clean steps.

    None where the layer has no slice, or one that is too much disturbed to say.
    """
    told = report.get("attribution") or {}
    step_s, owned, clean = (
        told.get("step_s"),
        told.get("calibrated_owned_s"),
        told.get("clean_median_s"),
    )
    if raw_s is None or not step_s or owned is None or clean is None:
        return None
    return float(raw_s) / float(step_s) * float(clean)


def factor(report: Report, layer: str) -> float | None:
    """The probe effect of a layer; None where it has none."""
    found = (row["factor"] for row in report["probe_effect"] if row["layer"] == layer)
    value = next(found, None)
    return None if value is None else float(value)


def on_accelerator(report: Report) -> bool:
    """Whether the run computed on something other than the CPU."""
    return (report.get("environment") or {}).get("device") not in (None, "cpu")


def module_rows(report: Report) -> dict[str, Row]:
    """The rows of `modules` by path, the parts of a step among them."""
    return {row["path"]: row for row in report["tables"]["modules"]}


def to_source(file: str, line: int) -> str:
    """The link to a line."""
    return f"source/{file}:{line}"


def to_function(file: str, line: int, name: str) -> str:
    """The link to a function."""
    return f"python/{file}:{line}:{name}"


def named(place: str) -> Key | None:
    """File, line and name of a function as `calls` writes it: file:line(name)."""
    match = _PLACE.match(place)
    return (match["file"], int(match["line"]), match["name"]) if match else None


def short(file: str) -> str:
    """A file's name without its folders."""
    return re.split(r"[/\\]", file)[-1]


class CallGraph:
    """Who calls whom in a step, as cProfile saw it; what ran when it began has no row."""

    def __init__(self, report: Report) -> None:
        tables = report["tables"]
        self.rows = {
            (row["file"], row["line"], row["name"]): row
            for row in tables["functions"]
            if row["phase"] == "step"
        }
        self.callees: dict[Key, list[tuple[Key, Row]]] = {}
        for row in tables["calls"]:
            caller, callee = named(row["caller"]), named(row["callee"])
            if row["phase"] == "step" and caller and callee:
                self.callees.setdefault(caller, []).append((callee, row))

    def below(self, roots: Iterable[Key]) -> set[Key]:
        """All functions that these call, at any distance, without the roots themselves."""
        waiting, seen = list(roots), set[Key]()
        while waiting:
            for callee, _ in self.callees.get(waiting.pop(), ()):
                if callee not in seen:
                    seen.add(callee)
                    waiting.append(callee)
        return seen

    def callers(self, wanted: Callable[[Key], bool]) -> list[tuple[Any, Any, Row]]:
        """Caller, callee and row of each edge to a wanted callee."""
        return [
            (caller, callee, row)
            for caller, edges in self.callees.items()
            for callee, row in edges
            if wanted(callee)
        ]


def line_s(row: Row) -> float:
    """Seconds per step on a line, inside operators and outside."""
    return float(row["python_s"] or 0.0) + float(row["operator_s"] or 0.0)
