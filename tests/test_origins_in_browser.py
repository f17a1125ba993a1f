"""On hover: which layer a number is of, and whether it is clean, calibrated, raw or counted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from data_bench_report import bench
from data_full_report import full, on_a_device
from page_browser import EXECUTABLE, Browser, pages, texts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(EXECUTABLE is None, reason="there is no Chromium on this machine"),
]

Opened = Callable[..., Browser]
# Of each row of a table, by the texts of its heads: what stands in it, and what it says on hover.
_TABLE = """(() => {
  const table = document.querySelector('%s table');
  const heads = [...table.querySelectorAll('thead th')]
    .map(one => one.textContent.replace(/[▲▼]/g, ''));
  return [...table.querySelectorAll('tbody tr')].map(row => Object.fromEntries(
    heads.map((head, at) => [head, [row.children[at].textContent, row.children[at].title]])));
})()"""
_SENSES = "/clean|calibrated|raw|counted|a fact about/"
_CLEAN = "clean: measured by the step clock in steps that no layer watched"
_FACT = "a fact about the run, no measurement"


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Opens the page of a report; at the end nothing may be broken."""
    with pages(tmp_path) as open_page:
        yield open_page


def told(page: Browser, box: str) -> dict[str, dict[str, str]]:
    """By the first cell of each row: the last line of what each of its numbers says on hover."""
    rows = page.evaluate(_TABLE % box)
    assert rows
    return {
        next(iter(row.values()))[0]: {
            head: title.split("\n")[-1]
            for head, (text, title) in row.items()
            if any(one.isdigit() for one in text)
        }
        for row in rows
    }


def silent(page: Browser, selector: str) -> list[str]:
    """Which of these elements hold a digit, and say nothing of where it comes from."""
    found = page.evaluate(
        f"[...document.querySelectorAll({json.dumps(selector)})]"
        ".filter(one => /\\d/.test(one.textContent))"
        ".filter(one => ![one, ...one.querySelectorAll('*')]"
        f".some(any => {_SENSES}.test(any.title)))"
        ".map(one => (one.closest('[id]') || one).id + ': ' + one.textContent)"
    )
    assert isinstance(found, list)
    return found


def test_columns_of_a_benchmark_are_each_of_their_own_origin(opened: Opened) -> None:
    page = opened(bench())
    mistakes = [row for row in told(page, "#mistakes-table").values() if "wrong" in row]
    assert {row["wrong"] for row in mistakes} == {
        "raw: timed as the mistake has it; no layer was on"
    }
    assert {row["right"] for row in mistakes} == {_CLEAN}
    assert {row["n wrong"] for row in mistakes} == {"counted by profstack"}
    limit = next(iter(told(page, "#throughput-limits").values()))
    assert (limit["largest batch"], limit["knee at"]) == (_FACT, _FACT)
    assert limit["items/s"] == _CLEAN
    batch = page.evaluate(_TABLE % "#throughput-table")[0]
    assert (batch["batch"][1], batch["total"][1].split("\n")[-1]) == (_FACT, _CLEAN)
    assert batch["batches"][1] == "counted by profstack"
    assert "raw: read by profstack while the batches ran" in batch["peak memory"][1]
    variant = told(page, "#compare-table")["compile"]
    assert variant["operators"] == "counted by torch.profiler, in calls of their own"
    assert variant["compile"].startswith("raw: timed once")
    assert variant["difference"] == _FACT
    shapes = next(iter(told(page, "#by-shape").values()))
    assert (shapes["n"], shapes["median"]) == ("counted by profstack", _CLEAN)


def test_a_point_of_the_roofline_is_as_its_time_is(opened: Opened) -> None:
    report = bench()
    kinds = {point["name"]: point for point in report["roofline"]["points"]}
    rows = told(opened(report), "#roofline-table")
    step = rows["step"]
    assert step["time"] == _CLEAN
    assert step["FLOP/s"].startswith("clean: operations counted by ")
    assert step["FLOP"].startswith("counted by ")
    assert step["moved"] == "counted by the torch layer"
    module = next(rows[name] for name, point in kinds.items() if point["kind"] == "module")
    assert module["time"].startswith("calibrated: seen by the torch layer")
    assert module["FLOP/s"].startswith("calibrated: operations counted by ")


def test_a_point_with_device_time_is_raw(opened: Opened) -> None:
    report = bench()
    point = next(one for one in report["roofline"]["points"] if one["kind"] == "module")
    point["seconds_is"] = "device"
    row = told(opened(report), "#roofline-table")[point["name"]]
    assert row["time"].startswith("raw: as the torch layer saw it")
    assert row["FLOP/s"].startswith("raw: operations counted by ")


def test_counts_from_recorded_shapes_are_of_the_torch_layer(opened: Opened) -> None:
    rows = told(opened(full()), "#flop-counters")
    shapes = next(row for name, row in rows.items() if name.startswith("recorded_shapes"))
    assert shapes["forward FLOP"].endswith("from the shapes that the torch layer saw")
    record = next(row for name, row in rows.items() if name.startswith("FlopCounterMode"))
    assert record["forward FLOP"] == "counted by the flops layer"


def test_a_region_is_of_the_slices_that_timed_it(opened: Opened) -> None:
    report = full()
    regions = {row["path"]: row for row in report["tables"]["regions"]}
    regions["augment"] |= {"measured_in": "clean slices; what was done: slices of torch"}
    regions["augment/crop"] |= {
        "measured_in": "slices with a layer, the start-up or the watch", "calls": 1.0,
        "wall_s": 1e-5,
    }  # fmt: skip
    rows = told(opened(report), "#region-table")
    by_name = {name.lstrip("▾▸").split("#")[0]: row for name, row in rows.items()}
    assert by_name["augment"]["wall"] == _CLEAN
    assert by_name["augment"]["calls"] == "counted by profstack"
    assert by_name["crop"]["wall"].startswith("raw: by the step clock")
    assert by_name["loss part"]["wall"].startswith("raw: as the torch layer saw it")
    assert by_name["loss part"]["calls"] == "counted by the torch layer"


def test_slices_tell_times_from_facts(opened: Opened) -> None:
    page = opened(full(), at="method")
    rows = page.evaluate(_TABLE % "#slice-table")
    for row in rows:
        wanted = "clean: " if row["kind"][0] == "clean" else "raw: by the step clock"
        assert row["wall"][1].split("\n")[-1].startswith(wanted)
        assert {row[name][1] for name in ("slice", "round", "first step", "steps")} == {_FACT}
    pauses = [row["pause"] for row in rows if row["pause"][0] != "–"]
    assert pauses
    assert all("profstack's own time between steps" in title for _, title in pauses)


def test_figures_of_two_layers_name_both(opened: Opened) -> None:
    page = opened(full())
    rates = {row["FLOP/s"] for row in told(page, "#module-tree").values() if "FLOP/s" in row}
    (rate,) = rates
    assert rate == (
        "calibrated: operations counted by FlopCounterMode, 1 step, over the time that the torch "
        "layer saw, told at the speed of the clean steps"
    )
    sizes = {row["resident set"] for row in told(page, "#memory-table").values()}
    assert sizes == {"raw: as profstack saw it, with what watching cost"}


def test_memory_at_the_peak_is_of_the_torch_layer(opened: Opened) -> None:
    page = opened(full(), at="modules")
    page.evaluate(
        "(() => { const area = document.querySelector('#module-picture select');"
        " area.value = [...area.options].find(one => /at the peak/.test(one.textContent)).value;"
        " area.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )
    page.settle()
    titles = page.evaluate(
        "[...document.querySelectorAll('#module-picture aside .figure')].map(one => one.title)"
    )
    assert titles[0].endswith("raw: as the torch layer saw it, with what watching cost")


@pytest.mark.parametrize("report", [full, on_a_device, bench])
def test_no_figure_of_a_card_or_a_source_line_is_silent(
    opened: Opened, report: Callable[[], dict[str, Any]]
) -> None:
    page = opened(report())
    own = ".card-value:not(:has(a))"
    assert silent(page, own) == []
    assert silent(page, "#source-listing td.number:not(.heat)") == []
    assert silent(page, "#benchmark-more dd:has(.figure)") == []
    assert silent(page, "#tops .top-time, #step-bar .parts b, .gain-value, .inside li") == []
    assert texts(page, own)


def test_a_share_that_is_not_known_says_why_it_is_not(opened: Opened) -> None:
    report = full()
    for function in report["tables"]["functions"]:
        function["calibrated_s"] = None
    report["columns_reason"]["functions.calibrated_s"] = "the slice had fewer than 3 steps"
    page = opened(report, at="overview")
    titles = page.evaluate(
        "[...document.querySelectorAll('#tops .top-share .none')].map(one => one.title)"
    )
    assert titles
    why = "the slice had fewer than 3 steps"
    assert set(titles) == {
        f"these times are not calibrated, and so no parts of a clean step: {why}"
    }
