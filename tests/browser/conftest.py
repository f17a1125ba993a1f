"""The one browser of a test run, with pages of reports or with the page's functions alone."""

from pathlib import Path

import pytest

from profstack.report import compare_page, history, html
from tests.support.browser import EXECUTABLE, shared
from tests.support.lab import Lab


def pytest_collection_modifyitems(items):
    """Skip what needs a browser where there is none."""
    for item in items:
        if EXECUTABLE is None and item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.skip(reason="there is no Chromium on this machine"))


@pytest.fixture
def lab():
    """The page's functions, on a page without data."""
    return Lab(shared())


@pytest.fixture
def opened(tmp_path):
    """Opens the page of a report, a comparison or a history; at the end nothing may be broken.

    It opens with all views one under the other, or at the address that is given. A page that the
    browser shows already, and that was only read since it was opened, is taken as it is, but for
    what wants a `fresh` one.
    """

    def open_page(report, at="all", *, fresh=False, **window):
        browser, file = shared(), tmp_path / "report.html"
        wanted = repr((at, window, report))
        if fresh or browser.touched or browser.shows != wanted:
            kind = history if "programs" in report else compare_page if "before" in report else html
            kind.write(report, file)
            browser.open(file, at=at, **window)
            browser.shows = wanted
        return browser

    yield open_page
    broken = "document.querySelectorAll('.broken:not(noscript *)').length"
    assert [shared().errors(), shared().requests(), shared().evaluate(broken)] == [[], [], 0]
