"""The page's first view: what is in the median, memory at the peak, and rates."""

import pytest

from profstack.report import overview as module
from tests.support.full_report import full
from tests.support.reports import build, row, rows

near = pytest.approx


def test_a_clean_step_that_does_not_count_says_why():
    def step(index, **values):
        return {"index": index, "slice": 0, "flags": None, "phase": "train", **values}

    for index, changes, word in (
        (23, {}, "left out"), (22, {}, "warm-up"), (23, {"flags": "switch eval"}, "switched"),
        (23, {"flags": "eval"}, "evaluated"), (23, {"phase": "eval"}, "phase eval"),
    ):  # fmt: skip
        # The warm-up is of the phase's own steps: 20, 21 and 22.
        steps = [step(2, phase="eval", slice=1), step(20), step(index, **changes)]
        counts = {"train": 2 + len(steps), "eval": 1}
        report = {"tables": {"steps": steps}, "step": {"phase": "train"}}
        report["step"]["counts_by_phase"] = counts
        report["slices"] = [{"index": 0, "kind": "clean"}, {"index": 1, "kind": "startup"}]
        report["benchmark"] = {"counted_steps": [20], "warmup_steps": 3}
        first, *others = module.step_accounts(report)
        assert (first.why, first.steps, first.counted) == ("in the clean median", 1, True)
        [clean] = (one for one in others if one.kind == "clean")
        assert word in clean.why
        # Of a long watch some are only counted.
        [left] = (one for one in others if one.kind == "watch")
        assert (left.steps, left.counted) == (3, False)


def test_memory_at_the_peak_stands_by_device_and_kind():
    report = build()
    held = [("cpu", "inputs", 5), ("gpu", "a", 300), ("cpu", "b", 70), ("gpu", "c", 0)]
    held += [("gpu", "d", 900), ("tpu", "e", None)]
    report["tables"]["memory_owners"] = rows("memory_owners", "device kind peak_bytes", *held)
    wanted = [module.Held("cpu", 75, [("b", 70), ("inputs", 5)])]
    wanted += [module.Held("gpu", 1_200, [("d", 900), ("a", 300)]), module.Held("tpu", 0, [])]
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
    flop = 2_764_800 + 5_160_960
    rate = flop / report["benchmark"]["median_s"]
    shares = [_share(0.25), _share(0.125, "datasheet", warning="old"), _share(None, "datasheet")]
    for mfu, *known in (
        (shares[:1], 0.25, "measured float32", None), (shares, 0.125, "datasheet float32", "old")
    ):  # fmt: skip
        report["roofline"] = {"mfu": mfu, "reason": None, "points": []}
        work = module.overview_page(report).work
        assert (work.counter, work.flop, work.reason) == ("FlopCounterMode", flop, None)
        assert [work.mfu, work.peak_is, work.warning] == known
        assert [work.flop_per_s, work.peak_flop_per_s] == near([rate, rate / known[0]])
    none = {"mfu": [], "reason": "no peak was measured", "points": []}
    point = {"kind": "step", "flop": 3.0, "flop_per_s": None, "reason": "another step"}
    for changes, *known in (
        ({}, flop, near(rate), "no peak was measured"),
        ({"points": [{"kind": "module"}, point]}, flop, None, "another step"),
    ):
        report["roofline"] = none | changes
        work = module.overview_page(report).work
        assert [work.flop, work.flop_per_s, work.reason] == known
        assert (work.mfu, work.peak_flop_per_s, work.peak_is) == (None, None, None)


def test_a_function_has_the_time_of_its_finding_and_no_other():
    functions = rows("functions", "name calibrated_s", ("hot", 3e-3), ("cool", 1e-3), line=7)
    functions = [row | {"phase": "step", "file": "a.py", "self_s": 9e-3} for row in functions]
    hot = {"slug": "python-hot-spot", "gain_s": 2e-3, "evidence": [{"link": "python/a.py:7:hot"}]}
    for calibrated, times in ((True, {"hot": 2e-3, "cool": 1e-3}), (False, {"cool": 9e-3})):
        report, lacks = build(), {} if calibrated else {"calibrated_s": None}
        report["tables"]["functions"] = [row | lacks for row in functions]
        report["findings"] = [hot]
        timed, kind, *_ = module.function_times(report)
        assert {row["name"]: seconds for row, seconds in timed} == times
        assert kind.endswith("calibrated" if calibrated else "raw")


def test_fewer_page_faults_are_said_of_steps_with_blocks_that_glibc_maps():
    def said(size, *others, kind="activations", device="cpu", platform="Linux-glibc2.36", known=()):
        report = build()
        report["environment"] |= {"platform": platform, "variables_set": [*known]}
        held = [(device, kind, 3 * size, 3), *others]
        report["tables"]["peak_holders"] = rows("peak_holders", "device kind bytes tensors", *held)
        return module.page_faults(report)

    assert "of some 256 KiB" in said(1 << 18)
    for size, is_said in ((1 << 17, 1), ((1 << 17) - 1, 0), ((1 << 22) - 1, 1), (1 << 22, 0)):
        assert bool(said(size)) is bool(is_said)
    assert said(1 << 18, ("cpu", "inputs", 1 << 23, 1)) is said(1 << 18, platform="macOS") is None
    assert said(1 << 18, device="cuda:0") is said(1 << 18, known=["LD_PRELOAD"]) is None
    assert said(1 << 18, kind="parameters") is None
