"""Run every family of findings over a report, and add the verdict.

A family reads the recording and the finished report, and returns findings. One that fails becomes
a warning, and the others go on.
"""

from __future__ import annotations

from collections.abc import Set
from functools import partial
from itertools import combinations
from operator import itemgetter
from typing import NamedTuple

from profstack.findings import model_setup, reading, rules
from profstack.findings.backward import anomaly_detection, graph_again
from profstack.findings.compilation import compiling
from profstack.findings.data_loading import data_starved, loaders
from profstack.findings.hot_spots import dominating, hot_spots
from profstack.findings.inference import inference
from profstack.findings.measurement import threads_without_cores, trust, uncounted
from profstack.findings.memory_growth import memory_growth
from profstack.findings.next_step import SAME_TIME, in_order
from profstack.findings.own_costs import own_costs
from profstack.findings.run_costs import run_costs
from profstack.findings.small_operators import small_operators
from profstack.findings.synchronization import forced_synchronisation, host_to_device_copies
from profstack.findings.verdict import add_step_bar, add_verdict
from profstack.findings.wasted_work import (
    called_again,
    constant_input,
    double_precision,
    exchanged_too_often,
    gathered_rows,
    ignored_targets,
    padding,
    tensors_from_lists,
    unused_gradients,
)
from profstack.storage.reader import Recorded
from profstack.storage.schema.report import Evidence, Finding, Place, Report
from profstack.storage.schema.trials import TrialReport

FAMILIES: tuple[reading.Family, ...] = (
    memory_growth, data_starved, forced_synchronisation, host_to_device_copies,
    small_operators, compiling, hot_spots, dominating, threads_without_cores, trust, uncounted,
    model_setup.unfused_optimizer, model_setup.dense_embeddings, model_setup.zero_grad_to_zeros,
    inference, anomaly_detection, graph_again,
    model_setup.float32_without_tf32, padding,
    ignored_targets, called_again, constant_input, gathered_rows, unused_gradients,
    tensors_from_lists,
    exchanged_too_often, double_precision, own_costs, run_costs,
)  # fmt: skip


def add_findings(report: Report, recorded: Recorded) -> None:
    """Add the findings of the recording, that to begin with first, and the verdict."""
    read = reading.drop_unkeyed(report)
    for part in report["run_bar"]:
        if part["name"] is not None and part["file"] is not None and part["line"] is not None:
            place: Place = {"file": part["file"], "line": part["line"]}
            part["name"] = reading.qualified_name(report, place, part["name"])
    # Findings name the parts of the bar that their time is in.
    cuts = add_step_bar(read, recorded)
    # The verdict names them, too: they are read once.
    own = partial(own_costs, sites=cuts.sites if cuts is not None else ())
    for family in FAMILIES:
        try:
            report["findings"] += (own if family is own_costs else family)(recorded, read)
        except Exception as error:
            # The figures are right without it.
            _warn(report, "findings are missing", error)
    step_s = reading.clean_step_s(report)
    found = [_as_tried(each, report.get("tried"), step_s) for each in report["findings"]]
    report["findings"] = [reading.bounded(each, step_s) for each in found]
    try:
        report["findings"] = in_order(report)
    except Exception as error:
        _warn(report, "findings are in no order", error)
    try:
        link_overlaps(report["findings"], read)
    except Exception as error:
        _warn(report, "findings do not say which of them overlap", error)
    read["findings"] = report["findings"]
    add_verdict(read, cuts)
    report["verdict"], report["step_bar"] = read["verdict"], read["step_bar"]
    order = {slug: at for at, slug in enumerate(rules.WARNINGS)}
    report["warnings"].sort(key=lambda each: order.get(each["slug"], len(order)))


def _warn(report: Report, lacks: str, error: Exception) -> None:
    text = f"{lacks}: {type(error).__name__}: {error}"
    report["warnings"].append({"slug": "findings-failed", "text": text})


# A remedy that gains surely less than this part of a step was measured to gain nothing.
_NO_GAIN = 0.05


def _as_tried(found: Finding, tried: TrialReport | None, step_s: float | None) -> Finding:
    """Return a finding with the gain that `profstack try` has measured of its best remedy."""
    # Those without an interval have not changed anything, or were hardly run.
    rows = [
        (ratio, row)
        for row in (tried["trials"] if tried else ())
        if found["slug"] in row["findings"]
        and (ratio := row["ratio"]) is not None
        and row["ci95_low"] is not None
    ]
    gains = [pair for pair in rows if pair[1]["recommended"]]
    rows = gains or [pair for pair in rows if pair[1]["verdict"] in ("same", "loses")]
    if not rows or step_s is None:
        return found
    ratio, best = min(rows, key=itemgetter(0))
    shown: Evidence = {
        "tried": best["change"],
        "came_of_it": best["verdict"],
        "of_the_step_share": ratio,
        "at_least_share": best["ci95_low"],
        "at_most_share": best["ci95_high"],
    }
    judged: Finding = {**found, "evidence": [*found["evidence"], shown]}
    if best["times_of"] == "run":
        # Of all time from step to step: no part of a clean step.
        return judged
    if best["verdict"] == "gains":
        return {**judged, "gain_s": step_s * (1.0 - ratio), "gain_is": "measured"}
    if best["ci95_low"] is not None and best["ci95_low"] > 1.0 - _NO_GAIN:
        return {**judged, "gain_s": 0.0, "gain_is": "measured"}
    # Too noisy to tell: the estimate stays.
    return judged


# Findings about the same time, whose gains do not add up: a loop of Python that makes samples is a
# hot spot, and what the step waits for; a loop over heads is many small operators, and the module
# that takes most of the step. Both stay, since each gives another way to mend it, and each names
# the other.


class _Extent(NamedTuple):
    """Functions, lines and modules that a finding's time is in."""

    functions: Set[reading.FunctionKey] = frozenset()
    lines: Set[tuple[str, int]] = frozenset()
    modules: Set[str] = frozenset()


def link_overlaps(findings: list[Finding], report: Report) -> None:
    """Name the other one in the advice and the evidence of each pair about the same time."""
    overlaps = _Overlaps(report)
    chosen = [(each, extent) for each in findings if (extent := overlaps.extent(each)) is not None]
    for (one, here), (other, there) in combinations(chosen, 2):
        if overlaps.meet(here, there):
            for each, another in ((one, other), (other, one)):
                link = f"overview/{another['slug']}"
                each["evidence"].append({"same_time_as": another["slug"], "link": link})
                each["advice"] += f" '{another['title']}' {SAME_TIME}"


class _Overlaps:
    """Where the time of findings is spent, and which of them share some."""

    def __init__(self, report: Report) -> None:
        self._graph = reading.CallGraph(report)
        self._modules = {
            (row["file"], row["line"]): row["module"]
            for row in report["tables"]["module_lines"]
            if row["module"] is not None
        }

    def extent(self, found: Finding) -> _Extent | None:
        """Return where a finding's time is spent; None for kinds that never overlap."""
        modules = {found["module"]} if found["module"] else set()
        lines = {(found["file"], found["line"])} if found["file"] and found["line"] else set()
        slug = found["slug"]
        if slug == rules.PYTHON_HOT_SPOT.slug:
            # Its own time alone: what it calls is no part of the finding.
            key = _functions(found)[0]
            own = {place for place in self._modules if self._graph.is_own_line(key, place)}
            return _Extent({key}, own)
        if slug == rules.DATA_STARVED.slug:
            roots = {*_functions(found), *loaders(self._graph)}
            return _Extent(roots | self._graph.below(roots))
        if slug == rules.FORCED_SYNCHRONISATION.slug:
            return _Extent(lines=lines)
        if slug == rules.SMALL_OPERATORS.slug:
            return _Extent(lines=lines, modules=modules)
        return _Extent(modules=modules) if slug == rules.MODULE_DOMINATES.slug else None

    def meet(self, one: _Extent, other: _Extent) -> bool:
        """Whether two have a function, a line or a module in common, or one is in the other."""
        is_shared = one.functions & other.functions or one.lines & other.lines
        return bool(is_shared) or self._within(one, other) or self._within(other, one)

    def _within(self, inner: _Extent, outer: _Extent) -> bool:
        """Whether a line or a module of one is in a function or a module of the other."""
        places = [(key, place) for key in outer.functions for place in inner.lines]
        modules = inner.modules | {self._modules.get(place, "") for place in inner.lines}
        return any(self._graph.is_own_line(key, place) for key, place in places) or any(
            f"{module}.".startswith(f"{whole}.")
            for module in modules - {""}
            for whole in outer.modules
        )


def _functions(found: Finding) -> list[reading.FunctionKey]:
    """Return the functions that a finding's evidence names."""
    return [
        reading.FunctionKey(str(row["file"]), int(row["line"] or 0), str(row["function"]))
        for row in found["evidence"]
        if "function" in row and row.get("file")
    ]
