"""Import speedscope's JSON, which py-spy, pyinstrument and others write: samples with stacks.

A profile is `sampled` (stacks with weights) or `evented` (frames that open and close). Both become
samples of the watch: a stack, the moment at which it ended, and the time before that. Profiles of
several threads are added up, each under a frame with the thread's name.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

from profstack.errors import UsageError
from profstack.readers.formats import (
    Format,
    Request,
    Taken,
    content,
    imported_layer,
    unreadable,
)
from profstack.storage.schema.column import Record
from profstack.storage.vocabulary import THREAD, WATCH_INTERVAL_S
from profstack.units import format_count, format_seconds

LAYER: Final = "watch"
MOST_BYTES: Final = 512 << 20
# Lists and objects, and values, that are read as JSON: each takes many times its text.
MOST_CONTAINERS: Final = 10_000_000
MOST_VALUES: Final = 60_000_000
# Samples and frames of stacks in a recording; neighbours of one stack are one sample before that.
MOST_SAMPLES: Final = 1_000_000
MOST_NODES: Final = 500_000
_DEEPEST = 10_000
_LONGEST_NAME = 8192
_MOST_S = 1e9
_UNITS = {"nanoseconds": 1e-9, "microseconds": 1e-6, "milliseconds": 1e-3, "seconds": 1.0}
_SCHEMA = re.compile(
    rb'"\$schema"\s*:\s*"[^"]*speedscope|"type"\s*:\s*"(?:sampled|evented)"|"exporter"\s*:'
)
_LONG_NUMBER = re.compile(rb"[0-9]{400}")


class _Frame(NamedTuple):
    file: str
    line: int | None
    name: str


class _DamagedError(ValueError):
    """A part of the file is not as speedscope's schema has it."""


class _Sample(NamedTuple):
    """The node of a stack, when it ended, and the time before that."""

    node: int
    end_s: float
    weight_s: float


class _Tree:
    """Stacks as nodes numbered from 1, each with the number of its caller's; 0 is the root."""

    def __init__(self) -> None:
        self.nodes: dict[tuple[int, _Frame], int] = {}

    def child(self, parent: int, frame: _Frame) -> int:
        key = parent, frame
        number = self.nodes.get(key)
        if number is None:
            if len(self.nodes) >= MOST_NODES:
                raise _DamagedError(f"more than {MOST_NODES:,} different frames of stacks")
            number = self.nodes[key] = len(self.nodes) + 1
        return number

    def rows(self) -> Iterator[Record]:
        """Yield rows of `watch_frames`. Where a function begins is not known."""
        for (parent, frame), number in self.nodes.items():
            yield {
                "frame": number,
                "parent": parent or None,
                "file": frame.file,
                "line": frame.line,
                "name": frame.name,
                "function_line": None,
            }


def recognise(start: bytes, name: str) -> bool:
    """Recognise a JSON object that names speedscope's schema, or has a profile of it."""
    return start.lstrip()[:1] == b"{" and bool(_SCHEMA.search(start))


def read(path: Path) -> Mapping[str, Any]:
    """Return the object in the file; raises UsageError for another one."""
    data = content(path, MOST_BYTES)
    if data.count(b"[") + data.count(b"{") > MOST_CONTAINERS or data.count(b",") > MOST_VALUES:
        raise unreadable(path, "has more values than can be read")
    if _LONG_NUMBER.search(data):
        raise unreadable(path, "has a number of hundreds of digits")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise unreadable(path, f"is no JSON ({error})") from None
    if not isinstance(found, dict):
        raise unreadable(path, "is no profile of speedscope")
    return found


def take(files: Sequence[Path], request: Request) -> Taken:
    """Read profiles of one program; see `Format`."""
    tree = _Tree()
    taken: list[tuple[Path, str | None, list[list[_Sample]]]] = []
    for path in files:
        parts = read(path)
        try:
            taken.append((path, *_profiles(parts, tree)))
        except _DamagedError as error:
            raise unreadable(path, f"is damaged: {error}") from None
    every = [each for _, _, profiles in taken for each in profiles]
    if not any(every):
        raise UsageError(
            "has no sample", where=str(files[0]), next_step="let the program run longer"
        )
    origin_s = min(each[0].end_s - each[0].weight_s for each in every if each)
    duration_s = max(each[-1].end_s for each in every if each) - origin_s
    samples: list[Record] = [
        {
            "t_s": sample.end_s - origin_s,
            "frame": sample.node or None,
            "weight": sample.weight_s / WATCH_INTERVAL_S,
        }
        for each in every
        for sample in each
    ]
    tool = next((tool for _, tool, _ in taken if tool), "speedscope")
    added = imported_layer(request, LAYER, "sampling", tool, files, duration_s, started_s=0.0)
    weight_s = math.fsum(sample.weight_s for each in every for sample in each)
    threads = f" on {len(every)} threads" if len(every) > 1 else ""
    summary = (
        f"{', '.join(path.name for path in files)}: {format_count(len(samples))} samples, "
        f"{format_seconds(weight_s)}{threads}"
    )
    frames = list(tree.rows())
    return Taken(files, [summary], {**added, "watch_frames": frames, "watch_samples": samples})


def _profiles(parts: Mapping[str, Any], tree: _Tree) -> tuple[str | None, list[list[_Sample]]]:
    """Return what wrote a file, and the samples of its profiles."""
    shared = parts.get("shared")
    frames = _frames(shared.get("frames") if isinstance(shared, dict) else None)
    profiles = [each for each in _list(parts.get("profiles"), "profiles") if isinstance(each, dict)]
    found: list[list[_Sample]] = []
    for number, profile in enumerate(profiles, 1):
        root = 0
        if len(profiles) > 1:
            root = tree.child(0, _Frame(THREAD, None, _name(profile.get("name")) or f"{number}"))
        kind, unit = profile.get("type"), profile.get("unit")
        if not isinstance(unit, str) or unit not in _UNITS:
            raise _DamagedError(f"a profile's unit is {str(unit)[:40]!r}, and not a time")
        if kind not in ("sampled", "evented"):
            raise _DamagedError(f"a profile's type is {str(kind)[:40]!r}")
        read = _sampled if kind == "sampled" else _evented
        found.append(_merged(read(profile, _UNITS[unit], frames, tree, root)))
    exporter = parts.get("exporter")
    return (_name(exporter)[:80] or None) if isinstance(exporter, str) else None, found


def _frames(value: object) -> list[_Frame]:
    found = []
    for each in _list(value, "shared.frames"):
        if not isinstance(each, dict):
            raise _DamagedError("a frame is no object")
        line = each.get("line")
        if line is not None and not (isinstance(line, int) and -1 <= line < 1 << 31):
            raise _DamagedError("a line is no number")
        file = each.get("file")
        found.append(_Frame(_name(file) or "<unknown>", line, _name(each.get("name"))))
    return found


def _name(value: object) -> str:
    """Return a text; empty for what is none."""
    text = value if isinstance(value, str) else ""
    if len(text) > _LONGEST_NAME:
        raise _DamagedError("a name is too long")
    return text


def _list(value: object, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise _DamagedError(f"{what} is no list")
    return value


def _time(value: object, unit_s: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _DamagedError("a time is no number")
    seconds = value * unit_s if abs(value) < 1e300 else math.inf
    if not abs(seconds) < _MOST_S:
        raise _DamagedError("a time is out of bounds")
    return seconds


def _frame(frames: Sequence[_Frame], number: object) -> _Frame:
    if not (isinstance(number, int) and 0 <= number < len(frames)):
        raise _DamagedError("a frame is not in shared.frames")
    return frames[number]


def _sampled(
    profile: Mapping[str, Any], unit_s: float, frames: Sequence[_Frame], tree: _Tree, root: int
) -> Iterator[_Sample]:
    """Yield the samples of a profile of stacks, outermost first, and weights."""
    stacks = _list(profile.get("samples"), "samples")
    weights = [_time(each, unit_s) for each in _list(profile.get("weights"), "weights")]
    if len(stacks) != len(weights) or any(weight < 0 for weight in weights):
        raise _DamagedError("samples and weights do not agree")
    end_s = _time(profile.get("startValue", 0), unit_s)
    for stack, weight_s in zip(stacks, weights, strict=True):
        node = root
        for number in _list(stack, "a sample"):
            node = tree.child(node, _frame(frames, number))
        end_s += weight_s
        yield _Sample(node, end_s, weight_s)


def _evented(
    profile: Mapping[str, Any], unit_s: float, frames: Sequence[_Frame], tree: _Tree, root: int
) -> Iterator[_Sample]:
    """Yield a sample for each stretch of time between two events."""
    last_s = _time(profile.get("startValue", 0), unit_s)
    stack: list[_Frame] = []
    nodes = [root]
    for event in _list(profile.get("events"), "events"):
        if not isinstance(event, dict):
            raise _DamagedError("an event is no object")
        now_s = _time(event.get("at"), unit_s)
        if now_s < last_s:
            raise _DamagedError("events are not in order of time")
        if stack and now_s > last_s:
            yield _Sample(nodes[-1], now_s, now_s - last_s)
        last_s, frame = now_s, _frame(frames, event.get("frame"))
        if event.get("type") == "O":
            if len(stack) >= _DEEPEST:
                raise _DamagedError(f"a stack has more than {_DEEPEST:,} frames")
            stack.append(frame)
            nodes.append(tree.child(nodes[-1], frame))
        elif event.get("type") == "C" and stack and stack[-1] == frame:
            stack.pop()
            nodes.pop()
        else:
            raise _DamagedError("a frame is closed that is not the innermost one")


def _merged(samples: Iterable[_Sample]) -> list[_Sample]:
    """Return the samples that took time; of too many, neighbours of one stack as one."""
    found = [each for each in samples if each.weight_s > 0]
    if len(found) > MOST_SAMPLES:
        groups = (list(group) for _, group in groupby(found, key=lambda each: each.node))
        found = [
            group[-1]._replace(weight_s=math.fsum(each.weight_s for each in group))
            for group in groups
        ]
    if len(found) > MOST_SAMPLES:
        raise _DamagedError(f"more than {MOST_SAMPLES:,} changes of the stack")
    return found


FORMAT = Format("profile of speedscope (py-spy and others)", ".speedscope.json", recognise, take)
