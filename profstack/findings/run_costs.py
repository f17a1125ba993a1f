"""Findings of the whole run: what goes on beside its steps and takes a good part of it."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from profstack.analysis.call_sites import call_sites
from profstack.analysis.watch import STARTUP, Frame, Stack, watched
from profstack.findings import known_calls, names, reading, rules
from profstack.findings.rules import FindingRule
from profstack.privacy import home_relative
from profstack.storage.reader import Recorded, known
from profstack.storage.schema.report import (
    Finding,
    Place,
    Report,
    RunFunction,
    RunPart,
    RunPartName,
)
from profstack.storage.vocabulary import WATCH_INTERVAL_S
from profstack.units import format_seconds, format_share

_NO_STEP = "it is time of the whole run, not of a step"


@dataclass(frozen=True)
class _Cost:
    """A part of the run that is worth a finding from `least_s` seconds on.

    `is_rarer` is whether the advice is to do it a tenth as often; else it saves at most all of it.
    """

    part: RunPartName
    rule: FindingRule
    words: str
    least_s: float
    advice: str
    is_rarer: bool = False


_COSTS = (
    _Cost(
        "evaluation", rules.EVALUATION_COST, "Evaluation takes", rules.EVALUATION_S,
        "Evaluate less often, on a part of the data or in larger batches, under "
        "torch.inference_mode().", True,
    ),
    _Cost(
        "checkpoints and saving", rules.SAVING_COST, "Saving takes", rules.SAVING_S,
        "Save less often, to a faster disk, or on a thread beside the training: "
        "torch.distributed.checkpoint.async_save().", True,
    ),
    _Cost(
        "logging and callbacks", rules.LOGGING_COST, "Logging and callbacks take",
        rules.LOGGING_S,
        "Log at every tenth step, and take values off the device only there.", True,
    ),
    _Cost(
        "start-up and imports", rules.SLOW_START, "Imports take", rules.IMPORTS_S,
        "Import what is not always needed where it is used. 'python -X importtime script.py' "
        "lists what each module takes.",
    ),
    _Cost(
        "model and data set-up", rules.SLOW_START, "Setting up takes", rules.SETUP_S,
        "Do it once and keep the result on disk (torch.save, numpy.save, a data set's cache), or "
        "beside the training, in the DataLoader's workers.",
    ),
    _Cost(
        "first step and compilation", rules.COMPILATION_COST, "Compiling takes",
        rules.COMPILATION_S,
        "Keep compiled code between runs (TORCHINDUCTOR_CACHE_DIR on a disk that stays), compile "
        "the block that repeats instead of the whole model, or leave torch.compile out of a run "
        "as short as this one.",
    ),
    _Cost(
        "shutdown", rules.SLOW_SHUTDOWN, "The end of the process takes", rules.SHUTDOWN_S,
        "Look at atexit functions, at threads that are still running and at DataLoader workers: "
        "these are asked to end one after the other.",
    ),
)  # fmt: skip


def run_costs(recorded: Recorded, report: Report) -> list[Finding]:
    """Return the parts of the run beside its steps that take a good part of it."""
    if not report["step"]["count"]:
        return []
    return [
        *_found(recorded, report),
        *_own_code(report),
        *_in_long_steps(recorded, report),
        *_unused_imports(recorded, report),
        *_worker_starts(recorded, report),
    ]


def _found(recorded: Recorded, report: Report) -> Iterator[Finding]:
    for cost in _COSTS:
        row = next((row for row in report["run_bar"] if row["part"] == cost.part), None)
        if row is None or (row["share"] or 0.0) < cost.rule.threshold:
            continue
        if row["wall_s"] < cost.least_s:
            continue
        compiled_s = sum(known(recorded.table("compilations"), "wall_s"))
        # A first step may be long for other reasons.
        if cost.rule is rules.COMPILATION_COST and compiled_s < row["wall_s"] / 2:
            continue
        # Without samples nothing says what the set-up does, nor a start before the watch began.
        is_seen = row["by"] == "samples" or cost.rule is not rules.SLOW_START
        if not is_seen and (report["watch"] or cost.part == "model and data set-up"):
            continue
        if cost.part == "logging and callbacks" and _is_said(report, row):
            continue
        saved_s = _done_rarer_s(row) if cost.is_rarer else row["wall_s"]
        if cost.rule is rules.COMPILATION_COST:
            # What is compiled again has a finding of its own.
            again = (
                each for each in report["findings"] if each["slug"] == rules.RECOMPILATIONS.slug
            )
            again_s = sum(each["run_s"] or 0.0 for each in again)
            saved_s = max(min(compiled_s, row["wall_s"]) - again_s, 0.0)
        if cost.part == "start-up and imports" and report["watch"]:
            saved_s = max(row["wall_s"] - _Imports(recorded).torch_s, 0.0)
            if saved_s < rules.BESIDE_TORCH_S:
                # What is left is the import of torch.
                continue
        is_evaluation, hint = cost.rule is rules.EVALUATION_COST, ""
        if is_evaluation and report["watch"] and (joined := _joined_share(recorded)):
            saved_s = max(saved_s or 0.0, joined * row["wall_s"])
            hint = (
                f"{format_share(joined)} of it joins the predictions of all batches so far with "
                "those of each new one (nested_concat): keep less of each by "
                "Trainer(preprocess_logits_for_metrics=...), the argmax, say. "
            )
        yield _finding(report, cost, row, saved_s, hint)


def _is_said(report: Report, row: RunPart) -> bool:
    """Whether a finding on the steps is about the function that holds most of a part."""
    own = (each for each in report["findings"] if each["slug"] == rules.OWN_CODE_COST.slug)
    functions = {(each["file"], each["evidence"][0]["function"]) for each in own}
    return (row["file"], (row["name"] or "").rpartition(".")[2]) in functions


# The share of it that doing it a tenth as often saves at most.
_SAVED = 0.9


def _done_rarer_s(row: RunPart) -> float | None:
    """Return what a tenth as often saves; None of what is done once, or not known how often.

    It may be the longest ones that are left, such as the last one that saves all.
    """
    if (row["times"] or 1) == 1:
        return None
    return min(_SAVED * row["wall_s"], row["wall_s"] - (row["longest_s"] or 0.0))


# Functions that are named where none has most of a part: from this share of it on.
_NAMED, _MOST_NAMED = 0.15, 3
_MOSTLY = 0.6


def _hint(report: Report, *places: Place) -> str:
    """Return what is known of the first of some lines of which anything is."""
    hints = (known_calls.hint(report, place, once=True) for place in places)
    return next(filter(None, hints), "")


def _shared(row: RunPart) -> list[RunFunction]:
    """Return the functions that have most of a part together where none has it alone."""
    named = [each for each in row["functions"] if each["name"] not in (None, "<module>")]
    if not named or named[0]["wall_s"] >= _MOSTLY * row["wall_s"]:
        return []
    named = [each for each in named if each["wall_s"] >= _NAMED * row["wall_s"]][:_MOST_NAMED]
    together_s = sum(each["wall_s"] for each in named)
    return named if together_s >= _MOSTLY * row["wall_s"] else []


# What the Trainer of transformers does with the predictions of each batch.
_JOINS = re.compile(r"[/\\]transformers[/\\]trainer_pt_utils\.py$")
_MUCH_JOINED = 0.3


def _joined_share(recorded: Recorded) -> float:
    """Return the share of the evaluation that joins its predictions, where it is much; else 0."""
    seen, joined, whole = watched(recorded), 0.0, 0.0
    for each in seen.samples:
        stack = seen.stacks.get(each.stack, ())
        if any(frame.name == "evaluation_loop" for frame in stack):
            whole += each.weight
            is_joined = any(
                frame.name == "nested_concat" and _JOINS.search(frame.file) for frame in stack
            )
            joined += each.weight * is_joined
    return joined / whole if whole and joined >= _MUCH_JOINED * whole else 0.0


def _finding(
    report: Report, cost: _Cost, row: RunPart, saved_s: float | None, hint: str
) -> Finding:
    place: Place | None = None
    if row["file"] is not None and row["line"] is not None:
        place = {"file": row["file"], "line": row["line"]}
    within = f" in {row['name']}" if row["name"] not in (None, "<module>") else ""
    if shared := _shared(row):
        places: list[Place] = [{"file": each["file"], "line": each["line"]} for each in shared]
        called = [
            reading.qualified_name(report, at, str(each["name"]))
            for at, each in zip(places, shared, strict=True)
        ]
        place = places[0]
        within = f", most of it in {', '.join(called[:-1])} and {called[-1]}"
    share = row["share"] or 0.0
    words = format_share(share)
    return reading.finding(
        cost.rule,
        f"{cost.words} {words} of the run{within}",
        severity=reading.severity_of(share, 1.0),
        gain_reason=f"{_NO_STEP}: {format_seconds(row['wall_s'])}, {words} of the run",
        run_s=row["wall_s"],
        run_gain_s=saved_s,
        run_gain_is="estimated" if cost.is_rarer else "at most",
        place=place,
        layers=["watch"] if row["by"] == "samples" else [],
        evidence=[
            {
                "part": cost.part,
                "wall_s": row["wall_s"],
                "run_share": share,
                "times": row["times"],
                "function": row["name"],
                "link": reading.to_source(place) if place else None,
            }
        ],
        advice=hint
        + _hint(
            report,
            *(each["inner"] for each in shared or row["functions"][:1]),
            *([place] if place is not None else []),
        )
        + cost.advice,
    )


def _own_s(report: Report) -> float:
    """Return the time of the run less what profstack added; infinite where it is not known."""
    return sum(row["wall_s"] for row in report["run_bar"] if row["share"] is not None) or math.inf


def _own_code(report: Report) -> Iterator[Finding]:
    """Yield the user's functions and lines beside the steps that take a good part of the run."""
    rule, own_s = rules.RUN_CODE_COST, _own_s(report)
    row = next((row for row in report["run_bar"] if row["part"] == "other"), None)
    for found in row["functions"] if row is not None else ():
        if found["wall_s"] < max(rule.threshold * own_s, rules.OTHER_S):
            continue
        wall_s = _outside_s(report, found)
        share = wall_s / own_s
        place: Place = {"file": found["file"], "line": found["line"]}
        text = reading.source_line(report, found["file"], found["line"])
        line = f"'{text}'" if text else f"line {found['line']}"
        name = line
        if found["name"] is not None:
            name = reading.qualified_name(report, place, found["name"])
            line = f"most of it at {line}"
        yield _of_run(
            rule,
            f"{name} takes {format_share(share)} of the run, outside its steps",
            place,
            wall_s,
            share,
            {"function": found["name"], "text": text},
            _hint(report, place, found["inner"])
            + f"It takes {format_seconds(wall_s)}"
            + (f", {line}. " if line != name else ". ")
            + "Do it less often, on less data, once for all, or after the run.",
        )


# What there is beside the time from the first step on, and evaluation.
_APART = frozenset(
    {"start-up and imports", "model and data set-up", "evaluation", "shutdown", "profstack"}
)
# What the steps of a run without a clean one are.
_STEPS = frozenset({"steps", "waiting for data", "first step and compilation"})


def _in_long_steps(recorded: Recorded, report: Report) -> Iterator[Finding]:
    """Yield the same in steps of which none is clean: they are long, and the watch sees them."""
    rule, own_s = rules.RUN_CODE_COST, _own_s(report)
    if report["benchmark"]["n"] or not report["watch"]:
        return
    samples = [
        each for each in watched(recorded).samples if each.phase != STARTUP and not each.evaluating
    ]
    whole_s = sum(row["wall_s"] for row in report["run_bar"] if row["part"] not in _APART)
    told = {
        (each["file"], each["name"] or each["line"])
        for row in report["run_bar"]
        if row["part"] not in _STEPS
        for each in row["functions"]
    }
    for site in call_sites(recorded, samples):
        wall_s = site.share * whole_s
        if wall_s < max(rule.threshold * own_s, rules.OTHER_S):
            return
        if site.part == "forward" or (site.file, site.name or site.line) in told:
            continue
        file, line, _ = site.hottest
        place: Place = {"file": site.file, "line": site.line}
        text = reading.source_line(report, file, line)
        name = f"'{text}'" if text else f"line {site.line}"
        if site.name is not None:
            name = reading.qualified_name(report, place, site.name)
        hottest: Place = {"file": file, "line": line}
        yield _of_run(
            rule,
            f"{name} takes {format_share(wall_s / own_s)} of the run, in its steps",
            place,
            wall_s,
            wall_s / own_s,
            {"function": site.name, "text": text},
            known_calls.hint(report, hottest)
            + f"It takes {format_seconds(wall_s)}, most of it at {reading.in_words(hottest)}"
            + (f" ('{text}'). " if text else ". ")
            + "Do it less often, or for less data at once.",
        )


def _outside_s(report: Report, found: RunFunction) -> float:
    """Return the time of a function, or a line, in all parts of the run beside its steps."""
    rows = (row for row in report["run_bar"] if row["part"] not in _STEPS)
    return math.fsum(
        each["wall_s"]
        for row in rows
        for each in row["functions"]
        if (each["file"], each["name"] or each["line"])
        == (found["file"], found["name"] or found["line"])
    )


class _Imports:
    """What the watch saw of imports, by package; importing torch at the start took `torch_s`."""

    def __init__(self, recorded: Recorded) -> None:
        seen = watched(recorded)
        self.torch_s = 0.0
        # Seconds of each package, and the lines of the script that import it.
        self.seconds: dict[str, float] = defaultdict(float)
        self.places: dict[str, Counter[tuple[str, int]]] = defaultdict(Counter)
        # Seconds of what is no import, by the packages that are at work.
        self.used: dict[str | None, float] = defaultdict(float)
        self.later = 0
        for each in seen.samples:
            stack, weight_s = seen.stacks.get(each.stack, ()), each.weight * WATCH_INTERVAL_S
            own = seen.own(stack)
            modules = _imported(own, stack)
            if not modules:
                self.later += each.phase != STARTUP
                for name in {_package(frame) for frame in stack}:
                    self.used[name] += weight_s
            elif "torch" in modules:
                self.torch_s += weight_s * (each.phase == STARTUP)
            elif modules[0] is not None:
                self.seconds[modules[0]] += weight_s
                self.places[modules[0]][home_relative(own[-1].file), own[-1].line] += 1


_PACKAGE = re.compile(r"[/\\](?:site|dist)-packages[/\\]([^/\\]+)[/\\]")


def _package(frame: Frame) -> str | None:
    found = _PACKAGE.search(frame.file)
    return found[1] if found else None


def _unused_imports(recorded: Recorded, report: Report) -> Iterator[Finding]:
    """Yield packages whose import takes long and of which nothing is seen at work later."""
    if not report["watch"] or report["processes"]["workers"]:
        # What workers do is not seen.
        return
    seen, rule, own_s = _Imports(recorded), rules.IMPORT_COST, _own_s(report)
    for package, wall_s in seen.seconds.items():
        share, used_s = wall_s / own_s, seen.used[package]
        if share < rule.threshold or wall_s < rules.IMPORT_S:
            continue
        if used_s > rules.IMPORT_USED * wall_s or seen.later < rules.IMPORT_SAMPLES:
            continue
        (file, line), _ = seen.places[package].most_common(1)[0]
        yield _of_run(
            rule,
            f"Importing {package} takes {format_share(share)} of the run, and it is hardly seen at "
            "work",
            {"file": file, "line": line},
            wall_s,
            share,
            {"package": package, "used_s": used_s},
            f"Import the module of {package} alone that is needed, or do without it: it takes "
            f"{format_seconds(wall_s)}, and its Python functions take "
            f"{format_seconds(used_s)} of what the watch saw of the rest.",
        )


def _imported(own: Sequence[Frame], stack: Stack) -> list[str | None]:
    """Return the packages of the modules that the user's innermost line is importing."""
    after = stack[stack.index(own[-1]) + 1 :] if own else ()
    return [_package(frame) for frame in after if frame.name == "<module>"]


def _of_run(
    rule: FindingRule,
    title: str,
    place: Place,
    wall_s: float,
    share: float,
    facts: dict[str, str | float | None],
    advice: str,
) -> Finding:
    """Return a finding of the whole run that gains at most all that it is about."""
    return reading.finding(
        rule,
        title,
        severity=reading.severity_of(share, 1.0),
        gain_reason=f"{_NO_STEP}: {format_seconds(wall_s)}, {format_share(share)} of the run",
        run_s=wall_s,
        run_gain_s=wall_s,
        run_gain_is="at most",
        place=place,
        layers=["watch"],
        evidence=[
            {"wall_s": wall_s, "run_share": share, "link": reading.to_source(place), **facts}
        ],
        advice=advice,
    )


_FEWEST_STARTS = 3


def _worker_starts(recorded: Recorded, report: Report) -> Iterator[Finding]:
    noted, own_s, rule = recorded.facts.get("worker_starts"), _own_s(report), rules.WORKER_STARTS
    if noted is None or noted["starts"] < _FEWEST_STARTS:
        return
    starts, wall_s = noted["starts"], noted["started_s"] + noted["ended_s"]
    if wall_s < max(rules.WORKERS_S, rule.threshold * own_s):
        return
    place: Place | None = None
    if noted["places"]:
        most = max(noted["places"], key=lambda each: each["starts"])
        place = {"file": home_relative(most["file"]), "line": most["line"]}
        place = names.made_at(report, "DataLoader", reading.source_line(report, **place)) or place
    share = wall_s / own_s
    # Each line needs its workers once.
    needed = max(len(noted["places"]), 1)
    yield reading.finding(
        rule,
        f"DataLoader workers are started {starts} times, which takes "
        f"{format_share(share)} of the run",
        severity=reading.severity_of(share, 1.0),
        gain_reason=f"{_NO_STEP}: {format_seconds(wall_s)}, {format_share(share)} of the run",
        run_s=wall_s,
        run_gain_s=wall_s * (starts - needed) / starts,
        place=place,
        layers=[],
        evidence=[
            {
                "starts": starts,
                "wall_s": wall_s,
                "run_share": share,
                "link": reading.to_source(place) if place else None,
            }
        ],
        advice="Keep them from epoch to epoch: DataLoader(..., persistent_workers=True), made once "
        "before the loop. Where samples are cheap num_workers=0 may be faster.",
    )
