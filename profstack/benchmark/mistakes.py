"""The usual mistakes of timing, made on purpose on the user's own model.

Each row holds what a person who makes the mistake reports, again and again, beside what the right
way reports in the same moments: a block of warm calls, each waited for, nothing attached, of which
the median is taken. One thing is wrong at a time. What cannot differ on this device is not
measured, and the row says why.
"""

from __future__ import annotations

import cProfile
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from profstack.benchmark import coldstart
from profstack.benchmark.blocks import timed_block
from profstack.benchmark.clock import Clock
from profstack.benchmark.conditions import undisturbed
from profstack.benchmark.measure import Policy
from profstack.benchmark.othercalls import (
    NotToBeHadError,
    copying_step,
    fresh_copy,
    in_a_line,
    input_bytes,
    uses_device,
)
from profstack.benchmark.pairs import (
    FEWEST,
    Plan,
    block_s,
    figures,
    plan_for,
    settled,
    side_figures,
    typical_s,
)
from profstack.benchmark.rightway import Bench, Row
from profstack.benchmark.statistics import median_interval
from profstack.benchmark.subject import Subject
from profstack.benchmark.variantcounts import quietly
from profstack.units import format_bytes, format_seconds

_NO_FIGURES: Row = dict.fromkeys(
    (
        *("wrong_s", "wrong_std_s", "n_wrong", "right_s", "right_std_s", "n_right"),
        *("factor", "ci95_low", "ci95_high"),
    )
)
# Fresh processes may take this many times what one other row takes: each has torch to load.
_STARTS = 3.0
# The profiler keeps every event in memory, and stopping it costs as much as the calls took.
_MOST_PROFILED = 20
# The fewest single samples whose 2.5 % and 97.5 % are more than their lowest and highest.
_FEWEST_SINGLES = 40


class _CannotDifferError(Exception):
    """The mistake makes no difference here; `str(error)` says why."""


def mistakes(
    subject: Subject, policy: Policy, clock: Clock, *, warmup_s: Sequence[float] = ()
) -> list[Row]:
    """One row for each mistake, in the order of the table; the subject has been warmed up.

    `wrong_s` is the mean of `n_wrong` reports of the wrong way, `wrong_std_s` their deviation;
    `factor` is the median of wrong over right, pair by pair, with its 95 % interval. All times are
    in seconds per call. `warmup_s` are the first calls of this process as the benchmark recorded
    them: where no fresh process can be had, they stand in. An error in the wrong way's calls
    becomes the row's `error`.
    """
    with undisturbed(collect=policy.collect):
        with subject.conditions():
            call_s = typical_s(subject.step, clock)
        bench = Bench(subject, policy, clock, plan_for(call_s, policy), call_s, warmup_s)
        return [_row(bench, *one) for one in _TABLE]


def _row(bench: Bench, slug: str, title: str, measure: Callable[[Bench], Row]) -> Row:
    """One row, whatever comes of it."""
    row = {"slug": slug, "title": title, **_NO_FIGURES}
    try:
        return row | {"applies": True, "error": None} | measure(bench)
    except _CannotDifferError as error:
        return row | {"applies": False, "note": str(error), "error": None}
    except Exception as error:
        note = "measuring it ended in an error, so there are no figures"
        return row | {"applies": True, "note": note, "error": in_a_line(error)}


def _no_warmup(bench: Bench) -> Row:
    seconds = bench.policy.max_s * _STARTS
    calls = coldstart.calls_of_a_start(bench.call_s, bench.plan.seconds)
    starts, why = coldstart.fresh_processes(bench.subject, calls, bench.call_s, seconds)
    where = "of a fresh process"
    if not starts:
        starts, where = _starts_of_copies(bench, calls, seconds)
    if not starts and bench.warmup_s:
        calls = min(calls, len(bench.warmup_s))
        with bench.subject.conditions():
            warm = timed_block(bench.subject.step, calls, 1, bench.clock).host_s
        starts, where = [coldstart.Start(bench.warmup_s[:calls], warm)], "of this process"
    if not starts:
        reason = f"{why}, its function cannot be made cold again, and its first call is past"
        raise _CannotDifferError(reason)
    first = median([one.cold_s[0] for one in starts])
    note = (
        f"the mean of the first {calls} calls {where}, without a call before them, against the "
        f"mean of as many once it is warm; the very first call took {format_seconds(first)}"
    )
    if len(starts) < FEWEST:
        times = "once" if len(starts) == 1 else f"{len(starts)} times"
        note += f"; started {times}, which gives no interval"
    if why is not None:
        note += f" ({why})"
    return figures([one.reports for one in starts]) | {"note": note}


def _starts_of_copies(
    bench: Bench, calls: int, seconds: float
) -> tuple[list[coldstart.Start], str]:
    """Starts of copies of the model within this process: colder than a warm one, no more."""
    clock, starts = bench.clock, list[coldstart.Start]()
    began = clock.now()
    while len(starts) < FEWEST and (not starts or clock.now() - began < seconds):
        try:
            subject = fresh_copy(bench.subject)
        except NotToBeHadError:
            break
        with subject.conditions():
            cold = timed_block(subject.step, calls, 1, clock).host_s
            settled(subject.step, bench.plan, clock)
            starts.append(coldstart.Start(cold, timed_block(subject.step, calls, 1, clock).host_s))
    return starts, "of a fresh copy of the model, in a process that is itself warm,"


def _one_sample(bench: Bench) -> Row:
    """Every single call is what somebody who takes one sample could have written down."""
    plan, clock = replace(bench.plan, samples=max(bench.plan.samples, FEWEST), calls=1), bench.clock
    blocks: list[list[float]] = []
    began = clock.now()
    # Of slow calls two blocks must do.
    while len(blocks) < 2 or (len(blocks) < plan.rounds and clock.now() - began < plan.seconds):
        with bench.subject.conditions():
            blocks.append(block_s(bench.subject.step, plan, clock))
    singles = [one for block in blocks for one in block]
    medians = [median(block) for block in blocks]
    ratios = [one / middle for block, middle in zip(blocks, medians, strict=True) for one in block]
    enough = len(singles) >= _FEWEST_SINGLES
    low, high = np.quantile(ratios, [0.025, 0.975] if enough else [0.0, 1.0])
    interval, middle = median_interval(singles), median(singles)
    assert interval is not None, "two blocks of six samples have one"
    reach = max(interval[1] - middle, middle - interval[0]) / middle
    span = "95 of 100 single calls" if enough else f"all {len(singles)} single calls"
    note = (
        f"one call, as good as any other: {span} lie between {low:.3f} and {high:.3f} of the "
        f"median of their block, which is what stands here as the interval; the median of all "
        f"{len(singles)} is known to {100 * reach:.1f} %"
    )
    return {
        **side_figures("wrong", singles),
        **side_figures("right", medians),
        "factor": median(ratios),
        "ci95_low": float(low),
        "ci95_high": float(high),
        "note": note,
    }


def _no_synchronisation(bench: Bench) -> Row:
    _asks_for_a_device(bench, "a call returns when its work is done")
    clock, plan = bench.clock, bench.plan
    calls = plan.samples * plan.calls

    def wrong() -> float:
        with bench.subject.conditions():
            step = bench.subject.step
            settled(step, plan, clock)
            began = clock.now()
            for _ in range(calls):
                step()
            spent = clock.now() - began
        clock.synchronize()
        return spent / calls

    note = (
        f"the host's time over {bench.block}, read as soon as the last one is launched: the device "
        "still works on them"
    )
    return bench.beside(wrong) | {"note": note}


def _host_clock(bench: Bench) -> Row:
    """The host's and the device's clock round the very same calls of a pipeline."""
    _asks_for_a_device(bench, "the host does the work itself, so its clock is the right one")
    clock, plan = bench.clock, bench.plan
    samples = plan.samples * plan.calls
    pairs: list[tuple[float, float]] = []
    for _ in range(plan.rounds):
        with bench.subject.conditions():
            settled(bench.subject.step, plan, clock)
            block = timed_block(bench.subject.step, samples, 1, clock, synchronised=False)
        device = [one for one in block.device_s if one is not None]
        if len(device) < samples:
            raise _CannotDifferError("this device gives no times of its own to compare with")
        pairs.append((median(block.host_s), median(device)))
    note = (
        f"the host's clock round each of {bench.block}, the device waited for at the end of all "
        "alone, against the device's own events round the same calls: the host's time of a call "
        "is what launching it took, or what was still to do for calls before it"
    )
    return figures(pairs) | {"note": note}


def _asks_for_a_device(bench: Bench, why: str) -> None:
    if not uses_device(bench.subject, bench.clock):
        raise _CannotDifferError(f"cannot differ on a CPU: {why}")


def _transfer_inside(bench: Bench) -> Row:
    if bench.subject.model is None:
        raise _CannotDifferError("it is called without inputs: what it moves, it moves itself")
    if not uses_device(bench.subject, bench.clock):
        raise _CannotDifferError(
            "cannot differ on a CPU: the inputs are in the memory that it computes from"
        )
    try:
        step = copying_step(bench.subject)
    except NotToBeHadError as error:
        raise _CannotDifferError(str(error)) from None
    size = format_bytes(input_bytes(bench.subject))
    note = f"each call first brings its inputs ({size}, pageable) from the host to the device"
    return bench.beside(bench.median_of(step)) | {"note": note}


def _gradients_on(bench: Bench) -> Row:
    subject = bench.subject
    if subject.model is None:
        raise _CannotDifferError("a function switches gradients on and off itself")
    if subject.gradients:
        raise _CannotDifferError("gradients were asked for, so they belong to what is measured")
    note = "the forward pass alone, without torch.inference_mode(): every operator writes down "
    note += "what a backward pass would need, which never comes"
    with_gradients = replace(subject, gradients=True)
    wrong = bench.median_of(subject.step, with_gradients.conditions)
    return bench.beside(wrong) | {"note": note}


def _under_cprofile(bench: Bench) -> Row:
    note = f"{bench.block} under cProfile, timed by the clock: it times every call of a function"
    return _attached(bench, bench.plan, _cprofile) | {"note": note}


def _under_torch_profiler(bench: Bench) -> Row:
    plan = replace(bench.plan, samples=min(bench.plan.samples, _MOST_PROFILED), calls=1)
    profiler = functools.partial(_torch_profiler, uses_device(bench.subject, bench.clock))
    # The first profiler of a process sets its tool up, which is none of its later cost.
    with ExitStack() as first:
        with quietly():
            first.enter_context(profiler())
        first.enter_context(bench.subject.conditions())
        bench.subject.step()
        bench.clock.synchronize()
    note = (
        f"{plan.samples} calls under torch.profiler with record_shapes, timed by the clock, its "
        "start and stop left out: it records every operator"
    )
    return _attached(bench, plan, profiler) | {"note": note}


def _attached(bench: Bench, plan: Plan, tool: Callable[[], AbstractContextManager[Any]]) -> Row:
    """A block with a tool attached; both are measured with as many calls."""
    bench = replace(bench, plan=plan)

    def wrong() -> float:
        with bench.subject.conditions(), tool():
            return median(block_s(bench.subject.step, plan, bench.clock))

    return bench.beside(wrong)


@contextmanager
def _cprofile() -> Iterator[None]:
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        yield
    finally:
        profiler.disable()


def _torch_profiler(on_device: bool) -> AbstractContextManager[Any]:
    import torch

    kinds = torch.profiler.ProfilerActivity
    activities = [kinds.CPU]
    device = torch.accelerator.current_accelerator() if on_device else None
    if device is not None and hasattr(kinds, device.type.upper()):
        activities.append(getattr(kinds, device.type.upper()))
    return torch.profiler.profile(activities=activities, record_shapes=True)


# Tools come last: what they leave behind then changes no other row.
_TABLE: tuple[tuple[str, str, Callable[[Bench], Row]], ...] = (
    ("no-warmup", "no warm-up", _no_warmup),
    ("one-sample", "one sample", _one_sample),
    ("no-synchronisation", "no synchronisation", _no_synchronisation),
    ("host-clock", "host clock around asynchronous work", _host_clock),
    ("transfer-inside", "input transfer inside the timed region", _transfer_inside),
    ("gradients-on", "gradients on", _gradients_on),
    ("under-cprofile", "profiler attached (cProfile)", _under_cprofile),
    ("under-torch-profiler", "profiler attached (torch.profiler)", _under_torch_profiler),
)
