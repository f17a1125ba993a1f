"""The whole report: joined tables, why parts of it are empty, and how the run ended."""

import json
import math
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import pytest

from profstack.analysis import build
from profstack.analysis.loops import loop_warnings
from profstack.storage.folder import write_run
from profstack.storage.schema.report import REPORT
from profstack.storage.vocabulary import BENCH_FACT
from tests.support import recordings as made
from tests.support.recordings import Model, function, operator, realistic, report_of


def texts(report, slug):
    return [row["text"] for row in report["warnings"] if row["slug"] == slug]


def test_a_whole_run(tmp_path):
    run = realistic(tmp_path / "rec", Model(seed=5, evaluation=19))
    report, clean_s = run.finish(), median(run.clean_s)
    assert report["benchmark"]["median_s"] == pytest.approx(clean_s)
    assert (report["status"], report["status_reason"]) == ("complete", None)
    mixed = {step.slice for step in run.drawn if "eval" in step.flags}
    for layer, table in (("torch", "operators"), ("cprofile", "functions")):
        later = [row for row in run.rows["slices"] if row["round"] > 1 and row["layer"] == layer]
        wall = math.fsum(row["wall_s"] for row in later if row["slice"] not in mixed)
        own = run.total(table, "self_s", *({row["slice"] for row in later} - mixed))
        calibrated = math.fsum(row["calibrated_s"] for row in report["tables"][table])
        assert calibrated == pytest.approx(own / wall * clean_s)
    found = [(row["wall_s"], row["flags"]) for row in report["tables"]["steps"]]
    assert found == [(step.wall_s, step.flags) for step in run.drawn]
    facts = {"rule": "optimizer", "phase": "train", "loops": [], "reason": None, "batch_size": 32}
    facts |= {"count": len(run.drawn), "counts_by_phase": {"train": len(run.drawn)}}
    assert report["step"] == facts | {"shapes": ["32x8", "12x8"]}
    found = [tuple(row[k] for k in ("index", "steps", "step_median_s")) for row in report["slices"]]
    walls = {n: [step.wall_s for step in run.of(n)] for n in range(len(run.rows["slices"]))}
    assert found == [(n, len(each), pytest.approx(median(each))) for n, each in walls.items()]
    for name, rows in report["tables"].items():
        for each in REPORT[name].names if rows else ():
            missing = sum(row[each] is None for row in rows)
            known = [f"{name}.{each}" in report[f"{kind}_reason"] for kind in ("columns", "cells")]
            assert known == [missing == len(rows), 0 < missing < len(rows)]
    assert all([*report["columns_reason"].values(), *report["cells_reason"].values()])


def test_a_killed_run_still_has_its_report(run):
    # The report is of the plan with most steps.
    run.clean(10, wall=1.0)
    run.begin_plan("module", "eval")
    run.slice("clean", [0.010, 0.013, 0.011] * 5)
    frames = {"operators": [operator("aten::mm", 3, 0.003)]}
    run.torch([0.012, 2.5, 0.013, 0.017], left_out=(1,), frames=frames)
    # Nothing that is written at the end is there, and the parent died with the child.
    report = report_of(run.folder)
    assert (report["status"], report["run"]["id"]) == ("partial", "rec")
    assert "before the script" in report["status_reason"]
    facts = [report["step"][name] for name in ("rule", "phase", "counts_by_phase")]
    assert facts == ["module", "eval", {"eval": 19, "train": 10}]
    assert (report["benchmark"]["median_s"], len(report["tables"]["steps"])) == (0.011, 29)
    # Steps left out of the rows are left out of the division.
    (row,) = report["tables"]["operators"]
    expected = pytest.approx([1.0, 0.001, 0.003 / 0.042 * 0.011])
    assert [row["calls"], row["self_s"], row["calibrated_s"]] == expected


def test_notes_stand_once_with_paths_from_home(run):
    train = f"{Path.home()}/project/train.py"
    run.clean()
    run.cprofile([0.013] * 3, frames={"functions": [function("train", 3, 0.003, file=train)]})
    line = {"file": train, "line": 1, "calls": 3}
    run.torch([0.012] * 3, mode="lines", frames={"lines": [line]})
    note = {"slug": "truncated", "layer": "torch", "text": f"gave up {train}"}
    early = {"slug": "empty-capture", "layer": "watch", "text": "nothing yet"}
    run.writer.write({"notes": [note, early, note]})
    run.layers(watch="recorded")
    report = run.finish()
    assert str(Path.home()) not in json.dumps(report)
    files = [report["tables"][table][0]["file"] for table in ("functions", "lines")]
    assert files == ["~/project/train.py"] * 2
    assert texts(report, "truncated") == ["gave up ~/project/train.py"]
    assert texts(report, "empty-capture") == texts(report, "children") == []


@pytest.mark.parametrize("place", ["wait", "work", "quick"])
def test_a_pause_in_a_layers_slice_is_of_the_run_and_not_of_the_step(run, place):
    run.clean(40)
    long_s = 0.05 if place == "quick" else 2.0
    walls = [0.012] * 7 + [long_s] + [0.012] * 12
    waits = [0.002 if wall < long_s or place == "work" else wall - 0.01 for wall in walls]
    times = [made.module_times(-1, None, sum(waits)), made.module_times(1, 20, 0.1)]
    number = run.torch(walls, waits=waits, frames={"module_times": times})
    run.cprofile(walls, waits=waits, frames={"functions": [function("pause", 3, 2.0)]})
    run.writer.replace("modules", [made.module(1, "Net")])
    report = run.finish()
    rows = {row["path"]: row for row in report["tables"]["modules"]}
    [called] = report["tables"]["functions"]
    # Two among eighty steps are rare.
    if place != "wait":
        assert rows["Net"]["calibrated_s"] == pytest.approx(0.1 / sum(walls) * 0.01)
        assert called["calibrated_s"] is not None
        assert texts(report, "pauses") == []
        return
    beyond_s = 2.0 - median(step.wall_s for step in run.drawn)
    wall_s = sum(walls) - beyond_s
    assert rows["Net"]["calibrated_s"] == pytest.approx(0.1 / wall_s * 0.01)
    assert rows["(wait)"]["self_s"] == pytest.approx((sum(waits) - beyond_s) / 20)
    assert called["calibrated_s"] is None
    paused = [step.step for step in run.of(number, number + 1) if step.wall_s == 2.0]
    assert [row["index"] for row in report["tables"]["outliers"]] == paused
    [text] = texts(report, "pauses")
    assert f"step {paused[0]}," in text


@pytest.mark.parametrize("waits", [True, False])
def test_a_step_to_begin_at_that_never_came_is_a_warning(waits):
    facts = {"site": [], "waits": waits}
    recorded = SimpleNamespace(facts={"begin_at": "7"}, plan_times=[1], loop_facts=lambda _: facts)
    assert [row["slug"] for row in loop_warnings(recorded, [])] == ["begin-at"] * waits


@pytest.mark.parametrize("calls", [1.01, 1.1])
def test_items_per_second_need_a_model_that_is_called_once_a_step(run, calls):
    run.clean(10)
    times = [made.module_times(1, round(100 * calls), 0.1), made.module_times(2, 900, 0.1)]
    run.torch([0.012] * 100, frames={"module_times": times})
    run.writer.replace("modules", [made.module(1, "Net"), made.module(2, "Net.fc", 1)])
    mark, is_more = run.finish()["benchmark"], calls > 1.05
    assert mark["items_per_s"] == (None if is_more else pytest.approx(3200))
    told = [text for text in mark["warnings"] if "items per second" in text]
    assert [f"{calls:.3g} times" in text for text in told] == [True] * is_more


def ended(run, code, *, facts=None, signal=None, **more):
    write_run(run.folder, {"run": {"exit_code": code, "signal": signal}, **more})
    run.writer.facts(facts or {})
    recorded = run.recorded()
    return build.status(recorded), build.status_reason(recorded)


WHOLE = {"recording_ended": 1.0}
TORCH = {"environment": {"torch": "2"}}


@pytest.mark.parametrize(("code", "facts", "more", "expected", "words"), [
    (0, WHOLE, {}, "complete", None), (3, WHOLE, {}, "complete", None),
    (None, WHOLE, {"in_process": True}, "complete", None),
    (1, {**WHOLE, "uncaught": "KeyError"}, {}, "partial", "KeyError"),
    (None, WHOLE, {"signal": 15}, "partial", "SIGTERM"),
    (None, {}, {}, "partial", "profstack itself"),
    (5, TORCH, {}, "partial", "exit code 5 at once"), (7, {}, {}, "partial", "exit code 7"),
    (0, WHOLE, {"layers": ("watch", "torch")}, "partial", "never imported torch"),
    (2, WHOLE, {"layers": ()}, "failed", "exit code 2")])  # fmt: skip
def test_how_a_run_ended(run, code, facts, more, expected, words):
    if "layers" in more:
        run.layers(**{**dict.fromkeys(more["layers"], "recorded"), "torch": "empty"})
    else:
        run.clean(3)
    found, reason = ended(run, code, facts=facts, **{**more, "layers": None})
    assert found == expected
    assert words in reason if words else reason is None


@pytest.mark.parametrize(("problems", "figures", "facts", "code", "expected"), [
    ([], {}, WHOLE, 0, ("complete", None)), ([], {}, {}, 0, ("partial", None)),
    ([], {}, WHOLE, 1, ("partial", None)), (["cut"], {}, WHOLE, 0, ("partial", None)),
    ([], {"part_problems": ["cut"]}, WHOLE, 0, ("partial", None)),
    (["process 2: KeyError"], None, WHOLE, 1, ("failed", "the target raised KeyError")),
    (["process 0: ended by SIGKILL"], None, WHOLE, 1, ("failed", "ended by SIGKILL")),
    ([], None, WHOLE, 1, ("failed", None))])  # fmt: skip
def test_how_a_benchmark_ended(run, problems, figures, facts, code, expected):
    run.clean(3)
    bench = {BENCH_FACT: {"problems": problems, "figures": figures}}
    assert ended(run, code, facts={**facts, **bench}) == expected


def layer_of(name, status, reason=None, command=None):
    return {"name": name, "status": status, "reason": reason, "command": command}


SEEN = [layer_of("torch", "recorded")]


@pytest.mark.parametrize(("table", "layers", "device", "words"), [
    ("operators", [], True, "layer torch was not asked for"),
    ("functions", [layer_of("cprofile", "empty", "a", "do x")], True, "empty: a; next: do x"),
    ("operators", SEEN, True, "nothing was seen"), ("kernels", SEEN, False, "no accelerator"),
    ("gaps", [layer_of("torch", "emitted")], False, "no accelerator"),
    ("nsys_kernels", [], True, "--nsys"),
])  # fmt: skip
def test_why_a_table_has_no_rows(table, layers, device, words):
    assert words in build.table_reason(table, layers, has_device=device)


def test_why_columns_and_cells_are_null():
    tables = {name: [] for name in REPORT}
    rows = [dict.fromkeys(REPORT["operators"].names) for _ in range(3)]
    rows[0]["calls"] = rows[1]["calls"] = 2.0
    rows[2]["flop"] = 5
    tables |= {"operators": rows, "functions": [dict.fromkeys(REPORT["functions"].names)]}
    known = [*SEEN, layer_of("watch", "empty", "x")]
    found = build.columns_reason(build.nulls_of(tables), known, has_device=False)
    assert found["operators.device_s"] == "no accelerator was in use"
    assert "3 steps" in found["operators.calibrated_s"]
    assert found["functions.watch_share"] == "the layer watch is empty: x"
    assert found["functions.calls"] == "the layer cprofile was not asked for"
    assert not {"operators.calls", "operators.flop", "modules.path"} & set(found)
    assert set(build.cells_reason(build.nulls_of(tables))) == {"operators.calls", "operators.flop"}
