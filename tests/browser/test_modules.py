"""modules.js: the tree of modules, what its sums come to, and the picture."""

import pytest

from tests.support.browser import snippet
from tests.support.lab import records_of, run_page

RUN = run_page()
SUMS = RUN["facts"]["attribution"]
PARTS = "T.modules.drawModules"


# path, calibrated, forward and backward time; how wide forward is, where backward is, how wide
BAR_CASES = {("Net", 0.02, 0.01, 0.03): [12.5, 12.5, 37.5], ("Net", 0.02, 0.01, None): [50, 50, 0]}
BAR_CASES |= {("(loss)", 0.02, None, None): [50, 50, 0], ("Net", 0.2, 0.03, 0.01): [100] * 3}
BAR_CASES |= {("Net", -0.01, 0.01, 0.01): [0, 0, 0]}


def test_the_bar_of_a_calibrated_time_and_the_sums(lab):
    lab.check(snippet("cut_bar"), BAR_CASES)
    cell = "T.modules.calibratedCell({path: 'a', calibrated_s: 0.02}, 0.04)"
    assert lab.js(f"{cell}.querySelector('.share').textContent") == "50 %"
    told = "(one) => T.modules.sumNote(one)?.textContent ?? null"
    given = [SUMS, SUMS | {"owned_share": None}, {"step_s": None, "rows_s": 0.1}, None]
    text, half, untold, none = lab.values(told, given)
    assert f"{100 * SUMS['calibrated_owned_s'] / SUMS['clean_median_s']:.1f} %" in text
    assert f"{100 * SUMS['owned_share']:.1f} %" in text
    assert [half is None, "cannot be held against a step" in untold, none] == [False, True, None]


SHOWN = RUN["module_picture"]


def test_areas_have_the_unit_of_their_figure(lab):
    units = {("flop", None): "flop", ("parameters", None): "count", ("flop", "cpu"): "bytes"}
    lab.check("(key, device) => T.modules.metricUnit({key, device})", units)


CHOOSE = """
const field = document.querySelector('#module-picture select');
field.value = '%s';
field.dispatchEvent(new Event('change'));
"""
COLUMNS = {
    "flop": ("forward_flop", "backward_flop"), "parameters": ("parameters",),
    "calibrated_s": ("calibrated_s",), "self_s": ("forward_s", "backward_s"),
}  # fmt: skip


@pytest.mark.parametrize("metric", [one["key"] for one in SHOWN["metrics"]])
def test_areas_are_the_figures_of_the_rows(lab, metric):
    lab.draw(RUN, PARTS, "#module-picture")
    lab.tell("#module-picture", after=CHOOSE % metric)
    own = next(one["own"] for one in SHOWN["metrics"] if one["key"] == metric)
    sums = [value or 0 for value in own]
    for at in reversed(range(len(sums))):
        if SHOWN["parents"][at] >= 0:
            sums[SHOWN["parents"][at]] += sums[at]
    tops = zip(sums, SHOWN["parents"], strict=True)
    roots = sum(value for value, parent in tops if parent < 0 and value > 0)
    # The whole first, then what takes some, each after what it lies in.
    trace = lab.chart("#module-picture")[0][0]
    drawn = [(name, value) for name, value in zip(SHOWN["names"], sums, strict=True) if value > 0]
    wanted = [(name, pytest.approx(value)) for name, value in sorted([("the step", roots), *drawn])]
    assert sorted(zip(trace["labels"], trace["values"], strict=True)) == wanted
    if metric in COLUMNS:
        values = dict(zip(trace["labels"], trace["values"], strict=True))
        for name, path in (("Digits", "Digits"), ("features", "Digits.features")):
            row = next(one for one in records_of(RUN, "modules") if one["path"] == path)
            figure = sum(row[column] or 0 for column in COLUMNS[metric])
            assert values[name] == pytest.approx(figure, rel=1e-6)


PRESS = snippet("press_area")


def test_a_click_opens_a_module_and_keeps_it_for_another_figure(lab):
    lab.draw(RUN, PARTS, "#module-picture")
    lab.js(f"({PRESS}, 0)")
    title = "document.querySelector('#module-picture aside h3').textContent"
    whole = "document.querySelector('#module-picture .plot').data[0].labels[0]"
    lab.tell("#module-picture", after="press('features')")
    assert [lab.js(whole), *lab.all("#module-tree tr.marked button.name")] == ["features"] * 2
    assert lab.js(f"(press('2'), [{title}, {whole}])") == ["Digits.features.2", "features"]
    lab.press("#module-tree", "features")
    assert lab.js(title) == "Digits.features"
    lab.js("history.replaceState(null, '', '#')")
