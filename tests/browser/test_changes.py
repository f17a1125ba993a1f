"""changes.js: rows with both sides of a comparison, and its picture of the modules."""

import pytest

from tests.support.browser import choose, column, texts
from tests.support.comparisons import comparison


def test_modules_are_as_wide_as_their_larger_side_and_coloured_by_their_difference(opened):
    page = opened(comparison(), at="modules")
    page.wait_for("document.querySelector('.plot[data-drawn]')")
    told = "(({ labels, values, marker }) => [labels, values, marker.colors])"
    labels, values, colours = page.evaluate(f"{told}(document.querySelector('.plot').data[0])")
    drawn = dict(zip(labels, zip(values, colours, strict=True), strict=True))
    names = ("slower-3", "faster-3", "faster-2", "builtin")
    style = "getComputedStyle(document.documentElement).getPropertyValue('--%s').trim()"
    slower, much, faster, same = (page.evaluate(style % name) for name in names)
    modules = comparison()["tables"][0]["rows"]
    larger = {row["key"]: max(row["change"][side] or 0 for side in ("before", "after"))
              for row in modules}  # fmt: skip
    body = sum(size for path, size in larger.items() if path.startswith("Net.body"))
    whole = sum(larger.values())
    wanted = {
        "modules and parts of the step": (pytest.approx(whole), faster),
        "body": (pytest.approx(body), faster),
        "linear2": (pytest.approx(0.00042), slower),
        # What may be noise has no colour.
        "head": (pytest.approx(0.00021), same),
        "norm": (pytest.approx(0.00015), much),
    }
    assert {name: drawn[name] for name in wanted} == wanted
    assert drawn["scale"][1] == slower, "what is new is slower"


def test_rows_have_both_sides_and_can_be_chosen(opened):
    page = opened(comparison(), at="modules")
    box = "#table-modules"
    names = ["Net.body.linear1", "Net.norm", "Net.body.linear2", "(optimizer)", "Net.scale"]
    assert column(page, box, 1)[:5] == names
    assert [column(page, box, at)[0] for at in (2, 3, 4, 5)] == [
        "600 µs", "400 µs", "−200 µs", "0.67 × −33 %"]  # fmt: skip
    assert [column(page, box, at)[1] for at in (2, 3, 4, 6)] == ["150 µs", "–", "−150 µs", "gone"]
    choose(page, box, "moved, gone or new, 3")
    assert column(page, box, 6) == ["gone", "new", "moved"]
    assert texts(page, f"{box} .was") == ["was Net.classifier"]
    # A row of the first view leads to its own.
    page.go("overview")
    page.click("#tops .top a[href*='linear2']")
    assert texts(page, "tr.marked td:first-child") == ["Net.body.linear2"]
