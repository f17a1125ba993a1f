"""Rows of `kernels`: what ran on a device, how often and how long, and who launched it.

The device time goes to the modules and step parts that launched it, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from profstack.torchtrace.attribution import Attribution
from profstack.torchtrace.events import Ints, integers

_S = 1e-9


def kernel_records(
    result: Attribution, kernels: Sequence[Any], index: int
) -> tuple[list[dict[str, Any]], Ints]:
    """Rows of `kernels`, and the device time each host event launched.

    A kernel belongs to the operator with its correlation number, and through it to a module.
    """
    events = result.events
    device_ns = np.zeros(len(events), np.int64)
    if not kernels:
        return [], device_ns
    numbers = events.integers("correlation_id").tolist()
    by_correlation = {number: position for position, number in enumerate(numbers) if number > 0}
    linked = integers(kernels, "linked_correlation_id").tolist()
    launched_by = np.array([by_correlation.get(number, -1) for number in linked], np.int64)
    lengths = integers(kernels, "duration_ns")
    known = launched_by >= 0
    np.add.at(device_ns, launched_by[known], lengths[known])
    _add_device(result, launched_by[known], lengths[known])
    rows: dict[tuple[Any, ...], list[int]] = {}
    for kernel, position, length in zip(
        kernels, launched_by.tolist(), lengths.tolist(), strict=True
    ):
        key = (
            kernel.name(),
            f"{kernel.device_type().name.lower()}:{kernel.device_index()}",
            kernel.device_resource_id(),
            (int(result.owner[position]) or None) if position >= 0 else None,
            events.names.values[events.names.ids[position]] if position >= 0 else None,
        )
        entry = rows.setdefault(key, [0, 0])
        entry[0] += 1
        entry[1] += length
    names = ("name", "device", "stream", "module_id", "operator")
    records = [
        {"slice": index, **dict(zip(names, key, strict=True)), "calls": calls, "device_s": ns * _S}
        for key, (calls, ns) in rows.items()
    ]
    return records, device_ns


def _add_device(result: Attribution, launched_by: Ints, lengths: Ints) -> None:
    """Device time of the kernels that modules and step parts launched, inner calls included."""
    scopes, tree = result.scopes, result.tree
    nearest = scopes.nearest[launched_by]
    scope = np.where(nearest > 0, scopes.scope[np.maximum(nearest - 1, 0)], 0)
    backward = result.in_backward[launched_by]
    for row in result.rows.values():
        row.forward_device = row.backward_device = 0.0
    for chosen, name in ((~backward, "forward_device"), (backward, "backward_device")):
        sums_ = tree.with_inner(tree.at(scope[chosen], lengths[chosen]))
        for part in np.unique(scope[chosen][scope[chosen] < 0]).tolist():
            sums_[part] = float(lengths[chosen][scope[chosen] == part].sum())
        for number, time in sums_.items():
            setattr(result.rows[number], name, time)
