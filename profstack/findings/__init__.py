"""What the recording shows to be wrong, with its evidence: one module per family of rules.

A finding says what is the matter, what shows it, what it costs in clean time where that is known,
and what to do. Families read the recording and the finished report, and stand by themselves: one
that fails is told of, and takes nothing else with it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from profstack.findings.compiling import compiling
from profstack.findings.dataloading import data_starved
from profstack.findings.dominating import dominating
from profstack.findings.figures import clean_step_s
from profstack.findings.growth import memory_growth
from profstack.findings.hotspots import hot_spots
from profstack.findings.inference import inference
from profstack.findings.made import Finding, bounded, in_order
from profstack.findings.optimizers import unfused_optimizer
from profstack.findings.precision import float32_without_tf32
from profstack.findings.sametime import tell_same_time
from profstack.findings.smalloperators import small_operators
from profstack.findings.sound import sound
from profstack.findings.synchronising import forced_synchronisation
from profstack.findings.transfers import host_to_device_copies
from profstack.findings.trust import trust
from profstack.findings.uncounted import uncounted
from profstack.findings.verdict import add_verdict
from profstack.findings.zeroing import zero_grad_to_zeros
from profstack.merge.recorded import Recorded

Family = Callable[[Recorded, dict[str, Any]], list[Finding]]
FAMILIES: tuple[Family, ...] = (
    memory_growth,
    data_starved,
    forced_synchronisation,
    host_to_device_copies,
    small_operators,
    compiling,
    hot_spots,
    dominating,
    trust,
    uncounted,
    unfused_optimizer,
    zero_grad_to_zeros,
    inference,
    float32_without_tf32,
)


def add_findings(report: dict[str, Any], folder: Path) -> None:
    """Put what the families find in the recording in `folder` into its report, gravest first."""
    recorded, read = Recorded(folder), sound(report)
    for family in FAMILIES:
        try:
            report["findings"] += family(recorded, read)
        except Exception as error:
            # The figures stand without it.
            text = f"findings are missing: {type(error).__name__}: {error}"
            report["warnings"].append({"slug": "findings-failed", "text": text})
    step_s = clean_step_s(report)
    report["findings"] = in_order(bounded(each, step_s) for each in report["findings"])
    try:
        tell_same_time(report["findings"], read)
    except Exception as error:
        text = f"findings do not say which of them overlap: {type(error).__name__}: {error}"
        report["warnings"].append({"slug": "findings-failed", "text": text})
    add_verdict(report, recorded)
