"""The page: one HTML file that needs nothing else, neither a network nor a server.

Everything a program under measurement could have named (modules, functions, files, arguments)
reaches the page as JSON inside a script element that no browser runs, and is put on screen as
text. A content security policy with the hashes of our own scripts is the second line: should a
name ever become markup, it could still neither run nor load anything.
"""

from __future__ import annotations

import base64
import hashlib
import os
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from profstack.report import plotly
from profstack.report.files import replace_text
from profstack.report.packing import divide, packed
from profstack.report.page import prepare

if TYPE_CHECKING:
    from collections.abc import Mapping

# In the order in which the page runs them, as one script: each uses what stands before it.
_SCRIPTS = (
    "format.js",
    "dom.js",
    "packed.js",
    "views.js",
    "origin.js",
    "seek.js",
    "copy.js",
    "table.js",
    "tree.js",
    "overview.js",
    "findings.js",
    "statistics.js",
    "environment.js",
    "glossary.js",
    "axes.js",
    "plot.js",
    "plots.js",
    "charts.js",
    "benchmark.js",
    "throughput.js",
    "compare.js",
    "mistakes.js",
    "layers.js",
    "timeline.js",
    "hierarchy.js",
    "modulepicture.js",
    "modules.js",
    "operators.js",
    "flops.js",
    "roofline.js",
    "launches.js",
    "calltree.js",
    "callers.js",
    "functions.js",
    "callpaths.js",
    "watch.js",
    "linedetail.js",
    "lines.js",
    "owners.js",
    "regions.js",
    "nsys.js",
    "nsystables.js",
    "start.js",
)
# One template each, `view-NAME.html.j2`, in the order of the navigation.
_VIEWS = (
    *("overview", "modules", "operators", "kernels", "python", "source", "memory", "flops"),
    *("benchmark", "ranges", "nsys", "method", "environment", "glossary"),
)
_STYLES = ("page.css", "bench.css", "trees.css", "overview.css", "source.css", "method.css")


def render(report: Mapping[str, Any], *, base: str = "") -> str:
    """The page as HTML; `base` is the way from the page's folder to the recording's."""
    data, parts = divide(prepare(report, base=base).as_dict())
    environment = _environment()
    scripts = [_early_script(), _page_script()]
    charts = plotly.library()
    return environment.get_template("page.html.j2").render(
        title=_printable(f"{_subject(report)} - profstack"),
        style=Markup("".join(map(_template, _STYLES))),
        policy=_policy(scripts, [charts.digest] if charts else []),
        early_script=Markup(scripts[0]),
        page_script=Markup(scripts[-1]),
        views=_VIEWS,
        data=data,
        packs={name: packed(part) for name, part in parts.items()}.items(),
        plotly=charts,
        version=report.get("profstack_version"),
    )


def _subject(report: Mapping[str, Any]) -> str:
    """What the page is of: the script, or else the file that was imported."""
    imported = (report.get("nsys") or {}).get("file")
    return str(report.get("script") or imported or "profstack")


def write(report: Mapping[str, Any], path: Path, *, recording: Path | None = None) -> None:
    """Write the page to `path`; links lead to the files in `recording` (default: beside it)."""
    replace_text(path, render(report, base=_way(path.parent, recording or path.parent)))


def _way(start: Path, recording: Path) -> str:
    """The relative way from a page to a recording, as a URL uses it; a full one across drives."""
    try:
        way = os.path.relpath(recording.resolve(), start.resolve())
    except ValueError:
        return recording.resolve().as_uri()
    return "" if way == "." else Path(way).as_posix()


@cache
def _environment() -> jinja2.Environment:
    """Jinja with escaping on and JSON without spaces, its keys in our order."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_template),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.policies["json.dumps_kwargs"] = {
        "separators": (",", ":"),
        "sort_keys": False,
        "allow_nan": False,
    }
    return environment


@cache
def _template(name: str) -> str:
    """The text of a file in `templates/`."""
    file = resources.files("profstack.report") / "templates" / name
    return file.read_text(encoding="utf-8")


def _early_script() -> str:
    """What must run before anything is drawn: the choice of light or dark."""
    return _template("theme.js")


@cache
def _page_script() -> str:
    """Our scripts as one, sharing one scope that the page's other scripts cannot see."""
    body = "\n".join(_template(name) for name in _SCRIPTS)
    return f'(function () {{\n"use strict";\n{body}\n}})();\n'


def _policy(scripts: list[str], digests: list[str]) -> str:
    """A policy that lets these scripts run, and those of these digests, and nothing be loaded."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()) for script in scripts)
    own = [f"sha256-{digest.decode()}" for digest in hashes]
    allowed = " ".join(f"'{digest}'" for digest in [*own, *digests])
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        # A chart that is saved as a picture is drawn through an address of the page's own memory.
        "img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _printable(text: str) -> str:
    """Text without lone surrogates, which no encoding can write."""
    return text.encode("utf-8", "replace").decode("utf-8")
