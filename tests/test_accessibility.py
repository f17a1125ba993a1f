"""Whether everybody can use the page: axe-core's rules, keys alone, what is read out, calm."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from data_bench_report import bench
from data_whole_report import VIEWS, whole
from page_browser import EXECUTABLE, Browser, count, pages, shared, texts

from profstack.report import html

# What `make test` installs beside the environment: a package that only carries axe-core.
AXE = Path(sys.prefix) / "axe" / "axe_playwright_python" / "axe.min.js"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(EXECUTABLE is None, reason="there is no Chromium on this machine"),
]

Opened = Callable[..., Browser]

# Rules that find what is none: axe takes ways of the navigation that are scrolled out of sight in
# a narrow window for ways to skip, whose targets it looks for on the page.
_EXCEPTIONS = {"skip-link"}
# Whatever its gravity: the page has nothing left that axe-core knows of.
_RUN = """
axe.run(document, {resultTypes: ['violations'], selectors: false, preload: false})
  .then((found) => found.violations.filter((one) => !EXCEPTIONS.includes(one.id))
  .map((one) => [one.id, one.impact, one.nodes.map((node) => node.html.slice(0, 200)).slice(0, 3)]))
"""


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Opens the page of a report; at the end nothing may be broken."""
    with pages(tmp_path) as open_page:
        yield open_page


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page of a run and that of a benchmark."""
    folder = tmp_path_factory.mktemp("pages")
    html.write(whole(), folder / "run.html")
    html.write(bench(), folder / "bench.html")
    return folder


def go(page: Browser, view: str) -> None:
    """Open a view with all that can be unfolded in it."""
    page.evaluate(f"location.hash = '#{view}'")
    page.settle()
    page.evaluate("for (const one of document.querySelectorAll('.view details')) one.open = true")


# All views in light and in dark; what depends on both width and light is in these.
_BOTH = ("overview", "modules", "source", "method")


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not there: make test installs it")
@pytest.mark.parametrize(
    ("width", "dark", "views"),
    [(1400, False, VIEWS), (400, True, VIEWS), (1400, True, _BOTH), (400, False, _BOTH)],
    ids=["wide-light", "narrow-dark", "wide-dark", "narrow-light"],
)
def test_axe_finds_nothing(written: Path, width: int, dark: bool, views: tuple[str, ...]) -> None:
    page, run = shared(), _RUN.replace("EXCEPTIONS", str(sorted(_EXCEPTIONS)))
    benchmark = ("benchmark", "flops") if views is VIEWS else ()
    for name, opened in (("run.html", views), ("bench.html", benchmark)):
        page.open(written / name, width=width, dark=dark)
        page.evaluate(AXE.read_text(encoding="utf-8") + "; 0")
        for view in opened:
            go(page, view)
            assert page.evaluate(run) == [], (name, view)
            # It walks through what is hidden as well: the next view is faster without this one.
            shown = f"document.querySelectorAll('#view-{view} > section')"
            page.evaluate(f"for (const one of {shown}) one.remove()")
    assert page.errors() == []


_NAME = """
(one.getAttribute('aria-label') || (one.labels || [])[0]?.textContent || one.textContent).trim()
"""
# The element that has the focus: its tag, its words, and what is wrong with how it is seen.
_FOCUSED = """
(() => {
  const one = document.activeElement, place = one.getBoundingClientRect();
  const style = getComputedStyle(one), wrong = [];
  if (one === document.body) return null;
  if (style.outlineStyle === 'none' || style.outlineWidth === '0px') wrong.push('no outline');
  let opacity = 1;
  for (let box = one; box; box = box.parentElement) opacity *= getComputedStyle(box).opacity;
  if (opacity < 0.9 || place.width < 1 || place.height < 1) wrong.push('not to be seen');
  const inside = (from, to, most) => Math.min(Math.max(from + Math.min(to, 200) / 2, 0), most - 1);
  const top = document.elementFromPoint(inside(place.left, place.width, innerWidth),
    inside(place.top, Math.min(place.height, 40), innerHeight));
  if (!top || !(one.contains(top) || top.contains(one))) wrong.push('covered');
  return [one.tagName, NAME, wrong];
})()
""".replace("NAME", _NAME)


# What can be pressed in a view and is on the page now; rows of trees have keys of their own.
_IN_VIEW = """
[...document.querySelectorAll('#view-VIEW :is(button, select, summary, input, a[href])')]
  .filter((one) => one.checkVisibility() && !one.closest('.tree tbody'))
"""
_NAMES = f"{_IN_VIEW}.map((one) => {_NAME})"


def tab(page: Browser, most: int = 250) -> list[Any]:
    """What the Tab key comes by, from where the focus is to the end of the page."""
    found: list[Any] = []
    for _ in range(most):
        for kind in ("rawKeyDown", "keyUp"):
            page.call(
                "Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9
            )
        focused = page.evaluate(_FOCUSED)
        if focused is None or (found and focused == found[0]):
            break
        found.append(focused)
    return found


@pytest.mark.parametrize("view", ["overview", "modules", "operators", "source"])
def test_the_tab_key_reaches_all_and_all_that_it_reaches_is_seen(opened: Opened, view: str) -> None:
    page = opened(whole(), at="")
    page.click(f"#views a[data-view={view}]")
    assert page.evaluate("document.activeElement.id") == f"title-{view}"
    reached = tab(page)
    assert [one for one in reached if one[2]] == []
    assert all(words for _, words, _ in reached), "each has a name"
    # All that can be pressed is on the way, but for rows of trees, which the arrows walk through.
    missed = set(page.evaluate(_NAMES.replace("VIEW", view))) - {words for _, words, _ in reached}
    assert missed == set()


def test_the_navigation_is_used_by_keys_alone(opened: Opened) -> None:
    page = opened(whole(), at="")
    page.evaluate("document.querySelector('#views a[data-view=operators]').focus()")
    page.key("Enter")
    assert texts(page, "#views [aria-current=page]") == ["Operators"]
    assert page.evaluate("document.activeElement.id") == "title-operators"
    # Sorting by a key keeps the focus on the column and says the order.
    page.evaluate(
        "[...document.querySelectorAll('#operator-table th button')]"
        ".find(one => one.textContent.startsWith('total')).focus()"
    )
    for order in ("descending", "ascending"):
        page.key("Enter")
        focused = "document.activeElement.closest('th').getAttribute('aria-sort')"
        assert page.evaluate(focused) == order
    # The skip link leads past the navigation.
    page.evaluate("document.querySelector('.skip').focus()")
    page.key("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_a_part_or_a_term_that_an_address_names_takes_the_focus(opened: Opened) -> None:
    page = opened(whole(), at="modules")
    page.click("#view-modules a[href='#term-calibrated']")
    assert page.evaluate("document.activeElement.id") == "term-calibrated"
    assert count(page, ".marked#term-calibrated") == 1
    page.evaluate("location.hash = '#steps'")
    page.settle()
    assert page.evaluate("document.activeElement.textContent") == "Steps"
    # Narrow windows have the navigation above the view: nothing stands behind it.
    page.resize(400, 800)
    page.evaluate("location.hash = '#throughput'")
    page.evaluate("location.hash = '#watch'")
    page.settle()
    below = (
        "document.querySelector('#watch').getBoundingClientRect().top"
        " >= document.querySelector('#views').getBoundingClientRect().bottom"
    )
    assert page.evaluate(below)


def test_of_a_tree_one_row_is_in_the_order_of_the_tab_key(opened: Opened) -> None:
    page = opened(whole(), at="modules")
    inside = "#module-tree tbody :is(a, button)[tabindex='0']"
    assert count(page, "#module-tree tbody tr[tabindex='0']") == 1
    assert count(page, f"{inside}:not(tr[tabindex='0'] *)") == 0
    page.evaluate("document.querySelector('#module-tree tbody tr').focus()")
    page.key("ArrowDown")
    assert page.evaluate("document.activeElement.querySelector('.name').textContent") == "features"
    assert texts(page, f"{inside}.name") == ["features"]


def test_pictures_are_told_in_a_sentence_and_not_by_reading_panels(opened: Opened) -> None:
    page = opened(whole(), at="modules")
    page.evaluate("document.querySelector('#module-picture .chart').focus()")
    page.key("ArrowDown")
    page.key("ArrowDown")
    assert texts(page, "#announced") == ["Digits, 2.56 ms, 65 % of what is drawn"]
    page.key("Enter")
    assert texts(page, "#announced") == ["Digits, 2.56 ms, 100 % of what is drawn"]
    # What the pointer passes over is not read out: only short texts are live.
    live = "[aria-live]:not([aria-live=off]), [role=status], [role=alert], output"
    page.evaluate("location.hash = '#python'")
    page.settle()
    assert all(len(text) < 120 for text in texts(page, live))
    assert count(page, "aside[aria-live], .tip[role=status]") == 0


def test_sorting_says_nothing_where_no_row_went(opened: Opened) -> None:
    page = opened(whole(), at="operators")
    page.evaluate(
        "window.said = 0; new MutationObserver(changes => { window.said += changes.length; })"
        ".observe(document.querySelector('#operator-table .count'), {childList: true})"
    )
    page.click("#operator-table th button", 1)
    assert page.evaluate("window.said") == 0
    page.type("#operator-table input[type=search]", "addmm")
    assert page.evaluate("window.said") > 0


def test_headings_go_down_one_level_at_a_time(opened: Opened) -> None:
    page = opened(whole(), at="")
    for view in VIEWS:
        go(page, view)
        levels = page.evaluate(
            "[...document.querySelectorAll('h1, .view:not([hidden]) :is(h2, h3, h4, h5, h6)')]"
            ".filter(one => one.getClientRects().length).map(one => Number(one.tagName[1]))"
        )
        assert levels[:2] == [1, 2], view
        assert all(to <= at + 1 for at, to in pairwise(levels)), (view, levels)


def test_nothing_moves_by_itself(opened: Opened) -> None:
    page = opened(whole(), at="modules")
    reduced = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    page.call("Emulation.setEmulatedMedia", features=reduced)
    page.click("#module-picture .choice button", 2)
    assert page.evaluate("document.getAnimations().length") == 0
    moving = (
        "[...document.querySelectorAll('*')].filter(one => {"
        " const style = getComputedStyle(one); return style.animationName !== 'none'"
        " || (style.transitionDuration !== '0s' && style.transitionProperty !== 'none')"
        " || style.scrollBehavior === 'smooth'; }).map(one => one.outerHTML.slice(0, 120))"
    )
    assert page.evaluate(moving) == []
