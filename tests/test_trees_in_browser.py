"""Pictures of hierarchies in a browser: their sums, their zoom, their links, and names as text."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from data_full_report import full, on_a_device
from data_report import HOSTILE, build, hostile, row
from page_browser import EXECUTABLE, Browser, choose, column, count, pages, texts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(EXECUTABLE is None, reason="there is no Chromium on this machine"),
]
Opened = Callable[..., Browser]
MODULES, CALLS, PATHS = "#module-picture", "#call-tree", "#path-picture"
BOLD = "<b>x</b>"


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Opens the page of a report; at the end nothing may be broken."""
    with pages(tmp_path) as open_page:
        yield open_page


def _drawn(page: Browser, box: str) -> list[dict[str, Any]]:
    """The areas as they are drawn: name, value, parent, and the box and the angles on screen."""
    found = page.evaluate(
        f"""(() => {{
          const surface = document.querySelector({box!r} + ' .plot');
          if (!surface || !surface.data) return [];
          const trace = surface.data[0];
          return [...surface.querySelectorAll('g.slice')].map((slice) => {{
            const at = Number(slice.__data__.data.data.id);
            const {{ x, y, width, height }} = slice.querySelector('path').getBBox();
            const text = slice.querySelector('text'), parent = trace.parents[at];
            return {{ at, x, y, width, height, name: trace.labels[at], value: trace.values[at],
              parent: parent === '' ? -1 : Number(parent), text: text ? text.textContent : '',
              angle: slice.__data__.x1 - slice.__data__.x0 }};
          }}).sort((a, b) => a.at - b.at);
        }})()"""
    )
    assert isinstance(found, list)
    # Names are handed to the library escaped; what is on screen is compared where it matters.
    return [{**area, "name": unescape(area["name"])} for area in found]


def _areas(page: Browser, box: str, *, least: int = 2) -> list[dict[str, Any]]:
    """The drawn areas, once there are some: the library is inflated when a picture is seen."""
    page.evaluate(f"document.querySelector({box!r}).scrollIntoView()")
    deadline = time.monotonic() + 20
    while len(found := _drawn(page, box)) < least:
        assert time.monotonic() < deadline, "nothing was drawn"
        page.settle()
    return found


def _named(areas: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(area for area in areas if area["name"] == name)


def _press(page: Browser, box: str, name: str) -> None:
    """Click the area of this name."""
    at = next(at for at, area in enumerate(_areas(page, box)) if area["name"] == name)
    page.evaluate(
        f"(() => {{ const surface = document.querySelector({box!r} + ' .plot');"
        " const slice = [...surface.querySelectorAll('g.slice')]"
        f".find(one => Number(one.__data__.data.data.id) === {at});"
        " slice.dispatchEvent(new MouseEvent('click', {bubbles: true})); })()"
    )
    page.settle()


def _select(page: Browser, box: str, label: str, value: str) -> None:
    page.evaluate(
        f"(() => {{ const field = document.querySelector({box!r} + ' select[aria-label={label}]');"
        f" field.value = {value!r}; field.dispatchEvent(new Event('change')); }})()"
    )
    page.settle()


def _row(report: dict[str, Any], path: str) -> dict[str, Any]:
    found = next(record for record in report["tables"]["modules"] if record["path"] == path)
    assert isinstance(found, dict)
    return found


def _check_sums(areas: list[dict[str, Any]]) -> None:
    """No area is below 0, and none holds more than it is."""
    for area in areas:
        assert area["value"] >= 0
        inside = sum(one["value"] for one in areas if one["parent"] == area["at"])
        assert inside <= area["value"] * (1 + 1e-9)


def test_module_areas_are_the_figures_of_the_rows_whatever_they_stand_for(opened: Opened) -> None:
    report = full()
    page = opened(report, at="modules")
    metrics = {
        "calibrated_s": ("calibrated_s",),
        "backward_s": ("backward_s",),
        "self_s": ("forward_s", "backward_s"),
        "flop": ("forward_flop", "backward_flop"),
        "parameters": ("parameters",),
    }
    _areas(page, MODULES)
    for metric, columns in metrics.items():
        _select(page, MODULES, "area", metric)
        areas = _areas(page, MODULES)
        _check_sums(areas)
        for path in ("Digits", "Digits.features", "Digits.classifier"):
            wanted = sum(_row(report, path)[column] or 0 for column in columns)
            drawn = _named(areas, path.removeprefix("Digits."))
            assert drawn["value"] == pytest.approx(wanted, rel=1e-6), (metric, path)
        # In the first row the width is the share of the step.
        whole, root = areas[0], _named(areas, "Digits")
        assert root["width"] == pytest.approx(
            whole["width"] * root["value"] / whole["value"], abs=4
        ), metric
    holders = report["tables"]["peak_holders"]
    _select(page, MODULES, "area", "peak_bytes cpu")
    areas = _areas(page, MODULES)
    assert areas[0]["value"] == sum(one["bytes"] for one in holders)
    _select(page, MODULES, "area", "calibrated_s")
    _check_drawings(page)


def _check_drawings(page: Browser) -> None:
    """The four drawings show the same areas."""
    icicle = _areas(page, MODULES)
    assert {"(optimizer)", "(loss)", "Digits"} <= {
        one["name"] for one in icicle if one["parent"] == 0
    }
    assert icicle[0]["y"] < _named(icicle, "Digits")["y"]
    for kind in ("flame", "sunburst", "treemap"):
        choose(page, MODULES, kind)
        areas = _areas(page, MODULES)
        assert [(one["name"], one["value"]) for one in areas] == [
            (one["name"], one["value"]) for one in icicle
        ]
        root = _named(areas, "Digits")
        if kind == "flame":
            assert areas[0]["y"] > root["y"], "the step is at the bottom"
        if kind == "sunburst":
            share = root["value"] / areas[0]["value"]
            assert root["angle"] == pytest.approx(2 * math.pi * share, abs=0.01)
        if kind == "treemap":
            size = areas[0]["width"] * areas[0]["height"]
            assert root["width"] * root["height"] / size == pytest.approx(
                root["value"] / areas[0]["value"], abs=0.1
            )


def test_a_click_opens_a_module_and_leads_to_its_row(opened: Opened) -> None:
    page = opened(full(), at="modules")
    _press(page, MODULES, "features")
    assert texts(page, f"{MODULES} .breadcrumb") == ["the step › Digits › features"]
    assert _areas(page, MODULES)[0]["name"] == "features"
    assert page.evaluate("location.hash") == "#modules/Digits.features"
    assert page.evaluate("document.querySelector('tr.marked').textContent").startswith("▾features")
    ways = page.evaluate(
        f"[...document.querySelectorAll('{MODULES} aside .ways a')].map(one => one.hash)"
    )
    assert {"#modules/Digits.features", "#operators?module=Digits.features",
            "#memory?module=Digits.features"} <= set(ways)  # fmt: skip
    # A leaf has nothing in it to draw: what it lies in stays, and the panel tells of it.
    _press(page, MODULES, "2")
    assert _areas(page, MODULES)[0]["name"] == "features"
    assert texts(page, f"{MODULES} aside h3") == ["Digits.features.2"]
    # The innermost button of the way leads out again, and so does a click on the outermost area.
    _press(page, MODULES, "features")
    choose(page, f"{MODULES} .breadcrumb", "the step")
    assert _areas(page, MODULES)[0]["name"] == "the step"


def test_links_and_keys_open_modules_in_the_picture(opened: Opened) -> None:
    page = opened(full(), at="modules/Digits.classifier")
    assert _areas(page, MODULES)[0]["name"] == "classifier"
    assert "classifier" in page.evaluate("document.querySelector('tr.marked').textContent")
    choose(page, "#module-tree", "features")
    assert _areas(page, MODULES)[0]["name"] == "features"
    # And the keys reach every area.
    choose(page, f"{MODULES} .breadcrumb", "the step")
    page.evaluate(f"document.querySelector('{MODULES} .chart').focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown"):
        page.key(key)
    assert texts(page, f"{MODULES} aside h3") == ["Digits.features"]
    page.key("ArrowRight")
    assert texts(page, f"{MODULES} aside h3") == ["Digits.classifier"]
    page.key("Enter")
    assert _areas(page, MODULES)[0]["name"] == "classifier"
    page.key("Backspace")
    assert _areas(page, MODULES)[0]["name"] == "Digits"
    # The same without the picture: what lies in a module is a list of buttons.
    choose(page, f"{MODULES} aside", "features")
    assert texts(page, f"{MODULES} aside h3") == ["Digits.features"]


def test_what_is_not_drawn_is_said(opened: Opened) -> None:
    report = build()
    rows = report["tables"]["modules"]
    for record in rows:
        record["host_net_bytes"] = None
    rows[0] |= {"host_net_bytes": 1_000}
    rows[1] |= {"host_net_bytes": 3_048}
    report["columns_reason"].pop("modules.host_net_bytes", None)
    for record in rows:
        record["calibrated_s"] = None
    report["columns_reason"]["modules.calibrated_s"] = "its slice was too slow"
    page = opened(report, at="modules")
    assert "There is no calibrated time: its slice was too slow." in texts(page, MODULES)[0]
    _select(page, MODULES, "area", "host_net_bytes")
    said = texts(page, MODULES)[0]
    assert "1 module: give back what modules inside them took" in said
    assert "2.00 KiB more than the rows of the roots tell" in said
    assert _areas(page, MODULES)[0]["value"] == 3_048


def test_ten_thousand_modules_are_few_areas_with_the_sum_of_the_rest(opened: Opened) -> None:
    report = full()
    rows = report["tables"]["modules"]
    rows.append(row("modules", path="Big", depth=0, type="Big", self_s=0.0, calibrated_s=9.4))
    for number in range(10_000):
        rows.append(
            row("modules", path=f"Big.{number}", depth=1, type="Linear", self_s=9.4e-4,
                calibrated_s=9.4e-4)
        )  # fmt: skip
    page = opened(report, at="modules")
    areas = _areas(page, MODULES)
    _check_sums(areas)
    assert len(areas) < 800
    rest = next(one for one in areas if "smaller" in one["name"])
    assert _named(areas, "Big")["value"] == pytest.approx(9.4, rel=1e-6)
    shown = sum(one["parent"] == _named(areas, "Big")["at"] for one in areas) - 1
    assert rest["name"] == f"{10_000 - shown:,} smaller"
    assert rest["value"] == pytest.approx((10_000 - shown) * 9.4e-4, rel=1e-6)
    assert "are on this page by themselves, the others as sums" in texts(page, MODULES)[0]


def _hostile_owners() -> dict[str, Any]:
    report = hostile()
    tables = report["tables"]
    for name in (BOLD, HOSTILE, "&lt;i&gt;"):
        tables["modules"].append(
            row("modules", path=name.replace(".", "_"), type=name, depth=0, calibrated_s=0.004,
                self_s=0.004, forward_s=0.004, backward_s=0.0)
        )  # fmt: skip
        tables["functions"].append(
            row("functions", phase="step", file="train.py", line=7, name=name, calls=1.0, own=True,
                self_s=0.02, total_s=0.02)
        )  # fmt: skip
    return report


def test_hostile_names_are_text_in_the_pictures(opened: Opened) -> None:
    page = opened(_hostile_owners(), at="modules")
    for view, box in (("modules", MODULES), ("python", CALLS)):
        page.evaluate(f"location.hash = '#{view}'")
        page.settle()
        drawn = [area["text"] for area in _areas(page, box)]
        assert any(text.startswith(BOLD) for text in drawn), drawn
        assert any(text.startswith("</script>") for text in drawn), drawn
        assert any(text.startswith("&lt;i&gt;") for text in drawn), drawn
        for kind in ("sunburst", "icicle"):
            choose(page, box, kind)
            _areas(page, box)
        _press(page, box, BOLD)
        assert texts(page, f"{box} aside h3") == [BOLD]
        assert count(page, f"{box} img, {box} b b, {box} tspan[style*=bold]") == 0
    assert page.evaluate("window.broken") is None


@pytest.mark.parametrize("dark", [False, True])
def test_pictures_fit_a_narrow_window_in_light_and_dark(opened: Opened, dark: bool) -> None:
    page = opened(full(), at="modules", width=400, height=800, dark=dark)
    for view, box in (("modules", MODULES), ("python", CALLS)):
        page.evaluate(f"location.hash = '#{view}'")
        page.settle()
        areas = _areas(page, box)
        assert areas[0]["width"] > 300
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        colour = page.evaluate(
            f"getComputedStyle(document.querySelector('{box} text.slicetext')).fill"
        )
        assert (sum(map(int, colour[4:-1].split(","))) > 380) is dark, "text as on the page"


# ---- the call tree


def _frames(page: Browser) -> list[str]:
    return [area["name"] for area in _areas(page, CALLS)]


def _all_frames(page: Browser) -> None:
    choose(page, "#call-tools", "all frames")
    _select(page, "#call-tools", "cutoff", "0")


def test_the_call_tree_is_drawn_with_the_profiles_sums(opened: Opened) -> None:
    page = opened(build(), at="python")
    _areas(page, CALLS)
    _all_frames(page)
    areas = _areas(page, CALLS)
    _check_sums(areas)
    assert areas[0]["value"] == pytest.approx(4.86e-3, rel=1e-5)
    for name, seconds in (("main", 4.86e-3), ("⟲ _call_impl and 2 more", 1.48e-3),
                          ("Conv2d.forward", 0.73e-3), ("Adam.step", 0.61e-3)):  # fmt: skip
        assert _named(areas, name)["value"] == pytest.approx(seconds, rel=1e-5), name
    assert _named(areas, "Adam.step")["width"] == pytest.approx(
        areas[0]["width"] * 0.61 / 4.86, abs=4
    )
    assert "A profile knows callers and callees, not paths" in texts(page, "#call-note")[0]
    choose(page, "#call-tools", "sunburst")
    assert [one["value"] for one in _areas(page, CALLS)] == [one["value"] for one in areas]


def test_libraries_are_one_frame_each_and_depth_and_cutoff_bound_the_tree(opened: Opened) -> None:
    page = opened(full(), at="python")
    folded = _areas(page, CALLS)
    _check_sums(folded)
    assert {"main", "batches", "torch"} <= {one["name"] for one in folded}
    assert "Adam.step" not in {one["name"] for one in folded}
    torch = next(one for one in folded if one["name"] == "torch" and one["parent"] == 1)
    # Loss, backward and optimizer, which main calls in torch.
    assert torch["value"] == pytest.approx((0.13 + 1.95 + 0.61) * 1e-3, rel=1e-5)
    _press(page, CALLS, "torch")
    assert "functions of one library" in texts(page, "#call-detail")[0]
    choose(page, "#call-tools", "all frames")
    assert "Adam.step" in _frames(page)
    frames = len(_areas(page, CALLS))
    assert frames > max(len(folded), 12)
    page.type("#call-depth", "2")
    assert 1 < len(_areas(page, CALLS)) < frames
    page.type("#call-depth", "30")
    assert len(_areas(page, CALLS)) == frames
    assert texts(page, "#call-count")[0] == f"{frames} frames"
    _select(page, "#call-tools", "cutoff", "0.05")
    assert 1 < len(_areas(page, CALLS)) < frames


def test_clicks_keys_and_a_search_lead_through_the_call_tree(opened: Opened) -> None:
    page = opened(build(), at="python")
    _areas(page, CALLS)
    choose(page, "#call-tools", "all frames")
    _press(page, CALLS, "Adam.step")
    assert len(_frames(page)) == 2
    assert texts(page, "#call-path")[0] == "all functions › main › Adam.step"
    choose(page, "#call-path", "all functions")
    assert "main" in _frames(page)
    page.evaluate("document.querySelector('#call-chart').focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "Enter"):
        page.key(key)
    assert texts(page, "#call-path")[0].endswith("› ⟲ _call_impl and 2 more")
    # A search marks frames and keeps the ways to them.
    choose(page, "#call-path", "all functions")
    whole = len(_areas(page, CALLS))
    page.type("#call-tools input[type=search][placeholder*=tree]", "adam")
    marked = "data[0].marker.line.width.filter(width => width > 1).length"
    assert page.evaluate(f"document.querySelector('{CALLS} .plot').{marked}") == 1
    assert len(_areas(page, CALLS)) == whole
    found = texts(page, "#call-found")[0]
    assert "1 frame found, 13 % of the root" in found
    page.click("#call-tools input[type=checkbox]")
    assert _frames(page)[:3] == ["all functions", "main", "Adam.step"]
    assert len(_frames(page)) == 4, "and what it calls"
    page.type("#call-tools input[type=search][placeholder*=tree]", "")
    assert len(_areas(page, CALLS)) == whole


def test_callers_and_callees_have_the_profiles_counts(opened: Opened) -> None:
    report = build()
    calls = {
        (one["caller"].split("(")[-1][:-1], one["callee"].split("(")[-1][:-1]): one
        for one in report["tables"]["calls"]
    }
    page = opened(
        report, at="python/" + quote("torch/nn/modules/module.py:1779:_call_impl", safe="")
    )
    _areas(page, CALLS)
    names = [name.strip() for name in column(page, "#call-callers", 1)]
    assert names == ["main", "Sequential.forward", "Digits.forward"] or set(names) == {
        "main", "Sequential.forward", "Digits.forward"
    }  # fmt: skip
    assert names[0] == "main", "the longest first"
    counts = column(page, "#call-callers", 2)
    for name, shown in zip(names, counts, strict=True):
        assert float(shown) == calls[name, "_call_impl"]["calls"]
    assert column(page, "#call-callers", 4)[0] == "100 %"
    assert "part of a circle" in texts(page, "#call-edges")[0]
    callees = [name.strip() for name in column(page, "#call-callees", 1)]
    assert callees[:2] == ["Digits.forward", "Sequential.forward"]
    page.click("#call-callees th button", 1)
    assert [float(text) for text in column(page, "#call-callees", 2)] == sorted(
        (one["calls"] for (caller, _), one in calls.items() if caller == "_call_impl"), reverse=True
    )
    choose(page, "#call-callees", "Digits.forward")
    assert texts(page, "#call-edges h3 code") == ["Digits.forward"]
    ways = page.evaluate("[...document.querySelectorAll('#call-edges h3 a')].map(one => one.hash)")
    assert ways == ["#source/" + quote("train.py:44", safe="")]


def test_a_function_of_the_table_becomes_the_root(opened: Opened) -> None:
    page = opened(build(), at="python")
    choose(page, "#function-table", "batches")
    assert texts(page, "#call-path")[0] == "all functions › batches"
    page.type("input[list=function-names]", "Tensor.backward  torch/_tensor.py:576")
    assert texts(page, "#call-path")[0] == "all functions › Tensor.backward"
    choose(page, "#call-tools", "start-up")
    assert len(_frames(page)) == 2


def test_a_large_graph_is_bounded(opened: Opened) -> None:
    report = build()
    calls, functions = report["tables"]["calls"], report["tables"]["functions"]
    # A ladder: two functions on each level, both called by both above: 2^40 paths.
    for level in range(40):
        for side in "ab":
            functions.append(
                row("functions", phase="step", file="l.py", line=level, name=f"{side}{level}",
                    calls=1.0, self_s=0.0, total_s=0.5)
            )  # fmt: skip
            for above in "ab":
                if level:
                    calls.append(
                        row("calls", caller=f"l.py:{level - 1}({above}{level - 1})", calls=1.0,
                            callee=f"l.py:{level}({side}{level})", total_s=0.25) | {"phase": "step"}
                    )  # fmt: skip
    page = opened(report, at="python")
    page.type("#call-depth", "40")
    _select(page, "#call-tools", "cutoff", "0")
    assert 200 < len(_areas(page, CALLS)) < 3_000
    assert "raise the cutoff" in texts(page, "#call-note")[0]


def test_fifty_thousand_functions_are_kept_by_time_and_the_rest_is_said(opened: Opened) -> None:
    report = build()
    tables = report["tables"]
    for number in range(50_000):
        tables["functions"].append(
            row("functions", phase="step", file=f"m{number % 300}.py", line=number, own=False,
                name=f"f{number}", calls=3.0, self_s=1e-9 * number, total_s=1e-9 * number)
        )  # fmt: skip
        tables["calls"].append(
            row("calls", caller="train.py:61(main)", calls=3.0, total_s=1e-9 * number,
                callee=f"m{number % 300}.py:{number}(f{number})") | {"phase": "step"}
        )  # fmt: skip
    page = opened(report, at="python/" + quote("train.py:61:main", safe=""))
    assert len(_areas(page, CALLS)) < 800
    assert "2,000 of 50,0" in texts(page, "#call-left")[0]
    page.evaluate("[...document.querySelectorAll('#call-callees .more button')].at(-1).click()")
    page.settle()
    (rest,) = (name for name in column(page, "#call-callees", 1) if "not on this page" in name)
    assert rest.startswith("48,0")


# ---- call paths, operators, kernels


def _with_kernels() -> dict[str, Any]:
    report = on_a_device()
    report["tables"]["kernels"] = [
        row("kernels", name=name, calls=calls, device_s=ms / 1e3, device="cuda:0", stream=7,
            module=module, operator=operator)
        for name, calls, ms, module, operator in (
            ("gemm_f32", 2.0, 0.9, "Digits.classifier.0", "aten::addmm"),
            ("gemm_f32", 1.0, 0.4, "Digits.classifier.2", "aten::addmm"),
            ("implicit_gemm_f32", 2.0, 0.7, "Digits.features.2", "aten::mkldnn_convolution"),
        )
    ]  # fmt: skip
    return report


def test_call_paths_are_a_flame_from_function_to_kernel(opened: Opened) -> None:
    report = _with_kernels()
    records = report["tables"]["call_paths"]
    page = opened(report, at="python")
    areas = _areas(page, PATHS)
    _check_sums(areas)
    roots = sum(one["total_s"] for one in records if one["parent"] is None)
    assert areas[0]["value"] == pytest.approx(roots, rel=1e-5)
    assert areas[0]["y"] > _named(areas, "main")["y"], "a flame grows upwards"
    choose(page, PATHS, "device time")
    areas = _areas(page, PATHS)
    kernels = [one for one in records if one["kind"] == "kernel"]
    shown = {one["name"]: one["value"] for one in areas}
    for kernel in kernels:
        assert shown[kernel["name"]] == pytest.approx(kernel["device_s"], rel=1e-5)
    _press(page, PATHS, kernels[0]["name"])
    ways = page.evaluate(f"[...document.querySelectorAll('{PATHS} aside a')].map(one => one.hash)")
    assert ways == ["#kernels/" + quote(kernels[0]["name"], safe="")]


def test_an_operator_says_which_modules_call_it(opened: Opened) -> None:
    report = build()
    page = opened(report, at="operators/" + quote("aten::mkldnn_convolution", safe=""))
    panel = texts(page, "#operator-table aside")[0]
    rows = [
        one for one in report["tables"]["operators"] if one["name"] == "aten::mkldnn_convolution"
    ]
    assert {one["module"] for one in rows} == {"Digits.features.0", "Digits.features.2"}
    ways = page.evaluate(
        "[...document.querySelectorAll('#operator-table aside a')].map(one => one.hash)"
    )
    assert ways[-2:] == ["#modules/Digits.features.2", "#modules/Digits.features.0"]
    assert "called in (2)" in panel
    assert "with shapes (2)" in panel
    assert "65 %" in panel, "0.34 of 0.52 ms"
    assert "aten::mkldnn_convolution" in page.evaluate(
        "document.querySelector('tr.marked').textContent"
    )


def test_operators_of_one_module_are_listed_one_by_one(opened: Opened) -> None:
    page = opened(build(), at="operators?module=Digits.classifier")
    shown = column(page, "#operator-table .call-view > div > div:nth-child(2)", 1)
    assert {name.strip("#") for name in shown} == {"aten::addmm", "aten::mm"}


def test_kernels_say_what_launched_them(opened: Opened) -> None:
    page = opened(_with_kernels(), at="kernels/gemm_f32")
    panel = texts(page, "#kernel-table aside")[0]
    for said in ("launched by", "aten::addmm", "in (2)", "Digits.classifier.0", "69 %", "1.30 ms"):
        assert said in panel
    assert column(page, "#kernel-table", 2)[:2] == ["1.30 ms", "700 µs"]
    ways = page.evaluate(
        "[...document.querySelectorAll('#kernel-table aside a')].map(one => one.hash)"
    )
    assert ways[0] == "#operators/" + quote("aten::addmm", safe="")
    assert ways[1] == "#modules/Digits.classifier.0"
    assert count(opened(build(), at="overview"), "#views a[data-view=kernels]") == 0


def test_a_module_leads_to_its_functions_and_its_holders(opened: Opened) -> None:
    report = full()
    report["tables"]["module_lines"] = [
        row("module_lines", module=module, file="train.py", line=line, calls=1.0, python_s=1e-5,
            operator_s=1e-4)
        for module, line in (("Digits", 45), ("Digits.features", 46), ("(loss)", 66))
    ]  # fmt: skip
    page = opened(report, at="modules/Digits.features")
    _areas(page, MODULES)
    ways = f"[...document.querySelectorAll('{MODULES} aside .ways a')]"
    page.evaluate(f"{ways}.find(one => one.textContent === 'functions').click()")
    page.settle()
    page.settle()
    assert page.evaluate("location.hash") == "#python?module=Digits.features"
    # Line 46 lies in the function that is defined on line 44.
    assert [name.strip("▾▸#") for name in column(page, "#function-groups", 1)] == [
        "train.py 1 function", "Digits.forward"
    ]  # fmt: skip
    assert texts(page, "#call-edges h3 code") == ["Digits.forward"]
    page.evaluate("location.hash = '#python'")
    page.settle()
    assert len(column(page, "#function-groups", 1)) > 5


def test_rows_of_paths_have_the_colours_of_the_picture(opened: Opened) -> None:
    report = on_a_device()
    page = opened(report, at="python")
    colours = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('#call-paths tbody td:first-child')]"
        ".map(one => [one.textContent.replace(/[▾▸#]/g, '').trim(),"
        " one.querySelector('.swatch').style.background]))"
    )
    paths = {path["name"]: path for path in report["tables"]["call_paths"]}
    functions = [name for name in colours if paths[name]["kind"] == "function"]
    assert {bool(paths[name]["own"]) for name in functions} == {True, False}
    for name in functions:
        own = paths[name]["own"]
        assert colours[name] == ("var(--file-2)" if own else "var(--builtin)"), name
