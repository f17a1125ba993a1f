"""report.json, its schema, the terminal summary, and the page as a file."""

from __future__ import annotations

import copy
import json
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it ships no types
import pytest
from conftest import CHECKOUT
from data_bench_report import bare, bench, bench_of_hostile_names
from data_full_report import full, full_of_hostile_names
from data_report import HOSTILE, build, completed, hostile

from profstack.errors import RecordingError
from profstack.report import export, files, html, terminal
from profstack.storage.schema.recorded import SCHEMA_VERSION
from profstack.storage.schema.report import REPORT

sys.path.insert(0, str(CHECKOUT / "scripts"))
import make_schema


def test_the_json_schema_is_made_from_the_schema_of_the_report() -> None:
    """`python scripts/make_schema.py` writes it anew."""
    file = Path(files.__file__).with_name("report.schema.json")
    assert file.read_text(encoding="utf-8") == make_schema.schema_text()


def test_the_json_schema_is_in_step_with_the_tables() -> None:
    schema = files.schema()
    tables = schema["properties"]["tables"]["properties"]
    assert schema["properties"]["schema_version"]["const"] == SCHEMA_VERSION
    assert set(tables) == set(REPORT)
    for name, table in REPORT.items():
        items = tables[name]["items"]
        assert items["additionalProperties"] is False
        assert items["required"] == list(items["properties"]) == list(table.names)
        for column in table.columns:
            assert items["properties"][column.name]["description"] == column.meaning


def test_the_schema_itself_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(files.schema())


_MAKERS = [build, hostile, full, full_of_hostile_names, bench, bare, bench_of_hostile_names]


@pytest.mark.parametrize("make", _MAKERS)
def test_the_report_keeps_to_the_schema(make: Callable[[], dict[str, Any]]) -> None:
    report = json.loads(files.text(make()))
    jsonschema.validate(completed(report, files.schema()), files.schema())


def test_everything_of_a_benchmark_may_be_unknown() -> None:
    report = bench()
    for key, value in report["benchmark"].items():
        if not isinstance(value, list) and key != "n":
            report["benchmark"][key] = None
    jsonschema.validate(completed(report, files.schema()), files.schema())
    html.render(report)
    assert "not measured" in terminal.summary(report, width=80, colour=False)


@pytest.mark.parametrize(
    "part", ["throughput", "throughput_limits", "mistakes", "ablation", "compare", "by_shape"]
)
def test_rows_of_a_benchmark_hold_what_was_agreed_and_nothing_else(part: str) -> None:
    schema = files.schema()["properties"]["benchmark"]["properties"][part]["items"]
    rows_of = bench()["benchmark"][part]
    assert rows_of
    for row in rows_of:
        assert set(row) == set(schema["properties"]) == set(schema["required"])
    report = completed(bench(), files.schema())
    report["benchmark"][part][0]["surprise"] = 1
    with pytest.raises(jsonschema.ValidationError, match="surprise"):
        jsonschema.validate(report, files.schema())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda report: report["tables"]["modules"][0].pop("self_s"),
        lambda report: report["tables"]["modules"][0].update(surprise=1),
        lambda report: report.update(status="fine"),
        lambda report: report["layers"][0].update(status="ok"),
        lambda report: report.pop("warnings"),
        lambda report: report["benchmark"].update(median_s="4 ms"),
        lambda report: report["benchmark"]["compare"][0].update(status="fine"),
        lambda report: report["benchmark"]["throughput"][0].update(batch_size="one"),
        lambda report: report["roofline"]["points"][0].update(bound="luck"),
        lambda report: report["roofline"]["points"][0].pop("reason"),
        lambda report: report["benchmark"].update(stopped_by=3),
    ],
)
def test_the_schema_refuses_what_is_not_agreed(spoil: Callable[[dict[str, Any]], object]) -> None:
    report = completed(bench(), files.schema())
    jsonschema.validate(report, files.schema())
    spoil(report)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(report, files.schema())


def test_json_holds_everything_with_one_row_per_line(tmp_path: Path) -> None:
    report = build()
    path = tmp_path / "report.json"
    files.write(report, path)
    written = path.read_text(encoding="utf-8")
    assert json.loads(written) == report
    assert len(written.splitlines()) > sum(len(table) for table in report["tables"].values())


def test_json_has_no_nan(tmp_path: Path) -> None:
    report = build()
    report["benchmark"]["drift"] = float("nan")
    path = tmp_path / "report.json"
    files.write(report, path)
    assert json.loads(path.read_text(), parse_constant=pytest.fail)["benchmark"]["drift"] is None


def test_files_are_replaced_whole_and_are_readable_by_others(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    files.write(build(), path)
    plain = tmp_path / "plain"
    plain.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["plain", "report.json"]


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="cannot be written"):
        html.write(build(), tmp_path / "no" / "page.html")


def test_the_summary_fits_80_columns_without_colour() -> None:
    printed = terminal.summary(build(), width=80, colour=False)
    assert "\x1b" not in printed
    assert max(len(line) for line in printed.splitlines()) <= 80
    assert "clean step: 4.01 ms" in printed
    assert "95 % interval" in printed
    assert "not distinguishable from 1.00" in printed
    assert "profstack run --layers memory train.py" in printed
    assert "(not attributed)" in printed
    assert "warning: " in printed


def test_the_summary_tells_what_counting_memory_and_the_watch_found() -> None:
    printed = " ".join(terminal.summary(full(), width=80, colour=False).split())
    for said in (
        "operations: 2.76 M FLOP forward, 5.16 M backward per step (FlopCounterMode)",
        "; without a formula: aten::fft_fft",
        "memory: largest growth 64.0 MiB at train.py:68 loss.backward()",
        "start-up: 62 % train.py:1",
        "out of line: 2 steps; step 70 took 16.8 ms: main (train.py:61)",
        "nvtx emitted",
        "≤ 4.10 (its steps lay in the warm-up",
        "– (it watches what no slice has)",
    ):
        assert said in printed, said


def test_the_summary_leaves_out_what_this_workload_has_not() -> None:
    report = build()
    report["benchmark"]["target"] = "a.py:model"
    for row in report["tables"]["modules"]:
        row["backward_s"] = 0.0
        if row["path"].startswith("("):
            row.update(forward_s=0.0, self_s=0.0, calibrated_s=0.0)
    report["layers"][0].update(status="empty", reason="nothing was there for it")
    report["warnings"] = [
        {"slug": "empty-capture", "text": "nothing was there for it"},
        {"slug": "other", "text": "something else"},
    ]
    printed = terminal.summary(report, width=80, colour=False)
    assert "(loss)" not in printed
    assert "(optimizer)" not in printed
    assert "backward" not in printed.split("operator ")[0]
    # A layer's own row says it.
    assert "warning: nothing was there" not in printed
    assert "warning: something else" in printed
    for layer in report["layers"]:
        layer.update(status="skipped", reason="left out by --layers none")
    printed = terminal.summary(report, width=80, colour=False)
    assert printed.count("left out by --layers none") == 1


def test_results_that_cannot_be_compared_say_why() -> None:
    report = bench()
    eager, other = report["benchmark"]["compare"][:2]
    eager["note"] = "what the others are compared with; not comparable: they are random"
    other.update(status="measured", reason=None, equal=None)
    other["note"] = "recorded; not comparable: they are random; one more thing"
    lines = terminal.summary(report, width=120, colour=False).splitlines()
    said = [line.strip() for line in lines if "not comparable" in line]
    assert said == [f"{other['variant']}: not comparable: they are random"]


def test_a_mean_far_from_the_median_stands_on_the_line_of_a_benchmark() -> None:
    report = bench()
    mark = report["benchmark"]
    assert "n = 420), mean" not in terminal.summary(report, width=120, colour=False)
    mark["mean_s"] = 0.0172
    assert "synchronised, n = 420), mean 17.2 ms" in terminal.summary(
        report, width=120, colour=False
    )


def test_cpu_time_is_told_to_be_a_mean_beside_a_median() -> None:
    report = bench()
    report["benchmark"].update(cpu_mean_s=0.002, cores_busy=0.667)
    said = " ".join(terminal.summary(report, width=120, colour=False).split())
    assert "mean CPU time 2.00 ms (0.67 cores busy)" in said


def test_the_summary_of_a_benchmark_holds_its_headline_and_its_parts() -> None:
    printed = terminal.summary(bench(), width=80, colour=False)
    assert "\x1b" not in printed
    assert max(len(line) for line in printed.splitlines()) <= 80
    said = " ".join(printed.split())
    for words in (
        "models/digits.py:make: complete",
        "step: 12.9 ms (95 % interval 12.85 to 12.94 ms, synchronised, n = 420)",
        "76.8 steps/s, 2.46 k items/s (batch of 32, read from the inputs), mean CPU time",
        "mean CPU time 25.3 ms (1.96 cores busy)",
        "first call 312 ms, 6 warm-up calls, 3 outliers, ended by the interval",
        "pipelined 12.9 ms",
        "5 fresh processes: 12.7 ms to 13.7 ms, 8.0 % apart: the error bar of a comparison",
        "[32, 1, 16, 16] 110 37.4 ms",
        "float32 16 3.54 k 64 4.35 k 192",
        "float32: memory: the limit of 2.00 GiB refuses a batch of 256",
        "compile 9.15 ms 1.41 (1.39 to 1.43) 18.4 s 23 equal",
        "13.1 ms 0.98 (0.97 to 1.00) 410 ms 58 differ by 0.013",
        "script: NotSupportedError: Compiled functions can't take variable number of arguments",
        "no warm-up 20.5 ms 12.9 ms 1.59 (1.31 to 2.20)",
        "no synchronisation – – cannot differ here",
        "no synchronisation: a CPU has done its work when the call returns",
        "compute: events, not synchronised invalid invalid",
        "invalid: RuntimeError: Both events must be completed",
        "measured, float32 45.0 % 1.21 G",
        "warning: the medians of 5 fresh processes differ by 8.0 %",
    ):
        assert words in said, words


def test_the_summary_of_a_benchmark_alone_has_no_tables() -> None:
    printed = terminal.summary(bare(), width=80, colour=False)
    for word in ("layer", "variant", "throughput", "mistake", "ablation", "MFU", "processes"):
        assert word not in printed
    assert "step: 12.9 ms" in printed


def test_a_wide_terminal_shows_the_deviations_of_mistakes() -> None:
    printed = terminal.summary(bench(), width=130, colour=False)
    assert "20.5 ms ± 60.1 ms" in printed
    assert max(len(line) for line in printed.splitlines()) <= 130


def test_utilisation_above_the_peak_is_none_with_its_reason() -> None:
    report = bench()
    report["roofline"]["mfu"][0].update(value=None, warning="no share: one of the two is wrong")
    said = " ".join(terminal.summary(report, width=100, colour=False).split())
    assert "– 1.21 G no share: one of the two is wrong" in said


def test_names_in_a_benchmark_cannot_drive_the_terminal() -> None:
    evil = "\x1b]0;owned\x07\x1b[2J[bold red]x[/]\udc80"
    printed = json.dumps(bench_of_hostile_names()).replace(
        json.dumps(HOSTILE)[1:-1], json.dumps(evil)[1:-1]
    )
    for width in (1, 80, 130):
        shown = terminal.summary(json.loads(printed), width=width, colour=False)
        assert "\x1b" not in shown
        assert "\x07" not in shown
        assert "[bold red]x[/]" in shown
        shown.encode("utf-8")


def test_a_summary_without_the_later_layers_says_nothing_of_them() -> None:
    printed = terminal.summary(build(), width=80, colour=False)
    for word in ("operations:", "memory:", "start-up:", "out of line:", "FLOP/s", "technique"):
        assert word not in printed


def test_a_wide_terminal_shows_techniques_footprints_and_rates() -> None:
    printed = terminal.summary(full(), width=130, colour=False)
    (watch,) = (line for line in printed.splitlines() if line.startswith("watch"))
    assert "sampling" in watch
    assert "1.34 MiB" in watch
    assert "FLOP/s" in printed
    assert "8.01 G" in printed
    assert max(len(line) for line in printed.splitlines()) <= 130


def test_a_first_step_that_was_watched_is_called_so() -> None:
    report = build()
    report["benchmark"]["first_step_layer"] = "memory"
    printed = " ".join(terminal.summary(report, width=80, colour=False).split())
    assert "(watched by memory)" in printed


def test_the_summary_has_colour_when_asked() -> None:
    assert "\x1b[" in terminal.summary(build(), width=100, colour=True)


@pytest.mark.parametrize("width", [1, 40, 60, 200])
def test_the_summary_survives_any_width(width: int) -> None:
    printed = terminal.summary(build(), width=width, colour=False)
    assert max(len(line) for line in printed.splitlines()) <= max(width, 40)


def test_numbers_of_the_summary_are_never_cut_at_80_columns() -> None:
    report = build()
    for record in report["tables"]["functions"]:
        record["name"] = "a_function_with_a_name_much_longer_than_any_terminal_is_wide_" * 2
    for record in report["tables"]["modules"]:
        record["path"] = record["path"].replace("Digits", "DigitsWithAVeryLongClassName" * 3)
    for record in report["tables"]["operators"]:
        record["name"] *= 4
    printed = terminal.summary(report, width=80, colour=False)
    assert "1.92 ms" in printed
    assert not re.search(r"\d…|\d\.…| …$", printed, re.MULTILINE)


def test_a_run_without_a_step_has_a_summary() -> None:
    report = build()
    report["benchmark"] = dict.fromkeys(report["benchmark"]) | {"warnings": [], "n": 0}
    report["probe_effect"] = []
    report["step"]["count"] = 0
    for name in report["tables"]:
        report["tables"][name] = []
    printed = terminal.summary(report, width=80, colour=False)
    assert "clean step: not measured" in printed
    assert "0 steps" in printed
    html.render(report)


def test_names_cannot_drive_the_terminal() -> None:
    report = build()
    evil = "\x1b]0;owned\x07\x1b[2J[bold red]x[/]\udc80"
    report["script"] = evil
    report["tables"]["modules"][2]["path"] = evil
    report["tables"]["functions"][0]["name"] = evil
    report["tables"]["operators"][0]["name"] = evil
    report["warnings"][0]["text"] = evil
    report["layers"][2]["reason"] = evil
    tables, later = report["tables"], full()
    for name in ("lines", "outliers", "flops"):
        tables[name] = later["tables"][name]
    tables["outliers"][0]["doing"] = tables["flops"][0]["uncounted"][0]["operator"] = evil
    tables["lines"][7] |= {"source": evil, "file": evil}
    report["columns_source"] = later["columns_source"]
    report["probe_effect"][0]["note"] = evil
    printed = terminal.summary(report, width=80, colour=False)
    printed += terminal.table_text(
        REPORT["functions"], report["tables"]["functions"], width=80, colour=False
    )
    assert "\x1b" not in printed
    assert "\x07" not in printed
    assert "[bold red]x[/]" in printed, "brackets are text, no markup"
    printed.encode("utf-8")


def test_a_table_as_text_has_units_and_no_empty_columns() -> None:
    records = build()["tables"]["operators"]
    printed = terminal.table_text(REPORT["operators"], records, width=120, colour=False)
    assert "410 µs" in printed
    assert "device" not in printed


def test_rows_as_csv_json_and_markdown_hold_plain_values() -> None:
    table, records = REPORT["operators"], build()["tables"]["operators"]
    records[0]["name"] = "a|b<c"
    assert json.loads(export.table_as("json", table, records)) == records
    header, first, *_ = export.table_as("csv", table, records).splitlines()
    assert header.split(",") == list(table.names)
    assert repr(records[0]["self_s"]) in first
    assert "None" not in first
    lines = export.table_as("md", table, records).splitlines()
    assert lines[2].startswith("| a\\|b&lt;c |")
    assert len(lines) == len(records) + 2


def test_rows_are_ordered_with_the_unknown_last_either_way() -> None:
    records: list[dict[str, Any]] = [{"v": 1.0}, {"v": None}, {"v": 3.0}]
    assert [r["v"] for r in export.in_order(records, "v", falling=True)] == [3.0, 1.0, None]
    assert [r["v"] for r in export.in_order(records, "v", falling=False)] == [1.0, 3.0, None]


@pytest.mark.parametrize("make", [hostile, full_of_hostile_names, bench_of_hostile_names])
def test_hostile_names_are_data_and_never_markup(make: Callable[[], dict[str, Any]]) -> None:
    page = html.render(make())
    assert HOSTILE not in page
    assert "<img" not in page
    assert page.count("</script>") == len(re.findall(r"<script[ >]", page)), "none was closed early"
    data = re.search(r'id="page-data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert HOSTILE in json.dumps(json.loads(data[1]), ensure_ascii=False).replace('\\"', '"')


def test_the_page_names_nothing_outside_itself() -> None:
    page = html.render(build())
    without_d3 = re.sub(r"<script>/\* d3.*?</script>", "", page, flags=re.DOTALL)
    # The namespace of SVG is a name, no address that is loaded.
    found = set(re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}[^\s\"'<]*", without_d3))
    assert found <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(?:link|img|script)[^>]+(?:src|href)=\"(?!data:)", without_d3)


def test_the_policy_allows_only_the_scripts_of_the_page() -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html.render(build()))
    assert policy is not None
    assert "default-src &#39;none&#39;" in policy[1]
    assert policy[1].count("sha256-") == 3
    assert "script-src &#39;unsafe" not in policy[1]


def test_the_page_stays_small_for_a_large_run() -> None:
    report = build(watched_steps=20_000)
    function = report["tables"]["functions"][0]
    report["tables"]["functions"] = [
        copy.copy(function) | {"name": f"function_{number}"} for number in range(30_000)
    ]
    assert len(html.render(report)) < 3_000_000


def test_lone_surrogates_do_not_stop_the_page(tmp_path: Path) -> None:
    report = build()
    report["script"] = "caf\udce9.py"
    report["argv"] = ["caf\udce9.py"]
    html.write(report, tmp_path / "report.html")
    files.write(report, tmp_path / "report.json")
    (tmp_path / "report.html").read_bytes().decode("utf-8")


def test_links_lead_from_the_page_to_the_recording(tmp_path: Path) -> None:
    recording = tmp_path / "runs" / "train-0001"
    recording.mkdir(parents=True)
    html.write(build(), tmp_path / "page.html", recording=recording)
    assert '"base":"runs/train-0001"' in (tmp_path / "page.html").read_text()
    html.write(build(), recording / "report.html")
    assert '"base":""' in (recording / "report.html").read_text()


def test_the_page_is_made_without_torch_and_without_pandas() -> None:
    program = (
        "import sys, profstack.report.html, profstack.report.terminal, profstack.report.files\n"
        "heavy = {'torch', 'pandas', 'numpy', 'profstack.wrappers'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
