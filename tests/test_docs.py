"""The documentation tells the truth: generated pages are current, links lead somewhere.

`python scripts/make_reference.py` writes the generated pages anew.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import CHECKOUT
from markdown_it import MarkdownIt

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


def shown(path: Path) -> str:
    return path.relative_to(CHECKOUT).as_posix()


def anchors(text: str) -> set[str]:
    """The anchors that a code host gives to the headings of a page."""
    tokens = MarkdownIt().parse(text)
    found: Counter[str] = Counter()
    names = set()
    for token, after in itertools.pairwise(tokens):
        if token.type == "heading_open":
            words = "".join(each.content for each in after.children or () if each.content)
            name = re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")
            names.add(f"{name}-{found[name]}" if found[name] else name)
            found[name] += 1
    return names


def links(text: str) -> Iterator[str]:
    """The addresses of all links and pictures of a page."""
    for token in MarkdownIt().enable("table").parse(text):
        for each in token.children or ():
            address = each.attrGet("href") or each.attrGet("src")
            if address:
                yield str(address)


def broken(page: Path) -> list[str]:
    """The links of a page that lead nowhere; those into the web are not followed."""
    wrong = []
    for address in links(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", address):
            continue
        way, _, anchor = address.partition("#")
        target = (page.parent / way).resolve() if way else page
        is_page = target.suffix == ".md"
        if not target.exists() or (
            anchor and not (is_page and anchor in anchors(target.read_text(encoding="utf-8")))
        ):
            wrong.append(address)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_the_check_would_see_a_broken_link(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One `two`, three\n[a](#one-two-three) [b](#gone) [c](gone.md) ![d](page.md)\n"
    )
    assert broken(page) == ["#gone", "gone.md"]


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=shown)
def test_every_file_it_names_is_there(page: Path) -> None:
    named = set(_PATH.findall(page.read_text(encoding="utf-8")))
    assert [path for path in sorted(named) if not (CHECKOUT / path).exists()] == []


@pytest.mark.parametrize("name", make_reference.PAGES)
def test_a_generated_page_is_current(name: str) -> None:
    text = (make_reference.REFERENCE / name).read_text(encoding="utf-8")
    assert text == make_reference.PAGES[name](), "python scripts/make_reference.py writes it"


def without_meaning(page: str) -> list[str]:
    """The fields or columns of a page of the reference whose cell of the meaning is empty."""
    found, section = [], ""
    for line in page.splitlines():
        section = line.removeprefix("## ") if line.startswith("## ") else section
        # A bar within a cell is escaped.
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) >= 3 and not cells[2]:
            found.append(f"{section}.{cells[0].strip('`')}")
    return found


@pytest.mark.parametrize("name", ["report-json.md", "tables.md"])
def test_every_field_of_the_report_has_a_meaning(name: str) -> None:
    assert without_meaning(make_reference.PAGES[name]()) == []


def test_the_check_would_see_a_field_without_a_meaning() -> None:
    rows = [("`a`", "text", "what \\| or null"), ("`b`", "number", ""), ("`c`", "text", "words")]
    page = make_reference.table(("field", "type", "meaning"), rows)
    assert without_meaning(f"## Run\n\n{page}") == ["Run.b"]


def test_every_page_of_the_reference_is_generated() -> None:
    assert {page.name for page in make_reference.REFERENCE.iterdir()} == set(make_reference.PAGES)


def test_readme_is_short_and_shows_the_page() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 140
    pictures = re.findall(r"!\[([^\]]+)\]\(([^)]+)\)", text)
    assert len(pictures) >= 3
    for words, path in pictures:
        assert len(words) > 20
        assert (CHECKOUT / path).read_bytes().startswith(b"\x89PNG")


def test_every_picture_is_used() -> None:
    used = {
        (page.parent / address).resolve()
        for page in PAGES
        for address in links(page.read_text(encoding="utf-8"))
    }
    assert [shown(path) for path in DOCS.rglob("*.png") if path not in used] == []


def build(target: Path) -> subprocess.CompletedProcess[str]:
    """Build the site as `make docs` does."""
    words = ["--quiet", "--fail-on-warning", "--keep-going", "-c", "docs", "-d", f"{target}-cache"]
    return subprocess.run(
        [sys.executable, "-m", "sphinx", *words, ".", str(target)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_the_site_builds_and_loads_nothing_from_a_network(tmp_path: Path) -> None:
    pytest.importorskip("furo")
    pytest.importorskip("myst_parser")
    done = build(tmp_path / "site")
    assert (done.returncode, done.stderr) == (0, "")
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) >= len(PAGES)
    for page in pages:
        html = page.read_text(encoding="utf-8")
        loading = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*", html)
        assert not [each for each in loading if re.search(r"(?:src|href)=\"?(?:https?:)?//", each)]
    for style in (tmp_path / "site" / "_static").rglob("*.css"):
        assert not re.search(r"@import|url\(\s*['\"]?(?:https?:)?//", style.read_text("utf-8"))
    assert "README.html" in (tmp_path / "site" / "index.html").read_text("utf-8")
