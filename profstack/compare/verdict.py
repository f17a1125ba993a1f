"""The answer in one sentence: faster, slower, the same or unclear, by how much, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from profstack.code_owner import place_words
from profstack.compare.noise import Noise
from profstack.compare.parts import Totals
from profstack.compare.places import Found
from profstack.storage.schema.comparison import (
    Bar,
    ChangeSlug,
    ComparisonVerdict,
    Inequality,
    PartChange,
)
from profstack.units import format_share

# Differences below this are no news, however exactly they are known.
_LEAST = 0.005
# Where a smaller change than this would have shown, no difference means the same.
_SAME = 0.06
# Parts named in the sentence.
_MOST_PARTS = 4
# A part of the run is news beside the step's answer from this share of the run on.
_LARGE_RUN_PART = 0.05
_NOTHING_TO_COMPARE = "there is no clean step on both sides, and no parts of a run"
# Work that is not the same explains a part of the model; the first that differs.
_WORK = ("batch-size", "precision", "threads", "flop", "torch", "device", "shapes")


def answer(
    of: Bar,
    found: Totals,
    noise: Noise,
    unequal: Sequence[Inequality],
    counted: Sequence[Found] = (),
) -> ComparisonVerdict:
    """Return the answer for the step or for the run.

    `counted` is what is known of the step by exact counts: said where the time tells no difference.
    """
    ratio = found.after_s / found.before_s
    reach = noise.ratio_reach(of)
    low = high = floor = None
    slug: ChangeSlug = "unclear"
    if reach is not None:
        low, high, floor = ratio * math.exp(-reach), ratio * math.exp(reach), math.expm1(reach)
        if (low > 1.0 or high < 1.0) and abs(ratio - 1.0) >= _LEAST:
            slug = "slower" if ratio > 1.0 else "faster"
        elif floor <= _SAME:
            slug = "same"
    source = noise.source(of) if reach is not None else None
    return {
        "slug": slug,
        "sentence": _sentence(of, slug, found, (low, high), floor, unequal)
        + ("" if slug in ("faster", "slower") else _counted_words(counted)),
        "action": _action(slug, noise, of),
        "figure": of,
        "before_s": found.before_s,
        "after_s": found.after_s,
        "ratio": ratio,
        "ci95_low": low,
        "ci95_high": high,
        "spread": source,
        "floor": floor,
        "reason": None,
    }


def no_answer() -> ComparisonVerdict:
    """Return the answer where nothing can be compared."""
    return {
        "slug": "unclear",
        "sentence": f"cannot tell: {_NOTHING_TO_COMPARE}",
        "action": "record both sides with 'profstack run'",
        "figure": "none",
        "before_s": None,
        "after_s": None,
        "ratio": None,
        "ci95_low": None,
        "ci95_high": None,
        "spread": None,
        "floor": None,
        "reason": _NOTHING_TO_COMPARE,
    }


def chosen(
    step: ComparisonVerdict | None, run: ComparisonVerdict | None, run_parts: Sequence[PartChange]
) -> ComparisonVerdict:
    """Return the answer to give: the step's, unless the run changed for other reasons.

    Else the run's parts that changed and that no step explains are added to the sentence.
    """
    if step is None:
        return run or no_answer()
    if run is None:
        return step
    beside = [
        part
        for part in run_parts
        if part["beyond_noise"]
        and part["name"] not in ("steps", "waiting for data", "other", "shutdown")
        and abs(part["difference_s"]) >= _LARGE_RUN_PART * (run["before_s"] or 0.0)
    ]
    if not beside:
        return step
    told = ("faster", "slower")
    # A step that became faster is not the answer for a run that became slower by something else.
    change_s = (run["after_s"] or 0.0) - (run["before_s"] or 0.0)
    explained_s = sum(part["difference_s"] for part in beside)
    is_other = step["slug"] not in told or (
        step["slug"] != run["slug"]
        and 2.0 * explained_s * math.copysign(1.0, change_s) > abs(change_s)
    )
    if run["slug"] not in told or not is_other:
        words = ", ".join(_seconds_part(part) for part in beside)
        return {**step, "sentence": f"{step['sentence']}; and in the run {words}"}
    before_s, after_s = step["before_s"] or 0.0, step["after_s"] or 0.0
    scale, unit = _scale(max(before_s, after_s))
    times = f"{before_s / scale:.3g} -> {after_s / scale:.3g} {unit}"
    states = {"same": "is the same", "unclear": "is not told apart"}
    state = states.get(step["slug"], f"by itself is {step['slug']}")
    return {**run, "sentence": f"{run['sentence']}; the step {state} ({times})"}


def _seconds_part(part: PartChange) -> str:
    return f"{part['name']} {part['difference_s']:+.3g} s{brackets(part)}"


def _action(slug: ChangeSlug, noise: Noise, of: Bar) -> str:
    if slug in ("faster", "slower"):
        return ""
    few = min(len(noise.before.totals_s(of)), len(noise.after.totals_s(of)))
    if slug == "same":
        return ""
    if few < 2:
        return "record each side three to five times, in turn, and give all of them"
    return "record each side a few times more, in turn, while nothing else runs"


_UNITS = ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"))


def _scale(seconds: float) -> tuple[float, str]:
    return next(((scale, unit) for scale, unit in _UNITS if seconds / scale < 999.5), _UNITS[-1])


@dataclass(frozen=True)
class Rounded:
    """Parts of a bar as they are shown: in one unit, so rounded that the shown figures add up.

    `before` and `after` are the whole in units of the last decimal, `rows` the parts likewise.
    """

    unit: str
    decimals: int
    before: int
    after: int
    rows: list[tuple[PartChange, int, int]]

    def words(self, figure: int, sign: str = "") -> str:
        """Return a figure as `0.61`; with `sign` "+" as `+0.61`."""
        return f"{figure / 10**self.decimals:{sign}.{self.decimals}f}"


def rounded(parts: Sequence[PartChange]) -> Rounded:
    """Round the parts of one bar: three digits of the whole, two of a small difference."""
    wholes = [sum(part[side] for part in parts) for side in ("before_s", "after_s")]
    scale, unit = _scale(max(wholes))
    before, after = wholes[0] / scale, wholes[1] / scale
    largest, difference = max(before, after), abs(after - before)
    decimals = max(2 - math.floor(math.log10(largest)), 0) if largest > 0 else 0
    if 0 < difference * 10**decimals < 10:
        decimals += min(max(math.ceil(1 - math.log10(difference) - decimals), 0), 2)
    per_s = 10**decimals / scale
    columns = [
        _whole_numbers([part[side] * per_s for part in parts]) for side in ("before_s", "after_s")
    ]
    return Rounded(
        unit, decimals, sum(columns[0]), sum(columns[1]), list(zip(parts, *columns, strict=True))
    )


def _whole_numbers(values: Sequence[float]) -> list[int]:
    """Round values so that they add up to their rounded sum: the largest remainders go up."""
    floors = [math.floor(value) for value in values]
    missing = round(sum(values)) - sum(floors)
    order = sorted(range(len(values)), key=lambda at: floors[at] - values[at])
    for at in order[: max(missing, 0)]:
        floors[at] += 1
    return floors


def _sentence(
    of: Bar,
    slug: ChangeSlug,
    found: Totals,
    interval: tuple[float | None, float | None],
    floor: float | None,
    unequal: Sequence[Inequality],
) -> str:
    shown = rounded(found.parts)
    size = f"{of} {shown.words(shown.before)} -> {shown.words(shown.after)} {shown.unit}"
    low, high = interval
    if low is not None and high is not None:
        size += f" ({_percent(found.after_s / found.before_s)}, {_range(low, high)})"
    size += _equal_words(unequal)
    parts = _parts_words(shown)
    if slug in ("faster", "slower"):
        return f"{size}: {parts}"
    below = ""
    if floor is not None:
        size_words = (
            f"below {format_share(floor)}" if floor < 1.0 else f"below {1 + floor:.2g} times"
        )
        below = f"changes {size_words} cannot be told"
    told = any(part["beyond_noise"] for part in found.parts)
    inside = f"; beyond noise inside it: {parts}" if told else ""
    if slug == "same":
        return f"no difference beyond noise: {size}; {below}{inside}"
    return f"cannot tell: {size}; {below}{inside}"


def _counted_words(counted: Sequence[Found]) -> str:
    words = [_words(*each) for each in counted]
    return f"; certain, since counted: {', '.join(words)}" if words else ""


def _percent(ratio: float) -> str:
    points = 100.0 * (ratio - 1.0)
    return f"{points:+.0f} %" if abs(points) >= 9.95 else f"{points:+.1f} %"


def _range(low: float, high: float) -> str:
    points = [100.0 * (end - 1.0) for end in (low, high)]
    if max(map(abs, points)) < 9.95:
        return f"{points[0]:+.1f} to {points[1]:+.1f}"
    return f"{points[0]:+.0f} to {points[1]:+.0f}"


def _equal_words(unequal: Sequence[Inequality]) -> str:
    """Return what of the work or the machine is not the same, for the first line."""
    rows = {row["slug"]: row for row in unequal if row["severity"] == "high"}
    names = {"batch-size": "batch", "precision": "type", "flop": "FLOP", "shapes": "shapes"}
    for slug in _WORK:
        if slug in rows:
            row = rows[slug]
            name = names.get(slug, slug)
            return f" with {name} {row['before'] or 'none'} -> {row['after'] or 'none'}"
    return ""


def _parts_words(shown: Rounded) -> str:
    """Return the parts beyond noise, the largest first, and the rest: they add up."""
    told = [(part, after - before) for part, before, after in shown.rows if part["beyond_noise"]]
    told.sort(key=lambda each: -abs(each[0]["difference_s"]))
    named = [(part, figure) for part, figure in told if figure][:_MOST_PARTS]
    rest = shown.after - shown.before - sum(figure for _, figure in named)
    words = [f"{part['name']} {shown.words(figure, '+')}{brackets(part)}" for part, figure in named]
    if not named:
        none = "no part by itself is beyond noise"
        most, figure = max(
            ((part, after - before) for part, before, after in shown.rows),
            key=lambda each: abs(each[1]),
            default=(None, 0),
        )
        if most is None or 2 * abs(figure) < abs(shown.after - shown.before) or not figure:
            return none
        return f"mostly {most['name']} {shown.words(figure, '+')}{brackets(most)}, but {none}"
    if rest:
        is_noise = len(named) == len(told)
        words.append(f"rest {shown.words(rest, '+')}{' (noise)' if is_noise else ''}")
    return ", ".join(words)


def brackets(part: PartChange) -> str:
    """Return the places and causes of a part in brackets; empty without any."""
    words = (_words(each["file"], each["line"], each["cause"]) for each in part["places"])
    inside = "; ".join(filter(None, words))
    return f" ({inside})" if inside else ""


def _words(file: str | None, line: int | None, cause: str | None) -> str:
    place = None if file is None else place_words(file, line)
    return " ".join(text for text in (place, cause) if text)
