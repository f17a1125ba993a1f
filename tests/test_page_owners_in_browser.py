"""The page's tables of owners in a browser: sums, memory, paths, lines, threads, gaps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from data_full_report import full, full_of_hostile_names, on_a_device
from data_report import HOSTILE, build, row
from page_browser import EXECUTABLE, Browser, choose, column, count, pages, texts

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


def _names(page: Browser, box: str) -> list[str]:
    return [text.strip("▾▸") for text in column(page, box, 1)]


def test_a_module_row_holds_all_that_the_layers_know(opened: Opened) -> None:
    page = opened(full(), "modules")
    heads = [text.strip("▲▼") for text in texts(page, "#module-tree th")]
    assert heads[:7] == [
        "module", "calibrated", "forward", "backward", "recomputed", "self", "python"
    ]  # fmt: skip
    assert {"FLOP/s", "host memory kept", "host peak", "calls"} <= set(heads)
    assert column(page, "#module-tree", 1 + heads.index("recomputed"))[:2] == ["0 s", "100 µs"]


def test_the_sum_of_the_rows_is_stated_and_what_has_no_owner_is_named(opened: Opened) -> None:
    page = opened(full())
    said = texts(page, "#module-sum")[0]
    for words in (
        "add up to 5.08 ms of a mean step of 5.08 ms",
        "97.2 % of it has an owner",
        "Not owned: (outside modules) 80.0 µs (1.6 %), (not attributed) 60.0 µs (1.2 %).",
        "3.90 ms of the clean median of 4.01 ms (97.2 %)",
        "Of the backward pass (2.10 ms) 99.1 % is at the module",
    ):
        assert words in said
    assert "below 0" not in said


def test_sums_that_do_not_hold_are_said(opened: Opened) -> None:
    report = full()
    report["attribution"] |= {"negative_rows": 2, "unowned": []}
    page = opened(report)
    assert "2 rows have a self time below 0" in texts(page, "#module-sum")[0]
    assert "Nothing is left without one." in texts(page, "#module-sum")[0]
    report["attribution"] = dict.fromkeys(report["attribution"])
    report["attribution"] |= {"reason": "no slice of the torch layer", "unowned": []}
    page = opened(report)
    assert "held against a step: no slice of the torch layer." in texts(page, "#module-sum")[0]


def test_memory_stands_by_owner_at_three_moments(opened: Opened) -> None:
    page = opened(full())
    assert texts(page, ".stack-name") == ["start of the step", "peak", "end of the step"]
    assert texts(page, ".stack-sum") == ["145 MiB", "385 MiB", "189 MiB"]
    widths = page.evaluate(
        "[...document.querySelectorAll('.stack')].map(bar => [...bar.children]"
        ".reduce((sum, piece) => sum + parseFloat(piece.style.width), 0))"
    )
    assert widths[1] == pytest.approx(100, abs=0.1)
    assert widths[0] == pytest.approx(100 * 144.5 / 385, abs=0.1)
    assert column(page, "#memory-owners", 1)[:2] == ["activations", "optimizer state"]
    assert column(page, "#memory-owners", 2)[0] == "181 MiB"
    assert "385 MiB 99.0 % has an owner" in texts(page, "#memory-owners .lead")[0]


def test_the_holders_of_the_peak_are_ranked(opened: Opened) -> None:
    page = opened(full(), "memory")
    assert column(page, "#peak-holders", 2)[:3] == [
        "Digits.features.2", "(optimizer)", "Digits.features.1"
    ]  # fmt: skip
    assert column(page, "#peak-holders", 4)[:2] == ["25 %", "23 %"]
    assert column(page, "#peak-holders", 7)[3:5] == ["no", "yes"]
    assert "device" not in texts(page, "#peak-holders th")


def test_each_device_has_bars_of_its_own(opened: Opened) -> None:
    page = opened(on_a_device())
    assert texts(page, "#memory-owners h4") == ["cpu", "cuda:0"]
    assert count(page, ".stack") == 6
    assert "device" in texts(page, "#memory-owners th")


def test_own_functions_come_first_and_libraries_are_folded(opened: Opened) -> None:
    page = opened(full())
    names = _names(page, "#function-groups")
    assert names == [
        "train.py 4 functions", "main", "batches", "walk", "Digits.forward",
        "(built-in) 4 functions", "torch 9 functions",
    ]  # fmt: skip
    assert column(page, "#function-groups", 2)[0] == "750 µs"
    assert column(page, "#function-groups", 3)[0] == "–"
    page.click("#function-groups button.twig", 2)
    assert "_call_impl" in _names(page, "#function-groups")
    page.type("#function-groups input[type=search]", "adam")
    assert _names(page, "#function-groups") == ["torch 9 functions", "Adam.step"]
    page.type("#function-groups input[type=search]", "")
    choose(page, "#function-table", "start-up")
    assert _names(page, "#function-groups") == ["(built-in) 1 function"]


def test_a_sum_over_functions_has_no_more_digits_than_its_parts(opened: Opened) -> None:
    report = full()
    functions = report["tables"]["functions"]
    own = [each for each in functions if each["file"].endswith("train.py")]
    for each, seconds in zip(own, (0.1, 0.2, 0.7, 1e-9), strict=True):
        each |= {"self_s": seconds, "calls": 11111111.0, "calibrated_s": seconds / 3}
    page = opened(report)
    titles = page.evaluate(
        "[...document.querySelector('#function-groups tbody tr').cells].map((cell) => cell.title)"
    )
    told = {title.split("\n")[0] for title in titles}
    assert {"1 s", "0.333333333 s", "44444444"} <= told


def test_call_paths_unfold_from_function_to_kernel(opened: Opened) -> None:
    page = opened(on_a_device())
    assert _names(page, "#call-paths")[:3] == ["main", "Tensor.backward", "ConvolutionBackward0"]
    assert _names(page, "#call-paths")[-2:] == ["implicit_gemm_f32", "Adam.step"]
    assert column(page, "#call-paths", 4)[:2] == ["100 %", "51 %"]
    assert "The stack tracer slows every Python call" in texts(page, "#call-paths .lead")[0]
    choose(page, "#call-paths", "fold all")
    assert _names(page, "#call-paths") == ["main"]
    choose(page, "#call-paths", "own files, operators, kernels")
    names = _names(page, "#call-paths")
    assert "_call_impl" not in names
    # What the folded frames took themselves stands at the frame that stays: 0.2 + 0.3 + 0.1 ms.
    own = column(page, "#call-paths", 3)
    assert own[names.index("Digits.forward")] == "600 µs"
    page.type("#call-paths input[type=search]", "gemm")
    assert _names(page, "#call-paths")[-1] == "implicit_gemm_f32"


def test_a_measured_slowdown_of_the_tracer_is_told(opened: Opened) -> None:
    report = full()
    median = report["benchmark"]["median_s"]
    report["slices"][4] |= {"mode": "stacks", "step_median_s": 3 * median}
    assert (
        "the median step took 3.00 times the clean one"
        in texts(opened(report, "python"), "#call-paths .lead")[0]
    )


def test_regions_lie_inside_one_another(opened: Opened) -> None:
    page = opened(full())
    assert _names(page, "#region-table") == ["augment", "crop", "loss part"]
    heads = [text.strip("▲▼") for text in texts(page, "#region-table th")]
    assert {"in operators", "source", "threads", "host memory kept"} <= set(heads)
    titles = page.evaluate(
        "[...document.querySelectorAll('#region-table td .none')].map(one => one.title)"
    )
    assert titles == ["it was not entered in the step observed"]


def test_threads_say_which_layers_see_them(opened: Opened) -> None:
    page = opened(full())
    assert column(page, "#thread-table", 1)[:2] == ["main", "backward"]
    assert column(page, "#thread-table", 7)[2] == "none"
    assert "num_workers=0" in column(page, "#thread-table", 8)[2]
    said = texts(page, "#thread-said li")
    assert said[1] == (
        "19 % of the CPU time is used in threads and processes that no layer looks into."
    )
    assert len(said) == 3
    # Of no use to all rows but one, which the first sentence tells of.
    assert "did not run" not in " ".join(texts(page, "#thread-table th"))


def test_threads_of_which_nothing_is_known_say_why(opened: Opened) -> None:
    report = full()
    report["tables"]["threads"] = []
    report["processes"] |= {"sentences": [], "reason": "this system does not report it"}
    page = opened(report, "method")
    assert texts(page, "#thread-table")[0] == (
        "No CPU time of threads is known: this system does not report it."
    )


def test_without_a_device_there_are_no_launches_and_the_page_says_so(opened: Opened) -> None:
    page = opened(full())
    said = texts(page, "#launches")[0]
    assert "No accelerator was in use" in said
    assert "61.5 operators (median of 6 steps)" in said
    assert count(page, "#launch-cards .card") == 0
    # Where nothing was counted there is nothing to say either.
    assert count(opened(build()), "#launches, #views a[href='#ranges']") == 0


def test_gaps_have_causes(opened: Opened) -> None:
    page = opened(on_a_device(), "ranges")
    assert column(page, "#gap-table", 1) == ["host late", "synchronisation", "data wait"]
    assert column(page, "#gap-table", 5)[0] == "aten::mm in Digits.classifier.0"
    assert "5.20 µs" in texts(page, "#launch-cards")[0]
    assert "22 % of the step" in texts(page, "#launch-cards")[0]


def test_names_of_owners_show_as_text(opened: Opened) -> None:
    page = opened(full_of_hostile_names())
    assert page.evaluate("window.broken") is None
    assert count(page, "main img") == 0
    for box in ("#module-sum", "#memory-owners", "#peak-holders", "#function-groups",
                "#call-paths", "#region-table", "#thread-table", "#gap-table",
                "#finding-list"):  # fmt: skip
        assert HOSTILE in texts(page, box)[0], box


def test_a_report_from_before_these_tables_still_has_its_page(opened: Opened) -> None:
    report = build()
    for name in ("memory_owners", "peak_holders", "call_paths", "threads", "launches", "gaps"):
        del report["tables"][name]
    del report["attribution"]
    later = ("own", "package", "reason", "recomputed_s", "python_s", "host_peak_bytes")
    for table in report["tables"].values():
        for record in table:
            for key in later:
                record.pop(key, None)
    page = opened(report)
    for absent in ("#module-sum", "#peak-holders", "#threads", "#call-paths table"):
        assert count(page, absent) == 0, absent
    assert "No slice of the torch layer noted the Python stack" in texts(page, "#call-paths")[0]
    assert "watched the memory of a step in this run" in texts(page, "#memory-owners")[0]
    report["slices"][4]["mode"] = "stacks"
    assert "left nothing to show" in texts(opened(report), "#call-paths")[0]
    assert count(page, "#module-tree tbody tr") == 16
    assert _names(page, "#function-groups")[0].startswith("train.py")


def _large() -> dict[str, Any]:
    """A report as large as large models give: 5,000 modules, 20,000 lines, 3,000 path nodes."""
    report = full()
    tables = report["tables"]
    tables["modules"] += [
        row("modules", path="Big", depth=0, type="Big", forward_s=1.0, backward_s=1.0, self_s=0.0)
    ] + [
        row("modules", path=f"Big.{number // 50}" + (f".{number}" if number % 50 else ""),
            depth=1 + bool(number % 50), type="Linear", calls=1.0, self_s=1e-4,
            forward_s=1e-4 * (number % 97), backward_s=1e-4)
        for number in range(5_000)
    ]  # fmt: skip
    tables["lines"] = [
        row("lines", file=f"f{number % 40}.py", line=number, source=f"x = f({number})",
            own=number % 40 < 3, calls=1.0, python_s=1e-6 * number, operator_s=0.0)
        for number in range(20_000)
    ]  # fmt: skip
    tables["call_paths"] = [
        row("call_paths", node=number, parent=number // 3 or None, kind="function",
            name=f"f{number}", file="f.py", line=number, own=True, calls=1.0,
            total_s=1.0 / number, self_s=1e-5)
        for number in range(1, 3_001)
    ]  # fmt: skip
    return report


def test_a_large_page_stays_fast(opened: Opened) -> None:
    page = opened(_large())
    # Counted, not timed: what a browser has to lay out at once is what makes it slow.
    assert count(page, "main tr") < 4_000
    choose(page, "#module-tree", "all")
    assert count(page, "#module-tree tbody tr") == 200
    page.click("#module-tree .more button")
    assert count(page, "#module-tree tbody tr") == 400
    choose(page, "#call-paths", "unfold all")
    assert count(page, "#call-paths tbody tr") == 200
    assert "3000 rows shown" in texts(page, "#call-paths .count")[0]
    page.type("#module-tree input[type=search]", "big.98.4946")
    assert _names(page, "#module-tree")[-1] == "4946"
    assert "of 5017 rows" in texts(page, "#module-tree .count")[0]


@pytest.mark.parametrize("width", [400, 900])
@pytest.mark.parametrize("dark", [True, False])
def test_the_page_fits_a_narrow_window(opened: Opened, width: int, dark: bool) -> None:
    page = opened(on_a_device(), width=width, height=800, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
