"""The source view in a browser: whole files with gutters, folds, sums, and what a line was of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from data_full_report import full, on_a_device
from data_overview import LENGTH, add_sources, add_verdict, make_hostile
from data_report import HOSTILE, row
from page_browser import EXECUTABLE, Browser, choose, count, pages, texts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(EXECUTABLE is None, reason="there is no Chromium on this machine"),
]
Opened = Callable[..., Browser]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Opens the page of a report; at the end nothing may be broken."""
    with pages(tmp_path) as open_page:
        yield open_page


def _heads(page: Browser) -> list[str]:
    return texts(page, ".listing th")[:-1]


def _line(page: Browser, number: int) -> list[str]:
    return texts(page, f".listing tr[data-line='{number}'] td")


def test_lines_with_figures_stand_among_the_others_of_their_file(opened: Opened) -> None:
    page = opened(add_sources(full()), at="source")
    assert _heads(page) == ["line", "time", "memory", "calls"]
    assert _line(page, 68) == ["68", "1.78 ms", "64.0 MiB", "1", "        loss.backward()"]
    assert _line(page, 70) == ["70", "", "# line 70"]
    # Long stretches without figures are folded but for the lines at their ends.
    folds = texts(page, ".listing tr.fold button")
    hidden = sum(int(fold.split()[1]) for fold in folds)
    assert all(fold.endswith(" lines without figures") for fold in folds)
    assert count(page, ".listing tr[data-line]") == LENGTH - hidden
    assert _line(page, 78) == []
    for _ in folds:
        page.click(".listing tr.fold button")
    assert count(page, ".listing tr[data-line]") == LENGTH


def test_the_gutters_sum_to_the_lines_of_the_file(opened: Opened) -> None:
    report = add_sources(full())
    page = opened(report, at="source")
    own = [
        record for record in report["tables"]["lines"]
        if record["file"] == "train.py" and record["python_s"] is not None
    ]  # fmt: skip
    whole = sum(record["python_s"] + record["operator_s"] for record in own)
    assert texts(page, "[data-sum=time_s]") == [f"{whole * 1e3:.2f} ms"]
    choose(page, "#line-tools", "time")
    assert _heads(page)[1:4] == ["time", "python", "operators"]
    operators = sum(record["operator_s"] for record in own)
    assert texts(page, "[data-sum=operator_s]") == [f"{operators * 1e3:.2f} ms"]
    # What was not added up has no sum: calls of different lines are no calls of the file.
    assert texts(page, "[data-sum=calls]") == [""]


def test_the_warmest_number_is_that_of_the_longest_line(opened: Opened) -> None:
    page = opened(add_sources(full()), at="source")
    heats = page.evaluate(
        "[...document.querySelectorAll('.listing .heat')]"
        ".map(one => [one.textContent, parseFloat(one.style.getPropertyValue('--heat'))])"
    )
    assert max(heats, key=lambda pair: pair[1]) == ["68", 100]


def test_an_address_opens_its_line_and_what_it_was_spent_on(opened: Opened) -> None:
    page = opened(add_sources(full()), at="source/train.py:68")
    assert page.evaluate("document.querySelector('.marked').dataset.line") == "68"
    assert count(page, ".line-detail") == 1
    parts = texts(page, ".line-parts .parts .top-name")
    assert [part.split("operators")[0] for part in parts] == [
        "Digits.features.0", "Digits.classifier.0", "outside modules", "(gradient accumulation)"
    ]  # fmt: skip
    assert texts(page, ".line-parts .parts li")[0].endswith("1.00 ms1.00 ms backward")
    assert "64.0 MiB" in texts(page, ".line-parts .pairs")[0]
    page.click(".line-parts .parts a")
    assert page.evaluate("window.location.hash") == "#modules/Digits.features.0"


def test_a_line_without_figures_has_an_address_too(opened: Opened) -> None:
    page = opened(add_sources(full()), at="source/train.py:100")
    assert page.evaluate("document.querySelector('.marked').dataset.line") == "100"
    assert count(page, ".line-detail") == 0
    page = opened(add_sources(full()), at=f"source/train.py:{LENGTH + 1}")
    assert "is not among the rows" in texts(page, "#note")[0]


def test_the_number_opens_and_closes_and_keeps_the_focus(opened: Opened) -> None:
    page = opened(add_sources(full()), at="source")
    page.click(".listing tr[data-line='45'] button")
    assert count(page, ".line-detail") == 1
    assert page.evaluate("document.activeElement.textContent") == "45"
    assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
    page.click(".listing tr[data-line='45'] button")
    assert count(page, ".line-detail") == 0


def test_a_file_without_text_shows_its_lines_and_why(opened: Opened) -> None:
    page = opened(add_sources(full()), at="source/augment.py:8")
    assert texts(page, ".listing tr[data-line] .code") == [
        "    return x + 0.01 * torch.randn_like(x)"
    ]
    assert "⋯ 7 lines not recorded" in texts(page, ".listing .fold")[0]
    assert "since it has more than 200 kB." in texts(page, "#source-listing .left-out")[0]


def test_files_of_libraries_are_chosen_from_a_list(opened: Opened) -> None:
    report = add_sources(full())
    conv = "/venv/lib/python3.11/site-packages/torch/nn/modules/conv.py"
    report["tables"]["lines"] += [
        row("lines", file=conv, line=547, source="return F.conv2d(x)", own=False, calls=2.0,
            python_s=1e-3, operator_s=2e-3),
        row("lines", file="train.py", line=71, source="[f(x) for x in y]", own=True,
            python_s=1e-5, operator_s=0.0, reason="it ran too often to be counted"),
    ]  # fmt: skip
    page = opened(report, at="source")
    assert [text.split("5.")[0].split("4.")[0] for text in texts(page, ".file-card code")] == [
        "train.py", "augment.py"
    ]  # fmt: skip
    assert "† not whole: it ran too often" in texts(page, "#source-listing .left-out")[0]
    assert page.evaluate("document.querySelector('#source-files optgroup').label") == "torch"
    page.evaluate(
        "(() => { const list = document.querySelector('#source-files select');"
        " list.value = list.options[1].value; list.dispatchEvent(new Event('change')); })()"
    )
    page.settle()
    assert texts(page, ".listing tr[data-line] .code") == ["return F.conv2d(x)"]
    assert "texts of libraries are not recorded" in texts(page, "#source-listing .left-out")[0]


def test_device_times_stand_beside_the_hosts(opened: Opened) -> None:
    page = opened(add_sources(on_a_device()), at="source")
    assert "device" in _heads(page)
    page = opened(full(), at="source")
    assert "device (this machine has no accelerator)" in texts(page, "#absent-columns")[0]


def test_lines_of_a_module_are_one_click_away(opened: Opened) -> None:
    page = opened(add_sources(full()), at="source?module=Digits.features")
    rows = texts(page, "#module-line-table tbody tr td:first-child")
    assert set(rows) == {"Digits.features.0"}
    assert page.evaluate("document.querySelector('#module-line-table').open") is True


def test_what_tracing_lines_cost_is_told(opened: Opened) -> None:
    report = add_sources(full())
    median = report["benchmark"]["median_s"]
    report["slices"][4] |= {"mode": "lines", "step_median_s": 2.5 * median}
    page = opened(report, at="source")
    assert (
        "in 6 steps, whose median was 2.50 times the clean one: times here are raw and means"
        in texts(page, "#line-note")[0]
    )
    # Of slices that came later the figures are, and so is what they cost.
    report["slices"].append(report["slices"][4] | {"round": 2, "step_median_s": 1.5 * median})
    page = opened(report, at="source")
    assert (
        "in 6 steps, whose median was 1.50 times the clean one: times here are raw and means"
        in texts(page, "#line-note")[0]
    )


def test_a_narrow_window_keeps_the_text_in_sight(opened: Opened) -> None:
    page = opened(add_sources(full()), at="source", width=400)
    assert _heads(page) == ["line", "time"]
    assert _line(page, 68) == ["68", "1.78 ms", "        loss.backward()"]
    page.resize(1400, 900)
    page.settle()
    assert _heads(page) == ["line", "time", "memory", "calls"]


def _long(lines: int) -> dict[str, Any]:
    """A file of many lines, every third of which has figures."""
    report = full()
    report["tables"]["lines"] = [
        row("lines", file="long.py", line=line, source=f"x{line} = f()", own=True, calls=1.0,
            python_s=1e-6 * (line % 101), operator_s=1e-6)
        for line in range(1, lines + 1, 3)
    ]  # fmt: skip
    text = "".join(f"x{line} = f()\n" for line in range(1, lines + 1))
    report["sources"] = [{"file": "long.py", "text": text, "bytes": len(text), "reason": None}]
    return report


def test_a_long_file_opens_where_its_time_goes(opened: Opened) -> None:
    report = _long(1_000)
    report["tables"]["lines"][250]["operator_s"] = 0.5
    page = opened(report, at="source")
    inside = (
        "(() => { const box = document.querySelector('#source-listing .scroll')"
        ".getBoundingClientRect(), row = document.querySelector(\"tr[data-line='751']\")"
        ".getBoundingClientRect(); return row.top > box.top && row.bottom < box.bottom; })()"
    )
    assert page.evaluate(inside) is True
    assert page.evaluate("window.scrollY") == 0
    # What the reader opens further down does not take the listing back.
    page.evaluate("document.querySelector('#source-listing .scroll').scrollTop = 17000")
    page.click(".listing tr[data-line='904'] button")
    assert page.evaluate("document.querySelector('#source-listing .scroll').scrollTop") == 17000


def test_files_are_told_from_where_the_script_was_started(opened: Opened) -> None:
    report = add_sources(full())
    names = {
        "train.py": "/home/me/project/jobs/train.py",
        "augment.py": "/home/me/project/lib/a.py",
    }
    for record in [*report["tables"]["lines"], *report["sources"]]:
        record["file"] = names.get(record["file"], record["file"])
    report["script"] = "jobs/train.py"
    page = opened(report, at="source")
    assert texts(page, ".file-card code") == ["jobs/train.py", "lib/a.py"]
    assert texts(page, ".listing th code") == ["jobs/train.py"]
    # Without a script that one of them is, from the folder that all of them are in.
    page = opened(report | {"script": "-m train"}, at="source")
    assert texts(page, ".file-card code") == ["jobs/train.py", "lib/a.py"]


def test_a_long_file_is_all_there(opened: Opened) -> None:
    page = opened(_long(5_000), at="source/long.py:4999")
    assert page.evaluate("document.querySelector('.marked').dataset.line") == "4999"
    assert count(page, ".listing tr[data-line]") == 5_000


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (400, True)])
def test_it_fits_its_window_and_shows_hostile_names_as_text(
    opened: Opened, width: int, dark: bool
) -> None:
    report = make_hostile(add_sources(add_verdict(full())))
    page = opened(report, at="source", width=width, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    # The file with the hostile name has the most time: it is the one that is open.
    assert HOSTILE in texts(page, ".listing")[0]
    page.click(".listing .line-number")
    assert HOSTILE in texts(page, ".line-parts")[0]
    assert page.evaluate("window.broken") is None
    assert count(page, "main img") == 0
