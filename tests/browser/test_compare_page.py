"""The page of a comparison: its answer, its parts, its tables, and names that are only text."""

import math

import pytest

from tests.support.browser import choose, column, count, snippet, texts
from tests.support.comparisons import (
    RUN_PARTS,
    STEP_PARTS,
    change,
    comparison,
    hostile,
    large,
    table,
    table_row,
)

_PLACED = "[...document.querySelectorAll('%s')].map((one) => [one.style.left, one.style.width])"


# Resolves when the library has drawn the picture.
DRAWN = """
new Promise((done) => { const look = () => document.querySelector('.plot[data-drawn]') ? done() :
  setTimeout(look, 20); look(); })
"""


def placed(page, selector):
    """Where elements begin and how wide they are, in shares of what they lie in."""
    found = page.evaluate(_PLACED % selector)
    return [tuple(float(text.rstrip("%") or 0) / 100 for text in one) for one in found]


def test_the_answer_stands_before_what_it_rests_on(compared):
    made = comparison()
    verdict = made["verdict"]
    page = compared(made, at="")
    assert texts(page, ".verdict") == [verdict["sentence"]]
    assert texts(page, "#script, #status > span") == ["train.py", "faster", "main → HEAD"]
    assert texts(page, "#inequalities b") == ["commit", "load"]
    tops = [page.evaluate(f"document.querySelector('#{one}').getBoundingClientRect().top")
            for one in ("inequalities", "verdict", "step-parts", "run-parts", "finding-list",
                        "gate-list", "tops", "side-facts")]  # fmt: skip
    assert tops == sorted(tops)
    # The picture: 1, the interval and the ratio on one axis.
    [(one, _)], [(low, width)], [(point, _)] = (
        placed(page, f"#verdict .ratio-lane .{name}") for name in ("one", "range", "point")
    )
    # Half as long is as far from 1 as twice as long.
    ends = [math.log(verdict[name]) for name in ("ci95_low", "ci95_high", "ratio")]
    scale = (low - one) / ends[0]
    assert width == pytest.approx(scale * (ends[1] - ends[0]), rel=1e-3)
    assert point - one == pytest.approx(scale * ends[2], rel=1e-3)
    said = texts(page, ".ratio-words")[0]
    assert [words in said for words in ("0.75 ×", "−25 %", "0.72 to 0.78 ×", "5.0 %")] == [True] * 4
    # The other answer has a picture of its own, with the parts of its bar.
    assert texts(page, "#run-parts .other-answer") == [made["answers"][0]["sentence"]]
    assert count(page, "#step-parts .other-answer") == 0
    assert texts(page, "#gate-list .chip") == ["kept", "broken"]
    assert "memory > 50%" in texts(page, "#gate-list li")[1]
    findings = texts(page, "#finding-list li")
    assert ["few-steps" in findings[0], "data-starved · …/app/loader.py:41" in findings[1]] == [
        True, True]  # fmt: skip
    assert count(page, "#side-medians .dot") == 6
    assert made["measured"] in texts(page, "#sides")[0]
    assert "profstack-runs/main-0003" in texts(page, "#side-facts")[0]
    # What has a rule leads to it.
    assert texts(page, "#finding-list a") == ["data-starved"]
    page.click("#finding-list a")
    assert "data-starved" in texts(page, ".marked")[0]


@pytest.mark.parametrize(("of", "parts"), [("step", STEP_PARTS), ("run", RUN_PARTS)])
def test_the_bars_have_one_scale_and_the_parts_lead_from_before_to_after(compared, of, parts):
    page = compared(comparison(), at="")
    sides = [sum(part[at] for part in parts) for at in (1, 2)]
    widths = placed(page, f"#{of}-parts .composition")
    assert [width for _, width in widths] == [pytest.approx(one / max(sides)) for one in sides]
    grow = f"[...document.querySelectorAll('#{of}-parts .piece')].map((one) => one.style.flexGrow)"
    shares = [part[at] / sides[at - 1] for at in (1, 2) for part in parts]
    assert list(map(float, page.evaluate(grow))) == pytest.approx(shares, rel=1e-4)
    # The largest difference first, noise last.
    ordered = sorted(parts, key=lambda part: (part[3] is False, -abs(part[2] - part[1])))
    names = [name.strip() for name in texts(page, f"#{of}-parts .fall-name")]
    assert names == ["before", *(part[0] for part in ordered), "after"]
    noisy = [part[0] for part in ordered if part[3] is False]
    assert texts(page, f"#{of}-parts li.noise .fall-name") == noisy
    causes = texts(page, f"#{of}-parts .fall-cause")
    for part, said in zip(ordered, causes, strict=True):
        assert ("noise" in said) == (part[3] is not True)
        assert f"{part[4] or ''}" in said
        assert part[5] is None or f"{part[5]}:{part[6]}" in said
    # Each piece begins where the one above it ended, up to the mark of the second side.
    (first, _), *moves, (last, _) = placed(page, f"#{of}-parts .fall-lane span")
    scale = (last - first) / (sides[1] - sides[0])
    at = first
    for part, (left, width) in zip(ordered, moves, strict=True):
        to = at + scale * (part[2] - part[1])
        assert (left, left + width) == pytest.approx((min(at, to), max(at, to)), abs=2e-4)
        at = to
    assert at == pytest.approx(last, abs=2e-4)
    total = texts(page, f"#{of}-parts .fall-difference")[-1]
    assert total == {"step": "−740 µs −26 %", "run": "+460 ms +6.6 %"}[of]


def test_rows_have_both_sides_and_can_be_chosen_and_sought(compared):
    page = compared(comparison(), at="modules")
    box = "#table-modules"
    names = ["Net.body.linear1", "Net.norm", "Net.body.linear2", "(optimizer)", "Net.scale"]
    assert column(page, box, 1)[:5] == names
    assert [column(page, box, at)[0] for at in (2, 3, 4, 5)] == [
        "600 µs", "400 µs", "−200 µs", "0.67 × −33 %"]  # fmt: skip
    assert [column(page, box, at)[1] for at in (2, 3, 4, 6)] == ["150 µs", "–", "−150 µs", "gone"]
    choose(page, box, "moved, gone or new, 3")
    assert column(page, box, 6) == ["gone", "new", "moved"]
    assert texts(page, f"{box} .was") == ["was Net.classifier"]
    choose(page, box, "all")
    page.type(f"{box} input", "difference>100us")
    assert column(page, box, 1) == ["Net.body.linear2"]
    page.go("memory")
    assert [column(page, "#table-memory", at) for at in (2, 3, 4)] == [
        ["1.00 MiB"], ["3.00 MiB"], ["+2.00 MiB"]]  # fmt: skip
    page.go("functions")
    assert (
        "311 of both sides with next to no difference are not listed"
        in texts(page, "#table-functions")[0]
    )
    # A row of the first view leads to its own.
    page.go("overview")
    page.click("#tops .top a[href*='linear2']")
    assert texts(page, "tr.marked td:first-child") == ["Net.body.linear2"]


def test_modules_are_as_wide_as_their_larger_side_and_coloured_by_their_difference(compared):
    page = compared(comparison(), at="modules")
    page.evaluate(DRAWN)
    labels, values, colours = page.evaluate(
        "(({ labels, values, marker }) => [labels, values, marker.colors])("
        "document.querySelector('.plot').data[0])"
    )
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
    page.evaluate("document.querySelector('#picture-modules .chart').focus()")
    for key in ("ArrowDown", "ArrowDown"):
        page.key(key)
    assert "Net, −8.7 %" in texts(page, "#announced")[0]


def test_what_is_not_there_is_left_out_with_its_reason(compared):
    verdict = comparison()["verdict"] | {"slug": "unclear", "ratio": None, "ci95_low": None,
        "ci95_high": None, "floor": None, "spread": None, "reason": "too few steps"}  # fmt: skip
    lone = {"before": comparison()["before"] | {"medians_s": []}}
    lone |= {"after": comparison()["after"] | {"medians_s": []}}
    rows = [
        table_row("a", change(0.1, 0.2, False)),
        table_row("b", change(0.1, None, difference=None)),
    ]
    page = compared(
        comparison(verdict=verdict, answers=[], inequalities=[], parts=[], findings=[], gates=[],
            tables=[table("modules", "Modules", "s", rows), table("kernels", "Kernels", "s", [],
            reason="no accelerator")], **lone), at="")  # fmt: skip
    gone = (".ratio", "#gates", ".two-bars", "#side-medians .dot")
    assert [count(page, one) for one in gone] == [0] * 4
    assert "Too few steps." in texts(page, ".ratio-words")[0]
    assert texts(page, "#status .chip") == ["cannot tell"]
    assert texts(page, "#no-tables li") == [
        "Modules: no row differs by more than noise.",
        "Kernels: no accelerator.",
    ]
    assert texts(page, "#views a")[:3] == ["Answer", "Modules", "Glossary"]
    page.go("modules")
    reason = page.evaluate("document.querySelector('#table-modules tbody tr .none').title")
    assert reason == "one recording a side"
    # Work of another kind is said before the answer, and is marked.
    other = {"slug": "device", "text": "the device", "before": None, "after": "cuda:0"}
    page = compared(comparison(inequalities=[other | {"severity": "high"}]), at="")
    assert count(page, "#inequalities.high .chip") == 1


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (420, True)])
def test_names_are_text_in_every_view_and_nothing_is_too_wide(compared, width, dark):
    page = compared(hostile(), at="", fresh=True, width=width, dark=dark)
    assert page.evaluate("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    views = page.evaluate("[...document.querySelectorAll('.view')].map((one) => one.dataset.view)")
    assert len(views) == 7
    for view in views:
        page.go(view)
        page.evaluate(snippet("scroll_through"))
        assert page.evaluate(snippet("beyond")) == [True, []], view
        assert page.evaluate(snippet("named_markup")) == [None, 0, 0], view


def test_a_page_of_very_many_rows_says_what_it_left_out(compared):
    made = large(3_000, 5_000, 10)
    page = compared(made, at="functions")
    assert len(column(page, "#table-functions", 1)) == 20
    assert "2,000 of 5,000 rows" in texts(page, "#table-functions .left-out")[0]
    assert "all are in compare.json" in texts(page, "#table-functions .left-out")[0]
    # Of the modules that are not drawn one by one the picture has the sum.
    page.go("modules")
    page.evaluate(DRAWN)
    areas = page.evaluate("document.querySelector('.plot').data[0].values")
    modules = (row["change"] for row in made["tables"][0]["rows"])
    whole = sum(max(one["before"], one["after"]) for one in modules)
    assert (areas[0], len(areas) < 1_500) == (pytest.approx(whole), True)
