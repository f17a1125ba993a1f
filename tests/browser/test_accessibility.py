"""Whether everybody can use the page: axe-core's rules, keys alone, what is read out, calm."""

import sys
from itertools import pairwise
from pathlib import Path

import pytest

from profstack.report import compare_page, html
from tests.support.bench_reports import bench
from tests.support.browser import count, shared, snippet, texts
from tests.support.comparisons import comparison
from tests.support.full_report import whole
from tests.support.nsys_recordings import with_torch
from tests.support.rank_reports import of_ranks

# What `make test` installs beside the environment: a package that only carries axe-core.
AXE = Path(sys.prefix) / "axe" / "axe_playwright_python" / "axe.min.js"
# Whatever its gravity: the page has nothing left that axe-core knows of. But axe takes ways of the
# navigation that are scrolled out of sight in a narrow window for ways to skip.
_RUN = """
axe.run(WHERE, {resultTypes: ['violations'], selectors: false, preload: false, ...OPTIONS}).then(
  (found) => found.violations.filter((one) => one.id !== 'skip-link').map((one) => [one.id,
    one.nodes.map((node) => node.html.slice(0, 200)).slice(0, 3)]))
"""
# What colours and the width of the window can change.
_LOOKS = "{runOnly: ['color-contrast', 'scrollable-region-focusable']}"
# All is unfolded; of the rows of a table some are enough.
_OPEN = """
for (const one of document.querySelectorAll('.view details')) one.open = true;
for (const one of document.querySelectorAll('.view tbody tr:nth-child(n + 5)')) one.remove()
"""
_LEVELS = """
[...document.querySelectorAll('h1, .view:not([hidden]) :is(h2, h3, h4, h5, h6)')].filter(one =>
  one.getClientRects().length).map(one => Number(one.tagName[1]))
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Pages of a run, a benchmark, an import beside a run, ranks, a comparison; views to look at.

    Of the run it is all views at once, of the others those that a run has not.
    """
    folder = tmp_path_factory.mktemp("pages")
    imported = with_torch(folder / "rec")
    ranks = of_ranks(40, missing=(3,))
    made = {"run": whole(), "bench": bench(), "import": imported, "ranks": ranks}
    for name, report in made.items():
        html.write(report, folder / f"{name}.html")
    compare_page.write(comparison(), folder / "compare.html")
    views = (["all"], ["benchmark", "flops"], ["nsys"], ["ranks"], ["overview", "modules"])
    names = (*made, "compare")
    return {folder / f"{name}.html": own for name, own in zip(names, views, strict=True)}


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not there: make test installs it")
@pytest.mark.parametrize(("width", "dark", "rules"), [(1400, False, "{}"), (400, True, _LOOKS)])
def test_axe_finds_nothing_and_headings_go_down_one_level_at_a_time(written, width, dark, rules):
    page = shared()
    for path, views in written.items():
        page.open(path, at=views[0], width=width, dark=dark)
        page.evaluate(AXE.read_text(encoding="utf-8") + "; 0")
        for view in views:
            page.go(view)
            levels = page.evaluate(_LEVELS)
            assert levels[:2] == [1, 2]
            assert all(to <= at + 1 for at, to in pairwise(levels)), (view, levels)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            page.evaluate(_OPEN)
            where = "document" if view in ("all", "overview") else f"'#view-{view}'"
            run = _RUN.replace("WHERE", where).replace("OPTIONS", rules)
            assert page.evaluate(run) == [], (path.name, view)
    assert page.errors() == []


_NAME = "(one.ariaLabel || (one.labels || [])[0]?.textContent || one.textContent).trim()"
# The element that has the focus: its tag, its words, and what is wrong with how it is seen.
_FOCUSED = snippet("focused").replace("NAME", _NAME)
# What can be pressed in a view and is on the page now; rows of trees have keys of their own.
_NAMES = f"""
[...document.querySelectorAll('#view-VIEW :is(button, select, summary, input, a[href])')]
  .filter((one) => one.checkVisibility() && !one.closest('.tree tbody')).map((one) => {_NAME})
"""


@pytest.mark.parametrize("view", ["overview", "modules", "source"])
def test_the_tab_key_reaches_all_and_all_that_it_reaches_is_seen(opened, view):
    page = opened(whole(), at="")
    page.click(f"#views a[data-view={view}]")
    assert page.evaluate("document.activeElement.id") == f"title-{view}"
    reached = []
    for _ in range(250):
        for kind in ("rawKeyDown", "keyUp"):
            tab = {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}
            page.call("Input.dispatchKeyEvent", type=kind, **tab)
        focused = page.evaluate(_FOCUSED)
        if focused is None or focused == (reached or [None])[0]:
            break
        reached.append(focused)
    assert [one for one in reached if one[2] or not one[1]] == [], "each is seen and has a name"
    # All that can be pressed is on the way, but for rows of trees, which the arrows walk through.
    assert set(page.evaluate(_NAMES.replace("VIEW", view))) <= {words for _, words, _ in reached}


_FOCUS = "document.activeElement."


def test_the_navigation_is_used_by_keys_alone(opened):
    page = opened(whole(), at="")
    page.evaluate("document.querySelector('#views a[data-view=operators]').focus()")
    page.key("Enter")
    wanted = ["Operators", "title-operators"]
    assert [*texts(page, "#views [aria-current=page]"), page.evaluate(_FOCUS + "id")] == wanted
    # Sorting by a key keeps the focus on the column and says the order.
    page.evaluate("""
        [...document.querySelectorAll('#operator-table th button')]
          .find(one => one.textContent.startsWith('total')).focus()
    """)
    for order in ("descending", "ascending"):
        page.key("Enter")
        assert page.evaluate(_FOCUS + "closest('th').getAttribute('aria-sort')") == order
    # The skip link leads past the navigation.
    page.evaluate("document.querySelector('.skip').focus()")
    page.key("Enter")
    assert page.evaluate(_FOCUS + "id") == "main"
    # Sorting says nothing where no row went; a search says how many are left.
    page.evaluate("""
        window.said = 0;
        new MutationObserver(changes => { window.said += changes.length; }).observe(document
          .querySelector('#operator-table .count'), {childList: true})
    """)
    page.click("#operator-table th button", 1)
    assert page.evaluate("window.said") == 0
    page.type("#operator-table input[type=search]", "addmm")
    assert page.evaluate("window.said") > 0


def test_a_part_that_an_address_names_takes_the_focus(opened):
    page = opened(whole(), at="modules")
    page.go("steps")
    assert page.evaluate(_FOCUS + "textContent") == "Steps"
    # Narrow windows have the navigation above the view: nothing stands behind it.
    page.resize(400, 800)
    page.evaluate("location.hash = '#throughput'")
    page.go("watch")
    place = "document.querySelector('%s').getBoundingClientRect()"
    assert page.evaluate(f"{place % '#watch'}.top >= {place % '#views'}.bottom")


def test_trees_and_pictures_take_the_arrows_and_are_told_in_a_sentence(opened):
    page = opened(whole(), at="modules")
    inside = "#module-tree tbody :is(a, button)[tabindex='0']"
    assert count(page, "#module-tree tbody tr[tabindex='0']") == 1
    assert count(page, f"{inside}:not(tr[tabindex='0'] *)") == 0
    page.evaluate("document.querySelector('#module-tree tbody tr').focus()")
    page.key("ArrowDown")
    name = page.evaluate(_FOCUS + "querySelector('.name').textContent")
    assert [name, *texts(page, f"{inside}.name")] == ["features"] * 2
    page.evaluate("document.querySelector('#module-picture .chart').focus()")
    told = []
    for keys in (["ArrowDown", "ArrowDown"], ["Enter"]):
        for key in keys:
            page.key(key)
        told += texts(page, "#announced")
    wanted = ["Digits, 2.56 ms, 65 % of what is drawn", "Digits, 2.56 ms, 100 % of what is drawn"]
    assert told == wanted
    # What the pointer passes over is not read out: only short texts are live.
    page.go("python")
    live = "[aria-live]:not([aria-live=off]), [role=status], [role=alert], output"
    assert max(map(len, texts(page, live))) < 120
    assert count(page, "aside[aria-live], .tip[role=status]") == 0


def test_nothing_moves_by_itself(opened):
    page = opened(whole(), at="modules")
    calm = {"name": "prefers-reduced-motion", "value": "reduce"}
    page.call("Emulation.setEmulatedMedia", features=[calm])
    page.click("#module-picture .choice button", 2)
    assert page.evaluate(snippet("moving")) == [0, []]
