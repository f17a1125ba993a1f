"""FlopCounterMode: floating-point operations, forward and backward, by module and operator.

Measures: floating-point operations (a multiply-add is 2) of matrix products, convolutions,
attention and recurrent layers, exactly, from the shapes of every call, forward and backward by
module object; beside it the calls of operators that do arithmetic and have no formula. A second
slice counts the forward with flops-profiler as a cross-check, where that is installed; of a model
that was given to be called at will, thop and fvcore count a copy, where they are.
Does not measure: element-wise operators, reductions, normalisations and losses (nothing by
convention), how much a kernel skips of what a causal mask leaves out (causal attention counts
dense, and the count with its mask is given too), masks given as tensors, integer, sparse and
nested arithmetic, other threads, kernels launched around torch's dispatcher, and anything once
dynamo has compiled: then the shapes in the torch slice are the record.
Usual slowdown: 1.2 on a 100 ms step, 4 on a 0.3 ms step; one step is enough.
Conflicts: torch.compile, a dispatch mode of the script's own; the cross-check patches functionals.

The counter is `torch.utils.flop_counter.FlopCounterMode`, with formulas for what it lacks. Its
hooks on modules and its own dispatch stay off: the hooks change what the script sees, and the
dispatch runs both branches of a condition, replaces kernels by their decompositions (that of
SiLU's backward gives other digits) and imports dynamo.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from profstack.guard import has_compiled
from profstack.layer import LISTENED, Description, Listener, Mode, SliceContext, SliceData, Wrapper
from profstack.readers.flops import model_copies
from profstack.readers.flops.counting import COMPILED, Count, CountedStep, Owner, count_row
from profstack.readers.flops.flops_profiler import FencedFlopsProfiler
from profstack.readers.torchtrace.bounds import OtherProfilers
from profstack.storage.schema.column import Record, Records
from profstack.storage.vocabulary import NO_OPERATIONS

COUNTER = "FlopCounterMode"
CHECK = "check"

PROFILED = "the script uses torch.profiler itself"


class FlopsWrapper(Wrapper):
    """Drives `FlopCounterMode`, and flops-profiler beside it."""

    name = "flops"
    occupies = frozenset({"dispatch mode", "patched functionals"})
    modes: ClassVar[tuple[Mode, ...]] = (
        Mode("count", 1, 1, turn=10, calls=LISTENED),
        Mode(CHECK, 1, 1, turn=30, calls=LISTENED),
    )
    cuts: ClassVar[bool] = True
    description = Description(
        technique="counting",
        tool="FlopCounterMode",
        measures="floating-point operations (a multiply-add is 2) of matrix products, "
        "convolutions, attention and recurrent layers, forward and backward by module; calls of "
        "operators without a formula; flops-profiler as a cross-check of the forward",
        does_not_measure="element-wise operators, reductions, normalisations and losses (nothing "
        "by convention); how much of what a causal mask leaves out a kernel skips (both totals "
        "are given); masks given as tensors; integer, sparse and nested arithmetic; other "
        "threads; anything once dynamo has compiled",
        usual_slowdown="1.2 on a 100 ms step, 4 on a 0.3 ms step; one step is enough",
        conflicts="torch.compile; a dispatch mode of the script's own",
    )

    def __init__(self) -> None:
        super().__init__()
        self._count: Count | None = None
        self._ended: Count | None = None
        self._check: FencedFlopsProfiler | None = None

    @staticmethod
    def unavailable_reason() -> str | None:
        """Return whether torch is missing: only the script may import it."""
        return None if "torch" in sys.modules else "torch has not been imported"

    @staticmethod
    def version() -> str | None:
        """Return the version of torch, which the counter is a part of."""
        return str(sys.modules["torch"].__version__) if "torch" in sys.modules else None

    def busy_reason(self, mode: str) -> str | None:
        """Return why compiled code or the script's own dispatch mode has precedence."""
        if has_compiled():
            return COMPILED
        if mode == CHECK:
            return None if model_copies.installed() else _why_no_check(FencedFlopsProfiler())
        import torch

        if OtherProfilers.any_active or torch._C._autograd._profiler_enabled():
            # It would record every operator twice.
            return PROFILED
        if torch._C._len_torch_dispatch_stack():
            return "the script uses a dispatch mode of its own"
        return None

    def start(self, context: SliceContext) -> None:
        """Put the mode on, or flops-profiler's wrappers."""
        import torch

        self.close()
        self._context, self._count, self._check = context, None, None
        if context.mode == CHECK:
            fence = FencedFlopsProfiler()
            if _why_no_check(fence) is None:
                self._check = fence
                fence.start()
            return
        self._count = self._ended = Count(torch)
        self._count.begin()

    def listener(self) -> Listener | None:
        """Return the counter that listens to calls and passes."""
        return self._check or self._count

    def stop(self) -> None:
        """Take the mode or the wrappers off."""
        if self._check is not None:
            self._check.stop()
        if self._ended is not None:
            self._ended.end()

    def close(self) -> None:
        """Also take off a mode that a slice left because it ended inside an operator."""
        self.stop()
        self._ended = None

    def give_way(self) -> None:
        """Take the mode off before the script's own profiler records what it does."""
        if self._count is not None and self._count.on:
            self._count.gave_way = PROFILED
            self._count.end()

    def abandon(self) -> None:
        """Stop, and drop the slice: its step belongs to the parent."""
        self.stop()
        self._count = self._check = None

    def take(
        self, stamps: Sequence[float], modules: Mapping[int, Any], left_out: Collection[int] = ()
    ) -> SliceData:
        """Return rows of `flop_counts` over all steps but those left out."""
        context, count, check = self._context, self._count, self._check
        self._context = self._count = self._check = None
        if context is not None and context.mode == CHECK:
            if check is not None:
                rows, notes = check.records(context.index, modules, left_out), check.notes()
            else:
                reason = _why_no_check(FencedFlopsProfiler())
                rows, notes = [], [("gave-way", reason)] if reason is not None else []
            # Others count a copy of the model.
            counted = max(len(stamps) - 1 - len(left_out), 1)
            others, more = model_copies.count(context.index, modules, counted)
            return SliceData(frames={"flop_counts": [*rows, *others]}, notes=[*notes, *more])
        if context is None or count is None:
            return SliceData()
        if count.error is not None:
            raise count.error
        gave_way = count.gave_way or (COMPILED if has_compiled() else None)
        if gave_way is not None:
            return SliceData(notes=[("gave-way", gave_way)])
        steps = count.steps[: len(stamps) - 1]
        # Without a known step all counts are one step.
        steps = steps if count.steps else [count.rest()]
        kept = [step for number, step in enumerate(steps) if number not in left_out]
        numbers = {module.path: number for number, module in modules.items()}
        rows = _records(context.index, kept, numbers)
        notes = [
            ("flops-uncounted", f"{name} could not be counted: {reason}")
            for name, reason in sorted(count.failures.items())
        ]
        if not rows:
            notes.append(("empty-capture", NO_OPERATIONS))
        frames: dict[str, Records] = {"flop_counts": rows}
        frames["loss_targets"] = _targets(context.index, kept)
        return SliceData(frames=frames, notes=notes, holds_all=not count.steps)


def _why_no_check(fence: FencedFlopsProfiler) -> str | None:
    """Return why flops-profiler cannot count now; None if it can."""
    return fence.unavailable_reason() or fence.busy_reason()


def _targets(index: int, steps: Sequence[CountedStep]) -> list[Record]:
    """Return rows of the losses' targets."""
    sums: dict[tuple[int, int, int], tuple[int, int]] = {}
    for step in steps:
        for key, (calls, ignored) in step.targets.items():
            before = sums.get(key, (0, 0))
            sums[key] = before[0] + calls, before[1] + ignored
    columns = ("slice", "classes", "targets", "ignored_index", "calls", "ignored")
    return [
        dict(zip(columns, (index, *key, *figures), strict=True)) for key, figures in sums.items()
    ]


def _records(index: int, steps: Sequence[CountedStep], numbers: Mapping[str, int]) -> list[Record]:
    """Return rows by module, direction and operator; calls without a figure have their own."""
    sums: dict[tuple[int | None, int, str, bool], tuple[int, int, int | None]] = {}

    def add(key: tuple[Owner, str], known: bool, calls: int, flop: int, masked: int | None) -> None:
        (owner, backward), operator = key
        module = numbers.get(owner) if isinstance(owner, str) else owner
        place = (module, backward, operator, known)
        all_calls, all_flop, left_out = sums.get(place, (0, 0, 0))
        left_out = None if masked is None or left_out is None else left_out + masked
        sums[place] = (all_calls + calls, all_flop + flop, left_out)

    for step in steps:
        for key, calls in step.calls.items():
            add(key, True, calls, step.flop.get(key, 0), step.masked.get(key, 0))
        for key, calls in step.missed.items():
            add(key, False, calls, 0, None)
    return [
        count_row(
            index, COUNTER, module, operator, backward, calls, flop if known else None, masked
        )
        for (module, backward, operator, known), (calls, flop, masked) in sums.items()
    ]
