"""python.js: functions by file and library, call paths, and the call tree with its sums."""

import json

import pytest

from tests.support.browser import snippet
from tests.support.lab import changed, run_page
from tests.support.tables import rows_of

RUN = run_page()
OWN = "(own files)"
# file, line, name, calls, own seconds, seconds with callees, package
FUNCTIONS = [
    ["train.py", 10, "main", 1, 0.10, 1.00, OWN],
    ["lib/a.py", 20, "wrap", 4, 0.05, 0.60, "lib"],
    ["lib/b.py", 30, "inner", 8, 0.25, 0.50, "lib"],
    ["~", 0, "<built-in>", 9, 0.20, 0.20, "(built-in)"],
    ["train.py", 40, "even", 6, 0.07, 0.30, OWN],
    ["train.py", 50, "odd", 5, 0.03, 0.25, OWN],
    ["train.py", 60, "leaf", 3, 0.21, 0.21, OWN],
]
# caller, callee, calls, seconds
EDGES = [
    [0, 1, 3, 0.45], [4, 1, 1, 0.15], [1, 2, 8, 0.50], [2, 3, 9, 0.20], [2, 6, 1, 0.05],
    [0, 4, 1, 0.30], [4, 5, 5, 0.20], [5, 4, 5, 0.19], [4, 6, 1, 0.06], [5, 6, 1, 0.10],
    [0, 0, 2, 0.05],
]  # fmt: skip
CALLS = {
    "functions": FUNCTIONS, "edges": EDGES, "cycles": [[4, 5]], "roots": [[0, 1.0], [6, 0.04]],
    "left_out": "12 functions are not here", "callers_left": [[6, 3, 7.0, 0.02]],
    "callees_left": None,
}  # fmt: skip
INDEXED = f"T.python.indexCalls({json.dumps(CALLS)})"


TOLD = "(some) => some.map((one) => [one.kind, one.index ?? one.cycle, one.value, one.calls])"


def near(value):
    return pytest.approx(value)


# What lies in a node of the call tree: its kind, its number, its seconds, its calls.
CHILDREN = {
    # Half of the time of `wrap`, and so half of what it calls.
    "{kind: 'function', index: 1, value: 0.3}": [["function", 2, near(0.25), near(4)]],
    "{kind: 'all', value: 1.04}": [["function", 0, 1, 1], ["function", 6, 0.04, 3]],
    # More than is known of all callers is scaled down to the whole.
    "{kind: 'all', value: 0.52}": [["function", 0, near(0.5), 1], ["function", 6, near(0.02), 3]],
    "{kind: 'cycle', cycle: 0, value: 0.205}":
        [["member", 4, near(0.14), 3], ["member", 5, near(0.065), 2.5]],
    "{kind: 'member', index: 4, value: 0.14}":
        [["function", 1, near(0.075), 0.5], ["function", 6, near(0.03), 0.5]],
    "{kind: 'cycle', cycle: 0, value: 0}": [],
}  # fmt: skip


@pytest.mark.parametrize("node", CHILDREN)
def test_a_callee_has_the_share_of_its_caller(lab, node):
    assert lab.js(f"({TOLD})(T.python.childrenOf({INDEXED}, {node}))") == CHILDREN[node]


def test_frames_of_one_library_are_one(lab):
    told = """
        (some) => some.map((one) => [one.kind, one.package ?? one.index ?? one.cycle, one.value,
          one.calls, one.members?.length])
    """
    main = "{kind: 'function', index: 0, value: 1, package: undefined}"
    wanted = [["package", "lib", 0.45, 3, 1], ["cycle", 0, 0.3, 1, None]]
    assert lab.js(f"({told})(T.python.foldLibraries({INDEXED}, {main}, 0))") == wanted
    library = f"(T.python.foldLibraries({INDEXED}, {main}, 0)[0])"
    inside = lab.js(f"({told})(T.python.foldLibraries({INDEXED}, {library}, 0))")
    # `inner` is of the same library: what it calls elsewhere lies in it.
    share = 0.45 / 0.60
    wanted = [
        ["package", "(built-in)", pytest.approx(0.2 * share), pytest.approx(9 * share), 1],
        ["function", 6, pytest.approx(0.05 * share), pytest.approx(share), None],
    ]  # fmt: skip
    assert inside == wanted


def page(**values):
    """The page of a run with the calls above as its start-up."""
    trees = {"step": RUN["call_trees"]["step"], "startup": CALLS}
    return changed(RUN, **{"call_trees": trees, **values})


PRESS = snippet("call_tools")
ROOT = "put('[aria-label=\"root function\"]', '%s')"
SEARCH = """
put('#call-tools input[type=search]', '%s', 'input');
await new Promise((done) => setTimeout(done, 110));
"""


def test_the_call_tree_follows_its_tools(lab):
    lab.view(page(), "python")
    lab.js(f"(() => {{ {PRESS} }})()")

    def areas(after):
        lab.tell("#call-chart", after=after)
        return lab.js("areas()")

    areas("press('#call-tools', 'start-up')")
    every = areas("press('#call-tools', 'all frames'); put('#call-tools select', '0')")
    assert [area[1] for area in every[:2]] == pytest.approx([1.04, 1.0])
    # `leaf` is a root, lies under `inner` with its share, and in the circle, called by both.
    share, circle = 0.45 / 0.60, 0.30 / 0.41
    wanted = [0.04, 0.05 * share, 0.05 * 0.15 / 0.60 * circle, 0.06 * circle, 0.10 * circle]
    found = sorted(area[1] for area in every if area[0] == "leaf")
    assert found == pytest.approx(sorted(wanted))
    assert len(areas("put('#call-depth', '2', 'input')")) < len(every)
    cut = areas("put('#call-depth', '40', 'input'); put('#call-tools select', '0.05')")
    assert min(area[1] for area in cut) >= 0.05 * 1.04
    assert areas(SEARCH % "LEAF") == cut, "a search alone marks"
    found = areas("put('#call-tools input[type=checkbox]', true)")
    assert {"leaf", "main"} <= {area[0] for area in found} < {area[0] for area in cut}
    assert areas(SEARCH % "") == cut
    # Another root: its time with all that it calls is the whole; then what it calls.
    assert areas(ROOT % "wrap  lib/a.py:20")[0] == ["wrap", near(0.60), ""]
    assert areas("press('#call-callees', 'inner')")[0] == ["inner", near(0.50), ""]
    # Who is in a circle has the circle as its root.
    assert areas(ROOT % "odd  train.py:50")[0] == ["⟲ even and 1 more", near(0.41), ""]
    folded = areas("press('#call-tools', 'libraries folded'); press('#call-detail', 'main')")
    assert ["lib", near(0.45)] in [area[:2] for area in folded]


def test_times_have_bars_and_paths_stay_without_functions(lab):
    lab.view(RUN, "python")
    bars = "[...one.cells].map((cell) => cell.querySelectorAll('.fill').length)"
    # Name, self, total, calibrated and calls: of a group, and of a function in it.
    rows = lab.all("#function-table tbody tr", f"{bars}.slice(0, 5)")
    assert rows[:2] == [[0, 0, 0, 0, 0], [0, 1, 1, 0, 0]]
    for paths, left in ((RUN["tables"]["call_paths"], 1), (None, 0)):
        tables = {"tables__functions": None, "tables__call_paths": paths}
        lab.view(changed(RUN, **tables), "python")
        assert len(lab.all("#functions")) == left


def test_paths_without_libraries(lab):
    records = rows_of(
        "node parent kind own name self_s total_s",
        *((0, None, "function", True, "f", 1, 20), (1, 0, "function", False, "lib", 2, 15)),
        *((2, 1, "operator", None, "op", 4, 4), (3, None, "function", False, "boot", 8, 9)),
        (4, 3, "function", True, "g", 1, 1),
    )
    tell = """
        (records, all) => T.python.pathForest(records, all).map(({record, children}) =>
          [record.name, record.self_s, children.map((one) => one.record.name)])
    """
    own, every = lab.values(tell, [(records, False), (records, True)])
    assert own == [["f", 3, ["op"]], ["g", 1, []]]
    assert every == [["f", 1, ["lib"]], ["boot", 8, ["g"]]]


def test_groups_have_sums_of_what_can_be_added(lab):
    rows = [("step", "b.py", 0.1, 2, 0.3, None), ("step", "b.py", 0.2, 3, None, 0.5)]
    rows += [("step", "lib/x.py", 0.7, 1, 0.1, 0.1), ("startup", "b.py", 9.0, 9, 9, 9)]
    rows += [("step", "a.py", None, 4, 0.1, None)]
    columns = "phase file self_s calls watch_share calibrated_s"
    made = rows_of(columns, *rows, line=1, name="f", package="lib")
    records = [one | {"own": not one["file"].startswith("lib")} for one in made]
    groups = """
        (records) => T.python.functionGroups(records, 'step').map(({record, children, key}) => [key,
          children.length, record.self_s, record.calls, record.watch_share, record.calibrated_s])
    """
    wanted = [
        ["own b.py", 2, near(0.3), 5, 0.3, None], ["own a.py", 1, None, 4, 0.1, None],
        ["library lib", 1, 0.7, 1, 0.1, 0.1],
    ]  # fmt: skip
    assert lab.values(groups, [(records,)])[0] == wanted
