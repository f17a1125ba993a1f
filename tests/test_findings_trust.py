"""Findings on how far figures can be trusted: too few steps, no end of the warm-up, no FLOPs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from data_findings import completed
from data_recording import CLEAN_S, Run
from finding_programs import Runs, found, had_no_core, runs_ahead

from profstack.findings.measurement import trust, uncounted
from profstack.storage.reader import Recorded

pytestmark = pytest.mark.timed

FEW, GROWING = "too_short_or_noisy__few_steps", "warmup_never_settles__growing"
INVERSE = "operators_without_flop_formula__inverse"
# Of what is no other layer's business the clean steps suffice, which the run has anyway.
LAYERS = {FEW: "watch", GROWING: "watch", INVERSE: "torch,flops"}


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runs]:
    """The reports of the programs that tests ask for."""
    with runs_ahead(request, tmp_path_factory, LAYERS) as got:
        yield got


# -- whole programs ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("program", [(FEW, "bad")])
def test_a_run_of_a_few_steps(runs: Runs, program: tuple[str, str]) -> None:
    report = runs(program)
    (told,) = found(report, "too-short-or-noisy")
    (figures,) = told["evidence"]
    assert told["title"] == f"Only {figures['clean_steps']} clean steps: the step time is rough"
    assert figures["clean_steps"] < figures["clean_steps_wanted"] == 10
    assert (told["severity"], told["gain_s"]) == ("low", None)
    assert told["gain_reason"]
    assert figures["link"] == "benchmark/samples"


@pytest.mark.slow
@pytest.mark.parametrize("program", [(GROWING, "bad")])
def test_a_step_that_gets_slower_and_slower(runs: Runs, program: tuple[str, str]) -> None:
    report = runs(program)
    (told,) = found(report, "warmup-never-settles")
    assert told["title"].startswith("The step never settles: it is still getting slower")
    (figures,) = told["evidence"]
    assert figures["change_share"] > 0.2
    assert figures["last_third_s"] > figures["middle_third_s"]
    assert figures["link"] == "benchmark/warmup"


@pytest.mark.slow
@pytest.mark.parametrize("program", [(INVERSE, "bad")])
def test_a_model_whose_time_is_in_uncounted_operators(runs: Runs, program: tuple[str, str]) -> None:
    report = runs(program)
    (told,) = found(report, "operators-without-flop-formula")
    assert "aten::linalg_inv_ex" in told["title"]
    assert told["module"] == "Sequential.0"
    figures, operator = told["evidence"]
    assert figures["uncounted_share"] >= 0.1
    assert operator["link"] == "operators/aten::linalg_inv_ex"
    assert "MFU" in told["gain_reason"]


@pytest.mark.slow
@pytest.mark.parametrize("program", [(FEW, "mended"), (INVERSE, "mended"), (GROWING, "mended")])
def test_the_same_programs_mended(runs: Runs, program: tuple[str, str]) -> None:
    report = runs(program)
    short = found(report, "too-short-or-noisy")
    # Where the machine itself is disturbed the finding says so, and is true.
    assert all(told["evidence"][0]["interval_share"] > 0.2 for told in short)
    assert found(report, "operators-without-flop-formula") == []
    assert found(report, "warmup-never-settles") == [] or had_no_core(report)
    assert not [row for row in report["warnings"] if row["slug"] == "findings-failed"]


# -- the limits ----------------------------------------------------------------------------------


def steps(folder: Path, walls: list[float]) -> Recorded:
    """A recording of clean steps that took so long."""
    made = Run(folder)
    made.slice("clean", walls)
    made.writer.close()
    return Recorded(folder)


def figures(n: int, low: float | None, high: float | None) -> dict[str, Any]:
    """A benchmark of a 10 ms step."""
    return {"n": n, "median_s": CLEAN_S, "ci95_low_s": low, "ci95_high_s": high}


@pytest.mark.parametrize(
    ("benchmark", "title"),
    [
        (figures(9, 0.0099, 0.0101), "Only 9 clean steps: the step time is rough"),
        (figures(3, None, None), "Only 3 clean steps: the step time is rough"),
        (
            figures(50, 0.0095, 0.0125),
            "The step time is rough: its interval reaches 25 % to a side",
        ),
        (
            figures(50, 0.0079, 0.0101),
            "The step time is rough: its interval reaches 21 % to a side",
        ),
        (figures(10, 0.0081, 0.0119), None),
        # More than is wanted for comparing two runs, and no more than a shared machine does.
        (figures(50, 0.0094, 0.0106), None),
        ({"n": 0, "median_s": None}, None),
    ],
)
def test_too_short_or_noisy(tmp_path: Path, benchmark: dict[str, Any], title: str | None) -> None:
    recorded = steps(tmp_path / "rec", [CLEAN_S] * 12)
    told = trust(recorded, completed({"benchmark": benchmark}))
    assert [each["title"] for each in told] == ([title] if title else [])


@pytest.mark.parametrize(
    ("walls", "warned", "title"),
    [
        ([CLEAN_S * (1 + at / 30) for at in range(60)], True, "slower"),
        ([CLEAN_S * (3 - at / 30) for at in range(60)], True, "faster"),
        # A change that is seen but small is left to the warning.
        ([CLEAN_S * (1 + at / 600) for at in range(60)], True, None),
        # No trend was seen, whatever two thirds of the steps say.
        ([CLEAN_S * (1 + at / 30) for at in range(60)], False, None),
        # Too few steps to speak of a trend.
        ([CLEAN_S * (1 + at / 10) for at in range(20)], True, None),
    ],
    ids=["slower", "faster", "a little", "no trend", "few"],
)
def test_a_warm_up_without_an_end(
    tmp_path: Path, walls: list[float], warned: bool, title: str | None
) -> None:
    warnings = [{"slug": "warmup-unsettled", "text": "the last half changes"}] if warned else []
    report = {"benchmark": figures(50, 0.0099, 0.0101), "warnings": warnings}
    told = trust(steps(tmp_path / "rec", walls), completed(report))
    said = [f"The step never settles: it is still getting {title} when the run ends"]
    assert [each["title"] for each in told] == (said if title else [])


def counted(*shares: float | None, flop: int | None = 1000) -> dict[str, Any]:
    """A report whose counter has no formula for operators of these shares."""
    rows = [
        {"operator": f"op{number}", "calls": 2.0, "time_share": share}
        for number, share in enumerate(shares)
    ]
    counter = {"counter": "FlopCounterMode", "forward_flop": flop, "uncounted": rows}
    other = {"counter": "flops-profiler", "forward_flop": 1, "uncounted": []}
    operators = [{"name": "aten::op1", "module": "Net.a"}]
    return {"tables": {"flops": [counter, other], "operators": operators}}


def test_what_is_uncounted_is_named_by_its_time() -> None:
    (told,) = uncounted(None, completed(counted(0.02, 0.5, None)))  # type: ignore[arg-type]  # report alone
    assert told["title"] == ("52 % of the step is in operators without a FLOP formula (op1, op0)")
    assert told["module"] == "Net.a"
    assert [row.get("link") for row in told["evidence"]] == [
        *("method/flops", "operators/aten::op1", "operators/aten::op0")
    ]


def test_a_compiled_graph_is_named_by_the_first_letters_of_its_hash() -> None:
    compiled = f"## Call CompiledFxGraph f{'abcd' * 12}xyz ##"
    report = counted(0.02, 0.5)
    report["tables"]["flops"][0]["uncounted"][1]["operator"] = compiled
    report["tables"]["operators"] = [{"name": compiled, "module": None}]
    (told,) = uncounted(None, completed(report))  # type: ignore[arg-type]  # it asks the report alone
    assert told["title"].endswith("(CompiledFxGraph fabcda..., op0)")
    assert told["evidence"][1]["operator"] == compiled
    assert told["evidence"][1]["link"] == f"operators/{compiled}"


@pytest.mark.parametrize("report", [counted(), counted(0.05, 0.04), counted(None)])
def test_little_that_is_uncounted_is_not_told(report: dict[str, Any]) -> None:
    assert uncounted(None, completed(report)) == []  # type: ignore[arg-type]  # it asks the report alone


def test_without_any_counter_nothing_is_told() -> None:
    report = {"tables": {"flops": [], "operators": []}}
    assert uncounted(None, completed(report)) == []  # type: ignore[arg-type]  # it asks the report alone
