"""The terminal: summary, the end of a run, verdict, findings, and single tables."""

import json
import re

import pytest

from profstack.findings.rules import SURENESS
from profstack.report import export, terminal
from profstack.report.terminal import cells_of, ending, probe_effect_words, summary, table_text
from profstack.storage.schema.report import REPORT
from tests.support.bench_reports import bench
from tests.support.full_report import full, on_a_device, whole
from tests.support.overview import add_verdict, finding
from tests.support.reports import HOSTILE, build, hostile

EVIL = "\x1b]0;owned\x07\x1b[2J[bold red]x[/]\udc80"


def judged():
    """The full report with a verdict and a step bar."""
    report = add_verdict(full())
    report["step_bar"] |= {"time_line": "host", "note": None}
    return report


def lines(report, show=ending, width=80):
    return show(report, width=width, colour=False).splitlines()


def said(report, show=ending, width=80):
    """What is shown, without the ends of lines and the room between columns."""
    return " ".join(" ".join(lines(report, show, width)).split())


@pytest.mark.parametrize("make", [judged, lambda: hostile(on_a_device()), on_a_device, build])
def test_any_width_is_kept_and_no_number_is_cut(make):
    report = make()
    for width in (1, 40, 47, 48, 60, 72, 80, 200):
        for show in (ending, summary, terminal.verdict):
            printed = show(report, width=width, colour=False)
            assert max(map(len, printed.splitlines())) <= max(width, 40)
            # A number without its end is another number.
            assert not re.findall(r"\d[.,]?…", printed), printed


@pytest.mark.parametrize("make", [whole, bench, judged])
def test_names_cannot_drive_the_terminal(make):
    report = hostile(make())
    if make is judged:
        report["step_bar"]["parts"][0]["name"] = report["step_bar"]["reason"] = HOSTILE
        report["layers"][0] |= {"status": "empty", "reason": HOSTILE, "command": HOSTILE}
    text = json.dumps(report).replace(json.dumps(HOSTILE)[1:-1], json.dumps(EVIL)[1:-1])
    report = json.loads(text)
    found = report["findings"]
    for width in (1, 80, 130):
        plain = {"width": width, "colour": False}
        printed = "".join(show(report, **plain) for show in (summary, ending, terminal.verdict))
        printed += terminal.findings(found, **plain) + export.findings_as("md", found)
        for name in ("functions", "lines", "call_paths"):
            printed += table_text(REPORT[name], report["tables"][name], **plain)
        assert not {"\x1b", "\x07"} & {*printed}
        # Brackets are text, no markup.
        assert "x[/]" in printed
        printed.encode("utf-8")


def test_a_run_ends_with_the_verdict_the_bar_and_what_to_do_first():
    report = judged()
    report["verdict"]["action"] = "Do that."
    mark, printed = report["benchmark"], lines(report)
    low, median, high = (1e3 * mark["median_s"] * factor for factor in (0.988, 1, 1.011))
    span = f"{low:.2f} ms to {high:.2f} ms with 95 % confidence, n = 32"
    rates = f"{mark['steps_per_s']:.0f} steps/s, {mark['items_per_s'] / 1e3:.1f} k items/s, "
    rates += f"IQR {1e6 * mark['iqr_s']:.0f} µs, first step {1e3 * mark['first_step_s']:.1f} ms"
    # 78 cells: each part has one, and its share of the other 73 by largest remainders.
    parts = {"W": 34, "P": 15, "F": 12, "B": 15, "x": 2}
    assert printed[:8] == [
        f"verdict: {report['verdict']['sentence']}", "next: Do that.", SURENESS["likely"],
        "train.py: 101 steps, complete", f"clean step: median {median:.2f} ms  ({span})",
        f"            {rates}", "tensors at the peak of a step: 385 MiB",
        f"[{''.join(sign * count for sign, count in parts.items())}]"]  # fmt: skip
    told = "   ".join(printed[8:10])
    for part in report["step_bar"]["parts"]:
        time = terminal.format_seconds(part["seconds"])
        assert f" {part['name']} {100 * part['share']:.0f} % ({time})" in told
    heads = [line for line in printed if re.match(r"\d\. |module|operator|function|layers", line)]
    wanted = "1. 2. 3. module operator function layers:"
    assert " ".join(head.split()[0] for head in heads) == wanted
    assert ("(optimizer)" in told, printed[10], len(printed) <= 47) == (False, "", True)


def test_what_is_not_known_is_left_out_and_rates_rest_on_the_steps_point():
    report = judged()
    report["step_bar"] = report["verdict"] = None
    report["status_reason"] = "stopped"
    report["benchmark"] |= {"ci95_low_s": None, "items_per_s": None}
    printed = lines(report)
    assert printed[0] == "train.py: 101 steps, complete: stopped"
    assert printed[1].endswith("(no interval, n = 32)")
    assert "steps/s, IQR" in printed[2]
    report["benchmark"]["median_s"], report["step"]["count"] = None, 1
    assert lines(report)[:2] == ["train.py: 1 step, complete: stopped", "clean step: not measured"]
    report = judged()
    mark = report["benchmark"]
    point = {"kind": "step", "flop": 2e9, "flop_per_s": 5e11, "seconds": 0.004}
    share = {"source": "measured", "value": 0.421}
    mfu = [{"source": "datasheet", "value": 0.9}, share, share]
    report["roofline"] = {"points": [{"kind": "module"}, point], "mfu": mfu}
    told = {0.421: "42 % of", 0.005: "0 % of", 0.0049: "less than 1 % of", None: "more than"}
    for value, words in told.items():
        share["value"] = value
        assert f"500 G FLOP/s, {words} the measured peak" in said(report)
    mark["mean_s"] = mark["median_s"] * 1.3
    assert f"n = 32), mean {1.3e3 * mark['median_s']:.2f} ms" in said(report)


def test_the_bar_of_a_device_and_parts_too_small_to_draw():
    report = judged()
    report["step_bar"] |= {"time_line": "device", "reason": "of the device's own time", "parts": [
        {"name": name, "share": share, "seconds": share * 0.01} for name,
        share in (("idle", 0.6), ("odd", 0.39), ("loss", 0.005), ("I/O", 0.0049))]}  # fmt: skip
    bar = next(line for line in lines(report) if line.startswith("["))
    assert {sign: bar.count(sign) for sign in "-#LR"} == {"-": 46, "#": 31, "L": 1, "R": 0}
    assert "- the device's idle 60 % (6.00 ms)" in said(report)
    # Cells go by largest remainders.
    for shares, room, cells in (
        ([0.98, 0.01, 0.01], 20, [18, 1, 1]), ([0.7, -0.2, 0.3], 13, [8, 1, 4]),
        ([0.2, 0.3, 0.5], 16, [4, 5, 7]), ([0.3, 0.7], 1, [0, 0]),
    ):  # fmt: skip
        assert cells_of(shares, room) == cells


def test_the_first_findings_and_two_warnings_end_a_run():
    report = judged()
    advice = "Most of it is load. With num_workers=2 it is made meanwhile. Z" + "z" * 250
    report["findings"] = [
        finding("x", f"title {at}", gain_s=at / 1e3, gain_is="measured", advice=advice)
        for at in range(2, 7)
    ]
    printed = said(report)
    assert "1. title 2 about 2.00 ms a step, measured: Most of it is load. With" in printed
    assert ("3. title 4" in printed, "title 5" in printed, "zzz" in printed) == (True, False, False)
    assert "2 more findings: profstack show --findings" in printed
    report["benchmark"]["warnings"] = []
    report["warnings"] = [{"slug": "x", "text": f"w{at}; and so on."} for at in range(4)]
    told = [line for line in lines(report) if "warning" in line]
    assert told == ["warning: w0", "warning: w1", "2 more warnings: profstack show"]


def cells(report, begins, width=160):
    """The cells of the one line of the summary that begins so."""
    [line] = (line for line in lines(report, summary, width) if line.startswith(begins))
    return re.split("  +", line)


def test_the_summary_has_its_parts_and_a_row_for_each_layer():
    blocks = "\n".join(lines(judged(), summary)).split("\n\n")
    begins = "train.py: verdict: layer module operator function owners: finding: warning:"
    assert " ".join(block.split()[0] for block in blocks) == begins
    report = full()
    report["layers"][0]["reason"] = "it gave way"
    report["layers"][3] |= {"status": "empty", "reason": "no turn", "command": "do x"}
    assert cells(report, "layer")[1:] == ["status", "steps", "technique", "memory", "probe effect"]
    told = cells(report, "cprofile")
    assert told[:5] == ["cprofile", "recorded", "8", "tracing", "256 KiB"]
    assert told[5].endswith("; it gave way")
    told = cells(report, "memory  ")
    assert told == ["memory", "empty", "11", "tracing", "1.00 MiB", "no turn: do x"]
    assert cells(report, "layer", 109) == ["layer", "status", "steps", "probe effect"]
    for factor, low, high, note, words in (
            (None, None, None, "why", "– (why)"), (4.1, None, None, "why", "≤ 4.10 (why)"),
            (1.5, None, 2.0, None, "1.50 (no interval: too few steps)"),
            (1.1, 1.0, 1.3, None, "1.10 (1.00 to 1.30), not"),
            (0.9, 0.8, 1.0, None, "0.90 (0.80 to 1.00), not"),
            (0.9, 0.8, 0.99, None, "0.90 (0.80 to 0.99)")):  # fmt: skip
        effect = {"factor": factor, "ci95_low": low, "ci95_high": high, "note": note}
        assert probe_effect_words(effect).partition(" distinguishable")[0] == words


def test_the_verdict_is_shown_with_the_figures_of_its_tests():
    report = judged()
    row = report["verdict"]["evidence"][1]
    row |= {"file": "a/train.py", "line": 20, "name": "batches", "calls": 812.0, "call_s": 2.4e-7}
    report["verdict"]["evidence"][2]["reason"] = "no peaks"
    printed = lines(report, terminal.verdict, 100)
    assert printed[1] == SURENESS["likely"]
    assert "margin: 15 points" in printed[2]
    assert printed[4].startswith("[WWW")
    median = report["benchmark"]["median_s"]
    waited, python = f"{450 * median:.2f} ms", f"{0.2e6 * median:.0f} µs"
    assert [re.split("  +", line) for line in printed[-4:]] == [
        ["test", "share", "from", "time", "what"], ["input-bound", "45.0 %", "30 %", waited],
        ["python-bound", "20.0 %", "40 %", python, "train.py:20 batches, calls 812, each 240 ns"],
        ["compute-bound", "–", "40 %", "–", "no peaks"]]  # fmt: skip


def test_all_of_every_finding_is_shown_and_cells_have_units():
    found = [
        finding("sync", "A copy", gain_s=0.0004, gain_is="measured", file="a/t.py", line=66,
                evidence=[{"calls": 3.0}, {"calls": 5.0}], advice="Mend it. All of it."),
        finding("growth", "Memory", gain_reason="it costs bytes", layers=[], severity="high"),
    ]  # fmt: skip
    assert terminal.findings(found, width=90, colour=False).splitlines() == [
        "1. A copy", "   sync, medium; t.py:66, about 400 µs a step, measured; seen by torch",
        "   - calls 3", "   - calls 5", "   next: Mend it. All of it.", "", "2. Memory",
        "   growth, high; no gain: it costs bytes", "   next: Mend it."]  # fmt: skip
    for value, unit, told in (
            (0.0042, "s", "4.20 ms"), (2**20, "bytes", "1.00 MiB"), (12_345, "count", "12.3 k"),
            (2.5e9, "flop", "2.50 G"), (0.421, "share", "42.1 %"), (False, "flag", "no"),
            (float("nan"), "s", "–"), (12_345.0, "plain", "12345"), ("a\x1b", "text", "a?"),
            (["a", "b"], "text", "a, b")):  # fmt: skip
        assert terminal.cell(value, unit) == told
