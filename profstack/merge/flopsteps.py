"""Which steps the operations are of, and whether the clean steps did the same work.

Most counters see one of the first steps. Where later steps do other work, as with inputs of other
lengths, that is no figure of the step: then the mean over the steps that the torch layer timed is,
which counts from the shapes in its own profile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from profstack.merge.cleansteps import Clean
from profstack.merge.flops import SHAPES, Counted
from profstack.merge.recorded import Recorded, Selection
from profstack.units import format_count

# One counter's figures of steps that do the same differ by less than this.
_SAME_WORK = 0.02
# Mean sizes of inputs that differ by less than this may be those of the same steps, by chance.
_SAME_INPUTS = 0.2
# Slices to either side of one that are looked at for the inputs of its steps.
_BESIDE = 2


def of_timed_steps(
    recorded: Recorded, counters: Mapping[str, Counted], timed: Selection | None
) -> tuple[dict[str, Counted], list[dict[str, str]]]:
    """The counters, the one of the torch layer's timed steps first where these do other work.

    With a warning then.
    """
    shaped = counters.get(SHAPES)
    if shaped is None or timed is None:
        return dict(counters), []
    early = _within(recorded, shaped, [n for n in shaped.selection.slices if n not in timed.slices])
    late = _within(recorded, shaped, timed.slices)
    if early is None or late is None or not early.both or not late.both:
        return dict(counters), []
    # What a compiler made hides operations: a smaller count says nothing of the work.
    if abs(late.both / early.both - 1.0) <= _SAME_WORK or _compiled(late):
        return dict(counters), []
    text = (
        f"steps differ in their operations: {format_count(early.both)} FLOP in the first ones, "
        f"{format_count(late.both)} in the mean of the {late.selection.steps} that the torch layer "
        f"timed. The figures are of these ({SHAPES})"
    )
    return {SHAPES: late, **{k: v for k, v in counters.items() if k != SHAPES}}, [
        {"slug": "flops-differ-by-step", "text": text}
    ]


def _within(recorded: Recorded, one: Counted, slices: Sequence[int]) -> Counted | None:
    """What a counter counted in these slices; None where it counted nothing there."""
    rows = one.rows[one.rows["slice"].isin(list(slices))]
    selection = recorded.holding(rows)
    if selection is None:
        return None
    rows = rows[rows["slice"].isin(selection.slices)]
    return replace(one, rows=rows, selection=selection, apart=True)


def _compiled(one: Counted) -> bool:
    return any("CompiledFxGraph" in name or "triton_" in name for name in one.uncounted)


def unlike_clean(recorded: Recorded, clean: Clean, record: Counted | None) -> str | None:
    """Why the clean time must not stand beside the operations of record; None where it may."""
    if record is None or clean.bench is not None or not len(clean.steps):
        return None
    slices = record.selection.slices
    clean_sizes = _sizes(clean.steps)
    if not clean_sizes:
        # Steps that are very short do not tell their inputs.
        ended = recorded.steps_of(slices)["step"].max() < clean.warm_from
        return (
            "the operations were counted in steps of the warm-up, and whether the clean ones "
            "had the same inputs is not known"
            if record.apart and ended
            else None
        )
    beside = {n + by for n in slices for by in range(-_BESIDE, _BESIDE + 1)}
    sizes = _sizes(recorded.steps_of(sorted(beside)))
    if not sizes:
        return None
    theirs, ours = sum(sizes) / len(sizes), sum(clean_sizes) / len(clean_sizes)
    if abs(theirs / ours - 1.0) <= _SAME_INPUTS:
        return None
    return (
        "the clean steps had other inputs than those whose operations were counted: "
        f"{format_count(round(ours))} elements in the mean, and {format_count(round(theirs))}"
    )


def _sizes(steps: pd.DataFrame) -> list[int]:
    """Elements of the first input of each step that tells it."""
    shapes = steps["shape"].dropna().astype(str)
    sizes = [math.prod(int(size) for size in shape.split("x")) for shape in shapes]
    return [size for size in sizes if size]
