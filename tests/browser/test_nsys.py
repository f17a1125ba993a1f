"""nsys.js: what Nsight Systems saw, as the page shows it, and to whom."""

import pytest

from profstack.commands import main as main_command
from profstack.report.files import load
from tests.support.browser import column, count, texts
from tests.support.lab import changed, page_of, records_of, with_rows
from tests.support.nsys_files import PID, NsysFile, thread_of
from tests.support.nsys_recordings import alone, with_torch

LAUNCH = "cudaLaunchKernel"

ROWS = {
    "Net.head": "Net.head", "range-13": "optimizer Adam", "copy%20NVIDIA%20H100%20(0)": "copy",
    "cudnn%20cudnnConvolutionForward%20module%20Net.stem.conv": "cudnnConvolutionForward",
}  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A run with an import beside it."""
    return with_torch(tmp_path_factory.mktemp("nsys") / "r")


@pytest.fixture(scope="module")
def both(report):
    """The page of that."""
    return page_of(report)


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
    # Of 12 steps with a deviation of 90 µs, and of equal ones.
    host = ["4.50 ms", "57.2 µs", "4.90 ms", "0 s", "0.918"]
    assert cells == ["Net", "–", *host, "3.90 ms", "3.90 ms", "1", "1", "1"]


def test_cards_add_up_over_devices(lab, both):
    page = changed(
        both, facts__benchmark={"clock": "device", "host_median_s": 0.004, "median_s": 9.0}
    )
    step = records_of(page, "nsys_steps")[0]
    rows = [
        (1, "a", 0.010, 40, 0.002, 0.003), (1, "b", 0.010, 2, 0.001, 0.008),
        (2, "a", 0.020, 60, 0.004, 0.005), (2, "b", 0.020, None, None, 0.009),
        (3, "a", 0.012, 50, 0.003, 0.001),
    ]  # fmt: skip
    keys = ("step", "device", "wall_s", "kernels", "device_s", "idle_s")
    steps = [step | dict(zip(keys, row, strict=True)) for row in rows]
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
    assert cards[3][1].startswith(
        lab.values("T.dom.formatSeconds", [sum(row["device_s"] for row in copies)])[0]
    )
    assert cards[3][0] == lab.values("T.dom.formatBytes", [sum(row["bytes"] for row in copies)])[0]


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
    hrefs = page.evaluate(
        "[...document.querySelectorAll('.view[data-view=nsys] a.anchor')].map(one => one.href)"
    )
    assert len(hrefs) == len(set(hrefs)) > 40
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
    wanted = [
        ["Overview", "Nsight Systems", "Environment", "Glossary", "All on one page"],
        ["out.sqlite"], ["completeimported"], ["12 steps"],
    ]  # fmt: skip
    places = ("#views a", "#script", "#status", "#benchmark-cards .card-value")
    assert [texts(page, one) for one in places] == wanted
    assert "no clean time, and no verdict" in texts(page, "#verdict")[0]
    page.go("nsys")
    assert "recorded nothing to hold them against" in texts(page, "#nsys-modules-lead")[0]
    assert "disagreement" not in heads(page, "#nsys-module-table")


def test_processes_are_side_by_side_and_cards_are_of_the_one_with_steps(opened, tmp_path):
    with NsysFile(tmp_path / "a.sqlite") as file:
        for pid, count in ((PID, 2), (PID + 1, 1)):
            main = thread_of(pid, pid)
            for step in range(count):
                at = 1000 * (step + 1)
                file.step(step, at, at + 900, thread=main)
                file.launched(at + 10, at + 20, at + 50 * count, "gemm", at + pid, main, pid=pid)
                file.launched(at + 99, at + 400, at + 480, "ncclAllReduce", at, main, pid=pid)
                file.wait(at + 500, at + 600, at, "stream", pid=pid)
    assert main_command(["import", str(file.path), "-o", str(tmp_path / "r")]) == 0
    page = opened(load(tmp_path / "r"), "nsys", fresh=True)
    assert "2 processes of the file" in texts(page, "#nsys-said")[0]
    processes = column(page, "#nsys-process-table", 1)
    assert processes == [str(PID), str(PID + 1)]
    # Two kernels a step of the first process, whatever the other one does.
    assert texts(page, "#nsys-cards .card-value")[1] == "2"
    for table, names in (
        ("device-stats", {"gemm", "ncclAllReduce", "stream sync"}), ("host-stats", {LAUNCH}),
        ("wait", {"stream sync"}), ("communication", {"AllReduce"}),
    ):  # fmt: skip
        box = f"#nsys-{table}-table"
        assert set(first(page, box)) == names
        assert set(cells(page, box, "process")) == {str(PID), str(PID + 1)}
    assert len(column(page, "#nsys-longest-gap-table", 1)) == 8
