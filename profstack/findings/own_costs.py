"""The user's own code that each step spends much of its time in beside the model's work.

Metrics, logs, moving averages, checks, the making of a batch: whatever the loop does at every step
and that is no forward pass, backward pass or optimizer. The watch's samples say how much it is and
on which line, or cProfile where these are too few; what other rules explain better is left to them.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from profstack.analysis.call_sites import CallSite, call_sites
from profstack.analysis.watch import FEWEST_SAMPLES, STEP, Stack, Watched, watched
from profstack.findings import known_calls, reading, rules
from profstack.findings.data_loading import loaders, model_work, outermost
from profstack.findings.step_cut import Cut, loop_around, optimizer_line
from profstack.storage.reader import Recorded
from profstack.storage.schema.report import Finding, Place, Report, StepPart
from profstack.units import format_count, format_share

# Rules that say more of the same time than that it is spent.
_EXPLAINED = frozenset(
    rule.slug
    for rule in (
        rules.DATA_STARVED, rules.PYTHON_HOT_SPOT, rules.FORCED_SYNCHRONISATION,
        rules.SMALL_OPERATORS, rules.HOST_TO_DEVICE_COPY, rules.ZERO_GRAD_TO_ZEROS,
        rules.TENSORS_FROM_LISTS,
    )
)  # fmt: skip
# A finding of theirs explains a place where it is about as much of its time.
_MOSTLY = 0.5
_MOST = 3
# A call as long as this is seen by the watch, which waits 5 ms for the interpreter.
_UNSEEN_S = 0.01
# Calls per step of a function that is called in most of them.
_IN_MOST = 0.5
# Of a library's: one that saves at every second step may be seen in one of three.
_IN_MANY = 0.3


def own_costs(recorded: Recorded, report: Report, sites: Sequence[CallSite] = ()) -> list[Finding]:
    """Return a finding for each such place, the one with most time first.

    `sites` are those that the watch saw (`seen_sites`).
    """
    step_s = reading.clean_step_s(report)
    return [] if step_s is None else list(_own_costs(recorded, report, step_s, sites))


def _own_costs(
    recorded: Recorded, report: Report, step_s: float, sites: Sequence[CallSite]
) -> Iterator[Finding]:
    if all(each["slug"] != rules.DATA_STARVED.slug for each in report["findings"]):
        yield from _waiting(recorded, step_s)
    count = 0
    for site in sites or _by_size([*_profiled_sites(report, step_s), *_lines(report, step_s)]):
        if site.share < rules.OWN_CODE_COST.threshold or count == _MOST:
            return
        # With less of a step the making of batches is no more than it commonly takes.
        is_little = site.part == "data wait" and site.share < rules.DATA_STARVED.threshold
        if site.part == "forward" or is_little or _is_explained(report, site, step_s):
            continue
        count += 1
        yield _finding(report, site, step_s)


def seen_sites(recorded: Recorded, report: Report, cut: Cut | None) -> list[CallSite]:
    """Return the sites of the steps; none has more of the step than the part that it is in.

    The watch sees a thread where that lets the interpreter go: Python of less than 5 ms before is
    seen on that line. The torch layer follows every line: a line of the loop that has much less of
    the step there has the time of others.
    """
    sites = call_sites(recorded)
    if cut is None:
        return sites
    sites = _with_profiled(sites, report, cut)
    timed = (row for row in report["tables"]["lines"] if row["python_s"] is not None)
    lines = {(row["file"], row["line"]): row for row in timed}
    kept = []
    for site in sites:
        line = lines.get((site.file, site.line)) if site.name is None else None
        if line is not None and reading.line_s(line) < _MOSTLY * site.share * cut.median_s:
            continue
        most = _most_of(site, cut)
        if most is not None and 0.0 < most < site.share:
            site.lines = {key: share * most / site.share for key, share in site.lines.items()}
            site.share = most
        kept.append(site)
    return sorted(kept, key=lambda site: -site.share)


def _with_profiled(sites: Sequence[CallSite], report: Report, cut: Cut) -> list[CallSite]:
    """Return the sites with what cProfile alone sees: functions that never let the interpreter go.

    The watch's thread waits for that, and sees the operators after them instead.
    """
    seen: dict[tuple[object, ...], float] = defaultdict(float)
    for site in sites:
        seen[site.file, site.line, site.name] += site.share
    rows = reading.CallGraph(report).rows.values()
    calls = {(row["file"], row["line"], row["name"]): row["calls"] or 1.0 for row in rows}
    unseen = [
        site
        for site in _profiled_sites(report, cut.median_s)
        if site.share >= rules.OWN_CODE_COST.threshold
        and seen[site.file, site.line, site.name] < _MOSTLY * site.share
        # Of a long call the watch sees its part: there cProfile has slowed the calls in it.
        and site.share * cut.median_s < _UNSEEN_S * next(calls[key] for key in site.lines)
    ]
    places = {(site.file, site.line, site.name) for site in unseen}
    kept = [site for site in sites if (site.file, site.line, site.name) not in places]
    return [*kept, *unseen]


def _most_of(site: CallSite, cut: Cut) -> float | None:
    """Return the share of the part of a step that a site beside the model is in."""
    if cut.wait is None or not cut.torch or site.part not in ("data wait", "other"):
        return None
    if site.part == "data wait":
        return cut.wait
    if cut.after is not None and (site.file, site.line, site.name) in cut.after.functions:
        return cut.after_step
    # All else of the loop's goes by before the first call, or between the parts of the work.
    between = cut.python + cut.other + cut.loss
    return None if cut.has_loader else cut.wait + cut.after_step + between


# Where a thread of a pool, or an event loop, waits for what to do next.
_WAITS = re.compile(
    r"[/\\](concurrent[/\\]futures[/\\]\w+|asyncio[/\\]\w+|queue|selectors|threading|socketserver)\.py$"
)
_LOOP = re.compile(r"[/\\]asyncio[/\\](base_events|runners)\.py$")


def _waiting(recorded: Recorded, step_s: float) -> Iterator[Finding]:
    """Yield the finding where the steps' thread mostly waits to be given work."""
    seen = watched(recorded)
    samples = seen.of(STEP)
    if len(samples) < FEWEST_SAMPLES:
        return
    numbers = {each.stack for each in samples}
    waits = {number for number in numbers if _waits_for_work(seen, seen.stacks.get(number, ()))}
    waiting = sum(each.weight for each in samples if each.stack in waits)
    share = waiting / sum(each.weight for each in samples)
    if share < rules.WAITS_FOR_WORK.threshold:
        return
    yield reading.finding(
        rules.WAITS_FOR_WORK,
        f"The thread that calls the model waits for work for {format_share(share)} of each step",
        severity=reading.severity_of(share, 1.0),
        gain_reason="when the work could come is not known",
        layers=["watch"],
        evidence=[{"step_share": share, "clean_s": share * step_s, "samples": len(samples)}],
        advice="Look at what hands it work: a batch that waits too long to fill, one request at a "
        "time, or too few clients. Faster operators do not help while it has nothing to do.",
    )


def _waits_for_work(seen: Watched, stack: Stack) -> bool:
    if not stack or not _WAITS.search(stack[-1].file):
        return False
    # Below an event loop stands the line that runs it.
    inside = [at for at, frame in enumerate(stack) if _LOOP.search(frame.file)]
    stack = stack[inside[0] :] if inside else stack
    return not seen.own(stack)


def _profiled_sites(report: Report, step_s: float) -> list[CallSite]:
    """Return the places by cProfile, for a run too short for samples; their lines are not known."""
    graph = reading.CallGraph(report)
    loading = graph.below(loaders(graph))
    sites = []
    for key in outermost(graph):
        row = graph.rows[key]
        # What is called in few steps is no part of a usual one.
        if (row["calls"] or 0.0) < _IN_MOST:
            continue
        if row["total_s"] and row["self_s"] and row["calibrated_s"]:
            share = row["total_s"] * row["calibrated_s"] / row["self_s"] / step_s
            part: StepPart = "data wait" if key in loading else "other"
            sites.append(CallSite(*key, part, min(share, 1.0), {key: 0.0}))
    return _by_size(sites)


_OF_MODELS = re.compile(r"[/\\]torch[/\\]nn[/\\]")


def _by_size(sites: Sequence[CallSite]) -> list[CallSite]:
    return sorted(sites, key=lambda site: -site.share)


def _lines(report: Report, step_s: float) -> Iterator[CallSite]:
    """Yield lines of the loop that call a library for something beside the model's work.

    They are known by cProfile: what nothing else calls is called by the loop, on the one line in it
    that has the function's name. It is the loop with the optimizer's step.
    """
    called_at = _calls_in_loop(report)
    if not called_at:
        return
    graph = reading.CallGraph(report)
    called = {callee for edges in graph.callees.values() for callee, _ in edges}
    called |= graph.below(loaders(graph))
    # Losses and what limits gradients is the model's work, too. A progress bar round a loader is
    # called for the next batch.
    work = model_work(graph) | {key for key in graph.rows if _OF_MODELS.search(key.file)}
    work |= set(loaders(graph))
    for key, row in graph.rows.items():
        if row["own"] is not False or key in called | work or len(called_at[key.name]) != 1:
            continue
        if (row["calls"] or 0.0) < _IN_MANY or not (row["self_s"] and row["calibrated_s"]):
            continue
        whole_s = row["total_s"] or 0.0
        # Functions that are put round others may lead to anything, in little time.
        inside = (graph.rows[each]["total_s"] or 0.0 for each in graph.below([key]) & work)
        if max(inside, default=0.0) >= _MOSTLY * whole_s:
            continue
        share = min(whole_s * row["calibrated_s"] / row["self_s"] / step_s, 1.0)
        ((file, line),) = called_at[key.name]
        yield CallSite(file, line, None, "other", share, {(file, line, key.name): 0.0})


def _calls_in_loop(report: Report) -> Mapping[str, set[tuple[str, int]]]:
    """Return the lines of the loop with the optimizer's step, by the names that they call."""
    found: dict[str, set[tuple[str, int]]] = defaultdict(set)
    step = optimizer_line(report)
    text = reading.text_of_file(report, step["file"]) if step is not None else None
    tree = reading.parse_source(text) if text else None
    if step is None or tree is None:
        return found
    loop = loop_around(tree, step["line"])
    for node in ast.walk(loop) if loop is not None else ():
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            found[name].add((step["file"], node.lineno))
    return found


def _is_explained(report: Report, site: CallSite, step_s: float) -> bool:
    """Whether another finding is about most of a place's time."""
    places = {(file, line) for file, line, _ in site.lines} | {(site.file, site.line)}
    for each in report["findings"]:
        if each["slug"] not in _EXPLAINED:
            continue
        if each["slug"] == rules.DATA_STARVED.slug and site.part == "data wait":
            return True
        if (each["file"], each["line"]) in places:
            gain_s = each["gain_s"]
            if gain_s is None or gain_s >= _MOSTLY * site.share * step_s:
                return True
    return False


# A function that has as much of another's time has all of it, but for what calling it costs.
_NEARLY_ALL = 0.8
# From so many calls a step on a function is one that a place calls again and again.
_OFTEN = 8


def _repeated(report: Report, site: CallSite) -> str:
    """Return which of the user's functions a place calls again and again; empty without one."""
    graph = reading.CallGraph(report)
    called = [
        (edge["total_s"] or 0.0, callee, edge["calls"] or 0.0)
        for caller, edges in graph.callees.items()
        if (caller.file, caller.name) == (site.file, site.name)
        for callee, edge in edges
        if callee in graph.rows and graph.rows[callee]["own"] and callee != caller
    ]
    _, callee, calls = max(called, default=(0.0, None, 0.0))
    if callee is None or calls < _OFTEN:
        return ""
    row = graph.rows[callee]
    name = reading.qualified_name(report, row, callee.name)
    return f" It calls {name}{reading.in_brackets(row)} {format_count(calls)} times a step."


def _called(report: Report, site: CallSite) -> tuple[str, int, str] | None:
    """Return the line of one of the user's functions that has most of a site, where it is no other.

    C code that keeps the interpreter's lock for less than 5 ms is seen by the watch on a later
    line, and by cProfile in its caller.
    """
    graph = reading.CallGraph(report)
    keys = (key for key in graph.rows if (key.file, key.name) == (site.file, site.name))
    key = next(keys, None)
    if key is None or site.name is None:
        return None
    whole_s, deepest = graph.rows[key]["total_s"] or 0.0, key
    while True:
        called = [
            (edge["total_s"] or 0.0, callee)
            for callee, edge in graph.callees.get(deepest, ())
            if callee in graph.rows
            and graph.rows[callee]["own"]
            and callee != deepest
            # One that is called again and again is told with its calls.
            and (edge["calls"] or 0.0) < _OFTEN
        ]
        time_s, callee = max(called, default=(0.0, None))
        if callee is None or time_s < _NEARLY_ALL * whole_s:
            break
        deepest, whole_s = callee, time_s
    if deepest == key or (deepest.file, deepest.name) == (site.hottest[0], site.hottest[2]):
        return None
    heaviest = graph.heaviest_line(deepest)
    line = heaviest["line"] if heaviest is not None else deepest.line
    return deepest.file, line, deepest.name


def _finding(report: Report, site: CallSite, step_s: float) -> Finding:
    called = _called(report, site)
    file, line, function = called or site.hottest
    place: Place = {"file": site.file, "line": site.line}
    share, clean_s = format_share(site.share), site.share * step_s
    text = reading.source_line(report, file, line)
    hottest: Place = {"file": file, "line": line}
    where = reading.in_words(hottest)
    name = f"'{text}'" if text else f"line {site.line}"
    if site.name is not None:
        name = reading.qualified_name(report, place, site.name)
    advice = (
        "Do it less often, for whole tensors at once instead of one after the other, or once "
        "before the loop where its result stays the same."
    )
    if site.part == "data wait":
        advice = "Make the batch cheaper, or in a DataLoader's workers, while the model computes."
    is_one_line = called is not None or site.in_hottest >= _MOSTLY * site.share
    if is_one_line or site.name is None:
        advice = known_calls.hint(report, hottest) + advice
    if is_one_line and site.name is not None:
        advice += f" Most of it is at {where}" + (f" ('{text}')." if text else ".")
    else:
        advice += _repeated(report, site)
    return reading.finding(
        rules.OWN_CODE_COST,
        f"{name} takes {share} of each step",
        severity=reading.severity_of(clean_s, step_s),
        gain_reason="how much of it can be saved is not known",
        place=place,
        layers=["watch" if site.in_hottest and called is None else "cprofile"],
        evidence=[
            {
                "function": site.name or function,
                # By cProfile alone no line is known.
                **reading.pick(hottest if site.in_hottest else place, "file", "line"),
                "step_share": site.share,
                "clean_s": clean_s,
                "text": text,
                "link": reading.to_source(hottest),
            }
        ],
        advice=advice,
    )
