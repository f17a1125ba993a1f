"""What was imported of Nsight Systems in the report: per step, beside the torch layer, in text."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it ships no types
import pytest
from data_nsys_recording import (
    GPU,
    MS,
    STEPS,
    US,
    alone,
    fact,
    import_into,
    rows,
    with_torch,
)
from data_recording import Run, by
from data_report import build

from profstack.analysis import nsys
from profstack.commands import main
from profstack.findings.rules import WARNINGS
from profstack.report import files, html, terminal
from profstack.report.files import complete_report
from profstack.report.page import held_series, prepare
from profstack.report.page_tables import MOST_ROWS
from profstack.report.terminal import ending
from profstack.storage.schema.recorded import RECORDED_OF_NSYS
from profstack.storage.schema.report import REPORT_OF_NSYS


def tables(report: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The tables of a report."""
    found: dict[str, list[dict[str, Any]]] = report["tables"]
    return found


def test_totals_become_figures_per_step(tmp_path: Path) -> None:
    found = tables(alone(tmp_path / "r"))
    step = by(found["nsys_ranges"], "node")[1]
    assert step["calls"] == 1.0
    assert step["wall_s"] == pytest.approx(14 * MS)
    assert step["device_s"] == pytest.approx(11.2 * MS)
    assert step["copied_bytes"] == 38_535_168
    assert step["on_steps_thread"] is True
    kernel = by(found["nsys_kernels"], "name")["ampere_sgemm_128x64_nn"]
    assert (kernel["calls"], kernel["in_graph"]) == (2.0, False)
    assert kernel["device_s"] == pytest.approx(0.3 * MS)
    # The longest one and the mean delay are of single kernels, whatever the number of steps.
    assert kernel["longest_s"] == pytest.approx(0.15 * MS)
    assert kernel["delay_s"] == pytest.approx(300 * US)
    copy = by(found["nsys_copies"], "direction")["host to device"]
    assert copy["bytes_per_s"] == pytest.approx(38_535_168 / (3.1 * MS))
    gap = by(found["nsys_gaps"], "cause")["host late"]
    assert (gap["count"], gap["longest_s"]) == (3.0, 1.2 * MS)
    assert gap["total_s"] == pytest.approx(1.9 * MS)


def test_what_is_of_single_events_is_not_divided(tmp_path: Path) -> None:
    found = tables(alone(tmp_path / "r"))
    assert [row["step"] for row in found["nsys_steps"]] == list(range(20, 20 + STEPS))
    assert found["nsys_steps"][0]["kernels"] == 46
    recorded = rows()["nsys_memory"]
    assert found["nsys_memory"] == recorded


def test_a_capture_without_steps_is_told_as_a_whole(tmp_path: Path) -> None:
    report = alone(tmp_path / "r", steps=0, first_step=None, last_step=None, per="capture")
    assert by(tables(report)["nsys_ranges"], "node")[1]["calls"] == STEPS
    # Calls of a whole capture and calls per step do not compare.
    assert tables(report)["nsys_modules"] == []
    assert "the whole capture (190 ms, no step range) of out.sqlite" in terminal.summary(
        report, width=200, colour=False
    )


def test_unknown_figures_stay_unknown(tmp_path: Path) -> None:
    frames = rows()
    for row in frames["nsys_ranges"]:
        row.update(dict.fromkeys(("kernels", "device_s", "elsewhere_s", "copies", "copies_s")))
    report = alone(tmp_path / "r", frames | {"nsys_kernels": [], "nsys_gaps": []})
    assert {row["device_s"] for row in tables(report)["nsys_ranges"]} == {None}
    assert {row["device_s"] for row in tables(report)["nsys_modules"]} == {None}
    reasons = report["columns_reason"]
    assert reasons["nsys_ranges.device_s"] == "the capture holds no work of a device"
    no_call = by(tables(alone(tmp_path / "s"))["nsys_kernels"], "range_name")[None]
    assert (no_call["delay_s"], no_call["launched_by"]) == (None, None)


def test_samples_have_their_share_of_all(tmp_path: Path) -> None:
    samples = by(tables(alone(tmp_path / "r"))["nsys_samples"], "symbol")
    first = samples["PyEval_EvalFrameDefault"]
    assert first["self_share"] == pytest.approx(60 / 96)
    assert (first["self_samples"], first["total_samples"]) == (5.0, 7.5)


def test_stacks_are_lists_of_frames(tmp_path: Path) -> None:
    stacks = by(tables(alone(tmp_path / "r"))["nsys_backtraces"], "source")
    assert stacks["cuda"]["stack"] == ["at::item(int, int) (libtorch.so)", "main"]
    assert stacks["cpu"]["stack"][1] == "unknown function (python3.12)"
    assert stacks["cpu"]["host_s"] is None


# -- beside the torch layer --


def test_modules_stand_beside_the_torch_layers(tmp_path: Path) -> None:
    found = by(tables(with_torch(tmp_path / "r"))["nsys_modules"], "path")
    assert list(found) == [
        *("Net", "Net.stem", "Net.stem.conv", "Net.blocks"),
        *("Net.blocks.0", "Net.blocks.1", "Net.head", "Net.dropout"),
    ]
    stem = found["Net.stem"]
    assert stem["host_s"] == pytest.approx(0.9 * MS)
    assert stem["torch_host_s"] == pytest.approx(1.0 * MS)
    assert stem["host_ratio"] == pytest.approx(0.9)
    assert stem["device_ratio"] == pytest.approx(1.0)
    assert stem["disagreement"] is None


def test_runs_that_were_not_equally_fast_do_not_disagree_for_that(tmp_path: Path) -> None:
    frames = rows()
    for row in (*frames["nsys_ranges"], *frames["nsys_steps"]):
        row["wall_s"] *= 0.5
    report = with_torch(tmp_path / "r", frames)
    found = by(tables(report)["nsys_modules"], "path")
    assert found["Net.stem"]["host_ratio"] == pytest.approx(0.45)
    assert found["Net.stem"]["disagreement"] is None
    assert found["Net.blocks.1"]["disagreement"].startswith(
        "host time 700 µs against 2.90 ms, in steps that took 0.51 times as long, device"
    )


def test_disagreements_are_told_in_words(tmp_path: Path) -> None:
    found = by(tables(with_torch(tmp_path / "r"))["nsys_modules"], "path")
    assert found["Net.blocks.1"]["disagreement"] == (
        "host time 1.40 ms against 2.90 ms, device time 1.40 ms against 1.10 ms"
    )
    assert found["Net.head"]["disagreement"] == "calls 2 against 1"
    assert found["Net.dropout"]["disagreement"] == nsys.ONLY_TORCH
    assert (found["Net.dropout"]["calls"], found["Net.dropout"]["host_ratio"]) == (None, None)


def test_a_container_that_is_never_called_is_no_module_of_either(tmp_path: Path) -> None:
    found = tables(with_torch(tmp_path / "r", container=True))
    around = by(found["modules"], "path")["Net.experts"]
    assert (around["calls"], around["forward_s"]) == (None, None)
    beside = by(found["nsys_modules"], "path")
    assert "Net.experts" not in beside
    assert beside["Net.experts.0"]["torch_calls"] == 1.0
    assert beside["Net.stem"]["disagreement"] is None


def test_work_done_again_in_a_backward_pass_is_no_forward_call(tmp_path: Path) -> None:
    # The capture has a range of Net.blocks.0 inside backward, as checkpointing makes one.
    first = by(tables(with_torch(tmp_path / "r"))["nsys_modules"], "path")["Net.blocks.0"]
    assert first["calls"] == 1.0
    assert first["host_s"] == pytest.approx(1.4 * MS)


def _ranges(*told: tuple[int, int | None, str, str, int]) -> list[dict[str, Any]]:
    """Ranges of a millisecond: node, parent, kind, name, whether in the steps' thread."""
    pattern = rows()["nsys_ranges"][0] | {"calls": STEPS, "wall_s": STEPS * MS}
    names = ("node", "parent", "kind", "name", "on_steps_thread")
    return [pattern | dict(zip(names, row, strict=True)) for row in told]


def _modules_of(folder: Path, *told: tuple[int, int | None, str, str, int]) -> dict[str, Any]:
    report = with_torch(folder, {"nsys_ranges": _ranges(*told)})
    return by(tables(report)["nsys_modules"], "path")


def test_a_module_in_several_places_is_summed_and_one_inside_itself_is_not(tmp_path: Path) -> None:
    found = _modules_of(
        tmp_path / "r",
        (1, None, "step", "step", 1),
        (2, 1, "module", "Net", 1),
        (3, 2, "module", "Net.stem", 1),
        (4, 3, "module", "Net.stem", 1),
        (5, 1, "module", "Net.stem", 1),
        (6, 1, "module", "Net.alone", 1),
        (7, None, "module", "Net.stem", 0),
        (8, None, "module", "Net.head", 0),
    )
    assert found["Net.stem"]["calls"] == 2.0
    assert found["Net.stem"]["host_s"] == pytest.approx(2 * MS)
    # Threads of their own count where the steps' thread never calls the module: replicas.
    assert found["Net.head"]["calls"] == 1.0
    assert found["Net.alone"]["disagreement"] == nsys.ONLY_NSYS
    assert list(found)[-1] == "Net.alone"


def test_ranges_of_other_domains_are_no_modules(tmp_path: Path) -> None:
    frames = {"nsys_ranges": [row | {"domain": "mine"} for row in rows()["nsys_ranges"]]}
    assert tables(with_torch(tmp_path / "r", frames))["nsys_modules"] == []


@pytest.mark.parametrize(
    ("own", "other", "apart"),
    [
        ({"host_s": 100 * US}, {"torch_host_s": 129 * US}, False),
        ({"host_s": 100 * US}, {"torch_host_s": 131 * US}, True),
        # By a factor, and yet less than a clock and two callbacks cost.
        ({"host_s": 5 * US}, {"torch_host_s": 24 * US}, False),
        ({"host_s": 5 * US}, {"torch_host_s": 26 * US}, True),
        ({"device_s": 100 * US}, {"torch_device_s": 109 * US}, False),
        ({"device_s": 100 * US}, {"torch_device_s": 111 * US}, True),
        ({"device_s": 2.0 * US}, {"torch_device_s": 2.9 * US}, False),
        ({"device_s": None}, {"torch_device_s": 9.0}, False),
        ({"calls": 1.0}, {"torch_calls": 1.005}, False),
        ({"calls": 1.0}, {"torch_calls": 1.25}, True),
    ],
)
def test_thresholds(own: dict[str, Any], other: dict[str, Any], *, apart: bool) -> None:
    seen: dict[str, Any] = {"calls": 1.0, "torch_calls": 1.0} | own | other
    columns = ("host_s", "device_s", "torch_host_s", "torch_device_s")
    row = dict.fromkeys(columns) | seen
    assert (nsys.disagreement(row, 1.0) is not None) is apart


def test_a_warning_names_the_worst_module_and_the_count(tmp_path: Path) -> None:
    said = {row["slug"]: row["text"] for row in with_torch(tmp_path / "r")["warnings"]}
    assert "nsys-disagrees" in WARNINGS
    assert said["nsys-disagrees"] == (
        "Nsight Systems and the torch layer differ in 3 of 8 modules, most in Net.blocks.1: "
        "host time 1.40 ms against 2.90 ms, device time 1.40 ms against 1.10 ms"
    )


def test_without_a_torch_layer_nothing_disagrees(tmp_path: Path) -> None:
    report = alone(tmp_path / "r")
    assert {row["disagreement"] for row in tables(report)["nsys_modules"]} == {None}
    assert report["columns_reason"]["nsys_modules.disagreement"] == (
        "the layer torch was not asked for"
    )
    assert report["warnings"] == []


def test_notes_of_the_import_are_warnings(tmp_path: Path) -> None:
    report = alone(tmp_path / "r", notes=[["some-slug", "half of it is lacking"]])
    assert report["warnings"] == [{"slug": "some-slug", "text": "half of it is lacking"}]


# -- the recording and its report --


def test_the_fact_stands_in_the_report(tmp_path: Path) -> None:
    assert alone(tmp_path / "r")["nsys"] == fact()


def test_without_an_import_there_is_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path / "r")
    run.clean(5)
    report = run.finish()
    assert report["nsys"] is None
    assert all(report["tables"][name] == [] for name in REPORT_OF_NSYS)


def test_an_import_alone_is_a_whole_report(tmp_path: Path) -> None:
    alone(tmp_path / "r")
    report = json.loads(files.text(complete_report(tmp_path / "r")))
    jsonschema.validate(report, files.schema())
    assert (report["status"], report["script"]) == ("complete", None)
    assert report["verdict"]["slug"] == "unclear"
    assert (report["findings"], report["warnings"]) == ([], [])
    assert report["benchmark"]["warnings"] == []
    assert "<title>out.sqlite - profstack</title>" in html.render(report)


def test_a_run_that_saw_no_step_stays_failed_with_an_import(tmp_path: Path) -> None:
    run = Run(tmp_path / "r")
    run.layers(torch="empty")
    run.finish()
    import_into(tmp_path / "r")
    assert complete_report(tmp_path / "r")["status"] == "failed"


def test_every_number_has_its_provenance() -> None:
    for name, table in REPORT_OF_NSYS.items():
        for column in table.columns:
            if column.type in ("REAL", "INTEGER"):
                assert column.sense, f"{name}.{column.name}"


def test_every_recorded_table_is_in_the_report() -> None:
    assert set(REPORT_OF_NSYS) - set(RECORDED_OF_NSYS) == {"nsys_modules"}
    assert set(RECORDED_OF_NSYS) <= set(REPORT_OF_NSYS)


# -- the terminal --


def test_the_summary_and_the_ending_have_a_line(tmp_path: Path) -> None:
    report = with_torch(tmp_path / "r")
    line = (
        "nsys: 12 steps of out.sqlite (nsys 2024.6.2.225); 46 kernels a step; no kernel for "
        "3.40 ms of 14.2 ms; differs from the torch layer in 3 of 8 modules; not in the file: "
        "cuDNN and cuBLAS calls; 2 other processes left out"
    )
    for printed in (terminal.summary, ending):
        said = " ".join(printed(report, width=300, colour=False).split())
        assert line in said
    for width in (40, 80):
        lines = ending(report, width=width, colour=False).splitlines()
        assert max(map(len, lines)) <= width


def test_agreement_is_said_too(tmp_path: Path) -> None:
    report = with_torch(tmp_path / "r")
    for row in tables(report)["nsys_modules"]:
        row["disagreement"] = None
    said = " ".join(ending(report, width=300, colour=False).split())
    assert "agrees with the torch layer in 8 modules" in said
    assert "nsys:" not in terminal.summary(build(), width=300, colour=False)


def test_the_summary_of_an_import_alone(tmp_path: Path) -> None:
    alone(tmp_path / "r")
    said = terminal.summary(complete_report(tmp_path / "r"), width=90, colour=False)
    assert said.startswith("out.sqlite: the recording holds an import of Nsight Systems alone\n")
    assert "Net.blocks" in said
    assert "ncclDevKernel_AllReduce_Sum_bf16" in said
    assert "warning" not in said
    assert "layer " not in said


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording with its report.json, which is what `show` reads."""
    folder = tmp_path_factory.mktemp("written") / "r"
    report = with_torch(folder)
    (folder / "report.json").write_text(files.text(report), encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", sorted(REPORT_OF_NSYS))
@pytest.mark.parametrize("form", ["text", "json", "md", "csv"])
def test_every_table_is_shown(
    name: str, form: str, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(written), "--table", name, "--format", form]) == 0
    printed = capsys.readouterr().out
    if form == "json":
        report = json.loads((written / "report.json").read_text(encoding="utf-8"))
        assert len(json.loads(printed)) == len(tables(report)[name]) > 0
    elif form == "csv":
        assert tuple(next(csv.reader(io.StringIO(printed)))) == REPORT_OF_NSYS[name].names
    else:
        assert printed.strip()


def test_the_heaviest_come_first(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = {}
    for name, column in (
        ("nsys_modules", "path"),
        ("nsys_kernels", "name"),
        ("nsys_copies", "direction"),
        ("nsys_api", "name"),
        ("nsys_gaps", "cause"),
        ("nsys_ranges", "node"),
        ("nsys_samples", "symbol"),
    ):
        main(["show", str(written), "--table", name, "--format", "json"])
        first[name] = json.loads(capsys.readouterr().out)[0][column]
    assert first == {
        "nsys_modules": "Net",
        "nsys_kernels": "sm90_xmma_dgrad_implicit_gemm_bf16_nhwc",
        "nsys_copies": "host to device",
        "nsys_api": "poll",
        "nsys_gaps": "host late",
        "nsys_ranges": 1,
        "nsys_samples": "PyEval_EvalFrameDefault",
    }


# -- what the page is given --


def test_the_page_is_given_so_many_rows_and_no_more(tmp_path: Path) -> None:
    many = 5_000
    frames = rows()
    for name, pattern in {name: found[0] for name, found in frames.items()}.items():
        frames[name] = [dict(pattern) for _ in range(many)]
    for number in range(many):
        frames["nsys_ranges"][number] |= {"node": number + 1, "parent": number // 10 or None}
        frames["nsys_memory"][number] |= {"t_s": number * MS, "bytes": number % 97}
    page = prepare(alone(tmp_path / "r", frames))
    for name in set(REPORT_OF_NSYS) - {"nsys_modules"}:
        table = page.tables[name]
        assert len(table.rows) <= MOST_ROWS, name
        if name != "nsys_memory":
            assert table.total == many, name


def test_memory_keeps_the_extremes_of_every_series() -> None:
    events = [
        {"t_s": at * MS, "device": GPU, "kind": kind, "bytes": at % 50}
        for at in range(3_000)
        for kind in ("device", "pinned")
    ]
    events[2_001] |= {"bytes": 10**9}
    kept = held_series(events)
    assert len(kept) <= MOST_ROWS
    assert {row["kind"] for row in kept} == {"device", "pinned"}
    assert max(row["bytes"] for row in kept) == 10**9
    assert [row["t_s"] for row in kept] == sorted(row["t_s"] for row in kept)
