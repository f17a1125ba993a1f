"""The file of a lock: a small part of TOML, sorted, one fact a line.

Modules with the same facts whose paths differ in one number stand together:
`[modules."GPT.h.[0-11].mlp"]`. What differed between runs of the same code is in `[unstable]`,
under its place, with the values that were seen.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from profstack.errors import RecordingError
from profstack.lock.facts import COMPILE, MEMORY, MODULE, SECTIONS, Facts, Key
from profstack.storage.untrusted import parsed, read_text, typed

VERSION: Final = 1
FILE = "profstack.lock"
# Sections with a table for each thing.
_WITH_NAMES = (COMPILE, MEMORY, MODULE)
_FOLDED, _MADE, _UNSTABLE = "modules", "made", "unstable"
_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")
# Names of a module's facts that come before all others.
_FIRST = ("type", "calls", "parameters", "parameter_bytes", "frozen_parameters")

Entry = int | str | list[str]
Table = dict[str, Entry]


@dataclass
class Lock:
    """The content of a lock.

    `made` says of which script, how, and with what it was made; `unstable` are facts that differed
    between runs of the same code, with the values.
    """

    made: Table
    facts: Facts
    unstable: dict[Key, str] = field(default_factory=dict)


# Write --------------------------------------------------------------------------------------------


def text_of(lock: Lock) -> str:
    """Return the text of a lock."""
    script = lock.made.get("script", "")
    lines = [
        f"# What one step of {_plain(script)} does, in exact numbers (counts per step).",
        "# Written by `profstack lock`, compared by `profstack check`: do not edit it by hand.",
        f"version = {VERSION}",
        "",
        f"[{_MADE}]",
        *(f"{_name(name)} = {_entry(value)}" for name, value in lock.made.items()),
    ]
    lines += _tables(lock.facts)
    if lock.unstable:
        lines += ["", "# Not compared: these differed between runs of the same code."]
        lines += _tables({**lock.unstable}, f"{_UNSTABLE}.")
    return "\n".join(lines) + "\n"


def _tables(facts: Facts, before: str = "") -> Iterator[str]:
    """Yield the lines of all tables; `before` is the beginning of their names."""
    tables: dict[str, dict[str, Facts]] = defaultdict(lambda: defaultdict(dict))
    for key, value in facts.items():
        tables[key.section][key.of][key] = value
    for section in SECTIONS:
        bodies = {of: _body(facts) for of, facts in tables[section].items()}
        if section == MODULE and not before:
            for is_folded, of, body in _folded(bodies):
                yield from ("", f"[{_FOLDED if is_folded else MODULE}.{_quoted(of)}]", *body)
            continue
        for of in sorted(bodies, key=natural):
            head = f"{section}.{_quoted(of)}" if section in _WITH_NAMES else section
            yield from ("", f"[{before}{head}]", *bodies[of])


def _body(facts: Facts) -> list[str]:
    return [f"{_name(key.name)} = {_entry(facts[key])}" for key in sorted(facts, key=_order)]


def _order(key: Key) -> tuple[object, ...]:
    first = _FIRST.index(key.name) if key.name in _FIRST else len(_FIRST)
    return (key.section, natural(key.of), first, " " in key.name, natural(key.name))


def natural(text: str) -> tuple[tuple[int, str], ...]:
    """Return a key that sorts the numbers in texts by value."""
    parts = re.split(r"(\d+)", text)
    return tuple((int(part), part) if _is_number(part) else (-1, part) for part in parts)


def _is_number(text: str) -> bool:
    """Return whether a text is a number that Python reads: of few digits."""
    return text.isdecimal() and len(text) <= _MOST_DIGITS


_MOST_DIGITS = 1000


def _plain(value: Entry) -> str:
    return "".join(each if each.isprintable() else "?" for each in str(value))


def _quoted(text: str) -> str:
    """Return a basic string of TOML; all but plain ASCII is escaped."""
    whole = text.encode("utf-8", "replace").decode("utf-8")
    # A character beyond the first plane is one escape in TOML, and two in JSON.
    parts = [
        f"\\U{ord(each):08X}" if ord(each) > 0xFFFF else json.dumps(each)[1:-1] for each in whole
    ]
    return '"' + "".join(parts).replace("\x7f", "\\u007F") + '"'


def _name(text: str) -> str:
    return text if _BARE.match(text) else _quoted(text)


def _entry(value: Entry) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_quoted, value))}]"
    return str(value) if isinstance(value, int) else _quoted(value)


def _folded(bodies: Mapping[str, list[str]]) -> Iterator[tuple[bool, str, list[str]]]:
    """Yield modules in order, those with equal bodies whose paths differ in one number together.

    The first value of each is whether the path stands for several.
    """
    left = dict(bodies)
    rows: list[tuple[bool, str, list[str]]] = []
    # By the first number in the path that all of them differ in.
    groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for path, body in bodies.items():
        for before, number, after in _numbers(path):
            groups[before, after, "\n".join(body)].append(number)
    for (before, after, _), numbers in sorted(
        groups.items(), key=lambda group: (-len(group[1]), group[0])
    ):
        free = sorted((n for n in numbers if f"{before}{n}{after}" in left), key=int)
        if len(free) < 2:
            continue
        body = left[f"{before}{free[0]}{after}"]
        for number in free:
            del left[f"{before}{number}{after}"]
        rows.append((True, f"{before}[{_ranges(free)}]{after}", body))
    rows += [(False, path, body) for path, body in left.items()]
    yield from sorted(rows, key=lambda row: (natural(row[1].replace("[", "")), row[1]))


def _numbers(path: str) -> Iterator[tuple[str, str, str]]:
    """Yield the parts of a path that are numbers, with what is before and after each."""
    parts = path.split(".")
    if "[" in path or "]" in path:
        return
    for at, part in enumerate(parts):
        if part.isascii() and _is_number(part) and str(int(part)) == part and at:
            after = "".join(f".{each}" for each in parts[at + 1 :])
            yield ".".join(parts[:at]) + ".", part, after


def _ranges(numbers: Iterable[str]) -> str:
    """Return numbers in order as `0-3,5`."""
    found: list[list[int]] = []
    for number in map(int, numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in found)


# Read ---------------------------------------------------------------------------------------------

_HEAD = re.compile(r'\[(unstable\.)?([a-z]+)(?:\.("(?:[^"\\]|\\.)*"))?\]\s*\Z')
_LINE = re.compile(r'([A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*")\s*=\s*(\S.*)\Z')
_ESCAPE = re.compile(r"\\U([0-9A-Fa-f]{8})")
_MANY = re.compile(r"\[([\d,-]+)\]")
# A hostile file must not make paths stand for endless modules, nor name them again and again.
_MOST, _MOST_NAMES = 100_000, 1_000_000


def read(path: Path) -> Lock:
    """Read a lock.

    Raise RecordingError where there is none, or it is damaged or of another version.
    """
    try:
        text = read_text(path)
    except FileNotFoundError:
        raise RecordingError(
            "there is no lock", where=str(path), next_step="make one with 'profstack lock SCRIPT'"
        ) from None
    try:
        return _parse(text)
    except _DamagedError as error:
        step = "take it from the repository again, or make it with 'profstack lock SCRIPT'"
        raise RecordingError(str(error), where=str(path), next_step=step) from None


class _DamagedError(Exception):
    """A line that no lock has."""


def _parse(text: str) -> Lock:
    lock = Lock({}, {})
    section, of, is_unstable = "", [""], False
    names = 0
    version: Entry | None = None
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        try:
            if line.startswith("["):
                section, of, is_unstable = _head(line)
                names += len(of)
                if names > _MOST_NAMES:
                    raise ValueError("too many")
                continue
            match = _LINE.match(line)
            if match is None:
                raise ValueError("no fact")
            name = _string(match[1]) if match[1].startswith('"') else match[1]
            value = _value(match[2])
            if not section:
                if name == "version":
                    version = value
                    _check(version)
            elif section == _MADE:
                lock.made[name] = value
            elif is_unstable:
                lock.unstable[Key(section, of[0], name)] = str(value)
            elif isinstance(value, list):
                raise ValueError("a list")
            else:
                lock.facts.update((Key(section, each, name), value) for each in of)
        except (ValueError, TypeError) as error:
            shown = _plain(line)[:60]
            raise _DamagedError(f"line {number} is no line of a lock: {shown}") from error
    _check(version)
    return lock


def _check(version: Entry | None) -> None:
    if version != VERSION:
        what = f"it is of version {version}" if version is not None else "it has no version"
        raise _DamagedError(f"{what}, and this profstack reads version {VERSION}")


def _head(line: str) -> tuple[str, list[str], bool]:
    """Return the section of a table, what it is of, and whether its facts are unstable."""
    match = _HEAD.match(line)
    if match is None:
        raise ValueError("no table")
    is_unstable, section = match[1] is not None, match[2]
    of = _string(match[3]) if match[3] else ""
    if section == _FOLDED and not is_unstable:
        return MODULE, _unfolded(of), False
    if section not in (*SECTIONS, *(() if is_unstable else (_MADE,))):
        raise ValueError("unknown table")
    return section, [of], is_unstable


def _unfolded(path: str) -> list[str]:
    match = _MANY.search(path)
    if match is None:
        raise ValueError("no numbers")
    numbers: list[int] = []
    for part in match[1].split(","):
        first, _, last = part.partition("-")
        begin, end = int(first), int(last or first)
        if end - begin + len(numbers) > _MOST:
            raise ValueError("too many")
        numbers += range(begin, end + 1)
    return [f"{path[: match.start()]}{number}{path[match.end() :]}" for number in numbers]


def _string(text: str, hint: object = str) -> Any:
    """Return a text, or of another type what is written as in JSON."""
    plain = _ESCAPE.sub(lambda match: json.dumps(chr(int(match[1], 16)))[1:-1], text)
    return typed(parsed(plain), hint)


def _value(text: str) -> Entry:
    if text.startswith("["):
        return cast("list[str]", _string(text, list[str]))
    return _string(text) if text.startswith('"') else int(text)


def merged(runs: list[Facts]) -> tuple[Facts, dict[Key, str]]:
    """Return the facts that all runs agree on, and the others with their values."""
    keys = dict.fromkeys(key for facts in runs for key in facts)
    values = {key: [facts.get(key, 0) for facts in runs] for key in keys}
    equal = {key: seen[0] for key, seen in values.items() if len(set(seen)) == 1}
    unstable = {
        key: ", ".join(map(str, seen)) for key, seen in values.items() if len(set(seen)) > 1
    }
    return equal, unstable
