"""Import saved traces of torch.profiler: their steps and modules, and the tables of each.

A trace of profstack's own has ranges for the calls of modules and for backward passes. In other
traces the calls of modules are frames of Python (`nn.Module: Linear_3`, recorded by
`with_stack=True`), and a backward pass is told from its functions. Both become the ranges that the
torch layer reads, so that one set of modules makes the tables of runs and of imports.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import numpy as np

from profstack.readers.formats import ORIGIN, Format, Request, Taken, beginning
from profstack.readers.torchtrace.attribution import attribute, main_thread
from profstack.readers.torchtrace.columns import Ints
from profstack.readers.torchtrace.events import (
    EVALUATE,
    HostEvents,
    clip_to_steps,
    nest_threads,
    read_host,
)
from profstack.readers.torchtrace.scopes import find_scopes
from profstack.readers.torchtrace.slice_tables import ObservedSlice, slice_tables
from profstack.storage.schema.column import Record
from profstack.storage.vocabulary import BACKWARD_RANGE, MODULE_PREFIX
from profstack.units import format_seconds

if TYPE_CHECKING:
    from profstack.readers.torchtrace.saved_events import SavedEvents
    from profstack.readers.torchtrace.saved_trace import SavedTrace

LAYER, TOOL = "torch", "torch.profiler trace"
_S = 1e-9

# Steps --------------------------------------------------------------------------------------------

_MARK = re.compile(r"ProfilerStep#(\d+)$")
_BY_MARK, _BY_OPTIMIZER, _WHOLE = "ProfilerStep", "Optimizer.step", "whole"
# torch's own ranges, which repeat inside a step.
_NO_STEP = re.compile(
    r"Optimizer\.|enumerate\(Data|autograd::|Torch-Compiled|TorchDynamo|## |nccl:"
)
# Marks of steps that lie side by side overlap by this much where times are whole microseconds.
_ROUNDED_NS = 1_000
_BEFORE_ALL = -(1 << 62)
# A range that repeats counts as the step if all of it has this share of the trace's time.
_LEAST_SHARE = 0.5


@dataclass(frozen=True)
class Steps:
    """The steps of a trace: begins, ends and numbers, and the rule by which they were found."""

    rule: str
    start: Ints
    end: Ints
    numbers: Ints

    def __len__(self) -> int:
        return len(self.start)

    def boundaries(self) -> tuple[list[int], list[int], dict[int, int]]:
        """Return the edges of the steps, and of the pauses between them.

        The second list has the places of the pauses, which are no steps; the last result is the
        number of each step by its place.
        """
        edges, pauses, places = [int(self.start[0])], list[int](), dict[int, int]()
        for number, (start, end) in enumerate(
            zip(self.start.tolist(), self.end.tolist(), strict=True)
        ):
            if start > edges[-1]:
                pauses.append(len(edges) - 1)
                edges.append(start)
            places[len(edges) - 1] = number
            edges.append(end)
        return edges, pauses, places


def find_steps(trace: SavedTrace) -> Steps:
    """Find the steps of a trace.

    The first rule that holds: ranges `ProfilerStep#N`; ends of `Optimizer.step`; the range or the
    function that repeats and has most of the time; the whole trace as one step.
    """
    events, functions = trace.events, trace.functions
    begin = int(events.columns["start"].min())
    end = int((events.columns["start"] + events.columns["duration"]).max())
    marks = _on_one_thread(events, _named(events, lambda name: _MARK.match(name) is not None))
    if len(marks):
        names = events.values.names
        numbers = [_MARK.match(names[number]) for number in events.columns["name"][marks].tolist()]
        return _steps(_BY_MARK, events, marks, [int(found[1]) for found in numbers if found])
    optimizers = _on_one_thread(
        events, _named(events, lambda name: name.startswith("Optimizer.step#"))
    )
    optimizers = _outermost(events, optimizers)
    if len(optimizers) > 1:
        ends = (events.columns["start"] + events.columns["duration"])[optimizers]
        # The first step is whole where the trace begins with it.
        starts = np.concatenate(([begin], ends[:-1]))
        return Steps(_BY_OPTIMIZER, starts, ends, np.arange(len(ends)))
    for found, candidates in (
        (events, _named(events, lambda name: True)),
        (functions, np.arange(len(functions))),
    ):
        repeated = _repeating(found, candidates, end - begin)
        if repeated is not None:
            name = found.values.names[int(found.columns["name"][repeated[0]])]
            return _steps(name, found, repeated, range(len(repeated)))
    return Steps(_WHOLE, np.array([begin]), np.array([end]), np.zeros(1, np.int64))


def _steps(rule: str, events: SavedEvents, places: Ints, numbers: Sequence[int]) -> Steps:
    """Return steps from events that do not overlap but for rounding, in order."""
    start = events.columns["start"][places]
    end = start + events.columns["duration"][places]
    start = np.maximum(start, np.concatenate(([_BEFORE_ALL], end[:-1])))
    return Steps(rule, start, end, np.array(numbers, np.int64))


def _named(events: SavedEvents, test: Callable[[str], bool]) -> Ints:
    """Return the places of the ranges whose name passes a test."""
    chosen = events.strings("name").where(test) & (events.integers("is_user_annotation") > 0)
    return np.flatnonzero(chosen & (events.columns["duration"] > 0))


def _on_one_thread(events: SavedEvents, places: Ints) -> Ints:
    """Return those of the events that are on the thread with most of them."""
    threads = events.columns["thread"][places]
    if not len(places):
        return places
    numbers, counts = np.unique(threads, return_counts=True)
    return _outermost(events, places[threads == numbers[counts.argmax()]])


def _outermost(events: SavedEvents, places: Ints) -> Ints:
    """Return those of the events that begin after all before them have ended, but for rounding."""
    start = events.columns["start"][places]
    end = start + events.columns["duration"][places]
    if not len(places):
        return places
    before = np.concatenate(([_BEFORE_ALL], np.maximum.accumulate(end)[:-1]))
    return places[start >= before - _ROUNDED_NS]


def _repeating(events: SavedEvents, candidates: Ints, span: int) -> Ints | None:
    """Return the range or function that repeats and has most of the time; None where none has."""
    columns, names = events.columns, events.values.names
    ids, lengths = columns["name"][candidates], columns["duration"][candidates]
    least = _LEAST_SHARE * span
    # Of one that calls itself this counts the inner calls too: an upper limit.
    totals = np.bincount(ids, weights=lengths) if len(ids) else np.zeros(0)
    found, most = None, 0
    for number in np.argsort(-totals, kind="stable").tolist():
        if totals[number] < max(least, most):
            break
        if _NO_STEP.match(names[number]):
            continue
        places = _on_one_thread(events, candidates[ids == number])
        total = int(columns["duration"][places].sum())
        if len(places) > 1 and total >= least and total > most:
            found, most = places, total
    return found


# Modules ------------------------------------------------------------------------------------------

_MODULE = re.compile(r"nn\.Module: (.+)")
_INDEX = re.compile(r"(.+)_(\d+)$")


@dataclass
class Modules:
    """Modules by their names in the trace (`Linear_3`), with paths, and numbers by path."""

    numbers: dict[str, int]
    next: int
    rows: list[Record] = field(default_factory=list)
    by_name: dict[str, int] = field(default_factory=dict)
    _losses: set[int] = field(default_factory=set)
    _roots: Counter[str] = field(default_factory=Counter)

    def number(self, name: str, parent: str | None) -> int:
        """Return the number of a module; one that is new gets a path below its parent's."""
        if name in self.by_name:
            return self.by_name[name]
        match = _INDEX.match(name)
        kind = match[1] if match else name
        above = self.by_name.get(parent) if parent else None
        instance = 1
        if above is None:
            self._roots[kind] += 1
            instance = self._roots[kind]
            path = kind if instance == 1 else f"{kind}#{instance}"
        else:
            path = f"{self.path(above)}.{name}"
        known = self.numbers.get(path)
        number = self.by_name[name] = self.next if known is None else known
        if kind.endswith("Loss") and above is None:
            self._losses.add(number)
        if known is None:
            self.next += 1
            self.numbers[path] = number
            self.rows.append(
                {
                    "module_id": number,
                    "path": path,
                    "type": kind,
                    "instance": instance,
                    "parent_id": above,
                    "aliases": "[]",
                }
            )
        return number

    def add_own(self, number: int) -> None:
        """Add a module that has its number in the trace, by a range of profstack's own."""
        if number not in self.numbers.values():
            path = f"module {number}"
            self.numbers[path] = number
            self.next = max(self.next, number + 1)
            self.rows.append(
                {"module_id": number, "path": path, "type": "", "instance": 1, "aliases": "[]"}
            )

    def path(self, number: int) -> str:
        """Return the path of a module."""
        return next(path for path, known in self.numbers.items() if known == number)

    def is_loss(self, number: int) -> bool:
        """Return whether a module is a loss: a root whose class says so."""
        return number in self._losses


def _module_frames(functions: SavedEvents, modules: Modules) -> tuple[Ints, list[int]]:
    """Return the places of calls of modules among the calls of functions, and their numbers."""
    matches = [_MODULE.match(name) for name in functions.values.names]
    is_module = np.array([match is not None for match in matches] or [False], np.bool_)
    columns = functions.columns
    chosen = np.flatnonzero(is_module[columns["name"]]) if len(functions) else np.zeros(0, np.int64)
    start, thread, ids = (columns[name][chosen] for name in ("start", "thread", "name"))
    end = start + columns["duration"][chosen]
    order = np.lexsort((-end, start, thread))
    parent, _ = nest_threads(start[order], end[order], thread[order])
    chosen, ids = chosen[order], ids[order]
    names = {number: match[1] for number, match in enumerate(matches) if match}
    # In the order of first calls, so that a module's path is that of its first call.
    firsts = np.unique(ids, return_index=True)[1]
    for first in firsts[np.argsort(start[order][firsts], kind="stable")].tolist():
        _add_module(first, ids, parent, names, modules)
    return chosen, [modules.by_name[names[number]] for number in ids.tolist()]


def _add_module(
    at: int, ids: Ints, parent: Ints, names: Mapping[int, str], modules: Modules
) -> None:
    above = int(parent[at])
    while above >= 0 and ids[above] == ids[at]:
        above = int(parent[above])
    modules.number(names[int(ids[at])], names[int(ids[above])] if above >= 0 else None)


def _passes(host: HostEvents, steps: Steps, thread: int) -> tuple[Ints, Ints]:
    """Return begins and ends of backward passes, told from the functions that they evaluate.

    A pass goes on from function to function, until the thread that makes the steps does other work
    outside them, or the step ends.
    """
    names = host.names
    evaluates = names.where(lambda name: name.startswith(EVALUATE))
    inside = host.inherit(evaluates.astype(np.int64)) > 0
    above = np.where(host.parent >= 0, inside[np.maximum(host.parent, 0)], False)
    functions = np.flatnonzero(evaluates & ~above)
    functions = functions[np.argsort(host.start[functions], kind="stable")]
    start, end = host.start[functions], np.maximum.accumulate(host.end[functions])
    own = ~inside & ~host.memory & (host.thread == thread)
    others = np.sort(np.concatenate((host.start[own], steps.start)))
    between = np.searchsorted(others, start[1:]) > np.searchsorted(others, end[:-1])
    first = np.concatenate(([True], between))[: len(functions)]
    last = np.concatenate((between, [True]))[: len(functions)]
    # A nanosecond earlier, so that the pass is around its first function.
    return start[first] - 1, end[last]


# Traces -------------------------------------------------------------------------------------------


@dataclass
class _Import:
    """What has been made of the traces so far; `begin` is that of the first one."""

    request: Request
    modules: Modules
    begin: int
    frames: dict[str, list[Record]] = field(default_factory=lambda: defaultdict(list))
    steps: int = 0
    phases: set[str] = field(default_factory=set)
    rules: list[str] = field(default_factory=list)

    def note(self, slug: str, text: str) -> None:
        """Add a warning of the recording."""
        self.frames["notes"].append({"slug": slug, "layer": LAYER, "text": text})


def take(files: Sequence[Path], request: Request) -> Taken:
    """Read the traces of one run, each as a slice, and of several ranks the first; see `Format`."""
    # Files of other formats are told without it.
    from profstack.readers.torchtrace.saved_trace import read_trace

    ranks = by_rank(files)
    rank, own = min(ranks.items())
    traces = sorted(map(read_trace, own), key=_begin_of)
    numbers = dict(request.modules)
    modules = Modules(numbers, max(numbers.values(), default=0) + 1)
    made = _Import(request, modules, _origin_ns(traces[0], request))
    summary = [_add_trace(made, trace, request.slice + at) for at, trace in enumerate(traces)]
    if others := [
        path.name for key, paths in sorted(ranks.items()) if key != rank for path in paths
    ]:
        text = (
            f"rank {rank} of {len(ranks)} is here; left out: {', '.join(others)}. To see another, "
            "import its file with -o into a recording of its own"
        )
        made.note("trace-ranks", text)
        summary.append(text)
    made.frames["modules"] += modules.rows
    made.frames["layers"].append(_layer_row(traces))
    facts: dict[str, object] = {}
    if not request.slice:
        phase = "train" if "train" in made.phases else "eval"
        facts = {
            f"plan_{request.plan}": {"rule": made.rules[0], "phase": phase},
            "counts_by_phase": {phase: made.steps},
            "environment": _environment(traces[0]),
        }
        if "baseTimeNanoseconds" in traces[0].header and request.origin_s is None:
            facts[ORIGIN] = made.begin * _S
    return Taken(own, summary, added={**made.frames}, facts=facts)


def _begin_of(trace: SavedTrace) -> int:
    return int(trace.events.columns["start"][0])


def _origin_ns(trace: SavedTrace, request: Request) -> int:
    """Return the moment from which the recording's times count, its own if both have a date."""
    has_date = "baseTimeNanoseconds" in trace.header
    return round(request.origin_s * 1e9) if request.origin_s and has_date else _begin_of(trace)


def _add_trace(made: _Import, trace: SavedTrace, index: int) -> str:
    """Add the tables of a trace as one slice; return what it is in one line."""
    steps = _whole_steps(made, trace, find_steps(trace))
    edges, pauses, places = steps.boundaries()
    events, with_modules = _with_modules(trace, made.modules)
    host = read_host(events, trace.kinds, inputs=trace.shapes)
    scopes = find_scopes(host, np.ones(len(host), np.bool_))
    thread = _steps_thread(trace, steps, main_thread(scopes))
    is_backward = host.names.where(lambda name: name.startswith(EVALUATE)).any()
    if is_backward and BACKWARD_RANGE not in host.names.values:
        start, end = _passes(host, steps, thread)
        events = events.with_ranges(
            start, end, np.full(len(start), thread), [BACKWARD_RANGE] * len(start)
        )
        host = read_host(events, trace.kinds, inputs=trace.shapes)
    clip_to_steps(host, edges, pauses)
    owned = attribute(host, edges, made.modules.is_loss, pauses, thread)
    observed = ObservedSlice(index, trace.kernels, trace.shapes, trace.memory, trace.runtime)
    frames, notes = slice_tables(owned, observed)
    for name, rows in frames.items():
        if name in ("launches", "collectives"):
            rows = [{**row, "step": places[int(row["step"] or 0)]} for row in rows]
        made.frames[name] += rows
    for slug, text in notes:
        made.note(slug, text)
    phase = "train" if is_backward else "eval"
    made.phases.add(phase)
    made.rules.append(steps.rule)
    _add_steps(made, trace, steps, index, phase)
    _note_damage(made, trace)
    if not with_modules:
        text = (
            f"{trace.path.name} has no calls of modules: record it with `with_stack=True`, and "
            "operators have their modules"
        )
        made.note("trace-no-modules", text)
    return f"{trace.path.name}: {_in_words(trace, steps)}"


def _whole_steps(made: _Import, trace: SavedTrace, steps: Steps) -> Steps:
    """Return the steps that a trace holds whole: one that was cut off lacks the end of its last."""
    if not trace.truncated:
        return steps
    text = f"{trace.path.name} ends in the middle: it was cut off as it was written"
    kept = steps.end <= trace.events.columns["start"].max()
    lost = int((~kept).sum())
    if lost and kept.any():
        took = float((steps.end - steps.start)[~kept].sum()) * _S
        which = "1 step" if lost == 1 else f"{lost:,} steps"
        text += f"; {which} of {format_seconds(took)} that it does not hold whole are left out"
        steps = Steps(steps.rule, steps.start[kept], steps.end[kept], steps.numbers[kept])
    made.note("trace-truncated", text)
    return steps


def _with_modules(trace: SavedTrace, modules: Modules) -> tuple[SavedEvents, bool]:
    """Return the events with a range for every call of a module, and whether there is any."""
    events, functions = trace.events, trace.functions
    known = [name for name in events.values.names if name.startswith(MODULE_PREFIX)]
    for name in known:
        modules.add_own(int(name.removeprefix(MODULE_PREFIX)))
    if known or not len(functions):
        return events, bool(known)
    places, numbers = _module_frames(functions, modules)
    start, thread = functions.columns["start"][places], functions.columns["thread"][places]
    end = start + functions.columns["duration"][places]
    names = [f"{MODULE_PREFIX}{number}" for number in numbers]
    return events.with_ranges(start, end, thread, names), bool(len(places))


def _steps_thread(trace: SavedTrace, steps: Steps, thread: int) -> int:
    """Return the thread that makes the steps: that of their marks, else of the modules."""
    if steps.rule == _BY_MARK:
        marks = _named(trace.events, lambda name: _MARK.match(name) is not None)
        return int(trace.events.columns["thread"][_on_one_thread(trace.events, marks)[0]])
    return thread


def _add_steps(made: _Import, trace: SavedTrace, steps: Steps, index: int, phase: str) -> None:
    """Add the rows of the slice and of its steps."""
    request, first = made.request, made.request.step + made.steps
    if request.numbered and steps.rule == _BY_MARK:
        first = int(steps.numbers[0])
    walls, starts = (steps.end - steps.start) * _S, (steps.start - made.begin) * _S
    whole = steps.rule == _WHOLE
    made.frames["slices"].append(
        {
            "slice": index,
            "kind": _WHOLE if whole else LAYER,
            "layer": LAYER,
            "mode": _WHOLE if whole else "detail" if trace.memory else "timed",
            "plan": request.plan,
            "phase": phase,
            "round": 1,
            "first_step": first,
            "steps": len(steps),
            "started_s": float(starts[0]),
            "wall_s": float(walls.sum()),
            "counted_steps": len(steps),
            "counted_wall_s": float(walls.sum()),
            "settle_steps": 0,
        }
    )
    if not whole:
        made.frames["steps"] += [
            {
                "step": first + at,
                "plan": request.plan,
                "phase": phase,
                "slice": index,
                "started_s": start,
                "wall_s": wall,
            }
            for at, (start, wall) in enumerate(zip(starts.tolist(), walls.tolist(), strict=True))
        ]
        made.steps += len(steps)


def _note_damage(made: _Import, trace: SavedTrace) -> None:
    """Add warnings of what could not be read, in events and in time."""
    name = trace.path.name
    for why, count in trace.left_out.events.items():
        took = trace.left_out.seconds[why]
        time = f" of {format_seconds(took)}" if took else ", whose time is not known"
        made.note("trace-left-out", f"{name}: {count:,} of {trace.count:,} events{time} are {why}")


def _layer_row(traces: Sequence[SavedTrace]) -> Record:
    return {
        "name": LAYER,
        "technique": "tracing",
        "tool": TOOL,
        "version": _text(traces[0].header.get("pytorch_version")),
        "status": "recorded",
    }


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _environment(trace: SavedTrace) -> dict[str, object]:
    """Return what a trace says of its machine."""
    devices = trace.header.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices else {}
    name = first.get("name") if isinstance(first, dict) else None
    device = "cuda" if len(trace.kernels) else "cpu"
    return {"device": device, "gpu": _text(name), "python": None, "torch": None}


def _in_words(trace: SavedTrace, steps: Steps) -> str:
    """Return the size of a trace and its steps in words."""
    count = "1 step" if len(steps) == 1 else f"{len(steps):,} steps"
    if steps.rule == _WHOLE:
        return f"{trace.count:,} events; no steps were found, so all figures are of the whole trace"
    return f"{trace.count:,} events, {count} by {steps.rule}"


# Ranks --------------------------------------------------------------------------------------------

_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]*?"rank"\s*:\s*"?(\d{1,7})\b')
_HOST = re.compile(rb'"host_name"\s*:\s*"([^"\\]{1,255})"')
_WORLD = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]*?"world_size"\s*:\s*"?(\d{1,7})\b')
_RANK_IN_NAME = re.compile(r"(?<![A-Za-z])rank[-_.]?(\d{1,7})(?!\d)")
_RANK_FOLDER = re.compile(r"rank[-_.]?(\d{1,7})")


def by_rank(files: Sequence[Path]) -> dict[int, list[Path]]:
    """Sort traces by rank; what says nothing of it is of rank 0."""
    ranks: dict[int, list[Path]] = defaultdict(list)
    for path in files:
        ranks[rank_of(beginning(path), path.as_posix()) or 0].append(path)
    return ranks


def rank_of(start: bytes, name: str) -> int | None:
    """Return the rank of a file: by what a trace says itself, else by the name of file or folder.

    The folder is the file's own, or the one around that. None where nothing says it.
    """
    path = PurePosixPath(name)
    folders = (_RANK_FOLDER.fullmatch(each) for each in path.parts[-3:-1])
    found = (
        _RANK.search(start) or _RANK_IN_NAME.search(path.name) or next(filter(None, folders), None)
    )
    return int(found[1]) if found else None


def world_size(ranks: Mapping[int, Sequence[Path]]) -> int:
    """Return how many processes the launch had: what its traces say, at least as many as known."""
    return max(max(ranks) + 1, *(told_size(beginning(paths[0])) for paths in ranks.values()))


def told_size(start: bytes) -> int:
    """Return how many processes a launch had, as a trace says; 0 where it does not."""
    found = _WORLD.search(start)
    return int(found[1]) if found else 0


def node_numbers(heads: Mapping[int, bytes]) -> dict[int, int]:
    """Return the numbers of the ranks' machines, by the names that their traces give them.

    `heads` are the beginnings of the traces by rank. Empty where one gives none, or calls its
    machine as every machine calls itself.
    """
    traces = {rank: head for rank, head in sorted(heads.items()) if _EVENTS.search(head)}
    found = {rank: each[1] for rank, head in traces.items() if (each := _HOST.search(head))}
    names = {rank: each for rank, each in found.items() if not each.startswith(b"localhost")}
    if len(names) < len(traces):
        return {}
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names.values()))}
    return {rank: numbers[name] for rank, name in names.items()}


_EVENTS = re.compile(rb'"traceEvents"\s*:|"schemaVersion"\s*:|^\s*\[\s*\{\s*"(?:ph|name|cat|pid)"')


def _recognise(start: bytes, _: str) -> bool:
    text = start.removeprefix(b"\xef\xbb\xbf")
    return text.lstrip()[:1] in (b"{", b"[") and _EVENTS.search(text) is not None


FORMAT = Format(TOOL, ".json, .json.gz", _recognise, take)
