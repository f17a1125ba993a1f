"""A recording's tables as frames, and the choice of slices that each report table rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from profstack.recording import facts_of, read_tables

# Fewer steps than this, or a larger probe effect, and a time is not calibrated.
FEWEST_STEPS = 3
LARGEST_FACTOR = 3.0


@dataclass
class Selection:
    """The slices one table rests on, and what turns their totals into figures per step."""

    slices: list[int]
    mode: str | None
    steps: int
    wall_s: float
    factor: float | None = None
    # Every slice holds steps in which the script evaluated its model: the figures are of both.
    mixed: bool = False

    def in_words(self) -> str:
        """How many steps it rests on."""
        return "1 step" if self.steps == 1 else f"{self.steps} steps"

    def per_step(self, total: float | None) -> float | None:
        """A total over the slices as a figure per step."""
        if total is None or math.isnan(total) or not self.steps:
            return None
        return float(total) / self.steps

    def calibrated(self, total: float | None, clean_median_s: float | None) -> float | None:
        """The share of the slice's step time, at the speed of the clean steps.

        None where the slice is too short or too much disturbed to say.
        """
        if total is None or math.isnan(total) or clean_median_s is None or not self.wall_s:
            return None
        if self.steps < FEWEST_STEPS or self.factor is None or self.factor > LARGEST_FACTOR:
            return None
        return float(total) / self.wall_s * clean_median_s


class Recorded:
    """The tables of one recording; `plan` is the one with most steps, which the report is of."""

    def __init__(self, folder: Path) -> None:
        tables = read_tables(folder)
        self.facts = facts_of(tables)
        self.frames: dict[str, pd.DataFrame] = {
            name: pd.DataFrame(rows, columns=columns) for name, (columns, rows) in tables.items()
        }
        self.frames["artifacts"] = _as_they_lie(folder, self.frames["artifacts"])
        steps = self.frames["steps"]
        steps["flags"] = steps["flags"].fillna("")
        counts = steps["plan"].value_counts().sort_index()
        self.plan: int | None = int(counts.index.tolist()[counts.argmax()]) if len(counts) else None
        self.rule, self.phase = self._rule()

    def _rule(self) -> tuple[str | None, str | None]:
        fact = self.facts.get(f"plan_{self.plan}")
        return (fact["rule"], fact["phase"]) if fact else (None, None)

    @cached_property
    def slices(self) -> pd.DataFrame:
        """Slices of the report's plan, in order."""
        frame = self.frames["slices"]
        return _where(frame.sort_values("slice"), frame["plan"] == self.plan)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """Steps of the report's plan, in order, with the kind and round of their slice."""
        frame = self.frames["steps"].sort_values("step", kind="stable")
        kinds = self.frames["slices"].set_index("slice")[["kind", "round"]]
        joined: pd.DataFrame = _where(frame, frame["plan"] == self.plan).join(kinds, on="slice")
        return joined

    def select(self, layer: str, modes: Sequence[Sequence[str]]) -> Selection | None:
        """The slices of `layer` in the first group of modes that has any, the best of them.

        Slices in which the script evaluated its model are passed over where there are others, and
        so are those of the first round, which had no step to settle.
        """
        slices = self._observed_by(layer)
        for group in modes:
            chosen = slices[slices["mode"].isin(group)]
            if len(chosen):
                return self._best(chosen, late=True)
        return None

    def select_all(self, layer: str) -> Selection | None:
        """All slices of `layer`, the first ones too: what counts does not need warmth."""
        chosen = self._observed_by(layer)
        return self._best(chosen) if len(chosen) else None

    def holding(self, rows: pd.DataFrame) -> Selection | None:
        """The slices of the plan that recorded rows belong to, whoever observed them."""
        slices = self.slices
        chosen = slices[slices["slice"].isin(rows["slice"].unique()) & (slices["steps"] > 0)]
        return self._best(chosen) if len(chosen) else None

    def _observed_by(self, layer: str) -> pd.DataFrame:
        return _where(self.slices, (self.slices["layer"] == layer) & (self.slices["steps"] > 0))

    def _best(self, chosen: pd.DataFrame, *, late: bool = False) -> Selection:
        """These slices, without those that hold evaluation where there are others."""
        mixed = chosen.apply(self._is_mixed, axis=1)
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
        """The steps of the plan that lie in these slices; shared ones have them in common."""
        chosen = self.slices[self.slices["slice"].isin(list(slices))]
        steps = self.steps
        inside = pd.Series(False, index=steps.index)
        for row in chosen.to_dict("records"):
            inside |= (steps["step"] >= row["first_step"]) & (
                steps["step"] < row["first_step"] + row["steps"]
            )
        return _where(steps, inside)

    def _is_mixed(self, row: pd.Series[Any]) -> bool:
        """Whether the rows of a slice hold training and evaluation together."""
        if self.phase != "train" or row["counted_steps"] < row["steps"]:
            return False
        flags = self.steps_of([int(row["slice"])])["flags"]
        return any("eval" in words.split() for words in flags)

    def rows(self, table: str, selection: Selection | None) -> pd.DataFrame:
        """The rows of a table that belong to the selected slices."""
        frame = self.frames[table]
        return _where(frame, frame["slice"].isin(selection.slices if selection else []))


def _as_they_lie(folder: Path, artifacts: pd.DataFrame) -> pd.DataFrame:
    """The artifacts under the names and sizes they have now; a trace is packed after the run."""
    rows = records(artifacts)
    for row in rows:
        packed = folder / f"{row['path']}.gz"
        if packed.is_file() and not (folder / str(row["path"])).is_file():
            row.update(path=f"{row['path']}.gz", bytes=packed.stat().st_size)
    lying: pd.DataFrame = pd.DataFrame(rows, columns=artifacts.columns)
    return lying


def _where(frame: pd.DataFrame, chosen: pd.Series[bool]) -> pd.DataFrame:
    """The chosen rows."""
    rows: pd.DataFrame = frame.loc[chosen]
    return rows


def nullable(value: Any) -> Any:
    """A plain Python value; None for what pandas calls missing."""
    if value is None or (not isinstance(value, (list, dict)) and pd.isna(value)):
        return None
    return value.item() if hasattr(value, "item") else value


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as dictionaries of plain values, None for what is missing; column by column."""
    names = [str(name) for name in frame.columns]
    columns = []
    for name in frame.columns:
        values: list[Any] = frame[name].tolist()
        missing = frame[name].isna()
        if missing.any():
            gaps = missing.tolist()
            values = [None if gap else value for gap, value in zip(gaps, values, strict=True)]
        columns.append(values)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
