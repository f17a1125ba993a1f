"""The view of what Nsight Systems saw, in a browser: what it says, and to whom."""

from __future__ import annotations

import base64
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from data_nsys_recording import MS, US, alone, rows, with_torch
from data_report import HOSTILE, build
from page_browser import EXECUTABLE, Browser, choose, column, count, pages, texts

from profstack.report.files import complete_report

AXE = Path(sys.prefix) / "axe" / "axe_playwright_python" / "axe.min.js"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(EXECUTABLE is None, reason="there is no Chromium on this machine"),
]
Opened = Callable[..., Browser]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Opens the page of a report; at the end nothing may be broken."""
    with pages(tmp_path) as open_page:
        yield open_page


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run with an import beside it."""
    folder = tmp_path_factory.mktemp("nsys") / "r"
    with_torch(folder)
    return complete_report(folder)


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """An import and nothing else."""
    folder = tmp_path_factory.mktemp("nsys") / "r"
    alone(folder)
    return complete_report(folder)


def heads(page: Browser, box: str) -> list[str]:
    """The headings of a table."""
    return [text.strip("▲▼") for text in texts(page, f"{box} th")]


def cells(page: Browser, box: str, heading: str) -> list[str]:
    """The texts of the column under a heading."""
    return column(page, box, 1 + heads(page, box).index(heading))


def first(page: Browser, box: str) -> list[str]:
    """The names of the rows, without what folds them and their addresses."""
    return [text.strip("▾▸") for text in column(page, box, 1)]


def test_it_says_what_was_captured_and_what_is_lacking(
    opened: Opened, both: dict[str, Any]
) -> None:
    page = opened(both, "nsys")
    lead = texts(page, "#nsys-lead")[0]
    assert "from out.sqlite of nsys 2024.6.2.225 (export schema 3.16.3)" in lead
    assert "12 steps (20 to 31) of a capture of 190 ms. Figures are per step" in lead
    assert texts(page, "#nsys-said li") == [
        "2 other processes are in the file and left out: all figures are of process 4242.",
        "12 pieces of device work without the launching call in the file: in no range.",
        "Not in the file: calls of cuDNN or cuBLAS.",
    ]
    assert texts(page, "#nsys-cards .card-value") == ["14.2 ms", "46", "3.40 ms", "44.8 MiB"]
    assert "1.42 × the clean median" in texts(page, "#nsys-cards")[0]


def test_modules_stand_side_by_side(opened: Opened, both: dict[str, Any]) -> None:
    page = opened(both, "nsys")
    box = "#nsys-module-table"
    assert "3 modules of 8 differ" in texts(page, "#nsys-modules-lead")[0]
    assert dict(zip(first(page, box), cells(page, box, "disagreement"), strict=True)) == {
        "Net": "–",
        "Net.stem": "–",
        "Net.stem.conv": "–",
        "Net.blocks": "–",
        "Net.blocks.0": "–",
        "Net.blocks.1": "host time 1.40 ms against 2.90 ms, device time 1.40 ms against 1.10 ms",
        "Net.head": "calls 2 against 1",
        "Net.dropout": "seen by the torch layer alone",
    }
    assert cells(page, box, "host (nsys)")[:2] == ["4.50 ms", "900 µs"]
    assert cells(page, box, "host (torch)")[:2] == ["4.90 ms", "1.00 ms"]
    reason = page.evaluate(
        "[...document.querySelectorAll('#nsys-module-table tbody tr')].at(-1)"
        ".querySelector('td:nth-child(3) .none').title"
    )
    assert reason == "Nsight Systems saw no range of it"


def test_ranges_lie_inside_one_another(opened: Opened, both: dict[str, Any]) -> None:
    page = opened(both, "nsys")
    box = "#nsys-range-tree"
    # Modules by their path from the module around them on; of others the kind is told.
    assert first(page, box) == [
        *("step", "backward", "Net.blocks.0", "forward", "Net", "blocks", "0", "1"),
        *("stem", "conv", "head", "optimizer Adam", "augment region"),
    ]
    assert cells(page, box, "device time")[:2] == ["11.2 ms", "6.10 ms"]
    assert cells(page, box, "of it by other threads")[:2] == ["0 s", "6.10 ms"]
    choose(page, box, "fold all")
    assert first(page, box) == ["step"]
    page.type(f"{box} input", "conv")
    assert first(page, box) == ["step", "forward", "Net", "stem", "conv"]


def test_the_tables_of_the_device_and_of_the_host(opened: Opened, both: dict[str, Any]) -> None:
    page = opened(both, "nsys", fresh=True)
    kernels = first(page, "#nsys-kernel-table")
    assert kernels[0] == "sm90_xmma_dgrad_implicit_gemm_bf16_nhwc"
    assert cells(page, "#nsys-kernel-table", "delay after launch")[0] == "140 µs"
    # All kernels ran on one device, and none in a graph: these columns would say nothing.
    assert not {"device", "in a graph"} & set(heads(page, "#nsys-kernel-table"))
    assert "stream" in heads(page, "#nsys-kernel-table")
    assert first(page, "#nsys-copy-table")[0] == "host to device"
    assert cells(page, "#nsys-copy-table", "bytes per second")[0] == "11.6 GiB/s"
    assert first(page, "#nsys-gap-table") == ["host late", "copy", "data wait"]
    assert cells(page, "#nsys-api-table", "in range")[:2] == ["–", "step"]
    assert "poll (libc.so.6)" in texts(page, "#nsys-backtrace-table td.frames")[0]
    assert cells(page, "#nsys-sample-table", "share") == ["63 %", "31 %", "6.3 %"]
    assert count(page, "#nsys-step-table tbody tr") == 12
    page.look_at("#nsys-memory-chart")
    page.settle(300)
    assert count(page, "#nsys-memory-chart svg.main-svg") > 0
    assert "device: at most 448 MiB" in texts(page, "#nsys-memory")[0]


def test_a_number_says_where_it_comes_from(opened: Opened, both: dict[str, Any]) -> None:
    page = opened(both, "nsys")
    title = page.evaluate(
        "document.querySelector('#nsys-module-table tbody td:nth-child(3)').title"
    )
    assert title == "0.0045 s\nraw: as Nsight Systems saw it, with what watching cost"
    said = page.evaluate(
        "[...document.querySelectorAll('.view[data-view=nsys] tbody td.number')]"
        ".filter((one) => !one.querySelector('.none') && !one.title).length"
    )
    assert said == 0


def test_rows_have_addresses(opened: Opened, both: dict[str, Any]) -> None:
    for key, name in (
        ("Net.head", "Net.head"),
        ("range-13", "optimizer Adam"),
        ("copy%20NVIDIA%20H100%20(0)", "copy"),
        ("cudnn%20cudnnConvolutionForward%20module%20Net.stem.conv", "cudnnConvolutionForward"),
    ):
        page = opened(both, f"nsys/{key}", fresh=True)
        assert texts(page, "tr.marked")[0].strip("▾▸").startswith(name), key
        assert count(page, "#note:not([hidden])") == 0
    hrefs = page.evaluate(
        "[...document.querySelectorAll('.view[data-view=nsys] a.anchor')].map(one => one.href)"
    )
    assert len(hrefs) == len(set(hrefs)) > 40


def test_modules_lead_here_and_back(opened: Opened, both: dict[str, Any]) -> None:
    page = opened(both, "modules", fresh=True)
    ways = page.evaluate(
        "[...document.querySelectorAll('#module-tree a[data-text=nsys]')]"
        ".map(one => one.getAttribute('href'))"
    )
    assert "#nsys?module=Net.stem" in ways
    page.evaluate("location.hash = '#nsys?module=Net.stem'")
    page.settle()
    assert first(page, "#nsys-module-table") == ["Net.stem", "Net.stem.conv"]
    assert set(cells(page, "#nsys-kernel-table", "in range")) == {"Net.stem.conv"}
    assert first(page, "#nsys-range-tree")[-2:] == ["stem", "conv"]
    assert cells(page, "#nsys-api-table", "in range") == ["Net.stem.conv", "Net.stem.conv"]
    way = page.evaluate(
        "document.querySelector('#nsys-module-table td a.way').getAttribute('href')"
    )
    assert way == "#modules/Net.stem"


def test_a_capture_without_steps_says_so(opened: Opened, tmp_path: Path) -> None:
    frames = {name: [] for name in ("nsys_steps", "nsys_backtraces", "nsys_memory", "nsys_samples")}
    lacking = {"memory": "nsys was run without --cuda-memory-usage=true"}
    told = {"steps": 0, "first_step": None, "last_step": None, "per": "capture"}
    page = opened(alone(tmp_path / "r", frames, missing=lacking, **told), "nsys")
    assert "the whole capture of 190 ms" in texts(page, "#nsys-lead")[0]
    assert "cannot be held against" in texts(page, "#nsys-modules-lead")[0]
    # What the list above has told is not said again where it would stand.
    assert "Not in the file: nsys was run without --cuda-memory-usage=true." in texts(
        page, "#nsys-said li"
    )
    assert count(page, "#nsys-memory") == 0
    assert "--cudabacktrace=true" in texts(page, "#nsys-backtraces")[0]
    assert texts(page, "#nsys-samples p") == ["The CPU was not sampled."]
    assert count(page, "#nsys-cards .card") == 0


def test_an_import_alone_has_its_view_and_no_others(
    opened: Opened, imported: dict[str, Any]
) -> None:
    page = opened(imported, "", fresh=True)
    assert texts(page, "#views a") == [
        *("Overview", "Nsight Systems", "Environment", "Glossary", "All on one page")
    ]
    assert texts(page, "#script") == ["out.sqlite"]
    assert texts(page, "#status") == ["completeimported"]
    assert "no clean time, and no verdict" in texts(page, "#verdict")[0]
    assert texts(page, "#benchmark-cards .card-value") == ["12 steps"]
    page.evaluate("location.hash = '#nsys'")
    page.settle()
    assert "recorded nothing to hold them against" in texts(page, "#nsys-modules-lead")[0]
    assert "disagreement" not in heads(page, "#nsys-module-table")


def test_without_an_import_the_ranges_tell_how_to_get_one(opened: Opened) -> None:
    report = build()
    report["tables"]["ranges"] = [{"kind": "step", "name": "step 1", "calls": 1.0, "emit_s": US}]
    page = opened(report, "ranges", fresh=True)
    said = texts(page, "#nsys-hint")[0]
    assert "profstack run --nsys train.py" in said
    assert "profstack import FILE --into DIR" in said
    assert "Nsight Systems" not in texts(page, "#views a")
    assert count(page, "#view-nsys") == 0


@pytest.mark.parametrize("missing", [{}, {"work": "no device work"}, {"calls": "no CUDA calls"}])
def test_the_ranges_promise_device_time_where_there_is_some(
    opened: Opened, tmp_path: Path, missing: dict[str, str]
) -> None:
    with_torch(tmp_path / "r", missing=missing)
    report = complete_report(tmp_path / "r")
    report["tables"]["ranges"] = [{"kind": "step", "name": "step 1", "calls": 1.0, "emit_s": US}]
    said = texts(opened(report, "ranges", fresh=True), "#nsys-hint")[0]
    assert said.startswith("What Nsight Systems saw of them")
    assert ("with the device time of each" in said) is (not missing)
    assert ("the capture tells nothing" in said) is bool(missing)


def test_hostile_names_are_text(opened: Opened, tmp_path: Path) -> None:
    frames = rows()
    frames["nsys_ranges"][4]["name"] = HOSTILE
    frames["nsys_ranges"][1]["name"] = HOSTILE
    frames["nsys_kernels"][0] |= {"name": HOSTILE, "range_name": HOSTILE, "device": HOSTILE}
    frames["nsys_copies"][0] |= {"direction": HOSTILE, "from_memory": HOSTILE}
    frames["nsys_api"][0]["name"] = HOSTILE
    frames["nsys_gaps"][0] |= {"after": HOSTILE, "cause": HOSTILE}
    frames["nsys_backtraces"][0]["stack"] = json.dumps([[HOSTILE, HOSTILE]])
    frames["nsys_samples"][0]["symbol"] = HOSTILE
    for row in frames["nsys_memory"][::2]:
        row["kind"] = HOSTILE
    notes = [["note", HOSTILE]]
    report = with_torch(
        tmp_path / "r", frames, file=HOSTILE, notes=notes, missing={"work": HOSTILE}
    )
    page = opened(report, "nsys")
    page.look_at("#nsys-memory-chart")
    page.settle(300)
    assert page.evaluate("window.broken") is None
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert HOSTILE in texts(page, "#nsys-kernel-table")[0]
    assert HOSTILE in texts(page, "#nsys-range-tree")[0]


def test_many_rows_are_cut_and_said(opened: Opened, tmp_path: Path) -> None:
    frames = rows()
    for name in ("nsys_ranges", "nsys_kernels", "nsys_api"):
        pattern = frames[name][0]
        frames[name] = [dict(pattern) for _ in range(5_000)]
    for number, row in enumerate(frames["nsys_ranges"]):
        row |= {"node": number + 1, "parent": number // 10 or None, "name": f"range {number}"}
    for number, row in enumerate(frames["nsys_kernels"]):
        row |= {"name": f"kernel {number}", "device_s": number * MS}
    page = opened(alone(tmp_path / "r", frames), "nsys")
    assert count(page, "#nsys-kernel-table tbody tr") == 20
    assert count(page, "#nsys-range-tree tbody tr") <= 200
    assert first(page, "#nsys-kernel-table")[0] == "kernel 4999"
    for box in ("#nsys-kernel-table", "#nsys-range-tree", "#nsys-api-table"):
        said = texts(page, f"{box} .left-out")[0]
        assert re.match(r"2,?000 of 5,?000 rows are on this page", said), said


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not there: make test installs it")
@pytest.mark.parametrize(
    ("width", "dark"), [(1400, False), (400, True), (1400, True), (400, False)]
)
def test_axe_finds_nothing(opened: Opened, both: dict[str, Any], width: int, *, dark: bool) -> None:
    page = opened(both, "nsys", fresh=True, width=width, dark=dark)
    page.evaluate("for (const one of document.querySelectorAll('.view details')) one.open = true")
    page.evaluate(AXE.read_text(encoding="utf-8") + "; 0")
    found = page.evaluate(
        "axe.run(document, {resultTypes: ['violations'], selectors: false, preload: false})"
        ".then((found) => found.violations.filter((one) => one.id !== 'skip-link')"
        ".map((one) => [one.id, one.nodes.map((node) => node.html.slice(0, 200)).slice(0, 3)]))"
    )
    assert found == []


@pytest.mark.parametrize("width", [400, 800, 1400])
def test_nothing_is_wider_than_the_window(opened: Opened, both: dict[str, Any], width: int) -> None:
    page = opened(both, "nsys", fresh=True, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_it_can_be_printed(opened: Opened, both: dict[str, Any]) -> None:
    page = opened(both, "nsys", fresh=True)
    paper = base64.b64decode(page.call("Page.printToPDF", printBackground=True)["data"])
    assert paper.startswith(b"%PDF")
    sheets = len(re.findall(rb"/Type\s*/Page\b", paper))
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", paper, re.DOTALL)
    drawn = sum(len(zlib.decompressobj().decompress(one)) for one in streams if one[:1] == b"x")
    assert sheets >= 2
    assert drawn > 10_000
