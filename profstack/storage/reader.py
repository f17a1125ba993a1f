"""Read the rows of a recording's tables, and choose the slices that report tables rest on."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from profstack.code_owner import cell_names
from profstack.storage.folder import declared_tables, facts_of, read_run, read_tables
from profstack.storage.schema.report import ImportedFile
from profstack.storage.untrusted import Rows
from profstack.storage.vocabulary import IMPORTS, STEP_PARTS, WAIT, WORKER

# Fewer steps than this, or a larger probe effect, and a time is not calibrated.
FEWEST_STEPS = 3
LARGEST_FACTOR = 3.0

# A pause is of the run, and not of the step: it takes so many medians. Those that come again (as a
# checkpoint each ten steps does) may be this share of the steps.
PAUSE, RARE = 5.0, 0.125
# So much of a pause goes by before the step's first work where it is known to be no work.
_WAITED = 0.9

Number = TypeVar("Number", int, float)
# A row of a recorded table by its columns, None where a value is missing.
Row = Mapping[str, Any]


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
    # Every slice has a rare pause, and nothing tells whose time it is in.
    paused: bool = False

    def in_words(self) -> str:
        """Return the number of steps in words."""
        return "1 step" if self.steps == 1 else f"{self.steps} steps"

    def per_step(self, total: float | None) -> float | None:
        """Divide a total over the slices by their steps; None for a missing total."""
        if total is None or not self.steps:
            return None
        return float(total) / self.steps

    def calibrated(self, total: float | None, clean_median_s: float | None) -> float | None:
        """Return a total's share of the slice's time, at the speed of the clean steps.

        None where the slice is too short, was slowed too much, or holds a pause.
        """
        if total is None or clean_median_s is None or not self.wall_s or self.paused:
            return None
        if self.steps < self.fewest or self.factor is None or self.factor > LARGEST_FACTOR:
            return None
        return float(total) / self.wall_s * clean_median_s

    def figures(
        self, totals: Mapping[str, float | None], clean_s: float | None = None
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
        self._tables = read_tables(folder)
        self.facts = facts_of(self._tables)
        if (named := cell_names(self.facts)) is not None:
            self._tables = _with_cells(self._tables, named)
            self.facts = facts_of(self._tables)
        # Tables that layers declared, by name, each with its layer.
        self.layer_tables = declared_tables(self.facts)
        self._rows: dict[str, list[Row]] = {}
        # Steps of each plan, and their seconds.
        self.plan_steps: dict[int, int] = {}
        self.plan_times: dict[int, float] = {}
        self._measure_plans()
        self.plan: int | None = self._longest_plan()
        fact = self.loop_facts(self.plan)
        self.rule: str | None = fact.get("rule")
        self.phase: str | None = fact.get("phase")
        self._selected: dict[tuple[str, tuple[tuple[str, ...], ...]], Selection | None] = {}

    def count(self, table: str) -> int:
        """Return the number of a table's rows."""
        return len(self._tables[table][1])

    def columns(self, table: str, *names: str) -> list[list[Any]]:
        """Return columns of a table, None where a value is missing: for tables of many rows."""
        known, rows = self._tables[table]
        return [[row[at] for row in rows] for at in map(known.index, names)]

    def table(self, name: str) -> list[Row]:
        """Return all rows of a table as they were recorded, None where a value is missing."""
        if name not in self._rows:
            names, rows = self._tables[name]
            if name == "steps":
                # Of these there are many.
                at = names.index("flags")
                rows = [row if row[at] else (*row[:at], "", *row[at + 1 :]) for row in rows]
            found: list[Row] = [dict(zip(names, row, strict=True)) for row in rows]
            if name == "module_times":
                found = [self._without_pause(row) for row in found]
            if name == "artifacts":
                found = [{**row, **self._packed(str(row["path"]))} for row in found]
            self._rows[name] = found
        return self._rows[name]

    def line_text(self, file: str, line: int) -> str | None:
        """Return a line of one of the script's own files; None where its text is not recorded."""
        lines = self._lines_of.get(file, [])
        return lines[line - 1] if 0 < line <= len(lines) else None

    @cached_property
    def _lines_of(self) -> dict[str, list[str]]:
        """The lines of the script's own files, by the names with which they were recorded."""
        texts = zip(*self.columns("source_files", "file", "text"), strict=True)
        return {file: text.splitlines() for file, text in texts if text is not None}

    def _without_pause(self, row: Row) -> Row:
        """Return a row of `module_times` less the pause in the wait of its slice."""
        pause_s = self.pauses.get(row["slice"], 0.0)
        if row["module_id"] != WAIT or not pause_s or (row["forward_s"] or 0.0) < pause_s:
            return row
        times = ("forward_s", "forward_self_s")
        return {**row, **{name: max((row[name] or 0.0) - pause_s, 0.0) for name in times}}

    @cached_property
    def _waited(self) -> frozenset[int]:
        """Slices of the torch layer whose pause went by before the work of a step."""
        names = ("module_id", "slice", "forward_s")
        rows = zip(*self.columns("module_times", *names), strict=True)
        return frozenset(
            number
            for module, number, wait_s in rows
            if module == WAIT and 0.0 < self.pauses.get(number, 0.0) <= (wait_s or 0.0)
        )

    def rare_pauses(self, times: Sequence[float]) -> list[bool]:
        """Return which times of steps are rare pauses."""
        least_s = self.rare_pause_s(times)
        return [least_s is not None and each > least_s for each in times]

    def rare_pause_s(self, times: Sequence[float]) -> float | None:
        """Return what steps of such times take at least where they are rare pauses.

        None where long ones are not rare. With DataLoader workers a rare long step is the wait for
        all of them: it is no pause.
        """
        if not times:
            return None
        # Shorter ones are the noise of a loaded machine.
        least = max(PAUSE * median(times), max(times) / 3)
        long = [each > least for each in times]
        has_workers = any(row["kind"] == WORKER for row in self.table("thread_times"))
        return None if has_workers or sum(long) > RARE * len(times) else least

    @cached_property
    def paused_steps(self) -> list[Row]:
        """Steps of the plan that a layer watched, and that hold a rare pause.

        One that worked as long was slowed by the layer, as far as its wait is known; else it is far
        longer than the others of its slice.
        """
        # Those of the first round are slow by themselves.
        plain = [row for row in self.steps if {"eval", "loop", "slow"}.isdisjoint(flags_of(row))]
        settled = [row for row in plain if (row["round"] or 0) > 1 and row["wall_s"]]
        long = self.rare_pauses([row["wall_s"] for row in settled])
        rows = [row for row, is_long in zip(settled, long, strict=True) if is_long]
        watched = {row["slice"] for row in self.slices if row["layer"] is not None}
        rows = [row for row in rows if row["slice"] in watched]
        usual_s = {
            number: median(row["wall_s"] for row in settled if row["slice"] == number)
            for number in {row["slice"] for row in rows}
        }
        return [
            row
            for row in rows
            if (
                row["wall_s"] > PAUSE * usual_s[row["slice"]]
                if row["wait_s"] is None
                else row["wait_s"] >= _WAITED * row["wall_s"]
            )
        ]

    @cached_property
    def pauses(self) -> dict[int, float]:
        """Seconds of rare pauses, beyond a usual step, by the number of a watched slice."""
        found: dict[int, float] = defaultdict(float)
        if self.paused_steps:
            usual_s = median(
                row["wall_s"] for row in self.steps if row["wall_s"] and "slow" not in row["flags"]
            )
            for step in self.paused_steps:
                for row in self.slices:
                    # A step that was left out of a slice's figures is longer than what they are of.
                    is_counted = step["wall_s"] <= (row["counted_wall_s"] or math.inf)
                    if is_counted and _span(row, [step["step"]]):
                        found[row["slice"]] += step["wall_s"] - usual_s
        return dict(found)

    def _packed(self, path: str) -> Row:
        """Return present name and size of a file that was packed after the run, as traces are."""
        packed = self.folder / f"{path}.gz"
        if packed.is_file() and not (self.folder / path).is_file():
            return {"path": f"{path}.gz", "bytes": packed.stat().st_size}
        return {}

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
        return "nsys" in self.facts and not self.count("steps") + self.count("layers")

    def _measure_plans(self) -> None:
        """Find the seconds of each plan's steps: their number at the speed of most of them.

        A quartile, since cold and compiling steps would make a warm-up loop the longest.
        """
        steps, slices = self.table("steps"), self.table("slices")
        unobserved = {row["slice"] for row in slices if row["layer"] is None}
        every: dict[int, list[float]] = defaultdict(list)
        alone: dict[int, list[float]] = defaultdict(list)
        counts: Counter[int] = Counter()
        own = Counter(row["plan"] for row in steps)
        following: int | None = None
        for row in reversed(in_order(steps, "step")):
            # The first steps of a loop fell into the slices of the one before.
            is_foreign = "loop" in row["flags"]
            following = row["plan"] if not is_foreign else following
            counts[row["plan"] if following is None else following] += 1
            if not is_foreign and row["wall_s"] is not None and "slow" not in row["flags"]:
                every[row["plan"]].append(row["wall_s"])
                if row["slice"] in unobserved:
                    alone[row["plan"]].append(row["wall_s"])
        # Steps of a long watch are only counted, per slice.
        of_slices: Counter[int] = Counter()
        for plan, _, count in {(row["plan"], row["first_step"], row["steps"]) for row in slices}:
            of_slices[plan] += count or 0
        for plan in sorted({*counts, *of_slices} - {None}):
            count = counts[plan] + max(of_slices[plan] - own[plan], 0)
            if count:
                times = sorted(alone[plan] or every[plan] or [0.0])
                self.plan_steps[plan] = count
                self.plan_times[plan] = count * times[(len(times) - 1) // 4]

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

    def _of_plan(self, table: str, order: str) -> list[Row]:
        """Return the rows of the report's plan, in order."""
        rows = in_order(self.table(table), order)
        return [row for row in rows if row["plan"] == self.plan is not None]

    @cached_property
    def slices(self) -> list[Row]:
        """Slices of the report's plan, in order."""
        return self._of_plan("slices", "slice")

    @cached_property
    def module_paths(self) -> dict[int, str]:
        """Path of every module number, the step parts included."""
        paths = {row["module_id"]: str(row["path"]) for row in self.table("modules")}
        return {**paths, **STEP_PARTS}

    def module_path(self, number: int | None) -> str | None:
        """Return the path of a module or step part; None for a missing number."""
        return None if number is None else self.module_paths.get(number)

    @cached_property
    def module_parents(self) -> dict[int, int | None]:
        """The module around each module by their numbers; None for a root."""
        return {row["module_id"]: row["parent_id"] for row in self.table("modules")}

    @cached_property
    def steps(self) -> list[Row]:
        """Steps of the report's plan, in order, with the kind and round of their slice."""
        kinds = {row["slice"]: (row["kind"], row["round"]) for row in self.table("slices")}
        nothing = (None, None)
        return [
            {**row, **dict(zip(("kind", "round"), kinds.get(row["slice"], nothing), strict=True))}
            for row in self._of_plan("steps", "step")
        ]

    def select(self, layer: str, modes: Sequence[Sequence[str]]) -> Selection | None:
        """Select the best slices of `layer` in the first group of modes that has any.

        Slices in which the script evaluated its model are left out if there are others, and so
        are those of the first round, which had no step to settle.
        """
        key = layer, tuple(map(tuple, modes))
        if key not in self._selected:
            slices = self._observed_by(layer)
            groups = ([row for row in slices if row["mode"] in group] for group in modes)
            found = (self._best(group, late=True) for group in groups)
            self._selected[key] = next((each for each in found if each is not None), None)
        # A caller sets the factor of its own.
        selection = self._selected[key]
        return None if selection is None else replace(selection, factor=None)

    def select_all(self, layer: str) -> Selection | None:
        """Select all slices of `layer`, the first ones too: counts need no warm-up."""
        return self._best(self._observed_by(layer))

    def holding(self, rows: Iterable[Row]) -> Selection | None:
        """Select the slices of the plan that rows belong to, of any layer."""
        numbers = {row["slice"] for row in rows}
        return self._best(
            [row for row in self.slices if row["slice"] in numbers and (row["steps"] or 0) > 0]
        )

    def _observed_by(self, layer: str) -> list[Row]:
        return [row for row in self.slices if row["layer"] == layer and (row["steps"] or 0) > 0]

    def _best(self, chosen: list[Row], *, late: bool = False) -> Selection | None:
        """Select from these slices, if any; those with evaluation only if there are no others."""
        if not chosen:
            return None
        pure = [row for row in chosen if row["slice"] not in self._mixed]
        best = pure or chosen
        if late:
            best = [row for row in best if (row["round"] or 0) > 1] or best
            best = [row for row in best if row["slice"] not in self.pauses] or best
        pauses_s = math.fsum(self.pauses.get(row["slice"], 0.0) for row in best)
        # Of the torch layer it can be known that they are in the wait, but for a device's.
        paused = {row["slice"] for row in best} & set(self.pauses)
        is_known = bool(paused) and paused <= self._waited
        is_known = is_known and not any(row["device"] for row in self.table("launches"))
        return Selection(
            [row["slice"] for row in best],
            str(best[0]["mode"]),
            sum(known(best, "counted_steps")),
            math.fsum(known(best, "counted_wall_s")) - (pauses_s if is_known else 0.0),
            mixed=not pure,
            paused=pauses_s > 0.0 and not is_known,
        )

    def steps_of(self, slices: Iterable[int]) -> list[Row]:
        """Return the steps of the plan in these slices; shared slices have the same steps."""
        wanted = set(slices)
        spans = (_span(row, self._numbers) for row in self.slices if row["slice"] in wanted)
        return [self.steps[at] for at in sorted({at for span in spans for at in span})]

    @cached_property
    def _numbers(self) -> list[int]:
        return [row["step"] for row in self.steps]

    @cached_property
    def _mixed(self) -> frozenset[int]:
        """Numbers of the slices whose rows add up training and evaluation."""
        words = {"eval", "loop"} if self.phase == "train" else {"loop"}
        evaluating = [row["step"] for row in self.steps if not words.isdisjoint(flags_of(row))]
        return frozenset(
            row["slice"]
            for row in self.slices
            if (row["counted_steps"] is None or row["counted_steps"] >= (row["steps"] or 0))
            and _span(row, evaluating)
        )

    def rows(self, table: str, selection: Selection | None) -> list[Row]:
        """Return the rows of a table that belong to the selected slices."""
        chosen = frozenset(selection.slices if selection else ())
        return [row for row in self.table(table) if row["slice"] in chosen] if chosen else []

    def step_rows(
        self,
        rows: Iterable[Row],
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
        for key, totals in sums(rows, keys, columns, largest=largest):
            row = dict(zip(keys, key, strict=True))
            module = self.module_path(row.get("module_id"))
            yield {**row, "module": module, **(selection or NO_SLICES).figures(totals, clean_s)}


def _span(row: Row, numbers: Sequence[int]) -> range:
    """Return the places of a slice's steps in a list of numbers of steps, which is in order."""
    first = row["first_step"] or 0
    return range(bisect_left(numbers, first), bisect_left(numbers, first + (row["steps"] or 0)))


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


# --- Rows of a table ------------------------------------------------------------------------------


def flags_of(step: Row) -> list[str]:
    """Return the reasons that keep a step out of medians."""
    flags: str = step["flags"]
    return flags.split()


def known(rows: Iterable[Row], name: str) -> list[Any]:
    """Return the values of a column that are not missing."""
    return [row[name] for row in rows if row[name] is not None]


def in_order(rows: Iterable[Row], *names: str) -> list[Row]:
    """Sort rows by columns; missing values come last, and equal rows keep their order."""
    rows = list(rows)
    # The steps of a long run are many, and mostly in order.
    if all(row[name] is not None for name in names for row in rows):
        return sorted(rows, key=itemgetter(*names))
    return sorted(rows, key=lambda row: [(row[name] is None, row[name]) for name in names])


def grouped(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """Return rows by their keys, in the order in which keys first come."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple([row[key] for key in keys])].append(row)
    return groups


def sums(
    rows: Iterable[Row], keys: Sequence[str], columns: Sequence[str], *, largest: str | None = None
) -> list[tuple[tuple[Any, ...], dict[str, float | None]]]:
    """Add columns up by their keys: each key, and its sums; None for a sum without any value.

    Keys are in order, or with `largest` those with the most of that column come first.
    """
    groups = grouped(rows, *keys)
    ordered = sorted(groups, key=lambda key: [(part is None, part) for part in key])
    found = [
        (key, {name: added(row[name] for row in groups[key]) for name in columns})
        for key in ordered
    ]
    if largest is not None:
        found.sort(key=lambda each: (each[1][largest] is None, -(each[1][largest] or 0.0)))
    return found


def added(values: Iterable[float | None]) -> float | None:
    """Add up what is known, to the last digit; None where nothing is."""
    every = [value for value in values if value is not None]
    return math.fsum(every) if every else None


def whole(value: float | None) -> int | None:
    """Return a whole number; None for a missing value."""
    return None if value is None else round(value)


def ratio(total: float | None, count: float | None) -> float | None:
    """Divide; None where either is missing or the divisor is 0."""
    return total / count if total is not None and count else None


def known_sum(values: Iterable[Number | None]) -> Number | None:
    """Add up what is known; None where nothing is."""
    every = [value for value in values if value is not None]
    return sum(every) if every else None


def known_total(values: Iterable[float | None]) -> float | None:
    """Add values up; None if one of them is unknown."""
    every = list(values)
    found = [value for value in every if value is not None]
    return sum(found, 0.0) if len(found) == len(every) else None
