"""Compare two sides: the answer, what explains it, and every table side by side."""

from __future__ import annotations

from collections.abc import Sequence

from profstack.compare.findings import SideFindings, explained, gone_and_new
from profstack.compare.gates import Evidence, Rule, judge
from profstack.compare.inequalities import inequalities
from profstack.compare.noise import CONFIDENCE, Noise
from profstack.compare.parts import same_in_step, totals
from profstack.compare.places import Found, Places
from profstack.compare.sides import Side
from profstack.compare.tables import tables
from profstack.compare.verdict import answer, chosen
from profstack.environment import __version__
from profstack.guard import CollectorOff
from profstack.storage.schema.comparison import Comparison


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
    found = [SideFindings(side, which, places) for which, side in enumerate((before, after))]
    findings = list(gone_and_new(found))

    def of_step(part: str, difference_s: float) -> list[Found]:
        return explained(part, difference_s, places.of_step(part, difference_s), findings, places)

    step = totals("step", before, after, noise, of_step)

    def of_run(part: str, difference_s: float) -> list[Found]:
        # One cause for one thing: what the step says of its own parts.
        same = same_in_step(part, difference_s, step.parts if step else ())
        return same or explained(
            part, difference_s, places.of_run(part, difference_s), findings, places
        )

    run = totals("run", before, after, noise, of_run)
    step_answer = answer("step", step, noise, unequal, places.counted()) if step else None
    run_answer = answer("run", run, noise, unequal) if run else None
    parts = [*(step.parts if step else ()), *(run.parts if run else ())]
    modules = {now: was for was, now in places.modules.items()}
    counts = found[0].count(), found[1].count()
    evidence = Evidence(before, after, noise, modules, places.module_place, parts, findings, counts)
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
