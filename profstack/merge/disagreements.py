"""Where counters of operations differ from the one of record: by how much, in what, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from profstack.flops.copies import MULTIPLYING
from profstack.merge.flops import BACKWARD, FORWARD, OTHER_TOOLS, Counted, of_record
from profstack.regions import OUTSIDE
from profstack.units import format_count

# Two counters that saw the same steps differ by less than this, or a formula is lacking.
ROUNDING = 1e-3
# One that also counts the additions of a bias differs by less than this where nothing is lacking.
CONVENTION = 0.1
# A difference in one module that is less than this of the whole is not worth a word.
NEGLIGIBLE = 1e-5
# What the other tools count as multiply-adds, as they name it; all they count besides is
# element-wise work, which the record leaves out on purpose.
_MULTIPLYING = {
    "flops-profiler": frozenset(
        (
            *("linear", "conv1d", "conv2d", "conv3d"),
            *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
            *("matmul", "mm", "bmm", "addmm", "baddbmm", "einsum"),
        )
    ),
    **MULTIPLYING,
}

Key = TypeVar("Key", bound=object)


def disagreements(
    counters: Mapping[str, Counted], paths: Mapping[int, str]
) -> list[dict[str, str]]:
    """A warning for each counter that differs from the one of record, with the operators.

    Counters that saw steps with other inputs are not compared: the work was not the same.
    """
    record = of_record(counters)
    return [
        {"slug": "flop-counters-disagree", "text": text}
        for other in counters.values()
        if record is not None
        and comparable(record, other)
        and (text := _disagreement(record, other, paths)) is not None
    ]


def differences(counters: Mapping[str, Counted], paths: Mapping[int, str]) -> dict[str, str]:
    """How each counter stands to the one of record, in words; the record itself has none."""
    record = of_record(counters)
    if record is None:
        return {}
    return {
        name: _difference(record, other, paths)
        for name, other in counters.items()
        if other is not record
    }


def comparable(record: Counted, other: Counted) -> bool:
    """Whether two counters saw the same work."""
    if other is record or record.apart or other.apart:
        return False
    return record.inputs == other.inputs and len(record.inputs) <= 1


def _difference(record: Counted, other: Counted, paths: Mapping[int, str]) -> str:
    # Of slices that hook no calls the inputs are not known: then the figures are all there is.
    known = bool(record.inputs and other.inputs)
    if record.apart:
        return "not compared: it saw steps that did other work"
    if known and not comparable(record, other):
        return "not compared: it saw steps with other inputs"
    if other.counter in OTHER_TOOLS:
        text = _of_a_tool(record, other, paths)
    elif apart := _directions(record, other):
        named = _signed(_gaps(record.operators, other.operators))
        text = f"{' and '.join(apart)} the record: {_listed(named)}"
    else:
        return "the same"
    same_inputs = known or record.inputs == other.inputs
    return text if same_inputs else f"{text} (whether their steps had the same inputs is not known)"


def _of_a_tool(record: Counted, other: Counted, paths: Mapping[int, str]) -> str:
    """How the forward of one that counts by names of its own stands to the record's."""
    total, theirs_total = record.total(FORWARD), other.total(FORWARD)
    if not total or theirs_total is None:
        return "there is no forward to compare"
    ours, theirs = _by_module(record, other)
    gaps = _module_gaps(ours, theirs)
    parts = _signed(
        {
            f"in {_with_operators(record, number, paths)}, "
            f"{_extent(ours.get(number, 0.0), theirs.get(number, 0.0))}": gap
            for number, gap in gaps.items()
        }
    )
    left_out = {
        name: flop
        for name, flop in other.operators.items()
        if flop and not _multiplies(other, name)
    }
    if left_out:
        names = _listed([f"{name} {format_count(flop)}" for name, flop in _sorted(left_out)], 3)
        amount = format_count(sum(left_out.values()))
        parts.append(f"+{amount} of work that the record leaves out by convention ({names})")
    rest = theirs_total - total - sum(gaps.values()) - sum(left_out.values())
    if abs(rest) > ROUNDING * total:
        sign = "+" if rest > 0 else "-"
        parts.append(f"{sign}{format_count(abs(rest))} in formulas, such as for a bias")
    factor = theirs_total / total
    if not parts:
        return "the same forward" if abs(factor - 1) <= ROUNDING else f"forward {factor:.3f} times"
    return f"forward {factor:.3f} times the record: {_listed(parts)}"


def _by_module(record: Counted, other: Counted) -> tuple[dict[int, float], dict[int, float]]:
    """Forward multiply-adds by module, of the record and of one with names of its own."""
    ours = {number: flop for (number, way), flop in record.own.items() if way == FORWARD}
    theirs: dict[int, float] = {}
    for (name, module), flop in other.by_place.items():
        if _multiplies(other, name):
            number = OUTSIDE if module is None else module
            theirs[number] = theirs.get(number, 0.0) + flop
    return ours, theirs


def _multiplies(other: Counted, name: str) -> bool:
    return name in _MULTIPLYING.get(other.counter, ())


def _extent(ours: float, theirs: float) -> str:
    """How much of a module's work a tool counts."""
    if not theirs:
        return "which it does not count"
    return f"which it counts {theirs / ours:.3g} times" if ours else "which the record does not"


def _disagreement(record: Counted, other: Counted, paths: Mapping[int, str]) -> str | None:
    """Where two counters differ, in words; None where they agree."""
    if other.counter in OTHER_TOOLS:
        return _forward_disagreement(record, other, paths)
    apart = _directions(record, other)
    if not apart:
        return None
    words = f"{other.counter} counts {' and '.join(apart)} what {record.counter} counts"
    return f"{words}; they differ in {_listed(_gaps(record.operators, other.operators))}"


def _directions(record: Counted, other: Counted) -> list[str]:
    """The directions in which two counters differ, each with the factor."""
    apart = []
    for direction, word in ((FORWARD, "forward"), (BACKWARD, "backward")):
        ours, theirs = record.total(direction), other.total(direction)
        if ours is not None and theirs is not None and _differ(ours, theirs, ROUNDING):
            apart.append(f"{word} {theirs / ours:.3f} times" if ours else word)
    return apart


def _forward_disagreement(record: Counted, other: Counted, paths: Mapping[int, str]) -> str | None:
    """Where one with names of its own differs in the multiply-adds of a module's forward."""
    ours, theirs = _by_module(record, other)
    places = [_with_operators(record, number, paths) for number in _module_gaps(ours, theirs)]
    if not places:
        return None
    share = sum(theirs.values()) / (sum(ours.values()) or 1.0)
    return (
        f"{other.counter} counts {share:.3f} times the forward multiply-adds of "
        f"{record.counter}; they differ in {_listed(places)}"
    )


def _with_operators(record: Counted, module: int, paths: Mapping[int, str]) -> str:
    """A module with the operators that the record counts in it."""
    number = None if module == OUTSIDE else module
    names = sorted(name for name, inside in record.by_place if inside == number)
    path = paths.get(module, "a module")
    return f"{path} ({', '.join(names)})" if names else path


def _gaps(
    ours: Mapping[Key, float], theirs: Mapping[Key, float], beyond: float = ROUNDING
) -> dict[Key, float]:
    """By how much theirs are above ours, for whatever has counts that differ; the largest first."""
    gaps = {
        key: theirs.get(key, 0.0) - ours.get(key, 0.0)
        for key in (*ours, *theirs)
        if _differ(ours.get(key, 0.0), theirs.get(key, 0.0), beyond)
    }
    return dict(sorted(gaps.items(), key=lambda item: (-abs(item[1]), str(item[0]))))


def _module_gaps(ours: Mapping[int, float], theirs: Mapping[int, float]) -> dict[int, float]:
    """The gaps in multiply-adds by module that no convention explains."""
    least = NEGLIGIBLE * sum(ours.values())
    gaps = _gaps(ours, theirs, CONVENTION)
    return {number: gap for number, gap in gaps.items() if abs(gap) > least}


def _signed(gaps: Mapping[str, float]) -> list[str]:
    """Each gap with its sign before what it is in."""
    return [
        f"{'+' if gap > 0 else '-'}{format_count(abs(gap))} {name}" for name, gap in gaps.items()
    ]


def _sorted(amounts: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(amounts.items(), key=lambda item: (-item[1], item[0]))


def _differ(ours: float, theirs: float, beyond: float) -> bool:
    return abs(ours - theirs) > beyond * max(abs(ours), abs(theirs))


def _listed(names: Iterable[str], most: int = 5) -> str:
    """The first names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
