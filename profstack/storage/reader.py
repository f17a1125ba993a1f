"""Read a recording's tables as frames, and choose the slices that report tables rest on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from profstack.code_owner import cell_names
from profstack.storage.folder import declared_tables, facts_of, read_run, read_tables
from profstack.storage.schema.report import ImportedFile
from profstack.storage.untrusted import Rows
from profstack.storage.vocabulary import IMPORTS, STEP_PARTS

# Fewer steps than this, or a larger probe effect, and a time is not calibrated.
FEWEST_STEPS = 3
LARGEST_FACTOR = 3.0

Number = TypeVar("Number", int, float)


@dataclass
class Selection:
    """The slices that a table is made from, with their steps: turns totals into means per step."""

    slices: list[int]
    mode: str | None
    steps: int
    wall_s: float
    factor: float | None = None
    # So many steps make times at the clean speed; the steps of an import are what they are.
    fewest: int = FEWEST_STEPS
    # Every slice has steps in which the script evaluated its model: the figures are of both.
    mixed: bool = False

    def in_words(self) -> str:
        """Return the number of steps in words."""
        return "1 step" if self.steps == 1 else f"{self.steps} steps"

    def per_step(self, total: float | None) -> float | None:
        """Divide a total over the slices by their steps; None for a missing total."""
        if total is None or math.isnan(total) or not self.steps:
            return None
        return float(total) / self.steps

    def calibrated(self, total: float | None, clean_median_s: float | None) -> float | None:
        """Return a total's share of the slice's time, at the speed of the clean steps.

        None where the slice is too short or was slowed too much.
        """
        if total is None or math.isnan(total) or clean_median_s is None or not self.wall_s:
            return None
        if self.steps < self.fewest or self.factor is None or self.factor > LARGEST_FACTOR:
            return None
        return float(total) / self.wall_s * clean_median_s

    def figures(
        self, totals: Mapping[str, float], clean_s: float | None = None
    ) -> dict[str, float | None]:
        """Return totals per step, and as `calibrated_s` their `self_s` at the clean speed."""
        figures = {name: self.per_step(total) for name, total in totals.items()}
        return {**figures, "calibrated_s": self.calibrated(totals.get("self_s"), clean_s)}


# No slice at all: nothing of it has a figure per step.
NO_SLICES = Selection([], None, 0, 0.0)
# Work that happened once, as a start-up: its totals are the figures.
ONCE = Selection([], None, 1, 0.0)


class Recorded:
    """The content of one recording, read once; `plan`, with most steps, is the report's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = read_run(folder)
        tables = read_tables(folder)
        self.facts = facts_of(tables)
        if (named := cell_names(self.facts)) is not None:
            tables = _with_cells(tables, named)
            self.facts = facts_of(tables)
        # Tables that layers declared, by name, each with its layer.
        self.layer_tables = declared_tables(self.facts)
        self.frames: dict[str, pd.DataFrame] = {
            name: pd.DataFrame(rows, columns=columns) for name, (columns, rows) in tables.items()
        }
        artifacts = self.frames["artifacts"]
        # Traces are packed after the run: their present names and sizes count.
        for row in artifacts.index:
            path = str(artifacts.at[row, "path"])
            packed = folder / f"{path}.gz"
            if packed.is_file() and not (folder / path).is_file():
                artifacts.loc[row, ["path", "bytes"]] = f"{path}.gz", packed.stat().st_size
        steps = self.frames["steps"]
        steps["flags"] = steps["flags"].fillna("")
        # Steps of each plan, and their seconds.
        self.plan_steps: dict[int, int] = {}
        self.plan_times: dict[int, float] = {}
        self._measure_plans()
        self.plan: int | None = self._longest_plan()
        fact = self.loop_facts(self.plan)
        self.rule: str | None = fact.get("rule")
        self.phase: str | None = fact.get("phase")
        self._selected: dict[tuple[str, tuple[tuple[str, ...], ...]], Selection | None] = {}

    @property
    def imports(self) -> list[ImportedFile]:
        """The files of other tools that the recording was made from or has taken in."""
        files: list[ImportedFile] = self.facts.get(IMPORTS, [])
        return files

    @property
    def is_import(self) -> bool:
        """Whether the recording was made from files of other tools, and not by a run."""
        if self.imports:
            return self.run.get("script") is None
        # Recordings from before there was a list of files.
        empty = not len(self.frames["steps"]) + len(self.frames["layers"])
        return "nsys" in self.facts and empty

    def _measure_plans(self) -> None:
        """Find the seconds of each plan's steps: their number at the speed of most of them.

        A quartile, since cold and compiling steps would make a warm-up loop the longest.
        """
        steps = self.frames["steps"]
        own = steps[~steps["flags"].astype(str).str.contains("loop")].astype({"wall_s": float})
        unobserved = self.frames["slices"].query("layer.isna()", engine="python")["slice"]
        typical = own.groupby("plan")["wall_s"].quantile(0.25, interpolation="lower")
        alone = own[own["slice"].isin(unobserved)].groupby("plan")["wall_s"]
        typical = alone.quantile(0.25, interpolation="lower").combine_first(typical)
        # The first steps of a loop fell into the slices of the one before.
        ordered = steps.sort_values("step")
        is_foreign = ordered["flags"].astype(str).str.contains("loop")
        actual = ordered["plan"].where(~is_foreign).bfill().fillna(ordered["plan"])
        # Steps of a long watch are only counted, per slice.
        slices = self.frames["slices"].drop_duplicates(["plan", "first_step", "steps"])
        missing = slices.groupby("plan")["steps"].sum()
        missing = missing.sub(steps.groupby("plan").size(), fill_value=0)
        counts = actual.value_counts().add(missing.clip(lower=0), fill_value=0).sort_index()
        for plan, count in zip(counts.index.tolist(), counts.tolist(), strict=True):
            if count:
                self.plan_steps[int(plan)] = int(count)
                self.plan_times[int(plan)] = count * (nullable(typical.get(plan)) or 0.0)

    def loop_facts(self, plan: int | None) -> dict[str, Any]:
        """Return what is known of the loop of a plan: its rule, phase, call site and state."""
        return self.facts.get(f"plan_{plan}") or {}

    def _longest_plan(self) -> int | None:
        """Return the plan whose steps took most time, of those that did not wait to begin.

        Recordings from before call sites were known have the plan with most steps.
        """
        is_known = any("site" in self.loop_facts(plan) for plan in self.plan_steps)
        plans: Mapping[int, float] = self.plan_times if is_known else self.plan_steps
        begun = [plan for plan in plans if not self.loop_facts(plan).get("waits")]
        return max(begun or plans, key=lambda plan: plans[plan], default=None)

    @cached_property
    def slices(self) -> pd.DataFrame:
        """Slices of the report's plan, in order."""
        frame = self.frames["slices"]
        return _where(frame.sort_values("slice"), frame["plan"] == self.plan)

    @cached_property
    def module_paths(self) -> dict[int, str]:
        """Path of every module number, the step parts included."""
        frame = self.frames["modules"]
        paths = zip(frame["module_id"].tolist(), frame["path"].tolist(), strict=True)
        return {**{int(number): str(path) for number, path in paths}, **STEP_PARTS}

    def module_path(self, number: float | None) -> str | None:
        """Return the path of a module or step part; None for a missing number."""
        return None if is_missing(number) else self.module_paths.get(int(number or 0))

    @cached_property
    def module_parents(self) -> dict[int, int | None]:
        """The module around each module by their numbers; None for a root."""
        known = self.frames["modules"]
        return dict(zip(known["module_id"].tolist(), map(whole, known["parent_id"]), strict=True))

    @cached_property
    def steps(self) -> pd.DataFrame:
        """Steps of the report's plan, in order, with the kind and round of their slice."""
        frame = self.frames["steps"].sort_values("step", kind="stable")
        kinds = self.frames["slices"].set_index("slice")[["kind", "round"]]
        joined: pd.DataFrame = _where(frame, frame["plan"] == self.plan).join(kinds, on="slice")
        return joined

    def select(self, layer: str, modes: Sequence[Sequence[str]]) -> Selection | None:
        """Select the best slices of `layer` in the first group of modes that has any.

        Slices in which the script evaluated its model are left out if there are others, and so
        are those of the first round, which had no step to settle.
        """
        key = layer, tuple(map(tuple, modes))
        if key not in self._selected:
            slices = self._observed_by(layer)
            found = (self._best(slices[slices["mode"].isin(group)], late=True) for group in modes)
            self._selected[key] = next((each for each in found if each is not None), None)
        # A caller sets the factor of its own.
        selection = self._selected[key]
        return None if selection is None else replace(selection, factor=None)

    def select_all(self, layer: str) -> Selection | None:
        """Select all slices of `layer`, the first ones too: counts need no warm-up."""
        return self._best(self._observed_by(layer))

    def holding(self, rows: pd.DataFrame) -> Selection | None:
        """Select the slices of the plan that rows belong to, of any layer."""
        slices = self.slices
        chosen = slices["slice"].isin(rows["slice"].unique()) & (slices["steps"] > 0)
        return self._best(slices[chosen])

    def _observed_by(self, layer: str) -> pd.DataFrame:
        return _where(self.slices, (self.slices["layer"] == layer) & (self.slices["steps"] > 0))

    def _best(self, chosen: pd.DataFrame, *, late: bool = False) -> Selection | None:
        """Select from these slices, if any; those with evaluation only if there are no others."""
        if not len(chosen):
            return None
        mixed = chosen["slice"].isin(self._mixed)
        chosen = chosen if mixed.all() else chosen[~mixed]
        settled = chosen["round"] > 1
        chosen = chosen[settled] if late and settled.any() else chosen
        return Selection(
            chosen["slice"].tolist(),
            str(chosen["mode"].iloc[0]),
            int(chosen["counted_steps"].sum()),
            float(chosen["counted_wall_s"].sum()),
            mixed=bool(mixed.all()),
        )

    def steps_of(self, slices: Sequence[int]) -> pd.DataFrame:
        """Return the steps of the plan in these slices; shared slices have the same steps."""
        chosen = self.slices[self.slices["slice"].isin(list(slices))]
        steps = self.steps
        numbers, inside = steps["step"].to_numpy(), np.zeros(len(steps), dtype=bool)
        for first, count in zip(chosen["first_step"], chosen["steps"], strict=True):
            inside |= (numbers >= first) & (numbers < first + count)
        return _where(steps, pd.Series(inside, index=steps.index, dtype=bool))

    @cached_property
    def _mixed(self) -> frozenset[int]:
        """Numbers of the slices whose rows add up training and evaluation."""
        steps = self.steps
        words = {"eval", "loop"} if self.phase == "train" else {"loop"}
        evaluating = [
            step
            for step, flags in zip(steps["step"].tolist(), steps["flags"], strict=True)
            if not words.isdisjoint(flags.split())
        ]
        if not evaluating:
            return frozenset()
        whole = self.slices[~(self.slices["counted_steps"] < self.slices["steps"])]
        columns = zip(whole["slice"], whole["first_step"], whole["steps"], strict=True)
        return frozenset(
            int(number)
            for number, first, count in columns
            if any(first <= step < first + count for step in evaluating)
        )

    def rows(self, table: str, selection: Selection | None) -> pd.DataFrame:
        """Return the rows of a table that belong to the selected slices."""
        frame = self.frames[table]
        return _where(frame, frame["slice"].isin(selection.slices if selection else []))

    def step_rows(
        self,
        frame: pd.DataFrame,
        selection: Selection | None,
        keys: Sequence[str],
        columns: Sequence[str],
        *,
        largest: str | None = None,
        clean_s: float | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Add columns up by their keys: yield the keys and the figures per step.

        A row with a `module_id` also has the path of its `module`. `largest` and the order are
        those of `sums`, `clean_s` and `calibrated_s` those of `Selection.figures`.
        """
        for key, totals in sums(frame, list(keys), columns, largest=largest):
            row = dict(zip(keys, key, strict=True))
            module = self.module_path(row.get("module_id"))
            yield {**row, "module": module, **(selection or NO_SLICES).figures(totals, clean_s)}


def _with_cells(tables: Mapping[str, Rows], named: Callable[[str], str]) -> dict[str, Rows]:
    """Return the tables with the cells of a notebook named wherever a text holds their files."""
    texts: dict[str, str] = {}

    def renamed(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value not in texts:
            texts[value] = named(value)
        return texts[value]

    return {
        name: (columns, [tuple(map(renamed, row)) for row in rows])
        for name, (columns, rows) in tables.items()
    }


def _where(frame: pd.DataFrame, chosen: pd.Series[bool]) -> pd.DataFrame:
    """Return the chosen rows."""
    rows: pd.DataFrame = frame.loc[chosen]
    return rows


def is_missing(value: Any) -> bool:
    """Return whether a value of a frame is missing."""
    return value is None or (not isinstance(value, (list, dict)) and bool(pd.isna(value)))


def nullable(value: Any) -> Any:
    """Return a plain Python value; None for what pandas calls missing."""
    if is_missing(value):
        return None
    return value.item() if hasattr(value, "item") else value


def whole(value: Any) -> int | None:
    """Return a whole number; None for what pandas calls missing."""
    return None if is_missing(value) else round(value)


def ratio(total: float | None, count: float | None) -> float | None:
    """Divide; None where either is missing or the divisor is 0."""
    return total / count if total is not None and count else None


def known_sum(values: Iterable[Number | None]) -> Number | None:
    """Add up what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def known_total(values: Iterable[float | None]) -> float | None:
    """Add values up; None if one of them is unknown."""
    every = list(values)
    known = [value for value in every if value is not None]
    return sum(known, 0.0) if len(known) == len(every) else None


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows as dictionaries of plain values, None for missing ones."""
    columns = []
    for name in frame.columns:
        cells = zip(frame[name].tolist(), frame[name].isna().tolist(), strict=True)
        columns.append([None if missing else value for value, missing in cells])
    # No index: each row would make an iterator over it.
    names = [str(name) for name in frame.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def sums(
    frame: pd.DataFrame, keys: list[str], columns: Sequence[str], *, largest: str | None = None
) -> Iterator[tuple[tuple[Any, ...], dict[str, float]]]:
    """Add columns up by their keys: yields each key, None for its missing parts, and its sums.

    A sum of missing values only is NaN. With `largest`, the keys with the most of that column
    come first.
    """
    summed = frame.groupby(keys, dropna=False)[list(columns)].sum(min_count=1)
    if largest is not None:
        summed = summed.sort_values(largest, ascending=False)
    names = [str(name) for name in summed.columns]
    rows = zip(*(summed[name].tolist() for name in summed.columns), strict=True)
    for key, totals in zip(summed.index.tolist(), rows, strict=True):
        parts = key if isinstance(key, tuple) else (key,)
        yield tuple(map(nullable, parts)), dict(zip(names, totals, strict=True))
