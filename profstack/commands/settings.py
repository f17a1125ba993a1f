"""A project's settings: `[tool.profstack]` in pyproject.toml, `[profstack]` in setup.cfg.

The nearest ones upward from the working folder count, at most up to the repository's top.
"""

from __future__ import annotations

import configparser
import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from profstack.errors import UsageError

_KNOWN = ("fail-if", "strict")
_SECTIONS = ("profstack", "tool:profstack")
_IN_TOML = re.compile(r"^\s*\[tool\.profstack\]", re.MULTILINE)


@dataclass(frozen=True)
class Settings:
    """Rules that a change must keep, whether unclear ones fail, and the file they are from."""

    fail_if: tuple[str, ...] = ()
    strict: bool = False
    file: str = ""


def read_settings(folder: Path) -> Settings:
    """Return the settings for a working folder; raise UsageError for what they cannot hold."""
    for here in (folder, *folder.parents):
        readers: tuple[tuple[str, Callable[[Path], Mapping[str, object] | None]], ...] = (
            ("pyproject.toml", _of_toml),
            ("setup.cfg", _of_setup),
        )
        for name, read in readers:
            path = here / name
            if path.is_file() and (found := read(path)) is not None:
                return _settings(found, path)
        if (here / ".git").exists():
            break
    return Settings()


def _of_toml(path: Path) -> Mapping[str, object] | None:
    text = _text(path)
    # Other projects' files need not even be valid.
    if _IN_TOML.search(text) is None:
        return None
    try:
        toml = importlib.import_module("tomllib")
    except ModuleNotFoundError:
        try:
            toml = importlib.import_module("tomli")
        except ModuleNotFoundError:
            step = "install tomli, or write the same under [profstack] in setup.cfg"
            what = "Python 3.10 reads no TOML, so [tool.profstack] was not read"
            raise UsageError(what, where=str(path), next_step=step) from None
    try:
        content = toml.loads(text)
    except ValueError as error:
        step = "correct it; no rule was checked"
        raise UsageError(f"it is no TOML ({error})", where=str(path), next_step=step) from None
    found: Mapping[str, object] = content["tool"]["profstack"]
    return found


def _of_setup(path: Path) -> Mapping[str, object] | None:
    parser = configparser.ConfigParser(interpolation=None)
    text = _text(path)
    if not any(f"[{section}]" in text for section in _SECTIONS):
        return None
    try:
        parser.read_string(text)
    except configparser.Error as error:
        what = f"it cannot be read ({error.message.splitlines()[0]})"
        raise UsageError(what, where=str(path), next_step="correct it") from None
    for section in _SECTIONS:
        if parser.has_section(section):
            found: dict[str, object] = dict(parser[section])
            for name, value in found.items():
                if name.replace("_", "-") == "fail-if":
                    found[name] = [line for line in str(value).splitlines() if line.strip()]
                elif str(value).lower() in parser.BOOLEAN_STATES:
                    found[name] = parser.BOOLEAN_STATES[str(value).lower()]
            return found
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        what = f"it cannot be read ({error.strerror})"
        raise UsageError(what, where=str(path), next_step="check its permissions") from None


def _settings(found: Mapping[str, object], path: Path) -> Settings:
    named = {name.replace("_", "-"): value for name, value in found.items()}
    for name in named:
        if name not in _KNOWN:
            step = f"it knows {' and '.join(_KNOWN)}"
            raise UsageError(f"profstack has no setting {name!r}", where=str(path), next_step=step)
    rules, strict = named.get("fail-if", []), named.get("strict", False)
    rules = [rules] if isinstance(rules, str) else rules
    if not isinstance(rules, list) or not all(isinstance(rule, str) for rule in rules):
        step = 'write fail-if = ["step > 5%"]'
        raise UsageError("fail-if is a list of rules", where=str(path), next_step=step)
    if not isinstance(strict, bool):
        raise UsageError("strict is true or false", where=str(path), next_step="correct it")
    return Settings(tuple(rule.strip() for rule in rules), strict, str(path))
