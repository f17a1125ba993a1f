"""handover.js: the trace of a served recording goes to Perfetto's tab when the user asks for it."""

import gzip
import json
import threading

import pytest

from profstack.report import html
from profstack.report.serving import RecordingServer
from tests.support.browser import shared, snippet, texts
from tests.support.reports import build

TRACE = gzip.compress(b'{"traceEvents": []}')
PERFETTO = "https://ui.perfetto.dev"


@pytest.fixture
def server(tmp_path):
    """A recording as a run leaves it, in a folder with a name that would be markup."""
    folder = tmp_path / "runs" / "<b>train-0001"
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "trace.json.gz").write_bytes(TRACE)
    html.write(build(), folder / "report.html")
    with RecordingServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_served_page_leads_to_the_hand_over_and_a_file_does_not(server):
    browser = shared()
    ways = "[...document.querySelectorAll('#artifact-table a')].map(one => one.href)"
    browser.open(server.folder / "report.html", at="environment")
    assert [way for way in browser.evaluate(ways) if way.endswith("perfetto")] == []
    browser.call("Page.navigate", url=server.page_address + "#environment")
    browser.wait_for(f"{ways}.includes({json.dumps(server.handover_address)})")
    assert browser.errors() == []


def test_the_trace_is_handed_over_when_the_user_asks(server):
    browser = shared()
    browser.open(server.folder / "report.html")
    browser.call("Page.navigate", url=server.handover_address)
    browser.wait_for("document.getElementById('hand')")
    # That site is out of reach: its tab is the end of a channel, which may be a message's source.
    browser.evaluate(snippet("perfetto_stand_in"))
    said = "document.getElementById('said').textContent"
    browser.click("#hand")
    # It asks until Perfetto answers, and takes nothing else for its answer.
    browser.wait_for("sent.length > 1")
    for other in ("{origin: 'https://perfetto.dev'}", "{data: 'PING'}", "{source: null}"):
        browser.evaluate(f"hear({other})")
        assert browser.evaluate(said) == "Waiting for Perfetto …"
    browser.evaluate("hear({})")
    browser.wait_for(f"{said} === 'Handed over.'")
    *asked, handed = browser.evaluate("sent")
    assert asked == [[PERFETTO, "PING"]] * len(asked)
    assert handed == [PERFETTO, ["<b>train-0001", len(TRACE), 1]]
    # A tab that the browser does not open.
    browser.evaluate("openTab = () => null")
    browser.click("#hand")
    assert "did not open a new tab" in texts(browser, "#said")[0]
    assert (browser.evaluate("opened"), browser.errors()) == (PERFETTO, [])
