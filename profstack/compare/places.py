"""Where a difference comes from: the line, the function or the module that changed most.

Each side's report says how much of a step its own lines, functions and modules take, by part of the
step. Matched through moved code, the largest difference in a part's own direction is its place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import NamedTuple

from profstack.compare.matching import Key, Sources, match_functions, match_modules
from profstack.compare.sides import Side, run_rows
from profstack.findings.reading import CallGraph, FunctionKey, figure, line_s
from profstack.storage.schema.report import OptimizerFacts, Report

_Line = tuple[str, int]

# The parts of a step by the kind of work that its lines do.
_WAITS = ("data wait", "making the batch", "before the model's first call")
_MODEL = ("forward", "backward")
# Files of torch's whose functions call a DataLoader's own code, and a model's.
_CALLERS = ("torch/utils/data/", "torch/nn/modules/module.py")
# Parts of the run in which most functions are new to the watch by chance.
_STARTING = ("start-up and imports", "model and data set-up", "first step and compilation")
# A function or line explains a part from this share of its difference on.
_EXPLAINS = 0.3
# One of several functions that call each other is the place: the innermost with nearly all of it.
_NEARLY_ALL = 0.7


class Found(NamedTuple):
    """A place with what changed there."""

    file: str | None
    line: int | None
    cause: str | None


NOTHING = Found(None, None, None)


class Places:
    """The places of both sides, matched; figures are seconds per clean step."""

    def __init__(self, before: Side, after: Side) -> None:
        self._sides = (before, after)
        self.sources = Sources(before.first, after.first)

    # What each side has ------------------------------------------------------------------------

    @cached_property
    def graphs(self) -> tuple[CallGraph, CallGraph]:
        """Who calls whom, of each side's first recording."""
        return CallGraph(self._sides[0].first), CallGraph(self._sides[1].first)

    def _mean(self, which: int, read: Callable[[Report], Mapping[Key, float]]) -> dict[Key, float]:
        """Return figures by key, the mean over those recordings of a side that have any."""
        sums: dict[Key, float] = defaultdict(float)
        side, together = self._sides[which], 0.0
        for weight, report in zip(side.kept, side.reports, strict=True):
            if weight and (found := read(report)):
                together += weight
                for key, value in found.items():
                    sums[key] += weight * value
        return {key: value / together for key, value in sums.items()}

    def _lines(self, which: int, kind: str) -> dict[_Line, float]:
        return self._mean(which, lambda report: line_times(report, kind))

    @cached_property
    def _functions(self) -> tuple[dict[FunctionKey, float], dict[FunctionKey, float]]:
        return self._mean(0, function_times), self._mean(1, function_times)

    @cached_property
    def functions(self) -> dict[FunctionKey, FunctionKey]:
        """The user's own functions of the second side, with their partner on the first."""
        before, after = (list(each) for each in self._functions)
        pairs, _, _ = match_functions(before, after, self.sources)
        return {second: first for first, second in pairs}

    @cached_property
    def modules(self) -> dict[str, str]:
        """Modules of the first side with their partner on the second."""
        before, after = (side.first["tables"]["modules"] for side in self._sides)
        return match_modules(before, after)

    # The place of a part -------------------------------------------------------------------------

    def of_step(self, part: str, difference_s: float) -> Found:
        """Return the place of a part of the step that changed by so many seconds."""
        if part == "optimizer":
            return self._optimizer()
        if part in _MODEL:
            return self._in_model(part, difference_s)
        if part == "loss":
            return self._line_place("loss", difference_s, None)
        if part == "Python":
            changed = self._optimizer()
            line = self._line_place("python", difference_s, None)
            return changed if changed.cause and changed[:2] == line[:2] else line
        inside = self._loading(part)
        line = self._line_place("outside", difference_s, inside)
        # Only where no line was timed: a function's time is that of all that it calls.
        return line if line.line is not None else self._function(difference_s, inside)

    def _loading(self, part: str) -> Callable[[int, FunctionKey], bool]:
        """Return whether a function can be the place of a part that is not the model's.

        What a DataLoader calls is the wait's alone.
        """
        loading, in_model = ([_below(graph, file) for graph in self.graphs] for file in _CALLERS)
        waits = part in _WAITS and any(loading)

        def inside(which: int, key: FunctionKey) -> bool:
            return (key in loading[which]) == waits and key not in in_model[which]

        return inside

    def _function(self, difference_s: float, inside: Callable[[int, FunctionKey], bool]) -> Found:
        """Return the user's own function that explains a difference; the innermost of several."""
        was, now = self._functions
        sign = 1.0 if difference_s > 0 else -1.0
        changes = [
            (sign * (seconds - was.get(self.functions.get(key, key), 0.0)), 1, key)
            for key, seconds in now.items()
            if inside(1, key)
        ]
        partners = set(self.functions.values())
        changes += [
            (-sign * seconds, 0, key)
            for key, seconds in was.items()
            if key not in partners and inside(0, key)
        ]
        best = max((change for change, _, _ in changes), default=0.0)
        if best < _EXPLAINS * abs(difference_s):
            return NOTHING
        near = [each for each in changes if each[0] >= _NEARLY_ALL * best]
        _, which, key = min(near, key=lambda each: (now if each[1] else was)[each[2]])
        return Found(key.file, self._inside(which, key, sign), self._name(which, key))

    def _inside(self, which: int, key: FunctionKey, sign: float) -> int:
        """Return the line of a function that changed most; its first where none is known."""
        changes = self._line_changes("outside", sign)
        graph = self.graphs[which]
        own = [
            (change, line)
            for change, side, (file, line) in changes
            if side == which and file == key.file and graph.is_own_line(key, (file, line))
        ]
        change, line = max(own, default=(0.0, key.line))
        return line if change > 0 else key.line

    def _name(self, which: int, key: FunctionKey) -> str:
        graph = self.graphs[which]
        span = graph.span_around((key.file, key.line))
        name = span.qualified if span is not None and span.name == key.name else key.name
        if which == 0:
            return f"{name}, gone"
        old = self.functions.get(key)
        if old is None:
            return f"{name}, new"
        return name if old.name == key.name else f"{name}, was {old.name}"

    def _line_changes(self, kind: str, sign: float) -> list[tuple[float, int, _Line]]:
        """Return the change of each line in one direction, with its side and place."""
        was, now = self._lines(0, kind), self._lines(1, kind)
        partners = {line: self.sources.line(*line) for line in was}
        old: dict[_Line, float] = defaultdict(float)
        for line, seconds in was.items():
            if (partner := partners[line]) is not None:
                old[partner] += seconds
        changes = [(sign * (seconds - old[line]), 1, line) for line, seconds in now.items()]
        changes += [
            (-sign * seconds, 0, line) for line, seconds in was.items() if partners[line] is None
        ]
        return changes

    def _line_place(
        self,
        kind: str,
        difference_s: float,
        inside: Callable[[int, FunctionKey], bool] | None,
    ) -> Found:
        """Return the line that changed most; only lines of functions that `inside` allows."""
        sign = 1.0 if difference_s > 0 else -1.0

        def allowed(which: int, line: _Line) -> bool:
            if inside is None:
                return True
            span = self.graphs[which].span_around(line)
            # A line of the loop itself is in no profiled function: it loads nothing by itself.
            key = FunctionKey(line[0], span.first, span.name) if span is not None else None
            return inside(which, key or FunctionKey(line[0], line[1], "<module>"))

        changes = [each for each in self._line_changes(kind, sign) if allowed(*each[1:])]
        if not changes:
            return NOTHING
        change, which, (file, line) = max(changes)
        if change < _EXPLAINS * abs(difference_s):
            return NOTHING
        graph = self.graphs[which]
        span = graph.span_around((file, line))
        key = None if span is None else FunctionKey(file, span.first, span.name)
        known = key is not None and key in graph.rows
        return Found(file, line, self._name(which, key) if known and key is not None else None)

    def _in_model(self, part: str, difference_s: float) -> Found:
        """Return the module that changed most, with the line that calls it."""
        sign = 1.0 if difference_s > 0 else -1.0
        was, now = (
            self._mean(which, lambda report: module_times(report, part)) for which in (0, 1)
        )
        partners = {second: first for first, second in self.modules.items()}
        changes = [
            (sign * (seconds - was.get(partners.get(path, path), 0.0)), 1, path)
            for path, seconds in now.items()
        ]
        changes += [
            (-sign * seconds, 0, path) for path, seconds in was.items() if path not in self.modules
        ]
        change, which, path = max(changes, default=(0.0, 1, ""))
        if change <= 0.0:
            return NOTHING
        status = (
            "" if path in (partners if which else self.modules) else ", new" if which else ", gone"
        )
        place = module_line(self._sides[which].first, path)
        file, line = place or (None, None)
        return Found(file, line, path + status)

    def _optimizer(self) -> Found:
        """Return what changed in the first optimizer's options, and where its step is called."""
        was, now = ((side.first["setup"].get("optimizers") or [])[:1] for side in self._sides)
        place = now[0]["place"] if now else None
        words = _optimizer_words(was[0], now[0]) if was and now else None
        return Found(place["file"], place["line"], words) if place else Found(None, None, words)

    # Parts of the run ----------------------------------------------------------------------------

    def of_run(self, part: str, difference_s: float) -> Found:
        """Return the place of a part of the run that changed by so many seconds."""
        was, now = (self._mean(which, lambda report: _run_places(report, part)) for which in (0, 1))
        sign = 1.0 if difference_s > 0 else -1.0
        old: dict[tuple[str, str | None], float] = defaultdict(float)
        for (file, line, name), seconds in was.items():
            other = self.sources.line(file, line)
            there = self.sources.files.get(file, file)
            old[there, name or str(other[1] if other else -line)] += seconds
        changes = [
            (sign * (seconds - old[file, name or str(line)]), 1, (file, line, name))
            for (file, line, name), seconds in now.items()
        ]
        if sign < 0:
            new = {(file, name or str(line)) for file, line, name in now}
            changes += [
                (seconds, 0, (file, line, name))
                for (file, line, name), seconds in was.items()
                if (self.sources.files.get(file, file), name or str(line)) not in new
            ]
        change, which, (file, line, name) = max(changes, default=(0.0, 1, ("", 0, None)))
        if change < _EXPLAINS * abs(difference_s):
            return NOTHING
        if name is None and sign > 0 and part not in _STARTING:
            caller = self._new_around(file)
            if caller is not None:
                return caller
        span = self.graphs[which].span_around((file, line))
        return Found(file, line, name or (span.qualified if span else None))

    def _new_around(self, file: str) -> Found | None:
        """Return the function of a file that the watch saw most of, of those that are new to it.

        A line deep in the model says little of what called it.
        """
        names = {row["name"] for row in self._sides[0].first["tables"]["watch"]}
        new = [
            row
            for row in self._sides[1].first["tables"]["watch"]
            if row["file"] == file and row["name"] not in names and row["name"][0] != "<"
        ]
        best = max(new, key=lambda row: row["samples"] or 0.0, default=None)
        if best is None or best["line"] is None:
            return None
        return Found(file, best["line"], f"{best['name']}, new")


def _optimizer_words(before: OptimizerFacts, after: OptimizerFacts) -> str | None:
    if before["name"] != after["name"]:
        return f"{after['name']} after {before['name']}"
    if before["fused"] != after["fused"]:
        return "fused" if after["fused"] else "no longer fused"
    if before["foreach"] != after["foreach"]:
        return "foreach" if after["foreach"] else "one operator at a time"
    if before["tensors"] != after["tensors"]:
        return f"{before['tensors']} -> {after['tensors']} tensors"
    return None


def _below(graph: CallGraph, file: str) -> set[FunctionKey]:
    """Return the functions that those of a file of torch's call, directly or not."""
    return graph.below(key for key in graph.callees if file in key.file.replace("\\", "/"))


# What a report says of its lines, functions and modules -------------------------------------------


def line_times(report: Report, kind: str) -> dict[_Line, float]:
    """Return seconds per step of the user's own lines.

    `outside` the model and the optimizer, in the `loss`, or in `python` and not in operators.
    """
    tables = report["tables"]
    sums: dict[_Line, float] = defaultdict(float)
    if kind in ("outside", "python"):
        for line in tables["lines"]:
            if line["own"] and line["python_s"] is not None:
                seconds = line["python_s"] if kind == "python" else line_s(line)
                sums[line["file"], line["line"]] += seconds
    for row in tables["module_lines"]:
        module, seconds = row["module"], line_s(row)
        is_loss = module is not None and (module == "(loss)" or module.endswith("Loss"))
        if kind == "outside" and module not in (None, "(wait)"):
            sums[row["file"], row["line"]] -= seconds
        elif kind == "loss" and is_loss:
            sums[row["file"], row["line"]] += seconds - figure(row, "backward_s")
    return {line: max(seconds, 0.0) for line, seconds in sums.items()}


def function_times(report: Report) -> dict[FunctionKey, float]:
    """Return clean seconds per step of the user's own functions, with all that they call."""
    found: dict[FunctionKey, float] = {}
    for row in report["tables"]["functions"]:
        if row["own"] and row["phase"] == "step" and row["total_s"] is not None:
            calibrated, own = row["calibrated_s"], row["self_s"]
            scale = calibrated / own if calibrated is not None and own else 1.0
            found[FunctionKey(row["file"], row["line"], row["name"])] = row["total_s"] * scale
    return found


def module_times(report: Report, part: str) -> dict[str, float]:
    """Return clean seconds per step of each module without its children, forward or backward."""
    column = "forward_s" if part == "forward" else "backward_s"
    device = "forward_device_s" if part == "forward" else "backward_device_s"
    rows = {row["path"]: row for row in report["tables"]["modules"] if row["path"][0] != "("}
    on_device = any(row.get(device) for row in rows.values())
    used = device if on_device else column
    found: dict[str, float] = {}
    for path, row in rows.items():
        whole = figure(row, "forward_s") + figure(row, "backward_s")
        scale = (row["calibrated_s"] or whole) / whole if whole and not on_device else 1.0
        seconds = figure(row, used) * scale
        found[path] = found.get(path, 0.0) + seconds
        parent = path.rpartition(".")[0]
        if parent in rows:
            found[parent] = found.get(parent, 0.0) - seconds
    return found


def module_line(report: Report, path: str) -> _Line | None:
    """Return the line that most of a module's forward time is spent on."""
    rows = [
        (line_s(row) - figure(row, "backward_s"), row)
        for row in report["tables"]["module_lines"]
        if row["module"] == path or (row["module"] or "").startswith(path + ".")
    ]
    best = max(rows, key=lambda each: each[0], default=None)
    return None if best is None else (best[1]["file"], best[1]["line"])


def _run_places(report: Report, part: str) -> dict[tuple[str, int, str | None], float]:
    found: dict[tuple[str, int, str | None], float] = defaultdict(float)
    for row in run_rows(report):
        if row["part"] != part:
            continue
        for each in row["functions"]:
            found[each["file"], each["line"], each["name"]] += each["wall_s"]
        if not row["functions"] and row["file"] is not None and row["line"] is not None:
            found[row["file"], row["line"], row["name"]] = row["wall_s"]
    return found
