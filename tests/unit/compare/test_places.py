"""Times of functions, lines and modules in which places of a difference are looked for."""

import pytest

from profstack.compare.places import Found, Places, exact_counts, function_times
from profstack.compare.sides import Side
from profstack.findings.reading import FunctionKey
from tests.support.reports import rows


def test_times_of_functions_are_clean_ones_of_the_users_own_in_steps():
    names = "line name own phase total_s self_s calibrated_s"
    made = rows(
        *("functions", names, (3, "f", True, "step", 3.0, 2.0, 1.0)),
        # What is not calibrated stays as it was measured.
        *((7, "g", True, "step", 5.0, 2.0, None), (9, "h", True, "step", 4.0, 0.0, 1.0)),
        *((1, "a", False, "step", 3.0, 2.0, 1.0), (2, "b", True, "startup", 3.0, 2.0, 1.0)),
        (4, "c", True, "step", None, 2.0, 1.0),
        file="/a/train.py",
    )
    found = function_times({"tables": {"functions": made}})
    expected = {(3, "f"): 1.5, (7, "g"): 5.0, (9, "h"): 4.0}
    assert found == {
        FunctionKey("/a/train.py", *key): pytest.approx(seconds)
        for key, seconds in expected.items()
    }


def test_only_counts_that_every_recording_has_whole_and_equal_are_exact():
    made = [
        {"equal": 3.0, "thirds": 1 / 3 + 2 / 3, "differs": 2.0, "half": 0.5, "once": 1.0},
        {"equal": 3.0, "thirds": 1.0, "differs": 4.0, "half": 0.5},
    ]
    nothing = {}
    expected = {"equal": 3, "thirds": 1, "differs": None, "half": None, "once": None}
    assert exact_counts([made[0], nothing, made[1]], lambda report: report) == expected
    # A single recording may have met a rare step in its slice.
    assert exact_counts([made[0], nothing], lambda report: report) == {}


OLD = "def more(p):\n    return p.sum()\n\nfor p in loader:\n    more(p)\n"
# What is above moved the function by a line, which itself runs as often as before.
NEW = "import os\ndef more(p):\n    return [q.item() for q in p]\n\nfor p in loader:\n    more(p)\n"


def side(text, calls, runs, fused):
    """Two recordings of a script, with its operators' calls, its lines' runs, and its optimizer."""
    report = {
        "tables": {
            "operators": [{"name": name, "calls": float(count)} for name, count in calls],
            "lines": rows("lines", "line calls python_s", *runs, file="/a/t.py", own=True),
            **dict.fromkeys(("modules", "module_lines", "functions", "calls"), ()),
        },
        "sources": [{"file": "/a/t.py", "text": text}],
        "benchmark": {"median_s": 0.01},
        "setup": {"optimizers": [{"name": "SGD", "fused": fused, "foreach": False, "tensors": 2,
                                  "place": {"file": "/a/t.py", "line": 6}}]},
    }  # fmt: skip
    return Side("side", [report, report])


def test_counts_name_the_operator_and_the_line_that_runs_as_many_times_more():
    before = [("aten::sum", 1), ("aten::add", 7), ("prim::x", 1)]
    # An operator that others call has their calls, and a name of its own for each of two shapes.
    now = [("aten::item", 20), ("aten::item", 10), ("aten::_local_scalar_dense", 30), before[1]]
    was = side(OLD, before, [(2, 1), (4, 1), (5, 1)], fused=True)
    # Line 6 changed more, but line 3 by as much as the operator.
    after = side(NEW, [*now, ("prim::x", 90)], [(3, 31), (5, 1), (6, 45)], fused=False)
    places = Places(was, after)
    assert places.counted() == [
        Found("/a/t.py", 6, "no longer fused"),
        Found("/a/t.py", 3, "aten::item 0 -> 30 calls a step"),
    ]
    # The optimizer's line is the first place of what takes longer in Python, once.
    slower = side(NEW, [], [(6, 1, 0.004), (3, 1, 0.003)], fused=False)
    of_python = [(each.line, each.cause) for each in Places(was, slower).of_step("Python", 0.007)]
    assert of_python == [(6, "no longer fused"), (3, "return [q.item() for q in p]")]
    unknown = side(NEW, [], [], fused=True)
    assert Places(was, was).counted() == Places(was, unknown).counted() == []
