"""Inference that does what only training needs, or does it again and again.

Gradients, training mode, text generated without a cache, and batches of one. The first two rules
look at steps that are no training: no optimizer ends them, and no backward pass ran in any step
that was noted or traced. A layer of batch normalisation without a momentum does not count: that is
how averages are gathered anew on purpose. Dropout in training mode is no finding by itself, since
sampling with it is a method; it is in the evidence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

import numpy as np

from profstack.analysis.clean_steps import UNOBSERVED
from profstack.findings import reading, rules
from profstack.storage.reader import Recorded
from profstack.storage.schema.report import Evidence, Finding, Report, SetupCalls
from profstack.storage.untrusted import json_cell
from profstack.units import format_seconds, format_share

ACTIVATIONS = "activations"
# Memory that is kept for a pass that never comes is severe from this share of the peak on.
_MUCH = 0.2
_MOST_NAMED = 5
# For fewer tokens a cache saves little.
_FEWEST_TOKENS = 8


def inference(recorded: Recorded, report: Report) -> list[Finding]:
    """Return what inference does that only training needs."""
    calls = report["setup"].get("calls")
    found, endless = [*_without_cache(report)], [*_without_end(report, calls)]
    if not calls or not is_inference(recorded, report):
        return [*found, *endless]
    growing = [*_growing_inputs(recorded, report, calls)]
    return [
        *(found or growing),
        *endless,
        *_gradients(report, calls),
        *_normalisation(report, calls),
        *_parametrized(report, calls),
        *([] if found or growing else _batches_of_one(report, calls)),
    ]


def _without_cache(report: Report) -> Iterator[Finding]:
    made = report["tokens"]
    if made is None or made["cached"] is not False or made["new_tokens"] < _FEWEST_TOKENS:
        return
    yield reading.finding(
        rules.NO_KV_CACHE,
        f"Each of {made['new_tokens']:.0f} new tokens computes all before it again",
        severity="high",
        gain_reason="what one token alone takes was not seen",
        evidence=[
            {
                "use_cache": False,
                "prompt_tokens": made["prompt_tokens"],
                "new_tokens": made["new_tokens"],
                "new_tokens_per_s": made["new_tokens_per_s"],
            }
        ],
        advice="Call generate(..., use_cache=True), which is its default: keys and values of "
        "earlier tokens are kept, and each call of the model has one token to compute.",
    )


# With fewer calls, or shorter texts, an end that is missing on purpose is as likely.
_FEWEST_TEXTS = 8


def _without_end(report: Report, calls: SetupCalls | None) -> Iterator[Finding]:
    made = report["tokens"]
    if made is None or made["can_end"] is not False:
        return
    if made["generations"] < _FEWEST_TEXTS or made["new_tokens"] < _FEWEST_TOKENS:
        return
    later_s = made["later_token_s"]
    each = f" Each token after the first takes {format_seconds(later_s)}." if later_s else ""
    yield reading.finding(
        rules.NO_END_TOKEN,
        f"No end token is set: each of {made['generations']} calls of generate makes all of "
        f"{made['new_tokens']:.0f} new tokens",
        severity="medium",
        gain_reason="where each text could have ended is not known",
        place=calls["place"] if calls else None,
        evidence=[reading.pick(made, "can_end", "generations", "new_tokens", "later_token_s")],
        advice="Where what comes after an end is thrown away, let generate stop there: "
        f"eos_token_id=, stop_strings= or stopping_criteria=.{each}",
    )


# A text that is written token by token: so many calls, most of them one token longer than the last.
_FEWEST_CALLS = 8
_MOSTLY_LONGER = 0.7
# Lengths that a line needs, and its slope's standard error from which on it says nothing: twice
# that is how far a gain may be off.
_FEWEST_LENGTHS = 4
_ROUGH = 0.15
# The second size of an input: its length.
_LENGTH = re.compile(r"\d+x(\d+)")


def _growing_inputs(recorded: Recorded, report: Report, calls: SetupCalls) -> Iterator[Finding]:
    """Yield the finding on text that a loop of the script's own generates without a cache.

    What a call with one token alone would take is where the line through the calls' times by their
    lengths meets one token.
    """
    known = [
        (int(found[1]), row)
        for row in recorded.steps
        if (row["wall_s"] or 0.0) > 0 and (found := _LENGTH.match(row["shape"] or ""))
    ]
    lengths = [length for length, _ in known]
    # Of a long watch not all steps are kept.
    neighbours = [
        after - before
        for (before, row), (after, later) in pairwise(known)
        if later["step"] - row["step"] == 1
    ]
    longer = neighbours.count(1)
    if len(known) < _FEWEST_CALLS or longer < _MOSTLY_LONGER * (len(neighbours) + 1):
        return
    alone = [(length, row["wall_s"]) for length, row in known if row["kind"] in UNOBSERVED]
    pauses = recorded.rare_pauses([wall_s for _, wall_s in alone])
    slope, error = _line([each for each, is_long in zip(alone, pauses, strict=True) if not is_long])
    usual = float(median(lengths))
    step_s = reading.clean_step_s(report)
    is_known = step_s is not None and slope > 0 and error <= _ROUGH * slope
    gain_s = min(slope * (usual - 1), step_s) if step_s and is_known else None
    yield reading.finding(
        rules.NO_KV_CACHE,
        "Each new token computes all before it again: the input grows by one token a call",
        severity="high",
        gain_s=gain_s,
        gain_reason="the times of calls that nothing observed do not tell what a token takes: they "
        "are too few, or scatter too much",
        place=calls["place"],
        module=calls["module"],
        evidence=[
            {
                "calls": len(known),
                "one_token_longer_share": longer / len(known),
                "median_tokens": usual,
                "longest_tokens": float(max(lengths)),
                "per_token_s": slope if is_known else None,
                "link": f"modules/{calls['module']}",
            }
        ],
        advice="Keep keys and values of earlier tokens (a key-value cache) and give the model the "
        "new token alone. A model of transformers does so in generate(use_cache=True).",
    )


def _line(calls: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return the slope of times by length, and its standard error; infinite of too few lengths."""
    if len({length for length, _ in calls}) < _FEWEST_LENGTHS:
        return 0.0, math.inf
    lengths, times = np.array(calls, dtype=float).T
    slope, start = np.polyfit(lengths, times, 1)
    left = times - slope * lengths - start
    spread = ((lengths - lengths.mean()) ** 2).sum()
    return float(slope), math.sqrt((left**2).sum() / (len(times) - 2) / spread)


# Requests of one item each, so many that several could have been computed together.
_FEWEST_REQUESTS = 20


def _batches_of_one(report: Report, calls: SetupCalls) -> Iterator[Finding]:
    made = report["requests"]
    if made is None or report["step"]["batch_size"] != 1 or made["count"] < _FEWEST_REQUESTS:
        return
    yield reading.finding(
        rules.BATCH_OF_ONE,
        f"Each of {made['count']} calls of the model has one item",
        severity="low",
        gain_reason="what larger batches gain was not measured: 'profstack bench' with "
        "--batch-sizes does",
        place=calls["place"],
        module=calls["module"],
        evidence=[{"calls": made["count"], "p50_s": made["p50_s"], "link": "overview/requests"}],
        advice=f"A call takes {format_seconds(made['p50_s'])}. Gather items that are there "
        "at the same time and compute them in one call (dynamic batching); "
        "'profstack bench --batch-sizes 1,2,4,8' measures what each size gains.",
    )


def is_inference(recorded: Recorded, report: Report) -> bool:
    """Whether the report's steps are calls of a model without any backward pass."""
    if report["step"]["phase"] in ("train", None) or report["setup"].get("backward_passes"):
        return False
    slices = {row["slice"] for row in recorded.slices}
    return not any(
        row["backward"] and row["slice"] in slices for row in recorded.table("operators")
    )


def _gradients(report: Report, calls: SetupCalls) -> Iterator[Finding]:
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
        gain_reason="the graph is recorded inside the operators' own time, from which no layer "
        "tells it apart: 'profstack bench --mistakes' measures both",
        place=calls["place"],
        module=calls["module"],
        layers=("memory", "torch") if kept else (),
        evidence=[
            {
                "nodes": nodes,
                "calls_with_grad_share": calls["with_grad"] / calls["count"],
                "calls": calls["count"],
                "steps": report["setup"]["steps"],
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


# What a call of batch normalisation takes in evaluation mode on the CPU, of its time in training
# mode: a share and a fixed part, by whether its input has dimensions after the channels. Of 7
# shapes from 2,000 to 3 million elements, torch 2.13: the difference is within 12 % of what was
# measured.
_EVALUATED = {True: (0.11, 2.5e-6), False: (0.6, 0.3e-6)}
_NORM = "aten::native_batch_norm"
# Traced steps took up to so many times as long as clean ones: the geometric mean of a traced time
# and of its calibrated one is within 30 % of both.
_MOST_SLOWED = 1.3**2


def _training_mode_s(report: Report) -> float | None:
    """Return what training mode costs of a step: batches' averages, their counts, and dropout.

    None on devices for which it was not measured, and where tracing slowed the step too much.
    """
    norms, dropouts = report["setup"]["training_norms"], report["setup"]["training_dropouts"]
    named = [*norms["modules"], *dropouts["modules"]]
    if reading.on_accelerator(report) or len(named) < norms["count"] + dropouts["count"]:
        return None
    rows = report["tables"]["operators"]
    if not any(row["name"] == _NORM and row["calibrated_s"] for row in rows):
        return None
    in_norms, in_dropouts = ({each["path"] for each in of["modules"]} for of in (norms, dropouts))
    slowed = (reading.traced_step_s(report) or 0.0) / (reading.clean_step_s(report) or math.inf)
    if not 1 / _MOST_SLOWED <= slowed <= _MOST_SLOWED:
        return None
    cost_s = 0.0
    for row in rows:
        spent_s, calls = reading.figure(row, "calibrated_s"), reading.figure(row, "calls")
        # Between its time as traced and as calibrated: what slowed the step may be in others.
        spent_s *= math.sqrt(slowed)
        # In evaluation mode dropout gives back its input, and nothing is counted.
        if row["module"] in in_dropouts or (row["module"] in in_norms and "add_" in row["name"]):
            cost_s += spent_s
        elif row["module"] in in_norms and row["name"] == _NORM:
            first = next(iter(json_cell(row["shapes"], list[list[object]])), None) or []
            share, fixed_s = _EVALUATED[len(first) > 2]
            cost_s += max((1 - share) * spent_s - calls * fixed_s, 0.0)
    return cost_s


def _normalisation(report: Report, calls: SetupCalls) -> Iterator[Finding]:
    norms, dropouts = report["setup"]["training_norms"], report["setup"]["training_dropouts"]
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
        gain_s=_training_mode_s(report),
        gain_reason="its operators were not timed, or not on a CPU, or in steps that took far "
        "longer than the clean ones",
        layers=("torch",),
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


_PARAMETRIZES = re.compile(r"\b(?:orthogonal|spectral_norm|weight_norm|register_parametrization)\(")


def _parametrized(report: Report, calls: SetupCalls) -> Iterator[Finding]:
    rows = [row for row in report["tables"]["modules"] if row["type"] == "ParametrizationList"]
    seconds, traced_s = reading.total(rows, "forward_s"), reading.traced_step_s(report)
    if not traced_s or seconds < rules.PARAMETRIZED_AT_INFERENCE.threshold * traced_s:
        return
    share, largest = seconds / traced_s, reading.by_size(rows, "forward_s")
    weights = "1 weight is" if len(rows) == 1 else f"{len(rows)} weights are"
    yield reading.finding(
        rules.PARAMETRIZED_AT_INFERENCE,
        f"{weights} computed anew in each step, {format_share(share)} of it",
        severity=reading.severity_of(share, 1.0),
        gain_s=reading.calibrated(report, seconds),
        gain_reason=reading.why_uncalibrated(report),
        place=reading.own_text(report, _PARAMETRIZES) or calls["place"],
        module=largest[0]["path"],
        layers=["torch"],
        evidence=[
            {
                "module": row["path"],
                "forward_s": reading.calibrated(report, row["forward_s"]),
                "link": f"modules/{row['path']}",
            }
            for row in largest[:_MOST_NAMED]
        ],
        advice="They do not change while nothing trains: put all calls of the model together "
        "inside torch.nn.utils.parametrize.cached(), or make them plain weights once "
        "(torch.nn.utils.parametrize.remove_parametrizations(module, name)).",
    )


def _source(calls: SetupCalls) -> list[Evidence]:
    return [{"link": reading.to_source(calls["place"])}] if calls["place"] else []
