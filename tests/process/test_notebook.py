"""`Session` in a notebook: the example is run by a real kernel, and its page shown by a browser."""

import asyncio
import html
import re

import pytest

from tests.support.browser import EXECUTABLE, Browser
from tests.support.processes import CHECKOUT

nbformat = pytest.importorskip("nbformat", reason="the extra [test] is not installed")
nbclient = pytest.importorskip("nbclient", reason="the extra [test] is not installed")
pytest.importorskip("ipykernel", reason="the extra [test] is not installed")
NOTEBOOK = CHECKOUT / "examples" / "notebook.ipynb"


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """The code cells of the example after a real kernel has run them all; none failed."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    found = [cell for cell in notebook.cells if cell.cell_type == "code"]
    # It was committed without outputs.
    assert not any(cell.outputs or cell.execution_count for cell in found)
    where = {"metadata": {"path": str(tmp_path_factory.mktemp("notebook"))}}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OMP_NUM_THREADS", "1")
        patched.setenv("PYTHONPATH", str(CHECKOUT))
        patched.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
        how = {"timeout": 300, "kernel_name": "python3", "resources": where}
        # The client starts a loop of its own where there is none.
        asyncio.run(nbclient.NotebookClient(notebook, **how).async_execute())
    return found


def texts(cells, source, kind="text/plain"):
    """What the one cell with a text in it, or of a word alone, has given."""
    alone = [cell for cell in cells if source == cell.source]
    [cell] = alone or [cell for cell in cells if source in cell.source]
    return "\n".join(
        output["text"] if output.output_type == "stream" else output["data"].get(kind, "")
        for output in cell.outputs
    )


@pytest.fixture
def shown(cells):
    """The page that the recording shows of itself."""
    assert re.search(r"Recording 'quarters': 300 steps", texts(cells, "session.recording"))
    answer = texts(cells, "session.recording", "text/html")
    assert (len(answer) < 10_000, "<iframe" in answer) == (True, False)
    return texts(cells, "session.recording.page()", "text/html")


def test_tables_and_the_page_show_what_the_cells_did(cells, shown):
    modules = texts(cells, 'frames["modules"]')
    for path in ("Sequential", "Sequential.0", "Sequential.4"):
        assert re.search(rf"\b{re.escape(path)} +1\.0", modules), modules
    regions = texts(cells, 'frames["regions"]')
    assert re.search(r"\bdraw +1\.0", regions), regions
    assert float(texts(cells, 'Session("inference"')) > 0
    # Nothing of ours is printed into a notebook.
    assert re.fullmatch(r"loss \d\.\d+\n", texts(cells, 'Session("quarters")'))
    # One frame, and in it the page.
    [frame] = re.findall(r'<[a-z]+ [^>]*srcdoc="([^"]*)"', shown)
    assert shown.lstrip().startswith("<iframe")
    inside = html.unescape(frame)
    assert inside.startswith("<!doctype html>")
    assert '"Sequential.0"' in inside
    # The lines of the cells are the script's own, by the cell's number.
    assert "loss.backward()" in html.unescape(inside)
    [count] = [cell.execution_count for cell in cells if "def draw" in cell.source]
    assert f"cell {count}, line " in inside
    assert "/ipykernel_" not in inside


@pytest.mark.skipif(EXECUTABLE is None, reason="there is no Chromium on this machine")
def test_a_browser_draws_it_and_its_ways_stay_inside(shown, tmp_path):
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><meta charset=utf-8>{shown}", encoding="utf-8")
    with Browser(tmp_path / "profile") as browser:
        auto = {"autoAttach": True, "waitForDebuggerOnStart": False, "flatten": True}
        browser.call("Target.setAutoAttach", **auto)
        browser.open(notebook)
        [session] = [
            event["params"]["sessionId"]
            for event in browser._events
            if event["method"] == "Target.attachedToTarget"
        ]

        def inside(expression):
            parameters = {"expression": expression, "returnByValue": True}
            answer = browser._send("Runtime.evaluate", parameters, session)
            assert "exceptionDetails" not in answer, answer
            return answer["result"].get("value")

        assert inside("document.getElementById('script').textContent") == "quarters"
        assert inside("document.querySelectorAll('.broken:not(noscript *)').length") == 0
        assert "still running" not in inside("document.getElementById('status').textContent")
        elements = inside("document.querySelectorAll('*').length")
        inside("document.querySelector('nav a[href=\"#modules\"]').click()")
        browser.settle()
        assert inside("document.querySelector('.view:not([hidden]) h2').textContent") == "Modules"
        assert inside("document.querySelectorAll('*').length") >= elements
        assert inside("document.location.href") == "about:srcdoc"
        assert (browser.errors(), browser.requests()) == ([], [])
