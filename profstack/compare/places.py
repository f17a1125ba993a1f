"""Where a difference comes from: the line, the function or the module that changed most.

Each side's report says how much of a step its own lines, functions and modules take, by part of the
step. Matched through moved code, the largest difference in a part's own direction is its place;
others that changed much are further places.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from profstack.compare.matching import Key, Sources, match_functions, match_modules
from profstack.compare.sides import Side, run_rows
from profstack.findings.reading import CallGraph, FunctionKey, figure, line_s, sums_of
from profstack.storage.schema.report import OptimizerFacts, Report

_Line = tuple[str, int]

# The parts of a step by the kind of work that its lines do.
WAITS = ("data wait", "making the batch", "before the model's first call")
MODEL = ("forward", "backward")
# Files of torch's whose functions call a DataLoader's own code, and a model's.
_CALLERS = ("torch/utils/data/", "torch/nn/modules/module.py")
# Parts of the run in which most functions are new to the watch by chance.
_STARTING = ("start-up and imports", "model and data set-up", "first step and compilation")
# A function or line explains a part from this share of its difference on.
_EXPLAINS = 0.3
# Further ones are named from this share on, where they changed by this part of themselves: what
# the slices of two runs say of one line differs by some tenths.
_ALSO, _OF_ITSELF = 0.2, 0.25
MOST_PLACES = 3
# Characters of a line that is quoted.
_LONGEST_LINE = 40
# Lines of a loop's body are one place with its head, at most this far from it.
_BODY = 5
# One of several functions that call each other is the place: the innermost with nearly all of it.
_NEARLY_ALL = 0.7


class Found(NamedTuple):
    """A place with what changed there."""

    file: str | None
    line: int | None
    cause: str | None


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

    # The places of a part ------------------------------------------------------------------------

    def of_step(self, part: str, difference_s: float) -> list[Found]:
        """Return the places of a part of the step that changed by so many seconds.

        The one that changed most is the first.
        """
        if part == "optimizer":
            return self._optimizer()
        if part in MODEL:
            return self._in_model(part, difference_s)
        if part == "loss":
            return self._line_places("loss", difference_s, None)
        if part == "Python":
            changed = self._optimizer()
            lines = self._line_places("python", difference_s, None)
            if changed and changed[0].cause and lines and lines[0][:2] == changed[0][:2]:
                return [changed[0], *lines[1:]]
            return lines
        inside = self._loading(part)
        # Only where no line was timed: a function's time is that of all that it calls.
        return self._line_places("outside", difference_s, inside) or self._function_places(
            difference_s, inside
        )

    def is_one_place(self, which: int, one: tuple[str, int], other: tuple[str, int]) -> bool:
        """Return whether two lines of a side are one, or the head of a block and a line in it."""
        (file, first), (other_file, last) = sorted((one, other))
        if file != other_file or last - first > _BODY:
            return False
        text = self.sources.text(which, file)
        if first == last or text is None:
            return first == last
        margins = [
            len(line) - len(line.lstrip())
            for line in text.lines[first - 1 : last]
            if line.strip() and not line.lstrip().startswith("@")
        ]
        return all(margin > margins[0] for margin in margins[1:])

    def _loading(self, part: str) -> Callable[[int, FunctionKey], bool]:
        """Return whether a function can be the place of a part that is not the model's.

        What a DataLoader calls is the wait's alone.
        """
        loading, in_model = ([_below(graph, file) for graph in self.graphs] for file in _CALLERS)
        waits = part in WAITS and any(loading)

        def inside(which: int, key: FunctionKey) -> bool:
            return (key in loading[which]) == waits and key not in in_model[which]

        return inside

    def _function_places(
        self, difference_s: float, inside: Callable[[int, FunctionKey], bool]
    ) -> list[Found]:
        """Return the user's own functions that explain a difference; the innermost of several."""
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
        found: list[Found] = []
        while changes and len(found) < MOST_PLACES:
            best = max(change for change, _, _ in changes)
            if best < (_ALSO if found else _EXPLAINS) * abs(difference_s):
                break
            near = [each for each in changes if each[0] >= _NEARLY_ALL * best]
            _, which, key = min(near, key=lambda each: (now if each[1] else was)[each[2]])
            found.append(Found(key.file, self._inside(which, key, sign), self._name(which, key)))
            graph = self.graphs[which]
            # What it calls, and what calls it, has the same seconds.
            related = {key} | graph.below([key]) | graph.above([key])
            changes = [each for each in changes if each[2] not in related]
        return found

    def _inside(self, which: int, key: FunctionKey, sign: float) -> int:
        """Return the line of a function that changed most; its first where none is known."""
        graph = self.graphs[which]
        own = [
            (change, line)
            for change, _, side, (file, line) in self._line_changes("outside", sign)
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

    def _line_changes(self, kind: str, sign: float) -> list[tuple[float, float, int, _Line]]:
        """Return the change of each line in one direction, with its larger time, side and place."""
        was, now = self._lines(0, kind), self._lines(1, kind)
        partners = {line: self.sources.line(*line) for line in was}
        old: dict[_Line, float] = defaultdict(float)
        for line, seconds in was.items():
            if (partner := partners[line]) is not None:
                old[partner] += seconds
        changes = [
            (sign * (seconds - old[line]), max(seconds, old[line]), 1, line)
            for line, seconds in now.items()
        ]
        changes += [
            (-sign * seconds, seconds, 0, line)
            for line, seconds in was.items()
            if partners[line] is None
        ]
        return changes

    def _line_places(
        self,
        kind: str,
        difference_s: float,
        inside: Callable[[int, FunctionKey], bool] | None,
    ) -> list[Found]:
        """Return the lines that changed most; only lines of functions that `inside` allows."""
        sign = 1.0 if difference_s > 0 else -1.0

        def allowed(which: int, line: _Line) -> bool:
            if inside is None:
                return True
            span = self.graphs[which].span_around(line)
            # A line of the loop itself is in no profiled function: it loads nothing by itself.
            key = FunctionKey(line[0], span.first, span.name) if span is not None else None
            return inside(which, key or FunctionKey(line[0], line[1], "<module>"))

        chosen: list[tuple[int, _Line]] = []
        for change, larger, which, line in sorted(self._line_changes(kind, sign), reverse=True):
            if change < (_ALSO if chosen else _EXPLAINS) * abs(difference_s):
                break
            if not allowed(which, line) or (chosen and change < _OF_ITSELF * larger):
                continue
            if not any(side == which and self.is_one_place(side, line, at) for side, at in chosen):
                chosen.append((which, line))
        return [self._line_found(*each) for each in chosen[:MOST_PLACES]]

    def _line_found(self, which: int, line: _Line) -> Found:
        graph = self.graphs[which]
        span = graph.span_around(line)
        key = None if span is None else FunctionKey(line[0], span.first, span.name)
        if key is not None and key in graph.rows:
            return Found(*line, self._name(which, key))
        # The function of the loop has no row: its lines say more than its name.
        text = self.sources.text(which, line[0])
        own = text.lines[line[1] - 1].strip() if text and line[1] <= len(text.lines) else ""
        return Found(*line, own if len(own) <= _LONGEST_LINE else f"{own[: _LONGEST_LINE - 3]}...")

    def _in_model(self, part: str, difference_s: float) -> list[Found]:
        """Return the modules that changed most, those that one line calls as one place."""
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
        groups: dict[tuple[int, object], list[tuple[float, str]]] = defaultdict(list)
        for change, which, path in changes:
            groups[which, self.module_lines[which].get(path, path)].append((change, path))
        found: list[Found] = []
        order = sorted(groups.items(), key=lambda each: -sum(change for change, _ in each[1]))
        for (which, place), rows in order[:MOST_PLACES]:
            change = sum(each for each, _ in rows)
            larger = sum((now if which else was).get(path, 0.0) for _, path in rows)
            if change < (_ALSO if found else _EXPLAINS) * abs(difference_s):
                break
            if not found or change >= _OF_ITSELF * larger:
                file, line = place if isinstance(place, tuple) else (None, None)
                found.append(Found(file, line, self._module_words(which, rows)))
        return found

    def _module_words(self, which: int, rows: Sequence[tuple[float, str]]) -> str:
        """Return the name of the module that changed most, with how many changed like it.

        Of a new or gone module it is the outermost one.
        """
        known = set(self.modules.values()) if which else self.modules.keys()
        most = max(change for change, _ in rows)
        names: dict[str, None] = {}
        for change, path in sorted(rows, reverse=True):
            if change < most / 2.0:
                break
            while path not in known and (parent := path.rpartition(".")[0]) not in known and parent:
                path = parent
            names[path] = None
        first = next(iter(names))
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return first + more + ("" if first in known else ", new" if which else ", gone")

    @cached_property
    def module_lines(self) -> tuple[dict[str, _Line], dict[str, _Line]]:
        """The line on which each module spends most of its forward time, on both sides."""
        return module_lines(self._sides[0].first), module_lines(self._sides[1].first)

    def module_place(self, path: str) -> _Line | None:
        """Return the line of a module of the second side: where it is called, or its class's code.

        That of the first side for a module that is gone.
        """
        for which in (1, 0):
            row = next(
                (row for row in self._sides[which].first["tables"]["modules"]
                 if row["path"] == path), None
            )  # fmt: skip
            if row is not None:
                found = self.module_lines[which].get(path)
                return found or self.sources.class_place(which, row["type"])
        return None

    def _optimizer(self) -> list[Found]:
        """Return what changed in the first optimizer's options, and where its step is called."""
        was, now = ((side.first["setup"].get("optimizers") or [])[:1] for side in self._sides)
        place = now[0]["place"] if now else None
        words = _optimizer_words(was[0], now[0]) if was and now else None
        if place is not None:
            return [Found(place["file"], place["line"], words)]
        return [] if words is None else [Found(None, None, words)]

    # What no noise can hide ----------------------------------------------------------------------

    def counted(self) -> list[Found]:
        """Return what a step does otherwise by exact counts, whatever its time says.

        The optimizer's options first, then the operator with the largest change of its calls, at
        the line that runs as many times more, or whose runs changed most.
        """
        found = [each for each in self._optimizer() if each.cause]
        was, now = (exact_counts(side.reports, _operator_calls) for side in self._sides)
        changes = _changes(was, now)
        if changes:
            # Of an operator and what it calls inside, the public name.
            name = max(changes, key=lambda key: (abs(changes[key]), "::_" not in key, key))
            words = f"{name} {was.get(name) or 0} -> {now.get(name) or 0} calls a step"
            file, line = self._line_run(changes[name]) or (None, None)
            found.append(Found(file, line, words))
        return found

    def _line_run(self, more: int) -> _Line | None:
        """Return the user's own line that runs so many times more in a step, else most of all.

        None where no line runs more or less often.
        """
        was, now = (exact_counts(side.reports, _line_runs) for side in self._sides)
        there = {self.sources.line(*line) or (line[0], -line[1]): was[line] for line in was}
        changes = {line: each for line, each in _changes(there, now).items() if line[1] > 0}
        return max(changes, key=lambda line: (changes[line] == more, abs(changes[line]), line[1]),
                   default=None)  # fmt: skip

    # Parts of the run ----------------------------------------------------------------------------

    def of_run(self, part: str, difference_s: float) -> list[Found]:
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
            return []
        if name is None and sign > 0 and part not in _STARTING:
            caller = self._new_around(file)
            if caller is not None:
                return [caller]
        span = self.graphs[which].span_around((file, line))
        return [Found(file, line, name or (span.qualified if span else None))]

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


def exact_counts(
    reports: Sequence[Report], read: Callable[[Report], Mapping[Key, float]]
) -> dict[Key, int | None]:
    """Return counts per step that are whole and the same in every recording, None for others.

    Empty where fewer than two recordings know any: one alone may have met a rare step.
    """
    known = [counts for report in reports if (counts := read(report))]
    if len(known) < 2:
        return {}
    found: dict[Key, int | None] = {}
    for key in {key for counts in known for key in counts}:
        # Means over the steps of a slice: a sum of thirds is off by its rounding.
        values = {round(counts.get(key, 0.0), 6) for counts in known}
        value = values.pop()
        found[key] = None if values or not value.is_integer() else int(value)
    return found


def _changes(was: Mapping[Key, int | None], now: Mapping[Key, int | None]) -> dict[Key, int]:
    """Return the changes of exact counts; none where a side knows nothing."""
    if not was or not now:
        return {}
    pairs = {key: (was.get(key, 0), now.get(key, 0)) for key in {**was, **now}}
    return {
        key: second - first
        for key, (first, second) in pairs.items()
        if first is not None and second is not None and first != second
    }


def _operator_calls(report: Report) -> dict[str, float]:
    return sums_of(
        (row["name"], row["calls"])
        for row in report["tables"]["operators"]
        if row["name"].startswith("aten::")
    )


def _line_runs(report: Report) -> dict[_Line, float]:
    return sums_of(
        ((row["file"], row["line"]), float(row["calls"]))
        for row in report["tables"]["lines"]
        if row["own"] and row["calls"] is not None
    )


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


def module_lines(report: Report) -> dict[str, _Line]:
    """Return the line that most of each module's forward time is spent on, by path."""
    sums: dict[tuple[str, _Line], float] = defaultdict(float)
    for row in report["tables"]["module_lines"]:
        path, seconds = row["module"] or "", line_s(row) - figure(row, "backward_s")
        while path:
            sums[path, (row["file"], row["line"])] += seconds
            path = path.rpartition(".")[0]
    found: dict[str, tuple[float, _Line]] = {}
    for (path, line), seconds in sums.items():
        found[path] = max(found.get(path, (seconds, line)), (seconds, line))
    return {path: line for path, (_, line) in found.items()}


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
