"""The verdict: in one sentence, what holds a step back.

The rule, its thresholds and its titles are in `rules`; here the rule is applied.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from profstack.analysis.benchmark import NONE_CLEAN, relative_half_width
from profstack.findings import reading, rules, step_bar
from profstack.findings.step_cut import Cut, had_all_slices, host_cut
from profstack.storage.reader import Recorded
from profstack.storage.schema.report import (
    Benchmark,
    Finding,
    Place,
    Report,
    Roofline,
    Sureness,
    Verdict,
    VerdictEvidence,
    VerdictFacts,
    VerdictSlug,
)
from profstack.storage.schema.rows import FunctionRow, LineRow
from profstack.units import format_count, format_seconds, format_share

_NO_PEAKS = "the machine's peaks are not known: next: run without --no-peaks"
_NO_WAIT = "it is not known how long a step waits for its data"


@dataclass
class Measure:
    """A test's share of the clean step, None with a reason, and where to look.

    `place` is in the script, `name` the function or collective there; `facts` are further evidence.
    """

    share: float | None
    reason: str | None = None
    link: str | None = None
    place: Place | None = None
    name: str | None = None
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
        rules.PYTHON: Measure(cut.python),
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
    of_python = min(cut.python / work, 1.0) if work else 0.0
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
    functions = {rules.IO: cut.io_time.function}
    python = found[rules.PYTHON]
    if python.share is not None and (hottest := step_bar.hottest(report)) is not None:
        python.link = reading.to_function(reading.key_of(hottest))
        functions[rules.PYTHON] = hottest
    if cut.has_loader:
        functions[rules.INPUT] = _loader_function(report)
    for slug, row in functions.items():
        if row is not None:
            found[slug].place, found[slug].name = row, row["name"]
    if cut.after is not None and cut.after_python > cut.python / 2:
        python.place, python.name = cut.after.line, None
        python.link = reading.to_source(cut.after.line)
        python.facts["after_step_share"] = cut.after_python
    if (writer := cut.io_time.function or cut.io_time.heaviest) is not None:
        found[rules.IO].link = reading.to_function(reading.key_of(writer))
    # No layer sees into workers, and a script's own first level is no function: then it is a line.
    for slug, share in ((rules.INPUT, cut.wait), (rules.IO, cut.io)):
        found[slug].place = found[slug].place or line_outside_work(report, share)
    if name := found[rules.COMMUNICATION].name:
        view = "ranges" if cut.communication_name == name else "kernels"
        found[rules.COMMUNICATION].link = f"{view}/{name}"
    operators = report["tables"]["operators"]
    calls = reading.sums_of(
        (row["name"], row["calls"]) for row in operators if row["name"].startswith("aten::")
    )
    if found[rules.LAUNCH].link is None and cut.torch and calls:
        found[rules.LAUNCH].link = f"operators/{max(calls, key=lambda name: calls[name])}"


def _loader_function(report: Report) -> FunctionRow | None:
    """Return the user's own function that a data set's items come from."""
    graph = reading.CallGraph(report)
    called = {
        callee
        for caller, edges in graph.callees.items()
        if "torch/utils/data/" in caller.file.replace("\\", "/")
        for callee, _ in edges
    }
    rows = (row for key, row in graph.rows.items() if row["own"] and key in called)
    return reading.largest(rows, "total_s")


def line_outside_work(report: Report, wanted: float | None) -> LineRow | None:
    """Return the line of the script that takes about this share of the step outside its work.

    What a line does in modules, in the loss or in the optimizer does not count: a line that calls
    the model may take as long.
    """
    working = reading.sums_of(
        ((row["file"], row["line"]), reading.line_s(row))
        for row in report["tables"]["module_lines"]
        if row["module"] not in (None, "(wait)")
    )
    lines = [row for row in report["tables"]["lines"] if row["own"] and row["python_s"] is not None]
    whole = sum(map(reading.line_s, lines))
    if not whole or not wanted or not working:
        return None

    def outside_s(row: LineRow) -> float:
        return reading.line_s(row) - working.get((row["file"], row["line"]), 0.0)

    first = max(lines, key=outside_s)
    return first if 0.6 * wanted <= outside_s(first) / whole <= 1.2 * wanted else None


# The sentences of the verdict: the result of the rule, with the figures that it rests on.


def _title(slug: VerdictSlug) -> str:
    return rules.TITLES[slug] if slug == rules.IO else rules.TITLES[slug].lower()


def step_words(mark: Benchmark) -> str:
    """Return the clean step with its time, and with its interval where it is not known well."""
    words = f"a clean step of {format_seconds(mark['median_s'])}"
    half = relative_half_width(mark)
    if half is None or half <= rules.SHOWN_INTERVAL:
        return words
    low, high = format_seconds(mark["ci95_low_s"]), format_seconds(mark["ci95_high_s"])
    return f"{words} (at 95 %: {low} to {high})"


def sentence(
    slug: VerdictSlug, found: Measures, step: str, margin: float | None, *, has_loader: bool
) -> str:
    """Return the verdict's words on the step, with the share and where to look."""
    if slug == rules.BALANCED:
        return _balanced(found, step) + _nearest(found, margin)
    measure = found[slug]
    after = measure.facts.get("after_step_share")
    what = {
        rules.INPUT: "waits for the next batch"
        if has_loader
        else "goes by before its first work: in making its batch, or in what else the script does "
        "there",
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
        what += reading.in_brackets(measure.place)
    if slug == rules.INPUT and not has_loader and found[rules.IO].share is None:
        what += "; how much of that reads or writes files is not known"
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


def add_verdict(report: Report, recorded: Recorded) -> None:
    """Put `verdict` and `step_bar` into the report; a failure becomes a warning."""
    report["verdict"] = report["step_bar"] = None
    try:
        cut, device = host_cut(recorded, report), step_bar.device_cut(report)
        report["step_bar"] = step_bar.step_bar(report, cut, device)
        report["verdict"] = verdict(report, cut, device)
    except Exception as error:
        # The figures are right without it.
        text = f"the verdict is missing: {type(error).__name__}: {error}"
        report["warnings"].append({"slug": "verdict-failed", "text": text})


def verdict(report: Report, cut: Cut | None, device: step_bar.DeviceCut | None) -> Verdict:
    """Return the verdict by the published rule, with a row of evidence for every test."""
    doubt = _doubt(report, cut)
    if cut is None or doubt is not None:
        words = doubt or "there is no clean step"
        return _verdict(report, rules.UNCLEAR, words, None, "hint", [])
    found = measures(report, cut, device)
    idle = (cut.idle or 0.0) - cut.communication if device is None else 0.0
    shares = {name: measure.share for name, measure in found.items()}
    slug, margin, why = decide(shares, max(idle, 0.0))
    step = step_words(report["benchmark"])
    if idleness := step_bar.idle_sentence(report, cut, step, idle, shares.values()):
        slug, margin, words = rules.UNCLEAR, None, idleness
    elif slug == rules.UNCLEAR:
        words = str(why) if cut.torch else _without_layer(cut) + _largest_part(report)
    else:
        words = sentence(slug, found, step, margin, has_loader=cut.has_loader)
        if slug == rules.BALANCED:
            words += _largest_part(report)
        why = why or _reserve(report)
        words += f"; {why}" if why is not None else ""
    sureness = _sureness(report, slug, margin, why)
    return _verdict(report, slug, words, margin, sureness, _evidence(found, cut.median_s))


def _without_layer(cut: Cut) -> str:
    """Return what is known of a step that the torch layer says nothing of."""
    words = str(cut.torch_reason)
    if cut.wait is not None:
        # Where gradients are accumulated a step waits again within it.
        words += f"; before its first work a step waits {format_share(cut.wait)} of its time"
    return f"{words}; {cut.torch_step}" if cut.torch_step else words


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
        listed = " or ".join(causes)
        could_be = f"up to {format_share(most)} of the step could be {listed}, which is not known"
    if not candidates:
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
    if count < rules.FEWEST_CLEAN:
        steps = "1 clean step" if count == 1 else f"{count} clean steps"
        return f"the run gave {steps}, and {rules.FEWEST_CLEAN} are needed; let it make more steps"
    return None


def _reserve(report: Report) -> str | None:
    """Return why a verdict is not certain as far as the step's time goes; None where it may be."""
    mark = report["benchmark"]
    low, high = mark["ci95_low_s"], mark["ci95_high_s"]
    widest = rules.WIDEST_INTERVAL * (mark["median_s"] or 0.0)
    if low is None or high is None or high - low < widest:
        return None
    span = f"{format_seconds(low)} to {format_seconds(high)}"
    return (
        f"the step's time is rough ({span} at 95 %): other work disturbed the machine, or the "
        "steps differ; repeat when it is idle, or let it make more steps"
    )


def _sureness(
    report: Report, slug: VerdictSlug, margin: float | None, reserve: str | None
) -> Sureness:
    if slug in rules.OTHERS:
        return "hint"
    half = relative_half_width(report["benchmark"])
    is_far = margin is not None and margin >= rules.LEAST_APART and reserve is None
    return "certain" if is_far and half is not None and half <= rules.SHOWN_INTERVAL else "likely"


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
    return f". Its largest part is {part['name']} ({format_share(part['share'])}{where})"


# What to do first: the finding that gains most, else what is usually done about the cause, or about
# the operators that were seen.

# A finding gains enough to be named before what is usually done.
_LEVER = 0.03
# The parts of the run that are the steps'.
_OF_STEPS = ("steps", "waiting for data")
# Batches of so many items fill a core.
_LARGE_BATCH = 64
_MORE_STEPS = "Let it make more steps on an idle machine; 'profstack bench' repeats a single call."


def _action(report: Report, slug: VerdictSlug, lever: tuple[Finding, str] | None) -> str:
    """Return what to do first about a step; empty where nothing is known to help."""
    if lever is not None:
        found, gain = lever
        place = f"{reading.short(found['file'])}:{found['line'] or 1}, " if found["file"] else ""
        return f"Begin with the finding '{found['title']}' ({place}about {gain})."
    severe = [each for each in report["findings"] if each["severity"] == "high"]
    if slug in (rules.BALANCED, rules.UNCLEAR) and severe:
        return f"Begin with the finding '{severe[0]['title']}'."
    if slug in rules.RULE_OF:
        return rules.RULE_OF[slug].remedy
    if slug in (rules.BALANCED, rules.UNCLEAR) and (usual := _usual(report)):
        return f"Try, one at a time: {', '.join(usual)}."
    return _MORE_STEPS if 0 < report["benchmark"]["n"] < rules.FEWEST_CLEAN else ""


def _lever(report: Report) -> tuple[Finding, str] | None:
    """Return the finding that gains most of the run, with its gain in words; None without one."""
    step_s = report["benchmark"]["median_s"] or 0.0
    steps_s = sum(row["wall_s"] for row in report["run_bar"] if row["part"] in _OF_STEPS)
    gains: list[tuple[float, Finding, str]] = []
    for each in report["findings"]:
        gain_s, run_gain_s = each["gain_s"] or 0.0, each["run_gain_s"]
        if step_s and gain_s > _LEVER * step_s:
            of_run_s = gain_s * (steps_s or step_s) / step_s
            gains.append((of_run_s, each, f"{format_seconds(gain_s)} a step"))
        elif run_gain_s is not None:
            gains.append((run_gain_s, each, f"{format_seconds(run_gain_s)} of the run"))
    return max(gains, key=lambda each: each[0])[1:] if gains else None


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
    sureness: Sureness,
    evidence: list[VerdictEvidence],
) -> Verdict:
    lever, of_run = _lever(report), ""
    if lever is not None and lever[0]["run_s"] is not None:
        # More of the run goes there than the steps can give.
        of_run = f"{lever[0]['title']}. "
    return {
        "slug": slug,
        "sentence": f"{of_run}{rules.TITLES[slug]}: {words}.",
        "sureness": sureness,
        "action": _action(report, slug, lever),
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
