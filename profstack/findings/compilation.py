"""Findings on torch.compile: recompilations and graph breaks.

A function may be compiled once more with a size or a number made dynamic, once more for evaluation,
and once for the shorter batch at the end of an epoch: that is how a loop settles, and no finding.
What recompilations cost is the compiler's own time in the later steps; that time over the steps is
the gain, as a mean over this run: steps that compile are far slower than the median step, which
does not show them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from profstack.analysis.clean_steps import UNOBSERVED
from profstack.code_owner import Places, place_words
from profstack.findings import reading, rules
from profstack.privacy import home_relative
from profstack.storage.reader import Recorded, in_order
from profstack.storage.schema.report import Evidence, Finding, Report
from profstack.storage.untrusted import json_cell
from profstack.units import format_seconds

# What torch.compile did in a run's steps. Dynamo's own records say what it compiled, when, for how
# long and which guard had failed; each belongs to the step in which it began.

# Slices in which nothing slowed the compiler.
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+")
_USERS_PLACE = re.compile(r'File "([^"]+)", line (\d+)')
# The comment of a guard: the line's text, then the end of its path and its number.
_COMMENTS_PLACE = re.compile(r"\.py:(\d+) in ")
_LEADING_ID = re.compile(r"^\d+/\d+: *")
# The value of a comparison; keys and indices, in brackets, stay.
_VALUE = re.compile(r"""(\[[^\[\]]*\])|'[^']*'|"[^"]*"|(?<!\w)-?\d+(?:\.\d*)?(?:e[-+]?\d+)?""")
_LONGEST_GUARD, _LONGEST_REASON = 160, 240
# What dynamo says where it gives a code up that it compiled too often.
_LIMIT = re.compile(r"recompile[_ ]limit|cache[_ ]size[_ ]limit", re.IGNORECASE)


class Version(NamedTuple):
    """One compilation of a code: `number` is 0 for its first; `step` is None outside the steps."""

    frame: str
    number: int
    name: str | None
    file: str | None
    line: int | None
    wall_s: float
    step: int | None
    undisturbed: bool
    guard: str | None
    guard_file: str | None
    guard_line: int | None
    limit: bool


def versions(recorded: Recorded) -> list[Version]:
    """Return all compilations in order of time, each with the time of its backward graph."""
    began = (row for row in recorded.table("compilations") if row["t_s"] is not None)
    rows = in_order(began, "t_s")
    backward_s = reading.sums_of(
        (str(row["compile_id"]), row["wall_s"]) for row in rows if row["backward"]
    )
    steps = [row for row in recorded.steps if None not in (row["started_s"], row["wall_s"])]
    starts = [row["started_s"] for row in steps]
    found = []
    for row in (row for row in rows if not row["backward"]):
        compile_id = str(row["compile_id"])
        frame, _, number = compile_id.partition("/")
        during = steps[at - 1] if (at := bisect_right(starts, row["t_s"])) else None
        if during is not None and row["t_s"] >= during["started_s"] + during["wall_s"]:
            during = None
        guard, file, line = failed_guard(row["reason"])
        found.append(
            Version(
                frame=frame,
                # A restarted analysis has the number `0/1_1`.
                number=int(number.partition("_")[0] or 0),
                name=row["name"],
                file=row["file"],
                line=row["line"],
                wall_s=(row["wall_s"] or 0.0) + backward_s.get(compile_id, 0.0),
                step=None if during is None else during["step"],
                undisturbed=during is not None and during["kind"] in UNOBSERVED,
                guard=guard,
                guard_file=file,
                guard_line=line,
                limit=bool(_LIMIT.search(row["failure"] or "")),
            )
        )
    return found


def failed_guard(reason: str | None) -> tuple[str | None, str | None, int | None]:
    """Return the guard that failed first, and the file and line that it is about."""
    if not reason:
        return None, None, None
    first, _, rest = reason.partition("\n")
    guard = " ".join(_LEADING_ID.sub("", first).split("  #")[0].split())
    guard = home_relative(guard[:_LONGEST_GUARD])
    place = _USERS_PLACE.search(rest)
    if place is not None:
        return guard, place[1], int(place[2])
    # The path in the comment is cut short: the line alone is known.
    comment = _COMMENTS_PLACE.search(first)
    return guard, None, int(comment[1]) if comment else None


def kind_of(guard: str | None) -> str | None:
    """Return a guard's text without the values that it compares with."""
    return None if guard is None else _VALUE.sub(lambda match: match[1] or "_", guard)


class Break(NamedTuple):
    """A place at which dynamo ended a graph: the user's own line, and the code it compiled."""

    reason: str
    file: str
    line: int
    code: str | None
    code_file: str | None
    times: int


def graph_breaks(recorded: Recorded) -> list[Break]:
    """Return the places in the user's own code at which graphs were ended, each once."""
    places = Places.read(recorded.facts)
    counts: Counter[tuple[str, str, int, str | None, str | None]] = Counter()
    for row in recorded.table("graph_breaks"):
        stack = json_cell(row["stack"], list[tuple[str, int | None, str | None]])
        own = [each for each in stack if places is None or places.is_own(str(each[0]))]
        if not own or own[-1][1] is None:
            continue
        code_file, _, code = stack[0]
        reason = _reason(row["reason"])
        counts[reason, str(own[-1][0]), int(own[-1][1]), function_of(code), str(code_file)] += 1
    return [Break(*key, times=times) for key, times in counts.items()]


def _reason(text: str | None) -> str:
    """Return dynamo's reason in one line: what it could not do, and how it explains that."""
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    first, *others = lines or ["dynamo gave no reason"]
    if first.startswith("generic_jump"):
        first, others = f"a branch (if, while) asks for the value of a tensor ({first})", []
    mark = "Explanation: "
    whys = [line.removeprefix(mark) for line in others if line.startswith(mark)]
    return home_relative(": ".join([first, *whys[:1]])[:_LONGEST_REASON]).rstrip(".")


def function_of(code: str | None) -> str | None:
    """Return the function of a code, also where that is the rest of it after a break."""
    found = _RESUMED.fullmatch(code or "")
    return found[1] if found else code


def frames_of(found: Iterable[Version], broken: Break) -> set[str]:
    """Return the numbers of the codes of a broken function: itself and its rests."""
    return {
        each.frame
        for each in found
        if function_of(each.name) == broken.code and each.file == broken.code_file
    }


# Places and guards that are listed.
_MOST = 8
_REGION = re.compile(r"Torch-Compiled Region: (\d+)/\d+")


def _graph_breaks(
    report: Report, found: Sequence[Version], breaks: Sequence[Break]
) -> Iterator[Finding]:
    """Yield the finding on breaks in functions whose compiled code runs in the steps."""
    calls = _graphs_per_step(report)
    graphs = None
    if calls is not None:
        breaks = [each for each in breaks if frames_of(found, each) & calls.keys()]
        frames = set().union(*(frames_of(found, each) for each in breaks))
        graphs = sum(count for frame, count in calls.items() if frame in frames)
    if not breaks:
        return
    breaks = sorted(breaks, key=lambda each: -each.times)
    places = len({(each.file, each.line) for each in breaks})
    first = breaks[0]
    where = place_words(first.file, first.line) + f" and {places - 1} more" * (places > 1)
    yield reading.finding(
        rules.GRAPH_BREAKS,
        f"Graphs end early under torch.compile at {where}",
        severity="medium",
        gain_reason="what a graph break costs shows only when the code is compiled without it; the "
        "graphs on both sides can not be fused, and what lies between runs as plain Python",
        place={"file": home_relative(first.file), "line": first.line},
        layers=() if calls is None else ("torch",),
        evidence=[
            {"graph_breaks": places, "graphs_per_step": graphs},
            *(
                {
                    "reason": each.reason,
                    "function": each.code,
                    "file": home_relative(each.file),
                    "line": each.line,
                    "times_compiled": each.times,
                    "link": f"source/{home_relative(each.file)}:{each.line}",
                }
                for each in breaks[:_MOST]
            ),
        ],
        advice=f"At {where}: {first.reason}. Move what can not be compiled (printing, .item(), "
        "branches on a tensor's values, calls into other libraries) out of the compiled function, "
        "or use torch.cond and torch.where; compile with fullgraph=True to make breaks errors.",
    )


def _graphs_per_step(report: Report) -> dict[str, float] | None:
    """Return calls per step of every compiled code, by its number; None without the torch layer."""
    if ("torch", "recorded") not in {(row["name"], row["status"]) for row in report["layers"]}:
        return None
    return reading.sums_of(
        (found[1], row["calls"])
        for row in report["tables"]["regions"]
        if row["calls"] and (found := _REGION.search(row["path"]))
    )


_SIZE = re.compile(
    r"tensor '(?P<tensor>.+)' size mismatch at index (?P<dimension>\d+)\. "
    r"expected (?P<expected>\d+), actual (?P<actual>\d+)"
)


class Varying(NamedTuple):
    """A dimension of an input on whose size most guards fail, and the sizes that it had."""

    tensor: str
    dimension: int
    sizes: frozenset[int]

    @property
    def words(self) -> str:
        """The dimension and its sizes in words."""
        of = f"dimension {self.dimension} of {self.tensor}"
        return f"{of} changes ({min(self.sizes)} to {max(self.sizes)})"


def varying_size(again: Sequence[Version]) -> Varying | None:
    """Return the dimension that most recompilations are for; None where they are for others."""
    sizes: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for each in again:
        if match := _SIZE.search(each.guard or ""):
            # An input is `L['x']` to dynamo.
            tensor = re.sub(r"^L\['(\w+)'\]", r"\1", match["tensor"])
            pair = int(match["expected"]), int(match["actual"])
            sizes[tensor, int(match["dimension"])].append(pair)
    key = max(sizes, key=lambda key: len(sizes[key]), default=None)
    if key is None or 2 * len(sizes[key]) <= len(again):
        return None
    return Varying(*key, frozenset(size for pair in sizes[key] for size in pair))


# One failure of a guard is how dynamo learns that a value changes; the second shows it did not.
_SAME_GUARD = 2
# A loop may settle with three: a dynamic size, evaluation, the last batch of an epoch.
_IN_ALL = 4


def compiling(recorded: Recorded, report: Report) -> list[Finding]:
    """Return a finding for each function that is compiled too often, and one for graph breaks."""
    found = versions(recorded)
    if not found:
        return []
    names = {each.frame: (each.file, function_of(each.name)) for each in found if each.name}
    # The rests of a function after graph breaks are of one group with it. A code that was given up
    # has its number alone.
    groups: dict[object, list[Version]] = defaultdict(list)
    for each in found:
        groups[names.get(each.frame, each.frame)].append(each)
    findings: list[Finding] = []
    for of_function in groups.values():
        again = _again(of_function)
        same, gave_up = _commonest(again)[1], any(each.limit for each in again)
        if same >= _SAME_GUARD or len(again) >= _IN_ALL or gave_up:
            findings += _recompiled(recorded, report, of_function, again)
    return [*findings, *_graph_breaks(report, found, graph_breaks(recorded))]


# One compilation for all sizes takes so many times one for a single size: of three models with two
# backends 2 to 5, torch 2.13. It takes the place of the first one, too, which is none of `again`.
_FOR_ALL_SIZES = 3


def _again(of_function: Sequence[Version]) -> list[Version]:
    """Return the later versions that were compiled in steps, after the step of their first one."""
    first = {each.frame: each.step for each in reversed(of_function)}
    return [
        each
        for each in of_function
        if each.step is not None and each.number > 0 and each.step != first[each.frame]
    ]


def _commonest(again: Sequence[Version]) -> tuple[str | None, int]:
    """Return the kind of guard that failed most often, and how often."""
    guards = Counter(kind_of(each.guard) for each in again if each.guard is not None)
    return next(iter(guards.most_common(1)), (None, 0))


def _recompiled(
    recorded: Recorded, report: Report, of_function: Sequence[Version], again: Sequence[Version]
) -> Iterator[Finding]:
    """Yield the finding of one function, unless compiling took too little."""
    named = next((each for each in of_function if each.name is not None), None)
    step_s = reading.clean_step_s(report)
    steps = _steps_since(recorded, of_function)
    if named is None or not steps:
        return
    times, is_measured = _times(of_function, again)
    compile_s = sum(times) / len(times)
    compiling_steps = len({each.step for each in again})
    per_step_s = compile_s * compiling_steps / steps
    if step_s and per_step_s < rules.RECOMPILATIONS.threshold * step_s:
        return
    # Where no guard is known to have failed, it is the first compilation without one.
    guard = next(each for each in again if kind_of(each.guard) == _commonest(again)[0])
    made = sum(not each.limit for each in again)
    varying = varying_size(again)
    each_s = [each.wall_s for each in again]
    run_s, left_s = sum(each_s), (_FOR_ALL_SIZES - 1) * max(each_s)
    # The line on which the changing value is used says more than that of the function.
    line, file = guard.guard_line or named.line, guard.guard_file or named.file
    # The median step holds it where most steps compile; else that step is as short without it.
    in_median = 2 * compiling_steps > steps
    observed = "" if is_measured else ", all of them under an observer, which slows the compiler"
    times_words = {1: "once", 2: "twice"}.get(made, f"{made} times")
    yield reading.finding(
        rules.RECOMPILATIONS,
        f"{function_of(named.name)} is compiled again {times_words} during the steps"
        + (f": {varying.words}" if varying else ""),
        severity=reading.severity_of(per_step_s, step_s or 0.0),
        gain_s=min(median(times), step_s) if in_median and step_s else None,
        gain_is="measured" if is_measured else "estimated",
        gain_reason=f"most steps compile nothing, so that the median step does not hold it: as a "
        f"mean over {steps} steps it is {format_seconds(per_step_s)}",
        run_s=run_s,
        run_gain_s=run_s - left_s if varying and run_s > left_s else None,
        place={"file": home_relative(file), "line": line} if file and line else None,
        evidence=[
            {
                "function": function_of(named.name),
                "file": home_relative(named.file or ""),
                "line": named.line,
                "recompilations": made,
                "steps": steps,
                "compile_s": compile_s,
                "compile_is": f"mean of a step that compiles it again{observed}",
                "per_step_s": per_step_s,
                "per_step_is": "mean over these steps"
                + ("" if in_median else ", most of which compile nothing"),
                "given_up": made < len(again),
                "link": "benchmark/steps",
            },
            *([_size_evidence(varying)] if varying else []),
            *_guard_evidence(again),
        ],
        advice=_advice(guard.guard, varying, per_step_s, steps, is_given_up=made < len(again)),
    )


def _steps_since(recorded: Recorded, of_function: Sequence[Version]) -> int:
    """Return the steps of the plan after the one in which the function was compiled first."""
    # Those that several layers share have a row each.
    slices = {row["first_step"]: row["steps"] for row in recorded.slices if row["steps"]}
    first = of_function[0].step
    begin = min(slices, default=0) if first is None else first + 1
    return sum(max(min(at + count - begin, count), 0) for at, count in slices.items())


def _times(of_function: Sequence[Version], again: Sequence[Version]) -> tuple[list[float], bool]:
    """Return the compile time of each step that compiled again, and whether it was undisturbed.

    Where some of the steps were undisturbed, those alone count.
    """
    steps = {each.step: each.undisturbed for each in again}
    undisturbed = any(steps.values())
    counted = [step for step, free in steps.items() if free or not undisturbed]
    sums = reading.sums_of((each.step, each.wall_s) for each in of_function)
    return [sums[step] for step in counted], undisturbed


def _guard_evidence(again: Sequence[Version]) -> list[Evidence]:
    """Return the guards that failed, each kind once: its first text, and its latest place."""
    times = Counter(kind_of(each.guard) for each in again)
    rows: dict[str | None, Evidence] = {}
    for each in again:
        kind = kind_of(each.guard)
        row = rows.setdefault(kind, {"failed_guard": each.guard, "times": times[kind]})
        if each.guard_file and each.guard_line:
            file = home_relative(each.guard_file)
            link = f"source/{file}:{each.guard_line}"
            row |= {"file": file, "line": each.guard_line, "link": link}
    return [rows[kind] for kind, _ in times.most_common(_MOST)]


def _size_evidence(varying: Varying) -> Evidence:
    return {
        "tensor": varying.tensor,
        "dimension": varying.dimension,
        "smallest": min(varying.sizes),
        "largest": max(varying.sizes),
        "sizes": len(varying.sizes),
    }


def _advice(
    text: str | None, varying: Varying | None, per_step_s: float, steps: int, *, is_given_up: bool
) -> str:
    took = format_seconds(per_step_s)
    words = f"Over these {steps} steps compiling it again took {took} per step. "
    if is_given_up:
        words += "It was compiled so often that dynamo gave it up: from there on it runs "
        words += "uncompiled. "
    if varying is not None:
        return (
            f"{words}Compile it once for all sizes: torch.compile(..., dynamic=True), or "
            f"torch._dynamo.mark_dynamic({varying.tensor}, {varying.dimension}) before the call. "
            "Or pad inputs to a few sizes, and drop the last short batch."
        )
    if text is None:
        return f"{words}TORCH_LOGS=recompiles tells which guards fail."
    if re.search(r"size|stride|shape|\bdim\b", text):
        return (
            f"{words}The guard that fails is on a shape ({text}): pad or bucket inputs to a few "
            "sizes, drop the last short batch, or mark the size with torch._dynamo.mark_dynamic "
            "(and do not compile with dynamic=False)."
        )
    return (
        f"{words}The guard that fails is on a Python value ({text}): a value that changes with the "
        "steps belongs in a tensor, or outside the compiled function."
    )
