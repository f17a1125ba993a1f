"""The effect of warm-up, synchronisation and the choice of the clock on a measured time.

All eight combinations are measured, for the subject itself and for a variant that copies its inputs
in each call. A cell is one way of timing one call: after warm-up or as the first call of a fresh
copy of the model; waiting for the device or not; by the host's clock or by events in the device's
queue. Cells take turns, so that the machine's drift affects all of them. One way has no figure:
events that are read without waiting for them; its rows show the error that torch raises.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import fmean, median, stdev
from typing import Any, Literal, cast

from profstack.bench.measure import Policy
from profstack.bench.mistakes import Plan, plan_for, settled, typical_s
from profstack.bench.subject import CallUnavailableError, Subject, in_a_line
from profstack.stats.blocks import undisturbed
from profstack.stats.clock import Clock
from profstack.storage.schema.report import AblationCell
from profstack.units import format_bytes

COMPUTE, COPY_HEAVY = "compute", "copy-heavy"
Timing = Literal["host", "events"]
HOST: Timing = "host"
EVENTS: Timing = "events"

_FEWEST_ROUNDS = 6
_MOST_SAMPLES = 10
_COLD = "the first call of a fresh copy of the model, in a process that is itself warm"


@dataclass
class _Cell:
    """One combination and its times; `reason` is set where it is not measured."""

    variant: str
    warmup: bool
    synchronise: bool
    timing: Timing
    notes: list[str] = field(default_factory=list)
    reason: str | None = None
    valid: bool = True
    error: str | None = None
    times_s: list[float] = field(default_factory=list)
    refused: int = 0

    @property
    def unreadable(self) -> bool:
        """Whether this way of timing should have no figure."""
        return self.timing == EVENTS and not self.synchronise

    def fail(self, reason: str, error: str | None = None) -> None:
        """Leave the cell without figures."""
        self.reason, self.error, self.times_s = reason, error, []


def ablation(subject: Subject, policy: Policy, clock: Clock) -> list[AblationCell]:
    """Return one row for each cell, warm and waiting ones first; times in seconds per call.

    The subject has been warmed up. A cell that cannot be measured, or cannot differ from another
    on this device, has no figures and a note; `valid` is False for an invalid way of timing.
    An error in a cell's calls is its `error` and ends that cell alone.
    """
    on_device = subject.uses_device(clock)
    combinations = product((COMPUTE, COPY_HEAVY), (True, False), (True, False), (HOST, EVENTS))
    with undisturbed(collect=policy.collect):
        with subject.conditions():
            plan = plan_for(typical_s(subject.step, clock), policy)
        cells = [_Cell(*one) for one in combinations]
        for cell in cells:
            _prepare(cell, subject, on_device)
        began = clock.now()
        for turn in range(plan.rounds):
            if turn >= _FEWEST_ROUNDS and clock.now() - began >= policy.max_s:
                break
            first = turn % len(cells)
            for cell in cells[first:] + cells[:first]:
                _take(cell, subject, plan, clock)
            if not policy.collect:
                gc.collect()
    return [_row(cell) for cell in cells]


def _prepare(cell: _Cell, subject: Subject, on_device: bool) -> None:
    """Set a cell's notes, and its reason if it cannot be measured."""
    import torch

    if cell.variant == COPY_HEAVY:
        size = format_bytes(subject.input_bytes())
        cell.notes.append(
            f"each call first copies its inputs ({size}, pageable) from the host to the device"
            if on_device
            else f"each call first copies its inputs ({size}) within the host's memory: on a CPU "
            "nothing is transferred, and this stands for the copies that a step makes itself"
        )
    if not cell.warmup:
        cell.notes.append(_COLD)
    if cell.timing == EVENTS and not on_device:
        cell.valid = False
        cell.fail("a CPU has no queue that events could stand in")
        try:
            # Without a device it would be an event of the accelerator, and initialise it.
            torch.Event("cpu", enable_timing=True).record()
        except Exception as error:
            cell.error = in_a_line(error)
    elif not cell.synchronise and not on_device:
        cell.fail(
            "cannot differ on a CPU: a call returns when its work is done; the cell that "
            "synchronises stands for both"
        )
    elif cell.unreadable:
        cell.valid = False
    elif not cell.synchronise:
        cell.notes.append("the clock stops when the work is launched, not when it is done")


def _take(cell: _Cell, subject: Subject, plan: Plan, clock: Clock) -> None:
    """Add samples to a cell."""
    if cell.reason is not None:
        return
    try:
        used = subject if cell.warmup else subject.fresh_copy()
        step = used.copying_step() if cell.variant == COPY_HEAVY else used.step
        with used.conditions():
            clock.synchronize()
            if cell.warmup:
                settled(step, plan, clock)
            calls = min(plan.samples, _MOST_SAMPLES) if cell.warmup else 1
            timed = _host_times if cell.timing == HOST else _event_times
            timed(cell, step, calls, clock)
    except CallUnavailableError as error:
        cell.fail(str(error))
    except Exception as error:
        cell.fail("measuring it ended in an error", in_a_line(error))
    finally:
        clock.synchronize()


def _host_times(cell: _Cell, step: Callable[[], Any], calls: int, clock: Clock) -> None:
    for _ in range(calls):
        began = clock.now()
        step()
        if cell.synchronise:
            clock.synchronize()
        cell.times_s.append(clock.now() - began)


def _event_times(cell: _Cell, step: Callable[[], Any], calls: int, clock: Clock) -> None:
    """Add the device's time of each call; note the error of reading without waiting."""
    for _ in range(calls):
        first = clock.record_event()
        step()
        second = clock.record_event()
        if cell.synchronise:
            clock.synchronize()
        if first is None or second is None:
            raise CallUnavailableError("no event could be recorded")
        try:
            # The clock would return None: the error itself is needed.
            cell.times_s.append(float(first[1].elapsed_time(second[1])) / 1e3)
        except Exception as error:
            if not cell.unreadable:
                raise
            cell.refused += 1
            cell.error = in_a_line(error)
            clock.synchronize()


def _row(cell: _Cell) -> AblationCell:
    # Readings that succeeded found a device that happened to be done: they are no samples.
    times: Sequence[float] = [] if cell.refused else cell.times_s
    notes = cell.notes if cell.reason is None else [cell.reason]
    readings = len(cell.times_s) + cell.refused
    if cell.unreadable and readings and cell.reason is None:
        notes.append(
            f"{cell.refused} of {readings} readings were refused: the events had not passed"
            if cell.refused
            else f"all {readings} readings found the device done by chance; nothing waits"
        )
    # In the order of the report's columns.
    row = cast(AblationCell, dict.fromkeys(AblationCell.__annotations__))
    row["variant"], row["warmup"] = cell.variant, cell.warmup
    row["synchronise"], row["timing"] = cell.synchronise, cell.timing
    if times:
        row["mean_s"], row["median_s"] = fmean(times), median(times)
    row["std_s"] = stdev(times) if len(times) > 1 else None
    row["n"], row["valid"], row["error"] = len(times), cell.valid, cell.error
    row["note"] = "; ".join(notes) or None
    return row
