"""Exact facts of a step, read from the recording of a run that counts.

A fact is a whole number, or a text where a number alone would say too little: `1 in 3 steps` of
what not every step does, or the shapes of the inputs. Facts that are 0 are left out.
"""

from __future__ import annotations

import ast
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from profstack.code_owner import BUILTIN_FILE, Places
from profstack.errors import RecordingError
from profstack.storage.folder import facts_of, read_tables
from profstack.storage.vocabulary import OPTIMIZER, OUTSIDE, STEP_PARTS

Value = int | str


class Key(NamedTuple):
    """The place of a fact: its section, what it is of (empty for the whole step), its name."""

    section: str
    of: str
    name: str


Facts = dict[Key, Value]


class TooFewStepsError(RecordingError):
    """The script ended before every layer had its steps."""


# Sections, in the order of the file.
STEP, SYNCHRONISATIONS, COMPILE, MEMORY, FUNCTIONS, MODULE = SECTIONS = (
    "step",
    "synchronisations",
    "compile",
    "memory",
    "functions",
    "module",
)
# Beginnings of the names of facts on operators, and on functions of the backward pass.
OPERATOR, BACKWARD, KERNEL = "operator ", "backward ", "kernel launches"
# The type of numbers that a fact on an operator does not name.
USUAL = "float32"
# What the facts on breaks of graphs are of.
GRAPH_BREAKS = "graph breaks"
# The fact of the copies that all operators make.
COPIES = "copies"

# Operators that give a value to Python, or whose result's size depends on values: a device would
# be waited for.
_READS = {
    "aten::_local_scalar_dense": "values read by the host",
    "aten::nonzero": "sizes that depend on values (nonzero)",
    "aten::masked_select": "sizes that depend on values (masked_select)",
    "aten::_unique2": "sizes that depend on values (unique)",
    "aten::equal": "comparisons of whole tensors (equal)",
}
_COPIES = ("aten::copy_",)
# Beginnings of the names of a device's copies and fills.
_MOVES = ("Memcpy ", "Memset ")
# Methods of tensors that the script calls: they say `.cpu()` also where everything is on the CPU.
_METHOD = re.compile(
    r"<method '(item|tolist|cpu|cuda|numpy|to|nonzero|__bool__|__float__|__int__)' of "
    r"'torch\._C\.TensorBase' objects>"
)
_SYNCHRONIZE = "synchronize"
_LOADER_FILE, _ASK, _RECEIVE = "torch/utils/data/dataloader.py", "__next__", "_process_data"
# Kinds of memory that batches from workers are of: these come when they are made.
_BATCHES = ("held by the script", "inputs", "not attributed")
# Functions that dynamo makes where a graph breaks, with the function they are a part of.
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+\Z")
# Functions that Python 3.12 has no longer.
_INLINED = ("<listcomp>", "<dictcomp>", "<setcomp>")
_ANONYMOUS = ("<lambda>", "<genexpr>")


@dataclass
class CountedRun:
    """The tables of one run that counts, and the folder of its script."""

    folder: Path
    root: str
    facts: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        tables = read_tables(self.folder)
        self.facts = facts_of(tables)
        self._tables = tables
        places = Places.read(self.facts)
        self._is_own: Callable[[str], bool] = places.is_own if places is not None else bool

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table."""
        columns, rows = self._tables[table]
        return [dict(zip(columns, row, strict=True)) for row in rows]

    @cached_property
    def slices(self) -> list[dict[str, Any]]:
        """Slices of the loop that was counted: the one with most slices that were observed."""
        rows = [row for row in self.rows("slices") if row["layer"] is not None]
        rows = [row for row in rows if row["counted_steps"]]
        plans = Counter(row["plan"] for row in rows)
        plan = max(plans, key=lambda each: (plans[each], -each), default=None)
        return sorted((row for row in rows if row["plan"] == plan), key=lambda row: row["slice"])

    def numbers(self, layer: str, mode: str) -> list[int]:
        """Return the numbers of the slices that a layer observed in a mode."""
        return [row["slice"] for row in self.slices if (row["layer"], row["mode"]) == (layer, mode)]

    @cached_property
    def single(self) -> list[int]:
        """Slices of one step each, with operators, shapes and memory."""
        return self.numbers("torch", "detail")

    @cached_property
    def called(self) -> int:
        """Steps whose calls of functions were counted."""
        numbers = self.numbers("cprofile", "timed")
        return sum(row["counted_steps"] for row in self.slices if row["slice"] in numbers)

    @cached_property
    def paths(self) -> dict[int, str]:
        """Paths of the modules and step parts by number."""
        return {**{row["module_id"]: row["path"] for row in self.rows("modules")}, **STEP_PARTS}

    def path(self, owner: int | None) -> str:
        """Return the path of a module or step part; what has no owner is outside of them."""
        return self.paths.get(owner or OUTSIDE, STEP_PARTS[OUTSIDE])

    @cached_property
    def steps(self) -> int:
        """Steps that the script made before it ended or was ended."""
        return sum((self.facts.get("counts_by_phase") or {}).values())

    def is_own(self, file: str) -> bool:
        """Return whether a file is the user's own."""
        return file != BUILTIN_FILE and self._is_own(file)

    def short(self, file: str) -> str:
        """Return a file's path as it is written in a lock: from the script's folder on."""
        whole = os.path.join(self.root, file)
        try:
            return Path(os.path.relpath(os.path.realpath(whole), self.root)).as_posix()
        except ValueError:
            return Path(file).name


def read_facts(run: CountedRun) -> Facts:
    """Return the exact facts of a step.

    Raise RecordingError where the script made too few steps for them.
    """
    if not run.steps:
        raise RecordingError(
            "no step was found in the script", next_step="say what ends one with --step-by"
        )
    if not run.single or not run.called:
        raise TooFewStepsError(
            f"the script made {run.steps} steps, which are too few to count what a step does",
            next_step="let it make more, or lower --warmup and --steps",
        )
    found: Facts = {}
    for part in (_step, _operators, _functions, _modules, _memory, _compiled):
        found.update((key, value) for key, value in part(run) if value not in (0, ""))
    return found


def per_step(counts: Iterable[int], steps: int) -> Value:
    """Return a count per step; a text where the steps differ. Steps without any may be missing."""
    each = list(counts)
    total = sum(each)
    if steps and len(set(each + [0] * (steps - len(each)))) == 1:
        return each[0] if each else 0
    return f"{total} in {steps} steps"


class _Counts:
    """Counts by key and step; every slice is one step."""

    def __init__(self, slices: Sequence[int]) -> None:
        self._slices = slices
        self._by_key: dict[Key, Counter[int]] = defaultdict(Counter)

    def add(self, key: Key, number: int, count: int | None) -> None:
        """Add a count of one slice."""
        if number in self._slices and count:
            self._by_key[key][number] += count

    def facts(self) -> Iterator[tuple[Key, Value]]:
        """Yield the counts per step."""
        for key, counts in self._by_key.items():
            yield key, per_step(counts.values(), len(self._slices))


def _step(run: CountedRun) -> Iterator[tuple[Key, Value]]:
    plan = run.slices[0]["plan"]
    # Shapes are seen in the steps between those that layers observe.
    first = run.slices[0]["first_step"]
    steps = [row for row in run.rows("steps") if row["plan"] == plan and row["step"] >= first]
    loop = run.facts.get(f"plan_{plan}") or {}
    yield Key(STEP, "", "ends with"), str(loop.get("rule") or "")
    yield Key(STEP, "", "phase"), str(run.slices[0]["phase"] or "")
    shapes = list(dict.fromkeys(row["shape"] for row in steps if row["shape"]))
    yield Key(STEP, "", "inputs"), ", ".join(shapes[:8])


def _operators(run: CountedRun) -> Iterator[tuple[Key, Value]]:
    counts = _Counts(run.single)
    for row in run.rows("operators"):
        number, owner, name = row["slice"], row["module_id"], row["name"]
        path = run.path(owner)
        # The usual type needs no word.
        kind = row["dtype"] if row["dtype"] != USUAL else ""
        fact = f"{BACKWARD if row['backward'] else OPERATOR}{name} {kind or ''}".rstrip()
        counts.add(Key(MODULE, path, fact), number, row["outermost"])
        if owner != OPTIMIZER and (words := _READS.get(name)):
            counts.add(Key(SYNCHRONISATIONS, "", words), number, row["calls"])
        if name in _COPIES:
            counts.add(Key(STEP, "", COPIES), number, row["calls"])
    for row in run.rows("flop_counts"):
        if row["counter"] != "recorded_shapes":
            continue
        name = "backward_flop" if row["backward"] else "forward_flop"
        path = run.path(row["module_id"])
        counts.add(Key(MODULE, path, name), row["slice"], row["flop"])
        counts.add(Key(STEP, "", name), row["slice"], row["flop"])
    for row in run.rows("kernels"):
        path, name = run.path(row["module_id"]), row["name"]
        if name.startswith(_MOVES):
            # The profiler's own name has the direction, and the kind of the host's memory.
            counts.add(Key(STEP, "", f"{KERNEL}: {name}"), row["slice"], row["calls"])
            continue
        counts.add(Key(MODULE, path, KERNEL), row["slice"], row["calls"])
        counts.add(Key(STEP, "", KERNEL), row["slice"], row["calls"])
    for row in run.rows("module_times"):
        if row["module_id"] > 0:
            path = run.path(row["module_id"])
            counts.add(Key(MODULE, path, "calls"), row["slice"], row["calls"])
    yield from counts.facts()


def _functions(run: CountedRun) -> Iterator[tuple[Key, Value]]:
    slices = set(run.numbers("cprofile", "timed"))
    counts: Counter[Key] = Counter()
    for row in run.rows("functions"):
        if row["slice"] not in slices:
            continue
        file, name = row["file"], row["name"]
        if file.replace("\\", "/").endswith(_LOADER_FILE) and name == _ASK:
            counts[Key(STEP, "", "batches asked for")] += row["calls"]
        elif run.is_own(file) and name not in _INLINED and not _RESUMED.match(name):
            whole = qualified_name(os.path.join(run.root, file), row["line"], name)
            counts[Key(FUNCTIONS, "", f"{run.short(file)}::{whole}")] += row["calls"]
        elif word := waiting_call(file, name):
            counts[Key(SYNCHRONISATIONS, "", word)] += row["calls"]
    # What a library calls is the library's business.
    for row in run.rows("calls"):
        word = waiting_call(row["callee_file"], row["callee_name"])
        if row["slice"] in slices and word and not run.is_own(row["caller_file"]):
            counts[Key(SYNCHRONISATIONS, "", word)] -= row["calls"]
    for key, total in counts.items():
        whole_steps = total % run.called == 0
        yield key, total // run.called if whole_steps else f"{total} in {run.called} steps"


def waiting_call(file: str, name: str) -> str | None:
    """Return how a call is written that would wait for a device; None for any other."""
    if match := _METHOD.match(name):
        return f".{match[1]}()"
    is_torchs = "/torch/" in file.replace("\\", "/")
    return "torch.synchronize()" if name == _SYNCHRONIZE and is_torchs else None


def _modules(run: CountedRun) -> Iterator[tuple[Key, Value]]:
    rows = run.rows("modules")
    for row in rows:
        path = row["path"]
        yield Key(MODULE, path, "type"), row["type"]
        own = row["own_parameters"] or 0
        yield Key(MODULE, path, "parameters"), own
        yield Key(MODULE, path, "parameter_bytes"), row["own_bytes"] or 0
        if (row["own_trainable"] or 0) != own:
            yield Key(MODULE, path, "frozen_parameters"), own - (row["own_trainable"] or 0)
    roots = [row for row in rows if row["parent_id"] is None]
    yield Key(STEP, "", "parameters"), sum(row["parameters"] or 0 for row in roots)


def _memory(run: CountedRun) -> Iterator[tuple[Key, Value]]:
    counts = _Counts(run.single)
    for row in run.rows("allocations"):
        path = run.path(row["module_id"])
        for name in ("blocks", "bytes"):
            counts.add(Key(MODULE, path, f"allocated_{name}"), row["slice"], row[name])
            counts.add(Key(MEMORY, row["device"], f"allocated_{name}"), row["slice"], row[name])
    yield from counts.facts()
    left_out = _BATCHES if _has_workers(run) else ()
    words = " without batches" if left_out else ""
    peaks: dict[tuple[str, int], int] = Counter()
    kinds: dict[tuple[str, str], int] = defaultdict(int)
    for row in run.rows("memory_owners"):
        if row["slice"] in run.single and row["kind"] not in left_out:
            peaks[row["device"], row["slice"]] += row["peak_bytes"]
            key = row["device"], row["kind"]
            kinds[key] = max(kinds[key], row["peak_bytes"])
    for device in {device for device, _ in peaks}:
        each = [peaks.get((device, number), 0) for number in run.single]
        yield Key(MEMORY, device, f"peak_bytes{words}"), max(each)
    for (device, kind), nbytes in kinds.items():
        yield Key(MEMORY, device, f"peak: {kind}"), nbytes


def _has_workers(run: CountedRun) -> bool:
    """Return whether batches come from a DataLoader's workers."""
    rows = run.rows("functions")
    names = {row["name"] for row in rows if row["file"].replace("\\", "/").endswith(_LOADER_FILE)}
    return _RECEIVE in names


def compiled_name(run: CountedRun, row: Mapping[str, Any]) -> str:
    """Return the name of a function that dynamo compiled, with its file."""
    file, name = row["file"] or "", str(row["name"])
    if match := _RESUMED.match(name):
        name = match[1]
    if not run.is_own(file):
        return f"{Path(file).name}::{name}"
    whole = qualified_name(os.path.join(run.root, file), row["line"], name)
    return f"{run.short(file)}::{whole}"


def _compiled(run: CountedRun) -> Iterator[tuple[Key, Value]]:
    counts: Counter[Key] = Counter()
    for row in run.rows("compilations"):
        if row["backward"]:
            continue
        name = compiled_name(run, row)
        kind = "failures" if row["failure"] else "graphs" if not row["versions"] else "recompiled"
        counts[Key(COMPILE, name, kind)] += 1
    for row in run.rows("graph_breaks"):
        counts[Key(COMPILE, GRAPH_BREAKS, _first_line(row["reason"]))] += 1
    yield from counts.items()


def _first_line(text: str | None) -> str:
    lines = (text or "").strip().splitlines()
    return lines[0][:120] if lines else "no reason given"


# Names of functions -------------------------------------------------------------------------------


@lru_cache(maxsize=512)
def parsed(file: str) -> ast.Module | None:
    """Return the syntax tree of a file; None where it cannot be read."""
    try:
        return ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return None


def qualified_name(file: str, line: int, name: str) -> str:
    """Return a function's name with the classes and functions around it, from its source.

    `line` is the first line of the definition, its decorators included. Line numbers are in no
    lock: they change with every edit.
    """
    tree = parsed(file)
    if tree is None:
        return name
    around = [each for each, begin, end in _definitions(file) if begin <= line <= end]
    if name in _ANONYMOUS:
        return f"{around[-1]}.{name}" if around else name
    return around[-1] if around and around[-1].rpartition(".")[2] == name else name


@lru_cache(maxsize=512)
def _definitions(file: str) -> list[tuple[str, int, int]]:
    """Return classes and functions of a file: name, first line and last, outer ones first."""
    found: list[tuple[str, int, int]] = []

    def visit(node: ast.AST, around: str) -> None:
        for child in ast.iter_child_nodes(node):
            inside = around
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                inside = f"{around}.{child.name}".lstrip(".")
                first = min([child.lineno, *(each.lineno for each in child.decorator_list)])
                found.append((inside, first, child.end_lineno or first))
            visit(child, inside)

    tree = parsed(file)
    if tree is not None:
        visit(tree, "")
    return found
