"""The tables and figures that come from the watch.

Shares are of the watched time: a sample weighs the time since the one before it. A count of
samples is a count of looks, however long each of them stands for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from profstack.merge.functions import PROFILED
from profstack.merge.outliers import outlier_rows
from profstack.merge.recorded import Recorded, nullable
from profstack.merge.watched import PHASES, STEP, Sum, added, watched
from profstack.privacy import home_relative
from profstack.watch import INTERVAL_S

__all__ = ["few_samples", "function_shares", "line_shares", "outlier_rows", "summary", "watch_rows"]

FunctionKey = tuple[str, int, str]
LineKey = tuple[str, int]
# Below so many samples in steps, or functions to compare, an order says nothing.
FEWEST_SAMPLES = 50
FEWEST_FUNCTIONS = 5
# A function takes part in the comparison if either layer gives it so much of the steps.
WORTH_COMPARING = 0.01


def watch_rows(recorded: Recorded) -> list[dict[str, Any]]:
    """Rows of `watch`: by phase and function, the largest own share first."""
    return [row for phase in PHASES for row in _phase_rows(recorded, phase)]


def _phase_rows(recorded: Recorded, phase: str) -> list[dict[str, Any]]:
    seen = watched(recorded)
    stacks = seen.by_stack(seen.of(phase))
    whole = sum(each.weight for each in stacks)
    own: dict[FunctionKey, list[Sum]] = defaultdict(list)
    total: dict[FunctionKey, list[Sum]] = defaultdict(list)
    for each in stacks:
        if each.stack:
            own[each.stack[-1].function].append(each)
        for function in dict.fromkeys(frame.function for frame in each.stack):
            total[function].append(each)
    rows = [
        {
            "phase": phase,
            "file": home_relative(file),
            "line": line,
            "name": name,
            "samples": sum(each.samples for each in around),
            "self_share": _share(own.get((file, line, name), ()), whole),
            "total_share": _share(around, whole),
            "rss_bytes": added(each.grown for each in own.get((file, line, name), ())),
        }
        for (file, line, name), around in total.items()
    ]
    return sorted(rows, key=lambda row: (-row["self_share"], -row["total_share"]))


def _share(sums: Iterable[Sum], whole: float) -> float:
    return sum(each.weight for each in sums) / whole


def line_shares(
    recorded: Recorded, phase: str | None = None
) -> dict[LineKey, tuple[float, int | None]]:
    """Share of the samples and growth of the resident set by line of the script's own code.

    A sample belongs to the innermost line of the script's own, so that the shares of all lines
    add up to 1 at most. Files are named as recorded. Start-up and steps together, or one phase.
    """
    seen = watched(recorded)
    stacks = seen.by_stack(seen.of(phase))
    whole = sum(each.weight for each in stacks)
    lines: dict[LineKey, list[Sum]] = defaultdict(list)
    for each in stacks:
        own = seen.own(each.stack)
        if own:
            lines[own[-1].file, own[-1].line].append(each)
    return {
        line: (_share(sums, whole), added(each.grown for each in sums))
        for line, sums in lines.items()
    }


def function_shares(recorded: Recorded, phase: str | None = STEP) -> dict[FunctionKey, float]:
    """Share of the samples in which a function was innermost, in the steps unless told otherwise.

    Keys are file, line and name as in the rows of `functions`. Built-in functions have no frame:
    their time is their caller's.
    """
    seen = watched(recorded)
    stacks = seen.by_stack(seen.of(phase))
    whole = sum(each.weight for each in stacks)
    shares: dict[FunctionKey, float] = defaultdict(float)
    for each in stacks:
        if each.stack:
            file, line, name = each.stack[-1].function
            shares[home_relative(file), line, name] += each.weight / whole
    return dict(shares)


def few_samples(recorded: Recorded) -> str | None:
    """Why the watch's samples of steps are too few for shares; None where it has many, or none."""
    count = len(watched(recorded).of(STEP))
    if not 0 < count < FEWEST_SAMPLES:
        return None
    return f"the watch has {count} samples in steps, {FEWEST_SAMPLES} are needed"


def summary(recorded: Recorded, functions_rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How much the watch has seen, and whether it orders functions as cProfile does.

    `functions_rows` are the rows of `functions`. `rank_correlation` is Spearman's, None with a
    reason where there is too little to compare.
    """
    samples = watched(recorded).samples
    correlation, compared, reason = _rank_correlation(recorded, functions_rows)
    return {
        "samples": len(samples),
        "watched_s": sum(sample.weight for sample in samples) * INTERVAL_S,
        "samples_by_phase": {phase: len(watched(recorded).of(phase)) for phase in PHASES},
        "interval_s": INTERVAL_S,
        "thinning": _thinning(recorded),
        "rank_correlation": correlation,
        "compared_functions": compared,
        "reason": reason,
    }


def _thinning(recorded: Recorded) -> str | None:
    layers = recorded.frames["layers"]
    said = layers[layers["name"] == "watch"]["truncated"].dropna()
    return str(said.iloc[0]) if len(said) else None


def _rank_correlation(
    recorded: Recorded, functions_rows: Sequence[Mapping[str, Any]]
) -> tuple[float | None, int, str | None]:
    """Spearman's correlation of own shares, the functions compared, and why there is none."""
    few = few_samples(recorded)
    if few is not None:
        return None, 0, few
    if not watched(recorded).of(STEP):
        return None, 0, f"the watch has 0 samples in steps, {FEWEST_SAMPLES} are needed"
    profiled = _profiled_shares(recorded, functions_rows)
    if not profiled:
        return None, 0, "cProfile has no slice to compare with"
    sampled = function_shares(recorded)
    # What began before its slice cProfile cannot see: the watch's share of it is left out.
    compared = [
        (share, sampled.get(function, 0.0))
        for function, share in profiled.items()
        if max(share, sampled.get(function, 0.0)) >= WORTH_COMPARING
    ]
    if len(compared) < FEWEST_FUNCTIONS:
        told = f"only {len(compared)} functions have a hundredth of the steps"
        return None, len(compared), f"{told}, {FEWEST_FUNCTIONS} are needed"
    ranks = pd.DataFrame(compared, columns=["profiled", "sampled"]).rank()
    if ranks["profiled"].nunique() < 2 or ranks["sampled"].nunique() < 2:
        return None, len(compared), "all functions have the same share in one of the two layers"
    return float(ranks["profiled"].corr(ranks["sampled"])), len(compared), None


def _profiled_shares(
    recorded: Recorded, functions_rows: Sequence[Mapping[str, Any]]
) -> dict[FunctionKey, float]:
    """Own time of Python functions by cProfile, with that of the built-in ones they call.

    A sampler sees no frame of a built-in function, so it has that time on the caller's.
    """
    own = {
        (row["file"], row["line"], row["name"]): float(row["self_s"])
        for row in functions_rows
        if row["phase"] == "step" and row["file"] != "~" and row["self_s"] is not None
    }
    selection = recorded.select("cprofile", PROFILED)
    if selection is None or not own:
        return {}
    calls = recorded.rows("calls", selection)
    calls = calls[(calls["callee_file"] == "~") & (calls["caller_file"] != "~")]
    columns = ["caller_file", "caller_line", "caller_name", "self_s"]
    for file, line, name, total_s in calls[columns].itertuples(index=False):
        key = (home_relative(str(file)), int(nullable(line) or 0), str(name))
        if key in own:
            own[key] += selection.per_step(total_s) or 0.0
    whole = sum(own.values())
    return {key: self_s / whole for key, self_s in own.items()} if whole else {}
