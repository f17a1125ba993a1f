"""modules.js: the tree of modules, what its sums come to, and the picture."""

import json

import pytest

from tests.support.browser import snippet
from tests.support.lab import records_of, run_page

RUN = run_page()
SUMS = RUN["facts"]["attribution"]
PARTS = "T.modules.drawModules"


# path, calibrated, forward and backward time; how wide forward is, where backward is, how wide
BAR_CASES = [
    (("Net", 0.02, 0.01, 0.03), [12.5, 12.5, 37.5]),
    (("Net", 0.02, 0.01, None), [50, 50, 0]),
    (("Net", 0.02, None, 0.01), [0, 0, 50]),
    (("(loss)", 0.02, None, None), [50, 50, 0]),
    (("Net", 0.2, 0.03, 0.01), [100, 100, 100]),
    (("Net", -0.01, 0.01, 0.01), [0, 0, 0]),
]


def test_the_bar_of_a_calibrated_time_and_the_sums(lab):
    cut = snippet("cut_bar")
    assert lab.values(cut, [given for given, _ in BAR_CASES]) == [widths for _, widths in BAR_CASES]
    share = (
        "T.modules.calibratedCell({path: 'a', calibrated_s: 0.02}, 0.04).querySelector('.share')"
    )
    assert lab.js(f"{share}.textContent") == "50 %"
    cell = "T.modules.calibratedCell({path: 'a', calibrated_s: own}, median)"
    empty = f"(own, median) => {cell}.outerHTML"
    assert ["fill" in one for one in lab.values(empty, [(None, 0.04), (1, 0)])] == [False, False]
    told = "(one) => T.modules.sumNote(one)?.textContent ?? null"
    text, half, untold, none = lab.values(
        told, [SUMS, SUMS | {"owned_share": None}, {"step_s": None, "rows_s": 0.1}, None]
    )
    assert f"{100 * SUMS['calibrated_owned_s'] / SUMS['clean_median_s']:.1f} %" in text
    assert f"{100 * SUMS['owned_share']:.1f} %" in text
    assert [half is None, "cannot be held against a step" in untold, none] == [False, True, None]


SHOWN = RUN["module_picture"]


def test_the_picture_says_what_its_areas_hold(lab):
    units = {("flop", None): "flop", ("parameters", None): "count", ("flop", "cpu"): "bytes"}
    lab.check("(key, device) => T.modules.metricUnit({key, device})", units)
    lab.js(f"(window.picture = [{json.dumps(SHOWN)}, {json.dumps(RUN['tables']['modules'])}], 0)")
    words = """
        (below_count, below) => T.modules.moduleWords(picture[0],
          {key: 'flop', device: null, below, below_count}, picture[1])[1] ?? null
    """
    more = "What is drawn is 2.00 k more than the rows of the roots tell for that reason."
    told = {
        (count, 2000): f" {text}: holds more than its parts. {more}"
        for count, text in ((1, "1 module"), (1500, "1,500 modules"))
    }
    lab.check(words, told | {(3, 0): None})


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
    inside = dict.fromkeys(trace["parents"], 0)
    for parent, value in zip(trace["parents"], trace["values"], strict=True):
        inside[parent] += value
    for at, value in enumerate(trace["values"]):
        assert inside.get(str(at), 0) <= value * (1 + 1e-9)
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
    lab.tell("#module-picture", after="press('features')")
    assert lab.all("#module-picture .breadcrumb") == ["the step › Digits"]
    finds = "T.views.keyFinders.get('modules')[0]"
    assert lab.js(f"[{finds}('Digits.classifier'), {finds}('nothing')]") == [False, False]
    lab.tell("#note")
    assert lab.js(title) == "Digits.classifier"
    lab.press("#module-tree", "features")
    assert lab.js(title) == "Digits.features"
    lab.js("history.replaceState(null, '', '#')")
