"""Names that the user gave: a cause is told by them before it is told by a function or a line.

A function of the user's comes before the library's that it calls, a part of a DataLoader has its
role, and a region that holds most of a cause comes before both.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from profstack.findings import reading
from profstack.storage.schema.report import Place, Report
from profstack.storage.schema.rows import FunctionRow
from profstack.storage.vocabulary import OWN_REGION


def own_place(report: Report, row: FunctionRow) -> tuple[Place, str]:
    """Return place and name of a function; of a library's those of the user's that calls it."""
    graph, key = reading.CallGraph(report), reading.key_of(row)
    name = reading.qualified_name(report, row, row["name"])
    if row["own"]:
        return row, name
    caller = graph.own_caller({key: 1.0})
    if caller is None:
        return _own_line(report, graph, key) or (row, name)
    # What it calls itself, on the way there.
    ways = (
        (edge["total_s"] or 0.0, callee.name)
        for callee, edge in graph.callees[reading.key_of(caller)]
        if callee == key or key in graph.below([callee])
    )
    called = max(ways, default=(0.0, name))[1]
    return caller, f"{reading.qualified_name(report, caller, caller['name'])}, which calls {called}"


def _own_line(
    report: Report, graph: reading.CallGraph, key: reading.FunctionKey
) -> tuple[Place, str] | None:
    """Return the user's line by whose text a library's function is called, and names for it.

    A function that runs all along is no caller to cProfile: its text tells what it calls.
    """
    chain = [key]
    while above := {
        at: time for at, time in graph.callers_s.get(chain[-1], {}).items() if at not in chain
    }:
        chain.append(max(above, key=above.__getitem__))
    for called in reversed(chain):
        calls = reading.own_lines(report, re.compile(rf"\b{re.escape(called.name)}\("))
        line = max(calls, key=reading.line_s, default=None)
        if line is not None:
            around = graph.span_around((line["file"], line["line"]))
            caller = "the script" if around is None else around.qualified
            return line, f"{caller}, which calls {called.name}"
    return None


# Who calls a function says which part of a DataLoader it is; methods of data sets have a name that
# says so by itself.
_PARTS = (
    ("collate_fn", "torch/utils/data/_utils/fetch.py"),
    ("sampler", "torch/utils/data/sampler.py"),
    ("transform", "torchvision/"),
)


def name_in_loading(report: Report, graph: reading.CallGraph, row: FunctionRow) -> str:
    """Return a function's name with its class, and its part in loading: `collate_fn pad_batch`."""
    name = reading.qualified_name(report, row, row["name"])
    if not row["own"] or row["name"].startswith("__"):
        return name
    files = [key.file.replace("\\", "/") for key in graph.callers_s.get(reading.key_of(row), ())]
    part = next((part for part, place in _PARTS if any(place in file for file in files)), None)
    return name if part in (None, name) else f"{part} {name}"


def collate_function(report: Report) -> tuple[Place, str] | None:
    """Return the user's own function that makes batches of samples, and its name; None without."""
    graph = reading.CallGraph(report)
    own = (row for row in graph.rows.values() if row["own"] and row["phase"] == "step")
    for row in reading.by_size(own, "total_s"):
        name = name_in_loading(report, graph, row)
        if name.startswith("collate_fn"):
            return row, name
    return None


def outermost_loading(
    report: Report, graph: reading.CallGraph, asked: Sequence[reading.FunctionKey]
) -> tuple[FunctionRow, str, float] | None:
    """Return the user's own function that a DataLoader calls for longest, its name and its share.

    It is the first of the user's on the way: what it calls is its time, too. `asked` are the
    functions by which batches are asked for.
    """
    roots = {key for key in graph.callees if "torch/utils/data/" in key.file.replace("\\", "/")}
    inside = graph.below(roots) & graph.rows.keys()
    own = {key for key in inside if graph.rows[key]["own"]}
    first = (graph.rows[key] for key in own if graph.callers_s.get(key, {}).keys() - own)
    row = reading.largest(first, "total_s")
    if row is None:
        return None
    whole = reading.total((graph.rows[key] for key in asked), "total_s")
    share = min(reading.figure(row, "total_s") / whole, 1.0) if whole else 0.0
    return row, name_in_loading(report, graph, row), share


# No layer looks into a DataLoader's workers: what they run is read from the texts of the files.

# Methods by which a data set gives its items, and an object as a collate_fn its batch.
_ITEMS = ("__getitem__", "__getitems__", "__iter__", "__call__")
_PADS = re.compile(r"pad|max_len|zeros|full|empty")


def parts_by_text(report: Report) -> list[str]:
    """Return the parts of the DataLoader with workers in words: its data set's, its collate_fn.

    Empty where several such loaders differ, or where they are not the user's own.
    """
    own, made, loaders = _definitions(report)
    found = set()
    for node in loaders:
        options = {each.arg: each.value for each in node.keywords}
        if "num_workers" in options:
            items = _last_name(node.args[0] if node.args else options.get("dataset"))
            found.add((made.get(items, items), _last_name(options.get("collate_fn"))))
    if len(found) != 1:
        return []
    parts = zip(("", "collate_fn "), found.pop(), strict=True)
    known = [(role, own[name]) for role, name in parts if name in own]
    return [f"{role}{name}{reading.in_brackets(place)}" for role, (name, place, _) in known]


def padding_collate_fn(report: Report) -> Place | None:
    """Return the place of the one collate_fn of the user's own whose text pads."""
    own, made, loaders = _definitions(report)
    options = (each.value for node in loaders for each in node.keywords if each.arg == "collate_fn")
    names = {made.get(name, name) for name in map(_last_name, options)}
    padding = [own[name] for name in names if name in own and _PADS.search(own[name][2])]
    return padding[0][1] if len(padding) == 1 else None


def made_at(report: Report, kind: str, text: str = "") -> Place | None:
    """Return the line that makes the only object of a class, else the one that `text` names.

    That is the line to edit for its options. None where several could be meant.
    """
    made: dict[tuple[str, int], str] = {}
    for row in report["sources"]:
        tree = reading.parse_source(row["text"] or "")
        for node in ast.walk(tree) if tree else ():
            targets = [*getattr(node, "targets", ()), getattr(node, "target", None)]
            call = getattr(node, "value", node)
            if isinstance(call, ast.Call) and _last_name(call.func) == kind:
                # An assignment comes before the call in it.
                made.setdefault((row["file"], call.lineno), _last_name(targets[0]))
    named = [at for at, name in made.items() if name and re.search(rf"\b{name}\b", text)]
    # A model may have others, which a library makes: one that has another name is not meant.
    is_only = len(made) == 1 and not (text and any(made.values()))
    found = list(made) if is_only else named
    return {"file": found[0][0], "line": found[0][1]} if len(found) == 1 else None


def _definitions(
    report: Report,
) -> tuple[dict[str, tuple[str, Place, str]], dict[str, str], list[ast.Call]]:
    """Return functions and parts of loaders with name, place and text; variables and what made
    them; and the calls that make DataLoaders.
    """
    own: dict[str, tuple[str, Place, str]] = {}
    made: dict[str, str] = {}
    loaders = []
    for row in report["sources"]:
        text, file = row["text"] or "", row["file"]
        tree = reading.parse_source(text)
        for node in ast.walk(tree) if tree else ():
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                place: Place = {"file": file, "line": node.lineno}
                own[node.name] = (node.name, place, _text_of(node, text))
            elif isinstance(node, ast.ClassDef):
                for each in node.body:
                    if isinstance(each, ast.FunctionDef) and each.name in _ITEMS:
                        place = {"file": file, "line": each.lineno}
                        name = f"{node.name}.{each.name}"
                        own[node.name] = (name, place, _text_of(each, text))
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                made |= {
                    each: _last_name(node.value.func) for each in map(_last_name, node.targets)
                }
            elif isinstance(node, ast.Call) and _last_name(node.func) == "DataLoader":
                loaders.append(node)
    return own, made, loaders


def _text_of(node: ast.FunctionDef | ast.AsyncFunctionDef, text: str) -> str:
    return "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno])


def _last_name(node: ast.expr | None) -> str:
    """Return the name of a variable, of what a call makes, or the last one of `a.b.c`."""
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    return str(getattr(node, "attr", getattr(node, "id", "")))


# The user's own regions: where the texts of the files name one, and what is in it.

# What makes a region, of the name that is its first argument.
_REGION_MAKERS = frozenset(("region", "record_function", "annotate", "range"))
# Of a cause's time, the least that a region has to be named for it, and the most it may be itself.
_REGION_LEAST, _REGION_MOST = 0.5, 2.0


class RegionBlock(NamedTuple):
    """The first and last line of a region's block, and the names of what is called in it."""

    name: str
    first: int
    last: int
    called: frozenset[str]


def region_of(report: Report, place: Place, seconds: float) -> tuple[str, Place] | None:
    """Return name and place of the innermost region that holds most of a cause's time.

    `place` is that of the cause, a line or a function, `seconds` its time per step.
    """
    times: dict[str, float] = {}
    for row in report["tables"]["regions"]:
        is_clean = row["source"] == OWN_REGION
        time = row["wall_s"] if is_clean else reading.calibrated(report, row["wall_s"])
        times[row["path"].rpartition("/")[2]] = time or 0.0
    graph, found = reading.CallGraph(report), list[tuple[float, str, Place]]()
    around = graph.span_around((place["file"], place["line"]))
    at = place["line"]
    for source in report["sources"] if times else ():
        for block in _region_blocks(source["text"] or ""):
            here = source["file"] == place["file"]
            is_in = here and block.first <= at <= block.last
            if here and around is not None and at == around.first:
                is_in |= around.first <= block.first and block.last <= around.last
            if not is_in and around is not None and block.called:
                own = {key for key in graph.rows if key.name in block.called}
                key = reading.FunctionKey(place["file"], around.first, around.name)
                is_in = around.name in block.called or key in graph.below(own)
            time = times.get(block.name, 0.0)
            if is_in and _REGION_LEAST * seconds <= time <= _REGION_MOST * seconds:
                found.append((time, block.name, {"file": source["file"], "line": block.first}))
    return min(found, key=lambda each: each[0])[1:] if found else None


@cache
def _region_blocks(text: str) -> tuple[RegionBlock, ...]:
    tree = reading.parse_source(text)
    blocks = []
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, (ast.With, ast.AsyncWith)):
            makers = [item.context_expr for item in node.items]
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            makers = node.decorator_list
        else:
            continue
        for maker in makers:
            if (name := _region_name(maker)) is not None:
                first = min(maker.lineno, node.lineno)
                inside = (each.func for each in ast.walk(node) if isinstance(each, ast.Call))
                names = {getattr(each, "id", getattr(each, "attr", "")) for each in inside}
                called = frozenset(names - _REGION_MAKERS)
                blocks.append(RegionBlock(name, first, node.end_lineno or first, called))
    return tuple(blocks)


def _region_name(maker: ast.expr) -> str | None:
    """Return the name in a call that makes a region; None of other calls."""
    if not isinstance(maker, ast.Call) or not maker.args:
        return None
    function, argument = maker.func, maker.args[0]
    is_maker = getattr(function, "attr", getattr(function, "id", None)) in _REGION_MAKERS
    value = argument.value if isinstance(argument, ast.Constant) else None
    return value if is_maker and isinstance(value, str) else None
