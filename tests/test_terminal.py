"""The terminal: what a run ends with, and what `profstack show` prints, by every option."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it ships no types
import pytest
from conftest import clean_environment
from data_full_report import full, full_of_hostile_names, on_a_device
from data_report import build, completed

from profstack import commands
from profstack.launch import progress
from profstack.report import export, files, terminal
from profstack.report.html import replace_text
from profstack.report.screen import colourful, figure, fitting, label
from profstack.report.terminal import cells_of, ending
from profstack.storage.schema.report import REPORT

Report = dict[str, Any]
EVIL = "\x1b]0;owned\x07\x1b[2J[bold red]x[/]\udc80"
# What a user reads without scrolling.
_ONE_SCREEN = 45


def judged(report: Report | None = None) -> Report:
    """The full report with a verdict and a step bar."""
    report = full() if report is None else report
    median = report["benchmark"]["median_s"]
    shares = {
        "data wait": (0.42, "modules/(wait)"),
        "forward": (0.21, "modules/Digits"),
        "loss": (0.003, "modules/(loss)"),
        "backward": (0.22, "modules/Digits"),
        "optimizer": (0.1, "modules/(optimizer)"),
        "Python": (0.047, "python/train.py:44:Digits.forward"),
    }
    report["step_bar"] = {
        "median_s": median,
        "time_line": "host",
        "parts": [
            {"name": name, "seconds": share * median, "share": share, "link": link}
            | {"is": "clean" if name == "data wait" else "calibrated"}
            for name, (share, link) in shares.items()
        ],
        "reason": None,
        "note": None,
    }
    report["verdict"] = {
        "slug": "input-bound",
        "sentence": "Input-bound: 42 % of a clean step of 4.01 ms waits for the next batch "
        "(train.py:20).",
        "margin": 0.12,
        "evidence": [
            {"test": "input-bound", "share": 0.42, "threshold_share": 0.3, "time_s": 0.42 * median}
            | {"file": "train.py", "line": 20, "name": "batches", "link": "modules/(wait)"},
            {"test": "launch-bound", "share": 0.05, "threshold_share": 0.4, "time_s": 2e-4}
            | {"calls": 812.0, "call_s": 2.4e-7, "link": "operators/aten::mm"},
            {"test": "compute-bound", "share": None, "threshold_share": 0.4, "time_s": None}
            | {"reason": "the machine's peaks are not known"},
        ],
    }
    report["roofline"] = None
    return report


GOLDEN = """\
Input-bound: 42 % of a clean step of 4.01 ms waits for the next batch
(train.py:20).
train.py: 101 steps, complete
clean step: 4.01 ms  (95 % interval 3.96 ms to 4.05 ms, n = 32)
            248 steps/s, 15.9 k items/s, IQR 199 µs, first step 80.9 ms
tensors at the peak of a step: 385 MiB
[WWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWFFFFFFFFFFFFFFFFBBBBBBBBBBBBBBBBBOOOOOOOOPPPPP]
W data wait 42 % (1.68 ms)   F forward 21 % (842 µs)   B backward 22 % (882 µs)
O optimizer 10 % (401 µs)   P Python 5 % (188 µs)

1. A copy to the host waits for the device
   train.py:66, up to 400 µs a step, estimated: Take the loss once every hundred
   steps.
2. Memory grows by 64.0 MiB a step
   train.py:68: Keep loss.item() in the list, not the tensor.

module             forward  backward     self  calibrated   share
Digits             1.40 ms   1.84 ms   152 µs     2.56 ms  63.8 %
Digits.features.2   483 µs    584 µs  1.07 ms      842 µs  21.0 %
Digits.features.0   267 µs    432 µs   698 µs      551 µs  13.8 %

operator                    calls    self  calibrated
aten::convolution_backward      2  710 µs      559 µs
aten::mkldnn_convolution        2  520 µs      409 µs

function                           calls     self    total
torch._C._EngineBase.run_backward      1  1.92 ms  1.92 ms
<built-in method torch.conv2d>         2   700 µs   700 µs

layers: cprofile, torch, nvtx, memory, flops, watch; while they watched, a step
  took longer by a factor: flops ≤ 4.10
warning: The run was short: the layer memory had no turn.
warning: Only 32 clean steps: the interval is wide
"""


def test_a_run_ends_with_the_verdict_the_bar_and_what_to_do_first() -> None:
    printed = ending(judged(), width=80, colour=False)
    assert printed == GOLDEN
    assert len(printed.splitlines()) <= _ONE_SCREEN
    assert max(map(len, printed.splitlines())) <= 80
    assert "\x1b" not in printed
    assert "(optimizer)" not in printed, "the parts of the step are in the bar"


def test_the_summary_says_why_the_row_of_the_wait_differs_from_the_bar() -> None:
    report, note = judged(), "'data wait' is that of clean steps"
    report["step_bar"]["note"] = note
    assert note in terminal.summary(report, width=80, colour=False)
    # The rows of the modules do not stand at the end of a run, and a screen is short.
    assert note not in ending(report, width=80, colour=False)
    report["step_bar"]["parts"][0]["share"] = 0.001
    assert note not in terminal.summary(report, width=80, colour=False)


def test_a_mean_far_from_the_median_stands_beside_it_since_rates_are_by_it() -> None:
    report = judged()
    mark = report["benchmark"]
    mark.update(mean_s=mark["median_s"] * 1.3, steps_per_s=1 / (mark["median_s"] * 1.3))
    step = {"kind": "step", "flop": 2e9, "flop_per_s": 5e11}
    report["roofline"] = {"points": [step], "mfu": []}
    printed = ending(report, width=80, colour=False)
    assert "4.05 ms, n = 32), mean 5.21 ms\n            192 steps/s" in printed
    assert "2.00 G FLOP a step; 500 G FLOP/s in the median step" in " ".join(printed.split())
    mark["mean_s"] = mark["median_s"] * 1.04
    printed = ending(report, width=80, colour=False)
    assert "mean" not in printed
    assert "500 G FLOP/s\n" in printed


def test_without_a_bar_the_parts_of_the_step_are_rows() -> None:
    report = judged()
    report["step_bar"].update(parts=[], reason="the torch layer saw 1 step")
    assert "(optimizer)" in ending(report, width=80, colour=False)
    report["step_bar"] = report["verdict"] = None
    printed = ending(report, width=80, colour=False)
    assert printed.startswith("train.py: 101 steps, complete")


def test_layers_without_data_say_why_and_what_fills_them() -> None:
    report = build()
    command = "profstack run --layers memory train.py"
    report["layers"][2]["command"] = command
    said = " ".join(ending(report, width=80, colour=False).split())
    assert f"memory empty: {report['layers'][2]['reason']}; next: {command}" in said
    for row in report["layers"][1:]:
        row.update(status="skipped", reason="left out by --layers cprofile", command=None)
    said = " ".join(ending(report, width=80, colour=False).split())
    assert "layers without data: torch, memory: left out by --layers cprofile" in said


def test_warnings_are_shortened_and_the_others_counted() -> None:
    report = judged()
    report["benchmark"]["warnings"] = []
    long = "it is long " * 40
    texts = ["First, this; then that.", long, "third", "fourth"]
    report["warnings"] = [{"slug": "x", "text": text} for text in texts]
    lines = ending(report, width=80, colour=False).splitlines()
    assert "warning: First, this" in lines
    at = lines.index("warning: First, this")
    assert lines[at + 2].endswith("...")
    assert lines[at + 3] == "2 more warnings: profstack show"


@pytest.mark.parametrize(("text", "told"), [("it is long " * 40, 1), ("short", 0)])
def test_a_warning_that_is_cut_says_once_where_the_rest_is(text: str, told: int) -> None:
    report = judged()
    report["benchmark"]["warnings"] = []
    report["warnings"] = [{"slug": "x", "text": f"{text}{number}"} for number in range(2)]
    printed = ending(report, width=80, colour=False)
    assert printed.count("the warnings in full: profstack show") == told


def test_a_method_of_a_builtin_type_keeps_its_name_in_a_short_table() -> None:
    report = judged()
    row = next(row for row in report["tables"]["functions"] if row["phase"] == "step")
    name = "<method 'run_backward' of 'torch._C._EngineBase' objects>"
    row.update(name=name, file="~", line=0, self_s=1.0)
    assert "torch._C._EngineBase.run_backward  " in ending(report, width=80, colour=False)


def test_only_the_first_findings_end_a_run() -> None:
    report = judged()
    report["findings"] *= 4
    printed = ending(report, width=80, colour=False)
    assert "\n3. A copy to the host" in printed
    assert "\n4. " not in printed
    assert "5 more findings: profstack show --findings" in printed


@pytest.mark.parametrize("make", [judged, full_of_hostile_names, on_a_device, build])
@pytest.mark.parametrize("width", [1, 40, 79, 200])
def test_the_ending_survives_any_width(make: Callable[[], Report], width: int) -> None:
    printed = ending(make(), width=width, colour=False)
    assert max(map(len, printed.splitlines())) <= max(width, 40)


@pytest.mark.parametrize("make", [judged, full_of_hostile_names, on_a_device, build])
@pytest.mark.parametrize("width", [40, 47, 48, 60, 72, 80])
def test_no_number_is_cut_in_a_narrow_terminal(make: Callable[[], Report], width: int) -> None:
    """A number without its end is another number."""
    report = make()
    printed = ending(report, width=width, colour=False)
    printed += terminal.summary(report, width=width, colour=False)
    printed += terminal.verdict(report, width=width, colour=False)
    assert not re.findall(r"\d[.,]?…", printed), printed


def test_the_first_finding_says_what_to_do_and_the_others_what_first() -> None:
    report = judged()
    advice = "Most of it is load (train.py:9). With num_workers=2 the next batch is made meanwhile."
    for finding in report["findings"]:
        finding["advice"] = advice
    said = " ".join(ending(report, width=80, colour=False).split())
    assert said.count("Most of it is load (train.py:9).") == 2
    assert said.count("With num_workers=2 the next batch is made meanwhile.") == 1


def test_names_cannot_drive_the_terminal() -> None:
    report = judged()
    report["script"] = EVIL
    report["verdict"]["sentence"] = f"{EVIL}: {EVIL}"
    report["verdict"]["evidence"][0]["name"] = EVIL
    report["step_bar"]["parts"][0]["name"] = EVIL
    report["step_bar"]["reason"] = EVIL
    report["warnings"][0]["text"] = EVIL
    report["layers"][0].update(name=EVIL, status="empty", reason=EVIL, command=EVIL)
    report["findings"][0].update(title=EVIL, advice=EVIL, file=EVIL, severity="high")
    report["findings"][0]["evidence"] = [{EVIL: EVIL}, EVIL]
    report["findings"][0]["layers"] = [EVIL]
    printed = ending(report, width=80, colour=False)
    printed += terminal.verdict(report, width=80, colour=False)
    printed += terminal.findings(report["findings"], width=80, colour=False)
    printed += export.findings_as("md", report["findings"])
    assert "\x1b" not in printed
    assert "\x07" not in printed
    assert "x[/]" in printed
    printed.encode("utf-8")


def test_the_bar_has_whole_cells_that_fill_its_room() -> None:
    assert cells_of([0.5, 0.5], 10) == [5, 5]
    assert cells_of([0.98, 0.01, 0.01], 20) == [18, 1, 1], "no part is drawn as none"
    for shares in ([0.1] * 10, [0.333, 0.333, 0.334], [1.0], [0.9, 0.05, 0.03, 0.02]):
        for room in (10, 38, 77, 78, 198):
            cells = cells_of(shares, room)
            assert sum(cells) == room
            assert min(cells) >= 1
    assert cells_of([0.0, 0.0], 10) == [0, 0]


def test_terminals_without_more_than_ascii_get_that() -> None:
    told = ending(judged(), width=80, colour=False) + terminal.summary(
        full(), width=80, colour=False
    )
    assert not told.isascii()
    plain = fitting(told, "ascii")
    assert plain.isascii()
    assert "401 us" in plain
    assert "<= 4.10" in plain
    assert fitting(told, "utf-8") == told
    assert fitting("µ", "latin-1") == "µ"
    assert fitting("é", None) == "?"


def test_colour_is_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert colourful(Terminal())
    assert not colourful(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colourful(Terminal())
    monkeypatch.setenv("NO_COLOR", "")
    assert colourful(Terminal())
    monkeypatch.setenv("TERM", "dumb")
    assert not colourful(Terminal())


def test_colour_changes_nothing_else() -> None:
    coloured = ending(judged(), width=80, colour=True)
    assert "\x1b[" in coloured
    bare = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    plain = ending(judged(), width=80, colour=False)
    assert [line.rstrip() for line in bare.splitlines()] == plain.splitlines()


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("wait_s", 0.0042, "wait 4.20 ms"),
        ("held_bytes", 2**20, "held 1.00 MiB"),
        ("wait_share", 0.421, "wait 42.1 %"),
        ("share", 0.421, "share 42.1 %"),
        ("flop_per_s", 2.5e9, "flop/s 2.50 G"),
        ("calls", 812.0, "calls 812"),
        ("line", 1234, "line 1234"),
        ("own", True, "own yes"),
        ("operator", "aten::mm", "operator aten::mm"),
        ("gain_s", None, "gain –"),
    ],
)
def test_figures_of_evidence_have_the_units_of_their_names(key: str, value: Any, said: str) -> None:
    assert f"{label(key)} {figure(key, value)}" == said


# -- profstack show ------------------------------------------------------------------------------


@pytest.fixture
def shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Print a recording of the full report by `profstack show` with these words."""
    (tmp_path / "report.json").write_text(files.text(judged()), encoding="utf-8")

    def show(*words: str) -> str:
        assert commands.main(["show", str(tmp_path), *words]) == 0
        return capsys.readouterr().out

    return show


def test_the_made_up_report_is_one() -> None:
    # What a terminal does not print is filled in: null where the schema allows it, else empty.
    schema = files.schema()
    jsonschema.validate(completed(json.loads(files.text(judged())), schema), schema)


def test_show_alone_prints_the_summary(shown: Callable[..., str]) -> None:
    printed = shown()
    assert "Input-bound: 42 %" in printed
    assert "[WWWWW" in printed
    assert "probe effect" in printed
    assert max(map(len, printed.splitlines())) <= 80


@pytest.mark.parametrize("name", REPORT)
def test_every_table_is_shown_in_every_format(name: str, shown: Callable[..., str]) -> None:
    rows = json.loads(shown("--table", name, "--format", "json"))
    assert len(rows) == len(full()["tables"][name])
    header, *lines = csv.reader(io.StringIO(shown("--table", name, "--format", "csv")))
    assert header == list(REPORT[name].names)
    assert len(lines) == len(rows)
    table = shown("--table", name, "--format", "md").splitlines()
    assert len(table) == len(rows) + 2
    printed = shown("--table", name, "--limit", "1")
    assert printed.strip()
    if len(rows) > 1:
        assert f"more of {len(rows):,} rows: --limit {len(rows)}" in printed
    column = REPORT[name].names[0]
    assert json.loads(shown("--table", name, "--sort", column, "--format", "json")) is not None


def test_findings_are_shown_in_full(shown: Callable[..., str]) -> None:
    printed = " ".join(shown("--findings").split())
    assert "1. A copy to the host waits for the device sync, high; train.py:66" in printed
    assert "- operator aten::item, calls 3, total 400 µs" in printed
    assert "next: Keep loss.item() in the list, not the tensor." in printed
    assert "1 more of 2 findings" in shown("--findings", "--limit", "1")
    rows = json.loads(shown("--findings", "--format", "json"))
    assert rows == judged()["findings"]
    read = list(csv.DictReader(io.StringIO(shown("--findings", "--format", "csv"))))
    assert [row["slug"] for row in read] == ["sync", "memory-growth"]
    assert float(read[0]["gain_s"]) == 0.0004
    assert json.loads(read[1]["evidence"]) == rows[1]["evidence"]
    sections = shown("--findings", "--format", "md")
    assert sections.startswith("### 1. A copy to the host waits for the device\n")
    assert "\nNext: Take the loss once every hundred steps.\n" in sections


def test_a_recording_without_findings_says_so() -> None:
    assert terminal.findings([], width=80, colour=False) == "findings: none in this recording\n"
    assert json.loads(export.findings_as("json", [])) == []
    assert export.findings_as("csv", []).startswith("slug,")
    assert export.findings_as("md", []) == "No findings in this recording.\n"


def test_the_verdict_is_shown_with_its_tests(shown: Callable[..., str]) -> None:
    printed = shown("--verdict")
    assert "margin: 12 points" in printed
    assert re.search(r"input-bound +42\.0 % +30 % +1\.68 ms +train\.py:20 batches", printed)
    assert re.search(r"launch-bound +5\.0 % .*calls 812, call 240 ns", printed)
    assert re.search(r"compute-bound +– +40 % +– +the machine's peaks are not known", printed)
    read = json.loads(shown("--verdict", "--format", "json"))
    assert read == {key: json.loads(json.dumps(judged()[key])) for key in ("verdict", "step_bar")}
    rows = list(csv.DictReader(io.StringIO(shown("--verdict", "--format", "csv"))))
    assert [row["test"] for row in rows] == ["input-bound", "launch-bound", "compute-bound"]
    lines = shown("--verdict", "--format", "md").splitlines()
    assert sum(line.startswith("| --- ") for line in lines) == 2, "the bar and the tests"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--table", "nothing"], "no table 'nothing'"),
        (["--table", "modules", "--sort", "luck"], "no column 'luck'"),
        (["--limit", "3"], "--limit needs a table"),
        (["--format", "md"], "--format md needs a table"),
        (["--findings", "--sort", "title"], "--sort needs a table"),
        (["--findings", "--limit", "0"], "--limit must be at least 1"),
        (["--verdict", "--limit", "1"], "--limit needs a table"),
        (["--verdict", "--findings"], "not allowed with argument"),
        (["--findings", "--table", "modules"], "not allowed with argument"),
    ],
)
def test_what_cannot_be_shown_is_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "report.json").write_text(files.text(judged()), encoding="utf-8")
    assert commands.main(["show", str(tmp_path), *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error
    assert error.startswith("profstack: ")


def test_help_tells_of_findings_and_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["show", "--help"]) == 0
    printed = capsys.readouterr().out
    for word in ("--findings", "--verdict", "--table", "--limit", "--sort", "the verdict"):
        assert word in printed


# -- a real run ----------------------------------------------------------------------------------

ENDS_WITH_3 = """
import sys
import torch

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(12):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
sys.exit(3)
"""
# Runs a command of ours in which the writing of pages is broken.
BROKEN_PAGES = """
import sys
import profstack.report.html

def write(*arguments, **options):
    raise KeyError("a defect")

profstack.report.html.write = write
from profstack.commands import main

sys.exit(main(sys.argv[1:]))
"""


def test_a_page_that_cannot_be_written_keeps_the_recording_and_the_exit_code(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(ENDS_WITH_3)
    (tmp_path / "broken.py").write_text(BROKEN_PAGES)
    environment = clean_environment(OMP_NUM_THREADS="1")
    # Nobody reads what we say: that is no reason to let go of the script.
    reading, writing = os.pipe()
    os.close(reading)
    options = ["run", "--layers", "torch", "--no-peaks", "-o", "my rec"]
    command = [sys.executable, "broken.py", *options, "train.py"]
    unread = subprocess.run(
        command, cwd=tmp_path, env=environment, stderr=writing, check=False, timeout=300
    )
    os.close(writing)
    assert unread.returncode == 3
    command.insert(3, "--force")
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, check=False, timeout=300
    )
    assert done.returncode == 3, "the script's own"
    last = done.stderr.decode().splitlines()[-1]
    assert "Traceback" not in done.stderr.decode()
    assert last == (
        "profstack: the page was not written (KeyError: 'a defect'); "
        "the recording is kept, to write it again: profstack report 'my rec'"
    )
    assert not (tmp_path / "my rec" / "report.html").exists()
    assert commands.main(["report", str(tmp_path / "my rec")]) == 0
    assert (tmp_path / "my rec" / "report.html").stat().st_size > 100_000


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    replace_text(pipe, "<html>")
    assert os.read(reader, 100) == b"<html>"
    os.close(reader)
    assert pipe.is_fifo()


def test_progress_without_a_reader_or_an_encoding() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="backslashreplace")
    progress.Display(quiet=False, stream=out).line("median 4.2 µs")
    assert out.buffer.getvalue() == b"median 4.2 us\n"  # type: ignore[attr-defined]  # a BytesIO


SCRIPT = """
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 320
    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.randn(16)

model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in DataLoader(Slow(), batch_size=8):
    optimizer.zero_grad()
    model(batch).pow(2).mean().backward()
    optimizer.step()
"""


def on_a_terminal(command: list[str], folder: Path) -> str:
    """What a command writes to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    # Without a size of its own the terminal is 80 columns wide.
    environment = clean_environment(OMP_NUM_THREADS="1", TERM="xterm", COLUMNS="80")
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    ) as child:
        os.close(theirs)
        pieces = []
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:
                # The other end is closed.
                break
            if not piece:
                break
            pieces.append(piece)
        assert child.wait(timeout=300) == 0
    os.close(ours)
    return b"".join(pieces).decode("utf-8").replace("\r\n", "\n")


def test_a_run_in_a_terminal_ends_readably(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "profstack", "run", "--layers", "torch,cprofile"]
    printed = on_a_terminal([*command, "-o", "rec", "train.py"], tmp_path)
    assert "\x1b[" in printed
    bare = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed)
    lines = [line.rpartition("\r")[2].rstrip() for line in bare.splitlines()]
    assert lines[-1] == "Wrote rec/report.html"
    told = "\n".join(lines)
    report = json.loads((tmp_path / "rec" / "report.json").read_text())
    sentence = report["verdict"]["sentence"]
    assert sentence in " ".join(told.split())
    first = next(number for number, line in enumerate(lines) if line and sentence.startswith(line))
    screen = lines[first:]
    assert len(screen) <= _ONE_SCREEN, told
    assert max(map(len, screen)) <= 80
    (bar,) = (line for line in screen if re.fullmatch(r"\[[A-Zx?-]+\]", line))
    assert len(bar) == 80
    assert bar.count("W") > 40, "most of the step waits"
    shown = on_a_terminal([sys.executable, "-m", "profstack", "show", "rec"], tmp_path)
    assert sentence in " ".join(re.sub(r"\x1b\[[0-9;]*m", "", shown).split())
