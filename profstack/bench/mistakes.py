"""The usual mistakes of timing, made on purpose on the user's own model.

Each row compares repeated reports of the wrong way with reports of the right way at the same time:
the median of a block of warm calls, each waited for, with nothing attached. One thing is wrong at a
time. A mistake that makes no difference on this device is not measured, and the row says why.
"""

from __future__ import annotations

import cProfile
import functools
import gc
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev
from typing import Any, cast

import numpy as np

from profstack.bench import cold_start
from profstack.bench.measure import Policy
from profstack.bench.subject import CallUnavailableError, Subject, in_a_line
from profstack.readers.torchtrace.bounds import quiet_kineto
from profstack.stats.blocks import timed_block, undisturbed
from profstack.stats.clock import Clock
from profstack.stats.summary import Ratio, median_interval, pooled_ratio
from profstack.storage.schema.report import Mistake
from profstack.units import format_bytes, format_seconds

# -- two ways of timing the same call, in turn -------------------------------
# A report is the one number that a person would write down, such as the median of a block of calls.
# The machine's speed drifts by more than most ways of timing differ, so reports of the two ways
# alternate, and the first of them changes from pair to pair.

Report = Callable[[], float]
Tool = Callable[[], AbstractContextManager[Any]]

# The fewest pairs that give a 95 % interval, and as many as are taken where time allows.
FEWEST, MOST = 6, 12
_MOST_SAMPLES = 50
# A sample is at least this long: reading the clock takes 0.1 us.
_SHORTEST_SAMPLE_S = 50e-6
# Calls that fill the caches again after the other way; longer calls do so by themselves.
_SETTLE_S, _SETTLES_ITSELF_S, _MOST_SETTLING = 3e-3, 0.1, 10
# The share of the time for a benchmark that one comparison may take.
_SHARE = 0.25


@dataclass(frozen=True)
class Plan:
    """How much is measured: `rounds` pairs of blocks of `samples` samples of `calls` calls.

    `settling` calls go before each block. No pair is begun after `seconds`, but `FEWEST` are taken
    in any case.
    """

    rounds: int
    samples: int
    calls: int
    settling: int
    seconds: float


def plan_for(call_s: float, policy: Policy) -> Plan:
    """Return the plan for calls that take `call_s` seconds."""
    seconds = policy.max_s * _SHARE
    call_s = max(call_s, 1e-9)
    calls = max(1, math.ceil(_SHORTEST_SAMPLE_S / call_s))
    affordable = seconds / (2 * calls * call_s)
    settling = 0
    if call_s < _SETTLES_ITSELF_S:
        settling = min(max(math.ceil(_SETTLE_S / call_s), 1), _MOST_SETTLING)
    rounds = max(FEWEST, min(MOST, int(affordable)))
    samples = max(1, min(_MOST_SAMPLES, int(affordable / rounds)))
    return Plan(rounds, samples, calls, settling, seconds)


def typical_s(call: Callable[[], Any], clock: Clock) -> float:
    """Return the typical time of a call, from three after the first."""
    return float(median(timed_block(call, 4, 1, clock).host_s[1:]))


def settled(call: Callable[[], Any], plan: Plan, clock: Clock) -> None:
    """Fill the caches with the data of this call, and wait for the device."""
    for _ in range(plan.settling):
        call()
    clock.synchronize()


def block_s(call: Callable[[], Any], plan: Plan, clock: Clock) -> list[float]:
    """Time one block the right way: warm, every sample waited for; in seconds per call."""
    settled(call, plan, clock)
    return timed_block(call, plan.samples, plan.calls, clock, with_cpu=False).host_s


@dataclass(frozen=True)
class Figures:
    """Reports of the wrong and of the right way, their ratio, and a note on what was measured."""

    wrong: Sequence[float]
    right: Sequence[float]
    ratio: Ratio
    note: str


def paired_figures(pairs: Sequence[tuple[float, float]], note: str) -> Figures:
    """Return the figures of pairs of reports (wrong, right)."""
    wrong, right = zip(*pairs, strict=True)
    return Figures(wrong, right, pooled_ratio([([one], [other]) for one, other in pairs]), note)


@dataclass(frozen=True)
class Bench:
    """The subject, and how it is measured.

    `call_s` is the typical time of a warm call; `warmup_s` are the first calls of this process, as
    the benchmark recorded them.
    """

    subject: Subject
    policy: Policy
    clock: Clock
    plan: Plan
    call_s: float
    warmup_s: Sequence[float]

    def median_of(self, subject: Subject, tool: Tool = nullcontext) -> Report:
        """Return a report: the median of a block of the subject's calls, with a tool attached."""

        def report() -> float:
            with subject.conditions(), tool():
                return median(block_s(subject.step, self.plan, self.clock))

        return report

    def against_right(self, wrong: Report, note: str) -> Figures:
        """Measure a wrong way of timing in turn with the right one; they begin by turns."""
        right, pairs = self.median_of(self.subject), list[tuple[float, float]]()
        began = self.clock.now()
        for number in range(self.plan.rounds):
            if number % 2:
                first = right()
                pairs.append((wrong(), first))
            else:
                pairs.append((wrong(), right()))
            if number + 1 >= FEWEST and self.clock.now() - began > self.plan.seconds:
                break
        if not gc.isenabled():
            gc.collect()
        return paired_figures(pairs, note)

    @property
    def block(self) -> str:
        """The size of a block in words."""
        calls = self.plan.samples * self.plan.calls
        return "one call" if calls == 1 else f"{calls} calls"


# Fresh processes may take this many times as long as another row: each loads torch.
_STARTS = 3.0
# The profiler keeps every event in memory, and stopping it costs as much as the calls took.
_MOST_PROFILED = 20
# The fewest single samples whose 2.5 % and 97.5 % are more than their lowest and highest.
_FEWEST_SINGLES = 40


class _NotApplicableError(Exception):
    """The mistake makes no difference on this device; `str(error)` says why."""


def mistakes(
    subject: Subject, policy: Policy, clock: Clock, *, warmup_s: Sequence[float] = ()
) -> list[Mistake]:
    """Return one row for each mistake, in the order of the table; the subject has been warmed up.

    `wrong_s` is the mean of `n_wrong` reports of the wrong way, `wrong_std_s` their deviation;
    `factor` is the median of wrong over right, pair by pair, with its 95 % interval. All times are
    in seconds per call. `warmup_s` are the first calls of this process as the benchmark recorded
    them: they are used where no fresh process can be started. An error in the wrong way's calls
    becomes the row's `error`.
    """
    with undisturbed(collect=policy.collect):
        with subject.conditions():
            call_s = typical_s(subject.step, clock)
        bench = Bench(subject, policy, clock, plan_for(call_s, policy), call_s, warmup_s)
        return [_row(bench, *one) for one in _TABLE]


def _row(bench: Bench, slug: str, title: str, measure: Callable[[Bench], Figures]) -> Mistake:
    """Return one row, also for a mistake that cannot be measured."""
    row = cast(Mistake, dict.fromkeys(Mistake.__annotations__))
    row["slug"], row["title"], row["applies"] = slug, title, True
    try:
        figures = measure(bench)
    except (_NotApplicableError, CallUnavailableError) as error:
        row["applies"], row["note"] = False, str(error)
        return row
    except Exception as error:
        row["note"] = "measuring it ended in an error, so there are no figures"
        row["error"] = in_a_line(error)
        return row
    wrong, right, ratio = figures.wrong, figures.right, figures.ratio
    row["wrong_s"], row["right_s"] = fmean(wrong), fmean(right)
    row["wrong_std_s"] = stdev(wrong) if len(wrong) > 1 else None
    row["right_std_s"] = stdev(right) if len(right) > 1 else None
    row["n_wrong"], row["n_right"] = len(wrong), len(right)
    row["factor"], row["ci95_low"], row["ci95_high"] = ratio.factor, ratio.low, ratio.high
    row["note"] = figures.note
    return row


def _no_warmup(bench: Bench) -> Figures:
    seconds = bench.policy.max_s * _STARTS
    calls = cold_start.calls_of_a_start(bench.call_s, bench.plan.seconds)
    starts, why = cold_start.fresh_processes(bench.subject, calls, bench.call_s, seconds)
    where = "of a fresh process"
    if not starts:
        # They are less cold than fresh processes.
        starts = _starts_of_copies(bench, calls, seconds)
        where = "of a fresh copy of the model, in a process that is itself warm,"
    if not starts and bench.warmup_s:
        calls = min(calls, len(bench.warmup_s))
        with bench.subject.conditions():
            warm = timed_block(bench.subject.step, calls, 1, bench.clock).host_s
        starts, where = [cold_start.Start(bench.warmup_s[:calls], warm)], "of this process"
    if not starts:
        reason = f"{why}, its function cannot be made cold again, and its first call is past"
        raise _NotApplicableError(reason)
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
    return paired_figures([one.reports for one in starts], note)


def _starts_of_copies(bench: Bench, calls: int, seconds: float) -> list[cold_start.Start]:
    """Start copies of the model in this process."""
    clock, starts = bench.clock, list[cold_start.Start]()
    began = clock.now()
    while len(starts) < FEWEST and (not starts or clock.now() - began < seconds):
        try:
            subject = bench.subject.fresh_copy()
        except CallUnavailableError:
            break
        with subject.conditions():
            cold = timed_block(subject.step, calls, 1, clock).host_s
            settled(subject.step, bench.plan, clock)
            starts.append(cold_start.Start(cold, timed_block(subject.step, calls, 1, clock).host_s))
    return starts


def _one_sample(bench: Bench) -> Figures:
    """Take every single call as the report of a measurement of one sample."""
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
    return Figures(singles, medians, Ratio(median(ratios), float(low), float(high)), note)


def _no_synchronisation(bench: Bench) -> Figures:
    _require_device(bench, "a call returns when its work is done")
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
    return bench.against_right(wrong, note)


def _host_clock(bench: Bench) -> Figures:
    """Compare the host's and the device's clock round the same calls of a pipeline."""
    _require_device(bench, "the host does the work itself, so its clock is the right one")
    clock, plan = bench.clock, bench.plan
    samples = plan.samples * plan.calls
    pairs: list[tuple[float, float]] = []
    for _ in range(plan.rounds):
        with bench.subject.conditions():
            settled(bench.subject.step, plan, clock)
            block = timed_block(bench.subject.step, samples, 1, clock, synchronised=False)
        device = [one for one in block.device_s if one is not None]
        if len(device) < samples:
            raise _NotApplicableError("this device gives no times of its own to compare with")
        pairs.append((median(block.host_s), median(device)))
    note = (
        f"the host's clock round each of {bench.block}, the device waited for at the end of all "
        "alone, against the device's own events round the same calls: the host's time of a call "
        "is what launching it took, or what was still to do for calls before it"
    )
    return paired_figures(pairs, note)


def _require_device(bench: Bench, why: str) -> None:
    if not bench.subject.uses_device(bench.clock):
        raise _NotApplicableError(f"cannot differ on a CPU: {why}")


def _transfer_inside(bench: Bench) -> Figures:
    if bench.subject.model is None:
        raise _NotApplicableError("it is called without inputs: what it moves, it moves itself")
    _require_device(bench, "the inputs are in the memory that it computes from")
    # The conditions depend on the model, and not on its inputs.
    step = bench.subject.copying_step()
    copying = replace(bench.subject, function=step, inputs=(), named_inputs={})
    size = format_bytes(bench.subject.input_bytes())
    note = f"each call first brings its inputs ({size}, pageable) from the host to the device"
    return bench.against_right(bench.median_of(copying), note)


def _gradients_on(bench: Bench) -> Figures:
    subject = bench.subject
    if subject.model is None:
        raise _NotApplicableError("a function switches gradients on and off itself")
    if subject.gradients:
        raise _NotApplicableError("gradients were asked for, so they belong to what is measured")
    note = "the forward pass alone, without torch.inference_mode(): every operator writes down "
    note += "what a backward pass would need, which never comes"
    return bench.against_right(bench.median_of(replace(subject, gradients=True)), note)


def _under_cprofile(bench: Bench) -> Figures:
    note = f"{bench.block} under cProfile, timed by the clock: it times every call of a function"
    return bench.against_right(bench.median_of(bench.subject, cProfile.Profile), note)


def _under_torch_profiler(bench: Bench) -> Figures:
    import torch

    plan = replace(bench.plan, samples=min(bench.plan.samples, _MOST_PROFILED), calls=1)
    kinds = torch.profiler.ProfilerActivity
    activities = [kinds.CPU]
    on_device = bench.subject.uses_device(bench.clock)
    device = torch.accelerator.current_accelerator() if on_device else None
    if device is not None and hasattr(kinds, device.type.upper()):
        activities.append(getattr(kinds, device.type.upper()))
    profiler = functools.partial(torch.profiler.profile, activities=activities, record_shapes=True)
    # The first profiler of a process initialises its tool, once.
    with ExitStack() as first:
        with quiet_kineto():
            first.enter_context(profiler())
        first.enter_context(bench.subject.conditions())
        bench.subject.step()
        bench.clock.synchronize()
    note = (
        f"{plan.samples} calls under torch.profiler with record_shapes, timed by the clock, its "
        "start and stop left out: it records every operator"
    )
    bench = replace(bench, plan=plan)
    return bench.against_right(bench.median_of(bench.subject, profiler), note)


# Tools come last, so that traces they leave change no other row.
_TABLE: tuple[tuple[str, str, Callable[[Bench], Figures]], ...] = (
    ("no-warmup", "no warm-up", _no_warmup),
    ("one-sample", "one sample", _one_sample),
    ("no-synchronisation", "no synchronisation", _no_synchronisation),
    ("host-clock", "host clock around asynchronous work", _host_clock),
    ("transfer-inside", "input transfer inside the timed region", _transfer_inside),
    ("gradients-on", "gradients on", _gradients_on),
    ("under-cprofile", "profiler attached (cProfile)", _under_cprofile),
    ("under-torch-profiler", "profiler attached (torch.profiler)", _under_torch_profiler),
)
