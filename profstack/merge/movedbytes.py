"""What operators did per step: the bytes they moved, in what type, and what is not known of it.

Bytes are those of every operator by itself, all its inputs and outputs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from profstack.merge.flops import Counted
from profstack.merge.recorded import Recorded, Selection, nullable
from profstack.merge.rooflinepoint import Roofs

# What a point may leave out of its bytes, as a share of its operators' time.
_LARGEST_GAP = 0.05
# Operators whose precision is that of cuDNN; all others that multiply go by that of products.
_BY_CUDNN = re.compile("conv|rnn")


@dataclass
class Work:
    """What operators did per step: bytes, their time, and the time of those without a rule."""

    moved_bytes: float = 0.0
    total_s: float = 0.0
    opaque_s: float = 0.0
    opaque: dict[str, float] = field(default_factory=dict)
    types: dict[str, float] = field(default_factory=dict)
    multiplied: dict[str, float] = field(default_factory=dict)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add one of `moved_rows`."""
        seconds = row["seconds"]
        self.total_s += seconds
        if row["moved_bytes"] is None:
            self.opaque_s += seconds
            name = str(row["operator"])
            self.opaque[name] = self.opaque.get(name, 0.0) + seconds
            return
        self.moved_bytes += row["moved_bytes"]
        if (dtype := row["dtype"]) is not None:
            self.types[dtype] = self.types.get(dtype, 0.0) + seconds
            if row["counted"]:
                self.multiplied[dtype] = self.multiplied.get(dtype, 0.0) + seconds

    def dtype(self) -> str | None:
        """The type that most of the time of what is counted went to, or of all if nothing is.

        Products of bfloat16 beside an optimizer of float32 are held back by the peak of bfloat16,
        however long the optimizer takes.
        """
        types = self.multiplied or self.types
        return max(types, key=lambda name: types[name]) if types else None

    def bytes(self) -> tuple[float | None, str | None]:
        """Bytes moved, and what is lacking of them; None where that may be much."""
        if not self.total_s:
            return None, "no operator of it was seen with its inputs"
        gap = self.opaque_s / self.total_s
        names = sorted(self.opaque, key=lambda name: -self.opaque[name])[:3]
        listed = ", ".join(names)
        if gap > _LARGEST_GAP:
            return (
                None,
                f"no rule tells the bytes of {listed}: {100 * gap:.0f} % of its operators' time",
            )
        lacking = f"without the bytes of {listed}, for which there is no rule" if names else None
        return self.moved_bytes, lacking


def together(rows: list[dict[str, Any]]) -> Work:
    """The work of all rows."""
    work = Work()
    for row in rows:
        work.add(row)
    return work


def moved_rows(
    recorded: Recorded, timed: Selection | None, shaped: Counted | None, roofs: Roofs
) -> list[dict[str, Any]]:
    """What moved bytes per step: one row per operator, module, direction and type.

    `seconds` is its time, on the device where there is one; `counted` whether `shaped` knows its
    operations, and `dtype` the type that it computes in.
    """
    return _with_types(_rows_per_step(recorded, timed), recorded, shaped, roofs)


def _rows_per_step(recorded: Recorded, timed: Selection | None) -> list[dict[str, Any]]:
    if timed is None:
        return []
    frame = recorded.rows("moved_bytes", timed)
    keys = ["operator", "module_id", "backward", "dtype"]
    columns = ["calls", "total_s", "device_s", "moved_bytes"]
    unknown = frame["moved_bytes"].isna()
    summed = frame.groupby([*keys, unknown.rename("unknown")], dropna=False)[columns].sum(
        min_count=1
    )
    on_device = bool(frame["device_s"].notna().any())
    rows = []
    for key, totals in zip(summed.index, summed.to_dict("records"), strict=True):
        named = {name: nullable(part) for name, part in zip(keys, key, strict=False)}
        moved = timed.per_step(totals["moved_bytes"])
        time = totals["device_s"] if on_device else totals["total_s"]
        rows.append({**named, "moved_bytes": moved, "seconds": timed.per_step(time) or 0.0})
    return rows


def _with_types(
    rows: list[dict[str, Any]], recorded: Recorded, shaped: Counted | None, roofs: Roofs
) -> list[dict[str, Any]]:
    """The rows with whether their operations are counted, and the type that they multiply in.

    What is stored as float32 is multiplied as TF32 on a GPU that can, where the script lets it.
    """
    facts = recorded.facts.get("environment", {})
    counts = shaped.by_place if shaped is not None else {}
    typed = []
    for row in rows:
        number = None if row["module_id"] is None else int(row["module_id"])
        dtype, counted = row["dtype"], bool(counts.get((row["operator"], number)))
        if dtype == "float32" and counted and roofs.flop_per_s("tf32") is not None:
            # As torch has it where the script says nothing.
            by_cudnn = _BY_CUDNN.search(row["operator"]) is not None
            name = "tf32_convolutions" if by_cudnn else "tf32_products"
            dtype = "tf32" if facts.get(name, by_cudnn) else dtype
        typed.append({**row, "dtype": dtype, "counted": counted})
    return typed
