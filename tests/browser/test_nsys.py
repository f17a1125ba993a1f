"""nsys.js: what Nsight Systems saw, as the page shows it."""

import pytest

from profstack.report.files import complete_report
from tests.support.lab import changed, page_of
from tests.support.nsys_recordings import with_torch


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The page of a run with an import beside it."""
    folder = tmp_path_factory.mktemp("nsys") / "r"
    with_torch(folder)
    return page_of(complete_report(folder))


def records(page, name):
    table = page["tables"][f"nsys_{name}"]
    keys = [column["key"] for column in table["columns"]]
    return [dict(zip(keys, row, strict=True)) for row in table["rows"]]


def put(page, name, rows):
    page["tables"][f"nsys_{name}"]["rows"] = [list(row.values()) for row in rows]


def test_an_import_is_asked_for_or_held_against_the_recording(lab, both):
    hints = []
    for nsys in (None, {"missing": {}}):
        lab.draw(changed(both, facts__nsys=nsys), "T.nsys.drawNsysHint", "#nsys-hint")
        ways = lab.all("#nsys-hint a", "one.getAttribute('href')")
        hints.append([lab.all("#nsys-hint code"), ways])
    commands = ["profstack run --nsys train.py", "profstack import FILE --into DIR"]
    assert hints == [[commands, []], [[], ["#nsys"]]]
    lab.view(both, "nsys")
    cells = lab.tables("nsys")["nsys-module-table"][1].split("|")
    # 3.9 ms of device time in both; on the host 4.5 ms here and 4.9 ms there.
    assert cells == ["Net", "–", "4.50 ms", "4.90 ms", "0.918", "3.90 ms", "3.90 ms", "1", "1", "1"]


def test_cards_add_up_over_devices(lab, both):
    page = changed(
        both, facts__benchmark={"clock": "device", "host_median_s": 0.004, "median_s": 9.0}
    )
    steps = records(page, "steps")[0]
    rows = [
        (1, "a", 0.010, 40, 0.002, 0.003), (1, "b", 0.010, 2, 0.001, 0.008),
        (2, "a", 0.020, 60, 0.004, 0.005), (2, "b", 0.020, None, None, 0.009),
        (3, "a", 0.012, 50, 0.003, 0.001),
    ]  # fmt: skip
    keys = ("step", "device", "wall_s", "kernels", "device_s", "idle_s")
    put(page, "steps", [steps | dict(zip(keys, row, strict=True)) for row in rows])
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
    copies = records(page, "copies")
    assert cards[3][1].startswith(
        lab.values("T.dom.formatSeconds", [sum(row["device_s"] for row in copies)])[0]
    )
    assert cards[3][0] == lab.values("T.dom.formatBytes", [sum(row["bytes"] for row in copies)])[0]
