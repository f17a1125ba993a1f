"""Numbers stored as float32 that a GPU multiplies at full precision, where it could use TF32.

The rule: the device is CUDA's, of capability 8.0 or higher; TF32 is off for products (or for
convolutions); and such operators on float32 take at least 5 % of the clean step. Those that are
bound by arithmetic, by the roofline, would take the less the higher the peak of TF32 is above that
of float32, and not less than their bytes need; the others would take as long as now.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from profstack.findings.figures import Report, Row, clean_step_s
from profstack.findings.made import WORTH_TELLING, Finding, finding, severity_of
from profstack.findings.pace import NOT_ITS_PACE, device_sets_pace
from profstack.merge.recorded import Recorded
from profstack.units import format_share

SLUG = "float32-matmul-without-tf32"
LEAST_CAPABILITY = (8, 0)
# Below, the whole of it is within what runs differ by, whatever TF32 makes of it.
LEAST_SHARE = 0.05
_PRODUCTS = re.compile(r"aten::(?:mm|addmm|bmm|baddbmm|addbmm)$|aten::_scaled_dot_product_")
_CONVOLUTIONS = re.compile(r"conv", re.IGNORECASE)
_SWITCHES = {
    "tf32_products": 'torch.set_float32_matmul_precision("high")',
    "tf32_convolutions": "torch.backends.cudnn.allow_tf32 = True",
}
_NO_PEAKS = "the device's peaks in float32 and in TF32 and its bandwidth are not all known"
_MOST_ROWS = 5


@dataclass
class _Peaks:
    float32: float
    tf32: float
    bandwidth: float

    def saved(self, point: Row) -> float:
        """Seconds that TF32 would save at one operator; nothing where arithmetic is no bound."""
        if point["bound"] != "compute" or point["moved_bytes"] is None:
            return 0.0
        seconds = float(point["seconds"])
        least = float(point["moved_bytes"]) / self.bandwidth
        return max(seconds - max(seconds * self.float32 / self.tf32, least), 0.0)


def float32_without_tf32(recorded: Recorded, report: dict[str, Any]) -> list[Finding]:
    """The finding, where the device could and does not."""
    noted, step_s = report.get("setup") or {}, clean_step_s(report)
    capability = tuple((noted.get("device") or {}).get("capability") or ())
    off = [kind for kind in _SWITCHES if noted.get(kind) is False]
    if step_s is None or capability < LEAST_CAPABILITY or not off:
        return []
    points = [point for point in _points(report) if kind_of(_operator(point)) in off]
    spent = sum(float(point["seconds"]) for point in points)
    if spent < LEAST_SHARE * step_s:
        return []
    gain, reason = _gain(report, points)
    if gain is not None and gain < WORTH_TELLING * step_s:
        return []
    kinds = [kind for kind in off if any(kind_of(_operator(point)) == kind for point in points)]
    switches = " and ".join(_SWITCHES[kind] for kind in kinds)
    return [
        finding(
            SLUG,
            f"{format_share(spent / step_s)} of the step multiplies float32 at full precision: "
            "TF32 is off",
            severity=severity_of(spent if gain is None else gain, step_s),
            gain_s=gain,
            gain_reason=reason,
            layers=("torch",),
            evidence=[
                {
                    "calibrated_s": spent,
                    "step_share": spent / step_s,
                    "capability": ".".join(map(str, capability)),
                }
                | dict.fromkeys(kinds, False),
                *(
                    {
                        "calibrated_s": point["seconds"],
                        "flop": point["flop"],
                        "operator": point["name"],
                        "bound": point["bound"],
                        "link": f"operators/{_operator(point)}",
                    }
                    for point in points[:_MOST_ROWS]
                ),
            ],
            advice=f"Set {switches} where the results allow it: factors are rounded to 10 bits "
            "after the point, sums are float32 as before. Or use autocast to bfloat16, which "
            "halves the bytes too.",
        )
    ]


def _gain(report: Report, points: list[Row]) -> tuple[float | None, str | None]:
    peaks = _peaks(report)
    if peaks is None:
        return None, _NO_PEAKS
    if not device_sets_pace(report):
        return None, NOT_ITS_PACE
    return sum(map(peaks.saved, points)), None


def _peaks(report: Report) -> _Peaks | None:
    """The device's peaks, the measured before the stated ones."""
    found = (report.get("roofline") or {}).get("peaks") or {}
    flop: dict[str, float] = {}
    for rate in found.get("flop_per_s") or ():
        flop.setdefault(rate["dtype"], float(rate["value"]))
    rates = found.get("bytes_per_s") or ()
    if not rates or not {"float32", "tf32"} <= flop.keys():
        return None
    return _Peaks(flop["float32"], flop["tf32"], float(rates[0]["value"]))


def _points(report: Report) -> list[Row]:
    """The operators of the roofline that multiply float32, the longest first."""
    points = [
        point
        for point in (report.get("roofline") or {}).get("points") or ()
        if point["kind"] == "operator" and point["dtype"] == "float32" and point["seconds"]
    ]
    return sorted(points, key=lambda point: -float(point["seconds"]))


def _operator(point: Row) -> str:
    """The operator of a point, which is named with its module."""
    return str(point["name"]).split(" in ", maxsplit=1)[0]


def kind_of(operator: str) -> str | None:
    """Which switch of TF32 an operator that starts such kernels hangs on; None for others."""
    if _PRODUCTS.match(operator):
        return "tf32_products"
    return "tf32_convolutions" if _CONVOLUTIONS.search(operator) else None
