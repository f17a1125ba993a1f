"""Call paths for the page: the heaviest nodes, each with all the nodes that lead to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from profstack.report.tables import weight

Record = Mapping[str, Any]
MOST_NODES = 4_000


def path_records(
    records: Sequence[Record],
    most: int = MOST_NODES,
    times: Sequence[str] = ("total_s", "device_s"),
) -> list[Record]:
    """At most `most` nodes in their own order, those with the most time; never one without the
    nodes above it. `times` are the columns that are added up for it.

    A node whose parent is not in `records` is left out: nothing tells where it belongs.
    """
    known = {record["node"]: record for record in records}
    kept: set[Any] = set()
    lost: set[Any] = set()
    for record in sorted(records, key=weight(*times), reverse=True):
        way, ending = _way_up(record["node"], known, kept, lost)
        if ending is not None and ending not in kept:
            lost.update(way)
        elif len(kept) + len(way) <= most:
            kept.update(way)
    return [record for record in records if record["node"] in kept]


def _way_up(
    node: Any, known: Mapping[Any, Record], kept: set[Any], lost: set[Any]
) -> tuple[list[Any], Any]:
    """The nodes from here up that are not kept yet, and what their way ends at: None at the top."""
    way: list[Any] = []
    while node is not None and node not in kept:
        if node not in known or node in lost or node in way:
            return way, node
        way.append(node)
        node = known[node].get("parent")
    return way, node
