"""The tables of operators and kernels, which come from the torch layer."""

from __future__ import annotations

import json
from collections import Counter
from math import prod
from typing import Any

import pandas as pd

from profstack.merge.flops import Counted
from profstack.merge.modules import module_paths
from profstack.merge.recorded import Recorded, Selection, nullable


def operators(
    recorded: Recorded,
    timed: Selection | None,
    clean_s: float | None,
    shaped: Counted | None,
) -> list[dict[str, Any]]:
    """Rows of `operators`, the longest self time first.

    `shaped` is a counter that knows operators, but not their shapes: where one operator of a
    module ran with several, those of matrix products tell, and else its count stands at none.
    """
    if timed is None:
        return []
    paths = module_paths(recorded)
    frame = recorded.rows("operators", timed)
    keys = ["name", "shapes", "module_id"]
    sums = ["calls", "self_s", "total_s", "device_s", "moved_bytes"]
    grouped = frame.assign(lacks=frame["moved_bytes"].isna()).groupby(keys, dropna=False)
    summed = grouped[sums].sum(min_count=1)
    # A sum over calls of which some have no figure is none.
    summed["moved_bytes"] = summed["moved_bytes"].where(~grouped["lacks"].any())
    numbers = [None if pd.isna(module) else int(module) for _, _, module in summed.index]
    variants = Counter(zip(summed.index.get_level_values("name"), numbers, strict=True))
    rows = []
    for (name, shapes, module), totals in summed.sort_values("self_s", ascending=False).iterrows():
        number = None if pd.isna(module) else int(module)
        single = variants[name, number] == 1
        each = timed.per_step(totals["calls"])
        rows.append(
            {
                "name": name,
                "shapes": nullable(shapes),
                "module": paths.get(number) if number is not None else None,
                "flop": _operator_flop(shaped, str(name), number, shapes, each, single=single),
                "calls": each,
                "self_s": timed.per_step(totals["self_s"]),
                "total_s": timed.per_step(totals["total_s"]),
                "device_s": timed.per_step(totals["device_s"]),
                "calibrated_s": timed.calibrated(totals["self_s"], clean_s),
                "moved_bytes": timed.per_step(totals["moved_bytes"]),
            }
        )
    return rows


# The inputs of these whose shapes are multiplied, the last two dimensions of each.
_PRODUCTS = {
    "aten::mm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::bmm": (0, 1),
    "aten::baddbmm": (1, 2),
}


def _operator_flop(
    shaped: Counted | None,
    name: str,
    module: int | None,
    shapes: Any,
    calls: float | None,
    *,
    single: bool,
) -> float | None:
    """Operations per step of one row; None where the counter does not tell it from others."""
    flop = shaped.by_place.get((name, module)) if shaped is not None else None
    if flop is None or single:
        return flop
    if name not in _PRODUCTS or calls is None or nullable(shapes) is None:
        return None
    try:
        inputs = json.loads(shapes)
        left, right = (inputs[place] for place in _PRODUCTS[name])
        return float(2 * prod(left) * right[-1]) * calls
    except (ValueError, LookupError, TypeError):
        return None


def kernels(recorded: Recorded, timed: Selection | None) -> list[dict[str, Any]]:
    """Rows of `kernels`, the longest device time first."""
    if timed is None:
        return []
    paths = module_paths(recorded)
    frame = recorded.rows("kernels", timed)
    keys = ["name", "device", "stream", "module_id", "operator"]
    summed = frame.groupby(keys, dropna=False)[["calls", "device_s"]].sum(min_count=1)
    rows = []
    for key, totals in summed.sort_values("device_s", ascending=False).iterrows():
        name, device, stream, module, operator = (nullable(part) for part in key)
        rows.append(
            {
                "name": name,
                "device": device,
                "stream": stream,
                "module": paths.get(int(module)) if module is not None else None,
                "operator": operator,
                "calls": timed.per_step(totals["calls"]),
                "device_s": timed.per_step(totals["device_s"]),
            }
        )
    return rows
