"""What the overview, the source view and the page on method are made of, before they are drawn."""

from __future__ import annotations

from typing import Any

import pytest
from data_full_report import full
from data_overview import LENGTH, add_sources, add_verdict
from data_report import build, row

from profstack.findings import rules
from profstack.findings import rules as findings_rules
from profstack.report.overview import overview_page, step_accounts
from profstack.report.page import source_files, with_source


def test_the_rate_and_its_share_of_the_peak_rest_on_the_counter_of_record() -> None:
    report = full()
    median = report["benchmark"]["median_s"]
    mfu = {"source": "measured", "dtype": "float32", "value": 0.25, "warning": None}
    report["roofline"] = {"mfu": [mfu], "reason": None, "points": []}
    work = overview_page(report).work
    assert work.counter == "FlopCounterMode"
    assert work.flop == 2_764_800 + 5_160_960
    assert work.flop_per_s == pytest.approx(work.flop / median)
    assert (work.mfu, work.peak_is, work.reason) == (0.25, "measured float32", None)
    assert work.peak_flop_per_s == pytest.approx(4 * work.flop / median)


def test_what_is_not_known_of_the_work_says_why() -> None:
    report = full()
    report["roofline"] = {"mfu": [], "reason": "no peak was measured", "points": []}
    work = overview_page(report).work
    assert (work.mfu, work.reason) == (None, "no peak was measured")
    assert work.flop_per_s is not None
    report["benchmark"]["median_s"] = None
    work = overview_page(report).work
    assert (work.flop_per_s, work.reason) == (None, "there is no clean step time")
    report["tables"]["flops"] = []
    for layer in report["layers"]:
        layer["reason"] = "skipped: it has compiled" if layer["name"] == "flops" else None
    work = overview_page(report).work
    assert (work.flop, work.reason) == (None, "skipped: it has compiled")


def test_short_tables_rank_own_times_and_lead_to_their_rows() -> None:
    report = full()
    tops = {top.view: top for top in overview_page(report).tops}
    modules = [row for row in report["tables"]["modules"] if not row["path"].startswith("(")]
    heaviest = max(modules, key=lambda row: row["self_s"] or 0.0)
    first = tops["modules"].rows[0]
    assert (first.name, first.link) == (heaviest["path"], f"modules/{heaviest['path']}")
    assert first.share == pytest.approx(heaviest["self_s"] / report["attribution"]["step_s"])
    assert all(len(top.rows) <= 5 for top in tops.values())
    assert all(row.detail != "built-in" for row in tops["python"].rows)
    line = tops["source"].rows[0]
    assert (line.name, line.link, line.detail) == (
        "loss.backward()", "source/train.py:68", "train.py:68"
    )  # fmt: skip
    times = [row["python_s"] + row["operator_s"] for row in report["tables"]["lines"]
             if row["python_s"] is not None]  # fmt: skip
    assert line.share == pytest.approx((4e-5 + 1.74e-3) / sum(times))


def test_without_tables_the_short_ones_say_which_layer_has_none() -> None:
    report = build()
    for name in report["tables"]:
        report["tables"][name] = []
    made = overview_page(report)
    assert [top.reason for top in made.tops] == [
        "the torch layer has none in this run", "the torch layer has none in this run",
        "the cprofile layer has none in this run", "the torch layer has none in this run",
    ]  # fmt: skip
    assert made.peaks.rss_bytes is None
    assert made.peaks.rss_reason
    assert made.peaks.held_reason == "no slice watched the memory of a step"


def test_memory_at_the_peak_stands_by_device_and_kind() -> None:
    report = full()
    report["tables"]["memory_owners"].append(
        row("memory_owners", device="cuda:0", kind="activations", peak_bytes=5)
    )
    peaks = overview_page(report).peaks
    assert [held.device for held in peaks.held] == ["cpu", "cuda:0"]
    assert peaks.held[0].kinds[0][0] == "activations"
    assert peaks.held[0].total_bytes == sum(size for _, size in peaks.held[0].kinds)
    assert peaks.rss_bytes == max(row["rss_bytes"] for row in report["tables"]["memory"])


def test_every_rule_and_every_verdict_is_told() -> None:
    made = overview_page(build())
    assert [rule["slug"] for rule in made.rules] == [rule.slug for rule in rules.RULES]
    assert [one["slug"] for one in made.verdicts] == list(findings_rules.TITLES)
    [launch] = [one for one in made.verdicts if one["slug"] == "launch-bound"]
    assert "40 % of the step" in launch["rule"]


def test_steps_are_accounted_for_once() -> None:
    report = build()
    accounts = step_accounts(report)
    assert sum(one.steps for one in accounts) == len(report["tables"]["steps"])
    assert (accounts[0].counted, accounts[0].steps) == (True, report["benchmark"]["n"])
    whys = {one.why: one.steps for one in accounts}
    assert whys["watched by the torch layer"] == 6
    assert whys["watched by the cprofile layer"] == 8


def _steps(*words: str, kind: str = "clean") -> dict[str, Any]:
    steps = [
        {"index": at, "slice": 0, "flags": word, "phase": "train"} for at, word in enumerate(words)
    ]
    return {
        "tables": {"steps": steps}, "slices": [{"index": 0, "kind": kind}],
        "benchmark": {"counted_steps": [2], "warmup_steps": 1}, "step": {"phase": "train"},
    }  # fmt: skip


def test_a_clean_step_that_does_not_count_says_why() -> None:
    report = _steps("", "switch", "", "eval", "", "")
    report["tables"]["steps"][5]["phase"] = "eval"
    whys = [one.why for one in step_accounts(report)]
    assert whys[0] == "in the clean median"
    assert set(whys[1:]) == {
        "before the end of the warm-up",
        "a layer was switched in them",
        "the script evaluated its model in them",
        "left out: see the warnings for what changed, or of another optimizer's plan",
        "of the phase eval; the median is of train",
    }


def test_own_files_stand_by_their_time_with_the_text_that_was_kept() -> None:
    report = add_sources(add_verdict(full()))
    report["tables"]["lines"].append(row("lines", file="lib.py", line=1, own=False, python_s=9.0))
    files = source_files(report["tables"]["lines"], report["sources"])
    assert [(one.file, one.reason) for one in files] == [
        ("train.py", None), ("augment.py", "it has more than 200 kB")
    ]  # fmt: skip
    assert (files[0].text or "").count("\n") == LENGTH
    assert source_files(report["tables"]["lines"], [])[0].reason == "no slice traced its lines"


def test_lines_that_came_without_text_have_that_of_their_file() -> None:
    texts = [{"file": "a.py", "text": "import torch\nx = 1\n"}, {"file": "b.py", "text": None}]
    lines = [row("lines", file="a.py", line=1), row("lines", file="a.py", line=2, source="x = 0"),
             row("lines", file="a.py", line=9), row("lines", file="b.py", line=1)]  # fmt: skip
    told = [line["source"] for line in with_source(lines, texts)]
    assert told == ["import torch", "x = 0", None, None]


def test_short_tables_are_calibrated_throughout_or_not_at_all() -> None:
    report = full()
    median, step = report["benchmark"]["median_s"], report["attribution"]["step_s"]
    for top in overview_page(report).tops[:3]:
        assert top.kind == "self time, calibrated"
        assert top.share_of == "of the clean step"
        assert all(one.share == pytest.approx(one.seconds / median) for one in top.rows)
    for name in ("modules", "operators", "functions"):
        for record in report["tables"][name]:
            record["calibrated_s"] = None
    modules, operators, functions, _ = overview_page(report).tops
    for top in (modules, operators, functions):
        assert (top.kind, top.share_of) == ("self time, raw", "of the step as the layer saw it")
    for top in (modules, operators):
        assert all(one.share == pytest.approx(one.seconds / step) for one in top.rows)
    assert {one.share for one in functions.rows} == {None}


def test_an_empty_short_table_says_what_became_of_its_layer() -> None:
    report = full()
    report["tables"]["functions"] = []
    for layer in report["layers"]:
        if layer["name"] == "cprofile":
            layer["reason"] = "it gave way to another profiler"
    assert overview_page(report).tops[2].reason == "it gave way to another profiler"
