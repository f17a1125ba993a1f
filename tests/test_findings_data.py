"""Findings on data, values asked for, copies and launches: programs that have the problem.

Programs run end to end under `profstack run`, and their mended twins with them; no time is held
against anything but the same recording. What needs a device is written into a recording as the
torch layer writes it there.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it ships no types
import numpy as np
import pytest
from data_findings import completed
from data_recording import Run, function, module, module_times, operator
from finding_programs import PLACES, found, had_no_core, line_of, run_program, run_twins

from profstack.code_owner import FACT
from profstack.findings.data_loading import Loading, busy_share, gain_of, loading_of
from profstack.findings.reading import finding, in_order, severity_of
from profstack.findings.rules import MEMORY_GROWTH, RULES
from profstack.findings.synchronization import has_carried_name
from profstack.report import files
from profstack.report.files import complete_report

pytestmark = pytest.mark.timed

LAYERS = "torch,cprofile"
TRAIN = "/app/train.py"
OURS = {"data-starved", "forced-synchronisation", "host-to-device-copy", "small-operators"}


# -- programs --------------------------------------------------------------------------------------


# The one whose mended twin is not looked at.
TWINLESS = "data_starved__few_workers"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@cache
def report_of(folder: Path, case: str, which: str) -> dict[str, Any]:
    """The report of one program; twins run together."""
    return twins_of(folder, case)[which == "mended"]


@cache
def twins_of(folder: Path, case: str) -> tuple[dict[str, Any], ...]:
    if case == TWINLESS:
        return (run_program(folder, case, "bad", LAYERS),)
    return run_twins(folder, case, LAYERS)


def the_finding(folder: Path, case: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The finding that a case is about, and the report it stands in."""
    report = report_of(folder, case, "bad")
    slug = case.split("__", maxsplit=1)[0].replace("_", "-")
    if not found(report, slug) and had_no_core(report):
        # Other work hid it, and may be over; that it stays hidden without any is what is tested.
        report = run_program(folder / "again", case, "bad", LAYERS)
    (told,) = found(report, slug)
    assert {each["slug"] for each in report["findings"]} & OURS == {slug}
    assert told["evidence"]
    assert told["advice"]
    if told["gain_s"] is None:
        assert told["gain_reason"]
    else:
        assert told["gain_is"] == "estimated"
        assert 0 < told["gain_s"] <= report["benchmark"]["median_s"]
    assert links_of(told) <= keys_of(report)
    return told, report


def links_of(told: dict[str, Any]) -> set[str]:
    return {row["link"] for row in told["evidence"] if "link" in row}


def keys_of(report: dict[str, Any]) -> set[str]:
    """The links that lead to a row."""
    tables = report["tables"]
    keys = {f"modules/{row['path']}" for row in tables["modules"]}
    keys |= {f"operators/{row['name']}" for row in tables["operators"]}
    keys |= {f"ranges/{row['path']}" for row in tables["regions"]}
    keys |= {f"source/{row['file']}:{row['line']}" for row in tables["lines"]}
    keys |= {f"python/{row['file']}:{row['line']}:{row['name']}" for row in tables["functions"]}
    keys |= {f"overview/{each['slug']}" for each in report["findings"]}
    return keys | {f"kernels/{row['name']}" for row in tables["kernels"]} | {"ranges/gaps"}


def is_clean(folder: Path, case: str) -> None:
    """The mended twin has no finding of these families."""
    report = report_of(folder, case, "mended")
    assert {each["slug"] for each in report["findings"]} & OURS == set()


def test_a_data_set_that_starves_the_step_is_named_by_function(folder: Path) -> None:
    case = "data_starved__no_workers"
    told, report = the_finding(folder, case)
    assert Path(told["file"]).name == "bad.py"
    # Not the function that the loader calls, which has all of it: the one that it goes to.
    assert told["line"] == line_of(case, "slow")
    where = f"wave (bad.py:{told['line']}), called from __getitem__."
    assert told["advice"].startswith(f"Most of it is {where}")
    wait, loader, first, *functions = told["evidence"]
    assert (first["function"], first["called_from"]) == ("wave", "__getitem__")
    assert wait["workers"] == 0
    assert 0.25 <= wait["step_share"] <= 1
    assert wait["loading_s"] <= wait["wait_before_work_s"] <= report["benchmark"]["median_s"]
    # The bar of the verdict above it has the same figure.
    (waited,) = (part for part in report["step_bar"]["parts"] if part["name"] == "data wait")
    assert wait["loading_s"] == pytest.approx(waited["seconds"])
    assert wait["step_share"] == pytest.approx(waited["share"])
    assert loader["range"].endswith("_SingleProcessDataLoaderIter.__next__")
    # What is about the same time is told after them.
    named = {row["function"]: row for row in functions if "function" in row}
    assert named["__getitem__"]["line"] == line_of(case, "sample")
    assert first["loading_share"] <= named["__getitem__"]["loading_share"]
    # Its own lines are no part of what takes the time.
    assert "heaviest_line" not in named["__getitem__"]
    assert "num_workers" in told["advice"] or "one core" in told["advice"]
    assert told["title"] in report["said"]


def test_samples_kept_in_memory_starve_nothing(folder: Path) -> None:
    is_clean(folder, "data_starved__no_workers")


@pytest.mark.slow
def test_an_iterator_of_the_scripts_own_that_starves_the_step_is_named(folder: Path) -> None:
    case = "data_starved__own_iterator"
    told, report = the_finding(folder, case)
    assert "most of it in __next__" in told["title"]
    assert told["line"] == line_of(case, "batch")
    # Its time is that of NumPy's C code: there is no loop of Python to replace.
    assert found(report, "python-hot-spot") == []
    is_clean(folder, case)


@pytest.mark.slow
def test_what_a_step_waits_for_its_later_batches_counts(folder: Path) -> None:
    case = "data_starved__accumulated"
    told, report = the_finding(folder, case)
    assert told["line"] == line_of(case, "slow")
    wait, loader, *_ = told["evidence"]
    assert loader["calls"] == pytest.approx(4, abs=0.5)
    # The step waits for its first batch before its first work, for three more after it.
    first_s = np.mean([row["wait_s"] for row in report["tables"]["steps"] if row["wait_s"]])
    assert wait["loading_s"] > 2 * first_s
    # It is as grave as the wait is long, whether workers would help or not.
    assert told["severity"] == severity_of(wait["loading_s"], report["benchmark"]["median_s"])
    # What makes the samples is called by all four.
    hot, *_ = found(report, "python-hot-spot")
    assert hot["evidence"][0]["function"] == "wave"
    assert hot["evidence"][0]["own_high_s"] > 2 * first_s
    is_clean(folder, case)


@pytest.mark.slow
def test_too_few_workers_are_told_with_what_they_did(folder: Path) -> None:
    case = "data_starved__few_workers"
    told, report = the_finding(folder, case)
    assert told["line"] == line_of(case, "loop")
    assert told["evidence"][0]["workers"] == 1
    assert told["evidence"][0]["worker_busy_share"] < 0.5
    if had_no_core(report):
        pytest.skip("other work had the cores: who waits for what is not told")
    assert "one DataLoader worker" in told["advice"]


def test_values_asked_for_one_by_one_are_told_at_their_line(folder: Path) -> None:
    case = "forced_synchronisation__items"
    told, _ = the_finding(folder, case)
    assert (Path(told["file"]).name, told["line"]) == ("bad.py", line_of(case, "item"))
    assert told["evidence"][0]["values_per_step"] == 512
    assert "On the CPU the cost is the calls themselves" in told["advice"]
    assert any(row.get("function") == "hits" for row in told["evidence"])


def test_one_value_in_a_step_is_no_finding(folder: Path) -> None:
    is_clean(folder, "forced_synchronisation__items")


@pytest.mark.slow
def test_a_printed_tensor_is_told_at_its_line(folder: Path) -> None:
    case = "forced_synchronisation__print"
    told, _ = the_finding(folder, case)
    assert told["line"] == line_of(case, "print")
    assert told["evidence"][0]["function"] == "_str"
    is_clean(folder, case)


def test_a_loop_of_small_operators_is_told_with_its_module(folder: Path) -> None:
    case = "small_operators__heads"
    told, _ = the_finding(folder, case)
    assert (told["module"], told["line"]) == ("Net.heads", line_of(case, "loop"))
    # What joins two runs is there once less, and may have the time that makes it count.
    assert told["evidence"][0]["repeated"] in (47, 48)
    # Which of its operators are the longest ones differs from run to run.
    operators = [row for row in told["evidence"] if "operator" in row]
    assert operators
    for row in operators:
        assert row["module"].startswith("Net.heads")
        assert row["calls"] >= 47


def test_one_batched_operator_is_no_finding(folder: Path) -> None:
    is_clean(folder, "small_operators__heads")


@pytest.mark.slow
def test_a_model_called_for_each_sample_is_told(folder: Path) -> None:
    case = "small_operators__samples"
    told, _ = the_finding(folder, case)
    assert (told["module"], told["line"]) == ("Sequential", line_of(case, "loop"))
    assert told["title"].startswith("A step calls Sequential 32 times")
    is_clean(folder, case)


@pytest.mark.parametrize(
    ("lines", "carried"),
    [
        (["h = cell(x[t], h)"], True),
        (["for x in steps:", "gates = torch.cat([x, h]) @ w", "h = torch.tanh(gates)"], True),
        (["y = torch.tanh(x[t])", "parts.append(y @ w)"], False),
        (["total += net(x[t]).sum()"], False),
        (["for head in range(8):", "parts.append(x[head] @ w[head])"], False),
        (["out.x = net(x)", "if x == y:"], False),
    ],
)
def test_what_is_carried_from_run_to_run_is_read_from_the_text(
    lines: list[str], carried: bool
) -> None:
    rows = [{"line": 5 + at, "source": "        " + text} for at, text in enumerate(lines)]
    assert has_carried_name(rows) is carried


# -- what overlapping would save -------------------------------------------------------------------


def loading(**changes: Any) -> Loading:
    """10 ms of which 4 ms are loading, on four cores."""
    told = {"step_s": 0.010, "wait_s": 0.004, "load_s": 0.004, "cpu_s": 0.010, "cores": 4.0}
    return Loading(**{**told, "workers": 0, "is_waiting": False, "is_python": False, **changes})


@pytest.mark.parametrize(
    ("changes", "count", "gain"),
    [
        # Loading goes beside the work, and costs 0.2 ms to hand over.
        ({}, 1, 0.0038),
        # Loading is the longer part: two workers halve it.
        ({"load_s": 0.0075, "wait_s": 0.0075}, 3, 0.0073),
        ({"load_s": 0.0075, "wait_s": 0.0075, "cores": 2.0}, 2, 0.005),
        # What waits for a disk needs no core.
        ({"load_s": 0.009, "cpu_s": 0.001, "cores": 2.0, "is_waiting": True}, 9, 0.0088),
        # Python code lets a batch go only when the interpreter switches threads, after 5 ms.
        ({"step_s": 0.1, "load_s": 0.04, "cpu_s": 0.1, "is_python": True}, 1, 0.035),
        # Four batches are handed over in a step.
        ({"batches": 4.0}, 1, 0.0032),
        # One worker, always busy with a batch of 10 ms: two make one every 5 ms.
        ({"workers": 1}, 2, 0.004),
        # Half of the wait is for a core, which more workers do not give.
        ({"workers": 1, "no_core_s": 0.002}, 2, 0.002),
    ],
    ids=["beside", "several", "cores", "disk", "python", "batches", "more workers", "no core"],
)
def test_the_gain_is_bound_by_work_workers_and_cores(
    changes: dict[str, Any], count: int, gain: float
) -> None:
    told = loading(**changes)
    assert told.wanted() == count
    assert gain_of(told, count) == (pytest.approx(gain), None)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"cores": 1.0}, "one core"),
        ({"step_s": 0.0005, "load_s": 0.0002, "cpu_s": 0.0005}, "handing batches over"),
        ({"is_python": True}, "handing batches over"),
        ({"workers": 4, "step_s": 0.006}, "cores are in use"),
        ({"workers": 1, "cpu_s": 0.020, "cores": 2.0}, "cores are in use"),
    ],
)
def test_where_nothing_is_saved_the_reason_is_told(changes: dict[str, Any], why: str) -> None:
    told = loading(**changes)
    gain, reason = gain_of(told, told.wanted())
    assert gain is None
    assert reason is not None
    assert why in reason


def test_means_of_processes_are_not_compared_with_the_median_step() -> None:
    """A mean step of 20 ms beside a median one of 10 ms: the same shares of both."""
    report: dict[str, Any] = {
        "processes": {
            "step_s": 0.020,
            "cpu_s": 0.030,
            "no_core_s": 0.002,
            "off_cpu_s": 0.006,
            "workers": 2,
            "worker_cpu_s": 0.024,
        },
        "environment": {"usable_cores": 4},
        "tables": {
            "regions": [
                {"source": "torch", "path": "DataLoaderIter.__next__", "calls": 1.0, "wall_s": 1.0}
            ],
            "modules": [{"path": "(wait)", "self_s": 1.0}],
            **dict.fromkeys(("functions", "calls", "lines", "threads"), ()),
        },
    }
    report = completed(report)
    assert busy_share(report) == pytest.approx(0.6)
    told = loading_of(report, 0.010, 0.5)
    assert told is not None
    assert told.cpu_s == pytest.approx(0.015)
    assert told.load_s == pytest.approx(0.005)
    assert told.no_core_s == pytest.approx(0.001)
    assert not told.is_waiting
    report["processes"]["workers"] = 0
    told = loading_of(report, 0.010, 0.5)
    assert told is not None
    # Of the step's own 5 ms it stood still for 2, and not for 4.
    assert not told.is_waiting


# -- a device --------------------------------------------------------------------------------------


def on_device(
    folder: Path,
    gaps: dict[str, float],
    kernels: list[dict[str, Any]],
    lines: list[tuple[int, str, float]] = (),  # type: ignore[assignment]
    operators: list[dict[str, Any]] = (),  # type: ignore[assignment]
) -> dict[str, Any]:
    """The report of ten steps of 10 ms on a GPU, of which the gaps are seconds per step.

    No device is here: the rows are those that the torch layer writes of one.
    """
    run = Run(folder)
    run.writer.facts({FACT: PLACES})
    run.writer.write({"modules": [module(1, "Net")]})
    told = {"device": "cuda:0", "before_operator": "aten::mul", "before_module_id": 1}
    frames: dict[str, Any] = {
        "gaps": [
            {**told, "cause": cause, "count": 20, "total_s": 10 * each, "longest_s": each}
            for cause, each in gaps.items()
        ],
        "kernels": [{"device": "cuda:0", "stream": 7, "module_id": 1} | row for row in kernels],
        "module_times": [module_times(1, 10, 0.09), module_times(-1, 0, 0.01)],
        "operators": list(operators),
        "launches": [
            {"step": step, "device": "cuda:0", "operators": 900, "outermost": 600}
            | {"operators_s": 5e-3, "kernels": 700, "launches": 700, "launches_s": 3.5e-3}
            | {"launched_by": "runtime calls", "busy_s": 2e-3, "idle_s": 8e-3}
            for step in range(10)
        ],
    }
    run.clean(10)
    run.torch([0.010] * 10, frames=frames)
    run.clean(10)
    times = {"calls": 10, "python_s": 1e-4, "device_s": 0.0, "backward_s": 0.0}
    rows = [
        {"file": TRAIN, "line": line, "source": text, "operator_s": 10 * each, **times}
        for line, text, each in lines
    ]
    run.torch([0.012] * 10, mode="lines", frames={"lines": rows})
    run.layers(torch="recorded")
    run.writer.facts({"counts_by_phase": {"train": run.steps}, "recording_ended": 1.0})
    run.writer.close()
    facts = {"script": "train.py", "argv": ["train.py"], "run": {"id": "x", "exit_code": 0}}
    environment = {"python": "3", "torch": "2", "device": "cuda"}
    (folder / "logs" / "run.json").write_text(json.dumps({**facts, "environment": environment}))
    report: dict[str, Any] = json.loads(files.text(complete_report(folder)))
    jsonschema.validate(report, files.schema())
    assert not [row for row in report["warnings"] if row["slug"] == "findings-failed"]
    return report


def compute(calls: int, device_s: float) -> dict[str, Any]:
    return {"name": "gemm", "operator": "aten::mm", "calls": calls, "device_s": device_s}


def test_a_wait_for_a_value_is_told_by_the_time_the_device_was_idle(tmp_path: Path) -> None:
    lines = [
        (8, "loss.backward()", 1e-3),
        (9, "total += loss.item()", 3e-3),
        (10, "if scores.max() > 3:", 1e-4),
    ]
    reads = [operator("aten::item", 20, 0.001), operator("aten::_local_scalar_dense", 20, 0.03)]
    report = on_device(
        tmp_path, {"synchronisation": 2e-3, "queued": 1e-3}, [compute(100, 0.06)], lines, reads
    )
    (told,) = found(report, "forced-synchronisation")
    assert told["gain_s"] == pytest.approx(2e-3)
    assert (told["file"], told["line"], told["severity"]) == (TRAIN, 9, "high")
    assert {row.get("line") for row in told["evidence"]} == {None, 9, 10}
    assert {row["operator"] for row in told["evidence"] if "operator" in row} == {
        "aten::item",
        "aten::_local_scalar_dense",
    }
    assert links_of(told) <= keys_of(report)


def test_a_wait_after_which_the_device_was_hardly_idle_costs_nothing(tmp_path: Path) -> None:
    report = on_device(tmp_path, {"synchronisation": 1e-4}, [compute(100, 0.06)])
    assert {each["slug"] for each in report["findings"]} & OURS == set()


@pytest.mark.parametrize("kind", ["Pageable", "Pinned"])
def test_copies_to_the_device_are_told_with_their_memory(tmp_path: Path, kind: str) -> None:
    name = f"Memcpy HtoD ({kind} -> Device)"
    copies = [{"name": name, "operator": "aten::copy_", "calls": 10, "device_s": 0.02}]
    moved = [operator("aten::copy_", 10, 0.02, module_id=1, moved_bytes=2_000_000)]
    lines = [(5, "loss = model(x)", 5e-3), (6, 'x = x.to("cuda")', 2e-3)]
    report = on_device(tmp_path, {"copy": 1.5e-3}, [*copies, compute(9, 0.07)], lines, moved)
    (told,) = found(report, "host-to-device-copy")
    assert told["title"] == f"Steps copy from {kind.lower()} memory to the device (train.py:6)"
    assert told["gain_s"] == pytest.approx(1.5e-3)
    assert (told["line"], told["module"]) == (6, "Net")
    first, copied = told["evidence"][:2]
    assert (first["memory"], first["copies"]) == (kind.lower(), 1.0)
    assert first["device_s"] == pytest.approx(2e-3)
    assert copied["copied_bytes"] == 100_000
    assert ("pin_memory=True" in told["advice"]) is (kind == "Pageable")
    assert "non_blocking=True" in told["advice"]
    assert links_of(told) <= keys_of(report)


def test_copies_beside_kernels_have_no_gain_to_tell(tmp_path: Path) -> None:
    name = "Memcpy HtoD (Pinned -> Device)"
    copies = [{"name": name, "operator": None, "calls": 10, "device_s": 0.02}]
    (told,) = found(on_device(tmp_path, {}, copies), "host-to-device-copy")
    assert told["gain_s"] is None
    assert "beside kernels" in told["gain_reason"]


def test_copies_within_the_device_and_back_are_no_copies_to_it(tmp_path: Path) -> None:
    copies = [
        {"name": name, "operator": None, "calls": 10, "device_s": 0.02}
        for name in ("Memcpy DtoD (Device -> Device)", "Memcpy DtoH (Device -> Pageable)")
    ]
    assert found(on_device(tmp_path, {"copy": 3e-3}, copies), "host-to-device-copy") == []


def test_a_device_that_waits_for_launches_is_told_with_where(tmp_path: Path) -> None:
    report = on_device(tmp_path, {"host late": 4e-3}, [compute(7_000, 0.02)])
    (told,) = found(report, "small-operators")
    assert told["gain_s"] == pytest.approx(4e-3)
    assert told["module"] == "Net"
    first = told["evidence"][0]
    assert first["idle_share"] == pytest.approx(0.4)
    assert first["launch_s"] == pytest.approx(5e-6)
    assert first["kernel_s"] == pytest.approx(0.02 / 7_000)


def test_a_device_that_is_kept_busy_is_no_finding(tmp_path: Path) -> None:
    report = on_device(tmp_path, {"host late": 1e-3}, [compute(7_000, 0.08)])
    assert found(report, "small-operators") == []


# -- a script that loads by itself -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("taken", "line", "told"),
    [
        (6e-3, "x, y = make_batch(32)", True),
        (6e-3, "for x, y in make_batch(32):", True),
        (6e-3, "make_batch(32)", False),
        (1e-3, "x, y = make_batch(32)", False),
    ],
)
def test_a_function_that_makes_batches_without_a_loader(
    tmp_path: Path, taken: float, line: str, told: bool
) -> None:
    run = Run(tmp_path)
    run.writer.facts({FACT: PLACES})
    parts = [module_times(-1, 0, 0.06), module_times(1, 10, 0.04)]
    run.writer.write({"modules": [module(1, "Net")]})
    run.clean(10)
    run.torch([0.010] * 10, frames={"module_times": parts})
    run.clean(10)
    rest = function("<built-in method run_backward>", 10, 0.03, total_s=0.03) | {"file": "~"}
    made_here = function("make_batch", 10, 10 * taken, total_s=10 * taken) | {"file": TRAIN}
    run.cprofile([0.010] * 10, frames={"functions": [rest, made_here]})
    run.clean(10)
    times = {"calls": 10, "python_s": 1e-4, "operator_s": 0.0}
    row = {"file": TRAIN, "line": 20, "source": line, **times}
    run.torch([0.012] * 10, mode="lines", frames={"lines": [row]})
    run.layers(torch="recorded", cprofile="recorded")
    run.writer.close()
    rows = found(complete_report(tmp_path), "data-starved")
    assert len(rows) == told
    if told:
        assert (rows[0]["file"], rows[0]["line"]) == (TRAIN, 3)
        assert "make_batch" in rows[0]["title"]
        assert rows[0]["gain_s"] is None
        assert rows[0]["gain_reason"]


# -- what all findings share -----------------------------------------------------------------------


def test_every_rule_is_whole_and_stands_once() -> None:
    slugs = [rule.slug for rule in RULES]
    assert len(set(slugs)) == len(slugs)
    assert OURS | {"memory-growth"} <= set(slugs)
    for rule in RULES:
        assert rule.rule.endswith(".")
        assert rule.gain.endswith(".")
        assert rule.title


def test_findings_stand_by_gravity_and_then_bygain_of() -> None:
    def one(severity: str, gain: float | None) -> dict[str, Any]:
        told = {"severity": severity, "evidence": [], "advice": "", "layers": ["torch", "torch"]}
        return finding(MEMORY_GROWTH, "x", gain_s=gain, gain_reason="none", **told)  # type: ignore[arg-type]

    given = [("low", 3.0), ("high", None), ("medium", 1.0), ("high", 1.0), ("medium", 2.0)]
    ordered = in_order(one(*each) for each in given)
    assert [(each["severity"], each["gain_s"]) for each in ordered] == [
        ("high", 1.0),
        ("high", None),
        ("medium", 2.0),
        ("medium", 1.0),
        ("low", 3.0),
    ]
    assert [each["gain_reason"] for each in ordered[:2]] == [None, "none"]
    assert ordered[0]["layers"] == ["torch"]


def test_a_finding_without_gain_and_reason_is_a_defect() -> None:
    with pytest.raises(ValueError, match="no reason"):
        finding(MEMORY_GROWTH, "x", severity="low", evidence=[], advice="", layers=[])


def test_gravity_is_a_share_of_the_step() -> None:
    assert [severity_of(each, 1.0) for each in (0.3, 0.1, 0.01)] == ["high", "medium", "low"]
