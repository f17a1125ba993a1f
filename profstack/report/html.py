"""The page as one HTML file that needs neither a network nor a server.

Names from the program under measurement (modules, functions, files, arguments) reach the page as
JSON inside a script element that no browser runs, and are put on screen as text. A content
security policy with the hashes of our own scripts is the second line of defence: a name that
became markup could still neither run nor load anything.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.util
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from profstack.cache import keep_cached, read_cached
from profstack.errors import RecordingError
from profstack.report.page import prepare
from profstack.storage.schema.report import Report

# The page's data --------------------------------------------------------------------------------

# Parts that are in the page as they are: the overview is drawn from them alone. Every other part,
# mostly rows of a table, is compressed, and the browser inflates it when a view needs it.
PLAIN = ("facts", "overview", "bench", "base")
# Names of parts that are not the part's own: `steps` is the name of a table too.
_NAMES = {"steps": "step_series"}


def divide(page: Mapping[str, Any]) -> tuple[dict[str, object], dict[str, object]]:
    """Return the plain part of a page's data, and the other parts by name.

    A part is a piece of the page's data: inflated, it is put where it was taken from. The plain
    part's `parts` holds the number of rows of each, so that a view knows whether it is empty.
    """
    tables = page["tables"]
    packs: dict[str, object] = {name: {"tables": {name: table}} for name, table in tables.items()}
    sizes = {name: table["total"] for name, table in tables.items()}
    for key, value in page.items():
        if value and key not in (*PLAIN, "tables"):
            name = _NAMES.get(key, key)
            packs[name] = {key: value}
            points = value.get("points", value) if isinstance(value, dict) else value
            # A part without rows may still hold a reason.
            sizes[name] = max(len(points), 1)
    return {**{key: page[key] for key in PLAIN if key in page}, "parts": sizes}, packs


def packed(part: object) -> str:
    """Return a part as compressed text: JSON, gzip, base64; equal parts give equal text."""
    # Not in ASCII: a lone surrogate must not get into the page as an escape, which its scripts
    # would read as a text that no address can hold.
    return packed_text(json.dumps(part, separators=(",", ":"), allow_nan=False, ensure_ascii=False))


def packed_text(text: str) -> str:
    """Return text compressed with gzip and written in base64, for the page's scripts to inflate."""
    # Surrogates that no encoding can write would be names of files that are no UTF-8.
    content = text.encode("utf-8", "replace")
    return base64.b64encode(gzip.compress(content, compresslevel=6, mtime=0)).decode("ascii")


# plotly ----------------------------------------------------------------------------------------

# The file is copied unchanged, with its licence, from the installed package `plotly`, and goes into
# the page as text that no browser runs. The page makes it a script when the first chart comes into
# sight; the page's policy allows that one script by its hash. Importing the package would take
# longer than reading the file.

_LONGEST_NOTICE = 400


@dataclass(frozen=True)
class Library:
    """A script inside the page.

    `text` is the script, compressed as the page's other parts; `digest` is the SHA-256 of the
    script itself, for a content security policy; `notice` is its name and owner in one line.
    """

    text: str
    digest: str
    notice: str


@cache
def library() -> Library | None:
    """Return plotly's file, packed; None where the package is not installed or lacks it."""
    try:
        found = importlib.util.find_spec("plotly")
        if found is None or not found.submodule_search_locations:
            return None
        folder = Path(next(iter(found.submodule_search_locations)))
        file = folder / "package_data" / "plotly.min.js"
        version = [str(file), file.stat().st_size, file.stat().st_mtime_ns]
        if (kept := _kept_library(version)) is not None:
            return kept
        script = file.read_bytes().decode("utf-8-sig")
    except (ImportError, OSError, ValueError):
        return None
    notice = "plotly.js, as shipped by the package plotly"
    # The first comment in one line, without a long licence text.
    if comment := re.match(r"\s*/\*+(.*?)\*/", script[:4_000], re.DOTALL):
        lines = (line.strip(" *") for line in comment[1].splitlines())
        notice = ". ".join(line.rstrip(".") for line in lines if line)[:_LONGEST_NOTICE]
    made = Library(packed_text(script), script_digest(script), notice)
    keep_cached(_LIBRARY_CACHE, json.dumps({"version": version, **asdict(made)}))
    return made


# Packing it takes as long as a tenth of a short run's page: the packed file is kept.
_LIBRARY_CACHE = "plotly.json"


def _kept_library(version: list[object]) -> Library | None:
    """Return the packed file from the user's cache; None where it is of another version."""
    try:
        kept = json.loads(read_cached(_LIBRARY_CACHE) or "{}")
        if kept.pop("version") == version and all(isinstance(one, str) for one in kept.values()):
            return Library(**kept)
    except (ValueError, AttributeError, KeyError, TypeError):
        pass
    return None


def script_digest(script: str) -> str:
    """Return a script's digest, by which a content security policy allows it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


# Files ------------------------------------------------------------------------------------------


def replace_text(path: Path, content: str) -> None:
    """Write `content` beside `path` and move it there: readers never see a half-written file.

    Bytes in file names that are not UTF-8 (lone surrogates in Python) are written as question
    marks, since no program opens a file with an invalid encoding. A symbolic link stays, and what
    it leads to is replaced.
    """
    path = path.resolve() if path.is_symlink() else path
    data = content.encode("utf-8", "replace")
    try:
        if path.exists() and not path.is_file():
            # A device or a pipe must not be replaced.
            path.write_bytes(data)
            return
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            # mkstemp makes private files; a page is as readable as any other new file.
            # The mask can only be read by setting it.
            os.umask(mask := os.umask(0o022))
            Path(temporary).chmod(0o666 & ~mask)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise RecordingError(
            f"cannot be written ({error.strerror or error})",
            where=str(path),
            next_step="choose another place with -o FILE",
        ) from error


class Markup(str):
    """HTML: it goes into a page as it is. All other text is escaped."""

    __slots__ = ()


_PLACE = re.compile(r"\{\{ (\w+) \}\}")
# Pieces of the page: a view, a part of its data, and a term of the glossary.
_VIEW = """\
<div class="view" id="view-{{ view }}" data-view="{{ view }}" role="region" \
aria-labelledby="title-{{ view }}" hidden>
<h2 id="title-{{ view }}" tabindex="-1"></h2>
{{ part }}
</div>
"""
_PACK = """\
<script type="text/plain" id="pack-{{ name }}" data-notice="{{ notice }}">{{ text }}</script>
"""
_TERM = """\
  <div id="term-{{ slug }}"><dt>{{ name }}</dt><dd>{{ meaning }}</dd></div>
"""


def filled(text: str, /, **values: str) -> Markup:
    """Return HTML with each of its places `{{ name }}` filled."""

    def fill(place: re.Match[str]) -> str:
        value = values[place[1]]
        return value if isinstance(value, Markup) else escape(value)

    return Markup(_PLACE.sub(fill, text))


def joined(pieces: Iterable[Markup]) -> Markup:
    """Return pieces of HTML as one."""
    return Markup("".join(pieces))


# The page's scripts are modules, `import { a, b } from "./name.js";` and `export` before a
# definition: the two forms that are turned into one script for the page.
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w-]+\.js)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
_OTHER_FORM = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)
# A chart that is saved as a picture has an address in the page's own memory.
_POLICY = (
    "default-src 'none'; script-src {}; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class PageKind:
    """A kind of page.

    `entry` is the module that starts it, `facts` the file beside it that holds the same facts,
    `command` the subcommand that writes it again.
    """

    entry: str
    styles: tuple[str, ...]
    facts: str
    command: str


# One template each, `view-NAME.html`, in the order of the navigation.
_VIEWS = (
    *("overview", "ranks", "modules", "operators", "kernels", "python", "source", "memory"),
    *("flops", "benchmark", "ranges", "nsys", "other-layers", "method", "environment", "glossary"),
)
STYLES = ("page.css", "bench.css", "trees.css", "overview.css")
_REPORT = PageKind(
    "main.js", (*STYLES, "source.css", "method.css", "ranks.css"), "report.json", "report"
)


def render(report: Report, *, base: str = "") -> str:
    """Return the page as HTML; `base` is the path from the page's folder to the recording's."""
    page = prepare(report, base=base).as_dict()
    imported = [each["file"] for each in (*report.get("imports", ()), report.get("nsys")) if each]
    subject = report["script"] or (imported or ["profstack"])[0]
    views = {view: f"view-{view}.html" for view in _VIEWS}
    return assemble(_REPORT, page, subject, views, report["profstack_version"])


def assemble(
    kind: PageKind, page: Mapping[str, Any], subject: str, views: Mapping[str, str], version: str
) -> str:
    """Return a page of this kind as HTML.

    `page` is its data (see `divide`), `views` the template of each view in order.
    """
    data, parts = divide(page)
    # The first runs before anything is drawn: the choice of light or dark.
    scripts = [template("theme.js"), page_script(kind.entry)]
    charts = library()
    digests = [*map(script_digest, scripts), *([charts.digest] if charts else [])]
    packs = {name: packed(part) for name, part in parts.items()}
    notice = ""
    if charts is not None:
        packs["plotly"], notice = charts.text, charts.notice
    page_text = filled(
        template("page.html"),
        title=f"{subject} - profstack",
        facts=kind.facts,
        command=kind.command,
        style=Markup("".join(map(template, kind.styles))),
        # The policy allows these scripts alone, and no loading.
        policy=_POLICY.format(" ".join(f"'{digest}'" for digest in digests)),
        early_script=Markup(scripts[0]),
        page_script=Markup(scripts[-1]),
        views=joined(
            filled(_VIEW, view=view, part=_part(view, name, kind)) for view, name in views.items()
        ),
        data=_data_text(data),
        # Base64 has nothing to escape.
        packs=joined(
            filled(_PACK, name=name, notice=notice if name == "plotly" else "", text=Markup(text))
            for name, text in packs.items()
        ),
        charts=f" Charts: {notice}." if notice else "",
        version=version,
    )
    # Without lone surrogates, which no encoding can write.
    return page_text.encode("utf-8", "replace").decode("utf-8")


def write(report: Report, path: Path, *, recording: Path | None = None) -> None:
    """Write the page to `path`; links lead to the files in `recording` (default: beside it)."""
    home = (recording or path.parent).resolve()
    try:
        way = Path(os.path.relpath(home, path.parent.resolve())).as_posix()
    except ValueError:  # On another drive.
        way = home.as_uri()
    replace_text(path, render(report, base="" if way == "." else way))


def _part(view: str, name: str, kind: PageKind) -> Markup:
    """Return the elements of a view."""
    words = json.loads(template("glossary.json")) if name == "view-glossary.html" else {}
    terms = [*words.get("report", ()), *words.get(kind.command, ())]
    found = joined(filled(_TERM, slug=slug, name=term, meaning=text) for slug, term, text in terms)
    return filled(template(name).rstrip("\n"), view=view, words=found)


def _data_text(data: object) -> Markup:
    """Return data as JSON that cannot end the element it is in."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    for character in "<>&'":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


@cache
def template(name: str) -> str:
    """Return the text of a file in `templates/`."""
    return (resources.files("profstack.report") / "templates" / name).read_text(encoding="utf-8")


@cache
def page_script(entry: str) -> str:
    """Return a page's modules as one script: each a function's scope, called once, imports first.

    A browser that reads the page from disk loads no module beside it, and modules inside the page
    have no address to be imported by. One script has one hash in the page's policy.
    """
    modules: dict[str, str] = {}
    _add_module(entry, modules, ())
    body = "\n".join(modules.values())
    return f'(function () {{\n"use strict";\nconst MODULES = {{}};\n{body}\n}})();\n'


def _add_module(name: str, modules: dict[str, str], importers: tuple[str, ...]) -> None:
    """Add a module's scope after those of the modules that it imports."""
    if name in modules:
        return
    if name in importers:
        raise ValueError(f"modules import each other: {' -> '.join((*importers, name))}")
    text = template(name)
    for _, imported in _IMPORT.findall(text):
        _add_module(imported, modules, (*importers, name))
    # The scope is a function that takes what the module imports and returns what it exports.
    exported = ", ".join(_EXPORT.findall(text))
    body = _IMPORT.sub(r'const {\1} = MODULES["\2"];', _EXPORT.sub("", text))
    if other := _OTHER_FORM.search(body):
        raise ValueError(f"{name}: the page knows no such form: {other[0]}")
    scope = f"(function () {{\n{body}return {{ {exported} }};\n}})()"
    modules[name] = f'MODULES["{name}"] = {scope};\n'
