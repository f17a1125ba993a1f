"""The history of a program: its recordings in order of time, and changes that are more than noise.

A figure is searched for change points over the runs (`stats/change_points.py`). What fresh
processes of one commit differ by is the noise there: the interval inside one process is far too
narrow for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Literal

import numpy as np

from profstack.environment import __version__
from profstack.stats.change_points import change_points, fewest_values
from profstack.stats.summary import Ratio, ratio_interval
from profstack.storage.schema.history import (
    History,
    HistoryChange,
    HistoryRun,
    LeftOut,
    ProgramHistory,
)
from profstack.storage.schema.report import Report
from profstack.units import format_bytes, format_seconds

# Both figures together find a change in 5 of 100 histories without one.
_FIGURES: tuple[Literal["step", "memory"], ...] = ("step", "memory")
SIGNIFICANCE = 0.05 / len(_FIGURES)
# Facts of the environment that explain a change other than by the commit.
_ENVIRONMENT = {
    "cpu": "processor",
    "usable_cores": "usable cores",
    "gpu": "GPU",
    "python": "Python",
    "torch": "torch",
    "torch_threads": "torch's threads",
}
Facts = dict[str, str]


def run_of(path: str, report: Report) -> tuple[str, HistoryRun | str, Facts]:
    """Return a report's script, its line of the history (or why it has none), and its facts."""
    mark, facts = report["benchmark"], report["environment"]
    script = report["script"] or "(no script)"
    started = report["run"]["started_at"]
    known = {name: str(facts[key]) for key, name in _ENVIRONMENT.items() if facts.get(key)}
    known["batch size"] = str(report["step"]["batch_size"])
    known["arguments"] = " ".join(report["argv"][1:]) or "none"
    if started is None:
        return script, "it does not say when it began", known
    commit, changed, verdict = facts.get("commit"), facts.get("changed"), report["verdict"]
    middle, held = mark["median_s"], report["attribution"]
    reason = None if middle is not None else report.get("status_reason") or "no clean step"
    run: HistoryRun = {
        "path": path,
        "started_at": started,
        "commit": None if commit is None else str(commit),
        "changed": changed if isinstance(changed, bool) else None,
        "steps": mark["n"],
        "median_s": middle,
        "ci95_low_s": mark["ci95_low_s"],
        "ci95_high_s": mark["ci95_high_s"],
        "memory_peak_bytes": held["memory_peak_bytes"] if held else None,
        "verdict": verdict["slug"] if verdict else None,
        "reason": reason,
    }
    return script, run, known


def history(
    reports: Iterable[tuple[str, Report]],
    left_out: Iterable[LeftOut] = (),
    script: str | None = None,
) -> History:
    """Return the history of the programs whose reports these are, each with its path.

    Reports are read one after the other and not kept. With `script` others are left out.
    """
    programs: dict[str, list[tuple[HistoryRun, Facts]]] = defaultdict(list)
    lost: list[LeftOut] = []
    for path, report in reports:
        name, run, facts = run_of(path, report)
        if script is not None and name != script:
            continue
        if isinstance(run, str):
            lost.append({"path": path, "reason": run})
        else:
            programs[name].append((run, facts))
    made = [_program(name, rows) for name, rows in programs.items()]
    return {
        "schema_version": 1,
        "profstack_version": __version__,
        "programs": sorted(made, key=lambda each: (-len(each["runs"]), each["script"])),
        # It may be filled while the reports are read.
        "left_out": [*left_out, *lost],
    }


def _program(script: str, rows: list[tuple[HistoryRun, Facts]]) -> ProgramHistory:
    rows = sorted(rows, key=lambda row: (row[0]["started_at"], row[0]["path"]))
    runs, facts = [run for run, _ in rows], [each for _, each in rows]
    changes: list[HistoryChange] = []
    reasons: list[str] = []
    for figure in _FIGURES:
        values = [run["median_s" if figure == "step" else "memory_peak_bytes"] for run in runs]
        known = [place for place, value in enumerate(values) if value]
        least = fewest_values(SIGNIFICANCE)
        if len(known) < least:
            reasons.append(f"{figure}: {len(known)} runs have it, a change shows from {least} on")
            continue
        changes += _changes(figure, runs, facts, known, [float(values[at] or 0) for at in known])
    return {"script": script, "runs": runs, "changes": changes, "reasons": reasons}


def _changes(
    figure: Literal["step", "memory"],
    runs: Sequence[HistoryRun],
    facts: Sequence[Facts],
    known: Sequence[int],
    values: Sequence[float],
) -> Iterator[HistoryChange]:
    """Yield the changes of one figure; `known` are the runs that have it, `values` theirs."""
    commits = [runs[at]["commit"] for at in known]
    preferred = [at for at in range(1, len(commits)) if commits[at] != commits[at - 1]]
    logs = np.log(np.asarray(values)).tolist()
    points = change_points(logs, preferred=preferred, significance=SIGNIFICANCE)
    borders = [0, *(point.place for point in points), len(values)]
    sides = [values[low:high] for low, high in pairwise(borders)]
    for point, (before, after) in zip(points, pairwise(sides), strict=True):
        first, last = known[point.place], known[point.place - 1]
        commit, commit_before = runs[first]["commit"], runs[last]["commit"]
        ratio = ratio_interval([after], [before])
        differences = [
            f"{name}: {facts[last].get(name, 'none')} -> {facts[first].get(name, 'none')}"
            for name in {**facts[last], **facts[first]}
            if facts[last].get(name) != facts[first].get(name)
        ]
        is_same = commit is not None and commit == commit_before
        change: HistoryChange = {
            "figure": figure,
            "run": first,
            "commit": commit,
            "commit_before": commit_before,
            "same_commit": is_same,
            "before": float(median(before)),
            "after": float(median(after)),
            "ratio": ratio.factor,
            "ci95_low": ratio.low,
            "ci95_high": ratio.high,
            "p": point.p,
            "differences": differences,
            "sentence": "",
        }
        change["sentence"] = _sentence(change, runs[first], ratio)
        yield change


def short(commit: str | None) -> str:
    """Return a commit as people write it."""
    return commit[:8] if commit else "no commit"


def _sentence(change: HistoryChange, run: HistoryRun, ratio: Ratio) -> str:
    is_step = change["figure"] == "step"
    words = format_seconds if is_step else format_bytes
    factor = change["after"] / change["before"]
    more, less = ("slower", "faster") if is_step else ("more", "less")
    size = f"{100 * abs(factor - 1):.1f} % {more if factor > 1 else less}"
    interval = ""
    if ratio.low is not None and ratio.high is not None:
        low, high = (f"{100 * (each - 1):+.1f}" for each in (ratio.low, ratio.high))
        interval = f" ({low} to {high} %)"
    what = "step" if is_step else "memory at the peak"
    figures = f"{words(change['before'])} -> {words(change['after'])}"
    if change["commit"] is None or change["same_commit"]:
        where = f"the run of {run['started_at'][:16].replace('T', ' ')}"
    else:
        where = f"commit {short(change['commit'])}"
    text = f"{what} {size} from {where} on{interval}: {figures}"
    if change["same_commit"]:
        text += f"; the commit is the same before and after ({short(change['commit'])})"
    if change["differences"]:
        text += f"; also changed there: {', '.join(change['differences'])}"
    return text
