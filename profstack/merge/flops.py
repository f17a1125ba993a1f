"""Floating-point operations: what each counter counted, by module and operator, and who disagrees.

A counter's rows hold the work of a module without that of the modules inside it; here it is added
up along the tree. An operator without a formula has no count, and is listed instead: nothing that
was not counted becomes a 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from profstack.flops.copies import COUNTERS as COPIED
from profstack.merge.recorded import Recorded, Selection, nullable
from profstack.regions import OUTSIDE

# In the order in which they are believed: the first that counted anything is the record.
COUNTERS = ("FlopCounterMode", "recorded_shapes", "flops-profiler", "thop", "fvcore")
# This one works on compiled code too.
SHAPES = "recorded_shapes"
# This one counts functions of Python, thop types of modules, and fvcore operators of a trace.
FUNCTIONS = "flops-profiler"
# What these count by has names of their own; the others' operators are torch's.
OTHER_TOOLS = (FUNCTIONS, *COPIED)
FORWARD, BACKWARD = 0, 1
# These count nothing but multiply-adds; others have formulas for element-wise work too.
MULTIPLY_ADDS = ("FlopCounterMode", SHAPES)


@dataclass(frozen=True)
class Counted:
    """What one counter counted over its slices, and what inputs the steps there had."""

    counter: str
    rows: pd.DataFrame
    selection: Selection
    inputs: frozenset[str]
    parents: Mapping[int, int | None]
    # It saw steps that did other work than those of the other counters: they are not compared.
    apart: bool = False

    def total(self, direction: int) -> float | None:
        """Operations per step in one direction; None where nothing was counted there."""
        rows = self.rows[self.rows["backward"] == direction]
        return self.selection.per_step(rows["flop"].sum(min_count=1))

    @property
    def both(self) -> float | None:
        """Operations per step, forward and backward; None where nothing was counted."""
        return self.selection.per_step(self.rows["flop"].sum(min_count=1))

    def causal_total(self, direction: int) -> float | None:
        """The same with attention called as causal counted as its mask leaves it.

        None where no attention was, or where what a mask leaves is not known.
        """
        known = self.rows[self.rows["flop"].notna()]
        masked = known["masked_flop"] if "masked_flop" in known else known["flop"] * float("nan")
        dense = self.total(direction)
        if dense is None or masked.isna().any() or not masked.sum():
            return None
        left_out = self.selection.per_step(masked[known["backward"] == direction].sum())
        return None if left_out is None else dense - left_out

    @property
    def multiply_adds(self) -> bool:
        """Whether every operation it counts is one half of a multiply-add."""
        return self.counter in MULTIPLY_ADDS

    @property
    def _names(self) -> pd.Series[Any]:
        """The operators of all rows, those of torch as the profiler names them."""
        operators = self.rows["operator"]
        return operators if self.counter in OTHER_TOOLS else operators.map(operator_name)

    @cached_property
    def own(self) -> dict[tuple[int, int], float]:
        """Operations per step by module and direction, without those of the modules inside."""
        known = self.rows[self.rows["flop"].notna()]
        summed = known.groupby(["module_id", "backward"], dropna=False)["flop"].sum()
        return {
            (OUTSIDE if pd.isna(module) else int(module), int(direction)): per_step
            for (module, direction), flop in zip(summed.index, summed.tolist(), strict=True)
            if (per_step := self.selection.per_step(flop)) is not None
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
        known = self.rows[self.rows["flop"].notna() & self.rows["operator"].notna()]
        summed = known.groupby([self._names, "module_id"], dropna=False)["flop"].sum()
        return {
            (str(name), None if pd.isna(module) else int(module)): per_step
            for (name, module), flop in zip(summed.index, summed.tolist(), strict=True)
            if (per_step := self.selection.per_step(flop)) is not None
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
        lacking = self.rows[self.rows["flop"].isna() & self.rows["operator"].notna()]
        summed = lacking.groupby(self._names)["calls"].sum()
        calls = zip(summed.index, summed.tolist(), strict=True)
        return {str(name): self.selection.per_step(count) or 0.0 for name, count in calls}


def operator_name(name: str) -> str:
    """An operator as torch.profiler names it: `aten.mm.default` is `aten::mm`."""
    if "::" not in name:
        name = name.replace(".", "::", 1)
    return name.partition(".")[0]


def counted(recorded: Recorded) -> dict[str, Counted]:
    """The counters that counted anything in the report's plan, the one of record first."""
    frame = recorded.frames["flop_counts"]
    known = recorded.frames["modules"]
    parents = {
        int(number): nullable(parent)
        for number, parent in zip(known["module_id"], known["parent_id"], strict=True)
    }
    found = {}
    for counter in COUNTERS:
        rows = frame[frame["counter"] == counter]
        selection = recorded.holding(rows)
        if selection is None:
            continue
        rows = rows[rows["slice"].isin(selection.slices)]
        inputs = recorded.steps_of(selection.slices)["shape"].dropna()
        found[counter] = Counted(counter, rows, selection, frozenset(inputs), parents)
    return found


def of_record(counters: Mapping[str, Counted]) -> Counted | None:
    """The counter whose figures stand at the modules: the first that counted anything.

    One that stopped when the script compiled its model has counted none of the modules that the
    next one, which goes on, has seen: then the next one stands.
    """
    counting = [one for one in counters.values() if one.own]
    if len(counting) > 1 and counting[1].counter == SHAPES:
        first, second = ({number for number, _ in one.own if number > 0} for one in counting[:2])
        if first and second and not first & second:
            return counting[1]
    return counting[0] if counting else None


def of_operators(counters: Mapping[str, Counted]) -> Counted | None:
    """The counter whose figures stand at the operators: one that read the same profile, if any."""
    knowing = {name: one for name, one in counters.items() if one.operators}
    return knowing.get(SHAPES) or next(iter(knowing.values()), None)


def flop_sources(counters: Mapping[str, Counted]) -> dict[str, str]:
    """What the columns of operations rest on, by `table.column`."""
    record, shaped = of_record(counters), of_operators(counters)
    columns = ("forward_flop", "backward_flop", "forward_mac", "flop_per_s")
    told = {f"modules.{column}": record for column in columns}
    return {
        column: f"{one.counter}, {one.selection.in_words()}"
        for column, one in {**told, "operators.flop": shaped}.items()
        if one is not None
    }


def macs(flop: float | None) -> float | None:
    """Multiply-adds of a count that holds nothing else."""
    return None if flop is None else flop / 2


def whole(value: float | None) -> int | None:
    """A mean per step as the whole number that a count is."""
    return None if value is None else round(value)
