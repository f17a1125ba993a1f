"""All families over a report: none takes another with it, and findings on one time say so."""

import pytest

from profstack.findings import judge, verdict
from profstack.findings.judge import FAMILIES, add_findings, link_overlaps
from profstack.findings.reading import drop_unkeyed, finding
from profstack.findings.rules import RULES
from profstack.storage.reader import Recorded
from tests.support import findings as made
from tests.support.findings import LOADER, MS, STEP_S, TRAIN, call, function, line, report_of
from tests.support.full_report import full
from tests.support.recordings import Run
from tests.support.tables import cases, of

TEXT = "\n\n\n@once\ndef make(index):\n    values = []\n    return values\n\n\nmain()\n"
MAKE = {"function": "make", "file": TRAIN, "line": 4}


def told(slug, *evidence, gain_s=1.0, **where):
    """A finding at a place."""
    (rule,) = (each for each in RULES if each.slug == slug)
    fields = {"severity": "high", "evidence": evidence, "advice": "Mend it."}
    return finding(rule, slug, **{**fields, "gain_s": gain_s, **where})


def overlaps(*findings, **tables):
    """The findings that each of these says it shares its time with."""
    tables.setdefault("functions", [function("make", 1 * MS, line=4)])
    report = report_of(parts={"sources": [{"file": TRAIN, "text": TEXT}]}, **tables)
    link_overlaps([*findings], report)
    for each in findings:
        for row in each["evidence"]:
            if other := row.get("same_time_as"):
                assert (row["link"], f"'{other}'" in each["advice"]) == (f"overview/{other}", True)
    told_with = [[row.get("same_time_as") for row in each["evidence"]] for each in findings]
    return [{*others} - {None} for others in told_with]


def test_findings_are_of_the_same_time_where_they_meet():
    both, hot = [{"data-starved"}, {"python-hot-spot"}], told("python-hot-spot", MAKE)
    assert overlaps(hot, told("data-starved", {"wait_s": 1.0}, MAKE)) == both
    asked, make = function("__next__", 0, file=LOADER), function("make", 1 * MS, line=4)
    rows = {"functions": [asked, make], "calls": [call(asked, make)]}
    assert overlaps(told("python-hot-spot", MAKE), told("data-starved"), **rows) == both
    findings = [
        told("python-hot-spot", MAKE), told("forced-synchronisation", place=line(6)),
        told("forced-synchronisation", place=line(10)), told("small-operators", module="Net.heads"),
        told("module-dominates", module="Net.heads.0.fc"),
        told("small-operators", module="Net.head", place=line(10)),
        told("unfused-optimizer", MAKE, module="Net.heads", place=line(6))]  # fmt: skip
    rows = [{"file": TRAIN, "line": 6, "module": "Net.heads.0"}, {"file": TRAIN, "line": 6}]
    expected = ["forced-synchronisation small-operators", "python-hot-spot small-operators"]
    expected += ["small-operators", "python-hot-spot forced-synchronisation module-dominates"]
    expected += ["small-operators", "forced-synchronisation", ""]
    found = overlaps(*findings, module_lines=rows)
    assert found == [{*each.split()} for each in expected]


@pytest.fixture
def recorded(tmp_path):
    run = Run(tmp_path / "rec")
    run.clean(20)
    run.writer.close()
    return Recorded(tmp_path / "rec")


def test_families_are_asked_once_and_their_findings_are_in_order(recorded, monkeypatch):
    def broken(recorded, report):
        raise KeyError("a defect")

    def mild(recorded, report):
        assert report["tables"]["operators"] == [], "rows without a name are dropped"
        return [told("graph-breaks", severity="low", gain_s=0.3 * STEP_S)]

    def severe(recorded, report):
        return [told("data-starved", MAKE, gain_s=7.0), told("python-hot-spot", MAKE)]

    def own(recorded, report, sites):
        handed.append(sites)
        return []

    handed, sites = [], ["of the watch"]
    monkeypatch.setattr(verdict, "seen_sites", lambda *given: sites)
    monkeypatch.setattr(judge, "own_costs", own)
    monkeypatch.setattr(judge, "FAMILIES", (mild, broken, severe, own))
    functions = [function("make", 1 * MS, line=4)]
    # A method in the run's bar gets its class.
    text = "class Stats:\n    def on_log(self):\n        pass\n"
    place = {"part": "steps", "wall_s": 1.0, "share": 1.0, "file": TRAIN, "line": 3}
    parts = {"sources": [{"file": TRAIN, "text": text}], "run_bar": [place | {"name": "on_log"}]}
    report = report_of(operators=[{"name": None}], functions=functions, parts=parts)
    add_findings(report, recorded)
    assert (report["run_bar"][0]["name"], handed) == ("Stats.on_log", [sites])
    both = [["data-starved", STEP_S], ["python-hot-spot", STEP_S]]
    expected = [*both, ["graph-breaks", 0.3 * STEP_S]]
    assert [of(each, "slug gain_s") for each in report["findings"]] == expected
    assert "same_time_as" in report["findings"][0]["evidence"][-1]
    (warning,) = report["warnings"]
    assert (warning["slug"], "KeyError: 'a defect'" in warning["text"]) == ("findings-failed", True)
    assert (report["verdict"]["slug"], report["step_bar"]["median_s"]) == ("unclear", STEP_S)


# Verdict, ratio, whether it is recommended, and the low end of its interval.
TRIED = {
    "fused": ("gains", 0.7, True, 0.6), "foreach": ("gains", 0.8, True, 0.7),
    "wrong": ("gains", 0.5, False, 0.4), "compile": ("same", 0.98, False, 0.951),
    "noisy": ("same", 0.6, False, 0.3), "unsure": ("same", 0.97, False, 0.949),
    "workers": ("breaks", None, False, None), "batch": ("loses", 1.3, False, 1.2),
    "idle": ("same", 0.9, False, None), "persistent": ("gains", 0.5, True, 0.4),
}  # fmt: skip


@cases(
    "slug remedies gain is_",
    # What is proven and recommended comes before what is neither.
    ("unfused-optimizer", "wrong noisy foreach fused", 0.3, "measured"),
    # What is too noisy to tell leaves the estimate, with what was seen.
    ("graph-breaks", "noisy", 0.25, "estimated"),
    ("graph-breaks", "unsure", 0.25, "estimated"),
    ("padding", "wrong idle workers", 0.25, "estimated"),
    ("small-operators", "compile", 0.0, "measured"),
    ("data-starved", "workers", 0.25, "estimated"),
    ("recompilations", "", 0.25, "estimated"),
    ("no-kv-cache", "batch", 0.0, "measured"),
    # A share of all time from step to step is none of a clean step.
    ("worker-starts", "persistent", 0.25, "estimated"),
)
def test_a_remedy_that_was_tried_gives_its_finding_the_measured_gain(
    recorded, monkeypatch, slug, remedies, gain, is_
):
    rows = [
        {"change": name, "verdict": verdict, "ratio": ratio, "ci95_high": 1.1,
         "times_of": "run" if name == "persistent" else "step",
         "findings": [slug] if name in remedies.split() else ["too-short-or-noisy"],
         "recommended": recommended} | {"ci95_low": low}
        for name, (verdict, ratio, recommended, low) in TRIED.items()
    ]  # fmt: skip
    estimated = told(slug, {"calls": 2}, gain_s=0.25 * STEP_S)
    monkeypatch.setattr(judge, "FAMILIES", [lambda recorded, report: [estimated]])
    report = report_of(parts={"tried": {"trials": rows}})
    add_findings(report, recorded)
    (found,) = report["findings"]
    assert found["gain_s"] == pytest.approx(gain * STEP_S)
    shown = [row["tried"] for row in found["evidence"][1:]]
    seen = [name for name in remedies.split() if name not in ("wrong", "idle", "workers")]
    assert (found["gain_is"], shown) == (is_, seen[-1:])


@cases("table", "modules; operators; kernels; functions; calls; lines; module_lines",
       "regions; gaps; launches; flops; steps; memory_owners; attribution; roofline")  # fmt: skip
def test_no_family_falls_over_what_a_recording_lacks(recorded, table):
    whole = made.completed(full())
    rows = whole["tables"].get(table)
    lacking = [[{**row, column: None} for row in rows] for column in rows[0]] if rows else []
    reports = [{**whole, "tables": {**whole["tables"], table: each}} for each in [[], *lacking]]
    for report in reports if rows is not None else [{**whole, table: None}]:
        read = drop_unkeyed(report)
        for each in (each for family in FAMILIES for each in family(recorded, read)):
            assert each["gain_s"] is not None or each["gain_reason"]
