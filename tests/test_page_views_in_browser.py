"""The page's frame in a browser: views, addresses, rows found, filters, copies, keys, paper."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from data_full_report import full, on_a_device
from data_report import HOSTILE, build, row
from data_whole_report import whole
from page_browser import EXECUTABLE, Browser, choose, column, count, pages, shared, texts

from profstack.report import html
from profstack.units import format_count

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(EXECUTABLE is None, reason="there is no Chromium on this machine"),
]

Opened = Callable[..., Browser]
_VIEWS = (
    *("overview", "modules", "operators", "kernels", "python", "source", "memory", "flops"),
    *("benchmark", "ranges", "method", "environment", "glossary"),
)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Opens the page of a report; at the end nothing may be broken."""
    with pages(tmp_path) as open_page:
        yield open_page


def with_kernels() -> dict[str, Any]:
    """A report in which every view has something."""
    report = on_a_device()
    report["tables"]["kernels"] = [
        row("kernels", name="gemm", calls=1.0, device_s=1e-4, device="cuda:0", module=module,
            operator="aten::mm")
        for module in ("Digits.features.0", "Digits.classifier.0")
    ]  # fmt: skip
    return report


def on_screen(page: Browser) -> list[str]:
    """The views that are to be seen."""
    return texts(page, ".view:not([hidden]) > h2")


def go(page: Browser, address: str) -> None:
    """Put an address into the browser's bar."""
    page.evaluate(f"location.hash = {json.dumps(address)}")
    page.settle()


def test_one_view_at_a_time_each_drawn_when_it_is_opened(opened: Opened) -> None:
    page = opened(with_kernels(), at="")
    assert on_screen(page) == ["Overview"]
    assert count(page, ".view:not(#view-overview) tbody") == 0, "nothing else is drawn yet"
    ways = page.evaluate(
        "[...document.querySelectorAll('#views a')].map(one => one.getAttribute('href'))"
    )
    assert ways == [f"#{view}" for view in (*_VIEWS, "all")]
    for at, view in enumerate(_VIEWS):
        page.click("#views a", at)
        assert len(on_screen(page)) == 1
        assert count(page, f"#view-{view}:not([hidden])") == 1
        assert page.evaluate("document.activeElement.id") == f"title-{view}"
        assert texts(page, "#views [aria-current=page]") == on_screen(page)
        assert page.evaluate(f"document.querySelector('#view-{view}').innerText.length") > 60
    assert count(page, "h1") == count(page, "main") == count(page, "nav") == 1


def test_what_was_not_recorded_is_not_in_the_navigation(opened: Opened) -> None:
    page = opened(build(), at="kernels")
    assert "Kernels" not in texts(page, "#views a")
    assert on_screen(page) == ["Overview"]
    assert "nothing for “Kernels”" in texts(page, "#note")[0]
    go(page, "#no-such-thing/x")
    assert "Nothing on this page is called “no-such-thing/x”" in texts(page, "#note")[0]
    go(page, "#modules")
    assert count(page, "#note[hidden]") == 1


def test_back_leads_to_where_the_view_was_left(opened: Opened) -> None:
    page = opened(full(), at="glossary", height=500)
    page.evaluate("window.scrollTo(0, 400)")
    page.click("#views a[data-view=modules]")
    assert page.evaluate("window.scrollY") == 0
    page.evaluate("history.back()")
    page.settle()
    assert on_screen(page) == ["Glossary"]
    assert page.evaluate("window.scrollY") == 400
    page.evaluate("history.forward()")
    page.settle()
    assert on_screen(page) == ["Modules"]


@pytest.mark.parametrize(
    ("address", "view"),
    [("functions", "Python"), ("lines", "Source"), ("layers", "How it was measured"),
     ("files", "Environment"), ("benchmark/samples", "Benchmark")],
)  # fmt: skip
def test_parts_of_a_view_have_addresses_too(opened: Opened, address: str, view: str) -> None:
    page = opened(full(), at=address)
    assert on_screen(page) == [view]
    assert count(page, "#note[hidden]") == 1


def test_a_term_leads_to_its_words(opened: Opened) -> None:
    page = opened(full(), at="modules")
    page.click("#view-modules a[href='#term-calibrated']")
    assert on_screen(page) == ["Glossary"]
    go(page, "#glossary/knee")
    assert texts(page, ".marked dt") == ["knee"]


def many_operators(most: int) -> dict[str, Any]:
    report = build()
    report["tables"]["operators"] += [
        row("operators", name=f"aten::op{at}", shapes="[]", calls=1.0, self_s=1e-9 * at)
        for at in range(most)
    ]
    return report


def marked(page: Browser) -> str:
    """The first cell of the marked row, which must be on the screen and have the focus."""
    inside = (
        "(() => { const one = document.querySelector('tr.marked'); const box = "
        "one.getBoundingClientRect(); return box.top > 0 && box.bottom < innerHeight && "
        "document.activeElement === one; })()"
    )
    assert page.evaluate(inside)
    return texts(page, "tr.marked td:first-child")[0]


def test_a_row_is_found_beyond_the_first_ones_and_by_a_click_on_its_address(opened: Opened) -> None:
    page = opened(many_operators(300), at="operators/" + quote("aten::op7", safe=""))
    assert marked(page) == "aten::op7"
    # Going on to another row of the same view takes the search off that hides it.
    page.type("#operator-table input[type=search]", "addmm")
    assert count(page, "#operator-table tbody tr.marked") == 0
    go(page, "#operators/" + quote("aten::op9", safe=""))
    assert marked(page) == "aten::op9"
    way = page.evaluate("document.querySelector('tr.marked a.anchor').getAttribute('href')")
    assert way == "#operators/aten%3A%3Aop9"


def test_a_row_that_was_left_out_says_where_it_is(opened: Opened) -> None:
    page = opened(many_operators(2_500), at="operators/" + quote("aten::op7", safe=""))
    said = texts(page, "#note:not([hidden])")[0]
    assert "“aten::op7” is not among the rows of this page" in said
    assert "2,000 of 2,5" in said
    assert "recording.sqlite" in said


def test_a_module_is_found_in_its_tree_and_leads_to_what_lies_in_it(opened: Opened) -> None:
    page = opened(with_kernels(), at="modules/Digits.classifier.0")
    assert "0" in marked(page)
    ways = page.evaluate(
        "[...document.querySelectorAll('tr.marked .row-ways a')].map(one => "
        "[one.dataset.text, one.getAttribute('href')])"
    )
    assert ["operators", "#operators?module=Digits.classifier.0"] in ways
    assert ["kernels", "#kernels?module=Digits.classifier.0"] in ways
    page.evaluate("document.querySelector('tr.marked .row-ways [data-text=operators]').click()")
    page.settle()
    assert on_screen(page) == ["Operators"]
    assert "Only module Digits.classifier.0" in texts(page, "#filter:not([hidden])")[0]
    shown = "#operator-table .scroll:not([hidden] *) tbody tr"
    assert count(page, shown) == 2
    page.click("#filter a")
    assert count(page, "#filter[hidden]") == 1
    assert count(page, shown) > 2


def test_conditions_on_columns_narrow_a_table(opened: Opened) -> None:
    page = opened(full(), at="operators")
    choose(page, "#operator-table", "by shapes and module")
    box = "#operator-table > * > * > div:not([hidden])"
    for typed, rows in (
        ("self>300us", 2), ("self>=300us self<400us", 2), ("calls=2", 1), ("module:classifier", 2),
        ('"aten::mm"', 1), ("convolution backward", 2), ("nosuch>1", 0), ("self>0.2ms mkldnn", 1),
    ):  # fmt: skip
        page.evaluate(
            "(() => { const field = [...document.querySelectorAll('#operator-table input')]"
            f".find(one => one.offsetParent); field.value = {typed!r};"
            " field.dispatchEvent(new Event('input', {bubbles: true})); })()"
        )
        page.settle(120)
        visible = page.evaluate(
            "[...document.querySelectorAll('#operator-table tbody tr')]"
            ".filter(one => one.offsetParent).length"
        )
        assert visible == rows, (typed, box)


def test_a_condition_that_is_none_says_so(opened: Opened) -> None:
    page = opened(full(), at="operators")
    lack = "[...document.querySelectorAll('#operator-table .lack')].map(one => one.textContent)"
    for typed, said in (
        ("module:encoder", "no column 'module' here: sought as text"),
        ("self>abc", "'abc' is no figure: sought as text"),
        ("self>1ms nosuch>1", "no column 'nosuch' here: sought as text"),
        ("aten::mm self>1us", ""),
        ("", ""),
    ):
        page.type("#operator-table input[type=search]", typed)
        assert page.evaluate(lack)[0] == said, typed
    go(page, "#modules")
    page.type("#module-tree input[type=search]", "operator:conv")
    assert texts(page, "#module-tree .lack") == ["no column 'operator' here: sought as text"]


def test_counts_are_written_as_in_the_terminal(opened: Opened) -> None:
    report = full()
    values = (
        0.0123,
        0.25,
        0.999,
        2.5,
        7.0,
        10.04,
        250.0,
        999.6,
        1_200.0,
        25_000.0,
        50_600.0,
        17_960_000_000.0,
        2e21,
    )
    first = report["tables"]["operators"][0]
    report["tables"]["operators"] = [
        {**first, "name": f"op{at}", "calls": value, "self_s": 1.0 - at / 100}
        for at, value in enumerate(values)
    ]
    page = opened(report, at="operators")
    heads = [head.strip("▲▼") for head in texts(page, "#operator-table table:first-child th")]
    calls = column(page, "#operator-table", 1 + heads.index("calls"))
    assert calls[: len(values)] == [format_count(value) for value in values]


def test_parts_of_a_step_have_no_forward_time(opened: Opened) -> None:
    report = full()
    parts = {one["path"]: one for one in report["tables"]["modules"] if one["path"][0] == "("}
    assert parts["(optimizer)"]["forward_s"]
    parts["(loss)"] = {**parts["(optimizer)"], "path": "(loss)"}
    report["tables"]["modules"].append(parts["(loss)"])
    page = opened(report, at="modules")
    forward = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('#module-tree tbody tr')].map(row =>"
        " [row.querySelector('.name').textContent, (row.children[2].querySelector('.none') ||"
        " row.children[2]).title]))"
    )
    for path, part in parts.items():
        if path == "(loss)":
            assert "raw: as the torch layer saw it" in forward[path]
        elif part["forward_s"] is not None:
            assert forward[path].startswith("it is not a module's forward"), path


def test_characters_that_turn_the_writing_are_written_out(opened: Opened) -> None:
    report = full()
    name = "\u202elive\u2066.\x07"
    report["tables"]["operators"][0]["name"] = name
    report["script"] = name
    page = opened(report, at="")
    assert texts(page, "#script") == ["\\u202elive\\u2066.\\u0007"]
    go(page, "#operators/" + quote(name, safe=""))
    assert "\\u202elive\\u2066.\\u0007" in marked(page)
    turned = page.evaluate("/[\u202a-\u202e\u2066-\u2069]/.test(document.body.innerText)")
    assert turned is False
    hovers = "[...document.querySelectorAll('main [title]')].map(one => one.title).join('')"
    assert "\u202e" not in page.evaluate(hovers)


def copied(page: Browser, box: str, kind: str) -> str:
    """What a copy button gives where there is no clipboard: a selected text to copy by hand."""
    page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    choose(page, box, kind)
    assert page.evaluate(
        "(() => { const area = document.querySelector('.to-copy textarea');"
        " return area === document.activeElement && area.selectionEnd === area.value.length; })()"
    )
    found = page.evaluate("document.querySelector('.to-copy textarea').value")
    page.evaluate("document.querySelector('.to-copy').close()")
    assert isinstance(found, str)
    return found


def test_tables_are_copied_in_full_and_as_shown(opened: Opened) -> None:
    report = full()
    records = report["tables"]["ranges"]
    records[0] |= {"name": '=cmd|"/c calc"', "emit_s": 2.12345678912e-06}
    records[1] |= {"name": "-1+1", "emit_s": -2.5e-06}
    page = opened(report, at="ranges")
    rows = copied(page, "#range-table", "CSV").splitlines()
    assert rows[0] == "kind,name,calls,emit_s"
    assert 'step,"\'=cmd|""/c calc""",1,0.00000212345679' in rows
    assert "backward,'-1+1,1,-0.0000025" in rows, "a number below 0 is a number"
    shown = copied(page, "#range-table", "Markdown").splitlines()
    assert shown[:2] == ["| kind | name | calls | emitting |", "| --- | --- | ---: | ---: |"]
    assert any("2.12 µs" in line and "=cmd\\|" in line for line in shown)
    title = page.evaluate("document.querySelector('#range-table .copies .copy').title")
    assert title.endswith("whole numbers in full, others to nine digits")


def test_a_tree_copies_folded_rows_too_as_csv(opened: Opened) -> None:
    page = opened(build(), at="modules")
    choose(page, "#module-tree", "roots")
    listed = copied(page, "#module-tree", "Markdown").splitlines()
    assert len(listed) == 2 + count(page, "#module-tree tbody tr")
    rows = copied(page, "#module-tree", "CSV").splitlines()
    assert len(rows) == 1 + len(build()["tables"]["modules"])
    assert any(line.startswith("Digits.features.0,") for line in rows)


def test_the_clipboard_is_used_where_there_is_one(opened: Opened) -> None:
    page = opened(full(), at="ranges")
    page.evaluate(
        "window.taken = null; Object.defineProperty(navigator, 'clipboard', "
        "{value: {writeText: text => { window.taken = text; return Promise.resolve(); }}})"
    )
    choose(page, "#range-table", "CSV")
    assert page.evaluate("window.taken").startswith("kind,name,")
    assert "copied" in texts(page, "#range-table .copies button")


def test_every_number_says_its_layer_and_its_sense(opened: Opened) -> None:
    page = opened(with_kernels())
    silent = page.evaluate(
        "[...document.querySelectorAll('.scroll table:not(.listing) td.number')]"
        ".filter(one => /\\d/.test(one.textContent))"
        ".filter(one => one.closest('table').querySelector('th button'))"
        ".filter(one => !/clean|calibrated|raw|counted|fact/.test(one.title))"
        ".map(one => one.closest('section').id + ': ' + one.textContent)"
    )
    assert silent == []
    titles = page.evaluate(
        "[...document.querySelectorAll('#module-tree td')].map(one => one.title)"
    )
    assert any("calibrated: seen by the torch layer" in one for one in titles)
    assert any("counted by FlopCounterMode, 1 step" in one for one in titles)


def test_a_tree_is_walked_through_by_keys(opened: Opened) -> None:
    page = opened(build(), at="modules")
    choose(page, "#module-tree", "roots")
    page.evaluate("document.querySelector('#module-tree tbody tr').focus()")
    rows = count(page, "#module-tree tbody tr")
    page.key("ArrowRight")
    assert count(page, "#module-tree tbody tr") == rows + 2
    page.key("ArrowRight")
    focused = "document.activeElement.getAttribute('aria-level')"
    assert page.evaluate(focused) == "2"
    page.key("ArrowLeft")
    assert page.evaluate(focused) == "1"
    page.key("ArrowLeft")
    assert count(page, "#module-tree tbody tr") == rows
    page.key("End")
    assert "(not attributed)" in page.evaluate("document.activeElement.textContent")
    assert count(page, "#module-tree tbody tr[tabindex='0']") == 1
    page.key("Home")
    page.key("Enter")
    assert page.evaluate("location.hash") == "#modules/Digits"


@pytest.mark.parametrize(
    ("view", "box"),
    [
        ("modules", "#module-tree"),
        ("python", "#function-groups"),
        ("python", "#call-paths"),
        ("ranges", "#region-table"),
        ("operators", "#operator-table"),
    ],
)
def test_sorting_by_keys_keeps_the_focus(opened: Opened, view: str, box: str) -> None:
    page = opened(with_kernels(), at=view)
    heads = f"document.querySelectorAll('{box} th button')"
    page.evaluate(f"{heads}[1].focus()")
    for direction in ("descending", "ascending", "descending"):
        before = page.evaluate(f"{heads}[1].closest('th').getAttribute('aria-sort')")
        page.key("Enter")
        after = page.evaluate("document.activeElement.closest('th')?.getAttribute('aria-sort')")
        assert after in ("ascending", "descending"), direction
        assert after != before


def test_showing_more_rows_by_keys_keeps_the_focus(opened: Opened) -> None:
    report = build()
    first = report["tables"]["operators"][0]
    report["tables"]["operators"] = [{**first, "name": f"op{at}"} for at in range(130)]
    page = opened(report, at="operators")
    focused = "document.activeElement"
    page.evaluate("document.querySelector('#operator-table .more button').focus()")
    page.key("Enter")
    assert page.evaluate(f"{focused}.textContent") == "Show 10 more"
    page.key("Enter")
    assert count(page, "#operator-table .call-view > div > div:first-child tbody tr") == 130
    assert page.evaluate(f"{focused}.getAttribute('aria-label')") == "table: operators"


def test_names_that_are_cut_stand_whole_on_hover(opened: Opened) -> None:
    page = opened(with_kernels(), at="modules")
    names = "[...document.querySelectorAll('#module-tree button.name')]"
    paths = [row["path"] for row in with_kernels()["tables"]["modules"]]
    titles = page.evaluate(f"{names}.map(one => one.title.split('\\n')[0])")
    assert titles
    assert set(titles) <= set(paths)
    script = "document.getElementById('script')"
    assert page.evaluate(f"{script}.title === {script}.textContent")
    go(page, "#source")
    cells = (
        "[...document.querySelectorAll('#%s tbody tr')]"
        ".map(one => one.children[%d]).filter(one => !one.querySelector('.none'))"
        ".filter(one => one.title.trim() !== one.textContent.trim()).map(one => one.textContent)"
    )
    assert page.evaluate(cells % ("line-table", 2)) == []
    assert page.evaluate(cells.replace("textContent.trim()", "querySelector('a').textContent")
                         % ("module-line-table", 0)) == []  # fmt: skip


def test_a_narrow_overview_cuts_no_way_of_the_verdict(opened: Opened) -> None:
    page = opened(whole(), at="overview", width=400)
    cut = (
        "[...document.querySelectorAll('.tests .test-words')]"
        ".filter(one => one.scrollWidth > one.clientWidth + 1 || one.clientWidth < 250).length"
    )
    assert count(page, ".tests .test-words .way")
    assert page.evaluate(cut) == 0


def test_hostile_names_are_keys_like_any_other(opened: Opened) -> None:
    report = build()
    report["tables"]["operators"][0]["name"] = HOSTILE
    page = opened(report, at="operators/" + quote(HOSTILE, safe=""))
    assert marked(page) == HOSTILE
    go(page, "#" + quote(HOSTILE, safe=""))
    go(page, "#operators?module=" + quote(HOSTILE, safe=""))
    assert HOSTILE in texts(page, "#filter")[0]
    assert page.evaluate("window.broken") is None
    assert count(page, "main img") == 0


def test_no_view_is_wider_than_a_narrow_window(opened: Opened) -> None:
    page = opened(with_kernels(), at="", width=400, height=800, dark=True)
    for view in _VIEWS:
        go(page, f"#{view}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, view


def test_paper_is_white_and_has_the_view_alone(opened: Opened) -> None:
    page = opened(full(), at="modules", dark=True)
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.call("Emulation.setEmulatedMedia", media="print", features=dark)
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    for hidden in ("#views", ".tools", "#theme"):
        assert (
            page.evaluate(f"getComputedStyle(document.querySelector('{hidden}')).display") == "none"
        )
    page.call("Emulation.setEmulatedMedia", media="", features=dark)
    assert page.evaluate(ground) != "rgb(255, 255, 255)"
    # What is folded is unfolded on paper, and folded again after it.
    folded = count(page, "#view-modules details:not([open])")
    assert folded
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert count(page, "#view-modules details:not([open])") == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert count(page, "#view-modules details:not([open])") == folded


def test_a_browser_that_cannot_inflate_says_so_and_shows_the_overview(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    html.write(build(), path)
    added = shared().call(
        "Page.addScriptToEvaluateOnNewDocument", source="delete window.DecompressionStream"
    )
    try:
        shared().open(path)
        assert "4.01 ms" in texts(shared(), "#view-overview")[0]
        go(shared(), "#modules")
        assert "this browser cannot inflate" in texts(shared(), "#view-modules .broken")[0]
    finally:
        shared().call("Page.removeScriptToEvaluateOnNewDocument", identifier=added["identifier"])


def test_all_views_stand_on_one_page_when_asked_for(opened: Opened) -> None:
    page = opened(with_kernels(), at="all")
    assert len(on_screen(page)) == len(_VIEWS)
    assert len(column(page, "#module-tree", 1)) > 5
