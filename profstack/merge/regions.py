"""Named ranges: what the script's own regions took, and the NVTX ranges that were emitted."""

from __future__ import annotations

from typing import Any

import pandas as pd

from profstack.merge.recorded import Recorded, Selection


def regions(recorded: Recorded) -> list[dict[str, Any]]:
    """Rows of `regions`, the longest first.

    Times are those of the clean slices; a region that none of them entered has those of the
    other slices it was seen in, which may have been slowed by a layer.
    """
    frame = recorded.frames["region_times"]
    slices = recorded.slices
    # Nothing is told of regions before the step rule is known.
    slices = slices[(slices["kind"] != "startup") & (slices["mode"] != "discovery")]
    numbers = slices["slice"]
    clean = _over(slices[slices["kind"] == "clean"])
    others = _over(slices[slices["kind"] != "clean"])
    rows = {}
    for chosen, words in ((others, "slices with a layer, the start-up or the watch"), (clean, "")):
        inside = frame[frame["slice"].isin(numbers) & frame["slice"].isin(chosen.slices)]
        for path, totals in _summed(inside, "path").items():
            rows[path] = {
                "path": path,
                "calls": chosen.per_step(totals["calls"]),
                "wall_s": chosen.per_step(totals["wall_s"]),
                "measured_in": words or "clean slices",
            }
    return sorted(rows.values(), key=lambda row: -(row["wall_s"] or 0.0))


def _over(slices: pd.DataFrame) -> Selection:
    """All steps of these slices; two layers that shared theirs have them once."""
    once = slices.drop_duplicates("first_step")
    steps, wall_s = int(once["steps"].sum()), float(once["wall_s"].sum())
    return Selection(slices["slice"].tolist(), None, steps, wall_s)


def _summed(frame: pd.DataFrame, key: str) -> dict[str, dict[str, float]]:
    columns = ["calls", "wall_s"]
    summed = frame.groupby(key)[columns].sum(min_count=1)
    rows = zip(summed.index.tolist(), summed.to_numpy(float).tolist(), strict=True)
    return {str(name): dict(zip(columns, row, strict=True)) for name, row in rows}


def ranges(recorded: Recorded, selection: Selection | None) -> list[dict[str, Any]]:
    """Rows of `ranges`: those emitted most first, kind by kind."""
    if selection is None:
        return []
    frame = recorded.rows("ranges", selection)
    summed = frame.groupby(["kind", "name"], dropna=False)[["calls", "emit_s"]].sum(min_count=1)
    rows = [
        {
            "kind": kind,
            "name": name,
            "calls": selection.per_step(totals["calls"]),
            "emit_s": selection.per_step(totals["emit_s"]),
        }
        for (kind, name), totals in zip(
            summed.index.tolist(), summed.to_dict("records"), strict=True
        )
    ]
    return sorted(rows, key=lambda row: (_KINDS.get(row["kind"], 9), -(row["calls"] or 0.0)))


_KINDS = {
    kind: place
    for place, kind in enumerate(("step", "forward", "backward", "optimizer", "module", "region"))
}
