"""Whether a device sets the pace of the steps: only then does time saved on it shorten them."""

from __future__ import annotations

from profstack.findings.figures import Report
from profstack.units import format_share

# An idle device waits for the host: what it saves then is waited for all the same.
BUSY_SHARE = 0.8
NOT_ITS_PACE = (
    f"the device is idle for more than {format_share(1 - BUSY_SHARE)} of the step: the host sets "
    "the pace, "
    "and what it saves is not measured"
)


def device_sets_pace(report: Report) -> bool:
    """Whether kernels run for most of the step, by the torch layer's slices."""
    rows = [row for row in report["tables"]["launches"] if row["device_busy_s"] is not None]
    busy = sum(float(row["device_busy_s"]) for row in rows)
    idle = sum(float(row["device_idle_s"] or 0.0) for row in rows)
    return busy > 0 and busy >= BUSY_SHARE * (busy + idle)
