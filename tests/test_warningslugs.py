"""Every kind of warning that the code can make is in the table that the pages list."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from conftest import CHECKOUT

from profstack.findings.rules import WARNINGS

_KEBAB = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
TABLE = CHECKOUT / "profstack/findings/rules.py"
SOURCES = sorted([*(CHECKOUT / "profstack").rglob("*.py"), *(CHECKOUT / "wrappers").glob("*.py")])


def _texts(node: ast.expr | None) -> list[str]:
    """What a slug's place holds, where that is written down; both sides of a choice."""
    if isinstance(node, ast.IfExp):
        return [*_texts(node.body), *_texts(node.orelse)]
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def _constants(tree: ast.AST) -> dict[str, str]:
    """The texts that a module gives names to."""
    return {
        target.id: node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def made(tree: ast.AST) -> Iterator[str]:
    """The slugs with which a module makes notes and warnings, in each of the forms in use."""
    named = _constants(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
            if {"slug", "text"} <= set(keys):
                yield from _texts(node.values[keys.index("slug")])
        elif isinstance(node, ast.Tuple) and len(node.elts) == 2:
            # A pair of a slug and a sentence: only slugs have hyphens and nothing else.
            first = node.elts[0]
            texts = [named.get(first.id, "")] if isinstance(first, ast.Name) else _texts(first)
            if not any(map(_is_slug_of_pair, _texts(node.elts[1]))):
                yield from (text for text in texts if _is_slug_of_pair(text))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            if node.func.attr == "note":
                yield from _texts(node.args[0])
            elif isinstance(node.args[0], ast.Attribute) and node.args[0].attr == "note":
                # A guard calls it with the arguments that follow.
                yield from _texts(node.args[1])


def _is_slug_of_pair(text: str) -> bool:
    return "-" in text and _KEBAB.fullmatch(text) is not None


# Pairs that look like a note and are none: distributions with their modules.
OTHERS = {"flash-attn", "pytorch-lightning", "memory-profiler", "flops-profiler"}


def by_file() -> dict[str, set[str]]:
    """The slugs that each file makes."""
    found = {}
    for path in SOURCES:
        slugs = set(made(ast.parse(path.read_text(encoding="utf-8")))) - OTHERS
        if slugs:
            found[path.relative_to(CHECKOUT).as_posix()] = slugs
    return found


def test_every_warning_that_is_made_is_in_the_table() -> None:
    for file, slugs in by_file().items():
        assert slugs <= set(WARNINGS), file


def test_every_warning_of_the_table_is_made() -> None:
    texts = {
        node.value
        for path in SOURCES
        if path != TABLE
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
    }
    assert set(WARNINGS) <= texts


@pytest.mark.parametrize(
    "source",
    [
        'notes.append(("of-a-pair", text))',
        'NAMED = "of-a-name"\nnotes.append((NAMED, text))',
        'return {"slug": "of-a-row", "text": text}',
        'observers.note("of-a-call", text, layer)',
        'return [("of-a-list", reason)] if reason else []',
        'guard.run(observers.note, "of-a-guard", text)',
    ],
)
def test_slugs_are_found_in_every_form(source: str) -> None:
    assert next(iter(made(ast.parse(source)))).startswith("of-a-")


def test_meanings_are_sentences_without_end() -> None:
    for slug, meaning in WARNINGS.items():
        assert _KEBAB.fullmatch(slug)
        assert len(meaning) > 20
        assert not meaning.endswith(".")
