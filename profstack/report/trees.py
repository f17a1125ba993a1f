"""Trees and pictures of the page: the call graph, and modules by area.

In a picture of a hierarchy a module's area is its own share and the areas of the modules inside
it, and no area is below 0. Not every figure is like that. Parameters that two modules share are in
both of their rows and once in the row around them; memory that a module took is given back by the
one around it. There the picture draws what each module itself adds, and `below` is the surplus:
the drawn areas less `below` are the sum of the roots' rows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from profstack.code_owner import with_package
from profstack.report.page_tables import (
    DIGITS,
    FORWARD_PARTS,
    MOST_ROWS,
    AnyRow,
    compact,
    left_out_text,
    number,
    weight,
)
from profstack.storage.schema.comparison import TableRow
from profstack.storage.schema.rows import CallRow, FunctionRow, ModuleRow, PeakHolderRow

MOST_PICTURED = 2_000
# A difference of sums below this share of them is rounding.
_ROUNDING = 1e-9
# Names of parts of the step outside modules begin so.
_PART = "("
_SCRIPTS_OWN = "(held by the script)"


# The columns of each metric, to be added up.
_COLUMNS = {
    "calibrated_s": ("calibrated_s",),
    "self_s": ("self_s",),
    "forward_s": ("forward_s",),
    "backward_s": ("backward_s",),
    "python_s": ("python_s",),
    "device_s": ("forward_device_s", "backward_device_s"),
    "flop": ("forward_flop", "backward_flop"),
    "host_net_bytes": ("host_net_bytes",),
    "device_net_bytes": ("device_net_bytes",),
    "parameters": ("parameters",),
}
# Metrics that do not include the modules inside.
_WITHOUT_CHILDREN = ("self_s", "python_s")


@dataclass(frozen=True)
class Metric:
    """A figure that areas show: `columns` of `tables.modules`, or the bytes at a device's peak.

    `own` is the figure that each node adds by itself, null where it is not known. `below` is the
    sum of the figures below 0, which are not drawn, in `below_count` modules.
    """

    key: str
    columns: tuple[str, ...]
    own: list[object]
    below: float
    below_count: int
    device: str | None = None


@dataclass(frozen=True)
class ModulePicture:
    """The hierarchy: for each node its name, its parent's number (-1 at the top), its kind
    ("module", "part" of the step, or "rest") and the number of modules in a rest."""

    names: list[str]
    parents: list[int]
    kinds: list[str]
    counts: list[int]
    metrics: list[Metric]
    total: int


@dataclass
class _Node:
    """A node of the picture: a module, a part of the step, or the sum of `count` nodes."""

    path: str
    parent: _Node | None
    record: AnyRow | None
    count: int = 1
    children: list[_Node] = field(default_factory=list)
    own: dict[str, float | None] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Return the kind of the node, as in `ModulePicture`."""
        if self.count > 1:
            return "rest"
        return "part" if self.path.startswith(_PART) else "module"

    @property
    def name(self) -> str:
        """Return the path from the parent on, as in the tree of the modules."""
        return self.path.removeprefix(f"{self.parent.path}." if self.parent else "")


def module_picture(
    modules: Sequence[ModuleRow], holders: Sequence[PeakHolderRow], most: int = MOST_PICTURED
) -> ModulePicture | None:
    """Return the picture of the modules and the peak's holders; None where there is no module."""
    nodes = _tree({row["path"]: row for row in modules})
    if not nodes:
        return None
    metrics = [*_column_metrics(nodes), *_peak_metrics(nodes, holders)]
    listed = list(nodes.values())
    _add_up(listed, [metric.key for metric in metrics])
    # Areas of 0 show nothing: an inference has no backward pass to draw.
    seen = [metric for metric in metrics if any(node.sums[metric.key] for node in listed)]
    return _cut(listed, seen, most)


def change_picture(rows: Sequence[TableRow], most: int = MOST_PICTURED) -> ModulePicture | None:
    """Return the modules of both sides by area; None where there is no module.

    A row is a module's own figure. The metrics are `larger` (the larger of both sides, the area),
    `before`, `after`, and `changed`: the differences that are more than noise, or may be.
    """
    nodes = _tree({row["key"]: row for row in rows})
    if not nodes:
        return None
    for row in rows:
        change = row["change"]
        before, after = (max(number(one), 0.0) for one in (change["before"], change["after"]))
        moved = 0.0 if change["beyond_noise"] is False else after - before
        figures = {"larger": max(before, after), "before": before, "after": after, "changed": moved}
        own = nodes[row["key"]].own
        for key, figure in figures.items():
            own[key] = (own.get(key) or 0.0) + figure
    keys = ("larger", "before", "after", "changed")
    listed = list(nodes.values())
    _add_up(listed, keys)
    return _cut(listed, [Metric(key, (), [], 0.0, 0) for key in keys], most, keys[:1])


def _add_up(nodes: Sequence[_Node], keys: Sequence[str]) -> None:
    """Fill the sums: the area of a node is its own and those inside it."""
    for node in reversed(list(_downwards(nodes))):
        for key in keys:
            inside = sum(child.sums[key] for child in node.children)
            node.sums[key] = (node.own.get(key) or 0.0) + inside


def _tree(records: Mapping[str, AnyRow]) -> dict[str, _Node]:
    """Return the rows by path, each after the row around it."""
    nodes: dict[str, _Node] = {}
    for path in sorted(records, key=lambda path: path.count(".")):
        nodes[path] = _Node(path, _nearest(path, nodes), records[path])
    # In the report's own order from here on: it is that of the first calls.
    in_order = {path: nodes[path] for path in records}
    for node in in_order.values():
        if node.parent is not None:
            node.parent.children.append(node)
    return {node.path: node for node in _downwards(list(in_order.values()))}


def _nearest(path: str, nodes: Mapping[str, _Node]) -> _Node | None:
    """Return the row with the longest path that begins this one; None of a part of the step."""
    while "." in path and not path.startswith(_PART):
        path = path.rpartition(".")[0]
        if path in nodes:
            return nodes[path]
    return None


def _downwards(nodes: Sequence[_Node]) -> Iterator[_Node]:
    """Yield every node after its parent, siblings in their order; without recursion."""
    work = [node for node in reversed(nodes) if node.parent is None]
    while work:
        node = work.pop()
        yield node
        work.extend(reversed(node.children))


def _column_metrics(nodes: Mapping[str, _Node]) -> Iterator[Metric]:
    """Yield the metrics that rest on columns of the modules, if anything was measured."""
    for key, columns in _COLUMNS.items():
        figures = {path: _figure(node, columns) for path, node in nodes.items()}
        if all(figure is None for figure in figures.values()):
            continue
        upwards = reversed(list(nodes.values()))
        under = [gap for node in upwards if (gap := _own(node, key, figures))]
        yield Metric(key, columns, [], sum(under), len(under))


def _figure(node: _Node, columns: Sequence[str]) -> float | None:
    """Return a row's figure for a metric; a part outside modules has no forward of its own."""
    if node.record is None:
        return None
    if columns == ("forward_s",) and node.path.startswith(_PART) and node.path not in FORWARD_PARTS:
        return None
    known = [node.record.get(column) for column in columns]
    found = [value for value in known if isinstance(value, (int, float)) and math.isfinite(value)]
    return float(sum(found)) if found else None


def _own(node: _Node, key: str, figures: dict[str, float | None]) -> float:
    """Set the figure that a node adds by itself; return by how much it would be below 0.

    Called for children before their parents. A container that never ran has no figure of its
    own: it gets the sum of what is inside it.
    """
    figure = figures[node.path]
    if key in _WITHOUT_CHILDREN:
        node.own[key] = None if figure is None else max(figure, 0.0)
        return max(-(figure or 0.0), 0.0)
    known = [value for child in node.children if (value := figures[child.path]) is not None]
    if figure is None:
        node.own[key] = 0.0 if known else None
        figures[node.path] = sum(known) if known else None
        return 0.0
    own = figure - sum(known)
    if abs(own) <= _ROUNDING * max(abs(figure), *map(abs, known), 0.0):
        own = 0.0
    node.own[key] = max(own, 0.0)
    return max(-own, 0.0)


def _peak_metrics(nodes: dict[str, _Node], holders: Sequence[PeakHolderRow]) -> Iterator[Metric]:
    """Yield a metric for each device: the bytes at the step's peak by the module that made them."""
    for device in dict.fromkeys(str(record["device"]) for record in holders):
        key = f"peak_bytes {device}"
        for record in holders:
            size = record["bytes"]
            if str(record["device"]) != device or size is None:
                continue
            # Bytes of no module are a part beside the roots.
            path = record["module"] or _SCRIPTS_OWN
            owner = nodes.get(path) or _Node(path, _nearest(path, nodes), None)
            if path not in nodes and owner.parent is not None:
                owner.parent.children.append(owner)
            nodes[path] = owner
            owner.own[key] = (owner.own.get(key) or 0.0) + float(size)
        yield Metric(key, (), [], 0.0, 0, device)


def _cut(
    nodes: Sequence[_Node], metrics: Sequence[Metric], most: int, by: Sequence[str] = ()
) -> ModulePicture:
    """Return the nodes that are largest in any metric; the rest is summed up at its parent.

    `by` names the metrics that count for that, where it is not all of them.
    """
    order = list(_downwards(nodes))
    keys = [metric.key for metric in metrics]
    kept = _largest(order, by or keys, most)
    rows = kept + _rests(order, kept, keys)
    numbers = {id(node): at for at, node in enumerate(kept)}
    return ModulePicture(
        names=[node.name for node in rows],
        parents=[-1 if node.parent is None else numbers[id(node.parent)] for node in rows],
        kinds=[node.kind for node in rows],
        counts=[node.count for node in rows],
        metrics=[
            replace(metric, own=[compact(node.own.get(metric.key)) for node in rows])
            for metric in metrics
        ],
        total=len(order),
    )


def _largest(order: Sequence[_Node], keys: Sequence[str], most: int) -> list[_Node]:
    """Return at most `most` nodes in their order, each with the node around it."""
    whole = {
        key: sum(node.sums[key] for node in order if node.parent is None) or 1.0 for key in keys
    }
    # A parent is never smaller than the nodes in it, and comes first where they are equal.
    sizes = [
        max((node.sums[key] / all_of_it for key, all_of_it in whole.items()), default=0.0)
        for node in order
    ]
    heaviest = sorted(range(len(order)), key=lambda at: (-sizes[at], at))[:most]
    return [order[at] for at in sorted(heaviest)]


def _rests(order: Sequence[_Node], kept: Sequence[_Node], keys: Sequence[str]) -> list[_Node]:
    """Return the nodes left out under each kept parent, and at the top, as one node."""
    known = {id(node) for node in kept}
    left: defaultdict[int, list[_Node]] = defaultdict(list)
    for node in order:
        if id(node) not in known:
            top = node
            while top.parent is not None and id(top.parent) not in known:
                top = top.parent
            left[id(top.parent)].append(node)
    rests = []
    for members in left.values():
        if len(members) == 1:  # One node takes no more room than a sum.
            rests += members
            continue
        # The first one left out lies in the parent itself; the nodes inside it come later.
        rest = _Node("", members[0].parent, None, len(members))
        rest.own = {key: sum(node.own.get(key) or 0.0 for node in members) for key in keys}
        rests.append(rest)
    return rests


# -----------------------------------------------------------------------------
# The call graph of the page: functions by number, edges, cycles, and entry points.
#
# A profile knows which function called which, not through which path. Two things can still be drawn
# without a guess. A function's time is divided among its callers by its edges. Functions that call
# each other in a cycle, as every nested `torch.nn.Module` does through `_call_impl`, are drawn as
# one frame: each function's own time and its calls out of the cycle are exact, the order inside the
# cycle is not known.
# -----------------------------------------------------------------------------

MOST_EDGES = 8_000
# Below this share of a function's time, a difference between sums is rounding and no entry.
_TIME_ROUNDING = 1e-3


class Edge(NamedTuple):
    """Calls of one function by another, both by number."""

    caller: int
    callee: int
    calls: object
    total_s: float


@dataclass(frozen=True)
class CallTree:
    """Functions `[file, line, name, calls, self_s, total_s, package]`, edges between their numbers,
    cycles as lists of numbers, and roots `[function, seconds]`: the time that was entered from no
    function of the profile.

    `callers_left` and `callees_left` sum up the edges that were left out: `[function, how many,
    calls, total_s]`, so that the sums of a function's callers and callees stay exact.
    """

    functions: list[list[object]]
    edges: list[Edge]
    cycles: list[list[int]]
    roots: list[list[object]]
    callers_left: list[list[object]]
    callees_left: list[list[object]]
    left_out: str | None


def call_tree(functions: Sequence[FunctionRow], calls: Sequence[CallRow]) -> CallTree:
    """Return the call graph of one phase, cut to a size that a browser draws quickly."""
    kept = sorted(functions, key=weight("total_s"), reverse=True)[:MOST_ROWS]
    # By the name that a function of `tables.functions` has in `tables.calls`.
    labels = (f"{row['file']}:{row['line']}({row['name']})" for row in kept)
    numbers = {label: place for place, label in enumerate(labels)}
    edges: list[Edge] = []
    # How many calls were left out at a function, and their sums.
    callers_left: defaultdict[int, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    callees_left: defaultdict[int, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for call in sorted(calls, key=weight("total_s"), reverse=True):
        caller, callee = numbers.get(call["caller"]), numbers.get(call["callee"])
        if caller is not None and callee is not None and len(edges) < MOST_EDGES:
            seconds = float(f"{call['total_s'] or 0.0:.{DIGITS}g}")
            edges.append(Edge(caller, callee, compact(call["calls"]), seconds))
            continue
        for sums_of, function in ((callers_left, callee), (callees_left, caller)):
            if function is not None:
                sums = sums_of[function]
                added = (1, call["calls"] or 0.0, call["total_s"] or 0.0)
                sums[:] = [known + more for known, more in zip(sums, added, strict=True)]
    fields = ("file", "line", "name", "calls", "self_s", "total_s", "package")
    groups = _groups(len(kept), edges)
    return CallTree(
        functions=[[compact(row.get(field)) for field in fields] for row in with_package(kept)],
        edges=edges,
        cycles=[members for members in groups if len(members) > 1],
        roots=[[function, compact(seconds)] for function, seconds in entries(kept, edges, groups)],
        callers_left=[[at, *map(compact, sums)] for at, sums in callers_left.items()],
        callees_left=[[at, *map(compact, sums)] for at, sums in callees_left.items()],
        left_out=left_out_text(len(kept), len(functions), "those with the most time"),
    )


def entries(
    functions: Sequence[FunctionRow], edges: Sequence[Edge], groups: Sequence[Sequence[int]]
) -> list[tuple[int, float]]:
    """Return the time of each group that no caller outside it accounts for, the largest first.

    The time of a cycle is the own time of its functions and of their calls out of it: their total
    times contain each other and cannot be added.
    """
    group_of = {function: at for at, members in enumerate(groups) for function in members}
    totals = [
        sum(functions[function]["self_s"] or 0.0 for function in members)
        if len(members) > 1
        else functions[members[0]]["total_s"] or 0.0
        for members in groups
    ]
    accounted = [0.0] * len(groups)
    for caller, callee, _, seconds in edges:
        if group_of[caller] != group_of[callee]:
            accounted[group_of[callee]] += seconds
            if len(groups[group_of[caller]]) > 1:
                totals[group_of[caller]] += seconds
    found = []
    for members, total, known in zip(groups, totals, accounted, strict=True):
        if total - known > _TIME_ROUNDING * total:
            first = max(members, key=lambda function: functions[function]["total_s"] or 0.0)
            found.append((first, total - known))
    return sorted(found, key=lambda entry: -entry[1])


def _groups(count: int, edges: Sequence[Edge]) -> list[list[int]]:
    """Return the functions in groups: each cycle together, every other function alone."""
    # By Tarjan's algorithm: importing networkx for it would take longer than all of the page.
    callees: list[list[int]] = [[] for _ in range(count)]
    for edge in edges:
        callees[edge.caller].append(edge.callee)
    # When each function was met, and the earliest one on the path that it leads back to.
    met: dict[int, int] = {}
    earliest: dict[int, int] = {}
    # Functions met that belong to no group yet, in that order.
    pending: list[int] = []
    groups: list[list[int]] = []
    for root in range(count):
        path = [(root, iter(callees[root]))] if root not in met else []
        while path:
            function, rest = path[-1]
            if function not in met:
                met[function] = earliest[function] = len(met)
                pending.append(function)
            callee = next(rest, None)
            if callee is None:
                path.pop()
                if path:
                    caller = path[-1][0]
                    earliest[caller] = min(earliest[caller], earliest[function])
                if earliest[function] == met[function]:
                    place = pending.index(function)
                    groups.append(sorted(pending[place:]))
                    # A closed group is earlier than nothing.
                    earliest.update(dict.fromkeys(pending[place:], count))
                    del pending[place:]
            elif callee not in met:
                path.append((callee, iter(callees[callee])))
            else:
                earliest[function] = min(earliest[function], earliest[callee])
    return sorted(groups)
