"""flops.js: the counters side by side, what they leave out, and the roofline."""

import json

import pytest

from tests.support.browser import snippet
from tests.support.lab import bench_page, changed, run_page

RUN, BENCH = run_page(), bench_page()
ROOF = BENCH["roofline"]
PEAK = {"source": "measured", "dtype": "float32", "value": 1e11, "how": "matmul 7"}
SHEET = PEAK | {"source": "datasheet", "dtype": "bfloat16", "value": 4e11, "how": None}


def point(**values):
    return ROOF["points"][1] | {"kind": "module"} | values


POINTS = [
    point(kind="step", name="step", intensity=2.0, flop_per_s=4e9),
    point(name="a" * 31, intensity=20.0, flop_per_s=9e9),
    point(kind="operator", name="aten::mm in x", intensity=0.1, flop_per_s=1e9),
    point(name="none", intensity=None),
]
PEAKS = {
    "flop_per_s": [PEAK, SHEET, PEAK | {"value": 0}],
    "bytes_per_s": [PEAK | {"value": 2e10}, SHEET | {"value": 5e10}, {"value": None}],
    "threads": 1, "torch": None,
}  # fmt: skip
MADE_UP = {"roofline": ROOF | {"points": POINTS, "peaks": PEAKS}}


def test_counters_stand_side_by_side(lab):
    lab.view(RUN, "flops")
    tables = lab.tables("flops", 2)
    counted = "2.76 M|5.16 M|1.38 M|1|3.1 %"
    wanted = [f"FlopCounterMode (the record)|{counted}", f"recorded_shapes|{counted}"]
    assert tables["flop-counters"][1:] == wanted
    lab.view(BENCH, "flops")
    step = "step|step|▲compute-bound|45 %|12.6|94.5 G|12.8 ms|clean|–|1.21 G|91.6 MiB|float32"
    assert lab.tables("flops")["roofline-table"][1] == step


def test_roofs_meet_where_memory_and_arithmetic_are_equal(lab):
    lab.view(changed(BENCH, **MADE_UP), "flops")
    data, _drawn = lab.chart("#roofline-chart")
    # Measured: 1e11 FLOP/s over 2e10 B/s is 5 FLOP/byte; of the data sheet 4e11 over 5e10 is 8.
    assert [data[f"roof {one}"]["x"][0] for one in ("float32", "bfloat16")] == pytest.approx([5, 8])
    assert data["roof float32"]["y"] == [1e11, 1e11]
    slope = data["memory"]
    assert [slope["y"][0] / slope["x"][0], slope["x"][1]] == pytest.approx([5e10, 8])
    assert data["points"]["x"] == [2.0, 0.1], "the step and its operators"
    ways = {
        ("module", "a b"): "#modules/a%20b", ("operator", "mm in x"): "#operators/mm",
        ("step", "step"): None,
    }  # fmt: skip
    lab.check("(kind, name) => T.flops.wayOfPoint({kind, name})", ways)
    lab.press("#roofline-tools", "modules")
    assert lab.js("document.querySelector('#roofline-chart .plot').data.at(-1).x") == [2.0, 20.0]


def test_a_missing_mfu_says_why_and_rates_have_their_units(lab):
    lab.view(BENCH, "flops")
    usual = {"source": "measured", "dtype": "float32", "flop": 3e9, "seconds": 0.004}
    mfu = [usual | {"value": 0.25, "warning": None}, usual | {"value": None, "warning": "w 1"}]
    lab.js(f"""
        (window.box = T.dom.el('div'),
          T.flops.drawMfu(box, {{mfu: {json.dumps(mfu)}, peaks: {{}}}}, [], [], {{}}), 0)
    """)
    told = "[...box.children].map((card) => [...card.children].map((one) => one.textContent))"
    cards = lab.js(told)
    head = "MFU of the measured peak, float32"
    assert cards == [[head, "25 %", "3.00 G FLOP in 4.00 ms"], [head, "–", "w 1"]]
    lab.check("T.flops.formatRate", {94.5e9: "94.5 GFLOP/s", 12: "12 FLOP/s", None: "–"})
    lab.check("T.flops.formatBandwidth", {21e9: "21.0 GB/s", 12: "12 B/s", None: "–"})
    # 8 GFLOP in 4 ms.
    lab.check(snippet("drawn_rates"), {(3e9, 5e9): "3.00 G, 5.00 G, 2.00 T"})
