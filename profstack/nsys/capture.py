"""An export with what all rows need of it: its steps, its ranges, and what belongs to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profstack.nsys.capturesteps import Steps, steps_of
from profstack.nsys.exported import Export
from profstack.nsys.grouping import Coded
from profstack.nsys.projection import Calls, Work, calls_in, work_in
from profstack.nsys.rangetree import RangeTree, range_tree
from profstack.torchtrace.columns import Ints


@dataclass(frozen=True)
class Capture:
    """An export, its steps and ranges, and the calls and the work that count."""

    export: Export
    steps: Steps
    tree: RangeTree
    calls: Calls
    work: Work

    @classmethod
    def of(cls, export: Export) -> Capture:
        """Find out what belongs where."""
        steps = steps_of(export)
        tree = range_tree(export, steps)
        calls = calls_in(export.calls, tree, steps)
        return cls(export, steps, tree, calls, work_in(export.work, export.calls, calls, steps))

    def devices(self) -> list[int]:
        """The devices that worked in the steps, or for them."""
        frame = self.export.work
        start, end, device = (frame[name].to_numpy(np.int64) for name in ("start", "end", "device"))
        worked = self.steps.counted(start, end) > 0
        worked[self.work.row] = True
        found: list[int] = np.unique(device[worked]).tolist()
        return found

    def places(self, innermost: Ints) -> tuple[Coded, Coded]:
        """Kind and name of ranges by position, None where it is below 0."""
        labels = [node.label for node in self.tree.nodes]
        node = np.where(innermost >= 0, self.tree.node[innermost], -1) if labels else innermost
        numbers = np.arange(len(labels))
        return (
            _renumbered(Coded(numbers, [label.kind for label in labels])).at(node),
            _renumbered(Coded(numbers, [label.name for label in labels])).at(node),
        )


def _renumbered(column: Coded) -> Coded:
    """One number for values that are equal."""
    return Coded.of(np.array(column.values, dtype=object))
