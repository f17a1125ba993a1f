"""Inference that is set up for training: gradients are on, or layers are in training mode.

Both rules look at steps that are no training: no optimizer ends them, no backward pass ran in any
step that was noted or traced. `grad-in-inference`: autograd recorded nodes of a graph at the
outermost calls, which nothing goes through. `batchnorm-training-at-inference`: a layer of batch
normalisation that has averages of its own is in training mode, so that what a sample gives depends
on the others in its batch, and every call changes the averages. One without a momentum does not
count: so averages are gathered anew, on purpose. Dropout in training mode alone is none: sampling
with it is a method; it stands in the evidence.
"""

from __future__ import annotations

from typing import Any

from profstack.findings.figures import Report, to_source
from profstack.findings.made import Finding, finding
from profstack.merge.recorded import Recorded

GRAD, NORM = "grad-in-inference", "batchnorm-training-at-inference"
ACTIVATIONS = "activations"
# What memory is kept for a pass that never comes is grave from here, as a share of the peak.
_MUCH = 0.2
_MOST_NAMED = 5
_RECORDING = (
    "the graph is recorded inside the operators' own time, from which no layer tells it apart"
)
_RESULTS = "it is about results, not about time: both modes do about the same work"


def inference(recorded: Recorded, report: dict[str, Any]) -> list[Finding]:
    """What inference does that only training needs."""
    noted = report.get("setup") or {}
    if not noted.get("calls") or not is_inference(recorded, report):
        return []
    return [*_grad(report, noted), *_norms(noted)]


def is_inference(recorded: Recorded, report: Report) -> bool:
    """Whether the report's steps are calls of a model without any backward pass."""
    noted = report.get("setup") or {}
    if report["step"]["phase"] in ("train", None) or noted.get("backward_passes"):
        return False
    frame = recorded.frames["operators"]
    slices = recorded.slices["slice"].tolist()
    return not frame.loc[frame["slice"].isin(slices), "backward"].fillna(0).any()


def _grad(report: Report, noted: dict[str, Any]) -> list[Finding]:
    calls = noted["calls"]
    if not calls["nodes"]:
        return []
    nodes = calls["nodes"] / calls["count"]
    rows = report["tables"]["memory_owners"]
    kept = [row for row in rows if row["kind"] == ACTIVATIONS and row["largest_bytes"]]
    peak = sum(row["peak_bytes"] or 0 for row in rows)
    held = sum(row["largest_bytes"] for row in kept)
    place = calls["place"] or {"file": None, "line": None}
    return [
        finding(
            GRAD,
            f"Autograd records {nodes:.0f} nodes in each call, and no backward pass follows",
            severity="medium" if peak and held >= _MUCH * peak else "low",
            gain_reason=_RECORDING,
            file=place["file"],
            line=place["line"],
            module=calls["module"],
            layers=("memory", "torch") if kept else (),
            evidence=[
                {
                    "nodes": nodes,
                    "calls_with_grad_share": calls["with_grad"] / calls["count"],
                    "calls": calls["count"],
                    "steps": noted["steps"],
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
    ]


def _norms(noted: dict[str, Any]) -> list[Finding]:
    norms, calls = noted["training_norms"], noted["calls"]
    if not norms["count"]:
        return []
    place = calls["place"] or {"file": None, "line": None}
    dropouts = noted["training_dropouts"]
    layers = "layer" if norms["count"] == 1 else "layers"
    return [
        finding(
            NORM,
            f"{norms['count']} {layers} of batch normalisation in training mode at inference",
            severity="high",
            gain_reason=_RESULTS,
            file=place["file"],
            line=place["line"],
            module=norms["modules"][0]["path"],
            layers=(),
            evidence=[
                *(_mode(each) for each in norms["modules"][:_MOST_NAMED]),
                *(_mode(each) for each in dropouts["modules"][:_MOST_NAMED]),
                {"batch_normalisations": norms["count"], "dropouts": dropouts["count"]},
                *_source(calls),
            ],
            advice="Call model.eval() before inference (and model.train() before training goes "
            "on): as it is, a sample's result depends on the other samples of its batch, and "
            "every call changes the averages that are saved with the model."
            + (" Dropout is on too: results are drawn at random." if dropouts["count"] else ""),
        )
    ]


def _mode(module: dict[str, Any]) -> dict[str, Any]:
    return {"type": module["type"], "training": True, "link": f"modules/{module['path']}"}


def _source(calls: dict[str, Any]) -> list[dict[str, Any]]:
    place = calls["place"]
    return [{"link": to_source(place["file"], place["line"])}] if place else []
