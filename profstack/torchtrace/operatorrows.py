"""Rows of operators: what each was given, how long it took, and what it moved.

What the operators of a slice were given is looked at once (`read_inputs`): their shapes and types
and, where a rule needs them, their values; each different call only once. What moves bytes is
told apart from what only calls it, so that of operators inside one another only the outermost one
with a rule counts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from profstack.flops.missed import is_composite
from profstack.torchtrace.attribution import Attribution, in_steps
from profstack.torchtrace.events import (
    Bools,
    HostEvents,
    Interned,
    Ints,
    around,
    group,
    holding,
    sums,
)
from profstack.torchtrace.movedrules import moved_bytes, takes_values
from profstack.torchtrace.operatorschemas import has_own_kernel
from profstack.torchtrace.tensorinputs import floating_name

_S = 1e-9
_OPERATOR = re.compile(r"\w+::\w+$")
# Code that torch.compile made tells nothing of what it reads and writes.
_COMPILED = re.compile(r"## Call CompiledFxGraph|triton_")


@dataclass(frozen=True)
class Inputs:
    """What the operators of a slice were given; one entry per event of `positions`.

    `moved` are the bytes that one call moves, -1 where no rule tells; `dtypes` the type of its
    first floating-point tensor, "" without one.
    """

    positions: Ints
    shapes: Interned
    dtypes: Interned
    moved: Ints


def operators_of(
    result: Attribution, boundaries_ns: Sequence[int], left_out: Collection[int] = ()
) -> Ints:
    """Positions of all events that are neither ranges nor memory, in the steps that count."""
    wanted = ~result.is_range & ~result.events.memory
    return np.flatnonzero(wanted & in_steps(result.events, boundaries_ns, left_out))


def read_inputs(
    result: Attribution, boundaries_ns: Sequence[int], left_out: Collection[int] = ()
) -> Inputs:
    """Shapes and types of what every operator was given, and the bytes that follow from them.

    The profile must have been taken with its shapes.
    """
    events = result.events
    positions = operators_of(result, boundaries_ns, left_out)
    given = events.given.at(positions)
    ids, names = events.names.ids[positions], events.names.values
    kinds, kind_of = group([ids, given.shape_ids, given.type_ids])
    valued = [
        takes_values(names[ids[first]], given.types[given.type_ids[first]])
        for first in kinds.tolist()
    ]
    asked = np.array(valued, np.bool_)[kind_of] if len(kinds) else np.zeros(0, np.bool_)
    values, value_ids = events.values(positions, asked)
    distinct, inverse = group([kind_of, value_ids])
    moved = np.full(len(distinct), -1, np.int64)
    for number, first in enumerate(distinct.tolist()):
        shape, types = given.shapes[given.shape_ids[first]], given.types[given.type_ids[first]]
        figure = moved_bytes(names[ids[first]], shape, types, values[value_ids[first]])
        moved[number] = -1 if figure is None else figure
    shapes = Interned.numbered(given.shape_ids, [shape_text(shape) for shape in given.shapes])
    dtypes = [floating_name(types) or "" for types in given.types]
    return Inputs(positions, shapes, Interned.numbered(given.type_ids, dtypes), moved[inverse])


def shape_text(shapes: Any) -> str:
    """Input shapes as the profiler's tables write them; nothing where it was given no input."""
    return str(list(shapes)) if shapes else ""


def operator_records(
    result: Attribution,
    index: int,
    boundaries_ns: Sequence[int],
    device_ns: Ints,
    inputs: Inputs | None = None,
    left_out: Collection[int] = (),
) -> list[dict[str, Any]]:
    """Rows of `operators`: one per name, input shapes and type, owner and direction.

    Without `inputs` the rows tell neither shapes nor bytes.
    """
    events = result.events
    chosen = inputs.positions if inputs else operators_of(result, boundaries_ns, left_out)
    if not len(chosen):
        return []
    owner = result.owner[chosen]
    backward = result.in_backward[chosen].astype(np.int64)
    given = [inputs.shapes.ids, inputs.dtypes.ids] if inputs else []
    first, inverse = group([events.names.ids[chosen], owner, backward, *given])
    count = len(first)
    own = sums(inverse, events.self_time()[chosen], count)
    total = sums(inverse, events.duration[chosen], count)
    device = sums(inverse, device_ns[chosen], count)
    calls = np.bincount(inverse, minlength=count)
    moved = _whole_sums(inverse, inputs.moved, count) if inputs else [None] * count
    has_device = bool(device_ns.any())
    return [
        {
            "slice": index,
            "name": events.names.values[events.names.ids[chosen[position]]],
            "shapes": _at(inputs.shapes, position) if inputs else None,
            "dtype": _at(inputs.dtypes, position) if inputs else None,
            "module_id": int(owner[position]) or None,
            "backward": int(backward[position]),
            "calls": int(calls[number]),
            "self_s": own[number] * _S,
            "total_s": total[number] * _S,
            "device_s": device[number] * _S if has_device else None,
            "moved_bytes": moved[number],
        }
        for number, position in enumerate(first.tolist())
    ]


def _at(texts: Interned, position: int) -> str | None:
    return texts.values[texts.ids[position]] or None


def _whole_sums(groups: Ints, values: Ints, count: int) -> list[int | None]:
    """Sums per group; None where one of its values is not known."""
    lacking = np.bincount(groups, weights=values < 0, minlength=count) > 0
    added = np.zeros(count, np.int64)
    np.add.at(added, groups, np.maximum(values, 0))
    return [
        None if lacks else total
        for total, lacks in zip(added.tolist(), lacking.tolist(), strict=True)
    ]


def moved_records(
    result: Attribution, index: int, inputs: Inputs, device_ns: Ints
) -> list[dict[str, Any]]:
    """Rows of `moved_bytes`: what moved bytes, one per operator, type, owner and direction.

    Times hold what an operator calls. Operators that no rule covers have rows with their own time
    and no bytes, but for those that only call others.
    """
    events = result.events
    known = inputs.positions[inputs.moved >= 0]
    counted = known[around(events, known)[known] == 0]
    nearest = np.zeros(len(events), np.int64)
    nearest[counted] = counted + 1
    nearest = events.inherit(nearest)
    opaque = _opaque(events, inputs.positions, nearest == 0, inputs.positions[inputs.moved > 0])
    on_device = bool(device_ns.any())
    device = np.zeros(len(events) if on_device else 0, np.int64)
    if on_device:
        np.add.at(device, nearest[nearest > 0] - 1, device_ns[nearest > 0])
    # Columns of all events are given back before others are made.
    del nearest
    rows: list[dict[str, Any]] = []
    for chosen, host, launched, is_counted in (
        (counted, events.duration[counted], device, True),
        (opaque, events.self_time()[opaque], device_ns, False),
    ):
        owner = result.owner[chosen]
        backward = result.in_backward[chosen].astype(np.int64)
        among = np.searchsorted(inputs.positions, chosen)
        dtypes = inputs.dtypes.ids[among]
        figures = inputs.moved[among] if is_counted else np.full(len(chosen), -1, np.int64)
        first, inverse = group([events.names.ids[chosen], owner, backward, dtypes])
        count = len(first)
        total = sums(inverse, host, count)
        device_total = sums(inverse, launched[chosen], count) if on_device else np.zeros(count)
        calls = np.bincount(inverse, minlength=count)
        added = _whole_sums(inverse, figures, count)
        rows += [
            {
                "slice": index,
                "module_id": int(owner[position]) or None,
                "operator": events.names.values[events.names.ids[chosen[position]]],
                "backward": int(backward[position]),
                "dtype": inputs.dtypes.values[dtypes[position]] or None,
                "calls": int(calls[number]),
                "total_s": total[number] * _S,
                "device_s": device_total[number] * _S if on_device else None,
                "moved_bytes": added[number],
            }
            for number, position in enumerate(first.tolist())
        ]
    return rows


def _opaque(events: HostEvents, positions: Ints, open_: Bools, moving: Ints) -> Ints:
    """Operators outside every counted one that did work which no rule tells of.

    Those that only call others are seen through: by their kind, or since they have no kernel of
    their own and something inside them moved bytes.
    """
    names = events.names
    works = names.where(lambda name: _is_operator(name) and not is_composite(name))
    calls_others = names.where(lambda name: _is_operator(name) and not has_own_kernel(name))
    compiled = names.where(lambda name: _COMPILED.match(name) is not None)
    hidden = (works & ~(calls_others & holding(events, moving))) | compiled
    chosen = np.zeros(len(events), np.bool_)
    chosen[positions] = True
    return np.flatnonzero(hidden & chosen & open_)


def _is_operator(name: str) -> bool:
    return _OPERATOR.match(name) is not None
