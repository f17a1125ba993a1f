"""The same model run in several ways: eager, compiled, traced, scripted; which is how much faster.

Each variant is built, timed in that, and its result compared with eager's; then all are measured in
turn, and at the end what one call makes torch do is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from profstack.benchmark.clock import Clock
from profstack.benchmark.measure import Policy
from profstack.benchmark.othercalls import uses_device
from profstack.benchmark.subject import Subject
from profstack.benchmark.variantbuild import (
    COMPILE,
    EAGER,
    NAMES,
    build,
    gives_tensors,
    kept,
    uncompiled,
    why_failed,
)
from profstack.benchmark.variantcounts import PROFILED, Graphs, counted, graphs
from profstack.benchmark.variantresults import Compared, Held, compared, held
from profstack.benchmark.variantrounds import Variant, measure_in_turn, speedup
from profstack.errors import UsageError

_COLUMNS = (
    *("variant", "status", "reason", "compile_s", "median_s", "ci95_low_s", "ci95_high_s", "n"),
    *("speedup", "speedup_low", "speedup_high", "equal", "max_difference", "tolerance"),
    *("operators", "kernels", "graphs", "breaks", "fused_names", "between_process", "note"),
)
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
) -> list[dict[str, Any]]:
    """Rows of `benchmark.compare`, one per variant, in the order asked for.

    `names` are of `eager`, `compile`, `trace` and `script`; `eager` is measured in any case and
    stands first where it was not asked for. `rotate` is where the order of the first round begins:
    with another one in each process, no variant is always first. A variant that cannot be built,
    run or had here is `failed` or `unavailable` with its reason, and the others go on; an error of
    the eager model itself is raised as it is. Model, inputs and random streams are as before at
    the end; the compiler's counters only grow. Raises UsageError for an unknown name.
    """
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise UsageError(
            f"there is no variant {unknown[0]!r}", next_step=f"choose from {', '.join(NAMES)}"
        )
    wanted = list(dict.fromkeys(names if EAGER in names else [EAGER, *names]))
    subject, note = uncompiled(subject)
    variants = {name: Variant(name) for name in wanted}
    if note is not None:
        variants[EAGER].notes.append(note)
    with kept(subject) as put_back, subject.conditions():
        eager = variants[EAGER]
        reference, plain, comparable = _reference(eager, subject, clock, put_back)
        for variant in variants.values():
            if variant is not eager:
                _make(variant, subject, plain, clock)
                put_back()
                _check(variant, reference)
                put_back()
        if not comparable:
            why = _RANDOM if subject.model is not None else _STATEFUL
            for variant in variants.values():
                if variant.failure is None:
                    variant.result = replace(
                        variant.result, equal=None, max_difference=None, note=why
                    )
        del reference
        measure_in_turn(list(variants.values()), policy, clock, rotate)
        for variant in variants.values():
            _count(variant, subject, clock)
    return [_row(variant, eager) for variant in variants.values()]


def _reference(
    eager: Variant, subject: Subject, clock: Clock, put_back: Callable[[], None]
) -> tuple[Held, bool, bool]:
    """Eager's result, whether it is tensors alone, and whether a second call gives the same.

    Only then can others be compared with it.
    """
    eager.built = build(EAGER, subject)
    eager.built.once()
    put_back()
    output = eager.built.once()
    reference, plain = held(output), gives_tensors(output)
    del output
    put_back()
    again = compared(eager.built.once(), reference)
    clock.synchronize()
    eager.result = Compared(None, None, again.tolerance)
    eager.notes.append(_REFERENCE)
    put_back()
    return reference, plain, again.equal is not False


def _make(variant: Variant, subject: Subject, plain: bool, clock: Clock) -> None:
    """Build a variant, time that with its first call, and compare a result of it with eager's."""
    before = graphs() if variant.name == COMPILE else None
    try:
        clock.synchronize()
        began = clock.now()
        built = build(variant.name, subject, gives_tensors=plain)
        built.step()
        clock.synchronize()
        variant.ready_s = clock.now() - began
        variant.built = built
        variant.notes += built.notes
    except Exception as error:
        variant.fail(error)
        return
    if before is not None:
        variant.compiled = graphs().since(before)
        variant.notes += _of_graphs(variant.compiled)


def _check(variant: Variant, reference: Held) -> None:
    if variant.built is None:
        return
    try:
        variant.result = compared(variant.built.once(), reference, flat=variant.built.flat)
    except Exception as error:
        variant.fail(error)


def _of_graphs(compiled: Graphs) -> list[str]:
    """What is to be known of a compilation besides its numbers."""
    notes = []
    if not compiled.graphs:
        notes.append(_NOTHING_COMPILED)
    else:
        notes.append(_WITH_LOADING)
    if compiled.cached:
        notes.append(_FROM_CACHE)
    if compiled.reasons:
        reason = next(iter(compiled.reasons)).splitlines()[0]
        notes.append(f"graph break: {reason}")
    return notes


def _count(variant: Variant, subject: Subject, clock: Clock) -> None:
    """Operators and kernels of one warm call; generated CPU kernels need a build of their own."""
    if variant.built is None or variant.failure is not None:
        return
    try:
        on_device = uses_device(subject, clock)
        counts = variant.counts = counted(variant.built.step, clock, on_device=on_device)
        if variant.name == COMPILE and not on_device and counts.operators is not None:
            marked = build(COMPILE, subject, options=PROFILED)
            for _ in range(2):
                marked.step()
            seen = counted(marked.step, clock, generated=True)
            variant.counts = replace(seen, operators=counts.operators)
    except Exception as error:
        _, reason = why_failed(error)
        variant.counts = replace(variant.counts, note=f"kernels were not counted: {reason}")


def _row(variant: Variant, eager: Variant) -> dict[str, Any]:
    """A variant as the report has it; null where it has no figure."""
    row: dict[str, Any] = dict.fromkeys(_COLUMNS)
    result, counts, compiled = variant.result, variant.counts, variant.compiled
    row |= {"variant": variant.name, "status": "measured"}
    row |= {"equal": result.equal, "max_difference": result.max_difference}
    row |= {"tolerance": result.tolerance, "operators": counts.operators}
    row |= {"kernels": counts.kernels, "fused_names": counts.fused_names}
    if variant.failure is not None:
        row["status"], row["reason"] = variant.failure
    if compiled is not None:
        row |= {"graphs": compiled.graphs, "breaks": compiled.breaks}
    if variant.failure is None and variant.measured is not None:
        row |= _times(variant, eager)
    notes = [*variant.notes, result.note, counts.note]
    row["note"] = "; ".join(dict.fromkeys(note for note in notes if note)) or None
    return row


def _times(variant: Variant, eager: Variant) -> dict[str, Any]:
    """Median, interval and speedup; of eager the speedup is 1 without an interval."""
    assert variant.measured is not None  # the caller has looked
    summary = variant.measured.summary()
    times = {
        "n": summary.n,
        "median_s": summary.median,
        "ci95_low_s": summary.ci95_low,
        "ci95_high_s": summary.ci95_high,
    }
    if variant is eager:
        return times | {"speedup": 1.0}
    ratio = speedup(eager, variant)
    return times | {
        "compile_s": max(variant.ready_s - variant.warm_s, 0.0),
        "speedup": ratio.factor,
        "speedup_low": ratio.low,
        "speedup_high": ratio.high,
    }
