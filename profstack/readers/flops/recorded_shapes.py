"""Floating-point operations from the input shapes that a profile recorded.

The formulas of `flops.formulas` applied to the events of a slice: forward and backward per module,
without a mode of torch's own, so that it works on compiled code too, where matrix products and
convolutions are still called as operators. Work inside a compiler's kernel leaves no event, and is
listed as uncounted. Inputs are read only of operators that have a formula, and every different
input is worked out once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, repeat

import numpy as np

from profstack.readers.flops.formulas import flop_of, has_formula, is_composite, is_missed, left_out
from profstack.readers.torchtrace.attribution import Attribution, Groups
from profstack.readers.torchtrace.columns import Bools, Ints, group
from profstack.readers.torchtrace.events import around, holding, is_compiled, is_operator
from profstack.storage.schema.column import Record

COUNTER = "recorded_shapes"


@dataclass(frozen=True)
class CountedEvents:
    """Counts of a slice: `figures` of the events at `positions`, none of which is inside another.

    A figure is the operations and those of them that a causal mask leaves out, -1 where that is
    not known. Events at `uncounted` did arithmetic that has no figure.
    """

    positions: Ints
    figures: Ints
    uncounted: Ints


def count_events(owned: Attribution, device_ns: Ints) -> CountedEvents:
    """Count the operations of every event in the steps that count.

    `device_ns` is the device time that each event launched.
    """
    events, inside = owned.events, owned.is_work
    # Of a composite operator the operators that it calls are counted.
    counts = events.names.where(lambda name: has_formula(name) and not is_composite(name))
    positions = np.flatnonzero(inside & counts)
    figures, kind = _operations(owned, positions)
    done = ~_broken_off(owned, positions, kind, device_ns)
    positions, figures = positions[done], figures[done]
    # Of operators inside one another only the outermost counts: what it calls is a part of it.
    known = positions[figures[:, 0] >= 0]
    figures = figures[figures[:, 0] >= 0]
    outermost = around(events, known)[known] == 0
    # Events that do arithmetic and have no figure, the outermost of nested ones. One with a counted
    # operator inside hides nothing, and one inside a counted operator is a part of it; but compiled
    # code hides its kernels even where it calls counted operators.
    missed = inside & events.names.where(
        lambda name: (
            is_operator(name)
            and not has_formula(name)
            and is_missed(name)
            and not is_composite(name)
        )
    )
    missed[np.setdiff1d(positions, known)] = True
    missed &= (around(events, known) == 0) & ~holding(events, known)
    missed &= around(events, np.flatnonzero(missed)) == 0
    uncounted = np.flatnonzero(missed | (inside & events.names.where(is_compiled)))
    return CountedEvents(known[outermost], figures[outermost], uncounted)


def flop_records(owned: Attribution, index: int, counted: CountedEvents) -> list[Record]:
    """Return rows of `flop_counts`, one per operator, module and direction.

    Operations are those of a module's own calls, without those of modules inside. Operators that
    do arithmetic and could not be counted have rows with flop None.
    """
    groups, uncounted = Groups(owned, counted.positions), Groups(owned, counted.uncounted)
    flop, masked = (groups.whole_sums(figures) for figures in counted.figures.T)
    return [
        {**row, "counter": COUNTER}
        for row in (
            *groups.rows(index, "operator", flop=flop, masked_flop=masked),
            *uncounted.rows(index, "operator", flop=None, masked_flop=None),
        )
    ]


def _operations(owned: Attribution, positions: Ints) -> tuple[Ints, Ints]:
    """Return operations of each event at `positions`, those its mask leaves out, and its kind.

    -1 means no figure. Events of one kind have the same name and inputs; each kind
    is worked out once.
    """
    if not len(positions):
        return np.zeros((0, 2), np.int64), positions
    events, inputs = owned.events, owned.events.inputs.at(positions)
    names, ids = events.names.values, events.names.ids[positions]
    # Some formulas need inputs that are no tensors, which are slow to read.
    without = ("mm", "mm_", "mv", "mv_", "dot")
    takes = events.names.where(lambda name: not name.endswith(without))[positions]
    values, value_ids = events.values(positions, takes)
    first, inverse = group([ids, inputs.shape_ids, value_ids])
    figures = []
    for position in first.tolist():
        shapes, concrete = inputs.shapes[inputs.shape_ids[position]], values[value_ids[position]]
        name = names[ids[position]]
        flop = flop_of(name, shapes, concrete)
        # The operations that a causal mask leaves out, as far as an event's inputs show.
        pairs = zip(shapes, chain(concrete, repeat(None)), strict=False)
        given = [shape or value for shape, value in pairs]
        masked = None if flop is None else left_out(name, given, {}, flop)
        figures.append([-1 if figure is None else figure for figure in (flop, masked)])
    return np.array(figures, np.int64)[inverse], inverse


def _broken_off(owned: Attribution, positions: Ints, kind: Ints, device_ns: Ints) -> Bools:
    """Select the events that began and did no work.

    Checkpointing repeats forward work up to the last tensor that it needs: the operator that saves
    it has begun, and is broken off where it saves its inputs. Others of its kind called operators
    or launched kernels.
    """
    events = owned.events
    saves = events.names.where(lambda name: name == "aten::detach")
    called = (events.parent >= 0) & ~events.memory
    saved, worked = np.zeros((2, len(events)), np.bool_)
    saved[events.parent[called & saves]] = True
    worked[events.parent[called & ~saves]] = True
    worked = (worked | (device_ns > 0))[positions]
    works = np.bincount(kind, weights=worked)[kind] > 0
    return works & ~worked & saved[positions] & owned.in_backward[positions]
