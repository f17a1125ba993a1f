"""The page as a whole in a browser: every link of every view, every width, and paper."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from data_bench_report import bench
from data_whole_report import VIEWS, whole
from page_browser import EXECUTABLE, Browser, count, pages

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(EXECUTABLE is None, reason="there is no Chromium on this machine"),
]

Opened = Callable[..., Browser]
CRAWL = (Path(__file__).parent / "page_crawl.js").read_text(encoding="utf-8")


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Opens the page of a report; at the end nothing may be broken."""
    with pages(tmp_path) as open_page:
        yield open_page


def go(page: Browser, view: str) -> None:
    """Open a view with all that can be unfolded in it."""
    page.evaluate(f"location.hash = '#{view}'")
    page.settle()
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")


def test_every_link_of_every_view_leads_to_its_row(opened: Opened) -> None:
    page = opened(whole(), at="")
    found = page.evaluate(f"{CRAWL}(3)")
    assert found["failures"] == []
    views = {"modules/", "operators/", "kernels/", "python/", "source/", "flops/", "ranges/"}
    assert views <= found["kinds"].keys(), "links of these kinds were tried"
    assert {"operators?", "source?", "kernels?", "python?", "memory?"} <= found["kinds"].keys()
    assert found["followed"] > 70
    # Back leads where the reader was.
    page.evaluate("location.hash = '#modules/Digits.features.0'")
    page.settle()
    page.evaluate("location.hash = '#operators?module=Digits.features'")
    page.settle()
    page.evaluate("history.back()")
    page.settle()
    assert count(page, "#filter[hidden]") == 1
    assert page.evaluate("document.querySelector('tr.marked button.name').textContent") == "0"


# What reaches beyond the window without anything to scroll it with.
_BEYOND = """
[...document.querySelectorAll('.view:not([hidden]) *')].filter((one) => {
  const place = one.getBoundingClientRect();
  if (!place.width || place.right <= innerWidth + 1) return false;
  for (let box = one; box; box = box.parentElement)
    if (getComputedStyle(box).overflowX !== 'visible') return false;
  return true;
}).map((one) => one.tagName + ' ' + one.className + ' ' + one.textContent.slice(0, 60))
"""


@pytest.mark.parametrize("width", [1400, 400])
def test_nothing_reaches_beyond_the_window(opened: Opened, width: int) -> None:
    for report, views in ((whole(), VIEWS), (bench(), ("benchmark", "flops"))):
        page = opened(report, at="", width=width)
        for view in views:
            go(page, view)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, view
            assert page.evaluate(_BEYOND) == [], view


def test_long_names_are_cut_and_never_give_way_to_dots(opened: Opened) -> None:
    report = whole()
    long = "a_very_long_name_of_a_module_that_nobody_would_" * 3
    for record in report["tables"]["modules"]:
        record["path"] = record["path"].replace("classifier", long)
    page = opened(report, at="modules", width=400)
    inside = (
        "(() => { const one = [...document.querySelectorAll('#module-tree button.name')]"
        f".find(other => other.textContent === '{long}');"
        " const place = one.getBoundingClientRect(), cell = one.closest('td');"
        " return place.right <= cell.getBoundingClientRect().right && place.width > 60"
        " && one.scrollWidth > place.width; })()"
    )
    assert page.evaluate(inside)
    # The ways out of a module stand beside its name.
    page.resize(1400, 900)
    page.settle()
    covered = (
        "(() => { const one = document.querySelector('#module-tree button.name'); one.focus();"
        " one.scrollIntoView({block: 'center'}); const place = one.getBoundingClientRect();"
        " const ways = one.closest('td').querySelector('.row-ways').getBoundingClientRect();"
        " return [ways.width > 200, ways.left >= place.right]; })()"
    )
    assert page.evaluate(covered) == [True, True]


def _printed(page: Browser) -> tuple[int, list[str]]:
    """How many pages a print has, and its drawing orders, one text for each page or part of one."""
    data = base64.b64decode(page.call("Page.printToPDF")["data"])
    pieces = []
    for start in re.finditer(rb"(?<!end)stream\r?\n", data):
        end = data.index(b"endstream", start.end())
        try:
            pieces.append(zlib.decompress(data[start.end() : end]).decode("latin-1"))
        except zlib.error:
            continue
    return len(re.findall(rb"/Type\s*/Page\b", data)), pieces


def _colours_of_texts(orders: str) -> set[tuple[float, ...]]:
    """The colours in which texts are written, as red, green and blue from 0 to 1."""
    colour, kept, found = (0.0, 0.0, 0.0), [], set()
    for order in orders.splitlines():
        if order == "q":
            kept.append(colour)
        elif order == "Q" and kept:
            colour = kept.pop()
        elif setting := re.search(r"([\d.]+) ([\d.]+) ([\d.]+) rg$", order):
            red, green, blue = setting.groups()
            colour = (float(red), float(green), float(blue))
        elif order.endswith(("Tj", "TJ")):
            found.add(colour)
    return found


def test_the_head_of_a_table_stands_on_each_of_its_sheets(opened: Opened) -> None:
    report = whole()
    first = report["tables"]["operators"][0]
    report["tables"]["operators"] = [{**first, "name": f"aten::op{at}"} for at in range(200)]
    page = opened(report, at="operators")
    page.evaluate("document.querySelectorAll('#operator-table .more button')[1].click()")
    page.settle()

    def writings() -> list[int]:
        orders = (re.findall(r"T[jJ]$", one, re.MULTILINE) for one in _printed(page)[1])
        return [len(found) for found in orders if found]

    shown = writings()
    page.evaluate(
        "(() => { const style = document.createElement('style'); document.head.append(style);"
        " style.textContent = '@media print { thead * { visibility: hidden } }'; })()"
    )
    without = writings()
    sheets = [after < before for before, after in zip(shown, without, strict=True)]
    assert len(sheets) >= 4
    assert sum(sheets) >= len(sheets) - 1, "the last sheet may have what stands after the table"


def test_every_view_prints_dark_on_white(opened: Opened) -> None:
    page = opened(whole(), at="", dark=True)
    # The first chart brings the library of all of them.
    go(page, "modules")
    page.evaluate(
        "new Promise(done => { const look = () => document.querySelector('.plot[data-drawn]')"
        " ? done() : setTimeout(look, 20); look(); })"
    )
    for view in VIEWS:
        go(page, view)
        sheets, orders = _printed(page)
        assert sheets > 0, view
        written = [found for one in orders if (found := _colours_of_texts(one))]
        assert len(written) >= sheets, f"{view}: a sheet has no text"
        # The palest of the page's texts in light has 1.2, the darkest of those in dark 1.9.
        assert all(sum(colour) < 1.6 for found in written for colour in found), view
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
