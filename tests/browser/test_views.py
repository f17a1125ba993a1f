"""views.js: addresses, links, filters, what a view is when it is opened, and packed parts."""

import json

from tests.support.browser import snippet, texts
from tests.support.full_report import whole
from tests.support.lab import run_page
from tests.support.processes import TESTS

PLACES = {
    "modules": "modules|Modules|||Modules||title-modules",
    "modules/Digits.features": "modules|Modules|||Modules|features|",
    "operators?module=Digits": "operators|Operators||Digits|Operators||title-operators",
    "operators": "operators|Operators|||Operators||",
    "python/train.py%3A61%3Amain": "python|Python|||Python|main|",
    "term-clean": "glossary|Glossary|||Glossary|term-clean|term-clean",
    "steps": "benchmark|Benchmark|||Benchmark||",
    "glossary/clean": "glossary|Glossary|||Glossary|term-clean|term-clean",
    "": "overview|train.py|||Overview||title-overview",
}


def go(page, address):
    page.go(address)
    return page.evaluate(snippet("here"))


def test_addresses_lead_to_views_rows_parts_and_filters(opened):
    page = opened(whole(), at="", fresh=True)
    for address, place in PLACES.items():
        assert "|".join(go(page, address)) == place, address
    for address, view, word in (
        ("modules/nothing", "modules", "nothing"),
        ("no%20such", "overview", "no such"),
        ("nsys", "overview", "Nsight Systems"),
    ):
        told = go(page, address)
        assert [told[0], word in told[2]] == [view, True]
    every = go(page, "all")
    views = "overview modules operators kernels python source memory flops benchmark ranges method"
    assert [every[0], every[4]] == [f"{views} environment glossary", "All on one page"]


def test_the_navigation_keeps_where_it_was(opened):
    page = opened(whole(), at="modules", fresh=True)
    page.evaluate("scrollTo(0, 300)")
    page.evaluate("document.querySelector('#views a[data-view=operators]').click()")
    page.wait_for("location.hash === '#operators' && scrollY === 0")
    # A link begins at the top; going back is where it was left.
    page.evaluate("history.back()")
    page.wait_for("location.hash === '#modules' && scrollY === 300")


def test_the_navigation_brings_what_it_hides_into_its_middle(lab):
    # It shows 10 to 50; a way is 20 high.
    lab.check(snippet("navigation_scroll"), {9: -11, 10: 0, 30: 0, 31: 11})


def test_every_kind_of_link_leads_where_it_says(opened):
    page = opened(whole(), at="", fresh=True)
    found = page.evaluate((TESTS / "support" / "page_crawl.js").read_text(encoding="utf-8") + "(2)")
    kinds = (
        "modules/", "operators/", "python/", "source/", "method/", "glossary/", "operators?",
        "kernels?",
    )  # fmt: skip
    assert found["failures"] == []
    assert found["followed"] > 40
    assert [kind for kind in kinds if found["kinds"][kind] < 2] == []


def test_a_part_that_cannot_be_inflated_or_drawn_says_so(opened):
    page = opened(whole(), at="", fresh=True)
    page.evaluate("document.querySelector('#pack-operators').textContent = 'H4sIAAAAAAAAA'")
    assert go(page, "operators")[0] == "operators"
    assert "report.json" in texts(page, "#view-operators .broken")[0]
    page.evaluate("document.querySelector('#memory-legend').remove()")
    go(page, "memory")
    assert "This part could not be drawn" in texts(page, "#view-memory .broken")[0]
    assert (go(page, "modules")[0], len(page.errors())) == ("modules", 1), "the others are drawn"
    broken = "document.querySelectorAll('.broken:not(noscript *)')"
    page.evaluate(f"{broken}.forEach((one) => one.remove())")
    page._events.clear()


def test_addresses_are_read_and_written(lab):
    lab.js(f"lab.prepare({json.dumps(run_page())}) && 0")
    ways = {
        ("modules", "a b/c?d"): "#modules/a%20b%2Fc%3Fd",
        ("modules", None): "#modules", ("x", "0"): "#x/0", ("x", "%3Cb>"): "#x/%253Cb%3E",
    }  # fmt: skip
    lab.check("T.views.wayTo", ways)
    filtered = "(view) => T.views.linkFiltered(view, {module: 'a b&c'}, 't').getAttribute('href')"
    lab.check(filtered, {"operators": "#operators?module=a+b%26c"})
    places = {
        "": ("overview", None, {}), "#all/x": ("all", "x", {}),
        "#modules/a%2Fb?module=x": ("modules", "a/b", {"module": "x"}),
        "#modules/%E0%A4%A": ("modules", "%E0%A4%A", {}),
        "#modules?x=1&y=2?3": ("modules", None, {"x": "1", "y": "2?3"}),
    }  # fmt: skip
    found = lab.values("T.views.placeOf", places)
    assert [(one["view"], one["key"], one["filter"]) for one in found] == [*places.values()]
    within = {"net.a": True, "net.a.b": True, "net.ab": False, "net": False, None: False}
    lab.check("(path) => T.views.isWithin(path, 'net.a')", within)


def test_packed_parts_are_inflated(lab):
    assert lab.script("unpacked") == {"tables": {"u": 1, "t": [7]}, "parts": {"mine": 1}, "x": 1}
    assert "no part called y" in lab.js("T.views.unpack('y').catch((error) => error.message)")
