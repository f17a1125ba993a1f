"""All tables that follow from the profiler's events of one slice.

The rows are made by the module of each table. A slice fills those that its profile has the data
for; where one fails, the others are still made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from profstack.guard import Guard
from profstack.readers.flops.recorded_shapes import CountedEvents, count_events, flop_records
from profstack.readers.torchtrace.attribution import Attribution, module_records
from profstack.readers.torchtrace.collectives import collective_records
from profstack.readers.torchtrace.launches import launch_records
from profstack.readers.torchtrace.operators import (
    kernel_records,
    moved_records,
    operator_records,
    read_inputs,
)
from profstack.readers.torchtrace.regions import range_sources, region_records
from profstack.storage.schema.column import Records

Frames = dict[str, Records]
Notes = list[tuple[str, str]]


@dataclass(frozen=True)
class ObservedSlice:
    """Facts about a slice beside its events.

    `kernels` are the raw events of devices, `runtime` the host's calls of their runtime; `shapes`
    and `memory` are options of the profile.
    """

    index: int
    kernels: Sequence[Any]
    shapes: bool
    memory: bool
    runtime: Sequence[Any] = ()


def slice_tables(owned: Attribution, observed: ObservedSlice) -> tuple[Frames, Notes]:
    """Return rows by table, and notes on tables that could not be made."""
    index = observed.index
    kernel_rows, device_ns = kernel_records(owned, observed.kernels, index)
    sources = range_sources(owned.events, shapes=observed.shapes)
    # Named ranges are no operators in any table from here on.
    known = np.array([source is not None for source in sources], np.bool_)
    owned = replace(owned, is_range=owned.is_range | known[owned.events.names.ids])
    inputs = read_inputs(owned) if observed.shapes else None
    frames: Frames = {
        "module_times": module_records(owned, index, memory=observed.memory),
        "operators": operator_records(owned, index, device_ns, inputs),
        "kernels": kernel_rows,
    }
    counted: CountedEvents | None = None
    notes = Notes()
    if inputs is not None:
        frames["moved_bytes"] = moved_records(owned, index, inputs, device_ns)
        with noting(notes, "flops-uncounted", "no operations from recorded shapes"):
            counted = count_events(owned, device_ns)
            frames["flop_counts"] = flop_records(owned, index, counted)
    with noting(notes, "regions-unread", "no work by region"):
        frames["region_work"] = region_records(
            owned, index, device_ns, counted, sources, memory=observed.memory
        )
    with noting(notes, "launches-unread", "no launches and gaps"):
        frames["launches"], frames["gaps"] = launch_records(
            owned, index, observed.kernels, observed.runtime
        )
    with noting(notes, "collectives-unread", "no collectives"):
        frames["collectives"] = collective_records(
            owned, index, observed.kernels, shapes=observed.shapes
        )
    return frames, notes


def noting(notes: Notes, slug: str, lacking: str) -> Guard:
    """Return a guard that notes an error of ours, and what is `lacking` because of it."""

    def fail(error: BaseException) -> None:
        notes.append((slug, f"{lacking}: {type(error).__name__}: {error}"))

    return Guard(failed=fail)
