"""Compare ways to run a model: eager, compiled, traced, scripted.

The build of each variant is timed and its result compared with eager's. Then all are measured in
turn, and at the end the operators and kernels of one call are counted.
"""

from __future__ import annotations

import gc
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from statistics import median
from typing import Any, Literal, cast

from profstack.bench import variant_build
from profstack.bench.measure import Measurement, Policy, is_known, measure
from profstack.bench.subject import Subject
from profstack.bench.variant_build import COMPILE, EAGER, NAMES, Comparison, Leaves, VariantCall
from profstack.errors import UsageError
from profstack.readers.torchtrace.bounds import quiet_kineto
from profstack.stats.blocks import SYNCHRONISED, Samples, timed_block, undisturbed
from profstack.stats.clock import Clock
from profstack.stats.summary import Ratio, pooled_ratio
from profstack.storage.schema.report import VariantRow

# -- operators, kernels and compiled graphs of one call ----------------------
# Operators are counted where a program calls them: `aten::linear` is one, and the `aten::addmm`
# that it calls in turn is not counted again. Kernels of a device are counted by the profiler's
# events. The profiler has no events of an operator's own kernels on the CPU. It has some of kernels
# that inductor generates, if the code is built with `PROFILED` (torch 2.13:
# `graph_0_cpp_fused_...`); that is a second build, so that the timed one has no marks in it.

# Options of torch.compile with which the profiler records generated CPU kernels.
PROFILED = {"cpp.enable_kernel_profile": True}

_OPERATOR = re.compile(r"(?!autograd::|profiler::)[A-Za-z_]\w*::\w+(\.\w+)?$")
_GENERATED = re.compile(r"(graph_\d+_)?cpp_\w+$")
_FUSED = re.compile(r"triton_|.*fused")
_COPIES = ("Memcpy", "Memset")
_UNSEEN = "an operator's own kernels on the CPU are not seen"


@dataclass(frozen=True)
class Counts:
    """Counts of one call; None where it could not be counted, and `note` says why."""

    operators: int | None = None
    kernels: int | None = None
    fused_names: list[str] | None = None
    note: str | None = None


@dataclass(frozen=True)
class Graphs:
    """The compiler's counters in this process so far."""

    graphs: int
    breaks: int
    cached: int
    reasons: Mapping[str, int]

    def since(self, before: Graphs) -> Graphs:
        """Return the difference to an earlier state."""
        fresh = Counter(self.reasons) - Counter(before.reasons)
        graphs, cached = self.graphs - before.graphs, self.cached - before.cached
        return Graphs(graphs, fresh.total(), cached, dict(fresh))


def graphs() -> Graphs:
    """Read the compiler's counters; they are the program's and never changed."""
    from torch._dynamo.utils import counters

    # A lookup would add an entry to them.
    held = {group: dict(values) for group, values in counters.items()}
    breaks = held.get("graph_break", {})
    return Graphs(
        int(held.get("stats", {}).get("unique_graphs", 0)),
        int(sum(breaks.values())),
        int(held.get("inductor", {}).get("fxgraph_cache_hit", 0)),
        {str(reason): int(count) for reason, count in breaks.items()},
    )


def counted(
    step: Callable[[], Any], clock: Clock, *, on_device: bool = False, generated: bool = False
) -> Counts:
    """Count operators and kernels of one warm call under torch.profiler.

    `on_device` says that it works on an accelerator, whose kernels are then counted; `generated`
    that its CPU kernels were built with `PROFILED`.
    """
    import torch

    profiler: Any = torch.autograd
    if profiler._profiler_enabled():
        return Counts(note="not counted: another torch profiler is at work")
    try:
        with quiet_kineto():
            events = _events(step, clock, on_device=on_device)
    except RuntimeError as error:
        lines = str(error).splitlines() or [type(error).__name__]
        return Counts(note=f"not counted: the profiler says {lines[0]}")
    on_host = [event for event in events if event.device_type() == profiler.DeviceType.CPU]
    operators = _outermost(on_host)
    if not on_host:
        return Counts(note="not counted: the profiler saw nothing in this call")
    if on_device:
        # Neither copies nor named ranges.
        marked = [event for event in events if not event.is_user_annotation()]
        names = [one.name() for one in marked if one.device_type() != profiler.DeviceType.CPU]
        names = [name for name in names if not name.startswith(_COPIES)]
    elif generated:
        names = [event.name() for event in on_host if _GENERATED.match(event.name())]
    else:
        return Counts(operators, None, None, _UNSEEN)
    fused = list(dict.fromkeys(name for name in names if _FUSED.match(name)))
    note = None if on_device else f"kernels: those generated; {_UNSEEN}"
    return Counts(operators, len(names), fused, note)


def _events(step: Callable[[], Any], clock: Clock, *, on_device: bool) -> list[Any]:
    """Return the profiler's events of one call, from where reading them is cheapest."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    supported: Any = vars(torch.autograd)["_supported_activities"]
    kinds = {ProfilerActivity.CPU}
    if on_device:
        kinds |= set(supported())
        # The first session on a device starts late, and may miss the first kernels.
        with profile(activities=kinds):
            step()
            clock.synchronize()
    clock.synchronize()
    with profile(activities=kinds) as session:
        step()
        clock.synchronize()
    return list(session.profiler.kineto_results.events())


def _outermost(events: list[Any]) -> int:
    """Count operators that no other operator of the same thread calls."""
    spans = sorted(
        (event.start_thread_id(), event.start_ns(), -event.duration_ns())
        for event in events
        if _OPERATOR.match(event.name())
    )
    count, thread, until = 0, None, 0
    for of_thread, start, minus_duration in spans:
        if of_thread != thread or start >= until:
            count += 1
            thread, until = of_thread, start - minus_duration
    return count


# -- the loop of a comparison ------------------------------------------------
# Each variant is warmed up by itself. Then all are measured in rounds of one block each, in an
# order that rotates from round to round: a disturbance affects all alike, and a speedup is of
# neighbouring blocks.

# Fewer pairs of blocks than 6 give no interval of a speedup; with 10 one bad block does no harm.
_ROUNDS = 10
# A block is long enough for one interrupt not to be most of it, and short beside a drift.
_BLOCK_S, _FEWEST, _MOST = 10e-3, 5, 50
# The call after another variant's finds cold caches; of longer calls that is a small part.
_SHORT_CALL_S = 50e-3
_GROWTH = 1.25


@dataclass
class Variant:
    """One way of running the subject, and its results so far.

    `failure` is its status and reason where it has failed. `ready_s` is the time of its build and
    first call, `warm_s` of a typical call at the end of its warm-up. `built` is None before the
    build, `measured` before the warm-up, and both after a failure.
    """

    name: str
    built: VariantCall | None = None
    failure: tuple[Literal["failed", "unavailable"], str] | None = None
    ready_s: float = 0.0
    warm_s: float = 0.0
    measured: Measurement | None = None
    result: Comparison = field(default_factory=lambda: Comparison(None))
    compiled: Graphs | None = None
    counts: Counts = field(default_factory=Counts)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Take an error as the variant's failure; raise the errors of eager."""
        try:
            yield
        except Exception as error:
            if self.name == EAGER:
                raise
            # Its traceback's frames would keep tensors alive.
            error.__traceback__ = None
            self.failure, self.built, self.measured = variant_build.why_failed(error), None, None

    @property
    def blocks(self) -> list[list[float]]:
        """Its samples in seconds per call, block by block."""
        assert self.measured is not None  # of one that has not failed
        series = iter(self.measured.series_s)
        return [list(islice(series, size)) for size in self.measured.samples.blocks]


def measure_in_turn(variants: list[Variant], policy: Policy, clock: Clock, rotate: int) -> None:
    """Warm each variant up by itself, then measure all of them in turn."""
    for variant in variants:
        if variant.built is not None:
            with variant.guarded():
                # One sample: only the part of the loop before the samples is needed.
                warm = measure(variant.built.step, replace(policy, repeat=1), clock)
                variant.warm_s = float(median(warm.warmup_s[len(warm.warmup_s) // 2 :]))
                variant.measured = replace(warm, samples=Samples(warm.samples.calls))
                if not warm.warmup.settled:
                    variant.notes.append(f"its warm-up had not ended: {warm.warmup.reason}")
    with undisturbed(collect=policy.collect):
        began, number = clock.now(), 0
        looked = _ROUNDS if policy.repeat is None else min(_ROUNDS, policy.repeat)
        while True:
            alive = [variant for variant in variants if variant.measured is not None]
            size, first = _size(alive, policy, number), (number + rotate) % len(alive)
            for variant in alive[first:] + alive[:first]:
                with variant.guarded():
                    _block(variant, size, policy, clock)
            if not policy.collect:
                # Garbage of the blocks is young: to go through all of torch's objects takes 0.2 s.
                gc.collect(1)
            number += 1
            if policy.repeat is None and clock.now() - began > policy.max_s * len(alive):
                return
            if number >= looked:
                if policy.repeat is not None or _is_enough(variants, policy):
                    return
                looked = math.ceil(looked * _GROWTH)


def _size(alive: list[Variant], policy: Policy, number: int) -> int:
    """Return the number of samples in every block of this round."""
    if policy.repeat is not None:
        rounds = min(_ROUNDS, policy.repeat)
        return policy.repeat // rounds + (number < policy.repeat % rounds)
    measured = [(one.measured, one.warm_s) for one in alive]
    sample_s = max(warm_s * (one.samples.calls if one else 1) for one, warm_s in measured)
    if sample_s * _FEWEST * _ROUNDS > policy.max_s:
        return max(1, int(policy.max_s / (sample_s * _ROUNDS)))
    fewest = max(_FEWEST, math.ceil(policy.min_samples / _ROUNDS))
    return min(max(fewest, math.ceil(_BLOCK_S / sample_s)), max(_MOST, fewest))


def _block(variant: Variant, size: int, policy: Policy, clock: Clock) -> None:
    """Measure one block of a variant with its own data in the caches."""
    assert variant.built is not None  # it is alive
    assert variant.measured is not None
    step, samples = variant.built.step, variant.measured.samples
    if variant.warm_s < _SHORT_CALL_S:
        step()
    waits = policy.mode == SYNCHRONISED
    # A fixed count is the user's, and not bounded.
    longest_s = policy.max_s if policy.repeat is None else math.inf
    block = timed_block(
        step, size, samples.calls, clock, synchronised=waits, with_cpu=False, longest_s=longest_s
    )
    samples.extend(block)


def _is_enough(variants: list[Variant], policy: Policy) -> bool:
    """Return whether every median and every speedup is known within the policy's target."""
    alive = [variant for variant in variants if variant.measured is not None]
    eager = next(variant for variant in alive if variant.name == EAGER)
    if sum(map(len, eager.blocks)) >= policy.max_samples:
        return True
    for variant in alive:
        if variant.measured and not is_known(variant.measured.series_s, policy.target):
            return False
        if variant is eager:
            continue
        ratio = speedup(eager, variant)
        if ratio.factor is None or ratio.low is None or ratio.high is None:
            return False
        if max(ratio.high - ratio.factor, ratio.factor - ratio.low) > policy.target * ratio.factor:
            return False
    return True


def speedup(eager: Variant, variant: Variant) -> Ratio:
    """Return eager's time over the variant's, from neighbouring blocks."""
    return pooled_ratio(list(zip(eager.blocks, variant.blocks, strict=False)))


_RANDOM = (
    "not comparable: two calls of the eager model with the same inputs differ (dropout in training "
    "mode, or another use of random numbers)"
)
_STATEFUL = "not comparable: two calls of the function give different results"
_REFERENCE = "what the others are compared with"
_NOTHING_COMPILED = "no graph was compiled: what ran is eager code"
_WITH_LOADING = "the compile time holds loading the compiler, where nothing had used it before"
_FROM_CACHE = "its graphs were in torch's cache on disk: without it compiling takes longer"


def compare(
    subject: Subject, names: Sequence[str], policy: Policy, clock: Clock, *, rotate: int = 0
) -> list[VariantRow]:
    """Return rows of `benchmark.compare`, one per variant, in the order of `names`.

    `names` are of `eager`, `compile`, `trace` and `script`; `eager` is measured in any case, as the
    first one where it is not among them. `rotate` is where the order of the first round begins:
    with another one in each process, no variant is always first. A variant that cannot be built or
    run is `failed` or `unavailable` with its reason, and the others continue; an error of the eager
    model itself is raised. Model, inputs and random streams are restored; the compiler's counters
    grow. Raises UsageError for an unknown name.
    """
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise UsageError(
            f"there is no variant {unknown[0]!r}", next_step=f"choose from {', '.join(NAMES)}"
        )
    subject, note = variant_build.uncompiled(subject)
    variants = {name: Variant(name) for name in (names if EAGER in names else [EAGER, *names])}
    if note is not None:
        variants[EAGER].notes.append(note)
    with variant_build.kept(subject) as put_back, subject.conditions():
        eager = variants[EAGER]
        reference, plain, comparable = _reference(eager, subject, clock, put_back)
        for variant in variants.values():
            if variant is not eager:
                _make(variant, subject, plain, clock)
                put_back()
                if variant.built is not None:
                    with variant.guarded():
                        variant.result = variant_build.compare_results(
                            variant.built.once(), reference, flat=variant.built.flat
                        )
                put_back()
        if not comparable:
            why = _RANDOM if subject.model is not None else _STATEFUL
            for variant in variants.values():
                if variant.failure is None:
                    variant.result = Comparison(None, None, variant.result.tolerance, why)
        del reference
        measure_in_turn(list(variants.values()), policy, clock, rotate)
        for variant in variants.values():
            _count(variant, subject, clock)
    return [_row(variant, eager) for variant in variants.values()]


def _reference(
    eager: Variant, subject: Subject, clock: Clock, put_back: Callable[[], None]
) -> tuple[Leaves, bool, bool]:
    """Return eager's result, whether it is tensors alone, and whether a second call equals it.

    Only then can others be compared with it.
    """
    eager.built = variant_build.build(EAGER, subject)
    eager.built.once()
    put_back()
    output = eager.built.once()
    reference, plain = variant_build.copy_result(output), variant_build.gives_tensors(output)
    del output
    put_back()
    again = variant_build.compare_results(eager.built.once(), reference)
    clock.synchronize()
    eager.result = Comparison(None, None, again.tolerance)
    eager.notes.append(_REFERENCE)
    put_back()
    return reference, plain, again.equal is not False


def _make(variant: Variant, subject: Subject, plain: bool, clock: Clock) -> None:
    """Build a variant, and time the build with its first call."""
    before = graphs() if variant.name == COMPILE else None
    with variant.guarded():
        clock.synchronize()
        began = clock.now()
        built = variant_build.build(variant.name, subject, gives_tensors=plain)
        built.step()
        clock.synchronize()
        variant.ready_s = clock.now() - began
        variant.built = built
        variant.notes += built.notes
    if before is not None and variant.built is not None:
        compiled = variant.compiled = graphs().since(before)
        variant.notes.append(_WITH_LOADING if compiled.graphs else _NOTHING_COMPILED)
        if compiled.cached:
            variant.notes.append(_FROM_CACHE)
        if compiled.reasons:
            variant.notes.append(f"graph break: {next(iter(compiled.reasons)).splitlines()[0]}")


def _count(variant: Variant, subject: Subject, clock: Clock) -> None:
    """Count operators and kernels of one warm call; CPU kernels need a build of their own."""
    if variant.built is None:
        return
    try:
        on_device = subject.uses_device(clock)
        counts = variant.counts = counted(variant.built.step, clock, on_device=on_device)
        if variant.name == COMPILE and not on_device and counts.operators is not None:
            marked = variant_build.build(COMPILE, subject, options=PROFILED)
            for _ in range(2):
                marked.step()
            seen = counted(marked.step, clock, generated=True)
            variant.counts = replace(seen, operators=counts.operators)
    except Exception as error:
        _, reason = variant_build.why_failed(error)
        variant.counts = replace(variant.counts, note=f"kernels were not counted: {reason}")


def _row(variant: Variant, eager: Variant) -> VariantRow:
    """Return a variant's row; null where it has no figure."""
    status, reason = variant.failure or ("measured", None)
    notes = [*variant.notes, variant.result.note, variant.counts.note]
    summary = variant.measured.summary() if variant.measured is not None else None
    ratio, compile_s = Ratio(None, None, None), None
    if variant is eager:
        ratio = Ratio(1.0, None, None)
    elif summary is not None:
        ratio, compile_s = speedup(eager, variant), max(variant.ready_s - variant.warm_s, 0.0)
    # In the order of the report's columns.
    row: dict[str, object] = dict.fromkeys(VariantRow.__annotations__)
    row |= {"variant": variant.name, "status": status, "reason": reason, "compile_s": compile_s}
    row |= {"speedup": ratio.factor, "speedup_low": ratio.low, "speedup_high": ratio.high}
    row |= asdict(variant.result) | asdict(variant.counts)
    if summary is not None:
        row |= {"median_s": summary.median, "n": summary.n}
        row |= {"ci95_low_s": summary.ci95_low, "ci95_high_s": summary.ci95_high}
    if variant.compiled is not None:
        row |= {"graphs": variant.compiled.graphs, "breaks": variant.compiled.breaks}
    row["note"] = "; ".join(dict.fromkeys(note for note in notes if note)) or None
    return cast(VariantRow, row)
