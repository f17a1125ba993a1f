"""All tables that follow from the profiler's events of one slice.

Each table has a module of its own that knows how its rows are made; here stands which of them a
slice can fill, and that one which fails takes none of the others with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from profstack.flops.recordedshapes import CountedEvents, count_events, flop_records
from profstack.interrupts import is_scripts
from profstack.torchtrace.attribution import Attribution, module_records
from profstack.torchtrace.kernelrows import kernel_records
from profstack.torchtrace.launches import launch_records
from profstack.torchtrace.namedranges import named_ranges
from profstack.torchtrace.operatorrows import moved_records, operator_records, read_inputs
from profstack.torchtrace.regionrows import region_records

Frames = dict[str, Sequence[Mapping[str, Any]]]
Notes = list[tuple[str, str]]


@dataclass(frozen=True)
class ObservedSlice:
    """What is known of a slice beside its events.

    `boundaries_ns` are its start and the end of each step, on the profiler's clock; the steps
    numbered in `left_out`, from 0, do not count. `kernels` are the raw events of devices, `runtime`
    the host's calls of their runtime. `shapes` and `memory` say what the profile was taken with.
    """

    index: int
    boundaries_ns: Sequence[int]
    left_out: Collection[int]
    kernels: Sequence[Any]
    shapes: bool
    memory: bool
    runtime: Sequence[Any] = ()


def slice_tables(owned: Attribution, observed: ObservedSlice) -> tuple[Frames, Notes]:
    """Rows by table, and notes of what could not be told."""
    index, edges, left_out = observed.index, observed.boundaries_ns, observed.left_out
    kernel_rows, device_ns = kernel_records(owned, observed.kernels, index)
    named = named_ranges(owned.events, shapes=observed.shapes)
    # What somebody named is no operator, whoever asks from here on.
    owned = replace(owned, is_range=owned.is_range | named.is_range)
    inputs = read_inputs(owned, edges, left_out) if observed.shapes else None
    frames: Frames = {
        "module_times": module_records(owned, index, memory=observed.memory),
        "operators": operator_records(owned, index, edges, device_ns, inputs, left_out),
        "kernels": kernel_rows,
    }
    notes: Notes = []
    counted: CountedEvents | None = None
    if inputs is not None:
        frames["moved_bytes"] = moved_records(owned, index, inputs, device_ns)
        try:
            counted = count_events(owned, edges, device_ns, left_out)
            frames["flop_counts"] = flop_records(owned, index, counted)
        except Exception as error:
            if is_scripts(error):
                raise
            # The times stand without it.
            text = f"no operations from recorded shapes: {type(error).__name__}: {error}"
            notes.append(("flops-uncounted", text))
    try:
        frames["region_work"] = region_records(
            *(owned, index, edges, device_ns, left_out, counted),
            named=named,
            memory=observed.memory,
        )
    except Exception as error:
        if is_scripts(error):
            raise
        text = f"no work by region: {type(error).__name__}: {error}"
        notes.append(("regions-unread", text))
    try:
        frames["launches"], frames["gaps"] = launch_records(
            owned, index, edges, observed.kernels, observed.runtime, left_out
        )
    except Exception as error:
        if is_scripts(error):
            raise
        text = f"no launches and gaps: {type(error).__name__}: {error}"
        notes.append(("launches-unread", text))
    return frames, notes
