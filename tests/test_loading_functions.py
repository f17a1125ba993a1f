"""Which of the user's functions the loading goes to, by what cProfile saw of who calls whom."""

from __future__ import annotations

from typing import Any

from data_findings import completed

from profstack.findings.data_loading import loading_functions, most_of_it

TRAIN = "/app/train.py"
LOADER = "/lib/torch/utils/data/dataloader.py"
COMPOSE = "/lib/torchvision/transforms.py"
# First line of each function, by its name.
LINES = {"jitter": 8, "rotate": 16, "__getitem__": 31, "__call__": 5, "__next__": 700}


def place(name: str) -> tuple[str, int, str]:
    file = {"__next__": LOADER, "__call__": COMPOSE}.get(name, TRAIN)
    return file, LINES[name], name


def report_of(
    times: dict[str, tuple[float, float]],
    calls: dict[tuple[str, str], float],
    lines: dict[int, float] | None = None,
) -> dict[str, Any]:
    """A report of functions with own and whole milliseconds, who calls whom, and own lines."""
    functions = [
        {"phase": "step", "own": place(name)[0] == TRAIN, "calls": 16.0}
        | dict(zip(("file", "line", "name"), place(name), strict=True))
        | {"self_s": own / 1e3, "total_s": whole / 1e3, "calibrated_s": own / 1e3}
        for name, (own, whole) in times.items()
    ]
    ways = [
        {"caller": "{}:{}({})".format(*place(one)), "callee": "{}:{}({})".format(*place(other))}
        | {"phase": "step", "calls": 16.0, "self_s": ms / 1e3, "total_s": ms / 1e3}
        for (one, other), ms in calls.items()
    ]
    rows = [
        {"file": TRAIN, "line": line, "source": f"    line {line}", "own": True, "reason": None}
        | {"python_s": ms / 1e3, "operator_s": 0.0}
        for line, ms in (lines or {}).items()
    ]
    return completed({"tables": {"functions": functions, "calls": ways, "lines": rows}})


def test_the_deepest_function_with_most_of_the_loading_is_named() -> None:
    report = report_of(
        {"__next__": (0.1, 10), "__getitem__": (0.6, 9.8), "jitter": (6.7, 6.7)}
        | {"rotate": (2.5, 2.5)},
        {
            ("__next__", "__getitem__"): 9.8,
            ("__getitem__", "jitter"): 6.7,
            ("__getitem__", "rotate"): 2.5,
        },
        {9: 0.5, 13: 6.2, 22: 2.4, 35: 0.6},
    )
    rows = loading_functions(report, 0.005)
    assert [each.row["name"] for each in rows] == ["jitter", "__getitem__", "rotate"]
    assert [round(each.share, 2) for each in rows] == [0.67, 0.98, 0.25]
    assert round(rows[0].clean_s, 6) == 0.00335
    assert most_of_it(rows) == "Most of it is jitter (train.py:8), called from __getitem__."
    # The line of a function that is mostly in others of the user's would be blamed for theirs.
    assert [each.evidence.get("heaviest_line") for each in rows] == [13, None, 22]


def test_where_no_function_below_has_most_of_it_the_longest_is_told_too() -> None:
    report = report_of(
        {"__next__": (0.1, 10), "__getitem__": (1.8, 9.8), "jitter": (4, 4), "rotate": (3, 3)},
        {
            ("__next__", "__getitem__"): 9.8,
            ("__getitem__", "rotate"): 3,
            ("__getitem__", "jitter"): 4,
        },
        {35: 1.8},
    )
    rows = loading_functions(report, 0.005)
    assert "heaviest_line" not in rows[0].evidence
    assert most_of_it(rows) == (
        "Most of it is __getitem__ (train.py:31); the longest of what that calls is "
        "jitter (train.py:8)."
    )


def test_what_a_library_calls_for_the_user_is_not_on_the_line_that_called_the_library() -> None:
    report = report_of(
        {"__next__": (0.1, 10), "__getitem__": (1, 9.8), "__call__": (0.8, 8.8)}
        | {"jitter": (8, 8)},
        {
            ("__next__", "__getitem__"): 9.8,
            ("__getitem__", "__call__"): 8.8,
            ("__call__", "jitter"): 8,
        },
        {9: 8.0, 33: 1.8},
    )
    rows = loading_functions(report, 0.005)
    assert [each.evidence.get("heaviest_line") for each in rows] == [9, None]
    assert most_of_it(rows) == "Most of it is jitter (train.py:8)."


def test_functions_that_call_each_other_are_told_by_the_longest() -> None:
    report = report_of(
        {"__next__": (0.1, 10), "__getitem__": (1, 9.8), "jitter": (8, 9)},
        {
            ("__next__", "__getitem__"): 9.8,
            ("__getitem__", "jitter"): 9,
            ("jitter", "__getitem__"): 3,
        },
    )
    assert loading_functions(report, 0.005)[0].row["name"] == "__getitem__"
    assert loading_functions(report_of({}, {}), 0.005) == []
