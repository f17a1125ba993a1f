"""README tells the truth: its tables of verdicts, findings and warnings are those of the code.

`python tests/test_readme.py` writes them anew.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    text = "\n".join(f"| {' | '.join(line)} |" for line in cells)
    return text.replace("| --- |", "|---|").replace("|---| --- |", "|---|---|")


def findings() -> str:
    """Every kind of finding, its rule and its gain."""
    from profstack.findings.rules import RULES

    rows = [(f"`{rule.slug}`", f"**{rule.title}.** {rule.rule}", rule.gain) for rule in RULES]
    return table(("slug", "when", "`gain_s`"), rows)


def warnings() -> str:
    """Every kind of warning and what it says."""
    from profstack.warningslugs import WARNINGS

    return table(("slug", "says that"), [(f"`{slug}`", text) for slug, text in WARNINGS.items()])


def verdicts() -> str:
    """Every verdict, what its test measures, and the share from which it can be the verdict."""
    from profstack.findings.verdictrules import OTHERS, RULES

    rows = [(f"`{rule.slug}`", rule.measure, f"{100 * rule.threshold:.0f} %") for rule in RULES]
    others = [(f"`{slug}`", text, "") for slug, text in OTHERS.items()]
    return table(("slug", "share of the clean step", "from"), [*rows, *others])


PARTS: dict[str, Callable[[], str]] = {
    "verdicts": verdicts,
    "findings": findings,
    "warnings": warnings,
}


def written_anew(text: str) -> str:
    """README with every part as the code has it now."""
    for name, made in PARTS.items():
        begin, end = f"<!-- {name} -->\n", "<!-- end -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        assert found, f"README has no part {name}"
        assert closed, f"the part {name} of README has no end"
        text = f"{before}{begin}{made()}\n{end}{after}"
    return text


def test_the_tables_are_those_of_the_code() -> None:
    text = README.read_text(encoding="utf-8")
    assert text == written_anew(text), "write them anew: python tests/test_readme.py"


def test_its_pictures_and_files_are_there() -> None:
    text = README.read_text(encoding="utf-8")
    pictures = re.findall(r"!\[([^\]]+)\]\(([^)]+)\)", text)
    assert len(pictures) >= 3
    for said, path in pictures:
        assert len(said) > 20
        content = (README.parent / path).read_bytes()
        assert content.startswith(b"\x89PNG")
    for path in re.findall(r"`((?:examples|benchmarks)/[\w./]+)`", text):
        assert (README.parent / path).exists(), path


if __name__ == "__main__":
    sys.path.insert(0, str(README.parent))
    README.write_text(written_anew(README.read_text(encoding="utf-8")), encoding="utf-8")
