"""Steps of a capture, and names of ranges without their running numbers."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from profstack.errors import UsageError
from profstack.readers.device_gaps import Intervals, at
from profstack.readers.nsys.export import PUSH_POP, Export
from profstack.readers.nsys.export_file import numbered
from profstack.readers.nvtx import CUT, DOMAIN, STEP
from profstack.readers.torchtrace.columns import Bools, Ints

# --- Names of ranges without running numbers ------------------------------------------------------

# A program that numbers its ranges would have a place in the tree for each of them. The number of
# an operator, as torch's emit_nvtx writes it, is never a part of its name, nor is that of a step.
# Any other number is one as long as it tells things apart that come again, as in `layer 3`.

# What emit_nvtx appends to the name of an operator; sizes are kept.
_OF_TORCH = re.compile(r", (?:seq|op_id) = (\d+)|, input_op_ids = \[.*\]$")
_NUMBER = re.compile(r"(?<![\d.])\d+(?![\w.])")
# Names that differ in numbers alone: more than this are no names, and neither are those of which
# most come once in a capture, from this many on.
MOST_ALIKE = 100
FEWEST_ALIKE = 3
MOST_TIMES = 1.5
# These are always numbered, and may begin anew with every epoch.
_LIKE_A_STEP = re.compile(r"(?<![a-z])(?:step|iter|iteration|batch)(?![a-z])", re.IGNORECASE)
_EPOCH = re.compile(r"(?<![a-z])epoch(?![a-z])", re.IGNORECASE)
# Characters between a name and its number, and behind the number.
_BETWEEN = " \t:;,#=_-/([{"
_BEHIND = ")]}"
NO_NUMBER = -1
# Larger ones are addresses or hashes.
_LARGEST = 1 << 62


@dataclass(frozen=True)
class Names:
    """Names of all ranges of an export, and the running numbers that were taken from them."""

    name: list[str]
    # `NO_NUMBER` where there is none.
    number: Ints


def names_of(frame: pd.DataFrame) -> Names:
    """Return the names of a frame of ranges; those of profstack's own are their texts."""
    codes, different = numbered(frame[["domain", "text"]])
    pairs = list(different.fillna("").itertuples(index=False, name=None))
    texts = [text for _, text in pairs]
    named = _without_numbers(
        [None if domain == DOMAIN else (domain, text) for domain, text in pairs],
        np.bincount(codes, minlength=len(pairs)).tolist(),
    )
    found = [named.get(place, (text, NO_NUMBER)) for place, text in enumerate(texts)]
    names = [found[code][0] for code in codes.tolist()]
    number = np.array([each for _, each in found], np.int64)[codes]
    foreign = (frame["domain"] != DOMAIN).to_numpy(bool)
    payloads = frame["payload"].to_numpy(np.object_)
    for row in np.flatnonzero(foreign & frame["payload"].notna().to_numpy(bool)).tolist():
        payload, text = payloads[row], texts[codes[row]]
        rest = text.removesuffix(str(payload)) if text.endswith(str(payload)) else text
        # It may be a part of a longer number.
        if rest != text and not (rest[-1:].isdigit() or rest.endswith(".")):
            names[row] = rest.rstrip(_BETWEEN) or text
            number[row] = payload if 0 <= payload < _LARGEST else NO_NUMBER
    return Names(names, number)


def bare_name(text: str) -> str:
    """Return a text without any number that stands alone in it."""
    matches = list(_NUMBER.finditer(text))
    return _cut(text, matches) if matches else text


def _without_numbers(
    keys: Sequence[tuple[str, str] | None], counts: Sequence[int]
) -> dict[int, tuple[str, int]]:
    """Return name and number by position of those of different texts that have a running one."""
    found: dict[int, tuple[str, int]] = {}
    alike: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        if key is None:
            continue
        domain, text = key
        given = [match[1] for match in _OF_TORCH.finditer(text)]
        if given:
            last = next((number for number in reversed(given) if number), "")
            number = int(last) if last and len(last) < 19 else NO_NUMBER
            found[place] = _OF_TORCH.sub("", text), number
        elif _NUMBER.search(text):
            alike[domain, _NUMBER.sub("#", text)].append(place)
    for places in alike.values():
        times = sum(counts[place] for place in places)
        few = len(places) <= MOST_ALIKE
        once = len(places) >= FEWEST_ALIKE and times < MOST_TIMES * len(places)
        texts = [str((keys[place] or ("", ""))[1]) for place in places]
        counts_itself = _LIKE_A_STEP.search(texts[0]) or _EPOCH.search(texts[0])
        if few and not once and not counts_itself:
            continue
        matches = [list(_NUMBER.finditer(text)) for text in texts]
        varying = [len({each[0] for each in column}) > 1 for column in zip(*matches, strict=True)]
        for place, text, row in zip(places, texts, matches, strict=True):
            running = [match for match, varies in zip(row, varying, strict=True) if varies]
            last = (running[-1] if running else row[0])[0]
            number = int(last) if len(last) < 19 else NO_NUMBER
            found[place] = _cut(text, running or row), number
    return found


def _cut(text: str, matches: Sequence[re.Match[str]]) -> str:
    """Return the text without these numbers and what connects them with the rest."""
    parts, begin = [], 0
    for match in matches:
        parts.append(text[begin : match.start()].rstrip(_BETWEEN))
        begin = match.end()
        while text[begin : begin + 1] and text[begin] in _BEHIND:
            begin += 1
    parts.append(text[begin:])
    return "".join(parts).strip() or text


# --- Steps: the ranges that profstack emits round each, or those of the user's own ----------------

# Where a capture has steps, only events inside them count: start-up, warm-up and the time after the
# last one are no part of a figure per step. A capture without steps counts as a whole.

_STEP_NUMBER = re.compile(r"step (\d+)$")
# A range of the program's own is taken for its step if it repeats this often, one after the other,
# and takes this share of the time from the first to the last of them.
FEWEST_REPEATS = 3
LEAST_SHARE = 0.8
# Inside of it one that is named like a step is the better one, if it has this share of its time.
INNER_SHARE = 0.8
# Operators of torch and functions of its backward pass.
_OPERATOR = re.compile(r"::|Backward\d*$")
_NAMES_SHOWN = 8


@dataclass(frozen=True)
class Steps:
    """Begin and end of each step, in order; nanoseconds on the capture's clock."""

    # The thread that makes the steps; None where there are none, or they are another process's.
    thread: int | None
    numbers: list[int | None]
    times: Intervals
    # The range of the program's own that they are, None for profstack's; and whether it was asked
    # for, or found because it repeats.
    range_name: str | None = None
    is_asked: bool = False

    def __len__(self) -> int:
        return len(self.numbers)

    def at(self, moments: Ints) -> Ints:
        """Return the position of the step around each moment, -1 for none."""
        found = np.searchsorted(self.times.start, moments, side="right") - 1
        return np.where(moments < at(self.times.end, found), found, -1)

    def count(self, moments: Ints) -> Bools:
        """Return whether each moment counts: it lies in a step, or the capture has none."""
        return self.at(moments) >= 0 if len(self) else np.ones(len(moments), np.bool_)

    def counted(self, start: Ints, end: Ints) -> Ints:
        """Return how much of the time between two moments counts."""
        return self.times.inside(start, end) if len(self) else end - start

    def runs(self) -> list[tuple[int, int]]:
        """Return begin and end of each run of steps with consecutive numbers."""
        runs: list[tuple[int, int]] = []
        before = None
        starts, ends = self.times.start.tolist(), self.times.end.tolist()
        for number, start, end in zip(self.numbers, starts, ends, strict=True):
            if before is not None and number == before + 1:
                runs[-1] = (runs[-1][0], end)
            else:
                runs.append((start, end))
            before = number
        return runs

    def of_process(self, export: Export, names: Names) -> Steps:
        """Return the steps of another process of the capture: its own of the same kind, else these.

        Where there are none here, all figures are of the whole capture.
        """
        if not len(self):
            return self
        if self.range_name is None:
            own = _own_steps(export)
        else:
            own = _named(export.ranges, names, self.range_name) or NO_STEPS
        return own if len(own) else replace(self, thread=None)


_EMPTY = np.array([], np.int64)
NO_STEPS = Steps(None, [], Intervals(_EMPTY, _EMPTY))


def steps_of(export: Export, names: Names, step_range: str | None = None) -> Steps:
    """Find the steps that were captured from begin to end.

    They are the ranges named `step_range`; without a name profstack's own, else those of the
    program that repeat. An empty name asks for no steps. Raises UsageError where no range has the
    name.
    """
    if step_range is not None:
        if not step_range:
            return NO_STEPS
        asked = _named(export.ranges, names, step_range)
        if asked is None:
            raise _no_range(names, step_range)
        return asked
    own = _own_steps(export)
    if len(own):
        return own
    found = _repeating(export.ranges, names)
    return NO_STEPS if found is None else _steps_in(export.ranges, names, *found)


def _own_steps(export: Export) -> Steps:
    """Return the steps that profstack's ranges mark."""
    ours = export.ranges[export.ranges["domain"] == DOMAIN]
    some = ours[(ours["category"] == STEP) & (ours["style"] == PUSH_POP)]
    thread = int(some["thread"].value_counts().index[0]) if len(some) else None
    some = some[some["thread"] == thread].sort_values("start", kind="stable")
    start, end = (some[name].to_numpy(np.int64) for name in ("start", "end"))
    apart = _apart(start, end)
    # Leave out steps that were cut off by the end of the slice or of the script.
    cut = ours[(ours["category"] == CUT) & (ours["thread"] == thread)]
    moments = cut["start"].to_numpy(np.int64)
    cut_off = np.searchsorted(start, moments, side="right") - 1
    apart[cut_off[moments < at(end, cut_off)]] = False
    some = some[apart]
    numbers = [_number(*given) for given in zip(some["payload"], some["text"], strict=True)]
    return Steps(thread, numbers, Intervals(start[apart], end[apart]))


def _apart(start: Ints, end: Ints) -> Bools:
    """Return which of these, in order, begin after all before: another counts time twice."""
    apart = np.ones(len(start), np.bool_)
    apart[1:] = start[1:] >= np.maximum.accumulate(end)[:-1]
    return apart


def _number(payload: object, text: object) -> int | None:
    """Return the number of a step: the range's payload, else the number in its text."""
    if isinstance(payload, (int, np.integer)):
        return int(payload)
    found = _STEP_NUMBER.match(str(text))
    return int(found[1]) if found else None


def _named(frame: pd.DataFrame, names: Names, wanted: str) -> Steps | None:
    """Return the ranges of a name, with or without its numbers; None where there are none."""
    named = np.array([name == wanted for name in names.name], np.bool_)
    named |= (frame["text"] == wanted).to_numpy(np.bool_)
    if not named.any():
        named = np.array([bare_name(name) == wanted for name in names.name], np.bool_)
    if not named.any():
        return None
    where = np.flatnonzero(named)
    thread = int(frame["thread"].iloc[where].value_counts().index[0])
    return replace(_steps_in(frame, names, wanted, where, thread), is_asked=True)


def _no_range(names: Names, wanted: str) -> UsageError:
    frequent = pd.Series([name for name in names.name if name], dtype=object).value_counts()
    most = list(frequent.items())[:_NAMES_SHOWN]
    known = ", ".join(f"{name} ({count:,})" for name, count in most)
    return UsageError(
        f"the capture has no range named {wanted}",
        where="--step-range",
        next_step=f"its ranges are {known}" if known else "it has no ranges: leave it out",
    )


def _steps_in(frame: pd.DataFrame, names: Names, name: str, where: Ints, thread: int) -> Steps:
    """Return those of these ranges, by position, that one thread made one after the other."""
    where = where[frame["thread"].to_numpy(np.int64)[where] == thread]
    start, end = (frame[column].to_numpy(np.int64)[where] for column in ("start", "end"))
    order = np.lexsort((-end, start))
    order = order[_apart(start[order], end[order])]
    number = names.number[where[order]]
    if len(np.unique(number)) < len(number) or NO_NUMBER in number:
        # Numbers that begin anew with every epoch are no names of steps.
        number = np.arange(len(order))
    times = Intervals(start[order], end[order])
    return Steps(thread, [int(each) for each in number.tolist()], times, name)


# --- The range that repeats -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Repeated:
    """Ranges of one name on one thread, by position in the order of their begin."""

    name: str
    where: Ints
    thread: int
    times: Intervals

    @property
    def total(self) -> int:
        return int((self.times.end - self.times.start).sum())

    def holds(self, other: _Repeated) -> bool:
        """Return whether all ranges of `other` lie inside these."""
        length = other.times.end - other.times.start
        inside = self.times.inside(other.times.start, other.times.end)
        return self.thread == other.thread and bool(np.all(inside == length))


def _repeating(frame: pd.DataFrame, names: Names) -> tuple[str, Ints, int] | None:
    """Find the ranges that repeat and take most time: name, positions and thread."""
    found = sorted(_repeated(frame, names), key=lambda each: each.total, reverse=True)
    if not found:
        return None
    best = found[0]
    if not _LIKE_A_STEP.search(best.name):
        inner = (each for each in found[1:] if _LIKE_A_STEP.search(each.name) and best.holds(each))
        best = next((each for each in inner if each.total >= INNER_SHARE * best.total), best)
    return best.name, best.where, best.thread


def _repeated(frame: pd.DataFrame, names: Names) -> Iterator[_Repeated]:
    """Yield the ranges of each name and thread that could be steps."""
    # Libraries' and profstack's ranges are in domains of their own; a program's may be as well.
    wanted = np.array([bool(name) and not _OPERATOR.search(name) for name in names.name], np.bool_)
    some = np.flatnonzero(wanted & (frame["domain"] != DOMAIN).to_numpy(np.bool_))
    keys = pd.DataFrame(
        {
            "name": [names.name[row] for row in some.tolist()],
            "domain": frame["domain"].iloc[some].to_numpy(),
            "thread": frame["thread"].iloc[some].to_numpy(np.int64),
        }
    )
    starts, ends = (frame[column].to_numpy(np.int64) for column in ("start", "end"))
    grouped = keys.groupby(["domain", "name", "thread"], sort=False).indices
    for (domain, name, thread), rows in grouped.items():
        if len(rows) < FEWEST_REPEATS or str(domain).casefold() in NOT_OF_THE_PROGRAM:
            continue
        where = some[rows]
        where = where[np.argsort(starts[where], kind="stable")]
        start, end = starts[where], ends[where]
        one = _Repeated(str(name), where, int(thread), Intervals(start, end))
        if _apart(start, end).all() and one.total >= LEAST_SHARE * int(end[-1] - start[0]) > 0:
            yield one


# Libraries that mark their own calls on any thread: their ranges do not show the owner of the work.
LIBRARIES = (
    *("nccl", "cub", "cccl", "thrust", "nvshmem", "ucx", "mpi"),
    *("cudnn", "cublas", "cufft", "cusparse"),
)
# Holding the interpreter's lock, or waiting for it, is no work.
GIL = "gil trace"
NOT_OF_THE_PROGRAM = (*LIBRARIES, GIL)
