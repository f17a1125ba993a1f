"""Rows of operators and kernels: inputs, times, moved bytes, launches.

The recorded inputs of a slice's operators are read once (`read_inputs`): their shapes and types
and, where a rule needs them, their values; each different call only once. Of operators inside one
another only the outermost one with a rule has its bytes counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from profstack.readers.flops.formulas import is_composite
from profstack.readers.torchtrace.attribution import Attribution, Groups, operators_around, received
from profstack.readers.torchtrace.columns import Ints, StringColumn, distinct, group, integers, sums
from profstack.readers.torchtrace.events import (
    around,
    device_name,
    holding,
    is_compiled,
    is_operator,
    launchers,
)
from profstack.readers.torchtrace.moved_bytes import moved_bytes, takes_values
from profstack.readers.torchtrace.operator_inputs import floating_name, has_own_kernel
from profstack.storage.schema.column import Record, Records

_S = 1e-9


@dataclass(frozen=True)
class Inputs:
    """Inputs of the operators of a slice; one entry per event of `positions`.

    `moved` are the bytes that one call moves, -1 where no rule fits; `dtypes` the type of its
    first floating-point tensor, "" without one.
    """

    positions: Ints
    shapes: StringColumn
    dtypes: StringColumn
    moved: Ints


def read_inputs(result: Attribution) -> Inputs:
    """Read shapes and types of every operator's inputs, and the bytes that follow from them.

    The profile must have been taken with shapes.
    """
    events = result.events
    positions = np.flatnonzero(result.is_work)
    inputs = events.inputs.at(positions)
    ids, names = events.names.ids[positions], events.names.values
    kinds, kind_of = group([ids, inputs.shape_ids, inputs.type_ids])
    valued = [
        takes_values(names[ids[first]], inputs.types[inputs.type_ids[first]])
        for first in kinds.tolist()
    ]
    wanted = np.array(valued, np.bool_)[kind_of] if len(kinds) else np.zeros(0, np.bool_)
    values, value_ids = events.values(positions, wanted)
    distinct, inverse = group([kind_of, value_ids])
    moved = np.full(len(distinct), -1, np.int64)
    for number, first in enumerate(distinct.tolist()):
        shapes, types = inputs.shapes[inputs.shape_ids[first]], inputs.types[inputs.type_ids[first]]
        figure = moved_bytes(names[ids[first]], shapes, types, values[value_ids[first]])
        moved[number] = -1 if figure is None else figure
    # Shapes are written as in the profiler's tables; "" for an operator without inputs.
    texts = [str(list(shapes)) if shapes else "" for shapes in inputs.shapes]
    dtypes = [floating_name(types) or "" for types in inputs.types]
    return Inputs(
        positions,
        StringColumn.renumbered(inputs.shape_ids, texts),
        StringColumn.renumbered(inputs.type_ids, dtypes),
        moved[inverse],
    )


def operator_records(
    result: Attribution, index: int, device_ns: Ints, inputs: Inputs | None = None
) -> Records:
    """Return rows of `operators`: one per name, input shapes and type, owner and direction.

    Without `inputs` the rows have neither shapes nor bytes.
    """
    events = result.events
    chosen = inputs.positions if inputs else np.flatnonzero(result.is_work)
    if not len(chosen):
        return []
    groups = Groups(result, chosen, *([inputs.shapes.ids, inputs.dtypes.ids] if inputs else []))
    is_outermost = (operators_around(result)[chosen] == chosen + 1) & ~received(result)[chosen]
    return groups.rows(
        index,
        "name",
        outermost=groups.whole_sums(is_outermost.astype(np.int64)),
        shapes=_texts(inputs.shapes, groups.first) if inputs else None,
        dtype=_texts(inputs.dtypes, groups.first) if inputs else None,
        self_s=groups.seconds(events.self_time()[chosen]),
        total_s=groups.seconds(events.duration[chosen]),
        device_s=groups.seconds(device_ns[chosen]) if device_ns.any() else None,
        moved_bytes=groups.whole_sums(inputs.moved) if inputs else None,
    )


def _texts(texts: StringColumn, positions: Ints) -> list[str | None]:
    return [texts.values[number] or None for number in texts.ids[positions].tolist()]


def moved_records(result: Attribution, index: int, inputs: Inputs, device_ns: Ints) -> Records:
    """Return rows of `moved_bytes`: one per operator, type, owner and direction.

    Times include the operators inside. Operators that no rule covers have rows with their own time
    and no bytes, but for those that only call others.
    """
    events = result.events
    known = inputs.positions[inputs.moved >= 0]
    counted = known[around(events, known)[known] == 0]
    nearest = np.zeros(len(events), np.int64)
    nearest[counted] = counted + 1
    nearest = events.inherit(nearest)
    # Operators outside every counted one whose work no rule covers. Those that only call others are
    # left out: by their kind, or since they have no kernel of their own and something inside them
    # moved bytes.
    names, moving = events.names, holding(events, inputs.positions[inputs.moved > 0])
    works = names.where(lambda name: is_operator(name) and not is_composite(name))
    calls_others = names.where(lambda name: is_operator(name) and not has_own_kernel(name))
    hidden = (works & ~(calls_others & moving)) | names.where(is_compiled)
    opaque = inputs.positions[(hidden & (nearest == 0))[inputs.positions]]
    on_device = bool(device_ns.any())
    device = np.zeros(len(events) if on_device else 0, np.int64)
    if on_device:
        np.add.at(device, nearest[nearest > 0] - 1, device_ns[nearest > 0])
    # Columns of all events are freed before others are made.
    del nearest
    rows = list[Record]()
    for chosen, host, launched, is_counted in (
        (counted, events.duration[counted], device, True),
        (opaque, events.self_time()[opaque], device_ns, False),
    ):
        among = np.searchsorted(inputs.positions, chosen)
        groups = Groups(result, chosen, inputs.dtypes.ids[among])
        rows += groups.rows(
            index,
            "operator",
            dtype=_texts(inputs.dtypes, among[groups.first]),
            total_s=groups.seconds(host),
            device_s=groups.seconds(launched[chosen]) if on_device else None,
            moved_bytes=groups.whole_sums(inputs.moved[among]) if is_counted else None,
        )
    return rows


# Kernels ----------------------------------------------------------------------------------------


def kernel_records(result: Attribution, kernels: Sequence[Any], index: int) -> tuple[Records, Ints]:
    """Return rows of `kernels`, and the device time each host event launched.

    A kernel belongs to the operator with its correlation number, and through it to a module.
    """
    events = result.events
    device_ns = np.zeros(len(events), np.int64)
    if not kernels:
        return [], device_ns
    launched_by, lengths = launchers(events, kernels), integers(kernels, "duration_ns")
    known = launched_by >= 0
    np.add.at(device_ns, launched_by[known], lengths[known])
    _add_device(result, launched_by[known], lengths[known])
    keys = [
        (
            kernel.name(),
            device_name(kernel),
            kernel.device_resource_id(),
            (int(result.owner[position]) or None) if position >= 0 else None,
            events.names.values[events.names.ids[position]] if position >= 0 else None,
        )
        for kernel, position in zip(kernels, launched_by.tolist(), strict=True)
    ]
    first, groups = distinct(keys, len(keys))
    calls, times = np.bincount(groups).tolist(), sums(groups, lengths, len(first)).tolist()
    names = ("slice", "name", "device", "stream", "module_id", "operator", "calls", "device_s")
    records: Records = [
        dict(zip(names, (index, *keys[at], count, time * _S), strict=True))
        for at, count, time in zip(first.tolist(), calls, times, strict=True)
    ]
    return records, device_ns


def _add_device(result: Attribution, launched_by: Ints, lengths: Ints) -> None:
    """Add the device time of kernels to the modules and step parts that launched them."""
    scopes = result.scopes
    nearest = scopes.nearest[launched_by]
    scope = np.where(nearest > 0, scopes.scope[np.maximum(nearest - 1, 0)], 0)
    backward = result.in_backward[launched_by]
    forward_ns, backward_ns = (
        result.tree.sums(scope[chosen], lengths[chosen]) for chosen in (~backward, backward)
    )
    for row in result.rows.values():
        row.forward_device = row.backward_device = 0.0
    for number, time in forward_ns.items():
        result.rows[number].forward_device = time
    for number, time in backward_ns.items():
        result.rows[number].backward_device = time
