"""Operations by counter, module and operator, and where counters disagree.

A counter's rows hold the work of a module without that of the modules inside it; here it is added
up along the tree. An operator without a formula has no count and is listed instead: it never
counts as 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from profstack.analysis.clean_steps import Clean
from profstack.storage.reader import (
    Recorded,
    Row,
    Selection,
    known,
    known_sum,
    known_total,
    sums,
    whole,
)
from profstack.storage.schema.report import ReportWarning, table_rows
from profstack.storage.schema.rows import CounterRow, UncountedOperator
from profstack.storage.vocabulary import MODEL_COUNTERS, MULTIPLYING, NO_OPERATIONS, OUTSIDE
from profstack.units import format_count

# In the order in which they are believed: the first that counted anything is the record.
COUNTERS = ("FlopCounterMode", "recorded_shapes", "flops-profiler", "thop", "fvcore")
# This one works on compiled code too.
SHAPES = "recorded_shapes"
# This one counts functions of Python, thop types of modules, and fvcore operators of a trace.
FUNCTIONS = "flops-profiler"
# These have names of their own for what they count; the others count torch's operators.
OTHER_TOOLS = (FUNCTIONS, *MODEL_COUNTERS)
FORWARD, BACKWARD = 0, 1
# These count nothing but multiply-adds; others have formulas for element-wise work too.
MULTIPLY_ADDS = ("FlopCounterMode", SHAPES)


@dataclass(frozen=True)
class Counted:
    """The figures of one counter over its slices, and the inputs of the steps there."""

    counter: str
    rows: Sequence[Row]
    selection: Selection
    inputs: frozenset[str]
    parents: Mapping[int, int | None]
    # Its steps did other work than those of the other counters: they are not compared.
    apart: bool = False

    def total(self, direction: int | None = None) -> float | None:
        """Return operations per step, of one direction or both; None where nothing was counted."""
        if direction not in self._totals:
            rows = (row for row in self.rows if direction in (None, row["backward"]))
            self._totals[direction] = self.selection.per_step(known_sum(known(rows, "flop")))
        return self._totals[direction]

    @cached_property
    def _totals(self) -> dict[int | None, float | None]:
        """The totals that were asked for, by direction."""
        return {}

    def forward_mac(self) -> float | None:
        """Return multiply-adds per step in forward; the other tools' as they give them."""
        if self.multiply_adds:
            return macs(self.total(FORWARD))
        forward = (row for row in self.rows if row["backward"] == FORWARD)
        return self.selection.per_step(known_sum(known(forward, "mac")))

    def causal_total(self, direction: int) -> float | None:
        """Return the same with attention called as causal counted as its mask leaves it.

        None where no attention was, or where the effect of a mask is not known.
        """
        masked = [row for row in self.rows if row["flop"] is not None]
        every = known_total(row["masked_flop"] for row in masked)
        dense = self.total(direction)
        left_out = self.selection.per_step(
            sum(row["masked_flop"] or 0 for row in masked if row["backward"] == direction)
        )
        return None if dense is None or left_out is None or not every else dense - left_out

    @property
    def multiply_adds(self) -> bool:
        """Whether every operation it counts is one half of a multiply-add."""
        return self.counter in MULTIPLY_ADDS

    @cached_property
    def _named(self) -> Sequence[Row]:
        """The rows, with torch's operators as the profiler names them."""
        if self.counter in OTHER_TOOLS:
            return self.rows
        return [
            {**row, "operator": row["operator"] and operator_name(row["operator"])}
            for row in self.rows
        ]

    def _per_step(self, *keys: str) -> Iterator[tuple[tuple[Any, ...], float]]:
        """Yield operations per step by these keys."""
        counted = (row for row in self._named if row["flop"] is not None)
        for key, totals in sums(counted, keys, ["flop"]):
            flop = self.selection.per_step(totals["flop"])
            if flop is not None:
                yield key, flop

    @cached_property
    def own(self) -> dict[tuple[int, int], float]:
        """Operations per step by module and direction, without those of the modules inside."""
        return {
            (OUTSIDE if module is None else module, direction): flop
            for (module, direction), flop in self._per_step("module_id", "backward")
        }

    @cached_property
    def modules(self) -> dict[tuple[int, int], float]:
        """The same with those of the modules inside."""
        added: dict[tuple[int, int], float] = {}
        for (module, direction), flop in self.own.items():
            number: int | None = module
            while number is not None:
                added[number, direction] = added.get((number, direction), 0.0) + flop
                number = self.parents.get(number)
        return added

    @cached_property
    def by_place(self) -> dict[tuple[str, int | None], float]:
        """Operations per step by operator and module, None for what no module called."""
        return {
            (name, module): flop
            for (name, module), flop in self._per_step("operator", "module_id")
            if name is not None
        }

    @cached_property
    def operators(self) -> dict[str, float]:
        """Operations per step by operator."""
        summed: dict[str, float] = {}
        for (name, _), flop in self.by_place.items():
            summed[name] = summed.get(name, 0.0) + flop
        return summed

    @cached_property
    def uncounted(self) -> dict[str, float]:
        """Calls per step of the operators without a formula."""
        lacking = (row for row in self._named if row["flop"] is None and row["operator"])
        return {
            name: self.selection.per_step(totals["calls"]) or 0.0
            for (name,), totals in sums(lacking, ["operator"], ["calls"])
        }


def operator_name(name: str) -> str:
    """Return an operator as torch.profiler names it: `aten.mm.default` is `aten::mm`."""
    if "::" not in name:
        name = name.replace(".", "::", 1)
    return name.partition(".")[0]


def counted(recorded: Recorded) -> dict[str, Counted]:
    """Return the counters that counted anything in the report's plan, the one of record first."""
    every, parents = recorded.table("flop_counts"), recorded.module_parents
    found = {}
    for counter in COUNTERS:
        rows = [row for row in every if row["counter"] == counter]
        if (selection := recorded.holding(rows)) is not None:
            rows = [row for row in rows if row["slice"] in selection.slices]
            inputs = known(recorded.steps_of(selection.slices), "shape")
            found[counter] = Counted(counter, rows, selection, frozenset(inputs), parents)
    return found


def of_record(counters: Mapping[str, Counted]) -> Counted | None:
    """Return the counter of record, for the modules: the first that counted anything.

    A counter that stopped when the script compiled its model has counted none of the modules that
    the next one, which goes on, has seen: then it is the next one.
    """
    counting = [one for one in counters.values() if one.own]
    if len(counting) > 1 and counting[1].counter == SHAPES:
        first, second = ({number for number, _ in one.own if number > 0} for one in counting[:2])
        if first and second and not first & second:
            return counting[1]
    return counting[0] if counting else None


def of_operators(counters: Mapping[str, Counted]) -> Counted | None:
    """Return the counter for the operators: one that read the same profile, if any."""
    knowing = {name: one for name, one in counters.items() if one.operators}
    return knowing.get(SHAPES) or next(iter(knowing.values()), None)


def flop_sources(counters: Mapping[str, Counted]) -> dict[str, str]:
    """Return the counter behind each column of operations, by `table.column`."""
    record = of_record(counters)
    columns = ("forward_flop", "backward_flop", "forward_mac", "flop_per_s")
    behind = {f"modules.{column}": record for column in columns}
    behind["operators.flop"] = of_operators(counters)
    return {
        column: f"{one.counter}, {one.selection.in_words()}"
        for column, one in behind.items()
        if one is not None
    }


def macs(flop: float | None) -> float | None:
    """Return the multiply-adds of a count of nothing else."""
    return None if flop is None else flop / 2


# --- Steps whose operations are counted, and whether the clean steps did the same work ------------
#
# Most counters see one of the first steps. Where later steps do other work, as with inputs of other
# lengths, that is no figure of the step: the mean over the steps that the torch layer timed is,
# which counts from the shapes in its own profile.

# One counter's figures of steps that do the same differ by less than this.
_SAME_WORK = 0.02
# Mean sizes of inputs that differ by less than this may be those of the same steps, by chance.
_SAME_INPUTS = 0.2
# Slices to either side of one that are looked at for the inputs of its steps.
_BESIDE = 2


def of_timed_steps(
    recorded: Recorded, counters: Mapping[str, Counted], timed: Selection | None
) -> tuple[dict[str, Counted], list[ReportWarning]]:
    """Return the counters, led by the torch layer's timed steps if those did other work.

    Then there is a warning, too.
    """
    shaped = counters.get(SHAPES)
    if shaped is None or timed is None:
        return dict(counters), []
    early = _within(recorded, shaped, [n for n in shaped.selection.slices if n not in timed.slices])
    late = _within(recorded, shaped, timed.slices)
    first, mean = (None if one is None else one.total() for one in (early, late))
    if late is None or not first or not mean:
        return dict(counters), []
    # Compiled code hides operations: a smaller count than that of eager steps says nothing of the
    # work. Where both were compiled, the first steps are the ones that compiled again.
    began_later = _is_compiled(late) and not (early is not None and _is_compiled(early))
    if abs(mean / first - 1.0) <= _SAME_WORK or began_later:
        return dict(counters), []
    text = (
        f"steps differ in their operations: {format_count(first)} FLOP in the first ones, "
        f"{format_count(mean)} in the mean of the {late.selection.steps} that the torch layer "
        f"timed. The figures are of these ({SHAPES})"
    )
    return {SHAPES: late, **{k: v for k, v in counters.items() if k != SHAPES}}, [
        {"slug": "flops-differ-by-step", "text": text}
    ]


def _is_compiled(one: Counted) -> bool:
    return any("CompiledFxGraph" in name or "triton_" in name for name in one.uncounted)


def _within(recorded: Recorded, one: Counted, slices: Sequence[int]) -> Counted | None:
    """Return the figures of a counter in these slices; None where it counted nothing there."""
    rows = [row for row in one.rows if row["slice"] in slices]
    if (selection := recorded.holding(rows)) is None:
        return None
    rows = [row for row in rows if row["slice"] in selection.slices]
    return replace(one, rows=rows, selection=selection, apart=True)


def unlike_clean(recorded: Recorded, clean: Clean, record: Counted | None) -> str | None:
    """Say why the clean time is not of the operations of record; None where it is."""
    if record is None or clean.bench is not None or not clean.steps:
        return None
    slices = record.selection.slices
    clean_sizes = _sizes(clean.steps)
    if not clean_sizes:
        # Steps that are very short do not tell their inputs.
        ended = all(row["step"] < clean.warm_from for row in recorded.steps_of(slices))
        return (
            "the operations were counted in steps of the warm-up, and whether the clean ones "
            "had the same inputs is not known"
            if record.apart and ended
            else None
        )
    spread = _spread(clean_sizes)
    if _is_compiled(record) and spread > 1.0 + _SAME_INPUTS:
        # The profiler does not tell the inputs of its own steps where code is compiled, and a few
        # steps drawn from such inputs are not those of the median.
        return (
            f"the clean steps' inputs differ in size, by {spread:.1f} times between the quartiles, "
            f"and the {record.selection.steps} steps whose operations were counted need not be "
            "like those of the median"
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


def _spread(sizes: Sequence[int]) -> float:
    """Return the upper quartile of sizes over the lower one."""
    low, high = np.quantile(sizes, [0.25, 0.75])
    return float(high / low) if low else 1.0


def _sizes(steps: Iterable[Row]) -> list[int]:
    """Return the elements of the first input of each step whose input is known."""
    shapes = (shape.split("x") for shape in known(steps, "shape"))
    return [size for shape in shapes if (size := math.prod(map(int, shape)))]


# --- Differences between counters: by how much, in which operators, and why -----------------------

# Two counters that saw the same steps differ by less than this, or a formula is lacking.
ROUNDING = 1e-3
# One that also counts the additions of a bias differs by less than this where nothing is lacking.
CONVENTION = 0.1
# A difference in one module that is less than this of the whole is not worth a word.
NEGLIGIBLE = 1e-5
# Names under which the other tools count multiply-adds; whatever else they count is element-wise
# work, which the record leaves out on purpose.
_MULTIPLYING = {
    "flops-profiler": frozenset(
        (
            *("linear", "conv1d", "conv2d", "conv3d"),
            *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
            *("matmul", "mm", "bmm", "addmm", "baddbmm", "einsum"),
        )
    ),
    **MULTIPLYING,
}

Key = TypeVar("Key", bound=object)


def disagreements(counters: Mapping[str, Counted], paths: Mapping[int, str]) -> list[ReportWarning]:
    """Warn of each counter that differs from the one of record, with the operators.

    Counters that saw steps with other inputs are not compared: the work was not the same.
    """
    record = of_record(counters)
    return [
        {"slug": "flop-counters-disagree", "text": text}
        for other in counters.values()
        if record is not None
        and comparable(record, other)
        and (text := _disagreement(record, other, paths)) is not None
    ]


def comparable(record: Counted, other: Counted) -> bool:
    """Return whether two counters saw the same work."""
    if other is record or record.apart or other.apart:
        return False
    return record.inputs == other.inputs and len(record.inputs) <= 1


def _difference(record: Counted, other: Counted, paths: Mapping[int, str]) -> str:
    """Compare a counter with the one of record, in words."""
    # Slices that hook no calls do not know the inputs: only the figures can be compared.
    known = bool(record.inputs and other.inputs)
    if record.apart:
        return "not compared: it saw steps that did other work"
    if known and not comparable(record, other):
        return "not compared: it saw steps with other inputs"
    if other.counter in OTHER_TOOLS:
        text = _of_a_tool(record, other, paths)
    elif apart := _directions(record, other):
        named = _signed(_gaps(record.operators, other.operators))
        text = f"{' and '.join(apart)} the record: {_listed(named)}"
    else:
        return "the same"
    same_inputs = known or record.inputs == other.inputs
    return text if same_inputs else f"{text} (whether their steps had the same inputs is not known)"


def _of_a_tool(record: Counted, other: Counted, paths: Mapping[int, str]) -> str:
    """Compare the forward of a counter with names of its own with the record's, in words."""
    total, theirs_total = record.total(FORWARD), other.total(FORWARD)
    if not total or theirs_total is None:
        return "there is no forward to compare"
    ours, theirs = _by_module(record, other)
    gaps = _module_gaps(ours, theirs)
    parts = _signed(
        {
            f"in {_with_operators(record, number, paths)}, "
            f"{_extent(ours.get(number, 0.0), theirs.get(number, 0.0))}": gap
            for number, gap in gaps.items()
        }
    )
    left_out = {
        name: flop
        for name, flop in other.operators.items()
        if flop and not _multiplies(other, name)
    }
    if left_out:
        ranked = sorted(left_out.items(), key=lambda item: (-item[1], item[0]))
        names = _listed([f"{name} {format_count(flop)}" for name, flop in ranked], 3)
        amount = format_count(sum(left_out.values()))
        parts.append(f"+{amount} of work that the record leaves out by convention ({names})")
    rest = theirs_total - total - sum(gaps.values()) - sum(left_out.values())
    if abs(rest) > ROUNDING * total:
        parts += _signed({"in formulas, such as for a bias": rest})
    factor = theirs_total / total
    if not parts:
        return "the same forward" if abs(factor - 1) <= ROUNDING else f"forward {factor:.3f} times"
    return f"forward {factor:.3f} times the record: {_listed(parts)}"


def _by_module(record: Counted, other: Counted) -> tuple[dict[int, float], dict[int, float]]:
    """Return forward multiply-adds by module, of the record and of one with names of its own."""
    ours = {number: flop for (number, way), flop in record.own.items() if way == FORWARD}
    theirs: dict[int, float] = {}
    for (name, module), flop in other.by_place.items():
        if _multiplies(other, name):
            number = OUTSIDE if module is None else module
            theirs[number] = theirs.get(number, 0.0) + flop
    return ours, theirs


def _multiplies(other: Counted, name: str) -> bool:
    return name in _MULTIPLYING.get(other.counter, ())


def _extent(ours: float, theirs: float) -> str:
    """Say how much of a module's work a tool counts."""
    if not theirs:
        return "which it does not count"
    return f"which it counts {theirs / ours:.3g} times" if ours else "which the record does not"


def _disagreement(record: Counted, other: Counted, paths: Mapping[int, str]) -> str | None:
    """Say where two counters differ; None where they agree."""
    if other.counter in OTHER_TOOLS:
        # It has names of its own: multiply-adds in the forward of each module are compared.
        ours, theirs = _by_module(record, other)
        apart = [_with_operators(record, number, paths) for number in _module_gaps(ours, theirs)]
        whole, words = sum(ours.values()), f"multiply-adds in forward, and {record.counter} none"
        if whole:
            share = sum(theirs.values()) / whole
            words = f"{share:.3f} times the forward multiply-adds of {record.counter}"
        places = _listed(apart)
    else:
        apart = _directions(record, other)
        words = f"{' and '.join(apart)} what {record.counter} counts"
        places = _listed(_gaps(record.operators, other.operators))
    return f"{other.counter} counts {words}; they differ in {places}" if apart else None


def _directions(record: Counted, other: Counted) -> list[str]:
    """Name the directions in which two counters differ, each with the factor."""
    apart = []
    for direction, word in ((FORWARD, "forward"), (BACKWARD, "backward")):
        ours, theirs = record.total(direction), other.total(direction)
        if ours is not None and theirs is not None and _differ(ours, theirs, ROUNDING):
            apart.append(f"{word} {theirs / ours:.3f} times" if ours else word)
    return apart


def _with_operators(record: Counted, module: int, paths: Mapping[int, str]) -> str:
    """Name a module with the operators that the record counts in it."""
    number = None if module == OUTSIDE else module
    names = sorted(name for name, inside in record.by_place if inside == number)
    path = paths.get(module, "a module")
    return f"{path} ({', '.join(names)})" if names else path


def _gaps(
    ours: Mapping[Key, float], theirs: Mapping[Key, float], beyond: float = ROUNDING
) -> dict[Key, float]:
    """Return theirs less ours for all counts that differ; the largest first."""
    gaps = {
        key: theirs.get(key, 0.0) - ours.get(key, 0.0)
        for key in (*ours, *theirs)
        if _differ(ours.get(key, 0.0), theirs.get(key, 0.0), beyond)
    }
    return dict(sorted(gaps.items(), key=lambda item: (-abs(item[1]), str(item[0]))))


def _module_gaps(ours: Mapping[int, float], theirs: Mapping[int, float]) -> dict[int, float]:
    """Return the gaps in multiply-adds by module that no convention explains."""
    least = NEGLIGIBLE * sum(ours.values())
    gaps = _gaps(ours, theirs, CONVENTION)
    return {number: gap for number, gap in gaps.items() if abs(gap) > least}


def _signed(gaps: Mapping[str, float]) -> list[str]:
    """Write each gap with its sign and its place."""
    return [f"{'+' if gap > 0 else ''}{format_count(gap)} {name}" for name, gap in gaps.items()]


def _differ(ours: float, theirs: float, beyond: float) -> bool:
    return abs(ours - theirs) > beyond * max(abs(ours), abs(theirs))


def _listed(names: Iterable[str], most: int = 5) -> str:
    """List the first names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


# --- Rows of the table `flops` --------------------------------------------------------------------


def flop_rows(
    recorded: Recorded, counters: Mapping[str, Counted], timed: Selection | None
) -> list[CounterRow]:
    """Rows of `flops`: one per counter, with the operators it has no formula for.

    A counter without figures says why, if the run was to count at all.
    """
    if not counters and all(row["name"] != "flops" for row in recorded.table("layers")):
        return []
    seen = _operators_seen(recorded, timed)
    record = of_record(counters)
    rows: list[dict[str, object]] = []
    for counter in COUNTERS:
        one = counters.get(counter)
        if one is None:
            # An optional tool has a row only if it was there.
            if counter not in MODEL_COUNTERS or _notes_of(recorded, counter):
                rows.append({"counter": counter, "note": _why_none(recorded, counter, record)})
            continue
        difference = None
        if record is not None and one is not record:
            difference = _difference(record, one, recorded.module_paths)
        rows.append(
            {
                "counter": counter,
                "forward_flop": whole(one.total(FORWARD)),
                "backward_flop": whole(one.total(BACKWARD)),
                "causal_forward_flop": whole(one.causal_total(FORWARD)),
                "causal_backward_flop": whole(one.causal_total(BACKWARD)),
                "forward_mac": whole(one.forward_mac()),
                "difference": difference,
                "uncounted": _uncounted(one, seen),
            }
        )
    return table_rows("flops", rows)


def limited(reason: str, record: Counted | None) -> str:
    """Return a layer's reason; where another slice had operations, it says so of its own alone."""
    if reason != NO_OPERATIONS or record is None or not record.total():
        return reason
    return f"its own slice had no floating-point operations; {record.counter} saw others that had"


def _why_none(recorded: Recorded, counter: str, record: Counted | None) -> str:
    """Say why a counter has no rows: by the notes of its layer, or the layer's status."""
    layer = "torch" if counter == SHAPES else "flops"
    rows = [row for row in recorded.table("layers") if row["name"] == layer]
    if not rows:
        return f"the layer {layer} was not asked for"
    reasons = [*_notes_of(recorded, counter), *known(rows, "reason")]
    if layer == "flops" and reasons:
        return limited(reasons[0].removeprefix("flops: "), record)
    if counter == SHAPES:
        return "no slice of the torch layer held a counted operator with its shapes"
    return "its slice held nothing that it counts, or the run ended before its turn"


def _notes_of(recorded: Recorded, counter: str) -> list[str]:
    """Return the notes of the layer flops on a counter: by its name, or without any tool's."""
    texts = [row["text"] for row in recorded.table("notes") if row["layer"] == "flops"]
    wanted = counter if counter in OTHER_TOOLS else None
    return [text for text in texts if wanted == next((t for t in OTHER_TOOLS if t in text), None)]


# Calls per step of an operator in the torch slices, and its share of the step.
_SeenOperator = tuple[float, float]


def _operators_seen(recorded: Recorded, timed: Selection | None) -> dict[str, _SeenOperator]:
    """Return every operator of the torch slices; its time is with what it calls."""
    if timed is None or not timed.wall_s:
        return {}
    found = sums(recorded.rows("operators", timed), ["name"], ("calls", "total_s"))
    return {
        name: (timed.per_step(totals["calls"]) or 0.0, (totals["total_s"] or 0.0) / timed.wall_s)
        for (name,), totals in found
    }


def _uncounted(one: Counted, seen: Mapping[str, _SeenOperator]) -> list[UncountedOperator]:
    """List the operators without a formula, those with the most time first."""
    rows: list[UncountedOperator] = []
    for name, calls in one.uncounted.items():
        _, share = seen.get(name) or seen.get(f"aten::{name}") or (None, None)
        rows.append({"operator": name, "calls": calls, "time_share": share})
    for name, why in KNOWN_MISSES.items() if one.counter == FUNCTIONS else ():
        if name in seen:
            calls, share = seen[name]
            rows.append({"operator": name, "calls": calls, "time_share": share, "why": why})
    return sorted(rows, key=lambda row: (-(row["time_share"] or 0.0), str(row["operator"])))


# Operators that version 0.1.2 of flops-profiler drops or miscounts in the forward without an error,
# by torch.profiler's names. Those that it fails on are in `FencedFlopsProfiler.notes`.
KNOWN_MISSES: Mapping[str, str] = {
    "aten::scaled_dot_product_attention": "counted as 0",
    "aten::_native_multi_head_attention": "fused attention of nn.MultiheadAttention: 0",
    "aten::_transformer_encoder_layer_fwd": "fused nn.TransformerEncoderLayer: counted as 0",
    "aten::matmul": "as the operator @ counted as 0; matrix times vector is counted as often "
    "as the vector is long, and of broadcast batches only those of the first operand count",
    "aten::mv": "counted as 0",
    "aten::dot": "counted as 0",
    "aten::addmm_": "in place: counted as 0",
    "aten::add": "as the operator + counted as 0",
    "aten::mul": "as the operator * counted as 0",
    "aten::einsum": "rounded to four digits",
    "aten::bilinear": "counted as 0",
    "aten::cdist": "counted as 0",
    "aten::upsample_nearest2d": "batch and channels are left out when a size is given",
    "aten::upsample_bilinear2d": "batch and channels are left out when a size is given",
}
