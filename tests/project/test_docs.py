"""The documentation tells the truth: generated pages are current, links lead somewhere.

`python scripts/make_reference.py` writes the generated pages anew.
"""

import functools
import itertools
import re
import sys
from collections import Counter

import pytest
from markdown_it import MarkdownIt

from tests.support.processes import CHECKOUT, run_python

sys.path.insert(0, str(CHECKOUT / "scripts"))
import make_reference

DOCS = CHECKOUT / "docs"
README = CHECKOUT / "README.md"
AT_ROOT = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
PAGES = [*(CHECKOUT / name for name in AT_ROOT), *sorted(DOCS.rglob("*.md"))]
# A path of the checkout in a page's text.
_PATH = re.compile(
    r"`((?:profstack|wrappers|scripts|tests|docs|examples|benchmarks)/[\w./-]+|setup\.cfg)`"
)


def shown(path):
    return path.relative_to(CHECKOUT).as_posix()


@functools.cache
def parsed(page):
    return MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8"))


@functools.cache
def anchors_of(page):
    """The anchors that a code host gives to the headings of a page."""
    found, names = Counter(), set()
    for token, after in itertools.pairwise(parsed(page)):
        if token.type == "heading_open":
            words = "".join(each.content for each in after.children or () if each.content)
            name = re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")
            names.add(f"{name}-{found[name]}" if found[name] else name)
            found[name] += 1
    return names


def links(page):
    for token in parsed(page):
        found = (each.attrGet("href") or each.attrGet("src") for each in token.children or ())
        yield from filter(None, found)


def broken(page):
    """The links of a page that lead nowhere; those into the web are not followed."""
    for address in links(page):
        way, _, anchor = address.partition("#")
        target = (page.parent / way).resolve() if way else page
        if re.match(r"[a-z]+:", address) or (target.exists() and not anchor):
            continue
        if target.suffix != ".md" or not target.exists() or anchor not in anchors_of(target):
            yield address


def test_every_link_and_file_of_a_page_is_there_and_every_picture_is_used():
    assert [(shown(page), link) for page in PAGES for link in broken(page)] == []
    used = {(page.parent / address).resolve() for page in PAGES for address in links(page)}
    assert [shown(path) for path in DOCS.rglob("*.png") if path not in used] == []
    pages = [page for page in PAGES if page.name != "CHANGELOG.md"]
    named = {(page, path) for page in pages for path in _PATH.findall(page.read_text("utf-8"))}
    assert not [(shown(page), path) for page, path in named if not (CHECKOUT / path).exists()]


def without_meaning(page):
    """The fields or columns of a page of the reference whose cell of the meaning is empty."""
    section = ""
    for line in page.splitlines():
        section = line.removeprefix("## ") if line.startswith("## ") else section
        # A bar within a cell is escaped.
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) >= 3 and not cells[2]:
            yield f"{section}.{cells[0].strip('`')}"


def test_the_reference_is_what_the_code_gives_and_every_field_has_a_meaning():
    pages = {name: make() for name, make in make_reference.PAGES.items()}
    assert pages == {
        path.name: path.read_text("utf-8") for path in make_reference.REFERENCE.iterdir()
    }
    for name in ("report-json.md", "tables.md"):
        assert list(without_meaning(pages[name])) == [], name


def test_the_site_builds_and_loads_nothing_from_a_network(tmp_path):
    pytest.importorskip("furo")
    pytest.importorskip("myst_parser")
    site = tmp_path / "site"
    # As `make docs` does.
    words = ["--quiet", "--fail-on-warning", "--keep-going", "-c", "docs", "-d", f"{site}-cache"]
    assert run_python("-m", "sphinx", *words, ".", site, cwd=CHECKOUT).stderr == ""
    pages = list(site.rglob("*.html"))
    assert len(pages) >= len(PAGES)
    for page in pages:
        html = page.read_text(encoding="utf-8")
        loading = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*", html)
        assert not [each for each in loading if re.search(r"(?:src|href)=\"?(?:https?:)?//", each)]
    for style in (site / "_static").rglob("*.css"):
        assert not re.search(r"@import|url\(\s*['\"]?(?:https?:)?//", style.read_text("utf-8"))
    assert "README.html" in (site / "index.html").read_text("utf-8")
