"""The one browser of a test run, with pages of reports or with the page's functions alone."""

from pathlib import Path

import pytest

from profstack.report import compare_page, history
from tests.support.browser import EXECUTABLE, pages, shared
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
def compared(tmp_path):
    """Opens the page of a comparison; at the end nothing may be broken."""
    with pages(tmp_path, compare_page.write) as open_page:
        yield open_page


@pytest.fixture
def opened(tmp_path):
    """Opens the page of a report; at the end nothing may be broken."""
    with pages(tmp_path) as open_page:
        yield open_page


@pytest.fixture
def history_opened(tmp_path):
    """Opens the page of a history; at the end nothing may be broken."""
    with pages(tmp_path, history.write) as open_page:
        yield open_page
