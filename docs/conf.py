"""The site of the documentation: `make docs` builds it from the Markdown of the repository.

Its source is the whole checkout, so that the pages at its root belong to it and links are the same
on the site as where the repository is hosted.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

# The pages in the order of the navigation; one that is missing here fails the build.
NAVIGATION = {
    "Guide": (
        "docs/first-run",
        "docs/reading-the-page",
        "docs/benchmark",
        "docs/compare",
        "docs/pytest",
        "docs/ci",
        "docs/lock",
        "docs/try",
        "docs/nsight",
        "docs/import",
        "docs/many-ranks",
        "docs/notebook-and-session",
        "docs/migrating",
    ),
    "Background": ("docs/how-it-measures", "docs/layers", "docs/limits"),
    "Reference": (
        "docs/reference/command-line",
        "docs/reference/verdicts",
        "docs/reference/findings",
        "docs/reference/warnings",
        "docs/reference/layers",
        "docs/reference/tables",
        "docs/reference/report-json",
        "docs/reference/environment",
    ),
    "Development": ("ARCHITECTURE", "CONTRIBUTING", "CHANGELOG"),
}

project = "profstack"
author = "the authors of profstack"
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = [
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"),
    *("docs/*.md", "docs/reference/*.md"),
]
# Nothing else is looked through.
exclude_patterns = [
    *(".*", "benchmarks", "build", "dist", "examples", "node_modules", "profstack", "scripts"),
    *("profstack-runs", "tests", "wrappers", "**/*.egg-info"),
]
# Headings get the anchors that code hosts give them.
myst_heading_anchors = 3

html_theme = "furo"
html_title = "profstack"
html_copy_source = False
html_show_sphinx = False
html_use_index = False


def setup(app: Sphinx) -> None:
    """Add the navigation, and a start page."""
    app.connect("source-read", _add_navigation)
    app.connect("build-finished", _write_start)


def _add_navigation(app: Sphinx, page: str, content: list[str]) -> None:
    if page == root_doc:
        for caption, pages in NAVIGATION.items():
            lines = "\n".join(pages)
            content[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{lines}\n```\n"


def _write_start(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.name == "html":
        start = '<!doctype html><meta http-equiv="refresh" content="0; url=README.html">\n'
        (Path(app.outdir) / "index.html").write_text(start, encoding="utf-8")
