"""`Session` in a notebook: the example is run by a real kernel, and its page shown by a browser."""

from __future__ import annotations

import asyncio
import html
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from conftest import CHECKOUT
from page_browser import EXECUTABLE, Browser

nbformat = pytest.importorskip("nbformat", reason="the extra [test] is not installed")
nbclient = pytest.importorskip("nbclient", reason="the extra [test] is not installed")
pytest.importorskip("ipykernel", reason="the extra [test] is not installed")

pytestmark = pytest.mark.slow
NOTEBOOK = CHECKOUT / "examples" / "notebook.ipynb"


def executed(notebook: Any, folder: Path) -> list[Any]:
    """The code cells after a real kernel has run them all; a cell that fails ends the test."""
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    # The client starts a loop of its own where there is none.
    asyncio.run(client.async_execute())
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The cells of the example, with what they gave."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OMP_NUM_THREADS", "1")
        patched.setenv("PYTHONPATH", str(CHECKOUT))
        patched.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
        folder = tmp_path_factory.mktemp("notebook")
        return executed(nbformat.read(NOTEBOOK, as_version=4), folder)


def texts(cell: Any, kind: str = "text/plain") -> str:
    return "\n".join(
        output["text"] if output.output_type == "stream" else output["data"].get(kind, "")
        for output in cell.outputs
    )


def cell_with(cells: list[Any], source: str) -> Any:
    [found] = [cell for cell in cells if source in cell.source]
    return found


class Frame(HTMLParser):
    """The page inside the one frame of an output."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.pages: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag == "iframe"
        self.pages.append(dict(attrs)["srcdoc"] or "")


def test_the_example_was_committed_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert all(
        not cell.outputs and cell.execution_count is None
        for cell in notebook.cells
        if cell.cell_type == "code"
    )


def test_the_tables_show_what_the_cells_did(cells: list[Any]) -> None:
    modules = texts(cell_with(cells, 'frames["modules"]'))
    for path in ("Sequential", "Sequential.0", "Sequential.4"):
        assert re.search(rf"\b{re.escape(path)} +1\.0", modules), modules
    regions = texts(cell_with(cells, 'frames["regions"]'))
    assert re.search(r"\bdraw +1\.0", regions), regions
    assert float(texts(cell_with(cells, 'Session("inference"'))) > 0
    # Nothing of ours is printed into a notebook.
    assert re.fullmatch(r"loss \d\.\d+\n", texts(cell_with(cells, 'Session("quarters")')))


def test_the_page_stands_below_the_cell(cells: list[Any]) -> None:
    shown = [cell for cell in cells if cell.source == "session.recording"]
    [text] = [texts(cell, "text/html") for cell in shown]
    [inside] = Frame(text).pages
    assert inside.startswith("<!doctype html>")
    assert '"Sequential.0"' in inside
    # The lines of the cells are the script's own.
    assert "loss.backward()" in html.unescape(inside)
    assert re.search(r"Recording 'quarters': 300 steps", texts(shown[0]))


@pytest.mark.skipif(EXECUTABLE is None, reason="there is no Chromium on this machine")
def test_a_browser_draws_it_and_its_ways_stay_inside(cells: list[Any], tmp_path: Path) -> None:
    [text] = [texts(cell, "text/html") for cell in cells if cell.source == "session.recording"]
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><meta charset=utf-8>{text}", encoding="utf-8")
    with Browser(tmp_path / "profile") as browser:
        auto = {"autoAttach": True, "waitForDebuggerOnStart": False, "flatten": True}
        browser.call("Target.setAutoAttach", **auto)
        browser.open(notebook)
        [session] = [
            event["params"]["sessionId"]
            for event in browser._events
            if event["method"] == "Target.attachedToTarget"
        ]

        def inside(expression: str) -> Any:
            parameters = {"expression": expression, "returnByValue": True}
            answer = browser._send("Runtime.evaluate", parameters, session)
            assert "exceptionDetails" not in answer, answer
            return answer["result"].get("value")

        assert inside("document.getElementById('script').textContent") == "quarters"
        assert inside("document.querySelectorAll('.broken:not(noscript *)').length") == 0
        assert inside("document.getElementById('status').textContent").count("still running") == 0
        elements = inside("document.querySelectorAll('*').length")
        inside("document.querySelector('nav a[href=\"#modules\"]').click()")
        browser.settle()
        assert inside("document.querySelector('.view:not([hidden]) h2').textContent") == "Modules"
        assert inside("document.querySelectorAll('*').length") >= elements
        assert inside("document.location.href") == "about:srcdoc"
        assert browser.errors() == []
        assert browser.requests() == []
