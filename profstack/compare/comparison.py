"""Compare two sides: the answer, what explains it, and every table side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profstack.compare.gates import Evidence, Rule, judge
from profstack.compare.inequalities import inequalities
from profstack.compare.noise import CONFIDENCE, Noise
from profstack.compare.parts import totals
from profstack.compare.places import Places
from profstack.compare.sides import Side
from profstack.compare.tables import tables
from profstack.compare.verdict import answer, chosen
from profstack.environment import __version__
from profstack.guard import CollectorOff
from profstack.storage.schema.comparison import ComparedFinding, Comparison
from profstack.storage.schema.report import Report


def compare(
    before: Side,
    after: Side,
    *,
    rules: Sequence[Rule] = (),
    confidence: float = CONFIDENCE,
    measured: str | None = None,
) -> Comparison:
    """Compare the recordings of two sides; `rules` are those of `--fail-if`.

    Where recordings were made until the answer was clear, `measured` says how, and intervals need
    a higher `confidence` to hold in 95 % of cases. Raise UsageError for a rule about a module or an
    operator that neither side has.
    """
    # All that is made here is kept: a collection would find nothing.
    with CollectorOff():
        return _compare(before, after, rules, confidence, measured)


def _compare(
    before: Side, after: Side, rules: Sequence[Rule], confidence: float, measured: str | None
) -> Comparison:
    noise, places = Noise(before, after, confidence), Places(before, after)
    unequal = inequalities(before, after)
    step = totals("step", before, after, noise, places)
    run = totals("run", before, after, noise, places)
    step_answer = answer("step", step, noise, unequal) if step else None
    run_answer = answer("run", run, noise, unequal) if run else None
    parts = [*(step.parts if step else ()), *(run.parts if run else ())]
    findings = list(_findings(before, after, places))
    modules = {now: was for was, now in places.modules.items()}
    evidence = Evidence(before, after, noise, modules, parts, findings)
    return {
        "schema_version": 1,
        "profstack_version": __version__,
        "measured": measured,
        "before": before.facts(),
        "after": after.facts(),
        "verdict": chosen(step_answer, run_answer, run.parts if run else ()),
        "answers": [each for each in (step_answer, run_answer) if each is not None],
        "inequalities": unequal,
        "parts": parts,
        "tables": tables(before, after, noise, places),
        "findings": findings,
        "gates": judge(rules, evidence),
    }


def _findings(before: Side, after: Side, places: Places) -> Iterator[ComparedFinding]:
    """Yield findings and warnings that most of one side's recordings have, and none of the other's.

    A finding is the same where its rule, and its module or the function around its line, are.
    """
    sides = [_counted(side.reports, which, places) for which, side in enumerate((before, after))]
    halves = [len(side.reports) / 2 for side in (before, after)]
    for which, other in ((0, 1), (1, 0)):
        for key, (count, finding) in sides[which].items():
            if key not in sides[other] and count >= halves[which]:
                yield {**finding, "status": "gone" if which == 0 else "new"}


def _counted(
    reports: Sequence[Report], which: int, places: Places
) -> dict[tuple[object, ...], tuple[int, ComparedFinding]]:
    found: dict[tuple[object, ...], tuple[int, ComparedFinding]] = {}
    for report in reports:
        seen: dict[tuple[object, ...], ComparedFinding] = {}
        for each in report["findings"]:
            place = each["module"] or _function_around(each["file"], each["line"], which, places)
            seen["finding", each["slug"], place] = {
                "kind": "finding",
                "status": "new",
                "slug": each["slug"],
                "title": each["title"],
                "file": each["file"],
                "line": each["line"],
            }
        for warning in report["warnings"]:
            seen["warning", warning["slug"]] = {
                "kind": "warning",
                "status": "new",
                "slug": warning["slug"],
                "title": warning["text"],
                "file": None,
                "line": None,
            }
        for key, finding in seen.items():
            found[key] = found.get(key, (0, finding))[0] + 1, finding
    return found


def _function_around(file: str | None, line: int | None, which: int, places: Places) -> object:
    if file is None or line is None:
        return None
    there = places.sources.files.get(file, file) if which == 0 else file
    return there, places.sources.function_at(which, file, line)
