"""The roofline: rates, roofs and labels of known numbers, and of a real slice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from data_recording import CLEAN_S, TORCH_S, Run, by, module, module_times, operator
from torch import nn
from torch_slice import observe

from profstack.analysis.roofline import Roofs, percent, point, roofline
from profstack.storage.reader import Recorded
from profstack.storage.vocabulary import OTHER_WORK

PEAK, MEMORY = 100e9, 10e9
RIDGE = PEAK / MEMORY


def rates(**values: float) -> list[dict[str, Any]]:
    return [
        {"dtype": dtype, "value": value, "source": "measured", "how": "by hand"}
        for dtype, value in values.items()
    ]


def peaks(
    flop: list[dict[str, Any]] | None = None, memory: float | None = MEMORY
) -> dict[str, Any]:
    facts = dict.fromkeys(("device", "threads", "torch", "measured_at", "reason"))
    moved = [{"value": memory, "source": "measured", "how": "by hand"}] if memory else []
    return {
        **facts,
        "flop_per_s": rates(float32=PEAK) if flop is None else flop,
        "bytes_per_s": moved,
    }


def judged(
    flop: float | None, moved: float | None, seconds: float | None, lacking: str | None = None
) -> dict[str, Any]:
    roofs = Roofs(peaks())
    return point(roofs, "operator", "x", "float32", flop, moved, seconds, "calibrated", lacking)


# -- one point -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flop", "moved", "share", "bound"),
    [
        # Intensity 100, ten times the ridge: the peak is the roof.
        (80e9, 0.8e9, 0.8, "compute"),
        (50e9, 0.5e9, 0.5, "compute"),
        (49e9, 0.49e9, 0.49, "overhead"),
        # Intensity 1, a tenth of the ridge: the memory is the roof.
        (8e9, 8e9, 0.8, "memory"),
        (4e9, 4e9, 0.4, "overhead"),
        # At the ridge both roofs meet.
        (60e9, 6e9, 0.6, "compute"),
    ],
)
def test_the_roof_that_explains_half_of_the_time_holds_back(flop, moved, share, bound):
    found = judged(flop, moved, 1.0)
    assert found["intensity"] == pytest.approx(flop / moved)
    assert found["flop_per_s"] == flop
    assert found["share_of_peak"] == pytest.approx(share)
    assert found["bound"] == bound
    assert (found["reason"] is not None) == (bound == "overhead")


def test_above_a_roof_it_says_why():
    cached = judged(20e9, 20e9, 1.0)
    assert cached["bound"] == "memory"
    assert "caches" in cached["reason"]
    # The memory cannot hold back what outruns it: here it is the peak.
    assert judged(60e9, 12e9, 1.0)["bound"] == "compute"
    over = judged(200e9, 1e9, 1.0)
    assert over["share_of_peak"] is None
    assert "wrong" in over["reason"]


@pytest.mark.parametrize(
    ("flop", "moved", "seconds", "reason"),
    [
        (None, 1e9, 1.0, "not counted"),
        (1e9, None, 1.0, "no rule tells"),
        (1e9, 1e9, None, "not calibrated"),
        (1e9, 1e9, 0.0, "not calibrated"),
    ],
)
def test_what_is_not_known_has_no_label_and_a_reason(flop, moved, seconds, reason):
    found = judged(
        flop, moved, seconds, "no rule tells the bytes of cat" if moved is None else None
    )
    assert found["bound"] is None
    assert found["share_of_peak"] is None
    assert reason in found["reason"]


def test_without_a_count_bytes_alone_may_explain_the_time():
    found = judged(None, 8e9, 1.0)
    assert found["bound"] == "memory"
    assert "80 %" in found["reason"]
    assert found["flop_per_s"] is None
    assert judged(None, 4e9, 1.0)["bound"] is None
    assert "caches" in judged(None, 20e9, 1.0)["reason"]


def test_a_little_is_not_called_none():
    assert "less than 0.1 % of its time" in judged(None, 1e3, 1.0)["reason"]
    assert judged(1e3, 1e3, 1.0)["reason"] == "less than 0.1 % of the rate that the memory allows"
    assert "moves no bytes" in judged(None, 0.0, 1.0)["reason"]


# As the page's `formatPercent` has it: the same share stands in a column of the same row.
@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.0, "0.0 %"),
        (0.01, "1.0 %"),
        (0.0467, "4.7 %"),
        (0.127, "13 %"),
        (0.29, "29 %"),
        (0.494, "49 %"),
        (0.5, "50 %"),
        (1.378, "138 %"),
    ],
)
def test_a_share_is_rounded_as_the_page_rounds_it(share: float, words: str) -> None:
    assert percent(share) == words


def test_a_share_just_below_the_half_does_not_read_as_the_half():
    found = judged(49.96e9, 0.5e9, 1.0)
    assert found["bound"] == "overhead"
    assert found["reason"].startswith("just under 50 % of")
    alone = judged(None, 4.996e9, 1.0)
    assert alone["bound"] is None
    assert "just under 50 % of its time" in alone["reason"]


def test_what_is_left_out_of_the_bytes_is_said():
    assert "without" in judged(80e9, 0.8e9, 1.0, "without the bytes of cat")["reason"]


def test_measured_peaks_stand_before_stated_ones():
    stated = {"dtype": "float32", "value": 1.0, "source": "datasheet", "how": "said"}
    roofs = Roofs(peaks([*rates(float32=PEAK), stated]))
    assert roofs.flop_per_s.get("float32") == PEAK
    assert Roofs(peaks([stated])).flop_per_s.get("float32") == 1.0
    # Whether what is stored as float32 is multiplied as TF32 is for the script to say.
    assert Roofs(peaks(rates(float32=1.0, tf32=8.0))).flop_per_s.get("float32") == 1.0
    assert roofs.flop_per_s.get("float16") is None
    assert roofs.flop_per_s.get(None) is None


def test_without_a_peak_there_is_a_rate_and_no_share():
    roofs = Roofs(peaks([], None))
    found = point(roofs, "step", "step", "float32", 1e9, 1e8, 1.0, "clean", None)
    assert found["flop_per_s"] == 1e9
    assert found["share_of_peak"] is None
    assert "no peak" in found["reason"]


# -- a recording of known numbers ------------------------------------------------------------------

STEPS = 4


def moved(
    operator: str, module_id: int | None, seconds: float, count: int | None, **more: Any
) -> dict[str, Any]:
    return {
        "operator": operator,
        "module_id": module_id,
        "backward": 0,
        "dtype": "float32",
        "calls": STEPS,
        "total_s": STEPS * seconds,
        "moved_bytes": None if count is None else STEPS * count,
        **more,
    }


def recorded(
    folder: Path,
    rows: list[dict[str, Any]],
    facts: dict[str, Any] | None = None,
    name: str = "aten::mm",
    counter: str = "recorded_shapes",
    **peak: Any,
) -> dict[str, Any]:
    """The roofline of a root with two modules: clean steps of 10 ms, observed ones of 12 ms."""
    run = Run(folder)
    run.writer.facts({"environment": facts or {}})
    run.writer.write({"modules": [module(1, "Net"), module(2, "Net.a", 1), module(3, "Net.b", 1)]})
    run.clean()
    times = [module_times(n, STEPS, STEPS * s) for n, s in ((1, 0.012), (2, 0.006), (3, 0.006))]
    flops = [
        {"counter": counter, "module_id": n, "operator": name, "backward": 0}
        | {"calls": STEPS, "flop": STEPS * 40_000_000}
        for n in (2, 3)
    ]
    frames = {
        "moved_bytes": rows,
        "module_times": times,
        "flop_counts": flops,
        "operators": [operator("aten::mm", 4, 0.01, module_id=2)],
    }
    run.torch([TORCH_S] * STEPS, frames=frames)
    run.clean()
    (folder / "logs" / "peaks.json").write_text(json.dumps(peaks(**peak)))
    found: dict[str, Any] = run.finish()["roofline"]
    return found


ROWS = [moved("aten::mm", 2, 0.006, 2_000_000), moved("aten::mm", 3, 0.005, 2_000_000)]


def test_step_modules_and_operators_have_their_own_time_and_work(tmp_path):
    found = recorded(tmp_path / "run", [*ROWS, moved("aten::relu", 3, 0.001, 1_000_000)])
    points = by(found["points"], "name")
    step = points["step"]
    assert step["flop"] == 80e6
    assert step["moved_bytes"] == 5e6
    assert step["seconds"] == pytest.approx(CLEAN_S)
    assert step["seconds_is"] == "clean"
    assert step["flop_per_s"] == pytest.approx(8e9)
    # Half of a slice's step, at the speed of the clean ones.
    assert points["Net.a"]["seconds"] == pytest.approx(CLEAN_S / 2)
    assert points["Net.a"]["flop_per_s"] == pytest.approx(8e9)
    assert points["Net.b"]["moved_bytes"] == 3e6
    assert points["Net"]["moved_bytes"] == 5e6
    assert points["Net"]["kind"] == "module"
    mm = points["aten::mm in Net.b"]
    assert mm["seconds"] == pytest.approx(0.005 / TORCH_S * CLEAN_S)
    assert mm["flop"] == 40e6
    assert mm["seconds_is"] == "calibrated"
    relu = points["aten::relu in Net.b"]
    assert relu["flop"] is None
    assert "not counted" in relu["reason"]
    (mfu,) = found["mfu"]
    assert mfu["value"] == pytest.approx(0.08)
    assert mfu["warning"] is None
    assert found["reason"] is None


def test_the_type_is_that_of_what_is_multiplied_however_long_the_rest_takes(tmp_path):
    rows = [
        moved("aten::mm", 2, 0.002, 2_000_000, dtype="bfloat16"),
        moved("aten::mm", 3, 0.002, 2_000_000, dtype="bfloat16"),
        moved("aten::addcdiv_", None, 0.007, 2_000_000),
    ]
    found = recorded(tmp_path / "run", rows, flop=rates(float32=4e9, bfloat16=PEAK))
    (mfu,) = found["mfu"]
    assert mfu["dtype"] == "bfloat16"
    assert mfu["value"] == pytest.approx(0.08)
    points = by(found["points"], "name")
    assert points["step"]["dtype"] == "bfloat16"
    assert points["aten::addcdiv_ in outside modules"]["dtype"] == "float32"


@pytest.mark.parametrize(
    ("name", "facts", "dtype"),
    [
        # What torch does where nothing is said: cuDNN uses TF32, products do not.
        ("aten::mm", {}, "float32"),
        ("aten::convolution", {}, "tf32"),
        ("aten::mm", {"tf32_products": True}, "tf32"),
        ("aten::convolution", {"tf32_convolutions": False}, "float32"),
    ],
)
def test_float32_has_the_roof_of_what_it_is_multiplied_as(tmp_path, name, facts, dtype):
    rows = [moved(name, module_id, 0.006, 200_000) for module_id in (2, 3)]
    both = rates(float32=PEAK, tf32=8 * PEAK)
    found = recorded(tmp_path / "run", rows, facts, name, flop=both)
    assert [row["dtype"] for row in found["mfu"]] == [dtype]
    known = {rate["dtype"]: rate["value"] for rate in both}
    assert found["mfu"][0]["value"] == pytest.approx(8e9 / known[dtype])
    for point_ in found["points"]:
        assert point_["dtype"] == dtype
        assert point_["share_of_peak"] == pytest.approx(point_["flop_per_s"] / known[dtype])
    # Where there is no such peak, as on a CPU, it is float32 whatever is said.
    alone = recorded(tmp_path / "cpu", rows, {"tf32_products": True}, name)
    assert {row["dtype"] for row in alone["mfu"]} == {"float32"}


def test_torch_is_asked_what_float32_is_multiplied_as():
    code = (
        "import torch; from profstack.capture.run import _tf32_facts; print(_tf32_facts(torch));"
        "torch.backends.cudnn.allow_tf32 = False; torch.set_float32_matmul_precision('high');"
        "print(_tf32_facts(torch))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "{'tf32_products': False, 'tf32_convolutions': True}",
        "{'tf32_products': True, 'tf32_convolutions': False}",
    ]


def test_a_forward_alone_is_not_the_work_of_a_step_with_a_backward(tmp_path):
    forward = recorded(tmp_path / "forward", ROWS, counter="flops-profiler")
    assert by(forward["points"], "name")["step"]["flop"] == 80e6
    rows = [*ROWS, moved("aten::mm", 2, 0.001, 2_000_000, backward=1)]
    both = recorded(tmp_path / "both", rows, counter="flops-profiler")
    assert both["mfu"] == []
    assert {point_["flop"] for point_ in both["points"]} == {None}


def test_more_than_the_peak_is_no_share_of_it(tmp_path):
    found = recorded(tmp_path / "run", ROWS, flop=rates(float32=4e9))
    (mfu,) = found["mfu"]
    assert mfu["value"] is None
    assert "the step would do more than the measured peak" in mfu["warning"]
    step = by(found["points"], "name")["step"]
    assert step["share_of_peak"] is None
    assert "wrong" in step["reason"]


def test_a_peak_that_was_measured_beside_other_work_is_a_warning_too(tmp_path):
    rate = {"dtype": "float32", "value": 20e9, "source": "measured"}
    how = f"product; {OTHER_WORK} (this had 50 % of it): it may be more"
    found = recorded(tmp_path / "run", ROWS, flop=[{**rate, "how": how}])
    (mfu,) = found["mfu"]
    assert mfu["value"] == pytest.approx(0.4)
    assert "beside other work" in mfu["warning"]


def test_bytes_that_may_be_much_less_than_all_are_none(tmp_path):
    lacking = moved("aten::cat", 3, 0.006, None, dtype=None)
    points = by(recorded(tmp_path / "run", [*ROWS, lacking])["points"], "name")
    assert points["Net.b"]["moved_bytes"] is None
    assert "no rule tells the bytes of aten::cat" in points["Net.b"]["reason"]
    assert points["step"]["moved_bytes"] is None
    assert points["Net.a"]["moved_bytes"] == 2e6
    assert points["aten::cat in Net.b"]["moved_bytes"] is None


def test_a_small_part_without_bytes_is_named(tmp_path):
    lacking = moved("aten::cat", 3, 0.0001, None, dtype=None)
    points = by(recorded(tmp_path / "run", [*ROWS, lacking])["points"], "name")
    assert points["Net.b"]["moved_bytes"] == 2e6
    assert "without the bytes of aten::cat" in points["Net.b"]["reason"]


def test_on_a_device_the_time_is_the_device_s(tmp_path):
    rows = [{**row, "device_s": row["total_s"] / 2} for row in ROWS]
    points = by(recorded(tmp_path / "run", rows)["points"], "name")
    assert points["aten::mm in Net.a"]["seconds"] == pytest.approx(0.003)
    assert points["aten::mm in Net.a"]["seconds_is"] == "device"


def test_views_are_no_points(tmp_path):
    points = by(
        recorded(tmp_path / "run", [*ROWS, moved("aten::t", 2, 0.001, 0)])["points"], "name"
    )
    assert "aten::t in Net.a" not in points


def test_without_anything_measured_there_is_a_reason(tmp_path):
    run = Run(tmp_path / "run")
    run.slice("startup", [0.1])
    run.finish()
    found = roofline(Recorded(tmp_path / "run"), None, None, None, None, None, [], peaks())
    assert found["points"] == found["mfu"] == []
    assert "neither" in found["reason"]


# -- a real slice ----------------------------------------------------------------------------------


def test_a_real_slice_adds_up_to_what_its_tensors_hold() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    x = torch.ones(8, 16)
    with torch.no_grad():
        seen = observe(lambda: model(x), steps=2)
    rows = pd.DataFrame(seen.captured.frames["moved_bytes"])
    found = {
        (seen.path(int(number)), name): total / 2
        for (number, name), total in rows.groupby(["module_id", "operator"])["moved_bytes"]
        .sum()
        .items()
    }
    f4 = 4
    assert found["Sequential.0", "aten::addmm"] == f4 * (8 * 16 + 16 * 32 + 32 + 8 * 32)
    assert found["Sequential.1", "aten::relu"] == f4 * 2 * 8 * 32
    assert found["Sequential.2", "aten::addmm"] == f4 * (8 * 32 + 32 * 4 + 4 + 8 * 4)
    assert not rows["moved_bytes"].isna().any()
    assert set(rows["dtype"].dropna()) == {"float32"}
    # What the products call inside is a part of them; that they are composite is seen through.
    assert not {"aten::linear", "aten::copy_"} & set(rows["operator"])
    linear = [row for row in seen.operators if row["name"] == "aten::linear"]
    assert [row["moved_bytes"] for row in linear] == [None, None]


def test_what_has_no_rule_stands_with_its_own_time() -> None:
    x = torch.ones(64, 64)
    seen = observe(lambda: torch.cat([x, x]).relu_(), steps=2)
    rows = {row["operator"]: row for row in seen.captured.frames["moved_bytes"]}
    assert rows["aten::cat"]["moved_bytes"] is None
    assert rows["aten::cat"]["total_s"] > 0
    assert rows["aten::relu_"]["moved_bytes"] == 2 * 2 * (2 * 64 * 64) * 4


def test_lists_of_tensors_are_seen_through_where_single_operators_do_the_work() -> None:
    weights = [torch.ones(8, 8) for _ in range(3)]
    seen = observe(lambda: torch._foreach_add_(weights, 1.0), steps=2)
    rows = {row["operator"]: row for row in seen.captured.frames["moved_bytes"]}
    assert "aten::_foreach_add_" not in rows
    assert rows["aten::add_"]["moved_bytes"] == 2 * 3 * (2 * 64 * 4)


def test_calls_of_several_types_are_told_apart() -> None:
    a, b = torch.ones(8, 8), torch.ones(8, 8, dtype=torch.float64)
    seen = observe(lambda: (a.neg(), b.neg()), steps=2)
    rows = {row["dtype"]: row for row in seen.operators if row["name"] == "aten::neg"}
    assert rows["float32"]["moved_bytes"] == 2 * 2 * 64 * 4
    assert rows["float64"]["moved_bytes"] == 2 * 2 * 64 * 8


def test_the_counter_has_the_operators_under_the_names_that_moved_bytes() -> None:
    """Operations and bytes of a point must be of the same call: both count the outermost."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 6 * 6, 2))
    x = torch.ones(2, 3, 8, 8)
    seen = observe(lambda: model(x).sum().backward(), steps=2)
    known = {
        (row["operator"], row["module_id"])
        for row in seen.captured.frames["flop_counts"]
        if row["flop"] is not None
    }
    rows = {(r["operator"], r["module_id"]) for r in seen.captured.frames["moved_bytes"]}
    assert known
    assert known <= rows
