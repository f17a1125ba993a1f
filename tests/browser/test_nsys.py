"""nsys.js: what Nsight Systems saw, as the page shows it, and to whom."""

import pytest

from tests.support.browser import column, count, texts
from tests.support.lab import changed, page_of, records_of, with_rows
from tests.support.nsys_recordings import alone, with_torch
from tests.support.tables import rows_of

ROWS = {
    "Net.head": "Net.head", "range-13": "optimizer Adam", "copy%20NVIDIA%20H100%20(0)": "copy",
    "cudnn%20cudnnConvolutionForward%20module%20Net.stem.conv": "cudnnConvolutionForward",
}  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return with_torch(tmp_path_factory.mktemp("nsys") / "r")


@pytest.fixture(scope="module")
def both(report):
    return page_of(report)


def test_an_import_is_held_against_the_recording(lab, both):
    lab.view(both, "nsys")
    cells = lab.tables("nsys")["nsys-module-table"][1].split("|")
    # 3.9 ms of device time in both; on the host 4.5 ms here and 4.9 ms there.
    # Of 12 steps with a deviation of 90 µs, and of equal ones.
    host = ["4.50 ms", "57.2 µs", "4.90 ms", "0 s", "0.918"]
    assert cells == ["Net", "–", *host, "3.90 ms", "3.90 ms", "1", "1", "1"]


def test_cards_add_up_over_devices(lab, both):
    mark = {"clock": "device", "host_median_s": 0.004, "median_s": 9.0}
    page = changed(both, facts__benchmark=mark)
    step = records_of(page, "nsys_steps")[0]
    rows = rows_of(
        "step device wall_s kernels device_s idle_s",
        *((1, "a", 0.010, 40, 0.002, 0.003), (1, "b", 0.010, 2, 0.001, 0.008)),
        *((2, "a", 0.020, 60, 0.004, 0.005), (2, "b", 0.020, None, None, 0.009)),
        (3, "a", 0.012, 50, 0.003, 0.001),
    )
    steps = [step | row for row in rows]
    page["tables"]["nsys_steps"] = with_rows(page, "nsys_steps", steps)
    lab.draw(page, "T.nsys.drawNsysCards", "#nsys-cards")
    cards = lab.js("""
        [...document.querySelectorAll('#nsys-cards .card')].map((one) => [...one.children].slice(1)
          .map((each) => each.textContent))
    """)
    # Medians: of the walls 12 ms, 3 clean ones; kernels by step are 42, 60, 50; idle 5 ms.
    assert cards[0][0] == "12.0 ms"
    assert cards[0][1].startswith("3.00 ×")
    assert cards[1] == ["50", "3.00 ms of device time"]
    assert cards[2] == ["5.00 ms", "42 % of the step"]
    copies = records_of(page, "nsys_copies")
    size, seconds = (sum(row[key] for row in copies) for key in ("bytes", "device_s"))
    assert [cards[3][0]] == lab.values("T.dom.formatBytes", [size])
    assert cards[3][1].startswith(lab.values("T.dom.formatSeconds", [seconds])[0])


def heads(page, box):
    return [text.strip("▲▼") for text in texts(page, f"{box} th")]


def cells(page, box, heading):
    """The texts of the column under a heading."""
    return column(page, box, 1 + heads(page, box).index(heading))


def first(page, box):
    """The names of the rows, without what folds them and their addresses."""
    return [text.strip("▾▸") for text in column(page, box, 1)]


def test_rows_have_addresses_and_modules_lead_here_and_back(opened, report):
    page = opened(report, "nsys", fresh=True)
    for key, name in ROWS.items():
        page.go(f"nsys/{key}")
        assert texts(page, "tr.marked")[0].strip("▾▸").startswith(name), key
        assert count(page, "#note:not([hidden])") == 0
    page.go("modules")
    assert "#nsys?module=Net.stem" in page.evaluate("""
        [...document.querySelectorAll('#module-tree a[data-text=nsys]')]
          .map(one => one.getAttribute('href'))
    """)
    page.go("nsys?module=Net.stem")
    assert first(page, "#nsys-module-table") == ["Net.stem", "Net.stem.conv"]
    inside = [set(cells(page, f"#nsys-{one}-table", "in range")) for one in ("kernel", "api")]
    assert (inside, len(cells(page, "#nsys-api-table", "in range"))) == ([{"Net.stem.conv"}] * 2, 2)
    assert first(page, "#nsys-range-tree")[-2:] == ["stem", "conv"]
    way = "document.querySelector('#nsys-module-table td a.way').getAttribute('href')"
    assert page.evaluate(way) == "#modules/Net.stem"


def test_an_import_alone_has_its_view_and_no_others(opened, tmp_path):
    page = opened(alone(tmp_path / "r"), "", fresh=True)
    views = ["Overview", "Nsight Systems", "Environment", "Glossary", "All on one page"]
    assert texts(page, "#views a") == views
    places = ("#script", "#status", "#benchmark-cards .card-value")
    assert [texts(page, one)[0] for one in places] == ["out.sqlite", "completeimported", "12 steps"]
