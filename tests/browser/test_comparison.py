"""comparison.js: the answer on the page of a comparison, its bars, and names that are only text."""

import math

import pytest

from tests.support.browser import count, snippet, texts
from tests.support.comparisons import STEP_PARTS, change, comparison, hostile, table, table_row

_PLACED = "[...document.querySelectorAll('%s')].map((one) => [one.style.left, one.style.width])"


def placed(page, selector):
    """Where elements begin and how wide they are, in shares of what they lie in."""
    found = page.evaluate(_PLACED % selector)
    return [tuple(float(text.rstrip("%") or 0) / 100 for text in one) for one in found]


def test_the_answer_stands_before_what_it_rests_on(opened):
    made = comparison()
    verdict = made["verdict"]
    page = opened(made, at="")
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
    assert texts(page, "#gate-list .chip") == ["kept", "broken"]
    assert "memory > 50%" in texts(page, "#gate-list li")[1]
    assert count(page, "#side-medians .dot") == 6
    # What has a rule leads to it.
    assert texts(page, "#finding-list a") == ["data-starved"]
    page.click("#finding-list a")
    assert "data-starved" in texts(page, ".marked")[0]


def test_the_bars_have_one_scale_and_the_parts_lead_from_before_to_after(opened):
    page, parts = opened(comparison(), at=""), STEP_PARTS
    sides = [sum(part[at] for part in parts) for at in (1, 2)]
    widths = placed(page, "#step-parts .composition")
    assert [width for _, width in widths] == [pytest.approx(one / max(sides)) for one in sides]
    grow = "[...document.querySelectorAll('#step-parts .piece')].map((one) => one.style.flexGrow)"
    shares = [part[at] / sides[at - 1] for at in (1, 2) for part in parts]
    assert list(map(float, page.evaluate(grow))) == pytest.approx(shares, rel=1e-4)
    # The largest difference first, noise last.
    ordered = sorted(parts, key=lambda part: (part[3] is False, -abs(part[2] - part[1])))
    names = [name.strip() for name in texts(page, "#step-parts .fall-name")]
    assert names == ["before", *(part[0] for part in ordered), "after"]
    assert texts(page, "#step-parts .fall-sides")[1] == "810 µs → 200 µs"
    noisy = [part[0] for part in ordered if part[3] is False]
    assert texts(page, "#step-parts li.noise .fall-name") == noisy
    causes = texts(page, "#step-parts .fall-cause")
    for part, said in zip(ordered, causes, strict=True):
        assert ("noise" in said) == (part[3] is not True)
        assert f"{part[4] or ''}" in said
        assert part[5] is None or f"{part[5]}:{part[6]}" in said
    # Each piece begins where the one above it ended, up to the mark of the second side.
    (first, _), *moves, (last, _) = placed(page, "#step-parts .fall-lane span")
    scale = (last - first) / (sides[1] - sides[0])
    at = first
    for part, (left, width) in zip(ordered, moves, strict=True):
        to = at + scale * (part[2] - part[1])
        assert (left, left + width) == pytest.approx((min(at, to), max(at, to)), abs=2e-4)
        at = to
    assert at == pytest.approx(last, abs=2e-4)
    assert texts(page, "#step-parts .fall-difference")[-1] == "−740 µs −26 %"


def test_what_is_not_there_is_left_out_with_its_reason(opened):
    verdict = comparison()["verdict"] | {"slug": "unclear", "ratio": None, "ci95_low": None,
        "ci95_high": None, "floor": None, "spread": None, "reason": "too few steps"}  # fmt: skip
    rows = [table_row("a", change(0.1, 0.2, False))]
    page = opened(
        comparison(verdict=verdict, answers=[], inequalities=[], parts=[], findings=[], gates=[],
            tables=[table("modules", "Modules", "s", rows), table("kernels", "Kernels", "s", [],
            reason="no accelerator")]), at="")  # fmt: skip
    gone = (".ratio", "#gates", ".two-bars")
    assert [count(page, one) for one in gone] == [0] * 3
    assert "Too few steps." in texts(page, ".ratio-words")[0]
    assert texts(page, "#status .chip") == ["cannot tell"]
    reasons = ["Modules: no row differs by more than noise.", "Kernels: no accelerator."]
    assert texts(page, "#no-tables li") == reasons
    assert texts(page, "#views a")[:3] == ["Answer", "Modules", "Glossary"]


def test_names_are_text_and_nothing_is_too_wide(opened):
    page = opened(hostile(), at="all", fresh=True, dark=True)
    for width in (1400, 420):
        page.resize(width, 900)
        page.evaluate(snippet("scroll_through"))
        page.settle()
        assert page.evaluate(snippet("beyond")) == [True, []], width
    assert page.evaluate(snippet("named_markup")) == [None, 0, 0]
