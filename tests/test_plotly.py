"""plotly's own file as the page carries it: whole, known by its hash, and missed with a word."""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from data_report import build

from profstack.report import html
from profstack.report import html as report_html


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Lets a test read the file anew, and the next one as well."""
    report_html.library.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    report_html.library.cache_clear()


def file_of_the_package() -> bytes:
    """plotly's file as its package lists it."""
    return Path(
        str(distribution("plotly").locate_file("plotly/package_data/plotly.min.js"))
    ).read_bytes()


def test_the_page_carries_the_file_as_it_stands_under_its_hash() -> None:
    library = report_html.library()
    assert library is not None
    whole = gzip.decompress(base64.b64decode(library.text))
    assert whole == file_of_the_package()
    digest = base64.b64encode(hashlib.sha256(whole).digest()).decode()
    assert library.digest == f"sha256-{digest}"
    page = html.render(build())
    assert f">{library.text}</script>" in page
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    assert f"&#39;{library.digest}&#39;" in policy[1]
    assert "unsafe-eval" not in policy[1]
    assert len(library.text) < 2_100_000, "a page of 3 MB has room for more than the library"


def test_its_licence_stands_in_the_file_and_on_the_page() -> None:
    library = report_html.library()
    assert library is not None
    for said in ("plotly.js v", "Plotly, Inc", "MIT license"):
        assert said in library.notice
    assert "\n" not in library.notice
    assert b"Licensed under the MIT license" in file_of_the_package()[:400]
    assert html.render(build()).count(library.notice) == 2, "beside the library and at the foot"


def test_the_package_itself_is_not_imported() -> None:
    script = (
        "import sys; from profstack.report import html; assert html.library();"
        "print([name for name in sys.modules if name.split('.')[0] == 'plotly'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]", done.stderr


def _install(patch: pytest.MonkeyPatch, folder: Path, content: bytes | None) -> None:
    """Put a package plotly in front of the installed one, with this file in it."""
    package = folder / "plotly"
    (package / "package_data").mkdir(parents=True)
    (package / "__init__.py").touch()
    if content is not None:
        (package / "package_data" / "plotly.min.js").write_bytes(content)
    patch.syspath_prepend(folder)
    patch.delitem(sys.modules, "plotly", raising=False)


@pytest.mark.parametrize("content", [None, b"\xff\xfe not UTF-8"])
def test_without_a_file_that_can_be_read_there_is_no_library(
    unread: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None
) -> None:
    _install(unread, tmp_path, content)
    assert report_html.library() is None
    page = html.render(build())
    assert 'id="pack-plotly"' not in page
    assert "Charts: plotly" not in page


def test_without_the_package_there_is_no_library(unread: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    unread.setattr(
        importlib.util, "find_spec", lambda name: None if name == "plotly" else find(name)
    )
    assert report_html.library() is None


def test_a_file_without_a_notice_is_named_all_the_same(
    unread: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _install(unread, tmp_path, b"var Plotly = {};")
    library = report_html.library()
    assert library is not None
    assert library.notice == "plotly.js, as shipped by the package plotly"
