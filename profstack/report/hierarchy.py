"""The modules as pictures draw them: areas that add up, and never more of them than a page bears.

A picture of a hierarchy says that a module's area is its own share and the areas of the modules
inside it, and no area is below 0. Not every figure is like that. Parameters that two modules share
stand in both of their rows and once in the row around them; memory that a module took is given
back by the one around it. There the picture draws what each module itself adds and says by how
much that is more than the rows tell: what is drawn less `below` is the sum of the roots' rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from profstack.report.tables import FORWARD_PARTS, compact

Record = Mapping[str, Any]
MOST_PICTURED = 2_000
# A difference of sums below this share of them is rounding, and nothing is told of it.
_ROUNDING = 1e-9
# Names of parts of the step outside modules begin so.
_PART = "("
_SCRIPTS_OWN = "(held by the script)"


@dataclass(frozen=True)
class _Rule:
    """Where a metric's figures are: columns to add up, and whether children are in them."""

    columns: tuple[str, ...]
    holds_children: bool = True


_RULES = {
    "calibrated_s": _Rule(("calibrated_s",)),
    "self_s": _Rule(("self_s",), holds_children=False),
    "forward_s": _Rule(("forward_s",)),
    "backward_s": _Rule(("backward_s",)),
    "python_s": _Rule(("python_s",), holds_children=False),
    "device_s": _Rule(("forward_device_s", "backward_device_s")),
    "flop": _Rule(("forward_flop", "backward_flop")),
    "host_net_bytes": _Rule(("host_net_bytes",)),
    "device_net_bytes": _Rule(("device_net_bytes",)),
    "parameters": _Rule(("parameters",)),
}


@dataclass(frozen=True)
class Metric:
    """What areas can stand for: `columns` of `tables.modules`, or the holders of one device's peak.

    `own` is what each node adds by itself, null where nothing is known of it. `below` is the sum
    of what lies below 0 and is not drawn, in `below_count` modules.
    """

    key: str
    columns: tuple[str, ...]
    own: list[float | None]
    below: float
    below_count: int
    device: str | None = None


@dataclass(frozen=True)
class ModulePicture:
    """The hierarchy: of each node its name, its parent's number (-1 at the top), what it is
    ("module", "part" of the step, or "rest") and how many modules a rest stands for."""

    names: list[str]
    parents: list[int]
    kinds: list[str]
    counts: list[int]
    metrics: list[Metric]
    total: int


@dataclass
class _Node:
    path: str
    parent: _Node | None
    record: Record | None
    children: list[_Node] = field(default_factory=list)
    own: dict[str, float | None] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Row:
    """A node of the picture: a module, a part of the step, or the sum of `count` of them."""

    node: _Node
    kind: str
    count: int = 1


def module_picture(
    modules: Sequence[Record], holders: Sequence[Record], most: int = MOST_PICTURED
) -> ModulePicture | None:
    """The picture of `tables.modules` and `tables.peak_holders`; None where there is no module."""
    nodes = _tree(modules)
    if not nodes:
        return None
    metrics = [*_column_metrics(nodes), *_peak_metrics(nodes, holders)]
    listed = list(nodes.values())
    _add_up(listed, [metric.key for metric in metrics])
    # Areas of 0 show nothing: an inference has no backward pass to draw.
    seen = [metric for metric in metrics if any(node.sums[metric.key] for node in listed)]
    return _cut(listed, seen, most)


def _tree(modules: Sequence[Record]) -> dict[str, _Node]:
    """The rows by path, each after the row that it lies in."""
    nodes: dict[str, _Node] = {}
    for record in sorted(modules, key=lambda record: str(record["path"]).count(".")):
        path = str(record["path"])
        parent = None if _is_part(path) else _nearest(path, nodes)
        nodes[path] = _Node(path, parent, record)
    # In the report's own order from here on: it is that of the first calls.
    in_order = {str(record["path"]): nodes[str(record["path"])] for record in modules}
    for node in in_order.values():
        if node.parent is not None:
            node.parent.children.append(node)
    return {node.path: node for node in _downwards(list(in_order.values()))}


def _is_part(path: str) -> bool:
    return path.startswith(_PART)


def _nearest(path: str, nodes: Mapping[str, _Node]) -> _Node | None:
    """The row with the longest path before this one."""
    while "." in path:
        path = path.rpartition(".")[0]
        if path in nodes:
            return nodes[path]
    return None


def _downwards(nodes: Sequence[_Node]) -> Iterator[_Node]:
    """Every node after its parent, siblings in their order; without recursion."""
    work = [node for node in reversed(nodes) if node.parent is None]
    while work:
        node = work.pop()
        yield node
        work.extend(reversed(node.children))


def _column_metrics(nodes: Mapping[str, _Node]) -> Iterator[Metric]:
    """The metrics that rest on columns of the modules, as far as anything was measured."""
    for key, rule in _RULES.items():
        figures = {path: _figure(node, rule.columns) for path, node in nodes.items()}
        if all(figure is None for figure in figures.values()):
            continue
        below = [_own(node, key, rule, figures) for node in reversed(list(nodes.values()))]
        under = [gap for gap in below if gap]
        yield Metric(key, rule.columns, [], sum(under), len(under))


def _figure(node: _Node, columns: Sequence[str]) -> float | None:
    """What a row tells of a metric; a part outside modules has no forward of its own."""
    if node.record is None:
        return None
    if columns == ("forward_s",) and _is_part(node.path) and node.path not in FORWARD_PARTS:
        return None
    known = [node.record.get(column) for column in columns]
    found = [float(value) for value in known if value is not None and value == value]
    return sum(found) if found else None


def _own(node: _Node, key: str, rule: _Rule, figures: dict[str, float | None]) -> float:
    """Note what a node adds by itself; returns by how much that would be below 0.

    Called for children before their parents. A container that never ran has no figure of its
    own: what is inside it stands for it.
    """
    figure = figures[node.path]
    if not rule.holds_children:
        node.own[key] = None if figure is None else max(figure, 0.0)
        return max(-(figure or 0.0), 0.0)
    inside = [figures[child.path] for child in node.children]
    known = [value for value in inside if value is not None]
    if figure is None:
        node.own[key] = 0.0 if known else None
        figures[node.path] = sum(known) if known else None
        return 0.0
    own = figure - sum(known)
    if abs(own) <= _ROUNDING * max(abs(figure), *map(abs, known), 0.0):
        own = 0.0
    node.own[key] = max(own, 0.0)
    return max(-own, 0.0)


def _peak_metrics(nodes: dict[str, _Node], holders: Sequence[Record]) -> Iterator[Metric]:
    """One metric for each device: who made the bytes that are alive at the step's peak."""
    devices = dict.fromkeys(str(record.get("device")) for record in holders)
    for device in devices:
        key = f"peak_bytes {device}"
        for record in holders:
            size = record.get("bytes")
            if str(record.get("device")) == device and size is not None:
                owner = _owner(record, nodes)
                owner.own[key] = (owner.own.get(key) or 0.0) + float(size)
        yield Metric(key, (), [], 0.0, 0, device)


def _owner(record: Record, nodes: dict[str, _Node]) -> _Node:
    """The node that holds these bytes; what no module made is a part beside the roots."""
    path = str(record.get("module") or _SCRIPTS_OWN)
    if path not in nodes:
        parent = None if _is_part(path) else _nearest(path, nodes)
        node = nodes[path] = _Node(path, parent, None)
        if parent is not None:
            parent.children.append(node)
    return nodes[path]


def _add_up(nodes: Sequence[_Node], keys: Sequence[str]) -> None:
    """The area of every node: its own and those inside it."""
    for node in reversed(list(_downwards(nodes))):
        for key in keys:
            inside = sum(child.sums[key] for child in node.children)
            node.sums[key] = (node.own.get(key) or 0.0) + inside


def _cut(nodes: Sequence[_Node], metrics: Sequence[Metric], most: int) -> ModulePicture:
    """The largest nodes, by whichever metric they are largest in; the rest folded at its parent."""
    order = list(_downwards(nodes))
    keys = [metric.key for metric in metrics]
    kept = _largest(order, keys, most)
    rows = [_Row(node, _kind(node)) for node in kept] + _rests(order, kept, keys)
    numbers = {id(node): at for at, node in enumerate(kept)}
    return ModulePicture(
        names=[_name(row.node) for row in rows],
        parents=[-1 if row.node.parent is None else numbers[id(row.node.parent)] for row in rows],
        kinds=[row.kind for row in rows],
        counts=[row.count for row in rows],
        metrics=[
            replace(metric, own=[compact(row.node.own.get(metric.key)) for row in rows])
            for metric in metrics
        ],
        total=len(order),
    )


def _largest(order: Sequence[_Node], keys: Sequence[str], most: int) -> list[_Node]:
    """At most `most` nodes, in their order; never one without the node that it lies in."""
    whole = {
        key: sum(node.sums[key] for node in order if node.parent is None) or 1.0 for key in keys
    }
    # A parent is never smaller than what is in it, and stands before it where they are equal.
    sizes = [
        max((node.sums[key] / all_of_it for key, all_of_it in whole.items()), default=0.0)
        for node in order
    ]
    heaviest = sorted(range(len(order)), key=lambda at: (-sizes[at], at))[:most]
    return [order[at] for at in sorted(heaviest)]


def _rests(order: Sequence[_Node], kept: Sequence[_Node], keys: Sequence[str]) -> list[_Row]:
    """For each kept parent (and for the top) what was left out under it, as one node."""
    known = {id(node) for node in kept}
    left: dict[int, list[_Node]] = {}
    for node in order:
        if id(node) not in known:
            top = node
            while top.parent is not None and id(top.parent) not in known:
                top = top.parent
            left.setdefault(id(top.parent), []).append(node)
    rests = []
    for members in left.values():
        if len(members) == 1:  # one node takes no more room than a sum
            rests.append(_Row(members[0], _kind(members[0])))
            continue
        # The first one left out lies in the parent itself: what is left in it stands behind it.
        rest = _Node("", members[0].parent, None)
        rest.own = {key: sum(node.own.get(key) or 0.0 for node in members) for key in keys}
        rests.append(_Row(rest, "rest", len(members)))
    return rests


def _kind(node: _Node) -> str:
    return "part" if _is_part(node.path) else "module"


def _name(node: _Node) -> str:
    """The path from the parent on, as the tree of the modules has it."""
    if node.parent is None or not node.path:
        return node.path
    return node.path[len(node.parent.path) + 1 :]
