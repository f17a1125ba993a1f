"""Operators that the FLOP counter has no formula for, where they take a good part of the step.

What they compute is missing in every FLOP figure, so that FLOP/s and the share of the peak (MFU)
are too low by an unknown amount. Work that counts leave out by convention (elementwise operators,
normalisation, pooling) is no part of this.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from profstack.findings.made import Finding, finding
from profstack.merge.recorded import Recorded
from profstack.units import format_share

SLUG = "operators-without-flop-formula"
# Below a tenth of the step an FLOP figure without them is as good as the time it is divided by.
_SHARE = 0.1
_MOST = 8
# What torch.compile makes is named by a hash of 52 letters.
_GRAPH = re.compile(r"## Call (?P<graph>CompiledFxGraph \w{6})\w* ##")


def uncounted(recorded: Recorded, report: Mapping[str, Any]) -> list[Finding]:
    """The finding, if the counter of record leaves so much out."""
    counters = report["tables"]["flops"]
    record = next((row for row in counters if row["forward_flop"] is not None), None)
    record = record or next(iter(counters), None)
    rows = [row for row in (record or {}).get("uncounted") or () if row["time_share"]]
    rows.sort(key=lambda row: -row["time_share"])
    share = min(1.0, sum(row["time_share"] for row in rows))
    if record is None or share < _SHARE:
        return []
    names = ", ".join(_GRAPH.sub(r"\g<graph>...", row["operator"]) for row in rows[:3])
    names += ", ..." if len(rows) > 3 else ""
    modules = _modules_of(report, {row["operator"] for row in rows})
    return [
        finding(
            SLUG,
            f"{format_share(share)} of the step is in operators without a FLOP formula ({names})",
            severity="low",
            gain_reason="it makes nothing slower: it makes FLOP/s and MFU too low by what these "
            "operators compute, which nobody counted",
            module=modules[0] if len(modules) == 1 else None,
            layers=("flops", "torch") if record["counter"] != "recorded_shapes" else ("torch",),
            evidence=[
                {
                    "counter": record["counter"],
                    "uncounted_share": share,
                    "link": "method/flops",
                },
                *(
                    {
                        "operator": row["operator"],
                        "calls": row["calls"],
                        "time_share": row["time_share"],
                        "link": f"operators/{_full(report, row['operator'])}",
                    }
                    for row in rows[:_MOST]
                ),
            ],
            advice="Do not judge this model by MFU or FLOP/s: "
            f"{format_share(share)} of its time is in "
            "operators whose operations are in no figure. Where you know their count, add it to "
            "the forward and backward FLOP by hand and divide by the clean step time.",
        )
    ]


def _full(report: Mapping[str, Any], operator: str) -> str:
    """The operator's name as the table of operators has it."""
    names = {row["name"] for row in report["tables"]["operators"]}
    return operator if operator in names else f"aten::{operator}"


def _modules_of(report: Mapping[str, Any], operators: set[str]) -> list[str]:
    """The modules that call them."""
    wanted = {_full(report, operator) for operator in operators}
    found = [row["module"] for row in report["tables"]["operators"] if row["name"] in wanted]
    return sorted({module for module in found if module is not None})
