"""The verdict: in one sentence, what holds a step back.

The rule, its thresholds and its titles are in `rules`; here the rule is applied.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from profstack.analysis.benchmark import NONE_CLEAN, relative_half_width, step_name
from profstack.analysis.call_sites import CallSite
from profstack.findings import imported, names, reading, rules, step_bar
from profstack.findings.data_loading import batch_makers, loaders, slowed_by
from profstack.findings.next_step import Lever, action, beside, lever_of
from profstack.findings.own_costs import seen_sites
from profstack.findings.step_cut import Cut, had_all_slices, host_cut
from profstack.storage.reader import Recorded
from profstack.storage.schema.report import (
    Benchmark,
    Place,
    Report,
    Roofline,
    Sureness,
    Verdict,
    VerdictEvidence,
    VerdictFacts,
    VerdictSlug,
)
from profstack.units import format_count, format_seconds, format_share

_NO_PEAKS = "the machine's peaks are not known: next: run without --no-peaks"
_STARVED = rules.DATA_STARVED.slug
_NO_WAIT = "it is not known how long a step waits for its data"


@dataclass
class Measure:
    """A test's share of the clean step, None with a reason, and where to look.

    `place` is in the script, `name` the function or collective there; `facts` are further evidence,
    `made_by` says who makes a batch where no layer saw it.
    """

    share: float | None
    reason: str | None = None
    link: str | None = None
    place: Place | None = None
    name: str | None = None
    made_by: str = ""
    facts: VerdictFacts = field(default_factory=VerdictFacts)


Measures = dict[VerdictSlug, Measure]


def measures(report: Report, cut: Cut, device: step_bar.DeviceCut | None) -> Measures:
    """Return the measures of all tests."""
    if not cut.torch:
        found = {rule.slug: Measure(None, cut.torch_reason) for rule in rules.VERDICT_RULES}
        found[rules.INPUT] = Measure(cut.wait, _NO_WAIT if cut.wait is None else None)
    else:
        found = _device_measures(cut, device) if device is not None else _host_measures(cut)
        found |= _roofline_measures(report, cut.median_s, cut.scale if device is None else 1.0)
    _add_places(found, report, cut)
    return found


def _host_measures(cut: Cut) -> Measures:
    small: VerdictFacts = {"calls": cut.small_calls}
    if cut.small_calls:
        small["call_s"] = cut.small * cut.median_s / cut.small_calls
    # Waiting for other ranks is no Python, even where the thread is not known to be idle.
    return {
        rules.INPUT: Measure(cut.wait, _NO_WAIT if cut.wait is None else None, "modules/(wait)"),
        rules.IO: Measure(cut.io, cut.io_time.reason),
        rules.COMMUNICATION: Measure(cut.communication, name=cut.communication_name),
        rules.PYTHON: Measure(cut.python + cut.after_python),
        rules.LAUNCH: Measure(cut.small, facts=small),
    }


def _device_measures(cut: Cut, device: step_bar.DeviceCut) -> Measures:
    """Divide the device's idle time as the host's time is then."""
    waits, late = device.data_wait, device.host_late
    io = min(cut.io or 0.0, waits + late)
    late -= max(io - waits, 0.0)
    waits = max(waits - io, 0.0)
    idle = (cut.wait or 0.0) + (cut.io or 0.0) + (cut.idle or 0.0)
    work = max(1 - idle - cut.in_waits, 0.0)
    of_python = min((cut.python + cut.after_python) / work, 1.0) if work else 0.0
    return {
        rules.INPUT: Measure(waits, link="modules/(wait)"),
        rules.IO: Measure(None if cut.io is None else io, cut.io_time.reason),
        rules.COMMUNICATION: Measure(device.communication, name=device.communication_name),
        rules.PYTHON: Measure(late * of_python),
        rules.LAUNCH: Measure(late * (1 - of_python), link="ranges/gaps"),
    }


def _roofline_measures(report: Report, median_s: float, scale: float) -> Measures:
    """Return the measures of operators by the roofline, as shares of the clean step.

    `scale` makes clean time of an operator's: a device's kernels take as long as in clean steps.
    """
    roofline = report["roofline"]
    if roofline is None or roofline["bounds"] is None:
        peaks = roofline["peaks"] if roofline else None
        lacks = (peaks["reason"] if peaks else None) or _NO_PEAKS
        return {slug: Measure(None, lacks) for slug in (rules.COMPUTE, rules.MEMORY)}
    bounds = roofline["bounds"]
    compute_facts: VerdictFacts = {
        **step_rates(roofline, rules.COMPUTE),
        "below_limits_share": min(bounds["overhead_s"] * scale / median_s, 1.0),
        "limit_unknown_share": min(bounds["unknown_s"] * scale / median_s, 1.0),
    }
    found: Measures = {}
    for slug, bound, bound_s, facts in (
        (rules.COMPUTE, "compute", bounds["compute_s"], compute_facts),
        (rules.MEMORY, "memory", bounds["memory_s"], step_rates(roofline, rules.MEMORY)),
    ):
        operators = (
            point
            for point in roofline["points"]
            if point["kind"] == "operator" and point["bound"] == bound and point["seconds"]
        )
        first = reading.largest(operators, "seconds")
        link = f"operators/{(first['name'] or '').partition(' in ')[0]}" if first else None
        found[slug] = Measure(min(bound_s * scale / median_s, 1.0), link=link, facts=facts)
    return found


def step_rates(roofline: Roofline, slug: VerdictSlug) -> VerdictFacts:
    """Return the rates of the whole step, beside the machine's peak where that is measured."""
    step = next((point for point in roofline["points"] if point["kind"] == "step"), None)
    if step is None:
        return {}
    if slug == rules.COMPUTE:
        mfu = next((row["value"] for row in roofline["mfu"] if row["source"] == "measured"), None)
        facts: VerdictFacts = {} if mfu is None else {"peak_share": mfu}
        if step["flop_per_s"] is not None:
            facts["flop_per_s"] = step["flop_per_s"]
        return facts
    moved, seconds = step["moved_bytes"], step["seconds"]
    return {"bytes_per_s": moved / seconds} if moved and seconds else {}


def _add_places(found: Measures, report: Report, cut: Cut) -> None:
    """Add the functions and lines of the script at which the causes are."""
    functions = {rules.IO: cut.io_time.function, rules.INPUT: cut.maker}
    python = found[rules.PYTHON]
    if python.share is not None and (hottest := step_bar.hottest(report)) is not None:
        python.link = reading.to_function(reading.key_of(hottest))
        functions[rules.PYTHON] = hottest
    for slug, row in functions.items():
        if row is not None:
            found[slug].place, found[slug].name = names.own_place(report, row)
    if cut.has_loader:
        _add_loading(found[rules.INPUT], report)
    if cut.after is not None and cut.after_python > cut.python:
        python.place, python.name = cut.after.line, cut.after.name
        python.link = reading.to_source(cut.after.line)
        python.facts["after_step_share"] = cut.after_step
    if (writer := cut.io_time.function or cut.io_time.heaviest) is not None:
        found[rules.IO].link = reading.to_function(reading.key_of(writer))
    # No layer sees into workers, and a script's own first level is no function: then it is a line.
    for slug, share in ((rules.INPUT, cut.wait), (rules.IO, cut.io)):
        found[slug].place = found[slug].place or reading.line_outside_work(report, share)
    for slug in (rules.INPUT, rules.IO, rules.PYTHON):
        _name_region(found[slug], report, cut.median_s)
    if name := found[rules.COMMUNICATION].name:
        view = "ranges" if cut.communication_name == name else "kernels"
        found[rules.COMMUNICATION].link = f"{view}/{name}"
    operators = report["tables"]["operators"]
    calls = reading.sums_of(
        (row["name"], row["calls"]) for row in operators if row["name"].startswith("aten::")
    )
    if found[rules.LAUNCH].link is None and cut.torch and calls:
        found[rules.LAUNCH].link = f"operators/{max(calls, key=lambda name: calls[name])}"


# A function with less of the loading does not say what makes the batches; 0 is not known.
_LEAST_LOADING = 0.1


def _add_loading(measure: Measure, report: Report) -> None:
    """Name the first of the user's functions that a DataLoader calls, here or in its workers."""
    graph = reading.CallGraph(report)
    first = names.outermost_loading(report, graph, loaders(graph))
    # Where workers make the batches little of it is left in the process of the steps.
    if first is not None and not 0 < first[2] < _LEAST_LOADING:
        measure.place, measure.name, _ = first
    elif report["processes"]["workers"] and (parts := names.parts_by_text(report)):
        measure.made_by = f", made in DataLoader workers by {' and '.join(parts)}"


def _name_region(measure: Measure, report: Report, median_s: float) -> None:
    """Name the user's own region before a function or a line, where it has most of a cause."""
    if measure.place is None or not measure.share:
        return
    if (region := names.region_of(report, measure.place, measure.share * median_s)) is not None:
        measure.name, measure.place = f"region '{region[0]}'", region[1]


# The sentences of the verdict: the result of the rule, with the figures that it rests on.


def _placed(measure: Measure, lever: Lever | None) -> Measure:
    """Return the measure with no other place than that of the finding to begin with."""
    place = measure.place
    if lever is None or place is None or lever.finding["file"] is None:
        return measure
    if (place["file"], place["line"]) == (lever.finding["file"], lever.finding["line"]):
        return measure
    # What the step waits for is named all the same: the advice says what it calls.
    name = measure.name if lever.finding["slug"] == _STARVED else None
    return replace(measure, place=None, name=name)


def _title(slug: VerdictSlug) -> str:
    return rules.TITLES[slug] if slug == rules.IO else rules.TITLES[slug].lower()


def step_words(mark: Benchmark) -> str:
    """Return the step with its time, and with its interval where it is not known well."""
    kind, _, under = step_name(mark).partition("step")
    words = f"a {kind}step of {format_seconds(mark['median_s'])}{under}"
    half = relative_half_width(mark)
    if half is None or half <= rules.SHOWN_INTERVAL:
        return words
    low, high = format_seconds(mark["ci95_low_s"]), format_seconds(mark["ci95_high_s"])
    return f"{words} (the median is between {low} and {high} with 95 % confidence)"


def sentence(
    slug: VerdictSlug,
    found: Measures,
    step: str,
    margin: float | None,
    *,
    has_loader: bool,
    makes_batch: bool = False,
) -> str:
    """Return the verdict's words on the step, with the share and where to look."""
    if slug in rules.WITHOUT_CAUSE:
        return _balanced(found, step) + _nearest(found, margin)
    if slug == rules.OVERHEAD:
        return _overhead(found, step)
    measure = found[slug]
    after = measure.facts.get("after_step_share")
    what = {
        rules.INPUT: "waits for the next batch"
        if has_loader
        else "goes to making its batch"
        if makes_batch
        else "goes by before the model's first call",
        rules.IO: "reads and writes files",
        rules.COMMUNICATION: f"is spent waiting for other ranks ({measure.name})",
        rules.PYTHON: "is Python, outside all operators"
        + (", most of it after the optimizer's step" if after is not None else ""),
        rules.LAUNCH: "goes to operators so small that calling them is most of their cost",
        rules.COMPUTE: "is in operators at the limit of the machine's arithmetic"
        + _reaches(measure),
        rules.MEMORY: "is in operators at the limit of the memory's bandwidth",
    }[slug]
    if slug in (rules.INPUT, rules.IO, rules.PYTHON):
        named = ("," if after is not None else ", above all") + f" in {measure.name}"
        what += (named if measure.name else "") + reading.in_brackets(measure.place)
        what += measure.made_by
    if call_s := measure.facts.get("call_s"):
        calls = format_count(round(measure.facts["calls"]))
        what += f" ({calls} a step, {format_seconds(call_s)} each)"
    return f"{format_share(measure.share or 0.0)} of {step} {what}"


def _reaches(measure: Measure) -> str:
    peak = measure.facts.get("peak_share")
    return "" if peak is None else f"; the step reaches {format_share(peak)} of the peak"


def _balanced(found: Measures, step: str) -> str:
    peak = found[rules.COMPUTE].facts.get("peak_share")
    reaches = "" if peak is None else f". It reaches {format_share(peak)} of the machine's peak"
    return f"no single cause takes most of {step}{reaches}"


def _overhead(found: Measures, step: str) -> str:
    python, launch = (found[slug].share or 0.0 for slug in (rules.PYTHON, rules.LAUNCH))
    calls = found[rules.LAUNCH].facts.get("calls")
    often = f", {format_count(round(calls))} times a step" if calls else ""
    return (
        f"{format_share(python + launch)} of {step} is overhead of many small operators: "
        f"{format_share(python)} is Python between them and {format_share(launch)} is calling "
        f"them{often}"
    )


def _nearest(found: Measures, margin: float | None) -> str:
    """Return the test that a small change would make the verdict; empty where none is near."""
    if margin is None or margin >= rules.LEAST_APART:
        return ""
    lacks = {
        slug: rules.RULE_OF[slug].threshold - measure.share
        for slug, measure in found.items()
        if measure.share is not None
    }
    slug = min(lacks, key=lambda name: lacks[name])
    share, threshold = format_share(found[slug].share), format_share(rules.RULE_OF[slug].threshold)
    return f". It is nearly {_title(slug)} ({share}, which it is from {threshold} on)"


class CutSteps(NamedTuple):
    """A clean step cut into shares, by its host and by its device, and the user's places in it."""

    host: Cut | None
    device: step_bar.DeviceCut | None
    sites: Sequence[CallSite] = ()


def add_step_bar(report: Report, recorded: Recorded) -> CutSteps | None:
    """Put `step_bar` into the report and return what it is made of.

    A failure becomes a warning, and None.
    """
    report["step_bar"] = None
    try:
        found = CutSteps(host_cut(recorded, report), step_bar.device_cut(report))
        if found.host is not None:
            _add_maker(found.host, recorded, report)
        report["step_bar"] = step_bar.step_bar(report, found.host, found.device)
        step_bar.align_wait(report)
        return found._replace(sites=seen_sites(recorded, report, found.host))
    except Exception as error:
        _warn(report, "the step's bar", error)
        return None


def add_verdict(report: Report, cuts: CutSteps | None) -> None:
    """Put `verdict` into the report; a failure becomes a warning."""
    report["verdict"] = None
    if cuts is None:
        return
    try:
        report["verdict"] = verdict(report, *cuts)
    except Exception as error:
        _warn(report, "the verdict", error)


def _warn(report: Report, what: str, error: Exception) -> None:
    """Warn of an error: the figures are right without what is missing."""
    text = f"{what} is missing: {type(error).__name__}: {error}"
    report["warnings"].append({"slug": "verdict-failed", "text": text})


# A line that sets a name: before the model's first call it makes what the model is given.
_SETS = re.compile(r"\s*[A-Za-z_][\w\s.,()\[\]]*=(?!=)|for ")


def _add_maker(cut: Cut, recorded: Recorded, report: Report) -> None:
    """Note what makes the batch of a step without a DataLoader, as far as it is known."""
    if cut.has_loader or not cut.wait:
        return
    makers = batch_makers(report, cut.wait * cut.median_s, slowed_by(recorded))
    line = reading.line_outside_work(report, cut.wait)
    cut.maker = makers[0].row if makers else None
    sets = line is not None and _SETS.match(reading.text_of(line)) is not None
    cut.makes_batch = bool(makers) or sets


def verdict(
    report: Report,
    cut: Cut | None,
    device: step_bar.DeviceCut | None,
    sites: Sequence[CallSite] = (),
) -> Verdict:
    """Return the verdict by the published rule, with a row of evidence for every test.

    `sites` are the places in the user's code that the steps' time goes to.
    """
    doubt, lever = _doubt(report, cut), lever_of(report)
    if cut is None or doubt is not None:
        if report.get("imports") and (said := imported.answer(report)) is not None:
            return _import_verdict(said)
        words = doubt or "there is no clean step"
        # The sentence has the reason.
        sureness = _sureness(report, rules.UNCLEAR, None, None, lever) if lever else ("hint", None)
        return _verdict(report, rules.UNCLEAR, words, None, sureness, [])
    found = measures(report, cut, device)
    idle = (cut.idle or 0.0) - cut.communication if device is None else 0.0
    shares = {name: measure.share for name, measure in found.items()}
    is_profiled = reading.is_profiled(report)
    if is_profiled:
        # Nobody measured the peaks of the machine that a trace comes from: that rules nothing out.
        shares = {name: share for name, share in shares.items() if share is not None}
    slug, margin, why = decide(shares, max(idle, 0.0))
    if why is not None and margin is None:
        reasons = {each.reason for each in found.values() if each.share is None}
        lacks = str(reasons.pop()) if len(reasons) == 1 else "it is not known"
        why += f": {lacks.partition(':')[0]}"
    step = step_words(report["benchmark"])
    largest = _largest_part(report)
    if idleness := step_bar.idle_sentence(report, cut, step, idle, shares.values()):
        slug, margin, words, why = rules.UNCLEAR, None, idleness, None
    elif not cut.torch and slug == rules.UNCLEAR:
        words = _without_layer(cut) + (f". Its largest part is {largest}" if largest else "")
        why = cut.torch_reason
    elif slug == rules.UNCLEAR and not largest:
        words = str(why)
    else:
        known = {"has_loader": cut.has_loader, "makes_batch": cut.makes_batch}
        named = found | {slug: _placed(found[slug], lever)} if slug in found else found
        words = sentence(slug, named, step, margin, **known)
        if slug in rules.WITHOUT_CAUSE and largest:
            # Where a cause is named first, or could be one, "no single cause" would deny it.
            is_whole = slug == rules.BALANCED and lever is None and not is_profiled
            start = f"{words}. Its largest part" if is_whole else f"the largest part of {step}"
            words = f"{start} is {largest}"
        if slug in _OF_OPERATORS:
            words += _largest_line(report, sites, cut.median_s, lever)
        if is_profiled and slug in _UNDER_TRACING:
            words += ", and the profiler's own work is part of it: how much is not known"
    sureness = _sureness(report, slug, margin, why, lever)
    return _verdict(report, slug, words, margin, sureness, _evidence(found, cut.median_s))


def _import_verdict(said: str) -> Verdict:
    """Return the answer of files without steps: no test of the step applies."""
    return {
        "slug": rules.UNCLEAR,
        "sentence": said,
        "sureness": "hint",
        "sureness_reason": None,
        "action": "",
        "margin": None,
        "evidence": [],
    }


def _without_layer(cut: Cut) -> str:
    """Return what is known of a step that the torch layer says nothing of."""
    words = str(cut.torch_reason)
    if cut.wait is not None:
        # Where gradients are accumulated a step waits again within it.
        words += f"; {format_share(cut.wait)} of a step goes by before the model's first call"
    return f"{words}; {cut.torch_step}" if cut.torch_step else words


# More causes than these are not listed.
_FEW_CAUSES = 2


def decide(
    shares: Mapping[VerdictSlug, float | None], idle: float = 0.0
) -> tuple[VerdictSlug, float | None, str | None]:
    """Return the slug, its margin, and in words why it is unclear or not certain, else None.

    `shares` are the measures of the tests; None for what is not known, which can be no part of the
    `idle` share. The margin of `balanced` is what the nearest test lacks to its threshold.
    """
    known = {slug: share for slug, share in shares.items() if share is not None}
    order = sorted(known, key=lambda slug: -known[slug])
    candidates = [slug for slug in order if known[slug] >= rules.RULE_OF[slug].threshold]
    # What is not known and large enough to be the verdict. Unknown reading and writing is inside
    # the wait and Python.
    most = step_bar.most_unknown(known.values(), idle)
    causes = [
        rules.RULE_OF[slug].cause
        for slug, share in shares.items()
        if share is None and most >= rules.RULE_OF[slug].threshold
        if slug != rules.IO or shares.get(rules.PYTHON) is None
    ]
    could_be = None
    if causes:
        listed = " or ".join(causes) if len(causes) <= _FEW_CAUSES else "something else"
        could_be = f"up to {format_share(most)} of the step could be {listed}"
    if not candidates:
        overhead = known.get(rules.PYTHON, 0.0) + known.get(rules.LAUNCH, 0.0)
        if overhead >= rules.OVERHEAD_SHARE:
            return rules.OVERHEAD, overhead - rules.OVERHEAD_SHARE, None
        if could_be is not None:
            return rules.UNCLEAR, None, could_be
        lacks = [rules.RULE_OF[slug].threshold - share for slug, share in known.items()]
        return rules.BALANCED, min(lacks), None
    first, *others = candidates
    share = known[first]
    next_ = known[others[0]] if others else 0.0
    margin = min(share - rules.RULE_OF[first].threshold, share - next_)
    if others and share - next_ < rules.LEAST_APART:
        return first, margin, f"{_title(others[0])} weighs about as much ({format_share(next_)})"
    if could_be is not None and most > share - rules.LEAST_APART:
        return first, None, could_be
    return first, margin, None


def _doubt(report: Report, cut: Cut | None) -> str | None:
    """Return why nothing can be said of the step; None where something can."""
    mark = report["benchmark"]
    median, count = mark["median_s"], mark["n"]
    if median is None:
        return _without_steps(report)
    if count < rules.FEWEST_CLEAN and not reading.is_profiled(report):
        steps = "1 clean step" if count == 1 else f"{count} clean steps"
        return f"the run gave {steps}, and {rules.FEWEST_CLEAN} are needed; let it make more steps"
    return None


_NONE_STANDS_OUT = "no single cause stands out in this run"
# From this share of the step in which its thread has no core, other work explains a rough time.
_MUCH_LACKING = 0.05
# With fewer clean steps than this, more of them would make a rough time known better.
_FEW_STEPS = 30


def _rough(report: Report) -> str | None:
    """Return that the step's time is not known well, and why; None where it is."""
    mark, processes = report["benchmark"], report["processes"]
    half, no_core_s, step_s = (
        relative_half_width(mark), processes["no_core_s"], processes["step_s"]
    )  # fmt: skip
    if half is not None and half <= rules.SHOWN_INTERVAL:
        return None
    known = "is not known well" if half is None else f"is known to within {format_share(half)}"
    why = "the steps differ among themselves"
    if no_core_s and step_s and no_core_s >= _MUCH_LACKING * step_s:
        why = (
            f"during {format_share(no_core_s / step_s)} of it other work had the cores, and the "
            "thread that makes the steps waited for one"
        )
    elif mark["n"] < _FEW_STEPS:
        why = f"the run gave {format_count(mark['n'])} clean step{'s' * (mark['n'] != 1)}"
    return f"the step's time {known}: {why}"


def _sureness(
    report: Report,
    slug: VerdictSlug,
    margin: float | None,
    reserve: str | None,
    lever: Lever | None,
) -> tuple[Sureness, str | None]:
    """Return how sure the cause is that the verdict names, and the one reason why it is no surer.

    That is a finding where no test names one. `reserve` is another cause that may be as large.
    """
    is_lever = slug in rules.WITHOUT_CAUSE and lever is not None
    if slug in rules.WITHOUT_CAUSE and lever is None:
        return "hint", reserve or _NONE_STANDS_OUT
    if reading.is_profiled(report):
        if slug in _UNDER_TRACING:
            return "hint", "the profiler's own work makes this cause larger"
        return "likely", "no step was timed alone"
    margin = lever.share if is_lever and lever is not None else margin
    if reserve is None and (margin is None or margin < rules.LEAST_APART):
        limit = rules.RULE_OF[slug].threshold if slug in rules.RULE_OF else rules.OVERHEAD_SHARE
        reserve = f"a cause like this counts from {format_share(limit)} on, and it is hardly more"
        if is_lever:
            reserve = f"it is about {format_share(margin or 0.0)} of the time alone"
    why = reserve or _rough(report)
    return ("certain", None) if why is None else ("likely", why)


def _largest_part(report: Report) -> str:
    """Return the largest part of the step and the module with most of it; empty where none is."""
    bar = report["step_bar"]
    known = [part for part in bar["parts"] if part["name"] != "not attributed"] if bar else []
    if not known:
        return ""
    part = max(known, key=lambda each: each["seconds"])
    rows = (row for row in report["tables"]["modules"] if not row["path"].startswith("("))
    first = reading.largest(rows, "self_s") if part["name"] in ("forward", "backward") else None
    where = f"; the step's largest module is {first['path']}" if first is not None else ""
    return f"{part['name']} ({format_share(part['share'])}{where})"


# Verdicts on operators, wherever they are called.
_OF_OPERATORS = (
    rules.BALANCED, rules.UNCLEAR, rules.COMPUTE, rules.MEMORY, rules.LAUNCH, rules.OVERHEAD,
)  # fmt: skip
# What a profiler's own work makes larger, more with stacks than without.
_UNDER_TRACING = (rules.PYTHON, rules.LAUNCH, rules.OVERHEAD)
# A line inside the model with less of the step is not named, alone or beside a finding.
_LARGE_SITE, _BESIDE = 0.15, 1 / 3
# Of a line of the model no more is in other parts of the step.
_OTHER_PARTS = 0.02


def _largest_line(
    report: Report, sites: Sequence[CallSite], step_s: float, lever: Lever | None
) -> str:
    """Return the line inside the model with most of the step; empty where none has much.

    Beside a lever it has to be more than that. The watch's samples tell it, or the torch layer
    where a short run left no step to the watch.
    """
    least = _LARGE_SITE if lever is None else _BESIDE
    if lever is not None and not lever.of_run:
        least = max(least, lever.share)
    found = [(site.share, site.file, site.line) for site in sites if site.part == "forward"]
    if all(row["kind"] != "watch" for row in report["slices"]):
        found = list(_traced_lines(report))
    share, file, line = max(found, default=(0.0, "", 0))
    if share < least:
        return ""
    where = reading.in_words({"file": file, "line": line})
    text = reading.source_line(report, file, line)
    time = f"{format_seconds(share * step_s)}, {format_share(share)}"
    return f". The model's heaviest line ({time}) is {where}" + (f": {text}" if text else "")


def _traced_lines(report: Report) -> Iterator[tuple[float, str, int]]:
    """Yield the lines that ran inside the model with their shares of all lines' time."""
    whole = sum(map(reading.line_s, report["tables"]["lines"]))
    forward: dict[tuple[str, int], float] = defaultdict(float)
    beside: dict[tuple[str, int], float] = defaultdict(float)
    for row in report["tables"]["module_lines"]:
        part = beside if (row["module"] or "(")[0] == "(" else forward
        part[row["file"], row["line"]] += reading.line_s(row) - reading.figure(row, "backward_s")
    for place, seconds in forward.items():
        # A line that calls a library's loop has the other parts of its steps, too.
        if whole and beside[place] <= _OTHER_PARTS * seconds:
            yield seconds / whole, *place


def _without_steps(report: Report) -> str:
    """Return what can be said where there is no clean step."""
    count, ended = report["step"]["count"], report["status_reason"]
    run = report["run"]
    if report["argv"][:1] == ["bench"] and ended:
        return f"it has no figures: {ended}"
    is_run = run["exit_code"] is not None or run["signal"] is not None
    if is_run and report["benchmark"]["target"] is None and not report["environment"].get("torch"):
        if ended is not None and run["exit_code"] != 0:
            return f"{ended} before it imported torch"
        return "the script never imported torch"
    if report["step"]["rule"] == "whole":
        # How much of a script's time its operators took, where torch has any.
        whole = reading.total(report["tables"]["modules"], "self_s")
        operators = reading.total(report["tables"]["operators"], "self_s")
        words = "was measured as a whole"
        if whole:
            share = format_share(min(operators / whole, 1.0))
            words += f": {share} of its {format_seconds(whole)} went to operators"
        if ended is not None:
            return f"{ended}, and {words}"
        return (
            f"no step that repeats was found, and the script {words}; profstack.step() at the end "
            "of each step makes more of it"
        )
    if report["nsys"] and not report["layers"]:
        return "the recording holds an import of Nsight Systems alone"
    if not count:
        return report["step"]["reason"] or "no step was found in the script"
    steps = "1 step" if count == 1 else f"{count} steps"
    if had_all_slices(report):
        return f"of the script's {steps} none that went unobserved can be timed: {NONE_CLEAN}"
    return f"the script ended after {steps}, and none was both warm and clean; let it make more"


def _verdict(
    report: Report,
    slug: VerdictSlug,
    words: str,
    margin: float | None,
    sureness: tuple[Sureness, str | None],
    evidence: list[VerdictEvidence],
) -> Verdict:
    lever = lever_of(report)
    # What starves the step is what an input-bound one waits for.
    is_said = lever is None or (slug == rules.INPUT and lever.finding["slug"] == _STARVED)
    said = f"{rules.TITLES[slug]}: {words}."
    if slug in rules.WITHOUT_CAUSE and (reading.is_profiled(report) or not is_said):
        # Beside a cause neither "balanced" nor "unclear" is one, and of a trace they say nothing.
        said = f"{words[0].upper()}{words[1:]}."
    if lever is not None and not is_said:
        title = lever.finding["title"]
        if lever.of_run and evidence:
            start = "In its steps" if slug in rules.WITHOUT_CAUSE else "Its steps are"
            said = f"{start}{':' * (slug in rules.WITHOUT_CAUSE)} {said[0].lower()}{said[1:]}"
        if slug in rules.WITHOUT_CAUSE and not lever.of_run:
            # Without it the first sentence would stand beside the second as no part of it.
            title += ": mending that should save most"
        said = f"{title}. {said}"
    if evidence and (lever is None or not is_said):
        share = next((row["share"] for row in evidence if row["test"] == slug), None)
        said += beside(report, slug, lever, share)
    return {
        "slug": slug,
        "sentence": said,
        "sureness": sureness[0],
        "sureness_reason": sureness[1],
        "action": action(report, slug, lever),
        "margin": margin,
        "evidence": evidence,
    }


def _evidence(found: Measures, median_s: float) -> list[VerdictEvidence]:
    """Return a row for every test, the largest share first; those that are not known last."""
    rows: list[VerdictEvidence] = []
    for rule in rules.VERDICT_RULES:
        measure = found[rule.slug]
        where: VerdictFacts = {}
        if measure.place is not None:
            where = {"file": measure.place["file"], "line": measure.place["line"]}
        if measure.name is not None:
            where["name"] = measure.name
        row: VerdictEvidence = {
            "test": rule.slug,
            "share": measure.share,
            "threshold_share": rule.threshold,
            "time_s": None if measure.share is None else measure.share * median_s,
            **where,
            **measure.facts,
        }
        if measure.reason is not None:
            row["reason"] = measure.reason
        if measure.link is not None:
            row["link"] = measure.link
        rows.append(row)
    return sorted(rows, key=lambda row: (row["share"] is None, -(row["share"] or 0.0)))
