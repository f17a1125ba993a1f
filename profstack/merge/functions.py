"""The tables that come from cProfile: functions and calls, of the steps and of the start-up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from profstack.merge.recorded import Recorded, Selection, nullable
from profstack.privacy import home_relative

PROFILED = (("timed",), ("shared",), ("whole",))
_KEYS = ["file", "line", "name"]


def functions(
    recorded: Recorded,
    selection: Selection | None,
    clean_s: float | None,
    watched: Mapping[tuple[str, int, str], float],
) -> list[dict[str, Any]]:
    """Rows of `functions`, the longest own time first; the start-up's stand after the steps'.

    `watched` are the shares that the watch gives functions in steps, by file, line and name.
    """
    rows = []
    if selection is not None:
        rows += _function_rows(recorded.rows("functions", selection), selection, clean_s, "step")
        for row in rows:
            row["watch_share"] = watched.get((row["file"], row["line"], row["name"]))
    startup = recorded.frames["functions"]
    startup = startup[startup["slice"].isna()]
    once = Selection([], None, 1, 0.0)
    return rows + _function_rows(startup, once, None, "startup")


def _function_rows(
    frame: pd.DataFrame, selection: Selection, clean_s: float | None, phase: str
) -> list[dict[str, Any]]:
    columns = ["calls", "primitive_calls", "self_s", "total_s"]
    summed = frame.groupby(_KEYS)[columns].sum().sort_values("self_s", ascending=False)
    return [
        {
            "phase": phase,
            "file": home_relative(str(file)),
            "line": int(line),
            "name": name,
            "calls": selection.per_step(totals["calls"]),
            "primitive_calls": selection.per_step(totals["primitive_calls"]),
            "self_s": selection.per_step(totals["self_s"]),
            "total_s": selection.per_step(totals["total_s"]),
            "calibrated_s": selection.calibrated(totals["self_s"], clean_s),
        }
        for (file, line, name), totals in summed.iterrows()
    ]


def calls(recorded: Recorded, selection: Selection | None) -> list[dict[str, Any]]:
    """Rows of `calls`, the longest total time first."""
    frame = recorded.frames["calls"]
    rows = []
    if selection is not None:
        rows += _call_rows(recorded.rows("calls", selection), selection, "step")
    once = Selection([], None, 1, 0.0)
    return rows + _call_rows(frame[frame["slice"].isna()], once, "startup")


def _call_rows(frame: pd.DataFrame, selection: Selection, phase: str) -> list[dict[str, Any]]:
    if not len(frame):
        return []
    keys = [f"{side}_{key}" for side in ("caller", "callee") for key in _KEYS]
    summed = frame.groupby(keys)[["calls", "self_s", "total_s"]].sum()
    rows = []
    for key, totals in summed.sort_values("total_s", ascending=False).iterrows():
        rows.append(
            {
                "phase": phase,
                "caller": place(*key[:3]),
                "callee": place(*key[3:]),
                "calls": selection.per_step(totals["calls"]),
                "self_s": selection.per_step(totals["self_s"]),
                "total_s": selection.per_step(totals["total_s"]),
            }
        )
    return rows


def place(file: Any, line: Any, name: Any) -> str:
    """A function as one string: file:line(name)."""
    return f"{home_relative(str(file))}:{int(nullable(line) or 0)}({name})"
