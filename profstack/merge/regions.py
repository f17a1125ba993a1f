"""Named ranges: what the script's own regions took and did, and the NVTX ranges emitted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from profstack.merge.recorded import Recorded, Selection
from profstack.regionstay import OWN
from profstack.schema import CLEAN_SLICES, OTHER_SLICES

# Source and path.
Key = tuple[str, str]
# More names that differ in their numbers alone stand as one.
MOST_ALIKE = 32
_NUMBER = re.compile(r"\d+")
_WORK = ("calls", "wall_s", "operator_s", "device_s", "flop")
_STEPS_OWN = "the steps' own"


def regions(recorded: Recorded, torch: Selection | None) -> list[dict[str, Any]]:
    """Rows of `regions`, one per source and path, the longest first.

    Times are those of the clean slices; a region that none of them entered has those of the
    other slices it was seen in, which may have been slowed by a layer. What was done in it, and
    the times of ranges that a profile alone sees, are of the slices of `torch`; bytes are of those
    that watched memory. What no slice saw stays empty. Numbers without end stand as `#`.
    """
    folded = _folded(recorded)
    timed = _timed(recorded, folded)
    work = _work(recorded, torch, folded)
    kept = _kept_bytes(recorded, folded)
    rows = []
    for key in dict.fromkeys((*timed, *work)):
        source, path = key
        row = {**work.get(key, {}), **timed.get(key, {}), "host_net_bytes": kept.get(key)}
        seen = [each[key]["measured_in"] for each in (timed, work) if key in each]
        rows.append({**row, "source": source, "path": path, "measured_in": "; ".join(seen)})
    return sorted(rows, key=lambda row: -(row["wall_s"] or 0.0))


def _timed(recorded: Recorded, folded: Mapping[str, str]) -> dict[Key, dict[str, Any]]:
    """How long regions lasted, by the script's own clock, in the best slices that entered them."""
    slices = recorded.slices
    # Nothing is told of regions before the step rule is known.
    slices = slices[(slices["kind"] != "startup") & (slices["mode"] != "discovery")]
    clean = slices["kind"] == "clean"
    rows: dict[Key, dict[str, Any]] = {}
    for chosen, words in (
        (_over(slices[~clean]), OTHER_SLICES),
        (_over(slices[clean]), CLEAN_SLICES),
    ):
        for key, some in _by_key(recorded, "region_times", chosen, folded):
            rows[key] = {
                "calls": chosen.per_step(some["calls"].sum()),
                "wall_s": chosen.per_step(some["wall_s"].sum()),
                "threads": _threads(some),
                "measured_in": words,
            }
    return rows


def _threads(rows: pd.DataFrame) -> str | None:
    """In words: the thread that makes the steps, and how many others at most in one slice."""
    if rows["threads"].isna().any():
        return None
    others = int((rows["threads"] - rows["on_steps_thread"]).max())
    words = [_STEPS_OWN] if rows["on_steps_thread"].any() else []
    if others:
        words.append("1 other" if others == 1 else f"{others} others")
    return " and ".join(words)


def _work(
    recorded: Recorded, torch: Selection | None, folded: Mapping[str, str]
) -> dict[Key, dict[str, Any]]:
    """What a profile saw being done in every range."""
    if torch is None:
        return {}
    rows: dict[Key, dict[str, Any]] = {}
    words = f"the torch layer's slices, {torch.in_words()}"
    for key, some in _by_key(recorded, "region_work", torch, folded):
        own = key[0] == OWN
        summed = {name: some[name].sum(min_count=1) for name in _WORK}
        row: dict[str, Any] = {name: torch.per_step(total) for name, total in summed.items()}
        # Regions of profstack's have times of steps that nothing slowed.
        row["threads"] = _STEPS_OWN
        row["measured_in"] = f"what was done on the steps' own thread: {words}" if own else words
        rows[key] = row
    return rows


def _kept_bytes(recorded: Recorded, folded: Mapping[str, str]) -> dict[Key, float | None]:
    """Bytes taken less bytes given back, of the slices that watched memory."""
    detail = recorded.select("torch", (("detail",),))
    if detail is None:
        return {}
    return {
        key: detail.per_step(some["host_net_bytes"].sum(min_count=1))
        for key, some in _by_key(recorded, "region_work", detail, folded)
    }


def _by_key(
    recorded: Recorded, table: str, chosen: Selection, folded: Mapping[str, str]
) -> list[tuple[Key, pd.DataFrame]]:
    """The rows of a table in the chosen slices, by source and path."""
    rows = recorded.rows(table, chosen)
    rows = rows.assign(path=rows["path"].map(folded), source=rows["source"].fillna(OWN))
    return [
        ((str(source), str(path)), some)
        for (source, path), some in rows.groupby(["source", "path"])
    ]


def _folded(recorded: Recorded) -> dict[str, str]:
    """What every path stands as: a number in a name of which there are very many is `#`.

    `step 17` is one of many; `layer 3` is one of twelve, and keeps its name.
    """
    paths = {
        str(path)
        for name in ("region_times", "region_work")
        for path in recorded.frames[name]["path"]
    }
    alike: dict[str, set[str]] = {}
    for path in paths:
        for part in path.split("/"):
            alike.setdefault(_NUMBER.sub("#", part), set()).add(part)
    many = {pattern for pattern, parts in alike.items() if len(parts) > MOST_ALIKE}
    folded = {}
    for path in paths:
        parts = [(part, _NUMBER.sub("#", part)) for part in path.split("/")]
        folded[path] = "/".join(pattern if pattern in many else part for part, pattern in parts)
    return folded


def _over(slices: pd.DataFrame) -> Selection:
    """All steps of these slices; two layers that shared theirs have them once."""
    once = slices.drop_duplicates("first_step")
    steps, wall_s = int(once["steps"].sum()), float(once["wall_s"].sum())
    return Selection(slices["slice"].tolist(), None, steps, wall_s)


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
