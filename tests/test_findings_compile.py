"""Findings on torch.compile: what dynamo's books say is recorded, and what of it is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import clean_environment
from data_recording import CLEAN_S, Run
from finding_programs import PLACES, Runs, found, line_of, runs_ahead

from profstack.capture.step_log import HIDDEN, LONGEST_TEXT, CompileLog
from profstack.code_owner import FACT
from profstack.findings.compilation import compiling, failed_guard, kind_of
from profstack.storage.reader import Recorded

pytestmark = pytest.mark.timed

AGAIN, BREAKS = "recompilations__counter", "graph_breaks__print"


# -- whole programs ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runs]:
    """The reports of the programs that tests ask for."""
    with runs_ahead(request, tmp_path_factory) as got:
        yield got


@pytest.mark.slow
@pytest.mark.parametrize("program", [(AGAIN, "bad")])
def test_a_model_that_is_compiled_with_every_step(runs: Runs, program: tuple[str, str]) -> None:
    report = runs(program)
    (told,) = found(report, "recompilations")
    assert told["title"] == "forward is compiled again 29 times during the steps"
    assert told["severity"] == "high"
    assert told["gain_is"] == "measured"
    assert Path(told["file"]).name == "bad.py"
    assert told["line"] == line_of(AGAIN, "counter")
    figures, guard = told["evidence"]
    assert (figures["recompilations"], figures["steps"]) == (29, 29)
    assert 0 < told["gain_s"] <= report["benchmark"]["median_s"]
    assert figures["per_step_s"] == pytest.approx(figures["compile_s"])
    assert guard["times"] == 29
    assert guard["failed_guard"].startswith("self.calls == ")
    assert guard["link"] == f"source/{told['file']}:{told['line']}"
    assert "belongs in a tensor" in told["advice"]
    assert found(report, "graph-breaks") == []


@pytest.mark.slow
@pytest.mark.parametrize("program", [(BREAKS, "bad")])
def test_a_model_that_prints(runs: Runs, program: tuple[str, str]) -> None:
    report = runs(program)
    (told,) = found(report, "graph-breaks")
    assert Path(told["file"]).name == "bad.py"
    assert told["line"] == line_of(BREAKS, "print")
    assert (told["gain_s"], told["layers"]) == (None, ["torch"])
    assert "without it" in told["gain_reason"]
    figures, row = told["evidence"]
    assert figures == {"graph_breaks": 1, "graphs_per_step": 2.0}
    assert "print" in row["reason"]
    assert row["function"] == "forward"
    assert row["link"] == f"source/{told['file']}:{told['line']}"
    assert found(report, "recompilations") == []


@pytest.mark.slow
@pytest.mark.parametrize("program", [(AGAIN, "mended"), (BREAKS, "mended")])
def test_the_same_models_mended(runs: Runs, program: tuple[str, str]) -> None:
    report = runs(program)
    assert found(report, "recompilations") == []
    assert found(report, "graph-breaks") == []
    assert not [row for row in report["warnings"] if row["slug"] == "findings-failed"]


# -- what is recorded ----------------------------------------------------------------------------


def test_dynamos_books_are_read_as_they_grow_and_left_as_they_are() -> None:
    torch = pytest.importorskip("torch")
    earlier = torch.compile(lambda x: x + 3, backend="eager")
    earlier(torch.ones(2))
    log = CompileLog(0.0)
    assert log.frames() == {}

    def scaled(x: Any, way: str) -> Any:
        y = x * len(way)
        print(end="")
        return y + 1

    compiled = torch.compile(scaled, backend="aot_eager")
    compiled(torch.ones(2), "one")
    before = json.dumps(torch._dynamo.utils.counters, default=str)
    rows = log.frames()
    assert json.dumps(torch._dynamo.utils.counters, default=str) == before
    first, rest = rows["compilations"]
    assert (first["name"], first["versions"], first["backward"]) == ("scaled", 0, 0)
    assert first["file"] == __file__
    assert first["line"] == scaled.__code__.co_firstlineno
    assert 0 < first["t_s"] < rest["t_s"]
    assert first["wall_s"] > 0
    assert first["reason"] is None
    assert rest["name"].startswith("torch_dynamo_resume_in_scaled_at_")
    [broken] = rows["graph_breaks"]
    assert json.loads(broken["stack"])[-1] == [
        *(__file__, scaled.__code__.co_firstlineno + 2, "scaled")
    ]
    assert log.frames() == {}

    compiled(torch.ones(2), "three")
    again = log.frames()["compilations"]
    assert again[0]["versions"] == 1
    guard, file, line = failed_guard(again[0]["reason"])
    assert guard is not None
    assert "'one'" in guard
    assert line == scaled.__code__.co_firstlineno + 1
    assert file in (None, __file__)
    assert log.reason is None


def test_dynamo_is_not_imported_for_it() -> None:
    code = (
        "import sys; import torch; from profstack.capture.step_log import CompileLog\n"
        "had = 'torch._dynamo.utils' in sys.modules; log = CompileLog(0.0); print(log.frames())\n"
        "assert ('torch._dynamo.utils' in sys.modules) == had"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "{}"), done.stderr


def record(**fields: Any) -> SimpleNamespace:
    """A record of dynamo's as one of its versions has it."""
    known = {
        "compile_id": "0/1",
        "co_name": "f",
        "co_filename": "/app/train.py",
        "co_firstlineno": 3,
        "cache_size": 1,
        "is_forward": True,
        "start_time_us": 1e6,
        "duration_us": 5e5,
    }
    return SimpleNamespace(**known | fields)


def books(monkeypatch: pytest.MonkeyPatch, **names: Any) -> None:
    """Put made-up books in the place of dynamo's: versions differ, and one alone is installed."""
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(**names))


def test_a_version_whose_records_do_not_say_which_guard_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = CompileLog(0.0)
    code = record.__code__.replace(co_filename="/app/train.py", co_firstlineno=3)
    books(
        monkeypatch,
        get_compilation_metrics=lambda: [record()],
        guard_failures={code: ["0/0: old", "0/0: L['x'] == 3"]},
    )
    [row] = log.frames()["compilations"]
    assert row["reason"] == "0/0: L['x'] == 3"
    assert row["wall_s"] == 0.5


def test_texts_are_bounded_and_no_value_of_the_environment_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = CompileLog(0.0)
    made = [
        record(recompile_reason="0/0: G['os'].environ['API'] == 'sesame'"),
        record(recompile_reason="x" * 10_000),
    ]
    books(monkeypatch, get_compilation_metrics=lambda: made)
    secret, long = log.frames()["compilations"]
    assert secret["reason"] == HIDDEN
    assert "sesame" not in json.dumps(secret)
    assert len(long["reason"]) == LONGEST_TEXT


def test_books_that_can_not_be_read_end_the_log_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = CompileLog(0.0)

    def broken() -> Any:
        raise TypeError("another torch")

    books(monkeypatch, get_compilation_metrics=broken)
    assert log.frames() == {}
    assert log.reason == "dynamo's books could not be read: TypeError: another torch"
    books(monkeypatch, get_compilation_metrics=lambda: [record()])
    assert log.frames() == {}


def test_records_that_the_script_clears_are_not_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    log, made = CompileLog(0.0), [record(), record()]
    books(monkeypatch, get_compilation_metrics=lambda: made)
    assert len(log.frames()["compilations"]) == 2
    made[:] = [record(compile_id="1/0")]
    assert [row["compile_id"] for row in log.frames()["compilations"]] == ["1/0"]
    assert log.frames() == {}


# -- what is told --------------------------------------------------------------------------------


class Compiled:
    """A recording of steps of 10 ms, and what was compiled in them."""

    def __init__(self, folder: Path) -> None:
        self.run = Run(folder)
        self.run.writer.facts({FACT: PLACES})
        self.rows: list[dict[str, Any]] = []
        self.run.clean(60)

    def compile(
        self, step: int, guard: str | None = None, wall_s: float = 0.006, **fields: Any
    ) -> None:
        """A version of train.py's `f`; the first one has number 0."""
        number = sum(not row.get("backward") for row in self.rows)
        self.rows.append(
            {
                "t_s": 1.0 + (step + 0.1) * CLEAN_S,
                "wall_s": wall_s,
                "compile_id": f"0/{number}",
                "name": "f",
                "file": "/app/train.py",
                "line": 3,
                "backward": 0,
                "versions": number,
                "reason": None if guard is None else f"0/{number - 1}: {guard}",
                **fields,
            }
        )

    def told(self) -> list[dict[str, Any]]:
        """The findings."""
        self.run.writer.write({"compilations": self.rows})
        self.run.writer.close()
        report = {"benchmark": {"median_s": CLEAN_S}, "tables": {"regions": []}, "layers": []}
        return compiling(Recorded(self.run.folder), report)


def test_a_value_that_changes_twice_is_told_with_what_it_cost(tmp_path: Path) -> None:
    made = Compiled(tmp_path / "rec")
    made.compile(0, wall_s=3.0)
    made.compile(20, "L['way'] == 'a'  # y = x * len(way)  # train.py:4 in f")
    made.compile(40, "L['way'] == 'b'  # y = x * len(way)  # train.py:4 in f")
    made.compile(40, None, 0.003, backward=1, compile_id="0/2", name=None, file=None, line=None)
    (told,) = made.told()
    assert told["title"] == "f is compiled again twice during the steps"
    # 6 ms and 9 ms over the 59 steps after the first.
    assert told["evidence"][0]["per_step_s"] == pytest.approx(0.015 / 59)
    # The median step compiled nothing, and would be as long without.
    assert told["gain_s"] is None
    assert "the median step does not hold it" in told["gain_reason"]
    assert (told["file"], told["line"]) == ("/app/train.py", 4)
    figures, guard = told["evidence"]
    assert "most of which compile nothing" in figures["per_step_is"]
    assert (guard["failed_guard"], guard["times"]) == ("L['way'] == 'a'", 2)


def test_a_loop_that_settles_is_not_told(tmp_path: Path) -> None:
    made = Compiled(tmp_path / "rec")
    made.compile(0, wall_s=3.0)
    made.compile(2, "tensor 'x' size mismatch at index 0. expected 32, actual 17")
    made.compile(10, "___check_global_state()")
    made.compile(11, "GLOBAL_STATE changed: grad_mode ")
    assert made.told() == []


def test_what_is_compiled_in_the_first_step_is_its_start(tmp_path: Path) -> None:
    made = Compiled(tmp_path / "rec")
    for number in range(6):
        made.compile(0, f"L['self'].depth == {number}" if number else None)
    assert made.told() == []


def test_a_code_that_was_given_up_is_told(tmp_path: Path) -> None:
    made = Compiled(tmp_path / "rec")
    made.compile(0)
    made.compile(5, "L['n'] == 1")
    failed = "Dynamo recompile limit exceeded: recompile_limit (currently set to 2)"
    made.compile(6, "L['k'] == 2", failure=failed, name=None, file=None, line=None)
    (told,) = made.told()
    assert told["title"] == "f is compiled again once during the steps"
    assert told["evidence"][0]["given_up"] is True
    assert "runs uncompiled" in told["advice"]


def test_what_costs_next_to_nothing_is_not_told(tmp_path: Path) -> None:
    made = Compiled(tmp_path / "rec")
    made.compile(0)
    for number in range(3):
        made.compile(10 + number, f"L['n'] == {number}", wall_s=0.001)
    assert made.told() == []


def test_steps_under_an_observer_do_not_count_where_others_compiled_too(tmp_path: Path) -> None:
    made = Compiled(tmp_path / "rec")
    made.run.cprofile([CLEAN_S] * 10)
    made.compile(0)
    made.compile(10, "L['n'] == 1", wall_s=0.006)
    made.compile(61, "L['n'] == 2", wall_s=0.024)
    (told,) = made.told()
    assert told["evidence"][0]["per_step_s"] == pytest.approx(2 * 0.006 / 69)


def test_no_more_is_told_than_the_step_takes(tmp_path: Path) -> None:
    made = Compiled(tmp_path / "rec")
    made.compile(0)
    for step in range(1, 60):
        made.compile(step, f"L['n'] == {step}", wall_s=0.03)
    (told,) = made.told()
    assert (told["gain_s"], told["gain_is"]) == (CLEAN_S, "measured")
    assert told["line"] == 3
    assert isinstance(told["line"], int)


def test_guards_on_the_same_thing_are_of_one_kind() -> None:
    assert kind_of("L['x'].size()[0] == 32") == kind_of("L['x'].size()[0] == 7")
    assert kind_of("self.rate == 0.5") == kind_of("self.rate == 1e-05")
    assert kind_of("L['x2'] == 1") == kind_of("L['x2'] == 4")
    assert kind_of("L['way'] == 'a'") == kind_of("L['way'] == 'b'")
    assert kind_of("L['x'] == 'a'") != kind_of("L['y'] == 'a'")
    assert kind_of("L['x'].size()[0] == 1") != kind_of("L['x'].size()[1] == 1")
    assert kind_of("x2 == 1") != kind_of("x3 == 1")
    assert kind_of("grad_mode") != kind_of("L['n'] == 1")
    assert kind_of(None) is None


def test_hostile_text_in_a_guard_stays_text(tmp_path: Path) -> None:
    made = Compiled(tmp_path / "rec")
    made.compile(0)
    for number in range(4):
        made.compile(5 + number, f"L['</script><img onerror=x>'] == {number}\x1b[2J")
    (told,) = made.told()
    assert "</script>" in told["evidence"][1]["failed_guard"]
    home = os.path.expanduser("~")
    assert failed_guard(f"0/0: L['{home}/x'] == 1")[0] == "L['~/x'] == 1"
