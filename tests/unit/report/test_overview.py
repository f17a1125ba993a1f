"""The page's first view: what is in the median, memory at the peak, rates, and short tables."""

import pytest

from profstack.findings import rules
from profstack.report import overview as module
from tests.support.full_report import full
from tests.support.reports import build, row, rows

near = pytest.approx


def test_every_rule_and_every_verdict_is_told():
    report = build()
    made = module.overview_page(report)
    assert [rule["slug"] for rule in made.rules] == [rule.slug for rule in rules.RULES]
    assert [one["slug"] for one in made.verdicts] == list(rules.TITLES)
    told = {one["slug"]: one for one in made.verdicts}
    for rule in rules.VERDICT_RULES:
        assert told[rule.slug]["title"] == rules.TITLES[rule.slug]
        assert f" {100 * rule.threshold:.0f} % " in told[rule.slug]["rule"]
    first = rules.RULES[0]
    assert made.rules[0] == {"slug": first.slug, "title": first.title, "rule": first.rule}
    assert made.step_bar is report.get("step_bar") is None


def test_a_clean_step_that_does_not_count_says_why():
    def step(index, **values):
        return {"index": index, "slice": 0, "flags": None, "phase": "train", **values}

    for index, changes, word in (
        (23, {}, "left out"), (22, {}, "warm-up"), (23, {"flags": "switch eval"}, "switched"),
        (23, {"flags": "eval"}, "evaluated"), (23, {"flags": "checkpoint"}, "checkpoint"),
        (23, {"flags": "partial"}, "cut off"), (23, {"flags": "odd"}, "flagged odd"),
        (23, {"phase": "eval"}, "phase eval"), (23, {"phase": None}, "left out"),
        (23, {"slice": 9}, "watch"),
    ):  # fmt: skip
        # The warm-up is of the phase's own steps: 20, 21 and 22.
        steps = [step(2, phase="eval", slice=1), step(20), step(index, **changes)]
        report = {"tables": {"steps": steps}, "step": {"phase": "train"}}
        report["slices"] = [{"index": 0, "kind": "clean"}, {"index": 1, "kind": "startup"}]
        report["benchmark"] = {"counted_steps": [20], "warmup_steps": 3}
        first, *others = module.step_accounts(report)
        assert (first.why, first.steps, first.counted) == ("in the clean median", 1, True)
        [clean] = (one for one in others if one.kind != "startup")
        assert word in clean.why
        # Other steps of clean slices stand before those of other kinds.
        assert others[0].kind == ("startup" if "slice" in changes else "clean")


def test_memory_at_the_peak_stands_by_device_and_kind():
    report = build()
    held = [("cpu", "inputs", 5), ("gpu", "a", 300), ("cpu", "b", 70), ("gpu", "c", 0)]
    held += [("gpu", "d", 900), ("tpu", "e", None)]
    report["tables"]["memory_owners"] = rows("memory_owners", "device kind peak_bytes", *held)
    wanted = [module.Held("cpu", 75, [("b", 70), ("inputs", 5)])]
    wanted += [module.Held("gpu", 1_200, [("d", 900), ("a", 300)]), module.Held("tpu", 0, [])]
    assert module.held_at_peak(report) == wanted
    memory = report["tables"]["memory"]
    memory[4] |= {"rss_bytes": 9 * 2**40, "device_allocated_bytes": 7}
    memory[8] |= {"rss_bytes": None, "device_allocated_bytes": 3, "device_reserved_bytes": 11}
    peaks = module.overview_page(report).peaks
    assert (peaks.rss_bytes, peaks.allocated_bytes, peaks.reserved_bytes) == (9 * 2**40, 7, 11)
    assert (peaks.held, peaks.held_reason, peaks.rss_reason) == (wanted, None, None)


def _share(value, source="measured", **more):
    return {"source": source, "dtype": "float32", "value": value, "warning": None, **more}


def test_the_rate_and_its_share_of_the_peak_or_why_there_is_none():
    report = full()
    report["tables"]["flops"].insert(0, row("flops", counter="flops-profiler", forward_flop=3))
    rate = (2_764_800 + 5_160_960) / report["benchmark"]["median_s"]
    shares = [_share(0.25), _share(0.125, "datasheet", warning="old"), _share(None, "datasheet")]
    for mfu, *known in (
        (shares[:1], 0.25, "measured float32", None), (shares, 0.125, "datasheet float32", "old")
    ):  # fmt: skip
        report["roofline"] = {"mfu": mfu, "reason": None, "points": []}
        work = module.overview_page(report).work
        assert (work.counter, work.flop, work.reason) == ("FlopCounterMode", 7_925_760, None)
        assert [work.mfu, work.peak_is, work.warning] == known
        assert [work.flop_per_s, work.peak_flop_per_s] == near([rate, rate / known[0]])
    report = full()
    flop, median = 2_764_800 + 5_160_960.0, report["benchmark"]["median_s"]

    def work():
        made = module.overview_page(report).work
        assert (made.mfu, made.peak_flop_per_s, made.peak_is) == (None, None, None)
        return made.flop, made.flop_per_s, made.counter, made.reason

    known = (flop, near(flop / median), "FlopCounterMode")
    assert (work()[:3], "without --no-peaks" in work()[3]) == (known, True)
    report["roofline"] = {"mfu": [], "reason": "no peak was measured", "points": []}
    assert work() == (*known, "no peak was measured")
    report["roofline"]["mfu"] = [_share(None), _share(None, warning="above the peak")]
    assert work() == (*known, "above the peak")
    point = {"kind": "step", "flop": 3.0, "flop_per_s": None, "reason": "another step"}
    report["roofline"]["points"] = [{"kind": "module"}, point]
    assert module.step_point(report) is point
    assert work() == (flop, None, "FlopCounterMode", "another step")


def _tables():
    """A report with few rows: its median is 4 ms, a step under the torch layer took 5 ms."""
    report = build()
    report["benchmark"]["median_s"] = 0.004
    report["attribution"] = {"step_s": 0.005}
    modules = [{"path": f"Net.{n}", "type": "Linear", "self_s": n * 1e-4} for n in range(8)]
    operators = [("mm", 2, 2e-4, 4e-4), ("mm", 3, 3e-4, 6e-4), ("add", None, 7e-4, 6e-4)]
    functions = [("step", "a/f.py", "work", 3e-4), ("step", "~", "<built-in>", 9e-4)]
    functions.append(("startup", "a/f.py", "begin", 5.0))
    lines = [(3, "  x = 1 ", 2e-4, True), (4, None, 5e-4, None), (5, "y", None, True)]
    lines.append((6, "z", 7.0, False))
    made = {
        "modules": [*({**one, "calibrated_s": 9.0} for one in modules),
                    {"path": "(wait)", "self_s": 0.5}],
        "operators": [{"name": name, "shapes": shapes, "self_s": own, "calibrated_s": known}
                      for name, shapes, own, known in operators],
        "functions": [{"phase": phase, "file": file, "line": 7, "name": name, "self_s": own,
                       "calibrated_s": 8e-4} for phase, file, name, own in functions],
        "lines": [{"file": "a/f.py", "line": at, "source": text, "python_s": time, "own": own,
                   "operator_s": 1e-4} for at, text, time, own in lines],
    }  # fmt: skip
    for name, records in made.items():
        report["tables"][name] = [row(name, **one) for one in records]
    return report


def _rows(report):
    """The short tables: sense, whole, and the rows as tuples."""

    def cells(one):
        return one.name, one.link, near(one.seconds), one.share and near(one.share), one.detail

    tops = module.overview_page(report).tops
    return {top.view: (top.kind, top.share_of, [*map(cells, top.rows)]) for top in tops}


def test_short_tables_rank_calibrated_own_times_and_lead_to_their_rows():
    calibrated = "self time, calibrated", "of the clean step"
    # Own times of modules are calibrated as the step is: by 4 ms over 5 ms.
    all_of = range(7, 2, -1)
    modules = [(f"Net.{n}", f"modules/Net.{n}", n * 8e-5, n * 0.02, "Linear") for n in all_of]
    operators = [("mm", "operators/mm", 1e-3, 0.25, None)]
    operators.append(("add", "operators/add", 6e-4, 0.15, None))
    lines = [("f.py:4", "source/a/f.py:4", 6e-4, 6 / 9, "f.py:4")]
    lines.append(("x = 1", "source/a/f.py:3", 3e-4, 3 / 9, "f.py:3"))
    assert _rows(_tables()) == {
        "modules": (*calibrated, modules),
        "operators": (*calibrated, operators),
        "python": (*calibrated, [("work", "python/a/f.py:7:work", 8e-4, 0.2, "f.py:7")]),
        "source": ("time on the line, raw", "of the time on lines of your own", lines),
    }
