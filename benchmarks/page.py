"""How large the page of a very large run is, and how soon its overview is on screen.

    python benchmarks/page.py [--repeat 5] [--modules 10000] [--functions 50000] [--operators 5000]
                              [--comparison]

Makes the report of a run with that many rows, writes its page and opens it in headless Chromium.
With `--comparison` it is the page of `profstack compare` of two runs with that many rows each.
There are two figures: the page's size against its bound of 12 MB, and the time that scripts took
until the overview was drawn, as Chromium counts it (`ScriptDuration`; that of all tasks is
beside it). A time alone says little on another machine, so it is divided by that of a fixed script
run in the same browser just before: the ratio is what can be compared. Medians of fresh browsers;
the page's own file is read from disk.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_CHECKOUT = Path(__file__).resolve().parent.parent
MOST_BYTES = 12_000_000
MOST_SECONDS = 1.0
# Objects made, sorted and written as text: what drawing a page is made of, without a page. In a
# timer's task: what the debugger evaluates itself is not counted.
CALIBRATION = """
new Promise((done) => setTimeout(() => {
  let state = 12345;
  const next = () => (state = (state * 1103515245 + 12345) % 2147483648);
  let sum = 0;
  for (let round = 0; round < 20; round += 1) {
    const row = (_, at) => ({ at, name: "row " + next(), value: next() });
    const rows = Array.from({ length: 4000 }, row);
    rows.sort((a, b) => a.value - b.value || a.name.localeCompare(b.name));
    sum += JSON.parse(JSON.stringify(rows)).reduce((all, row) => all + row.name.length, 0);
  }
  done(sum);
}))
"""


def main() -> int:
    """Write the page, open it a few times and print what it took."""
    chosen = _arguments()
    sys.path.insert(0, str(_CHECKOUT))
    if importlib.util.find_spec("tests") is None:
        print("the tests' folder is missing: it holds the browser's driver", file=sys.stderr)
        return 2
    from tests.support.browser import EXECUTABLE

    if EXECUTABLE is None:
        print("there is no Chromium on this machine", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="page-benchmark-") as folder:
        page = Path(folder) / "report.html"
        _write(page, chosen)
        drawn = "#verdict .verdict" if chosen.comparison else "#view-overview .card"
        found = [
            _opened(page, Path(folder) / f"profile-{turn}", drawn) for turn in range(chosen.repeat)
        ]
        return _say(page.stat().st_size, found)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    for name, usual in (("repeat", 5), ("modules", 10_000), ("functions", 50_000)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--operators", type=int, default=5_000)
    parser.add_argument("--comparison", action="store_true")
    return parser.parse_args()


def _large_comparison(modules: int, functions: int, operators: int) -> Any:
    """The comparison of two very large runs; few rows take much, most take next to nothing."""
    from tests.support.comparisons import change, comparison, table, table_row

    chance, made = random.Random(5), comparison()
    paths = ["Large"]
    for at in range(1, modules):
        paths.append(f"{paths[(at - 1) // 4]}.{at}")

    def rows(names: list[str], most: float) -> list[Any]:
        found = []
        for at, name in enumerate(names):
            before = most / (at + 1) * chance.random()
            ratio = chance.choice((1.0, 1.0, 0.7, 1.01, 1.4))
            figures = change(before, before * ratio, abs(ratio - 1) > 0.05)
            place = {"file": f"pack{at % 60}/mod{at % 900}.py", "line": at % 1_500 + 1}
            found.append(table_row(name, figures, **place))
        return found

    named = [f"function_{at} (pack{at % 60}/mod{at % 900}.py)" for at in range(functions)]
    shaped = [f"aten::op{at % 500} [[{at}, 64], [64, {at % 97}]]" for at in range(operators)]
    made["tables"] = [
        table("modules", "Modules", "s", rows(paths, 0.4)),
        table("operators", "Operators", "s", rows(shaped, 0.1)),
        table("functions", "Functions", "s", rows(named, 0.2)),
    ]
    return made


def _write(page: Path, chosen: argparse.Namespace) -> None:
    """Make the report and write its page, and say how long the page alone took."""
    sizes = (chosen.modules, chosen.functions, chosen.operators)
    if chosen.comparison:
        from profstack.report import compare_page

        comparison = _large_comparison(*sizes)
        tables = {table["name"]: table["rows"] for table in comparison["tables"]}
        began = time.perf_counter()
        compare_page.write(comparison, page)
    else:
        from large_report import large

        from profstack.report import html

        report = large(*sizes)
        tables = report["tables"]
        began = time.perf_counter()
        html.write(report, page)
    rows = {name: len(rows) for name, rows in tables.items() if len(rows) > 1_000}
    print(f"rows: {', '.join(f'{count:,} {name}' for name, count in rows.items())}")
    print(f"written in {time.perf_counter() - began:.2f} s")


def _opened(page: Path, profile: Path, drawn: str) -> dict[str, float]:
    """Times of one fresh browser, in seconds: the fixed script, and the page's overview.

    `drawn` selects what the overview has when it is drawn.
    """
    from tests.support.browser import Browser

    with Browser(profile) as browser:
        browser.call("Performance.enable")
        before = _seconds(browser, "ScriptDuration")
        browser.evaluate(CALIBRATION)
        fixed = _seconds(browser, "ScriptDuration") - before
        browser.open(page)
        errors = browser.errors()
        assert not errors, errors
        rows = browser.evaluate(f"document.querySelectorAll('{drawn}').length")
        assert rows, "the overview is empty"
        paint = browser.evaluate(
            "(performance.getEntriesByName('first-contentful-paint')[0] || {}).startTime || 0"
        )
        # A new document counts from 0. What a promise calls may count as a task's and not as a
        # script's time: the bound is for both.
        script, task = (_seconds(browser, f"{name}Duration") for name in ("Script", "Task"))
        return {"fixed": fixed, "script": script, "task": task, "paint": paint / 1e3}


def _seconds(browser: Any, name: str) -> float:
    metrics = browser.call("Performance.getMetrics")["metrics"]
    return next(float(one["value"]) for one in metrics if one["name"] == name)


def _say(size: int, found: list[dict[str, float]]) -> int:
    """Print the figures; 1 if a bound is broken."""
    middle = {key: statistics.median(one[key] for one in found) for key in found[0]}
    ratio = statistics.median(one["script"] / one["fixed"] for one in found)
    print(f"page: {size / 1e6:.2f} MB (at most {MOST_BYTES / 1e6:.0f})")
    print(
        f"scripts until the overview is drawn: {middle['script'] * 1e3:.0f} ms, {ratio:.2f} times "
        f"the fixed script's {middle['fixed'] * 1e3:.0f} ms (median of {len(found)} browsers)"
    )
    print(f"all tasks of the page, layout and parsing included: {middle['task'] * 1e3:.0f} ms")
    print(f"first content on screen after {middle['paint'] * 1e3:.0f} ms")
    return int(size > MOST_BYTES or middle["task"] > MOST_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
