"""The roofline: rates, roofs and labels of known numbers, and of a real slice."""

import json

import pytest

from profstack.analysis import roofline
from profstack.analysis.clean_steps import clean_steps
from profstack.analysis.flops import SHAPES, counted, of_record
from profstack.analysis.layers import probe_effects, select
from profstack.analysis.modules import modules
from tests.support.cells import cell
from tests.support.recordings import CLEAN_S, TORCH_S, Run, by, module, module_times, operator

PEAK, MEMORY = 100e9, 10e9
GAP = roofline._LARGEST_GAP
near = pytest.approx


def rates(**values):
    same = {"source": "measured", "how": "by hand"}
    return [{"dtype": dtype, "value": value, **same} for dtype, value in values.items()]


def peaks(flop=None, memory=MEMORY):
    facts = dict.fromkeys(("device", "threads", "torch", "measured_at", "reason"))
    moved = [{"value": memory, "source": "measured", "how": "by hand"}] if memory else []
    flop = rates(float32=PEAK) if flop is None else flop
    return {**facts, "flop_per_s": flop, "bytes_per_s": moved}


def judged(flop, moved, seconds=1.0, lacking=None, known=None):
    row = ("operator", "x", "float32", flop, moved, seconds, "calibrated", lacking)
    return roofline.point(roofline.Roofs(known or peaks()), *row)


# The ridge is at 10 operations a byte: above it the peak is the roof, below it the memory.
@pytest.mark.parametrize(("flop", "moved", "share", "bound", "words"), [
    (50e9, 0.5e9, 0.5, "compute", None),
    (49.96e9, 0.5e9, 0.4996, "overhead", "just under 50 % of"), (8e9, 8e9, 0.8, "memory", None),
    (4e9, 4e9, 0.4, "overhead", "40 %"),
    # At the ridge both roofs meet; the memory cannot hold back what outruns it.
    (60e9, 6e9, 0.6, "compute", None), (60e9, 12e9, None, "compute", "caches"),
    (20e9, 20e9, None, "memory", "caches"), (200e9, 1e9, 0, "compute", "wrong")])  # fmt: skip
def test_the_roof_that_explains_half_of_the_time_holds_back(flop, moved, share, bound, words):
    found = judged(flop, moved)
    assert cell(found, "flop_per_s bound intensity") == (flop, bound, near(flop / moved))
    assert share is None or found["share_of_peak"] == (near(share) if share else None)
    assert words in found["reason"] if words else found["reason"] is None


@pytest.mark.parametrize(("flop", "moved", "seconds", "bound", "words"), [
    (None, 1e9, 1.0, None, "not counted"), (1e9, None, 1.0, None, "no rule tells"),
    (1e9, 1e9, None, None, "not calibrated"), (1e9, 1e9, 0.0, None, "not calibrated"),
    (None, 12e9, 1.0, "memory", "120 % of its time at the memory's rate: "),
    (None, 8e9, 1.0, "memory", "80 %"), (None, 4e9, 1.0, None, "40 %")])  # fmt: skip
def test_what_is_not_known_has_no_share_and_a_reason(flop, moved, seconds, bound, words):
    found = judged(flop, moved, seconds, None if moved is not None else "no rule tells of cat")
    assert cell(found, "bound share_of_peak") == (bound, None)
    assert words in found["reason"]
    assert (found["flop_per_s"] is None) is (flop is None or not seconds)


def test_peaks_and_shares_of_them():
    found = [roofline.percent(x) for x in (0, 0.0467, 0.127, 0.494, 1.378)]
    assert " ".join(found) == "0.0 % 4.7 % 13 % 49 % 138 %"
    # Whether what is stored as float32 is multiplied as TF32 is for the script to say.
    stated = {"dtype": "float32", "value": 1.0, "source": "datasheet", "how": "said"}
    for rate in ([stated], rates(float32=1.0, tf32=8.0)):
        assert roofline.Roofs(peaks(rate)).flop_per_s.get("float32") == 1.0
    found = judged(1e9, 1e8, known=peaks([], None))
    assert cell(found, "flop_per_s share_of_peak") == (1e9, None)


STEPS = 4


def moved(operator, module_id, seconds, count, **more):
    row = {"operator": operator, "module_id": module_id, "backward": 0, "dtype": "float32"}
    count = None if count is None else STEPS * count
    return {**row, "calls": STEPS, "total_s": STEPS * seconds, "moved_bytes": count, **more}


def recorded(folder, rows, facts=None, name="aten::mm", **peak):
    """The roofline of a root with two modules: clean steps of 10 ms, observed ones of 12 ms."""
    run = Run(folder)
    run.writer.facts({"environment": facts or {}})
    run.writer.write({"modules": [module(1, "Net"), module(2, "Net.a", 1), module(3, "Net.b", 1)]})
    run.clean()
    times = [module_times(n, STEPS, STEPS * s) for n, s in ((1, 0.012), (2, 0.006), (3, 0.006))]
    count = {"counter": "recorded_shapes", "operator": name, "backward": 0, "calls": STEPS}
    flops = [{**count, "module_id": n, "flop": STEPS * 40_000_000} for n in (2, 3)]
    frames = {"moved_bytes": rows, "module_times": times, "flop_counts": flops}
    frames["operators"] = [operator("aten::mm", 4, 0.01, module_id=2)]
    run.torch([TORCH_S] * STEPS, frames=frames)
    run.clean()
    (folder / "logs" / "peaks.json").write_text(json.dumps(peaks(**peak)))
    return roofline_of(run)


def roofline_of(run):
    recorded = run.recorded()
    clean, selections = clean_steps(recorded), select(recorded)
    probe_effects(recorded, clean, selections)
    counters, timed = counted(recorded), selections["torch"]
    record = of_record(counters)
    rows = modules(recorded, timed, clean.median_s, {}, record, [])
    work = (clean.median_s, record, counters.get(SHAPES), None, rows)
    found = roofline.roofline(recorded, timed, *work, roofline.read_peaks(run.folder))
    return {**found, "by_name": by(found["points"], "name")}


ROWS = [moved("aten::mm", 2, 0.006, 2_000_000), moved("aten::mm", 3, 0.005, 2_000_000)]


def test_step_modules_and_operators_have_their_own_time_and_work(tmp_path):
    # A view is no point.
    others = [moved("aten::relu", 3, 0.001, 1_000_000), moved("aten::t", 2, 0.001, 0)]
    found = recorded(tmp_path / "run", [*ROWS, *others])
    points = found["by_name"]
    mm_a, mm_b, relu, half = (near(n / 12 * CLEAN_S) for n in (6, 5, 1, 6))
    names = "kind flop moved_bytes seconds seconds_is"
    assert {name: cell(row, names) for name, row in points.items()} == {
        "step": ("step", 80e6, 5e6, near(CLEAN_S), "clean"),
        "Net": ("module", 80e6, 5e6, near(CLEAN_S), "calibrated"),
        # Half of a slice's step, at the speed of the clean ones.
        "Net.a": ("module", 40e6, 2e6, half, "calibrated"),
        "Net.b": ("module", 40e6, 3e6, half, "calibrated"),
        "aten::mm in Net.a": ("operator", 40e6, 2e6, mm_a, "calibrated"),
        "aten::mm in Net.b": ("operator", 40e6, 2e6, mm_b, "calibrated"),
        "aten::relu in Net.b": ("operator", None, 1e6, relu, "calibrated"),
    }
    assert points["step"]["flop_per_s"] == near(8e9) == points["Net.a"]["flop_per_s"]
    assert "not counted" in points["aten::relu in Net.b"]["reason"]
    (mfu,) = found["mfu"]
    assert (mfu["value"], mfu["warning"], found["reason"]) == (near(0.08), None, None)


@pytest.mark.parametrize(("name", "facts", "dtype"), [
    # What torch does where nothing is said: cuDNN uses TF32, products do not.
    ("aten::mm", {}, "float32"), ("aten::convolution", {}, "tf32"),
    ("aten::mm", {"tf32_products": True}, "tf32"),
    ("aten::convolution", {"tf32_convolutions": False}, "float32")])  # fmt: skip
def test_float32_has_the_roof_of_what_it_is_multiplied_as(tmp_path, name, facts, dtype):
    rows = [moved(name, module_id, 0.006, 200_000) for module_id in (2, 3)]
    known = {"float32": PEAK, "tf32": 8 * PEAK}
    found = recorded(tmp_path / "run", rows, facts, name, flop=rates(**known))
    mfu = [cell(row, "dtype value") for row in found["mfu"]]
    assert mfu == [(dtype, near(8e9 / known[dtype]))]
    for point in found["points"]:
        share = near(point["flop_per_s"] / known[dtype])
        assert cell(point, "dtype share_of_peak") == (dtype, share)


def test_more_than_the_peak_is_no_share_of_it(tmp_path):
    found = recorded(tmp_path / "run", ROWS, flop=rates(float32=4e9))
    (mfu,), step = found["mfu"], found["by_name"]["step"]
    assert (mfu["value"], "more than the measured peak" in mfu["warning"]) == (None, True)
    assert (step["share_of_peak"], "wrong" in step["reason"]) == (None, True)


def test_what_else_times_and_bounds_rest_on(tmp_path):
    rows = [{**row, "device_s": row["total_s"] / 2} for row in ROWS]
    mm = recorded(tmp_path / "device", rows)["by_name"]["aten::mm in Net.a"]
    assert cell(mm, "seconds seconds_is") == (near(0.003), "device")
    rows = [moved("aten::mm", 2, 0.006, 2_000_000), moved("aten::relu", 3, 0.0002, 1_900_000)]
    rows.append(moved("aten::cat", 3, 0.0003, None, dtype=None))
    bounds = recorded(tmp_path / "run", rows, flop=rates(float32=8e9))["bounds"]
    parts = {"compute_s": 0.006, "memory_s": 0.0002, "unknown_s": 0.0003, "overhead_s": 0.0}
    expected = {name: near(seconds / TORCH_S * CLEAN_S) for name, seconds in parts.items()}
    assert {name: bounds[name] for name in parts} == expected
    assert recorded(tmp_path / "unknown", rows, memory=None)["bounds"] is None


def test_work_adds_up_its_rows_and_names_what_has_no_rule():
    work = roofline.Work()
    row = roofline.MovedRow("aten::mm", 2, False, "float32", 600.0, 0.5, True)
    work.add(row)
    other = {"operator": "aten::add", "dtype": "float16", "moved_bytes": 70.0, "seconds": 0.9}
    work.add(row._replace(**other, is_counted=False))
    # The type of what is counted, however long the rest takes.
    assert (work.dtype(), work.bytes()) == ("float32", (670.0, None))
    for name, seconds in (("b", 0.02), ("a", 0.03), ("c", 0.01), ("d", 0.005)):
        work.add(row._replace(operator=name, moved_bytes=None, seconds=seconds))
    known, lacking = work.bytes()
    assert (work.total_s, known, "a, b, c," in lacking) == (near(1.465), 670, True)
    assert (roofline.EXPLAINS, near(0.05, abs=0.019) == GAP) == (0.5, True)
    for share in (GAP * 0.99, GAP * 1.01):
        work = roofline.Work()
        work.add(row._replace(seconds=1.0 - share))
        work.add(row._replace(moved_bytes=None, seconds=share))
        assert (work.bytes()[0] is not None) is (share < GAP)
