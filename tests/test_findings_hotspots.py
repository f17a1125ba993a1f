"""Findings on a Python function or a module that takes most of the step, and what is none."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from data_findings import completed
from data_recording import Run
from finding_programs import Runs, found, line_of, runs_ahead

from profstack.analysis.functions import COST
from profstack.findings.hot_spots import dominating, hot_spots
from profstack.report.export import findings_as
from profstack.report.screen import finding_line
from profstack.storage.reader import Recorded

pytestmark = pytest.mark.timed

LOOP, BLOCK = "python_hot_spot__loop", "module_dominates__slow_block"
TRAIN = "/app/train.py"
LOADER = "/torch/utils/data/dataloader.py"
ASKED = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
STEP_S = 0.010
_TIMES = ("self_s", "calibrated_s")


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runs]:
    """The reports of the programs that tests ask for."""
    with runs_ahead(request, tmp_path_factory) as got:
        yield got


# -- whole programs ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("program", [(LOOP, "bad")])
def test_a_loop_of_python_in_every_step(runs: Runs, program: tuple[str, str]) -> None:
    report = runs(program)
    (told,) = found(report, "python-hot-spot")
    assert told["title"].startswith("weights_of spends ")
    assert Path(told["file"]).name == "bad.py"
    assert told["line"] == line_of(LOOP, "loop")
    assert told["gain_is"] == "estimated"
    figures = told["evidence"][0]
    assert figures["calls"] == 1.0
    assert figures["own_low_s"] <= told["gain_s"] <= figures["own_high_s"]
    assert figures["own_high_s"] <= figures["corrected_self_s"] * 1.01
    assert figures["link"] == f"python/{told['file']}:{told['line']}:weights_of"
    assert found(report, "module-dominates") == []


@pytest.mark.slow
@pytest.mark.parametrize("program", [(BLOCK, "bad")])
def test_one_block_of_many_that_does_more(runs: Runs, program: tuple[str, str]) -> None:
    report = runs(program)
    (told,) = found(report, "module-dominates")
    assert told["module"] == "Sequential.2"
    assert told["layers"] == ["torch"]
    figures, *equals = told["evidence"]
    assert figures["link"] == "modules/Sequential.2"
    assert figures["step_share"] >= 0.5
    assert figures["own_s"] >= 3 * figures["fair_s"]
    # A row may say besides which other finding is about the same time.
    alike = {row["module"] for row in equals if "module" in row}
    assert alike == {f"Sequential.{number}" for number in (0, 1, 3)}
    assert found(report, "python-hot-spot") == []


@pytest.mark.slow
@pytest.mark.parametrize("program", [(LOOP, "mended"), (BLOCK, "mended")])
def test_the_same_programs_mended(runs: Runs, program: tuple[str, str]) -> None:
    report = runs(program)
    assert found(report, "python-hot-spot") == []
    assert found(report, "module-dominates") == []
    assert not [row for row in report["warnings"] if row["slug"] == "findings-failed"]


# -- the limits of a function's own time ---------------------------------------------------------


def told_of(
    folder: Path,
    *,
    corrected_s: float | None,
    factor: float = 1.0,
    outside_s: float = 0.008,
    builtins: tuple[tuple[str, float, float], ...] = (),
    on_lines_s: float = 0.0,
    lines_run: float | None = None,
    calls_a_step: float = 1.0,
    own: bool = True,
    batches: int = 0,
) -> list[dict[str, Any]]:
    """What is told of one function: its own time, what it calls, and what stands on its lines.

    The torch layer saw no operator for `outside_s` of a step of 10 ms; `builtins` are the name,
    calls and own time of built-in functions that it calls, `lines_run` how often its one line was
    run where that was counted. With `batches` a DataLoader calls it,
    in which a step is for 1.5 ms and as many times.
    """
    made = Run(folder)
    each = {"inner_s": 1e-7, "outer_s": 1e-7, "inner_spread_s": 0.0, "outer_spread_s": 0.0}
    made.writer.facts({COST: {"python": each, "builtin": each, "bytecode_factor": factor}})
    made.clean(20)
    made.writer.close()
    row = {"phase": "step", "file": TRAIN, "line": 5, "name": "shuffle", "own": own}
    row["calls"] = calls_a_step
    row |= {"self_s": corrected_s or 1e-9, "corrected_self_s": corrected_s}
    calls = [
        {
            "phase": "step",
            "caller": f"{TRAIN}:5(shuffle)",
            "callee": f"~:0({name})",
            "calls": count,
            "self_s": self_s,
            "total_s": self_s,
        }
        for name, count, self_s in builtins
    ]
    loader = f"{LOADER}:9(__next__)"
    edge = {"phase": "step", "caller": loader, "callee": f"{TRAIN}:5(shuffle)", "calls": 1.0}
    functions = [row]
    if batches:
        calls.append({**edge, "self_s": row["self_s"], "total_s": row["self_s"]})
        of_loader = {"file": LOADER, "line": 9, "name": "__next__", "own": False}
        functions.append(
            {**row, **of_loader, "self_s": 1e-5, "total_s": 0.0015 * batches, "calls": batches}
        )
    line = {"file": TRAIN, "line": 6, "operator_s": on_lines_s, "python_s": 0.0, "reason": None}
    line |= {"calls": lines_run}
    report = {
        "benchmark": {"median_s": STEP_S, "counted_steps": [0]},
        "attribution": {
            "step_s": STEP_S,
            "calibrated_owned_s": STEP_S,
            "clean_median_s": STEP_S,
        },
        "tables": {
            "functions": functions,
            "steps": [{"index": 0, "wait_s": 0.0015 if batches else 0.0, "wall_s": STEP_S}],
            "modules": [{"path": "(wait)", **dict.fromkeys(_TIMES, 0.0015 * batches)}],
            "threads": [],
            "regions": [
                {"source": "torch", "path": ASKED, "calls": batches, "wall_s": 0.0015 * batches}
            ],
            "calls": calls,
            "lines": [{**line, "source": "a @ b"}],
            "operators": [{"self_s": STEP_S - outside_s}],
        },
    }
    return hot_spots(Recorded(folder), completed(report))


@pytest.mark.parametrize(("batches", "most_s"), [(1, 0.0015), (4, 0.006)])
def test_what_a_loader_calls_is_no_longer_than_a_step_waits_for_all_its_batches(
    tmp_path: Path, batches: int, most_s: float
) -> None:
    (told,) = told_of(tmp_path / "rec", corrected_s=0.007, batches=batches)
    assert told["evidence"][0]["own_high_s"] == pytest.approx(most_s)
    assert told["gain_s"] == pytest.approx(most_s)
    assert f"Its own time is {most_s * 1e3:.2f} ms; all of it" in told["advice"]


def test_limits_that_agree_give_their_mean(tmp_path: Path) -> None:
    (told,) = told_of(tmp_path / "rec", corrected_s=0.003, factor=1.5)
    assert told["gain_s"] == pytest.approx(math.sqrt(0.002 * 0.003))
    assert told["evidence"][0]["limits_agree"] is True
    assert "goes away at best" in told["advice"]
    assert told["severity"] == "high"


def test_limits_that_do_not_agree_give_the_smaller_and_say_so(tmp_path: Path) -> None:
    (told,) = told_of(tmp_path / "rec", corrected_s=0.006, factor=3.0)
    assert told["gain_s"] == pytest.approx(0.002)
    assert told["evidence"][0]["limits_agree"] is False
    assert "the smaller figure counts" in told["advice"]
    # What is gained is no less, and may be more.
    assert told["title"] == "shuffle spends at least 2.00 ms of each step in Python (20 %)"
    assert "at least 2.00 ms a step, estimated" in findings_as("md", [told])
    line = finding_line(told)
    assert "at least 2.00 ms a step, estimated" in line


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        (1.0, "is called once a step. Replace its loop by"),
        (0.25, "is called 0.25 times a step. Replace its loop by"),
        (64.0, "is called 64 times a step. Replace the loop in it, or the one that calls it, by"),
    ],
)
def test_how_often_it_is_called(tmp_path: Path, calls: float, words: str) -> None:
    (told,) = told_of(tmp_path / "rec", corrected_s=0.003, calls_a_step=calls)
    assert words in told["advice"]
    assert "up to 3.00 ms a step, estimated" in findings_as("md", [told])


def test_no_function_takes_more_than_what_no_operator_took(tmp_path: Path) -> None:
    (told,) = told_of(tmp_path / "rec", corrected_s=0.006, factor=3.0, outside_s=0.0015)
    assert told["gain_s"] == pytest.approx(0.0015)


def test_short_calls_are_python_and_long_ones_are_not(tmp_path: Path) -> None:
    short = ("<built-in method math.sin>", 4000.0, 0.002)
    (told,) = told_of(tmp_path / "one", corrected_s=0.001, builtins=(short,))
    assert told["gain_s"] == pytest.approx(0.001 + 0.002 - 4000 * 1e-7)
    long = ("<method 'read' of '_io.BufferedReader' objects>", 2.0, 0.005)
    assert told_of(tmp_path / "two", corrected_s=0.0005, builtins=(long,)) == []


def test_operators_by_sign_are_no_python(tmp_path: Path) -> None:
    assert told_of(tmp_path / "one", corrected_s=0.004, on_lines_s=0.0038) == []
    # What a built-in call did is not in the own time at all.
    call = ("<built-in method torch.mm>", 1.0, 0.0038)
    found = told_of(tmp_path / "two", corrected_s=0.004, on_lines_s=0.0038, builtins=(call,))
    assert [each["gain_s"] for each in found] == [pytest.approx(0.004)]


def test_no_more_python_than_the_lines_that_ran_can_take(tmp_path: Path) -> None:
    # Four lines of NumPy: of its ufuncs cProfile is not told, and they are no Python.
    assert told_of(tmp_path / "one", corrected_s=0.004, lines_run=4.0) == []
    (told,) = told_of(tmp_path / "two", corrected_s=0.006, factor=3.0, lines_run=4000.0)
    assert told["evidence"][0]["own_high_s"] == pytest.approx(0.004)
    (told,) = told_of(tmp_path / "three", corrected_s=0.004, lines_run=9000.0)
    assert told["gain_s"] == pytest.approx(0.004)
    # It is called once a step: not all its calls were followed.
    (told,) = told_of(tmp_path / "four", corrected_s=0.004, lines_run=0.5)
    assert told["gain_s"] == pytest.approx(0.004)


@pytest.mark.parametrize(
    "change", [{"corrected_s": None}, {"corrected_s": 0.0009}, {"corrected_s": 0.005, "own": False}]
)
def test_no_hot_spot(tmp_path: Path, change: dict[str, Any]) -> None:
    assert told_of(tmp_path / "rec", **change) == []


# -- modules -------------------------------------------------------------------------------------


def module(path: str, kind: str, self_s: float, flop: int | None = None) -> dict[str, Any]:
    """A row of modules, half of its operations forward."""
    half = None if flop is None else flop // 2
    times = {"forward_device_s": None, "backward_device_s": None}
    return (
        {"path": path, "type": kind, "self_s": self_s}
        | times
        | {
            "forward_flop": half,
            "backward_flop": half,
        }
    )


def judged(
    modules: list[dict[str, Any]],
    points: tuple[tuple[str, str, float, float], ...] = (),
    uncounted: float = 0.0,
    factor_known: bool = True,
) -> list[dict[str, Any]]:
    """What is told of the modules of a step of 10 ms; points are kind, name, flop and bytes."""
    names = ("kind", "name", "flop", "moved_bytes")
    return dominating(
        None,  # type: ignore[arg-type]  # it asks the report alone
        {
            "attribution": {
                "step_s": STEP_S,
                "calibrated_owned_s": STEP_S if factor_known else None,
                "clean_median_s": STEP_S,
            },
            "environment": {"device": "cpu"},
            "roofline": {"points": [dict(zip(names, point, strict=True)) for point in points]},
            "tables": {
                "modules": modules,
                "flops": [{"uncounted": [{"operator": "x", "time_share": uncounted}]}],
            },
        },
    )


def test_a_module_is_held_against_its_equals() -> None:
    alike = [module(f"Net.{number}", "Linear", 0.0005, 1000) for number in range(3)]
    slow = module("Net.3", "Linear", 0.006, 1000)
    (told,) = judged([*alike, slow])
    assert told["module"] == "Net.3"
    assert told["gain_s"] == pytest.approx(0.0055)
    assert told["title"] == "Net.3 takes 60 % of the step: 12.0 times its due"
    (told,) = judged([*alike, slow], factor_known=False)
    assert told["gain_s"] is None
    assert "disturbed" in told["gain_reason"]


@pytest.mark.parametrize(
    "modules",
    [
        [module("Net.0", "Linear", 0.0005, 1000)] * 2 + [module("Net.3", "Linear", 0.006, 12_000)],
        [module("Net.0", "Linear", 0.0005, 1000)] * 2 + [module("Net.3", "Linear", 0.0049, 1000)],
        [module("Net.0", "Linear", 0.003, 1000)] * 2 + [module("Net.3", "Linear", 0.006, 1000)],
        [module("Net.0", "Linear", 0.0005, 1000), module("Net.3", "Linear", 0.006, 1000)],
        [module("Net.0", "Tanh", 0.0005)] * 3 + [module("Net.3", "Tanh", 0.006)],
        [module("Net", "Linear", 0.009, 1000)],
        [],
    ],
    ids=["as big", "half", "a little slower", "too few", "work unknown", "alone", "none"],
)
def test_no_module_dominates(modules: list[dict[str, Any]]) -> None:
    assert judged(modules) == []


def test_a_container_is_not_its_child() -> None:
    alike = [module(f"Net.{number}", "Block", 0.00001, 1000) for number in range(4)]
    inner = [module(f"Net.{number}.fc", "Linear", 0.0002, 1000) for number in range(3)]
    slow = module("Net.3.fc", "Linear", 0.007, 1000)
    (told,) = judged([*alike, *inner, slow])
    assert told["module"] == "Net.3.fc"


def test_a_module_that_is_like_no_other_is_held_against_the_step() -> None:
    modules = [module("Net.norm", "Norm", 0.006), module("Net.fc", "Linear", 0.002, 1000)]
    small = (("step", "step", 1000.0, 1000.0), ("module", "Net.norm", 0.0, 50.0))
    (told,) = judged(modules, small)
    assert (told["module"], told["gain_s"]) == ("Net.norm", None)
    assert told["gain_reason"] == "no other module of class Norm says what it should take"
    big = (("step", "step", 1000.0, 1000.0), ("module", "Net.norm", 0.0, 500.0))
    assert judged(modules, big) == []
    # Its work may be what nobody has counted: an LSTM's, say.
    assert judged(modules, small, uncounted=0.5) == []


def test_on_a_device_the_device_time_counts() -> None:
    def on_device(path: str, kind: str, device_s: float) -> dict[str, Any]:
        return module(path, kind, 0.001, 1000) | {"forward_device_s": device_s}

    rows = [on_device("Net", "Net", 0.0075)]
    rows += [on_device(f"Net.{number}", "Linear", 0.0005) for number in range(3)]
    rows.append(on_device("Net.3", "Linear", 0.006))
    report: dict[str, Any] = {
        "attribution": {"step_s": STEP_S, "calibrated_owned_s": 0.009, "clean_median_s": STEP_S},
        "environment": {"device": "cuda"},
        "tables": {"modules": rows, "flops": []},
    }
    (told,) = dominating(None, completed(report))  # type: ignore[arg-type]  # it asks the report alone
    assert told["module"] == "Net.3"
    assert told["gain_s"] == pytest.approx(0.0055)
