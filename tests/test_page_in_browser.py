"""The page as a browser shows it: nothing loaded, nothing broken, and every control at work."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from data_full_report import full, full_of_hostile_names
from data_report import HOSTILE, build, hostile, row
from page_browser import EXECUTABLE, Browser, choose, column, count, pages, texts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(EXECUTABLE is None, reason="there is no Chromium on this machine"),
]

_NAMES_OF_THE_PROGRAM = (
    "#run-facts",
    "#environment-facts",
    "#warning-list",
    "#layer-list",
    "#module-tree",
    "#operator-table",
    "#function-table",
    "#lines",
    "#artifact-table",
)
Opened = Callable[..., Browser]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Opens the page of a report; at the end nothing may be broken."""
    with pages(tmp_path) as open_page:
        yield open_page


def nested_data(size: int) -> dict[str, Any]:
    """A report with many rows in every table."""
    report = build(watched_steps=3_000)
    tables = report["tables"]
    for number in range(size):
        tables["functions"].append(
            row("functions", phase="step", file=f"f{number % 9}.py", line=number, name=f"f{number}",
                calls=1.0, self_s=1e-6 * number, total_s=1e-6 * number)
        )  # fmt: skip
        tables["operators"].append(
            row("operators", name=f"aten::op{number}", shapes="[]", calls=1.0, self_s=1e-7 * number)
        )
    return report


def test_the_page_shows_what_was_run_and_the_clean_step(opened: Opened) -> None:
    page = opened(build())
    assert texts(page, "#script") == ["train.py"]
    assert "exit code 0" in texts(page, "#status")[0]
    main = texts(page, ".card.main")[0]
    assert "4.01 ms" in main
    assert "95 % interval" in main
    whole = texts(page, "main")[0]
    for said in ("Optimizer.step", "AMD EPYC 7763", "Only 32 clean steps", "--epochs 3"):
        assert said in whole


def test_facts_that_are_not_there_are_named_and_sizes_have_units(opened: Opened) -> None:
    report = build()
    report["environment"] |= {"memory_bytes": 2**34, "cuda": None, "variables_set": []}
    report["benchmark"]["drift"] = -0.031
    page = opened(report)
    environment = texts(page, "#environment-facts")[0]
    assert "16.0 GiB" in environment
    assert "None, or not found: gpu, cuda, variables set." in environment
    assert "−3.1 %" in texts(page, "#benchmark-more")[0]


def test_sections_without_content_are_not_there(opened: Opened) -> None:
    page = opened(build())
    for absent in ("flops", "more", "watch"):
        assert count(page, f"#{absent}") == 0
        assert count(page, f"nav a[href='#{absent}']") == 0


def test_findings_and_a_verdict_are_shown_when_they_are_there(opened: Opened) -> None:
    report = build()
    report["verdict"] = {"slug": "launch", "sentence": "Launch-bound.", "evidence": ["row 1"]}
    report["findings"] = [
        {
            "slug": "sync", "title": "A copy waits", "severity": "high", "gain_s": 0.001,
            "gain_is": "estimated", "file": "train.py", "line": 66, "module": None, "layers": [],
            "evidence": [{"operator": "aten::item", "calls": 3}], "advice": "Log less often.",
        }
    ]  # fmt: skip
    page = opened(report, "overview")
    assert "Launch-bound." in texts(page, "#verdict")[0]
    finding = texts(page, "#finding-list")[0]
    for said in (
        "A copy waits",
        "1.00 ms",
        "train.py:66",
        "Log less often.",
        "operator aten::item",
    ):
        assert said in finding


@pytest.mark.parametrize("size", [(1400, 900), (400, 800)])
def test_the_page_fits_its_window(opened: Opened, size: tuple[int, int]) -> None:
    for report in (build(), full()):
        page = opened(report, width=size[0], height=size[1])
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]


def test_a_layer_says_what_became_of_it(opened: Opened) -> None:
    page = opened(build())
    cprofile, torch, memory = texts(page, ".layer")
    assert "not distinguishable from 1.00" in cprofile
    assert "medians: " in cprofile
    assert "not distinguishable" not in torch
    assert "torch/trace.json.gz" in torch
    assert "too few steps" in memory
    assert "profstack run --layers memory train.py" in memory
    assert "growth of the resident set, line by line" in memory


def test_technique_memory_and_probe_effect_stand_side_by_side(opened: Opened) -> None:
    page = opened(full())
    layers = texts(page, ".layer")
    assert len(layers) == 6
    figures = [texts(page, f".layer:nth-child({at}) .layer-name dd") for at in range(1, 7)]
    assert [figure[0] for figure in figures] == [
        *("tracing", "tracing", "tracing", "tracing", "counting", "sampling")
    ]
    assert [figure[-1] for figure in figures] == [
        *("256 KiB", "8.68 MiB", "0 B", "1.00 MiB", "293 KiB", "1.34 MiB")
    ]
    tops = page.evaluate(
        "[...document.querySelectorAll('.layer:first-child > *')]"
        ".map(one => Math.round(one.getBoundingClientRect().top))"
    )
    assert len(set(tops)) == 1
    assert "emitted" in layers[2]
    assert "≤ 4.10 ×" in layers[4]
    assert "slow by itself" in layers[4]
    watch = page.evaluate(
        "[...document.querySelectorAll('.layer:last-child .none')].map(one => one.title)"
    )
    assert watch == [
        "it has no slices: it observes what is between them",
        "it watches what no slice has",
    ]


def test_operations_stand_at_modules_and_counter_by_counter(opened: Opened) -> None:
    page = opened(full())
    assert "FlopCounterMode is the record" in texts(page, "#flop-lead")[0]
    cards = texts(page, "#flop-cards .card")
    assert "2.76 M FLOP" in cards[0]
    assert "1.98 G FLOP/s" in cards[2]
    assert column(page, "#flop-counters", 1) == [
        *("FlopCounterMode (the record)", "recorded_shapes", "flops-profiler")
    ]
    assert column(page, "#flop-counters", 3) == ["5.16 M", "5.16 M", "–"]
    assert column(page, "#flop-uncounted", 1) == ["aten::fft_fft", "aten::mul"]
    assert "as the operator * counted as 0" in texts(page, "#flop-uncounted")[0]
    heads = texts(page, "#module-tree th")
    rates = column(page, "#module-tree", 1 + heads.index("FLOP/s"))
    assert rates[:4] == ["3.10 G", "4.20 G", "134 M", "–"]
    titles = page.evaluate(
        "[...document.querySelectorAll('#module-tree td .none')].map(one => one.title)"
    )
    assert "nothing in it has a formula" in titles
    assert "not measured" not in titles
    button = "[...document.querySelectorAll('#module-tree th button')].find(one => "
    rate = page.evaluate(button + "one.textContent === 'FLOP/s').title")
    assert "operations counted by FlopCounterMode, 1 step, over" in rate


def test_counters_without_figures_say_why(opened: Opened) -> None:
    report = full()
    note = "flops-profiler is not installed"
    report["tables"]["flops"][2] = row("flops", counter="flops-profiler", note=note)
    page = opened(report, "flops")
    assert column(page, "#flop-counters", 7) == ["–", "–", note]
    for one in report["tables"]["flops"]:
        one |= dict.fromkeys(("forward_flop", "backward_flop", "forward_mac", "uncounted"))
        one["note"] = note
    page = opened(report, "flops")
    assert "No counter has figures" in texts(page, "#flop-lead")[0]
    assert note in texts(page, "#flop-lead")[0]


def test_lines_tell_the_memory_they_took(opened: Opened) -> None:
    page = opened(full())
    assert column(page, "#memory-lines", 1)[:2] == ["train.py:68", "train.py:45"]
    assert column(page, "#memory-lines", 3)[0] == "64.0 MiB"
    listing = texts(page, ".listing")[0]
    for said in ("memory", "64.0 MiB"):
        assert said in listing
    choose(page, "#line-tools", "watch")
    listing = texts(page, ".listing")[0]
    for said in ("start-up", "62 %"):
        assert said in listing
    nowhere = "[...document.querySelectorAll('#lines .none')].filter(one => !one.title).length"
    assert page.evaluate(nowhere) == 0


def test_the_watch_shows_the_start_up_and_steps_out_of_line(opened: Opened) -> None:
    page = opened(full())
    cards = texts(page, "#watch-cards .card")
    assert "208" in cards[0]
    assert "0.87" in cards[1]
    assert "rank correlation over 9 functions" in cards[1]
    assert column(page, "#watch-table > div:first-child", 1)[0] == "<module>"
    assert column(page, "#watch-table > div:first-child", 2)[2] == "torch/__init__.py:1"
    assert column(page, "#watch-table > div:last-child", 3) == ["import torch"]
    choose(page, "#watch-table", "steps")
    assert column(page, "#watch-table > div:first-child", 1) == ["main"]
    assert count(page, "#watch-table > div:last-child tr") == 0
    assert column(page, "#watch-outliers", 1) == ["70", "88"]
    assert column(page, "#watch-outliers", 3) == ["4.20 ×", "4.00 ×"]
    assert "batches (train.py:20)" in column(page, "#watch-outliers", 4)[0]
    assert "half as long again" in texts(page, "#watch-outliers")[0]


def test_a_watch_that_cannot_be_compared_says_why(opened: Opened) -> None:
    report = full()
    why = "the watch has 18 samples in steps, 50 are needed"
    report["watch"] |= {"rank_correlation": None, "rank_functions": 0, "reason": why}
    report["tables"]["outliers"] = []
    page = opened(report, "method")
    assert why in texts(page, "#watch-cards .card")[1]
    assert "No step stands out" in texts(page, "#watch-outliers")[0]


def test_ranges_have_a_table(opened: Opened) -> None:
    page = opened(full(), "ranges")
    assert texts(page, "#nvtx-ranges h3") == ["NVTX ranges"]
    more = texts(page, "#range-table")[0]
    for said in ("Digits.features.0", "2.10 µs"):
        assert said in more
    titles = page.evaluate(
        "[...document.querySelectorAll('#range-table td .none')].map(one => one.title)"
    )
    assert titles == ["no more than reading the clock takes"]


def test_every_empty_cell_of_a_full_page_has_a_reason(opened: Opened) -> None:
    report = full()
    for name, table in report["tables"].items():
        for key in table[0] if table else ():
            if f"{name}.{key}" not in report["columns_reason"]:
                report["cells_reason"].setdefault(f"{name}.{key}", "told")
    page = opened(report)
    page.evaluate("document.querySelectorAll('.empty-note input').forEach(one => one.click())")
    page.settle()
    silent = (
        "[...document.querySelectorAll('main .none')].filter(one => !one.title || "
        "one.title === 'not measured').map(one => one.closest('section').id + ' ' + "
        "(one.closest('td, dd, .card') || one).textContent)"
    )
    assert page.evaluate(silent) == []


def test_the_first_step_says_who_watched_it(opened: Opened) -> None:
    report = build()
    report["benchmark"]["first_step_layer"] = "memory"
    assert any("first step, watched by memory" in one for one in texts(opened(report), ".card"))


def test_tables_sort_both_ways_by_value_not_by_text(opened: Opened) -> None:
    page = opened(build())
    choose(page, "#function-table", "all functions")
    self_s = column(page, "#function-list", 2)
    assert self_s[:2] == ["1.92 ms", "700 µs"]
    assert self_s[-1] == "20.0 µs"
    page.click("#function-list th button", 1)
    assert column(page, "#function-list", 2) == self_s[::-1]
    pressed = "document.querySelectorAll('#function-list th')[1].getAttribute('aria-sort')"
    assert page.evaluate(pressed) == "ascending"


def test_tables_are_searched_over_all_rows(opened: Opened) -> None:
    page = opened(nested_data(300))
    assert count(page, "#function-list tbody tr") == 20
    page.type("#function-list input[type=search]", "F299")
    assert [name.strip() for name in column(page, "#function-list", 1)] == ["f299"]
    assert texts(page, "#function-list .count") == ["1 of 318 rows"]
    page.type("#function-list input[type=search]", "nothing is called this")
    assert count(page, "#function-list tbody tr") == 0


def test_more_rows_are_shown_on_demand(opened: Opened) -> None:
    page = opened(nested_data(300))
    page.click("#function-list .more button", 1)
    assert count(page, "#function-list tbody tr") == 317


def test_what_was_left_out_is_said(opened: Opened) -> None:
    page = opened(nested_data(2_500), "python")
    said = texts(page, "#function-table .left-out")
    assert "2,000 of 2,518 rows" in said[0]
    assert "recording.sqlite" in said[0]


def test_null_is_a_dash_with_its_reason(opened: Opened) -> None:
    page = opened(build(), "modules")
    note = texts(page, "#module-tree .empty-note")[0]
    assert "device peak: this machine has no accelerator" in note
    assert "FLOP/s: no layer of this run counts" in note
    page.click("#module-tree .empty-note input")
    titles = page.evaluate(
        "[...document.querySelectorAll('#module-tree td .none')].map(one => one.title)"
    )
    assert "this machine has no accelerator" in titles
    assert "no layer of this run counts floating-point operations" in titles
    dashes = set(texts(page, "#module-tree td .none"))
    assert dashes == {"–"}


def test_the_module_tree_folds_and_puts_parts_last(opened: Opened) -> None:
    page = opened(build(), "modules")
    rows = column(page, "#module-tree", 1)
    assert "(wait)" in rows[10]
    choose(page, "#module-tree", "roots")
    assert count(page, "#module-tree tbody tr") == 7
    page.click("#module-tree button.twig")
    assert count(page, "#module-tree tbody tr") == 9
    page.click("#module-tree th button", 1)
    sorted_rows = column(page, "#module-tree", 1)
    assert "Digits" in sorted_rows[0]
    assert "(" in sorted_rows[-1]
    assert "(optimizer)" in sorted_rows[3]


def test_the_module_tree_is_searched_with_its_ancestors(opened: Opened) -> None:
    page = opened(build(), "modules")
    choose(page, "#module-tree", "roots")
    page.type("#module-tree input[type=search]", "dropout")
    shown = [text.strip("▾▸") for text in column(page, "#module-tree", 1)]
    assert shown == ["Digits = model", "classifier", "1"]


def test_the_residual_is_a_row_of_its_own(opened: Opened) -> None:
    report = build()
    report["tables"]["modules"][-1]["calibrated_s"] = -0.0001
    rest = {"name": "not attributed", "seconds": -0.0001, "share": -0.02, "link": None}
    report["step_bar"] = {"median_s": 0.005, "parts": [rest], "reason": None}
    page = opened(report)
    (residual,) = (
        text for text in texts(page, "#module-tree tbody tr") if "(not attributed)" in text
    )
    assert "−100 µs" in residual
    assert "−100 µs" in texts(page, "#step-bar")[0]


def test_names_of_the_program_show_as_text(opened: Opened) -> None:
    page = opened(hostile())
    assert page.evaluate("window.broken") is None
    assert count(page, "main img") == 0
    assert texts(page, "#script") == [HOSTILE]
    for box in _NAMES_OF_THE_PROGRAM:
        assert HOSTILE in texts(page, box)[0], box
    hrefs = page.evaluate("[...document.querySelectorAll('a.file')].map(one => one.href)")
    assert hrefs
    assert all(href.startswith("file:///") for href in hrefs)


def test_names_that_the_later_layers_found_show_as_text(opened: Opened) -> None:
    page = opened(full_of_hostile_names())
    assert page.evaluate("window.broken") is None
    assert count(page, "main img") == 0
    for box in ("#flop-counters", "#flop-uncounted", "#memory-lines", "#watch-table",
                "#watch-outliers", "#range-table", "#layer-list"):  # fmt: skip
        assert HOSTILE in texts(page, box)[0], box


def test_a_page_of_a_run_that_saw_nothing_still_stands(opened: Opened) -> None:
    report = build()
    report["benchmark"] = dict.fromkeys(report["benchmark"]) | {"warnings": [], "n": 0}
    report |= {"slices": [], "probe_effect": [], "layers": [], "warnings": [], "status": "failed"}
    for name in report["tables"]:
        report["tables"][name] = []
    page = opened(report)
    assert "no clean step was measured" in page.evaluate(
        "document.querySelector('.card.main .none').title"
    )
    assert "No step was found" in texts(page, "#steps")[0]
    assert count(page, "#modules") == 0


def test_terms_lead_to_the_glossary(opened: Opened) -> None:
    page = opened(build())
    missing = page.evaluate(
        "[...document.querySelectorAll('a.term')].filter(one => "
        "!document.querySelector(one.getAttribute('href'))).map(one => one.href)"
    )
    assert missing == []
    assert count(page, "a.term") > 10


def test_light_and_dark_follow_the_system_and_the_button(opened: Opened) -> None:
    page = opened(build(), dark=True)
    theme = "document.documentElement.dataset.theme"
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(theme) == "dark"
    dark = page.evaluate(ground)
    page.click("#theme")
    assert page.evaluate(theme) == "light"
    assert page.evaluate(ground) != dark
    page.evaluate("localStorage.clear()")


def test_text_is_readable_on_its_ground(opened: Opened) -> None:
    for dark in (False, True):
        page = opened(build(), dark=dark)
        colours = page.evaluate(
            "['--text', '--soft', '--accent', '--good', '--fair', '--bad', '--ground'].map(name => "
            "getComputedStyle(document.documentElement).getPropertyValue(name).trim())"
        )
        ground = luminance(colours[-1])
        for colour in colours[:-1]:
            bright, dim = sorted((luminance(colour), ground), reverse=True)
            assert (bright + 0.05) / (dim + 0.05) >= 4.5, colour


def luminance(colour: str) -> float:
    """Relative luminance of a #rrggbb colour, as contrast is defined for text on the web."""
    assert re.fullmatch(r"#[0-9a-f]{6}", colour)
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
