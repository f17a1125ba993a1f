"""Work that one call of a module repeats: operators of its own, or a child, many times over.

Only a repetition can be one operator over all of what it is repeated for: a loop over samples,
heads or time steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from profstack.findings.figures import Report, Row

# Runs in one call from which a group is a loop over samples, heads or time steps.
_REPEATED = 8
# An operator that takes less is mostly what calling one costs (1 to 5 us on CPUs of the 2020s, as
# much again for its backward); beyond, computing begins to count.
_SMALL_S = 20e-6
# Of a module's own operators so much of the time must be in those that are repeated.
_MOSTLY = 0.5
# Of the repeated operators, those with less of the time do not tell how often the group runs.
_GOOD_PART = 0.1
# torch's own loop over time steps on the CPU is inside one operator: nobody can unroll it better.
_RECURRENT = ("RNN", "LSTM", "GRU")


@dataclass(frozen=True)
class Group:
    """Work of one module that its call repeats: seconds of the torch layer's steps, and counts."""

    module: Row
    seconds: float
    runs: float
    operators: float
    rows: list[Row]
    child: Row | None

    @property
    def is_small(self) -> bool:
        """Whether its operators take less than what makes an operator large."""
        return bool(self.operators) and self.seconds / self.operators < _SMALL_S


def repeated_groups(report: Report) -> Iterable[Group]:
    """Modules whose own operators, or whose children, are mostly repeated in each call."""
    modules = [row for row in report["tables"]["modules"] if not row["path"].startswith("(")]
    by_module: dict[str, list[Row]] = {}
    for row in report["tables"]["operators"]:
        if row["module"] is not None and row["calls"]:
            by_module.setdefault(row["module"], []).append(row)
    for module in modules:
        if not module["calls"] or module["type"] in _RECURRENT:
            continue
        own = by_module.get(module["path"], [])
        children = [row for row in modules if _is_child(row, module) and row["calls"]]
        again = [row for row in children if row["calls"] >= _REPEATED * module["calls"]]
        child = max(again, key=_whole_s, default=None)
        repeated = [row for row in own if row["calls"] >= _REPEATED * module["calls"]]
        own_s, repeated_s = _own_s(own), _own_s(repeated)
        if child is None and repeated_s <= _MOSTLY * own_s:
            continue
        inside = [row for one in again for row in _below(by_module, one["path"])]
        chosen = [*repeated, *inside]
        seconds = float(module["self_s"] or 0.0) + sum(map(_whole_s, again))
        if not chosen or not seconds:
            continue
        counts = [(row["calls"] / module["calls"], row["self_s"] or 0.0) for row in repeated]
        runs = child["calls"] / module["calls"] if child is not None else _fewest(counts)
        yield Group(module, seconds, runs, sum(row["calls"] for row in chosen), chosen, child)
    # Where each call of a model has a backward pass of its own, gradients are gathered over small
    # batches, for want of memory.
    noted = report.get("setup") or {}
    passes = (noted.get("backward_passes") or 0) / (noted.get("steps") or 1)
    if passes < _REPEATED / 2:
        yield from _repeated_models(modules, by_module)


def _repeated_models(modules: list[Row], by_module: dict[str, list[Row]]) -> Iterable[Group]:
    """Models that the script itself calls for one sample after the other."""
    for module in modules:
        if module["depth"] == 0 and (module["calls"] or 0) >= _REPEATED and module["parameters"]:
            inside = _below(by_module, module["path"])
            # The backward work of what picks the samples, and of what joins the results.
            joined = [
                row
                for part in ("(loss)", "(gradient accumulation)")
                for row in by_module.get(part, [])
                if row["calls"] >= _REPEATED
            ]
            chosen = [*inside, *joined]
            operators = sum(row["calls"] for row in chosen)
            seconds = _whole_s(module) + _own_s(joined)
            yield Group(module, seconds, module["calls"], operators, chosen, module)


def _is_child(row: Row, module: Row) -> bool:
    direct = row["depth"] == module["depth"] + 1
    return direct and str(row["path"]).startswith(f"{module['path']}.")


def _below(by_module: dict[str, list[Row]], path: str) -> list[Row]:
    return [
        row
        for name, rows in by_module.items()
        if name == path or name.startswith(f"{path}.")
        for row in rows
    ]


def _whole_s(module: Row) -> float:
    return float((module["forward_s"] or 0.0) + (module["backward_s"] or 0.0))


def _own_s(rows: Iterable[Row]) -> float:
    return float(sum(row["self_s"] or 0.0 for row in rows))


def _fewest(counts: Iterable[tuple[float, float]]) -> float:
    """The smallest of the counts that come with a good part of the time.

    One run may call an operator several times.
    """
    seconds: dict[float, float] = {}
    for count, taken in counts:
        seconds[round(count, 2)] = seconds.get(round(count, 2), 0.0) + taken
    whole = sum(seconds.values())
    return min(
        (count for count, taken in seconds.items() if taken >= _GOOD_PART * whole), default=1.0
    )
