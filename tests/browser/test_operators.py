"""operators.js: operators and kernels by name, one by one, and who they are divided among."""

import json

from tests.support.lab import bench_page, changed, records_of, run_page

RUN = run_page()
KEYS = ("name", "calls", "device_s", "operator", "module", "stream")
KERNELS = [
    ["gemm", 2.0, 0.003, "aten::mm", "Net.a", 7],
    ["gemm", 3.0, 0.005, "aten::mm", "Net.b", 7],
    ["gemm", 1.0, 0.0001, "aten::addmm", None, 13],
    ["copy", 4.0, None, "aten::copy_", "Net.a", 7],
    ["copy", 2.0, 0.002, "aten::copy_", "Net.a", 7],
]
PANEL = "#view-operators aside"


def kernels(rows, left=None):
    """The page of a run with these kernels alone."""
    own = {column["key"]: column for column in RUN["tables"]["kernels"]["columns"]}
    columns = [own.get(key) or own["module"] | {"key": key, "label": key} for key in KEYS]
    table = {"columns": columns, "rows": rows, "total": len(rows), "left_out": left}
    return changed(RUN, tables__kernels=table)


def test_operators_are_summed_by_name_the_longest_first(lab):
    lab.view(RUN, "operators")
    sums = {}
    for one in records_of(RUN, "operators"):
        sums[one["name"]] = sums.get(one["name"], 0) + one["self_s"]
    told = "[one.cells[0].title, parseFloat(one.querySelector('.fill').style.width)]"
    names = lab.all("#operator-table .call-view > div > div:first-child tbody tr", told)
    ordered = sorted(sums.items(), key=lambda one: -one[1])
    assert names == [[name, round(100 * own / ordered[0][1], 2)] for name, own in ordered]
    row = "aten::convolution_backward|410 µs|443 µs|323 µs|1|[[64, 64, 8, 8]]|Digits.features.2"
    assert lab.tables("operators")["operator-table"][1] == row
    # The panel divides it among the modules and the shapes: 410 of 710 µs are 58 %.
    wanted = ["aten::convolution_backward", "2", "710 µs", "767 µs", "559 µs"]
    assert lab.all(f"{PANEL} :is(h3, dd)") == wanted
    wanted = [
        "Digits.features.21 ×410 µs58 %", "Digits.features.01 ×300 µs42 %",
        "[[64, 64, 8, 8]]1 ×410 µs58 %", "[[64, 32, 8, 8]]1 ×300 µs42 %",
    ]  # fmt: skip
    assert lab.all(f"{PANEL} li") == wanted
    ways = ["#kernels", "#modules/Digits.features.2", "#modules/Digits.features.0"]
    assert lab.all(f"{PANEL} a", "one.getAttribute('href')") == ways


def test_kernels_are_summed_by_name_and_divided_among_their_owners(lab):
    lab.view(kernels(KERNELS, "5 of 9"), "operators", "kernels")
    found = lab.js("T.operators.kernelsByName(T.views.shownPage.tables.kernels)")
    keys = ["name", "calls", "device_s", "operators", "modules"]
    assert [column["key"] for column in found["columns"]] == keys
    # A sum with a part that is not known is not known.
    assert found["rows"] == [["gemm", 6, 0.0081, 2, 3], ["copy", 6, None, 1, 1]]
    left = lab.all("#view-kernels .left-out, #view-kernels aside > p:last-child")
    assert [one.endswith("5 of 9") for one in left] == [True] * 3
    wanted = [
        "aten::mm5 ×8.00 ms99 %", "aten::addmm1 ×100 µs1.2 %", "Net.b3 ×5.00 ms62 %",
        "Net.a2 ×3.00 ms37 %", "(not known)1 ×100 µs1.2 %", "75 ×8.00 ms99 %", "131 ×100 µs1.2 %",
    ]  # fmt: skip
    assert lab.all("#view-kernels aside li") == wanted


def test_many_owners_are_shown_a_few_at_a_time(lab):
    rows = [["k", 1.0, 0.001 * at, f"op{at}", "Net", 7] for at in range(1, 81)]
    lab.view(kernels(rows), "operators", "kernels")
    counts = []
    for _ in range(3):
        items = lab.all("#view-kernels .inside:nth-of-type(1) li")
        counts.append((len(items), items[-1] if items[-1].startswith("and") else ""))
        lab.js("(document.querySelector('#view-kernels .inside li:last-child button')?.click(), 0)")
    assert counts == [(13, "and 68 more"), (73, "and 8 more"), (80, "")]
    assert lab.all("#view-kernels aside h4")[0] == "launched by (80)"


def test_a_row_or_a_filter_turns_the_tables_and_an_operator_leads_to_its_point(lab):
    lab.view(RUN, "operators")
    find = "T.views.keyFinders.get('operators').map((find) => find('aten::mm'))"
    keep = "T.views.filterKeepers.get('operators').at(-1)"
    # By name, then one by one for a module; the address of an operator turns back.
    for act, one_by_one in (("0", False), (f"{keep}({{module: 'Digits'}})", True), (find, False)):
        lab.js(act)
        hidden = lab.all("#operator-table .call-view > div > div", "one.hidden")
        assert hidden == [one_by_one, not one_by_one], act
    assert lab.all(f"{PANEL} h3") == ["aten::mm"]
    seconds = {"aten::mm in a": 0.1, "aten::mm in b": 0.3, "aten::mm in d": None, "aten::mmm": 9}
    points = [{"kind": "operator", "name": name, "seconds": own} for name, own in seconds.items()]
    page = changed(bench_page(), roofline__points=points)
    lab.js(f"lab.prepare({json.dumps(page)})")
    way = "(name) => T.operators.roofWay(T.views.shownPage, name)?.getAttribute('href')"
    lab.check(way, {"aten::mm": "#flops/aten%3A%3Amm%20in%20b", "aten::bmm": None})
