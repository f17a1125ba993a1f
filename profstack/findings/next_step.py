"""What to do first: the finding that gains most, or what is usually done.

Where no finding has a gain, it is what is usually done about the verdict's cause, or about the
operators that were seen.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from profstack.code_owner import place_words
from profstack.findings import reading, rules
from profstack.storage.schema.report import Finding, Report, VerdictSlug
from profstack.units import format_seconds

# A finding gains enough to be named before what is usually done.
_LEVER = 0.03
# The parts of the run that are the steps'.
_OF_STEPS = ("steps", "waiting for data")
# Batches of so many items fill a core.
_LARGE_BATCH = 64
_MORE_STEPS = "Let it make more steps on an idle machine; 'profstack bench' repeats a single call."
_NO_STEPS = (
    "Let profstack see the steps: profstack.step() at the end of each where the script makes them "
    "by itself, 'torchrun ... -m profstack run script.py' where other processes make them."
)


class Lever(NamedTuple):
    """The finding that gains most of the run, its gain in words, and the share it is about."""

    finding: Finding
    gain: str
    share: float


# Characters of advice beside a finding's title: the first sentence may only say where.
_LONGEST = 400
# How a sentence ends that names another finding: of one alone it says nothing.
SAME_TIME = "is about some of the same time: gains do not add up."
# A call, an option or a name of a program in a sentence; a place in a file is none.
_CODE = re.compile(r"\w\(|\w=\w|\w_\w|[A-Za-z_]{2}\.[A-Za-z_]|--\w|`")
_PLACE = re.compile(r"\(?[\w./~-]+\.py:\d+\)?")


def first_sentences(advice: str, longest: int = _LONGEST) -> str:
    """Return as many whole sentences as fit, and in any case up to the first that names code.

    The page has them all.
    """
    first, *others = re.split(r"(?<=[.!?]) (?=[A-Z'])", advice)
    others = [each for each in others if not each.endswith(SAME_TIME)]
    named = (bool(_CODE.search(_PLACE.sub("", each))) for each in (first, *others))
    until = next((at for at, is_named in enumerate(named) if is_named), 0)
    for at, sentence in enumerate(others, 1):
        if at > until and len(first) + len(sentence) > longest:
            break
        first += f" {sentence}"
    return first


def action(report: Report, slug: VerdictSlug, lever: Lever | None) -> str:
    """Return what to do first about a step; empty where nothing is known to help."""
    if lever is not None:
        found, place = lever.finding, "there"
        if found["file"]:
            place = f"at {place_words(found['file'], found['line'] or 1)}"
        return f"Begin {place} ({lever.gain}): {first_sentences(found['advice'])}"
    for found in report["findings"]:
        if found["slug"] in {rule.slug for rule in _SIMPLE}:
            return f"Begin with the finding '{found['title']}': {first_sentences(found['advice'])}"
    severe = [each for each in report["findings"] if each["severity"] == "high"]
    if slug in rules.WITHOUT_CAUSE and severe:
        return f"Begin with the finding '{severe[0]['title']}'."
    if slug in rules.RULE_OF:
        return rules.RULE_OF[slug].remedy
    if slug == rules.OVERHEAD:
        return rules.OVERHEAD_REMEDY
    count, is_run = report["benchmark"]["n"], report["benchmark"]["target"] is None
    if not count and not report["step"]["count"] and is_run and report["environment"].get("torch"):
        return _NO_STEPS
    if slug in rules.WITHOUT_CAUSE and count and (usual := _usual(report)):
        return f"Try, one at a time: {', '.join(usual)}."
    is_short = 0 < count < rules.FEWEST_CLEAN and report["benchmark"]["mode"] != "profiled"
    return _MORE_STEPS if is_short else ""


# Whose remedy is a line or two: worth doing before anything whose gain is not known either.
_SIMPLE = (rules.PADDING, rules.NO_KV_CACHE, rules.NO_END_TOKEN, rules.GRAD_IN_INFERENCE)


def _step_share(found: Finding) -> float | None:
    """Return the share of the step that a finding is about, where its evidence says it."""
    share = next((row["step_share"] for row in found["evidence"] if "step_share" in row), None)
    return share if isinstance(share, float) else None


def _in_python(found: Finding) -> str:
    """Return how much of a finding's time the step's bar shows as Python, beside its own part."""
    python_s = found["evidence"][0].get("python_s")
    return f", {format_seconds(python_s)} of it in Python" if isinstance(python_s, float) else ""


def sureness_words(report: Report) -> str | None:
    """Return how sure the verdict's cause is, and why it is no surer; None without a verdict."""
    verdict = report.get("verdict")
    # Reports of older versions have none.
    sureness = verdict.get("sureness") if verdict else None
    # What files without steps say is no cause of a step's time.
    if sureness is None or (report.get("imports") and report["benchmark"]["median_s"] is None):
        return None
    why = verdict.get("sureness_reason") if verdict else None
    return rules.SURENESS[sureness] + (f" {why[0].upper()}{why[1:]}." if why else "")


def lever_of(report: Report) -> Lever | None:
    """Return the finding that gains most of the run; None without one.

    Where a gain is not known, half of the time that the finding is about counts.
    """
    step_s = report["benchmark"]["median_s"] or 0.0
    steps_s = sum(row["wall_s"] for row in report["run_bar"] if row["part"] in _OF_STEPS)
    run_s = sum(row["wall_s"] for row in report["run_bar"] if row["part"] != "profstack")
    gains: list[tuple[float, Lever]] = []
    for each in report["findings"]:
        gain_s, run_gain_s, run_s_of = each["gain_s"] or 0.0, each["run_gain_s"], each["run_s"]
        words = f"saves about {format_seconds(gain_s)} of each step"
        if each.get("gain_reason"):
            words += f"; {each['gain_reason']}"
        if each["gain_s"] is None and (share := _step_share(each)):
            gain_s = reading.HALF * share * step_s
            words = f"takes {format_seconds(share * step_s)} of each step{_in_python(each)}"
        if step_s and gain_s > _LEVER * step_s:
            lever = Lever(each, words, gain_s / step_s)
            gains.append((gain_s * (steps_s or step_s) / step_s, lever))
        elif run_gain_s is not None and not reading.is_bound(each):
            words = f"saves about {format_seconds(run_gain_s)} of the run"
            gains.append((run_gain_s, Lever(each, words, run_gain_s / run_s if run_s else 0.0)))
        elif run_s_of is not None and each["file"] is not None:
            words = f"takes {format_seconds(run_s_of)} of the run"
            if run_gain_s is not None and run_gain_s < run_s_of:
                words += f", of which at most {format_seconds(run_gain_s)} can go"
            lever = Lever(each, words, run_s_of / run_s if run_s else 0.0)
            gains.append((reading.likely_run_gain_s(each), lever))
    return max(gains, key=lambda each: each[0])[1] if gains else None


def _usual(report: Report) -> list[str]:
    """Return what is usually done about operators as they were seen, where it can apply."""
    operators = report["tables"]["operators"]
    names = " ".join({row["name"] for row in operators if row["calls"]})
    environment, batch = report["environment"], report["step"]["batch_size"]
    threads, cores = environment.get("torch_threads"), environment.get("usable_cores")
    roofline = report["roofline"]
    dtypes = {point["dtype"] for point in roofline["points"]} if roofline else set[str | None]()
    is_float32 = dtypes - {None} <= {"float32", "tf32"}
    unfused = "bmm" in names and "softmax" in names and "scaled_dot_product" not in names
    few_threads = isinstance(threads, int) and isinstance(cores, int) and threads < cores
    tried = (
        ("a larger batch", batch is not None and batch < _LARGE_BATCH),
        ("channels_last for the convolutions", "conv" in names),
        ("scaled_dot_product_attention", unfused),
        ("bfloat16 by torch.autocast", re.search(r"conv|mm\b", names) and is_float32),
        ("torch.compile", "CompiledFunction" not in names and bool(names)),
        (f"torch.set_num_threads({cores})", few_threads and environment.get("device") == "cpu"),
    )
    return [words for words, applies in tried if applies]
