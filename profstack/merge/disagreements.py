"""Where counters of operations disagree, and in which operators: a formula is lacking there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from profstack.merge.flops import BACKWARD, FORWARD, FUNCTIONS, Counted, of_record
from profstack.regions import OUTSIDE

# Two counters that saw the same steps differ by less than this, or a formula is lacking.
ROUNDING = 1e-3
# One that also counts the additions of a bias differs by less than this where nothing is lacking.
CONVENTION = 0.1
# The functions that flops-profiler counts as multiply-adds, as it names them; all it counts
# besides is element-wise work, which the others leave out on purpose.
_MULTIPLYING = (
    *("linear", "conv1d", "conv2d", "conv3d"),
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    *("matmul", "mm", "bmm", "addmm", "baddbmm", "einsum"),
)

Key = TypeVar("Key", bound=object)


def disagreements(
    counters: Mapping[str, Counted], paths: Mapping[int, str]
) -> list[dict[str, str]]:
    """A warning for each counter that differs from the one of record, with the operators.

    Counters that saw steps with other inputs are not compared: the work was not the same.
    """
    record = of_record(counters)
    if record is None:
        return []
    return [
        {"slug": "flop-counters-disagree", "text": text}
        for other in counters.values()
        if other is not record
        and record.inputs == other.inputs
        and len(record.inputs) <= 1
        and (text := _disagreement(record, other, paths)) is not None
    ]


def _disagreement(record: Counted, other: Counted, paths: Mapping[int, str]) -> str | None:
    """Where two counters differ, in words; None where they agree."""
    if other.counter == FUNCTIONS:
        return _forward_disagreement(record, other, paths)
    directions = []
    for direction, word in ((FORWARD, "forward"), (BACKWARD, "backward")):
        ours, theirs = record.total(direction), other.total(direction)
        if ours is not None and theirs is not None and _differ(ours, theirs, ROUNDING):
            directions.append(f"{word} {theirs / ours:.3f} times" if ours else word)
    if not directions:
        return None
    words = f"{other.counter} counts {' and '.join(directions)} what {record.counter} counts"
    return f"{words}; they differ in {_listed(_differing(record.operators, other.operators))}"


def _forward_disagreement(record: Counted, other: Counted, paths: Mapping[int, str]) -> str | None:
    """Where one that counts functions differs in the multiply-adds of a module's forward."""
    ours = {number: flop for (number, way), flop in record.own.items() if way == FORWARD}
    theirs: dict[int, float] = {}
    for (name, module), flop in other.by_place.items():
        if name in _MULTIPLYING:
            number = OUTSIDE if module is None else module
            theirs[number] = theirs.get(number, 0.0) + flop
    places = [
        _with_operators(record, number, paths) for number in _differing(ours, theirs, CONVENTION)
    ]
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


def _differing(
    ours: Mapping[Key, float], theirs: Mapping[Key, float], beyond: float = ROUNDING
) -> list[Key]:
    """Whatever has counts that differ, the largest difference first."""
    gaps = {
        key: abs(ours.get(key, 0.0) - theirs.get(key, 0.0))
        for key in (*ours, *theirs)
        if _differ(ours.get(key, 0.0), theirs.get(key, 0.0), beyond)
    }
    return sorted(gaps, key=lambda key: (-gaps[key], str(key)))


def _differ(ours: float, theirs: float, beyond: float) -> bool:
    return abs(ours - theirs) > beyond * max(abs(ours), abs(theirs))


def _listed(names: Iterable[str], most: int = 5) -> str:
    """The first names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
