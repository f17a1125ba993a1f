"""Which lines have to do with memory that grows: where it was taken, and what may keep it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from profstack.merge.recorded import Recorded
from profstack.merge.watched import watched
from profstack.privacy import home_relative

# A line has to do with it that takes this much of the growth at least; of two the one nearer to
# the whole. One that takes several times as much has it given back elsewhere.
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


@dataclass(frozen=True)
class Holder:
    """A line, what it took and did not give back per step, and the steps that were looked at."""

    file: str
    line: int
    source: str | None
    bytes_per_step: float | None
    steps: float | None

    @property
    def place(self) -> str:
        """The line in words."""
        name = re.split(r"[/\\]", self.file)[-1]
        return f"{name}:{self.line}" + (f" ({self.source})" if self.source else "")


def allocators(recorded: Recorded, slope: float, *, on_device: bool) -> list[Holder]:
    """The lines that took about as much as memory grows by and did not give it back.

    From the slices of the memory layer after the first steps; the likeliest line first. Bytes of
    the device stand there only for the lines that took any. Where all lines together gave back
    what they took, none of them did it: what grew is unseen by the allocator, as Python's own
    small objects are.
    """
    selection = recorded.select("memory", (("lines",),))
    rows = recorded.rows("memory_lines", selection)
    if selection is None or not selection.steps or not len(rows):
        return []
    of_device = rows["second_source"].fillna("").str.startswith("torch.cuda")
    rows = rows[of_device == on_device]
    net = rows["allocated_bytes"]
    if not on_device:
        net = net.fillna(rows["increment_bytes"])
    summed = net.groupby([rows["file"], rows["line"]]).sum(min_count=1).dropna()
    if summed.sum() / selection.steps < _SMALLEST_SHARE * slope:
        return []
    texts = _texts(recorded)
    found = [
        _holder(file, line, texts.get((file, line)), total / selection.steps, selection.steps)
        for (file, line), total in summed.items()
    ]
    return _likeliest(_kept(found), slope)


def seen_growing(recorded: Recorded, slope: float) -> list[Holder]:
    """The lines on which the watch saw the resident set grow, in the slices it had for itself."""
    slices = recorded.slices
    open_ended = slices[(slices["kind"] == "watch") & (slices["steps"] > 0)]
    steps = float(open_ended["steps"].sum())
    if not steps:
        return []
    begun = float(open_ended["started_s"].min())
    seen = watched(recorded)
    grown: dict[tuple[str, int], float] = {}
    for each in seen.by_stack(one for one in seen.samples if one.t_s >= begun):
        own = seen.own(each.stack)
        if own and each.grown is not None:
            place = (own[-1].file, own[-1].line)
            grown[place] = grown.get(place, 0.0) + each.grown
    texts = _texts(recorded)
    found = [
        _holder(file, line, texts.get((file, line)), total / steps, steps)
        for (file, line), total in grown.items()
    ]
    return _likeliest(found, slope)


def keepers(report: dict[str, Any]) -> list[Holder]:
    """Lines of the user's own that run with every step and, by their text, keep a thing."""
    found = []
    for row in report["tables"].get("lines") or []:
        text = str(row.get("source") or "").strip()
        if not row.get("own") or not keeps(text) or (row.get("calls") or 0.0) < _EVERY_STEP:
            continue
        found.append(Holder(row["file"], row["line"], text, None, None))
    return found[:_MOST]


def keeps(text: str | None) -> bool:
    """Whether a line, by its text, keeps a thing that may hold a tensor."""
    text = (text or "").strip()
    return bool(_KEEPS.search(text)) and not (text.startswith("#") or _NUMBERS.search(text))


def _texts(recorded: Recorded) -> dict[tuple[str, int], str]:
    """The text of every line that any layer recorded, by file and line."""
    texts: dict[tuple[str, int], str] = {}
    for table in ("watch_frames", "lines", "memory_lines"):
        frame = recorded.frames[table]
        known = frame[frame["source"].notna()]
        places = zip(known["file"].tolist(), known["line"].tolist(), strict=True)
        texts |= dict(zip(places, known["source"].tolist(), strict=True))
    return texts


def _holder(file: Any, line: Any, source: Any, per_step: float, steps: float) -> Holder:
    text = str(source).strip() if isinstance(source, str) else None
    return Holder(home_relative(str(file)), int(line), text, float(per_step), float(steps))


def _kept(found: list[Holder]) -> list[Holder]:
    """Without the lines whose memory another line gives back: a line that keeps nothing first."""
    kept = list(found)
    for giver in found:
        given = -(giver.bytes_per_step or 0.0)
        alike = [
            (keeps(holder.source), abs((holder.bytes_per_step or 0.0) - given), number)
            for number, holder in enumerate(kept)
            if abs((holder.bytes_per_step or 0.0) - given) <= _ALIKE * given
        ]
        if alike:
            kept.pop(min(alike)[-1])
    return kept


def _likeliest(found: list[Holder], slope: float) -> list[Holder]:
    """Those that took a good part of the growth, the one nearest to the whole of it first.

    Before them all comes one that by its text keeps what it took.
    """
    shares = [
        ((not keeps(holder.source), abs(math.log(share))), holder)
        for holder in found
        for share in ((holder.bytes_per_step or 0.0) / slope,)
        if _SMALLEST_SHARE <= share <= _LARGEST_SHARE
    ]
    return [holder for _, holder in sorted(shares, key=lambda each: each[0])[:_MOST]]
