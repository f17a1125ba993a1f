"""Models set up wrongly for their use: gradients, training mode, precision.

Two rules look at steps that are no training: no optimizer ends them, and no backward pass ran in
any step that was noted or traced. A layer of batch normalisation without a momentum does not count:
that is how averages are gathered anew on purpose. Dropout in training mode is no finding by itself,
since sampling with it is a method; it is in the evidence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from profstack.findings import reading, rules
from profstack.storage.reader import Recorded
from profstack.storage.schema.report import (
    Evidence,
    Finding,
    Report,
    RooflinePoint,
    Setup,
    SetupCalls,
)
from profstack.units import format_share

ACTIVATIONS = "activations"
# Memory that is kept for a pass that never comes is severe from this share of the peak on.
_MUCH = 0.2
_MOST_NAMED = 5
_RECORDING = (
    "the graph is recorded inside the operators' own time, from which no layer tells it apart"
)
_RESULTS = "it is about results, not about time: both modes do about the same work"


def inference(recorded: Recorded, report: Report) -> list[Finding]:
    """Return what inference does that only training needs."""
    setup = report["setup"]
    calls = setup.get("calls")
    if not calls or not is_inference(recorded, report):
        return []
    return [*_gradients(report, setup, calls), *_normalisation(setup, calls)]


def is_inference(recorded: Recorded, report: Report) -> bool:
    """Whether the report's steps are calls of a model without any backward pass."""
    if report["step"]["phase"] in ("train", None) or report["setup"].get("backward_passes"):
        return False
    frame = recorded.frames["operators"]
    slices = recorded.slices["slice"].tolist()
    return not frame.loc[frame["slice"].isin(slices), "backward"].fillna(0).any()


def _gradients(report: Report, setup: Setup, calls: SetupCalls) -> Iterator[Finding]:
    if not calls["nodes"]:
        return
    nodes = calls["nodes"] / calls["count"]
    rows = report["tables"]["memory_owners"]
    kept = [row for row in rows if row["kind"] == ACTIVATIONS and row["largest_bytes"]]
    peak = sum(row["peak_bytes"] or 0 for row in rows)
    held = sum(row["largest_bytes"] or 0 for row in kept)
    yield reading.finding(
        rules.GRAD_IN_INFERENCE,
        f"Autograd records {nodes:.0f} nodes in each call, and no backward pass follows",
        severity="medium" if peak and held >= _MUCH * peak else "low",
        gain_reason=_RECORDING,
        place=calls["place"],
        module=calls["module"],
        layers=("memory", "torch") if kept else (),
        evidence=[
            {
                "nodes": nodes,
                "calls_with_grad_share": calls["with_grad"] / calls["count"],
                "calls": calls["count"],
                "steps": setup["steps"],
                "link": f"modules/{calls['module']}",
            },
            *(
                {
                    "kept_after_the_call_bytes": row["largest_bytes"],
                    "device": row["device"],
                    "link": f"memory/{ACTIVATIONS}",
                }
                for row in kept
            ),
            *_source(calls),
        ],
        advice="Call the model inside `with torch.inference_mode():` (or torch.no_grad() "
        "where results go on into training): nothing is recorded, and each activation is "
        "given back as soon as the next layer has used it.",
    )


def _normalisation(setup: Setup, calls: SetupCalls) -> Iterator[Finding]:
    norms, dropouts = setup["training_norms"], setup["training_dropouts"]
    if not norms["count"]:
        return
    modes: list[Evidence] = [
        {"type": each["type"], "training": True, "link": f"modules/{each['path']}"}
        for each in (*norms["modules"][:_MOST_NAMED], *dropouts["modules"][:_MOST_NAMED])
    ]
    yield reading.finding(
        rules.BATCHNORM_TRAINING_AT_INFERENCE,
        f"{norms['count']} {'layer' if norms['count'] == 1 else 'layers'} of batch normalisation "
        "in training mode at inference",
        severity="high",
        gain_reason=_RESULTS,
        place=calls["place"],
        module=norms["modules"][0]["path"],
        evidence=[
            *modes,
            {"batch_normalisations": norms["count"], "dropouts": dropouts["count"]},
            *_source(calls),
        ],
        advice="Call model.eval() before inference (and model.train() before training goes "
        "on): as it is, a sample's result depends on the other samples of its batch, and "
        "every call changes the averages that are saved with the model."
        + (" Dropout is on too: results are drawn at random." if dropouts["count"] else ""),
    )


def _source(calls: SetupCalls) -> list[Evidence]:
    return [{"link": reading.to_source(calls["place"])}] if calls["place"] else []


# Numbers stored as float32 that a GPU multiplies at full precision, where it could use TF32. What
# is bound by arithmetic, by the roofline, would take the less the higher the peak of TF32 is above
# that of float32, and not less than its bytes need; the rest would take as long as now.

Switch = Literal["tf32_products", "tf32_convolutions"]
LEAST_CAPABILITY = (8, 0)
_PRODUCTS = re.compile(r"aten::(?:mm|addmm|bmm|baddbmm|addbmm)$|aten::_scaled_dot_product_")
_CONVOLUTIONS = re.compile(r"conv", re.IGNORECASE)
_SWITCHES: dict[Switch, str] = {
    "tf32_products": 'torch.set_float32_matmul_precision("high")',
    "tf32_convolutions": "torch.backends.cudnn.allow_tf32 = True",
}
_NO_PEAKS = "the device's peaks in float32 and in TF32 and its bandwidth are not all known"
_MOST_ROWS = 5


@reading.family
def float32_without_tf32(recorded: Recorded, report: Report, step_s: float) -> Iterator[Finding]:
    """Yield the finding where the device could use TF32 and does not."""
    setup = report["setup"]
    device = setup.get("device")
    capability = tuple(device["capability"]) if device else ()
    off = [switch for switch in _SWITCHES if setup[switch] is False]
    if capability < LEAST_CAPABILITY or not off:
        return
    points = [
        point
        for point in reading.roofline_points(report)
        if point["kind"] == "operator"
        and point["dtype"] == "float32"
        and point["seconds"]
        and switch_of(_operator(point)) in off
    ]
    points = reading.by_size(points, "seconds")
    spent = reading.total(points, "seconds")
    if spent < rules.FLOAT32_MATMUL_WITHOUT_TF32.threshold * step_s:
        return
    gain, reason = _tf32_gain(report, points)
    if gain is not None and gain < reading.WORTH_TELLING * step_s:
        return
    used = {switch_of(_operator(point)) for point in points}
    switches = [switch for switch in off if switch in used]
    calls = " and ".join(_SWITCHES[switch] for switch in switches)
    yield reading.finding(
        rules.FLOAT32_MATMUL_WITHOUT_TF32,
        f"{format_share(spent / step_s)} of the step multiplies float32 at full precision: "
        "TF32 is off",
        severity=reading.severity_of(spent if gain is None else gain, step_s),
        gain_s=gain,
        gain_reason=reason,
        layers=("torch",),
        evidence=[
            {
                "calibrated_s": spent,
                "step_share": spent / step_s,
                "capability": ".".join(map(str, capability)),
                **dict.fromkeys(switches, False),
            },
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
        advice=f"Set {calls} where the results allow it: factors are rounded to 10 bits "
        "after the point, sums are float32 as before. Or use autocast to bfloat16, which "
        "halves the bytes too.",
    )


def _tf32_gain(report: Report, points: Sequence[RooflinePoint]) -> tuple[float | None, str | None]:
    """Return the seconds that TF32 would save, or why they are not known."""
    flop, bandwidth = reading.known_peaks(report)
    if not bandwidth or not {"float32", "tf32"} <= flop.keys():
        return None, _NO_PEAKS
    if not reading.is_device_bound(report):
        return None, reading.HOST_BOUND
    gain = 0.0
    for point in points:
        if point["bound"] == "compute" and point["moved_bytes"] is not None:
            seconds = point["seconds"] or 0.0
            least = max(seconds * flop["float32"] / flop["tf32"], point["moved_bytes"] / bandwidth)
            gain += max(seconds - least, 0.0)
    return gain, None


def _operator(point: RooflinePoint) -> str:
    """Return the operator of a point, which is named with its module."""
    return (point["name"] or "").partition(" in ")[0]


def switch_of(operator: str) -> Switch | None:
    """Return the switch of TF32 that an operator obeys; None for others."""
    if _PRODUCTS.match(operator):
        return "tf32_products"
    return "tf32_convolutions" if _CONVOLUTIONS.search(operator) else None
