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
# What colours and the width of the window can change.
_LOOKS = "{runOnly: ['color-contrast', 'scrollable-region-focusable']}"


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
    views = (["all"], ["benchmark"], ["nsys"], ["ranks"], ["overview", "modules"])
    names = (*made, "compare")
    return {folder / f"{name}.html": own for name, own in zip(names, views, strict=True)}


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not there: make test installs it")
@pytest.mark.parametrize(("width", "dark", "rules"), [(1400, False, "{}"), (400, True, _LOOKS)])
def test_axe_finds_nothing_and_headings_go_down_one_level_at_a_time(written, width, dark, rules):
    page = shared()
    for path, views in written.items():
        if dark and path.stem not in ("run", "ranks"):
            # It has the colours of a run.
            continue
        page.open(path, at=views[0], width=width, dark=dark)
        page.evaluate(AXE.read_text(encoding="utf-8") + "; 0")
        for view in views:
            page.go(view)
            levels = page.evaluate(snippet("heading_levels"))
            assert levels[:2] == [1, 2]
            assert all(to <= at + 1 for at, to in pairwise(levels)), (view, levels)
            # All is unfolded; of the rows of a table some are enough.
            page.evaluate(snippet("unfolded"))
            # What reaches beyond the window without anything to scroll it with.
            assert page.evaluate(snippet("beyond")) == [True, []], (path.name, view)
            where = "document" if view in ("all", "overview") else f"'#view-{view}'"
            # Whatever its gravity. But axe takes ways of the navigation that are scrolled out of
            # sight in a narrow window for ways to skip.
            run = snippet("axe_found").replace("WHERE", where).replace("OPTIONS", rules)
            assert page.evaluate(run) == [], (path.name, view)
    assert page.errors() == []


_FOCUS = "document.activeElement."


def test_the_navigation_is_used_by_keys_alone(opened):
    page = opened(whole(), at="")
    page.evaluate("document.querySelector('#views a[data-view=operators]').focus()")
    page.key("Enter")
    wanted = ["Operators", "title-operators"]
    assert [*texts(page, "#views [aria-current=page]"), page.evaluate(_FOCUS + "id")] == wanted
    # Sorting by a key keeps the focus on the column.
    page.evaluate("document.querySelector('#operator-table th button').focus()")
    page.key("Enter")
    assert page.evaluate(_FOCUS + "closest('th').getAttribute('aria-sort')") == "ascending"
    # The skip link leads past the navigation.
    page.evaluate("document.querySelector('.skip').focus()")
    page.key("Enter")
    assert page.evaluate(_FOCUS + "id") == "main"


def test_a_named_part_takes_the_focus_only_short_texts_are_read_out_and_nothing_moves(opened):
    page = opened(whole(), at="modules")
    calm = {"name": "prefers-reduced-motion", "value": "reduce"}
    page.call("Emulation.setEmulatedMedia", features=[calm])
    page.click("#module-picture .choice button", 2)
    assert page.evaluate(snippet("moving")) == [0, []]
    page.go("steps")
    assert page.evaluate(_FOCUS + "textContent") == "Steps"
    # What the pointer passes over is not read out.
    page.go("python")
    live = "[aria-live]:not([aria-live=off]), [role=status], [role=alert], output"
    assert max(map(len, texts(page, live))) < 120
    assert count(page, "aside[aria-live], .tip[role=status]") == 0
