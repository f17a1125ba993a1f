"""The page's scripts with all their functions at hand, in a browser, on a page without data.

`lab.values("T.dom.formatBytes", ...)` calls a function once for each case; `lab.draw` draws parts
of a view from data and tells what is then on the page, line by line, its charts with it.
"""

import copy
import functools
import json
import re
import tempfile
from pathlib import Path
from unittest import mock

from profstack.report import html
from profstack.report.page import prepare
from tests.support.bench_reports import bench
from tests.support.browser import snippet
from tests.support.full_report import whole
from tests.support.processes import TESTS
from tests.support.reports import build

_NAMES = re.compile(r"^(?:async )?(function|const|let|class) (\w+)", re.MULTILINE)
_SCOPE = re.compile(
    r'^MODULES\["([\w-]+)\.js"\] = \(function \(\) \{\n(.*?)^return \{[^{}]*\};\n\}\)\(\);\n',
    re.MULTILINE | re.DOTALL,
)


def opened_up(script):
    """The script with all that its modules define in `T.MODULE`; it does not start."""

    def scope(found):
        name, body = found.groups()
        kinds = {each: kind for kind, each in _NAMES.findall(body)}
        every = ", ".join(
            f"get {each}() {{ return {each}; }}"
            + (f", set {each}(value) {{ {each} = value; }}" if kind == "let" else "")
            for each, kind in kinds.items()
        )
        if name == "main":
            body = body.replace("\nmain();\n", "\n")
        return f'MODULES["{name}.js"] = (function () {{\n{body}return {{ {every} }};\n}})();\n'

    wide = _SCOPE.sub(scope, script)
    named = "Object.entries(MODULES).map(([k, v]) => [k.slice(0, -3), v])"
    keep = f"window.T = Object.fromEntries({named})"
    return wide.removesuffix("})();\n") + f"{keep};\n}})();\n"


@functools.cache
def _page_file():
    """The page without its data, its library or its start."""
    first, last = (TESTS / "support" / "page_lab.js").read_text().split("window.lab = ")
    script = f"{first}{opened_up(html.page_script('main.js'))}window.lab = {last}"
    path = Path(tempfile.mkdtemp(prefix="page-lab-")) / "lab.html"
    with (
        mock.patch.object(html, "page_script", return_value=script),
        mock.patch.object(html, "library", return_value=html.Library("", "sha256-none", "none")),
    ):
        html.write(build(), path)
    return path


class Lab:
    """The one lab page of the shared browser; opened again where another page was shown."""

    def __init__(self, browser):
        self.browser = browser

    def js(self, expression):
        """What an expression gives; elements are told by their outlines."""
        if self.browser.shows != "lab":
            self.browser.open(_page_file(), width=1400, height=900)
            self.browser.evaluate(
                "document.body.append(T.dom.tip), document.documentElement.dataset.theme = 'light'"
            )
            self.browser.shows = "lab"
        return self.browser.evaluate(f"(async () => lab.of(await ({expression})))()")

    def script(self, name, **words):
        """What a file of `snippets` gives, with each of the words in place of its name."""
        text = snippet(name)
        for word in words.items():
            text = text.replace(*word)
        return self.js(text)

    def values(self, function, cases):
        """What a function gives for each case: a tuple of arguments, or one alone."""
        given = [list(one) if isinstance(one, tuple) else [one] for one in cases]
        return list(self.js(f"{json.dumps(given)}.map((one) => ({function})(...one))"))

    def check(self, function, table):
        """Compare what a function gives with what is expected of each case."""
        assert dict(zip(table, self.values(function, table), strict=True)) == dict(table)

    def draw(self, page, draws, *selectors):
        """Draw with functions (a JavaScript list) and tell the elements of these selectors."""
        return sound(self.js(f"lab.draw({json.dumps(page)}, [{draws}], {json.dumps(selectors)})"))

    def view(self, page, script, name=""):
        """Draw all parts of a script's view and tell them."""
        parts = f"...T.{script}.{name or script}View.parts.flatMap(([, ...draws]) => draws)"
        return self.draw(page, parts, f"#view-{name or script}")

    def all(self, selector, each="one.textContent"):
        """What an expression of `one` gives for each element that a selector finds."""
        found = f"[...document.querySelectorAll({json.dumps(selector)})].map((one) => {each})"
        return list(self.js(found))

    def chart(self, box):
        """The traces of a chart by their names, and its layout."""
        data, layout = self.all(f"{box} .plot", "[one.data, one.layout]")[0]
        return {one.get("name", at): one for at, one in enumerate(data)}, layout

    def tables(self, view, rows=1):
        """Headings and the first rows of the tables in a view, by the box that they are in."""
        told = snippet("table_told").replace("ROWS", str(rows))
        return {box: rest for box, *rest in self.all(f"#view-{view} table", told)}

    def press(self, box, text):
        """Click the button with this text and let the page draw."""
        self.tell("#note", after=f"[...document.querySelectorAll({json.dumps(box + ' button')})]"
                  f".find((one) => one.textContent === {json.dumps(text)}).click()")  # fmt: skip

    def tell(self, *selectors, after="0"):
        """The elements as they are, once something was done."""
        told = f"{after}; await lab.rest(); await lab.rest(); return lab.tell"
        return sound(self.js(f"(async () => {{ {told}({json.dumps(selectors)}); }})()"))


def sound(lines):
    """The lines, none of which has what comes of a value that is not there."""
    word = re.compile(r".{,60}(?:NaN|undefined|\[object|Infinity|null ).{,60}")
    wrong = [found[0] for one in lines if (found := word.search(one))]
    assert not wrong, wrong
    return lines


def page_of(report):
    """The data of a report's page as its scripts find it when all parts are inflated."""
    page = json.loads(json.dumps(prepare(report, base="").as_dict()))
    page |= {"parts": html.divide(page)[0]["parts"]}
    page["overview"]["rules"] = page["overview"]["rules"][:3]
    page["overview"]["verdicts"] = page["overview"]["verdicts"][:2]
    return page


@functools.cache
def run_page():
    """The page of a run in which every layer had its turn; `changed` gives others like it."""
    return page_of(whole())


@functools.cache
def bench_page():
    return page_of(bench())


def records_of(page, name):
    """The rows of a table of the page, with their columns."""
    table = page["tables"][name]
    keys = [column["key"] for column in table["columns"]]
    return [dict(zip(keys, row, strict=True)) for row in table["rows"]]


def with_rows(page, name, records):
    """A table of the page with these rows instead: what they leave out is null."""
    keys = [column["key"] for column in page["tables"][name]["columns"]]
    return page["tables"][name] | {"rows": [[one.get(key) for key in keys] for one in records]}


def changed(page, **values):
    """A copy with some parts changed: `facts__step__n=3` for page["facts"]["step"]["n"]."""
    found = copy.deepcopy(dict(page))
    for way, value in values.items():
        *outer, last = way.split("__")
        functools.reduce(lambda at, name: at[name], outer, found)[last] = value
    return found
