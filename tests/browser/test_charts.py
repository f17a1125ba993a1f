"""charts.js: axes and their ticks, bars, hierarchies; and the real library."""

import json

import pytest

from tests.support.browser import choose, snippet, texts
from tests.support.full_report import full

PLOT = "document.querySelector('%s .plot')"
THEME = """
{colour: (one) => one, faint: (one, part) => one + '@' + part, width: 800, narrow: false,
  ground: 'ground', text: 'text', soft: 'soft', line: 'line', font: 'font', mono: 'mono'}
"""


def charted(page, box):
    """Bring a chart into sight and wait until it is drawn."""
    page.look_at(box)
    page.wait_for(f"{PLOT % box}.dataset.drawn")
    page.settle()


def test_texts_of_charts_are_no_markup(lab):
    lab.check("T.charts.plotText", {"<b>&\u202e": "&lt;b&gt;&amp;\\u202e"})
    names = {"x" * 30: "x" * 30, "<" + "y" * 30: "…" + "y" * 29, ("abcdef", 4): "…def"}
    lab.check("T.charts.plotName", names)
    lab.check("T.charts.cutText", {("abcd", 4): "abcd", ("abcde", 4): "abc…"})
    lab.check("T.charts.tickText", {"50.00 ms": "50 ms", "1.50 s": "1.5 s", "1.05 k": "1.05 k"})


TICKS = {
    ("s", 0.0101, 0.0109): ["10.2 ms", "10.4 ms", "10.6 ms", "10.8 ms"],
    ("s", 0, 200): ["0", "1 min 0 s", "2 min 0 s", "3 min 0 s"],
    ("s", 0, 150): ["0", "50 s", "1 min 40 s", "2 min 30 s"],
    ("s", 0, 1e6): ["0", "48 h 0 min", "96 h 0 min", "144 h 0 min", "192 h 0 min", "240 h 0 min"],
    ("bytes", 0, 700 * 2**20): ["0", "200 MiB", "400 MiB", "600 MiB"],
    ("bytes", 0, 3000): ["0", "512 B", "1 KiB", "1.5 KiB", "2 KiB", "2.5 KiB"],
    ("count", 0, 45_000): ["0", "10 k", "20 k", "30 k", "40 k"],
    ("plain", 0, 3.4): ["0", "1", "2", "3"],
    ("share", 0, 0.9): ["0", "20 %", "40 %", "60 %", "80 %"],
    ("other", 0, 6): ["0", "1", "2", "3", "4", "5", "6"],
}
LOG = {
    (1, 10, 400): [1, 2, 5, 10], (0.9, 11, 400): [1, 2, 5, 10],
    (1, 100, 400): [1, 2, 5, 10, 20, 50, 100], (1, 1e4, 400): [1, 10, 100, 1e3, 1e4],
    (1, 1e12, 400): [1, 1e3, 1e6, 1e9, 1e12], (1.5, 150, 132): [10, 100], (3, 60, 132): [5, 20],
    (1, 1e-3, 800): [1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1],
    (2.1, 4.9, 400): [2.5, 3, 3.5, 4, 4.5], (1, 2, 400): [1, 2],
}  # fmt: skip


def test_ticks_are_round_or_logarithmic_in_the_units_of_the_page(lab):
    found = lab.values("(...given) => T.charts.axis(...given).ticktext", TICKS)
    assert dict(zip(TICKS, found, strict=True)) == TICKS
    ticks = "(a, b, width) => T.charts.axis('count', a, b, {log: true, width}).tickvals"
    assert lab.values(ticks, LOG) == [pytest.approx(one) for one in LOG.values()]
    made = lab.js("T.charts.axis('rate', 10, 1000, {log: true, title: 'a<b', until: 50})")
    assert (made["range"], made["tickvals"]) == ([1, 3], [10, 20, 50])
    assert made["title"]["text"] == "a&lt;b"
    # From 1 to 100 on both axes: 10 is in the middle of 400 by 200 pixels.
    frame = "T.charts.logFrame(400, 200, [1, 100], [1, 100])"
    box = lab.js(f"T.charts.pointBox({frame}, 10, 1, 6)")
    assert box == pytest.approx({"left": 194, "right": 206, "top": 194, "bottom": 206})


@pytest.mark.parametrize("narrow", [False, True])
def test_bars_lie_on_one_scale(lab, narrow):
    bars, drawn, dots = lab.script("bar_chart", WIDTH=str(400 if narrow else 800))
    names = ["first of all the long names", "second"]
    texts = ["10 ms", "20.0 ms"] if narrow else ["10.0 ms, x", "cold 20.0 ms"]
    assert [one["text"] for one in drawn["annotations"]] == [*names, *texts, "4.00 ms", "›"]
    assert (bars["x"], dots["x"]) == ([0.01, 0.02, 0.004], [0.009, 0.012])
    assert bars["error_x"]["array"] == [pytest.approx(0.003), None, pytest.approx(0.086)]
    assert bars["error_x"]["arrayminus"] == [pytest.approx(0.002), None, pytest.approx(0.003)]
    # A whisker may reach 1.8 times as far as the longest bar: what is beyond is cut, and marked.
    assert drawn["xaxis"]["range"] == [0, pytest.approx(1.8 * 0.02 * 1.03)]


# ---- Hierarchies


def test_the_largest_areas_are_kept_and_the_rest_is_one_with_its_sum(lab):
    lab.script("tree_of_areas")
    told = "((areas) => areas.map((one) => [one.name, one.value, one.parent]))"
    first = [["root", 100, -1], ["big", 60, 0], ["inner", 41, 1], ["rest of it", 5, 1]]
    rest = [["small", 22, 0], ["leaf", 20, 4], ["3 smaller", pytest.approx(0.03), 0]]
    assert lab.js(f"{told}(T.charts.largestAreas(tree))") == first + rest
    wanted = [*first, ["5 smaller", pytest.approx(22.03), 0]]
    assert lab.js(f"{told}(T.charts.largestAreas(tree, 3))") == wanted
    # Of equal values the earlier one is kept; what is less than a part of the whole is not.
    leaf = "(name) => ({name, value: 1, children: []})"
    even = "{name: 'r', value: 4, children: [...'abc'].map(" + leaf + ")}"
    areas = f"T.charts.largestAreas({even}, ...given)"
    kept = {(3,): "r a b c", (2,): "r a 2 smaller", (9, 0.25): "r a b c", (9, 0.26): "r 3 smaller"}
    lab.check(f"(...given) => {areas}.map(({{name}}) => name).join(' ')", kept)
    nested = "{count: 5, children: [{children: []}, {count: 0, children: []}]}"
    assert lab.js(f"T.charts.countOf({nested})") == 6


# What is written in areas at 800 pixels, and at 260.
FULL = "root  100 B|big  60 B|inner  41 B|res…|small  22 B|leaf  20 B|"
ROUND = "root|big|inner|rest of it|small|leaf|"
WIDE = FULL.replace("res…", "rest of it  5 B")
KINDS = {
    "icicle": [FULL, "root  100 B|big  60 B|inner  41 B||small|leaf|"],
    "sunburst": [ROUND, ROUND.replace("rest of it", "rest …")],
    "treemap": [WIDE, WIDE],
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_hierarchy_is_drawn(lab, kind):
    lab.script("tree_of_areas")
    trace, narrow = lab.script("hierarchy", THEME=THEME, KIND=kind)
    assert ["|".join(trace["text"]), "|".join(narrow)] == KINDS[kind]
    assert trace["labels"] == ["root", "big", "inner", "rest of it", "small", "leaf", "3 smaller"]
    assert trace["values"] == [100, 60, 41, 5, 22, 20, 0.03]
    assert trace["parents"] == ["", "0", "1", "1", "0", "4", "0"]
    assert trace["marker"]["line"]["width"][2] == 2, "where the keys are"


WALK = """
x is not taken
ArrowDown root, 100 B, 100 % of what is drawn
ArrowDown big, 60 B, 60 % of what is drawn
ArrowRight small, 22 B, 22 % of what is drawn
ArrowDown leaf, 20 B, 20 % of what is drawn
ArrowUp small, 22 B, 22 % of what is drawn
ArrowLeft big, 60 B, 60 % of what is drawn
ArrowDown inner, 41 B, 41 % of what is drawn
opened
Enter inner, 41 B, 100 % of what is drawn
Escape inner, 41 B, 100 % of what is drawn
opened
Backspace inner, 41 B, 100 % of what is drawn
tree of inner. Arrow keys move, Enter opens, Backspace goes up.
"""


def test_a_click_is_on_the_nearest_point(lab):
    clicked = "{onClick: (point) => { on.clicked = point; }}"
    listened = f"T.charts.listenToChart({{on: (name, act) => {{ on[name] = act; }}}}, {clicked})"
    click = "on.plotly_click({points: ['nearest', 'other']})"
    assert lab.js(f"((on) => ({listened}, {click}, on.clicked))({{}})") == "nearest"


def test_what_lies_in_a_node_is_listed_in_parts(lab):
    nodes = "[...Array(60)].map((_, at) => ({name: 'n', value: 1 + at, children: []}))"
    lab.js(f"window.inside = T.charts.insideList({{children: {nodes}}}, 99, String, 0)[1], 0")
    told = "[inside.children.length, inside.lastChild.textContent]"
    more = f"(inside.querySelector('li:last-child button').click(), {told})"
    assert [lab.js(told), lab.js(more)] == [[9, "and 52 more"], [49, "and 12 more"]]


def test_keys_walk_through_a_hierarchy(lab):
    lab.script("tree_of_areas")
    wanted = WALK.strip().splitlines()
    keys = [one.split()[0] for one in wanted[:-1] if one != "opened"]
    assert lab.script("walk_by_keys", KEYS=json.dumps(keys)) == wanted


# ---- The real library


def test_the_real_library_draws_zooms_and_points(opened):
    page = opened(full(), "environment", fresh=True)
    assert page.evaluate("window.Plotly === undefined"), "it is inflated when a chart is seen"
    page.go("benchmark")
    charted(page, "#steps-chart")
    assert "step" in texts(page, "#steps-chart svg.main-svg text")
    # After a zoom there are other ticks, all within the range.
    chart = PLOT % "#steps-chart"
    before = page.evaluate(f"{chart}.layout.xaxis")
    first, last = before["range"]
    zoomed = [first + 0.3 * (last - first), first + 0.6 * (last - first)]
    page.evaluate(f"Plotly.relayout({chart}, {{'xaxis.range': {zoomed}}}) && 0")
    page.wait_for(f"{chart}.layout.xaxis.tickvals.join() !== {before['tickvals']}.join()")
    after = page.evaluate(f"{chart}.layout.xaxis")
    assert after["range"] == pytest.approx(zoomed)
    assert all(zoomed[0] <= one <= zoomed[1] for one in after["tickvals"])
    choose(page, "#steps-tools", "log")
    page.wait_for(f"{chart}.layout.yaxis.type === 'log'")
    page.go("modules")
    charted(page, "#module-picture")
    found = page.evaluate(snippet("press_features"))
    page.settle()
    rows = full()["tables"]["modules"]
    whole = sum(one["calibrated_s"] or 0 for one in rows if "." not in one["path"])
    share = next(one["calibrated_s"] for one in rows if one["path"] == "Digits") / whole
    assert found[1] / found[0] == pytest.approx(share, abs=0.01)
    assert found[2], "what lies in it is under it"
    assert texts(page, "#module-picture .breadcrumb") == ["the step › Digits › features"]
    assert page.evaluate("location.hash") == "#modules/Digits.features"
