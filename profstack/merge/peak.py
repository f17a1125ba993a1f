"""Memory by owner: of the observed step the bytes of every kind, and who holds the peak."""

from __future__ import annotations

from typing import Any

import pandas as pd

from profstack.merge.modules import module_paths
from profstack.merge.recorded import Recorded, nullable
from profstack.regions import UNOWNED

# What a report holds of one device's holders, the largest first; the recording has them all.
MOST_HOLDERS = 300
HOST = "cpu"
_NOBODY = "not attributed"
# Of these the kind alone does not say whose they are: that says what took them.
_TAKEN = ("activations", "temporaries")
_BYTES = ("start_bytes", "peak_bytes", "largest_bytes", "end_bytes")


def memory_owners(recorded: Recorded) -> list[dict[str, Any]]:
    """Rows of `memory_owners`; the kinds of a device add up to its peak."""
    rows = _of_observed(recorded, "memory_owners")
    return [
        {
            "device": str(row["device"]),
            "kind": str(row["kind"]),
            **{name: int(row[name]) for name in _BYTES},
        }
        for row in rows.to_dict("records")
    ]


def peak_holders(recorded: Recorded) -> list[dict[str, Any]]:
    """Rows of `peak_holders`, the largest of each device first."""
    holders = _of_observed(recorded, "peak_holders")
    paths = module_paths(recorded)
    found: list[dict[str, Any]] = []
    for device, rows in holders.groupby("device", sort=False):
        total = int(rows["bytes"].sum())
        ranked = rows.sort_values("bytes", ascending=False, kind="stable")
        for row in ranked.head(MOST_HOLDERS).to_dict("records"):
            number, backward = nullable(row["module_id"]), nullable(row["backward"])
            found.append(
                {
                    "device": str(device),
                    "kind": str(row["kind"]),
                    "module": None if number is None else paths.get(int(number)),
                    "operator": nullable(row["operator"]),
                    "backward": None if backward is None else bool(backward),
                    "tensors": int(row["tensors"]),
                    "bytes": int(row["bytes"]),
                    "share": int(row["bytes"]) / total if total else None,
                }
            )
    return found


def peak_facts(recorded: Recorded) -> dict[str, float | None]:
    """`memory_peak_bytes` and `memory_attributed_share`, as `attribution` has them.

    They are of the accelerator with the highest peak, or of the host where none was used. What has
    an owner is memory of a known kind; of activations and temporaries that which a module, or a
    part of the step that says whose it is, took.
    """
    holders = _of_observed(recorded, "peak_holders")
    if not len(holders):
        return {"memory_peak_bytes": None, "memory_attributed_share": None}
    peaks = holders.groupby("device")["bytes"].sum()
    device = _main_device(peaks)
    rows = holders[holders["device"] == device]
    owner = pd.to_numeric(rows["module_id"])
    unowned = owner.isna() | owner.isin(UNOWNED)
    nobodys = (rows["kind"] == _NOBODY) | (rows["kind"].isin(_TAKEN) & unowned)
    total = int(peaks[device])
    owned = int(rows.loc[~nobodys, "bytes"].sum())
    return {
        "memory_peak_bytes": total,
        "memory_attributed_share": owned / total if total else None,
    }


def peak_sources(recorded: Recorded) -> dict[str, str]:
    """What the two tables rest on, by `table.column`."""
    if not len(_of_observed(recorded, "memory_owners")):
        return {}
    events = "every block that torch's allocators gave out and took back in one step"
    return {
        "memory_owners.start_bytes": "the tensors alive before the step; of an accelerator also "
        "what its allocator counts",
        "memory_owners.peak_bytes": f"{events}, with the tensors alive before it",
        "peak_holders.bytes": f"{events}, with the tensors alive before it",
    }


def _main_device(peaks: pd.Series[Any]) -> str:
    """The accelerator with the highest peak; without one the host."""
    others = peaks.drop(HOST, errors="ignore")
    return str((others if len(others) else peaks).idxmax())


def _of_observed(recorded: Recorded, table: str) -> pd.DataFrame:
    """The rows of the slice with the highest peak: of several each is a step of its own."""
    selection = recorded.select("torch", (("detail",),))
    rows = recorded.rows(table, selection)
    if not len(rows):
        return rows
    owners = recorded.rows("peak_holders", selection)
    peaks = owners.groupby(["slice", "device"])["bytes"].sum().unstack("device")
    highest = peaks[_main_device(peaks.max())].idxmax()
    chosen: pd.DataFrame = rows[rows["slice"] == highest]
    return chosen
