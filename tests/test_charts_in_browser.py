"""What all charts share: inflated late and once, no network, names as text, both themes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from data_bench_report import bench
from data_full_report import full
from data_report import HOSTILE, build
from page_browser import EXECUTABLE, Browser, choose, count, pages, shared, texts
from page_charts import (
    charted,
    drag,
    drawings,
    layout,
    moved,
    point_at,
    redrawn,
    trace,
    traces,
    words,
)

from profstack.report import html
from profstack.report import html as report_html

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(EXECUTABLE is None, reason="there is no Chromium on this machine"),
]

Opened = Callable[..., Browser]
# A name that the library's own markup would take for a link, and one that is written as an entity.
LINK = '<a href="javascript:window.broken=1">x</a><b>bold</b>&lt;i&gt;<br>'
STARTED = "window.Plotly !== undefined"


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Opens the page of a report; at the end nothing may be broken."""
    with pages(tmp_path) as open_page:
        yield open_page


def go(page: Browser, address: str) -> None:
    """Follow an address of the page."""
    page.evaluate(f"void (location.hash = {address!r})")
    page.settle()


def test_the_library_starts_with_the_first_chart_in_sight_and_once(opened: Opened) -> None:
    page = opened(full(), "operators", fresh=True)
    assert not page.evaluate(STARTED)
    go(page, "#glossary")
    assert not page.evaluate(STARTED)
    page.resize(1400, 260)
    go(page, "#flops")
    assert count(page, "#roofline-chart .plot, #memory-chart .plot") == 0
    go(page, "#method")
    assert count(page, "#timeline .plot") == 1
    assert not page.evaluate(STARTED), "the time line is below what is in sight"
    charted(page, "#timeline")
    page.evaluate("void (window.Plotly.is = 'the first')")
    scripts = count(page, "script")
    go(page, "#memory")
    charted(page, "#memory-chart")
    assert page.evaluate("window.Plotly.is") == "the first"
    assert count(page, "script") == scripts
    page.resize(1400, 900)


def test_every_chart_is_drawn_in_a_narrow_window_in_the_dark(opened: Opened) -> None:
    page = opened(bench(), width=400, height=800, dark=True)
    boxes = page.evaluate(
        "[...document.querySelectorAll('.plot')].map((one, at) => one.parentElement.id ||"
        " (one.parentElement.id = 'numbered-' + at))"
    )
    assert len(boxes) > 10
    for box in boxes:
        charted(page, f"#{box}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, box
        width = f"document.querySelector('#{box} svg.main-svg').getBoundingClientRect().width"
        assert 200 <= page.evaluate(width) <= 400, box
    assert count(page, ".plot:not(.js-plotly-plot)") == 0
    assert "right 12.9 ms" in words(page, "#mistakes-bars")


def test_each_step_is_a_mark_and_flags_show(opened: Opened) -> None:
    report = build()
    page = opened(report, "benchmark")
    charted(page, "#steps-chart")
    marks = traces(page, "#steps-chart")
    walls = {step["index"]: step["wall_s"] for step in report["tables"]["steps"]}
    drawn = {x: y for one in marks for x, y in zip(one["x"], one["y"], strict=True)}
    assert drawn.keys() == walls.keys()
    assert drawn == pytest.approx(walls, rel=1e-3)
    symbols = [symbol for one in marks for symbol in one["marker"]["symbol"]]
    assert symbols.count("diamond") == 2
    assert symbols.count("circle-open") >= 1
    kinds = {entry["kind"] for entry in report["slices"]}
    assert {one["name"] for one in marks} == kinds - {"startup"}
    bands = [one for one in layout(page, "#steps-chart")["shapes"] if one["type"] == "rect"]
    stepped = [entry for entry in report["slices"] if entry["steps"]]
    assert len(bands) == len(stepped)
    assert layout(page, "#steps-chart")["yaxis"]["type"] == "log"
    label = "[...document.querySelectorAll('#steps-chart .annotation-text tspan')]"
    assert texts(page, "#steps-chart .annotation-text tspan") == ["clean median", "4.01 ms"]
    fills = page.evaluate(label + ".map(one => getComputedStyle(one).fill)")
    assert set(fills) == {page.evaluate("getComputedStyle(document.body).color")}
    before = drawings(page, "#steps-chart")
    choose(page, "#steps-tools", "linear")
    redrawn(page, "#steps-chart", before)
    assert layout(page, "#steps-chart")["yaxis"]["type"] == "linear"
    said = point_at(page, "#steps-chart", "warmup", 0)
    for told in ("step 0", "wall", "raw host time, under warmup"):
        assert told in said
    assert "clean host time" in point_at(page, "#steps-chart", "clean", 3)


def test_the_legend_hides_a_kind_of_slice(opened: Opened) -> None:
    page = opened(build(), "benchmark")
    charted(page, "#steps-chart")
    drawn = "document.querySelectorAll('#steps-chart .scatterlayer .point').length"
    before = page.evaluate(drawn)
    for expected in (before - 6, before):
        already = drawings(page, "#steps-chart")
        choose(page, "#steps-legend", "torch")
        redrawn(page, "#steps-chart", already)
        assert page.evaluate(drawn) == expected


def test_every_slice_is_on_the_time_line(opened: Opened) -> None:
    report = build()
    page = opened(report, "method")
    charted(page, "#timeline")
    slices = trace(page, "#timeline", "slices")
    assert slices["base"] == [entry["started_s"] for entry in report["slices"]]
    assert slices["x"] == [entry["wall_s"] for entry in report["slices"]]
    assert len(trace(page, "#timeline", "pauses")["x"]) == 2
    assert {"clean", "torch", "cprofile", "watch"} <= set(words(page, "#timeline"))
    assert f"{len(report['slices'])} slices over" in texts(page, "#timeline .chart-says")[0]
    assert "median step" in point_at(page, "#timeline", "slices", 2)
    before = drawings(page, "#timeline")
    choose(page, "#timeline-tools", "equal widths")
    redrawn(page, "#timeline", before)
    assert set(trace(page, "#timeline", "slices")["x"]) == {0.9}


def test_memory_is_drawn_and_says_what_it_has_not(opened: Opened) -> None:
    report = build()
    page = opened(report, "memory")
    charted(page, "#memory-chart")
    (line,) = traces(page, "#memory-chart")
    rows = report["tables"]["memory"]
    assert line["y"] == [row["rss_bytes"] for row in rows]
    assert line["x"] == pytest.approx([row["t_s"] for row in rows], abs=1e-3)
    titles = page.evaluate(
        "[...document.querySelectorAll('#memory-legend .none')].map(one => one.title)"
    )
    assert titles == ["this machine has no accelerator"] * 2
    assert all(one.endswith("MiB") for one in layout(page, "#memory-chart")["yaxis"]["ticktext"])
    assert "resident set" in point_at(page, "#memory-chart", "resident set", 20)


def test_memory_of_host_and_device_have_a_scale_each(opened: Opened) -> None:
    report = build()
    for row in report["tables"]["memory"]:
        row |= {"device_allocated_bytes": 40 * 2**30, "device_reserved_bytes": 41 * 2**30}
    report["columns_reason"].pop("memory.device_allocated_bytes", None)
    page = opened(report, "memory")
    charted(page, "#memory-chart")
    names = [(one["name"], one["yaxis"]) for one in traces(page, "#memory-chart")]
    assert names == [("resident set", "y"), ("device allocated", "y2"), ("device reserved", "y2")]
    assert layout(page, "#memory-chart")["yaxis2"]["ticktext"][0].endswith("GiB")


def test_light_turns_to_dark_in_the_charts_too(opened: Opened) -> None:
    page = opened(build(), "benchmark")
    charted(page, "#steps-chart")
    colour = (
        "getComputedStyle(document.querySelector('#steps-chart .xtick text')).fill + ' ' +"
        " document.querySelector('#steps-chart .js-plotly-plot').data[1].marker.color"
    )
    soft = "getComputedStyle(document.querySelector('.lead')).color"
    light, before = page.evaluate(colour), drawings(page, "#steps-chart")
    assert light.startswith(page.evaluate(soft))
    page.click("#theme")
    redrawn(page, "#steps-chart", before)
    dark = page.evaluate(colour)
    assert dark.startswith(page.evaluate(soft))
    assert light.split()[-1] != dark.split()[-1]
    page.evaluate("localStorage.clear()")


def test_charts_take_the_width_they_have(opened: Opened) -> None:
    page = opened(build(), "benchmark")
    charted(page, "#steps-chart")
    width = "document.querySelector('#steps-chart svg.main-svg').getBoundingClientRect().width"
    wide, before = page.evaluate(width), drawings(page, "#steps-chart")
    page.resize(400, 800)
    redrawn(page, "#steps-chart", before)
    assert page.evaluate(width) < 400 < wide
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    ticks = page.evaluate(
        "[...document.querySelectorAll('#steps-chart .xtick text')]"
        ".map(one => one.getBoundingClientRect()).map(one => [one.left, one.right])"
    )
    ticks.sort()
    assert len(ticks) >= 3
    assert all(one[1] < other[0] for one, other in itertools.pairwise(ticks))


def test_a_zoom_finds_round_values_for_what_is_in_sight(opened: Opened) -> None:
    page = opened(build(), "benchmark")
    charted(page, "#steps-chart")
    whole = layout(page, "#steps-chart")["xaxis"]
    drag(page, "#steps-chart", (0.2, 0.3))
    near = moved(page, "#steps-chart", whole)
    assert near["range"][1] - near["range"][0] < 0.2 * (whole["range"][1] - whole["range"][0])
    inside = [one for one in near["tickvals"] if near["range"][0] <= one <= near["range"][1]]
    assert len(inside) >= 2
    assert near["tickvals"] != whole["tickvals"]
    before = drawings(page, "#steps-chart")
    page.click("#theme")
    redrawn(page, "#steps-chart", before)
    kept = layout(page, "#steps-chart")["xaxis"]
    assert kept["range"] == pytest.approx(near["range"]), "a redraw keeps the zoom"
    assert kept["tickvals"] == near["tickvals"]
    page.click("#steps-chart .modebar-btn[aria-label*='Reset']")
    assert moved(page, "#steps-chart", kept)["tickvals"] == whole["tickvals"]
    page.evaluate("localStorage.clear()")


def test_a_chart_is_a_picture_with_a_sentence_and_its_tools_are_buttons(opened: Opened) -> None:
    page = opened(bench(), "benchmark")
    for box in ("#samples-chart", "#steps-chart", "#compare-bars"):
        charted(page, box)
        picture = page.evaluate(
            f"document.querySelector({box!r} + ' svg[role=img]').getAttribute('aria-label')"
        )
        sentence = texts(page, f"{box} .plot + p")[0]
        assert len(sentence) > 30
        assert sentence in picture
        tools = page.evaluate(
            f"[...document.querySelectorAll({box!r} + ' .modebar button')].map(one =>"
            " one.getAttribute('aria-label'))"
        )
        assert len(tools) == 4
        assert any("Download" in one for one in tools)
        assert count(page, f"{box} .modebar-btn--logo") == 0
    assert "logo" not in page.evaluate("document.querySelector('.plot').innerHTML").lower()


def test_a_chart_is_saved_as_a_picture_without_a_network(opened: Opened, tmp_path: Path) -> None:
    page = opened(build(), "benchmark")
    charted(page, "#steps-chart")
    page.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.click("#steps-chart .modebar-btn[aria-label*='Download']")
    file, deadline = tmp_path / "steps.png", time.monotonic() + 15
    while not file.exists():
        assert time.monotonic() < deadline, list(tmp_path.iterdir())
        time.sleep(0.02)
    assert file.read_bytes().startswith(b"\x89PNG")


def hostile_in_charts(name: str) -> dict[str, Any]:
    """A report in which whatever a chart shows of a program has this name."""
    report = bench()
    mark = report["benchmark"]
    for rows, key in (
        (mark["throughput"], "dtype"),
        (mark["throughput_limits"], "dtype"),
        (mark["compare"], "variant"),
        (mark["mistakes"], "title"),
        (mark["ablation"], "variant"),
        (report["roofline"]["points"], "name"),
        (report["roofline"]["peaks"]["flop_per_s"], "dtype"),
        (report["slices"], "kind"),
    ):
        for row in rows:
            row[key] = name + row[key]
    return report


@pytest.mark.parametrize("name", [HOSTILE + LINK, "<b>&amp;"])
def test_no_name_becomes_markup_in_a_chart(opened: Opened, name: str) -> None:
    page = opened(hostile_in_charts(name))
    boxes = ("steps-chart", "rate-chart", "compare-bars", "mistakes-bars", "timeline")
    for box in (*boxes, "roofline-chart"):
        charted(page, f"#{box}")
        for element in ("a", "image", "img", "tspan[style*='bold']", "foreignObject"):
            assert count(page, f"#{box} svg {element}") == 0, (box, element)
    assert name in point_at(page, "#roofline-chart", "points", 1)
    assert page.evaluate("window.broken") is None
    if " " not in name and len(name) < 20:
        assert f"{name}eager" in words(page, "#compare-bars"), "letter by letter"


def test_without_the_library_the_page_stands_and_says_what_is_missing(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_html, "library", lambda: None)
    page = opened(bench(), "benchmark", width=400, height=800)
    for box in ("#samples-chart", "#rate-chart", "#mistakes-bars"):
        assert "need the package plotly" in texts(page, box)[0]
    assert "most often between" in texts(page, "#samples-chart")[0], "the sentence stands"
    assert count(page, "#throughput-table tbody tr") == 19
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page = opened(full(), "memory")
    assert count(page, "#memory-table tbody tr") > 10
    assert not page.evaluate(STARTED)


def test_another_script_in_the_place_of_the_library_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = report_html.library()
    assert genuine is not None
    other = report_html.Library(
        report_html.packed_text("window.broken = 1; window.Plotly = {};"), genuine.digest, ""
    )
    monkeypatch.setattr(report_html, "library", lambda: other)
    path = tmp_path / "report.html"
    html.write(build(), path)
    page = shared()
    page.open(path, at="benchmark")
    page.settle()
    assert page.evaluate("window.broken") is None
    assert "did not start" in texts(page, "#samples-chart .broken")[0]
    assert any("Content Security Policy" in one for one in page.errors())
