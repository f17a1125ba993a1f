"""Rows of the report's tables: add recorded rows up by their keys, and divide them by the steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from profstack.storage.reader import NO_SLICES, Recorded, Selection, sums, whole
from profstack.storage.schema.report import REPORT


def step_rows(
    recorded: Recorded,
    frame: pd.DataFrame,
    selection: Selection | None,
    keys: Sequence[str],
    figures: Sequence[str],
    *,
    largest: str | None = None,
    clean_s: float | None = None,
) -> Iterator[dict[str, Any]]:
    """Add figures up by their keys: yield the keys and the figures per step.

    A row with a `module_id` also has the path of its `module`. `largest` and the order are those
    of `sums`, `clean_s` and `calibrated_s` those of `step_figures`.
    """
    for key, totals in sums(frame, list(keys), figures, largest=largest):
        row = dict(zip(keys, key, strict=True))
        module = recorded.module_path(row.get("module_id"))
        yield {**row, "module": module, **step_figures(selection or NO_SLICES, totals, clean_s)}


def step_figures(
    selection: Selection, totals: Mapping[str, float], clean_s: float | None = None
) -> dict[str, float | None]:
    """Return totals per step, and `calibrated_s`: the `self_s` among them at the clean speed."""
    figures = {name: selection.per_step(total) for name, total in totals.items()}
    return {**figures, "calibrated_s": selection.calibrated(totals.get("self_s"), clean_s)}


def table_rows(table: str, rows: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Return rows with the columns of a table of the report: None for a missing one.

    Values that are no columns of the table are left out.
    """
    names = REPORT[table].names
    return [{name: row.get(name) for name in names} for row in rows]


def module_parents(recorded: Recorded) -> dict[int, int | None]:
    """Return the module around each module by their numbers; None for a root."""
    known = recorded.frames["modules"]
    return dict(zip(known["module_id"].tolist(), map(whole, known["parent_id"]), strict=True))
