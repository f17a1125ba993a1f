"""The view of what Nsight Systems saw, in a browser: what it says, and to whom."""

import pytest

from tests.support.browser import column, count, texts
from tests.support.nsys_recordings import alone, with_torch

ROWS = {
    "Net.head": "Net.head", "range-13": "optimizer Adam", "copy%20NVIDIA%20H100%20(0)": "copy",
    "cudnn%20cudnnConvolutionForward%20module%20Net.stem.conv": "cudnnConvolutionForward",
}  # fmt: skip


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A run with an import beside it."""
    return with_torch(tmp_path_factory.mktemp("nsys") / "r")


def heads(page, box):
    return [text.strip("▲▼") for text in texts(page, f"{box} th")]


def cells(page, box, heading):
    """The texts of the column under a heading."""
    return column(page, box, 1 + heads(page, box).index(heading))


def first(page, box):
    """The names of the rows, without what folds them and their addresses."""
    return [text.strip("▾▸") for text in column(page, box, 1)]


def test_rows_have_addresses_and_modules_lead_here_and_back(opened, both):
    page = opened(both, "nsys", fresh=True)
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
