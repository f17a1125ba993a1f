"""The page's charts for tests: brought into sight, read as the library has them, pointed at."""

from __future__ import annotations

import json
import time
from typing import Any

from page_browser import Browser, texts


def charted(page: Browser, box: str) -> None:
    """Bring a chart into sight and wait until it is drawn."""
    page.look_at(box)
    _wait(page, f"document.querySelector({box!r} + ' .plot[data-drawn]') !== null")
    page.settle()


def redrawn(page: Browser, box: str, before: int) -> None:
    """Wait until a chart was drawn again since it had been drawn `before` times."""
    _wait(page, f"Number(document.querySelector({box!r} + ' .plot').dataset.drawn) > {before}")
    page.settle()


def drawings(page: Browser, box: str) -> int:
    """How often a chart was drawn."""
    found = page.evaluate(f"Number(document.querySelector({box!r} + ' .plot').dataset.drawn)")
    assert isinstance(found, int)
    return found


def moved(page: Browser, box: str, before: dict[str, Any]) -> dict[str, Any]:
    """The x axis of a chart, once its range is no longer that of an axis it had `before`."""
    _wait(
        page,
        f"JSON.stringify(document.querySelector({box!r} + ' .js-plotly-plot').layout.xaxis.range)"
        f" !== JSON.stringify({json.dumps(before['range'])})",
    )
    page.settle()
    axis: dict[str, Any] = layout(page, box)["xaxis"]
    return axis


def _wait(page: Browser, condition: str) -> None:
    deadline = time.monotonic() + 20
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, f"not yet: {condition}"
        time.sleep(0.02)


def traces(page: Browser, box: str) -> list[dict[str, Any]]:
    """The data of a drawn chart, as the page gave it to the library."""
    found = page.evaluate(f"document.querySelector({box!r} + ' .js-plotly-plot').data")
    assert isinstance(found, list)
    return found


def trace(page: Browser, box: str, name: str) -> dict[str, Any]:
    """One trace of a drawn chart by its name."""
    (found,) = (one for one in traces(page, box) if one["name"] == name)
    return found


def layout(page: Browser, box: str) -> dict[str, Any]:
    """The layout of a drawn chart, as it is now."""
    found = page.evaluate(f"document.querySelector({box!r} + ' .js-plotly-plot').layout")
    assert isinstance(found, dict)
    return found


def words(page: Browser, box: str) -> list[str]:
    """Every text in a drawing: of axes, marks and annotations."""
    return texts(page, f"{box} svg.main-svg text")


def place_of(page: Browser, box: str, name: str, number: int) -> tuple[float, float]:
    """Where in the window a point of a trace is."""
    found = page.evaluate(
        f"(() => {{ const chart = document.querySelector({box!r} + ' .js-plotly-plot');"
        f" const one = chart._fullData.find(one => one.name === {name!r});"
        " const around = chart.getBoundingClientRect(), x = one.xaxis || 'x', y = one.yaxis || 'y';"
        " const axis = id => chart._fullLayout[id[0] + 'axis' + id.slice(1)];"
        f" const at = [one.x[{number}], one.y[{number}]];"
        " if (one.orientation === 'h') at[0] = (one.base ? one.base[" + str(number) + "] : 0)"
        " + at[0] / 2;"
        " else if (one.type === 'bar') at[1] = at[1] / 2;"
        " return [around.left + axis(x)._offset + axis(x).d2p(at[0]),"
        " around.top + axis(y)._offset + axis(y).d2p(at[1])]; })()"
    )
    return found[0], found[1]


def point_at(page: Browser, box: str, name: str, number: int) -> str:
    """What the tip says while the pointer is on a point of a trace."""
    x, y = place_of(page, box, name, number)
    # Coming from elsewhere: the pointer may be there already.
    for left, top in ((x + 60, y + 60), (x, y)):
        page.call("Input.dispatchMouseEvent", type="mouseMoved", x=left, y=top)
        page.settle()
    return texts(page, ".tip:not([hidden])")[0]


def click_at(page: Browser, box: str, name: str, number: int) -> None:
    """Click a point of a trace."""
    x, y = place_of(page, box, name, number)
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    page.settle()
    for kind in ("mousePressed", "mouseReleased"):
        page.call(
            "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1
        )
    page.settle()


def drag(page: Browser, box: str, part: tuple[float, float]) -> None:
    """Draw a rectangle over a part of a chart's width, at half its height: a zoom."""
    found = page.evaluate(
        f"(() => {{ const one = document.querySelector({box!r} + ' .nsewdrag')"
        ".getBoundingClientRect(); return [one.left, one.top, one.width, one.height]; })()"
    )
    left, top, width, height = found
    ends = [(left + share * width, top + height / 2) for share in part]
    x, y = ends[0]
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    page.call(
        "Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", clickCount=1
    )
    for share in (0.3, 0.7, 1.0):
        page.call(
            "Input.dispatchMouseEvent", type="mouseMoved", button="left", buttons=1,
            x=x + share * (ends[1][0] - x), y=y + 2,
        )  # fmt: skip
    page.call(
        "Input.dispatchMouseEvent",
        type="mouseReleased",
        x=ends[1][0],
        y=y + 2,
        button="left",
        clickCount=1,
    )
    page.settle()
