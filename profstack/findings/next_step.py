"""What to do first: the finding that gains most, or what is usually done.

Where no finding has a gain, it is what is usually done about the verdict's cause, or about the
operators that were seen.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from profstack.code_owner import place_words
from profstack.findings import rules
from profstack.storage.schema.report import Finding, Report, VerdictSlug
from profstack.units import format_seconds, format_share

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
    """A finding that gains something of the run: what, in words, and the share it is about.

    `of_run` says that this is a share of the run, else of a step; `weight_s` is what counts against
    other findings, in seconds of the run.
    """

    finding: Finding
    gain: str
    share: float
    of_run: bool
    weight_s: float


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
    first, *others = _sentences(advice)
    others = [each for each in others if not each.endswith(SAME_TIME)]
    named = (bool(_CODE.search(_PLACE.sub("", each))) for each in (first, *others))
    until = next((at for at, is_named in enumerate(named) if is_named), 0)
    for at, sentence in enumerate(others, 1):
        if at > until and len(first) + len(sentence) > longest:
            break
        first += f" {sentence}"
    return first


# Between two sentences; and what opens and closes brackets and quotations, which stay whole.
_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.) (?=[A-Z'])")
_OPENS, _CLOSES = re.compile(r"\(|(?<!\w)'(?=[^\s).,:;!?])"), re.compile(r"\)|(?<=\S)'(?!\w)")


def _sentences(text: str) -> list[str]:
    """Return the sentences of a text; a title or a line of code in it is not cut."""
    found: list[str] = []
    for piece in _END.split(text):
        if found and len(_OPENS.findall(found[-1])) > len(_CLOSES.findall(found[-1])):
            found[-1] += f" {piece}"
        else:
            found.append(piece)
    return found


def action(report: Report, slug: VerdictSlug, lever: Lever | None) -> str:
    """Return what to do first about a step; empty where nothing is known to help."""
    if lever is not None:
        found, place = lever.finding, ""
        if found["file"]:
            place = f"Begin at {place_words(found['file'], found['line'] or 1)}: "
        remedy, told = (first_sentences(found["advice"], longest) for longest in (0, _LONGEST))
        gain = f" {lever.gain}" if lever.gain else ""
        return f"{place}{remedy}{gain}{told.removeprefix(remedy)}"
    first = _without_gain(report)
    if first is not None and (slug in rules.WITHOUT_CAUSE or first["slug"] in _SIMPLE):
        return f"Begin with the finding '{first['title']}': {first_sentences(first['advice'])}"
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
_SIMPLE = frozenset(
    rule.slug
    for rule in (
        rules.PADDING,
        rules.CALLED_AGAIN,
        rules.NO_KV_CACHE,
        rules.NO_END_TOKEN,
        rules.GRAD_IN_INFERENCE,
    )
)
# Where nothing tells what of a time can go.
_HALF = 0.5
_LITTLE = 0.2


def _step_share(found: Finding) -> float | None:
    """Return the share of the step that a finding is about, where its evidence says it."""
    share = next((row["step_share"] for row in found["evidence"] if "step_share" in row), None)
    return share if isinstance(share, float) else None


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
    """Return the finding that gains most of the run; None without one."""
    return next(iter(_levers(report)), None)


def _levers(report: Report) -> list[Lever]:
    """Return the findings that gain something, that with most of the run first."""
    step_s = report["benchmark"]["median_s"] or 0.0
    steps_s = sum(row["wall_s"] for row in report["run_bar"] if row["part"] in _OF_STEPS)
    run_s = sum(row["wall_s"] for row in report["run_bar"] if row["part"] != "profstack")
    found = [
        _of_step(each, step_s, steps_s or step_s) or _of_run(each, run_s)
        for each in report["findings"]
    ]
    known = [each for each in found if each is not None]
    if any(map(_is_simple, report["findings"])):
        # A line or two may gain more than a little code of which nobody knows what can go.
        known = [each for each in known if not _is_little(each)]
    return sorted(known, key=lambda lever: -lever.weight_s)


def _is_simple(found: Finding) -> bool:
    """Whether a finding's remedy is a line or two, and what it gains is not known."""
    return found["slug"] in _SIMPLE and found["gain_s"] is None


def _is_little(lever: Lever) -> bool:
    """Whether a lever is a small part of the step, and what of it can go is not known."""
    is_known = lever.finding["gain_s"] is not None or lever.of_run
    return not is_known and lever.share < _LITTLE


def _of_step(found: Finding, step_s: float, steps_s: float) -> Lever | None:
    """Return what a finding gains of the steps; half of its time where that is not known."""
    known_s = found["gain_s"]
    if known_s is not None:
        gain_s = weight_s = known_s
        words = f"That saves about {format_seconds(gain_s)} of each step."
        if why := found.get("gain_reason"):
            words += f" {why[0].upper()}{why[1:]}."
    else:
        gain_s = (_step_share(found) or 0.0) * step_s
        weight_s = _HALF * gain_s
        # What of it the step's bar shows as Python, beside its own part.
        python_s = found["evidence"][0].get("python_s") if gain_s else None
        inside = ""
        if isinstance(python_s, float):
            inside = f", {format_seconds(python_s)} of it in Python"
        words = f"It is about {format_seconds(gain_s)} of each step{inside}."
    if not step_s or weight_s <= _LEVER * step_s:
        return None
    return Lever(found, words, gain_s / step_s, False, weight_s * steps_s / step_s)


def _of_run(found: Finding, run_s: float) -> Lever | None:
    """Return what a finding gains of the run, or half of its bound or time at a known place."""
    gain_s, takes_s = found["run_gain_s"], found["run_s"]
    if gain_s is not None and found.get("run_gain_is") != "at most":
        words = f"That saves about {format_seconds(gain_s)} of the run."
        return Lever(found, words, gain_s / run_s if run_s else 0.0, True, gain_s)
    if takes_s is None or found["file"] is None:
        return None
    time = format_seconds(takes_s)
    words = "" if f" {time}" in found["advice"] else f"It is about {time} of the run."
    if gain_s is not None and gain_s < takes_s:
        words = f"{words} At most {format_seconds(gain_s)} of it can go.".lstrip()
    weight_s = _HALF * (takes_s if gain_s is None else gain_s)
    return Lever(found, words, takes_s / run_s if run_s else 0.0, True, weight_s)


def _without_gain(report: Report) -> Finding | None:
    """Return the finding to begin with where none has a gain: a simple one, else a severe one."""
    simple = filter(_is_simple, report["findings"])
    severe = (each for each in report["findings"] if each["severity"] == "high")
    return next(simple, None) or next(severe, None)


_ORDER = ("high", "medium", "low")


def in_order(report: Report) -> list[Finding]:
    """Return the findings in the order in which to mend them.

    First the one that the verdict begins with, then the most severe; among these those with most
    of the run, then those that take most of it without a known place, then by gain.
    """
    levers = _levers(report)
    first = levers[0].finding if levers else _without_gain(report)
    weights = {id(lever.finding): lever.weight_s for lever in levers}

    def order(each: Finding) -> tuple[bool, int, float, float, float]:
        weight_s = weights.get(id(each), 0.0)
        severity = _ORDER.index(each["severity"])
        is_later = first is not each
        return is_later, severity, -weight_s, -(each.get("run_s") or 0.0), -(each["gain_s"] or 0.0)

    return sorted(report["findings"], key=order)


def beside(report: Report, slug: VerdictSlug, lever: Lever | None, share: float | None) -> str:
    """Return why what is to be done first is not what the verdict is about; empty where it is.

    `share` is that of the verdict's cause, None where it names none.
    """
    if lever is None:
        first = None if slug in rules.WITHOUT_CAUSE else _without_gain(report)
        return f" Beside that: {first['title']}." if first is not None else ""
    if share is not None and not lever.of_run and lever.share < _HALF * share:
        return f" The first is not most of these {format_share(share)}, but should save most."
    return ""


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
