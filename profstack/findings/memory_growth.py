"""Memory that grows with every step, and the lines that hold it.

The resident set, and the bytes in live tensors where there is a device, are followed over the
steps that nothing observed. A finding is made where it grows in part after part of them, and by
more than what profstack itself writes down meanwhile.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from profstack.analysis.watch import watched
from profstack.code_owner import place_words
from profstack.findings import reading, rules
from profstack.privacy import home_relative
from profstack.storage.reader import Recorded, Row, in_order, known
from profstack.storage.schema.report import Evidence, Finding, Report
from profstack.units import format_bytes, format_count, format_seconds

# -----------------------------------------------------------------------------
# Growth of a quantity per step, with its interval, and whether it persists.
#
# Readings come in groups, between which something else may have moved the level: only readings of
# one group are compared. The slope is the median over all pairs within groups (Theil and Sen), its
# interval Kendall's, as for seasonal data. A slope alone would take one large jump for growth: what
# grows must do so in part after part, and still in the last ones.
# -----------------------------------------------------------------------------

Floats = NDArray[np.float64]
Group = tuple[Floats, Floats]

# The normal quantile of a 95 % interval.
_Z95 = 1.96
# What a long group is divided into, and how many parts there must be over all groups.
PARTS = 6
FEWEST_PARTS = 4
# A part grows if its rate is this share of the slope. Such parts hold this share of the steps.
_GROWS = 0.25
_GROWING_SHARE = 0.8
# The later half grows at this share of the earlier one's rate or faster: a cache or an allocator
# fills up more and more slowly.
_GOES_ON = 0.5
# A part that holds more than this of all growth, and grows twice as fast as the slope, is a jump.
_TREND_SHARE = 0.5


class Trend(NamedTuple):
    """Growth per step with its 95 % interval; `total` growth over `steps` steps."""

    slope: float
    low: float
    high: float
    steps: float
    total: float
    persistent: bool


def trend(groups: Sequence[Group]) -> Trend | None:
    """Return the common slope of groups of (steps, values), each sorted by steps.

    None where there are too few readings.
    """
    groups = [group for group in groups if len(group[0]) > 1 and group[0][-1] > group[0][0]]
    slopes = np.sort(np.concatenate([_pair_slopes(group) for group in groups] or [np.zeros(0)]))
    parts = [part for group in groups for part in _parts(group)]
    if not len(slopes) or len(parts) < FEWEST_PARTS:
        return None
    # The variance of Kendall's statistic over so many readings without a trend.
    sizes = [len(steps) for steps, _ in groups]
    spread = _Z95 * math.sqrt(sum(size * (size - 1) * (2 * size + 5) / 18 for size in sizes))
    count = len(slopes)
    first = math.floor((count - spread) / 2)
    last = math.ceil((count + spread) / 2)
    slope = float(np.median(slopes))
    return Trend(
        slope,
        # An interval that reaches beyond all pairs has no end.
        float(slopes[first]) if first >= 0 else -math.inf,
        float(slopes[last]) if last < count else math.inf,
        sum(steps for steps, _ in parts),
        sum(grown for _, grown in parts),
        _is_persistent(parts, slope),
    )


def _pair_slopes(group: Group) -> Floats:
    steps, values = group
    first, second = np.triu_indices(len(steps), 1)
    apart = steps[second] - steps[first]
    slopes: Floats = (values[second] - values[first])[apart > 0] / apart[apart > 0]
    return slopes


def _parts(group: Group) -> list[tuple[float, float]]:
    """Return steps and growth of consecutive parts, from the middle of a stretch to the next.

    A single reading may lie anywhere in the noise; the median of a stretch does not.
    """
    size = len(group[0])
    stretches = np.array_split(np.arange(size), min(PARTS, max(1, size // 2)) + 1)
    middles = [[float(np.median(each[at])) for each in group] for at in stretches]
    return [
        (end - begin, after - before)
        for (begin, before), (end, after) in pairwise(middles)
        if end > begin
    ]


def _is_persistent(parts: Sequence[tuple[float, float]], slope: float) -> bool:
    """Return whether nearly all parts grow, later ones not much slower, without a jump."""
    if slope <= 0:
        return False
    every, total = (sum(each) for each in zip(*parts, strict=True))
    growing = sum(steps for steps, grown in parts if grown >= _GROWS * slope * steps)
    rates = [grown / steps for steps, grown in parts]
    half = len(rates) // 2
    early, late = float(np.median(rates[:half])), float(np.median(rates[half:]))
    jumps = any(grown > max(_TREND_SHARE * total, 2 * slope * steps) for steps, grown in parts)
    goes_on = late >= _GOES_ON * max(early, slope) and all(
        sum(grown for _, grown in last) >= _GOES_ON * slope * sum(steps for steps, _ in last)
        for last in (parts[-1:], parts[-max(1, len(parts) // 3) :])
        if sum(steps for steps, _ in last) >= every / (2 * PARTS)
    )
    return growing >= _GROWING_SHARE * every and goes_on and not jumps


# Lines that have to do with memory that grows: where it was taken, and what may keep it.

# The least and the most of the growth that such a line takes; of two the one nearer to the whole.
# What one takes beyond that is given back elsewhere.
_SMALLEST_SHARE, _LARGEST_SHARE = 0.25, 4.0
_MOST = 3
# So near to each other are what one line took and another gave back of the same things.
_ALIKE = 0.1
# How often a line runs that runs with every step.
_EVERY_STEP = 0.5
_KEEPS = re.compile(
    r"\.(?:append|appendleft|extend|add|insert|setdefault|update|put|register_\w*hook)\("
    r"|\+=|^[\w.]+\[.*\]\s*=[^=]"
)
# What is kept so is a plain number or a text, which holds no tensor.
_NUMBERS = re.compile(
    r"\.item\(\)|\.tolist\(\)|[=(]\s*(?:float|int|len|str)\(|\+=[^#]*(?:\.size\(|\.shape\[|\.numel\()"
    r"|\+=\s*[\d.]+\s*(?:#|$)|\.\w+\(\s*[\d.]*\s*\)\s*(?:#|$)"
)


class Holder(NamedTuple):
    """A line, the bytes per step that it took and did not give back, and the steps seen.

    There are no steps where the bytes are not known.
    """

    file: str
    line: int
    source: str | None
    bytes: float = 0.0
    steps: float | None = None

    @property
    def place(self) -> str:
        """The line in words."""
        text = f" ({self.source})" if self.source else ""
        return f"{place_words(self.file, self.line)}{text}"

    def evidence(self, key: str) -> Evidence:
        """A row of evidence, with the bytes under this key."""
        figures: Evidence = {key: self.bytes, "steps": self.steps} if self.steps else {key: True}
        place: Evidence = {"file": self.file, "line": self.line, "text": self.source}
        return {**figures, **place, "link": f"source/{self.file}:{self.line}"}


def allocators(recorded: Recorded, slope: float, *, on_device: bool) -> list[Holder]:
    """Return the lines that took about as much as memory grows by and did not give it back.

    From the slices of the memory layer after the first steps; the likeliest line first. Only lines
    that took any bytes of the device have a figure for it. Where all lines together gave back what
    they took, none of them did it: what grew is unseen by the allocator, as Python's own small
    objects are.
    """
    selection = recorded.select("memory", (("lines",),))
    rows = recorded.rows("memory_lines", selection)
    if selection is None or not selection.steps or not rows:
        return []
    net: dict[tuple[str, int], float] = {}
    for row in rows:
        grown = row["allocated_bytes"]
        if grown is None and not on_device:
            grown = row["increment_bytes"]
        of_device = (row["second_source"] or "").startswith("torch.cuda")
        if of_device == on_device and grown is not None:
            at = row["file"], row["line"]
            net[at] = net.get(at, 0.0) + grown
    if sum(net.values()) / selection.steps < _SMALLEST_SHARE * slope:
        return []
    found = _holders(recorded, dict(sorted(net.items())), selection.steps)
    return _likeliest(_kept(found), slope)


def seen_growing(recorded: Recorded, slope: float) -> list[Holder]:
    """Return the lines on which the watch saw the resident set grow, in its own slices."""
    open_ended = [row for row in recorded.slices if row["kind"] == "watch" and row["steps"]]
    if not open_ended:
        return []
    begun = min(row["started_s"] for row in open_ended)
    seen = watched(recorded)
    grown = reading.sums_of(
        ((own[-1].file, own[-1].line), each.grown)
        for each in seen.by_stack(one for one in seen.samples if one.t_s >= begun)
        if each.grown is not None and (own := seen.own(each.stack))
    )
    return _likeliest(
        _holders(recorded, grown, float(sum(row["steps"] for row in open_ended))), slope
    )


def keepers(report: Report) -> list[Holder]:
    """Return lines of the user's own that run with every step and, by their text, keep a thing."""
    return [
        Holder(row["file"], row["line"], reading.text_of(row))
        for row in report["tables"]["lines"]
        if row["own"] and keeps(row["source"]) and (row["calls"] or 0.0) >= _EVERY_STEP
    ][:_MOST]


def keeps(text: str | None) -> bool:
    """Whether a line, by its text, keeps a thing that may hold a tensor."""
    text = (text or "").strip()
    return bool(_KEEPS.search(text)) and not (text.startswith("#") or _NUMBERS.search(text))


def _holders(
    recorded: Recorded, totals: Mapping[tuple[str, int], float], steps: float
) -> list[Holder]:
    """Return the lines with these bytes in all, with the text that any layer recorded of them."""
    texts: dict[tuple[str, int], str] = {}
    for table in ("lines", "memory_lines"):
        columns = recorded.columns(table, "file", "line", "source")
        texts |= {(file, line): text for file, line, text in zip(*columns, strict=True) if text}
    found = []
    for (file, line), total in totals.items():
        text = texts.get((file, line)) or recorded.line_text(file, line)
        known_text = text.strip() if text is not None else None
        found.append(Holder(home_relative(file), line, known_text, float(total / steps), steps))
    return found


def _kept(found: list[Holder]) -> list[Holder]:
    """Drop the lines whose memory another line gives back: a line that keeps nothing first."""
    kept = list(found)
    for giver in found:
        apart = [abs(holder.bytes + giver.bytes) for holder in kept]
        alike = [
            (keeps(kept[at].source), each, at)
            for at, each in enumerate(apart)
            if each <= _ALIKE * -giver.bytes
        ]
        if alike:
            kept.pop(min(alike)[-1])
    return kept


def _likeliest(found: list[Holder], slope: float) -> list[Holder]:
    """Return those that took a good part of the growth.

    First comes one that by its text keeps what it took, then the one nearest to the whole of it.
    """
    likely = [each for each in found if _SMALLEST_SHARE <= each.bytes / slope <= _LARGEST_SHARE]
    likely.sort(key=lambda each: (not keeps(each.source), abs(math.log(each.bytes / slope))))
    return likely[:_MOST]


# Memory readings of the script alone, as steps and bytes. Layers leave memory behind, and the first
# steps take what a script needs: what counts are the slices from the second round on in which
# nothing observed. The resident set is read at their edges and, where the watch runs, all through
# them; it goes up and down within a step, so of many readings the lowest of each stretch is taken:
# what is kept over it.

# Stretches that a long group is divided into, and the readings that each has at least.
_MOST_STRETCHES = 40
_FEWEST_READINGS = 8


def resident(recorded: Recorded) -> list[Group]:
    """Return groups of the resident set, one for each run of slices that nothing observed."""
    edges = _edges(recorded, "rss_bytes")
    seen = watched(recorded)
    readings = _floats(seen.read_at), _floats(seen.read_bytes)
    # Those slices are together that follow without a gap.
    runs: list[list[Row]] = []
    for row in recorded.slices:
        if row["kind"] in ("clean", "watch") and (row["round"] or 0) > 1 and row["steps"]:
            if not runs or _end(runs[-1]) != row["first_step"]:
                runs.append([])
            runs[-1].append(row)
    groups = [_group(recorded, run, edges, readings) for run in runs]
    return [group for group in groups if len(group[0]) > 1]


def _end(run: Sequence[Row]) -> int:
    """Return the number of steps of the whole run at the end of some of its slices."""
    end: int = run[-1]["first_step"] + run[-1]["steps"]
    return end


def on_device(recorded: Recorded) -> list[Group]:
    """Return a group of the bytes in live tensors on the device, read at the edges of all slices.

    The layers take no memory there.
    """
    slices = [row for row in recorded.slices if (row["round"] or 0) > 1]
    if not slices:
        return []
    begun = min(row["first_step"] for row in slices)
    ended = max(_end([row]) for row in slices)
    edges = _edges(recorded, "device_allocated_bytes")
    # Of several readings at one step the last one counts.
    at = {step: size for _, step, size in edges if begun <= step <= ended}
    return [_as_group(sorted(at.items()))]


# When, after which step, and what was read.
_Edge = tuple[float, int, int]


def _edges(recorded: Recorded, column: str) -> list[_Edge]:
    """Return the readings at the edges of slices, in order of time."""
    read = (row for row in recorded.table("memory") if row[column] is not None)
    known = (row for row in in_order(read, "t_s") if row["step"] is not None)
    return [(row["t_s"], row["step"], row[column]) for row in known]


def _floats(values: Sequence[float]) -> Floats:
    return np.asarray(values, dtype=np.float64)


def _as_group(readings: Sequence[tuple[float, float]]) -> Group:
    steps, values = np.array(readings, dtype=np.float64).reshape(-1, 2).T
    return steps, values


def _group(
    recorded: Recorded, run: Sequence[Row], edges: Sequence[_Edge], watched: tuple[Floats, Floats]
) -> Group:
    """Return the readings of a run of slices: the watch's where it has enough, else the edges."""
    begun, ended = run[0]["started_s"], run[-1]["started_s"] + (run[-1]["wall_s"] or 0.0)
    first, last = run[0]["first_step"], _end(run)
    times, sizes = watched
    inside = (times >= begun) & (times <= ended)
    if np.count_nonzero(inside) >= 4 * _FEWEST_READINGS:
        steps = _steps_at(recorded, run, times[inside])
        return _lowest(steps, sizes[inside], last - first)
    # An edge is read when the slice before it has ended, and has the number of steps by then.
    within = ((t_s, step, size) for t_s, step, size in edges if first <= step <= last)
    at = {step: (step, size) for t_s, step, size in within if step > first or t_s <= begun}
    return _as_group([*at.values()])


def _steps_at(recorded: Recorded, run: Sequence[Row], times: Floats) -> Floats:
    """Return the step, with its fraction, in progress at each time."""
    steps = recorded.steps_of(row["slice"] for row in run)
    known = [(row["started_s"], row["step"]) for row in steps if row["started_s"] is not None]
    # Of a very long run the steps are only counted: its slices' edges are known all the same.
    known += [(row["started_s"], row["first_step"]) for row in run]
    known += [(row["started_s"] + (row["wall_s"] or 0.0), _end([row])) for row in run]
    found: Floats = np.interp(times, *np.array(sorted(known), dtype=np.float64).T)
    return found


def _lowest(steps: Floats, values: Floats, count: int) -> Group:
    """Return the lowest reading of each stretch of steps."""
    stretches = max(1, min(_MOST_STRETCHES, len(steps) // _FEWEST_READINGS, count))
    edges = np.linspace(steps[0], steps[-1], stretches + 1)
    at = np.clip(np.searchsorted(edges, steps, side="right") - 1, 0, stretches - 1)
    inside = [np.flatnonzero(at == number) for number in np.unique(at)]
    chosen = [each[values[each].argmin()] for each in inside]
    return steps[chosen], values[chosen]


_MIB = 1 << 20
# Growth in all that is worth a word, beyond what profstack itself may have taken.
_FEWEST_RESIDENT = 2 * _MIB
_FEWEST_ON_DEVICE = _MIB // 4
# The log of steps holds so many of them before it writes them, and each takes as much.
_STEPS_HELD, _BYTES_PER_STEP = 4096, 400
# Memory that would be gone within a day is urgent.
_URGENT_S = 86_400.0
_GIB = 1 << 30


def memory_growth(recorded: Recorded, report: Report) -> list[Finding]:
    """Return a finding for the host's memory and one for the device's, if they grow."""
    # What the watch and the log of steps may have come to hold meanwhile.
    layers, groups = recorded.table("layers"), resident(recorded)
    held = sum(known((row for row in layers if row["name"] == "watch"), "memory_bytes"))
    covered = float(sum(steps[-1] - steps[0] for steps, _ in groups))
    own_bytes = held + min(covered, _STEPS_HELD) * _BYTES_PER_STEP
    found = (
        _growing(groups, _FEWEST_RESIDENT + own_bytes),
        _growing(on_device(recorded), _FEWEST_ON_DEVICE),
    )
    return [
        _finding(recorded, report, grown, is_device=is_device)
        for grown, is_device in zip(found, (False, True), strict=True)
        if grown is not None
    ]


def _growing(groups: Sequence[Group], least: float) -> Trend | None:
    """Return the trend of what grows step by step, by more than `least` in all."""
    found = trend(groups)
    if found is None or not found.persistent or found.low <= 0:
        return None
    return found if min(found.low * found.steps, found.total) > least else None


def _finding(recorded: Recorded, report: Report, grown: Trend, *, is_device: bool) -> Finding:
    """Return the finding on growth with the lines that took it, and those that may keep it."""
    allocating = allocators(recorded, grown.slope, on_device=is_device)
    watched = [] if is_device else seen_growing(recorded, grown.slope)
    kept = keepers(report)
    source = "live tensors on the device" if is_device else "resident set"
    # It is urgent where the machine's memory would be taken up within a day.
    sizes = map(report["environment"].get, ("memory_bytes", "memory_limit_bytes"))
    known = (float(size) for size in sizes if isinstance(size, (int, float)) and size)
    steps = min(known, default=math.inf) / grown.slope
    is_urgent = not is_device and steps * (reading.clean_step_s(report) or math.inf) < _URGENT_S
    # Where its memory was asked for is measured; what keeps it is read from the text of the lines.
    first = next(iter([*allocating, *watched, *kept]), None)
    return reading.finding(
        rules.MEMORY_GROWTH,
        f"Memory grows by {format_bytes(grown.slope)} with every step ({source})",
        severity="high" if is_urgent else "medium",
        gain_reason="it costs memory, not time",
        place={"file": first.file, "line": first.line} if first else None,
        layers=[*("memory" for _ in allocating), *("watch" for _ in watched)],
        evidence=[
            {
                "growth_per_step_bytes": grown.slope,
                "ci95_low_bytes": grown.low,
                "ci95_high_bytes": grown.high if math.isfinite(grown.high) else None,
                "steps": grown.steps,
                "source": source,
                "link": "memory/memory",
            },
            *(each.evidence("taken_less_given_back_per_step_bytes") for each in allocating),
            *(each.evidence("grown_under_the_watch_per_step_bytes") for each in watched),
            *(each.evidence("keeps_what_it_is_given") for each in kept),
        ],
        advice=_advice(report, grown, allocating, watched, kept),
    )


def _advice(report: Report, grown: Trend, *holders: Sequence[Holder]) -> str:
    """Say what it comes to, where to look, and what such growth commonly is.

    `holders` are the lines that took memory, that the watch saw, and that by their text keep it.
    """
    allocating, watched, kept = holders
    steps, step_s = _GIB / grown.slope, reading.clean_step_s(report)
    until = f" ({format_seconds(steps * step_s)})" if step_s else ""
    words = f"At this rate there is 1 GiB more after {format_count(steps)} steps{until}. "
    if allocating:
        words += f"About as much is taken, and not given back there, at {allocating[0].place}. "
    elif watched:
        words += f"The watch saw about as much growth at {watched[0].place}. "
    if kept:
        places = " and ".join(holder.place for holder in kept)
        words += f"What is run with every step and, by its text, keeps what it gets: {places}. "
    return (
        f"{words}Commonly it is a list or a running sum of losses or outputs, each of which keeps "
        "its whole graph and the tensors saved for backward: keep loss.item() or x.detach() "
        "instead. Else bound the cache or the list, or empty it where an epoch ends."
    )
