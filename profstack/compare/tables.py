"""Every table side by side: rows matched, sorted by what each adds to the difference."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

import numpy as np

from profstack.code_owner import BUILTIN_FILE
from profstack.compare.inequalities import step_flop
from profstack.compare.matching import match_functions, pair_up
from profstack.compare.noise import Noise
from profstack.compare.places import Places
from profstack.compare.sides import Side, run_rows
from profstack.findings.reading import FunctionKey, figure
from profstack.stats.summary import FloatArray
from profstack.storage.schema.comparison import Change, ComparedTable, TableRow
from profstack.storage.schema.report import Report

Key = TypeVar("Key", bound=Hashable)
Unit = Literal["s", "bytes", "flop", "count", "items/s"]
Status = Literal["both", "moved", "gone", "new"]

# A matched row with a smaller share of the table's largest total is left out: that is next to no
# difference.
_NEXT_TO_NOTHING = 1e-4
# A row of times is told from this share of the step, or of the run, on: what an observer adds to a
# call moves from row to row by as much.
_LEAST = 0.005
# Rows beyond these are no more likely to differ by chance than these alone: most take no time.
_MOST_JUDGED = 1000


@dataclass
class _Cells:
    """A row of one side: its figure in each recording, its calls, and how it is shown."""

    __slots__ = ("calls", "file", "line", "name", "values")

    name: str
    file: str | None
    line: int | None
    values: list[float | None]
    calls: float | None


Rows = dict[Hashable, _Cells]
# A key, its figure, its calls, and name, file and line.
_Item = tuple[Hashable, float | None, float | None, str, str | None, int | None]


def _collect(side: Side, read: Callable[[Report], Iterable[_Item]]) -> Rows:
    """Return the rows of a side by key, figures of one key added up within a recording."""
    rows: Rows = {}
    count = len(side.reports)
    for at, report in enumerate(side.reports):
        for key, value, calls, name, file, line in read(report):
            row = rows.get(key)
            if row is None:
                row = rows[key] = _Cells(name, file, line, [None] * count, None)
            if value is not None:
                known = row.values[at]
                row.values[at] = value if known is None else known + value
            if calls is not None and at == 0:
                row.calls = calls if row.calls is None else row.calls + calls
    return rows


@dataclass(frozen=True)
class _Kind:
    """A table: what it holds and how its rows are matched."""

    name: str
    title: str
    unit: Unit
    read: Callable[[Report], Iterable[_Item]]
    match: Callable[[Rows, Rows], list[tuple[Hashable, Hashable]]]
    exact: bool = False
    # Whole figures, each by itself; others are parts: a recording that has some has them all.
    wholes: bool = False


def tables(before: Side, after: Side, noise: Noise, places: Places) -> list[ComparedTable]:
    """Return all tables."""
    step_s = max(before.mean_s("step") or 0.0, after.mean_s("step") or 0.0)
    run_s = max(before.mean_s("run") or 0.0, after.mean_s("run") or 0.0)
    found = []
    for kind in _kinds(places):
        whole = run_s if kind.name in ("start-up", "run") else step_s
        found.append(
            _table(kind, _collect(before, kind.read), _collect(after, kind.read), noise, whole)
        )
    return found


def _table(kind: _Kind, was: Rows, now: Rows, noise: Noise, whole: float) -> ComparedTable:
    reason = _unrecorded(was, now)
    if reason is not None:
        return _filled(kind, [], 0, reason)
    pairs = kind.match(was, now)
    partners = dict(pairs)
    taken = set(partners.values())
    rows: list[tuple[Hashable | None, Hashable | None]] = [*pairs]
    rows += [(key, None) for key in was if key not in partners]
    rows += [(None, key) for key in now if key not in taken]
    listed = _rows(kind, rows, was, now, noise, whole)
    largest = max((abs(row["change"]["difference"] or 0.0) for row in listed), default=0.0)
    limit = max(_NEXT_TO_NOTHING * (whole if kind.unit == "s" else 0.0), 0.0)
    limit = min(limit, largest)
    kept = [row for row in listed if _is_listed(row, limit)]
    kept.sort(key=lambda row: -abs(row["change"]["difference"] or 0.0))
    return _filled(kind, kept, len(listed) - len(kept), None if kept else "no row differs")


_ONE_SIDED = tuple(f"the {which} side did not record it" for which in ("first", "second"))


def _unrecorded(was: Rows, now: Rows) -> str | None:
    """Return why there is nothing to compare: rows of one side alone did not come or go."""
    if was and now:
        return None
    if not was and not now:
        return "neither side recorded any"
    return _ONE_SIDED[bool(was)]


def one_sided(tables: Sequence[ComparedTable]) -> list[str]:
    """Return sentences on the tables that one side alone recorded, for each side that did not."""
    titles: dict[str, list[str]] = defaultdict(list)
    for table in tables:
        if table["reason"] in _ONE_SIDED:
            titles[table["reason"]].append(table["title"])
    return [
        f"Not compared, since {reason}: {'; '.join(names)}." for reason, names in titles.items()
    ]


def _filled(kind: _Kind, rows: list[TableRow], left_out: int, reason: str | None) -> ComparedTable:
    return {
        "name": kind.name,
        "title": kind.title,
        "unit": kind.unit,
        "rows": rows,
        "left_out": left_out,
        "reason": reason,
    }


def _is_listed(row: TableRow, limit: float) -> bool:
    if row["status"] in ("gone", "new"):
        return True
    difference = row["change"]["difference"]
    if difference is None:
        return (row["change"]["before"] is None) != (row["change"]["after"] is None)
    return difference != 0.0 and abs(difference) >= limit


def _rows(
    kind: _Kind,
    pairs: Sequence[tuple[Hashable | None, Hashable | None]],
    was: Rows,
    now: Rows,
    noise: Noise,
    whole: float,
) -> list[TableRow]:
    """Return the rows of all pairs, with the intervals of all of them at once."""
    was_values, now_values = (
        _figures([rows.get(pair[which]) for pair in pairs], rows, wholes=kind.wholes)
        for which, rows in enumerate((was, now))
    )
    part_of = whole if kind.unit == "s" else 0.0
    reaches = partial(
        noise.reaches, was_values, now_values, part_of, exact=kind.exact, wholes=kind.wholes
    )
    first, second, reach = reaches()
    # The rows of a table are judged together: with many of them some differ by chance.
    families = min(len(pairs), _MOST_JUDGED)
    joint = reaches(families=families)[2]
    joint = np.maximum(joint, 0.0 if kind.wholes else _LEAST * part_of)
    known = [np.any(~np.isnan(side), axis=1).tolist() for side in (was_values, now_values)]
    return [
        _row(
            was[one] if one is not None else None,
            now[other] if other is not None else None,
            _change(
                float(first.values[at]) if known[0][at] else None,
                float(second.values[at]) if known[1][at] else None,
                float(reach[at]),
                float(joint[at]),
            ),
            no_calls=None if kind.wholes else 0.0,
        )
        for at, (one, other) in enumerate(pairs)
    ]


def _row(
    left: _Cells | None, right: _Cells | None, change: Change, *, no_calls: float | None
) -> TableRow:
    status: Status = "gone" if right is None else "new" if left is None else "both"
    if left is not None and right is not None:
        place = (left.name, left.file, left.line)
        status = "both" if place == (right.name, right.file, right.line) else "moved"
    shown = right or left
    assert shown is not None
    return {
        "key": shown.name,
        "status": status,
        "was": left.name if left and right and left.name != right.name else None,
        "file": shown.file,
        "line": shown.line,
        "calls_before": left.calls if left else no_calls,
        "calls_after": right.calls if right else no_calls,
        "change": change,
    }


def unmeasured(before: float | None, after: float | None) -> Change:
    """Return the change of a figure that a side lacks, or that has no interval."""
    if before is not None and after is not None:
        reason = "no interval"
    elif before is None and after is None:
        reason = "not measured on either side"
    else:
        reason = f"not measured on the {'first' if before is None else 'second'} side"
    return {
        "before": before,
        "after": after,
        "difference": None,
        "low": None,
        "high": None,
        "ratio": None,
        "beyond_noise": None,
        "reason": reason,
    }


def _change(before: float | None, after: float | None, reach: float, joint: float) -> Change:
    if before is None or after is None:
        return unmeasured(before, after)
    difference = after - before
    return {
        "before": before,
        "after": after,
        "difference": difference,
        "low": difference - reach,
        "high": difference + reach,
        "ratio": after / before if before else None,
        "beyond_noise": abs(difference) > joint,
        "reason": None if before else "the first side has none",
    }


def _figures(listed: Sequence[_Cells | None], rows: Rows, *, wholes: bool) -> FloatArray:
    """Return figures, one column a recording; NaN for what a recording did not measure.

    `rows` are all of the side. A part that a recording does not have took no time there, if it has
    any part at all; a whole figure that it does not have is not known.
    """
    every = np.array([row.values for row in rows.values()], dtype=np.float64)
    nothing: list[float | None] = [None] * every.shape[1]
    values = [row.values if row is not None else nothing for row in listed]
    found = np.array(values, dtype=np.float64).reshape(len(listed), every.shape[1])
    if not wholes:
        # A row that the side has and never measured is not known either.
        absent = [row is None or any(value is not None for value in row.values) for row in listed]
        recorded = ~np.isnan(every).all(axis=0)
        found[np.isnan(found) & np.array(absent)[:, None] & recorded] = 0.0
    return found


# What each table holds, and how its rows are matched ----------------------------------------------


def _kinds(places: Places) -> list[_Kind]:
    def functions(was: Rows, now: Rows) -> list[tuple[Hashable, Hashable]]:
        keys = [[key for key in rows if isinstance(key, FunctionKey)] for rows in (was, now)]
        return list(match_functions(keys[0], keys[1], places.sources)[0])

    def modules(was: Rows, now: Rows) -> list[tuple[Hashable, Hashable]]:
        # The whole step has a row of FLOP and is no module.
        pairs = [("step", "step"), *places.modules.items()]
        return [(one, other) for one, other in pairs if one in was and other in now]

    def lines(was: Rows, now: Rows) -> list[tuple[Hashable, Hashable]]:
        found = ((key, places.sources.line(*key)) for key in was)  # type: ignore[misc]  # lines
        return [(key, place) for key, place in found if place is not None and place in now]

    return [
        _Kind("times", "Times", "s", _times, _by_key, wholes=True),
        _Kind("throughput", "Throughput", "items/s", _throughput, _by_key, wholes=True),
        _Kind("modules", "Modules, own time", "s", _modules, modules),
        _Kind("operators", "Operators", "s", _operators, _operator_pairs),
        _Kind("operator_calls", "Calls of operators", "count", _operator_calls, _operator_pairs,
              exact=True),
        _Kind("kernels", "Kernels", "s", _kernels, _by_key),
        _Kind("functions", "Functions", "s", _functions, functions),
        _Kind("lines", "Lines", "s", _lines, lines),
        _Kind("memory_owners", "Memory at the peak, by kind", "bytes", _memory, _by_key,
              exact=True),
        _Kind("peak_holders", "Memory at the peak, by owner", "bytes", _holders,
              lambda was, now: _moved(was, now, places), exact=True),
        _Kind("flop", "FLOP", "flop", _flop, modules, exact=True),
        _Kind("start-up", "Start-up", "s", _start_up, _by_key),
    ]  # fmt: skip


def _by_key(was: Rows, now: Rows) -> list[tuple[Hashable, Hashable]]:
    return [(key, key) for key in was if key in now]


def _operator_pairs(was: Rows, now: Rows) -> list[tuple[Hashable, Hashable]]:
    """Match by name and shapes, then by name in order of size: other shapes of the same work."""
    pairs = _by_key(was, now)
    left = [key for key in was if key not in now]
    free = [key for key in now if key not in was]

    def size(rows: Rows) -> Callable[[Hashable], float]:
        return lambda key: -max((value or 0.0 for value in rows[key].values), default=0.0)

    left.sort(key=size(was))
    free.sort(key=size(now))
    return pairs + pair_up(left, free, lambda key: key[0])[0]  # type: ignore[index]  # (name, shapes)


def _moved(was: Rows, now: Rows, places: Places) -> list[tuple[Hashable, Hashable]]:
    """Match what modules hold, where a module has moved, too."""
    found: list[tuple[Hashable, Hashable]] = []
    for key in was:
        if isinstance(key, tuple):
            other = (*key[:2], places.modules.get(key[2], key[2]))
            if other in now or key in now:
                found.append((key, other if other in now else key))
    return found


def _times(report: Report) -> Iterable[_Item]:
    mark, requests = report["benchmark"], report["requests"]
    figures: dict[str, float | None] = {
        "step": mark["median_s"],
        "step, mean": mark["mean_s"],
        "step, p90": mark["p90_s"],
        "step, p99": mark["p99_s"],
        "step, CPU time": mark["cpu_mean_s"],
        "first step": mark["first_step_s"],
    }
    if requests:
        figures |= {f"request, {name}": requests[f"{name}_s"] for name in ("p50", "p90", "p99")}  # type: ignore[literal-required]  # of these names
    if report["tokens"]:
        figures["first token"] = report["tokens"]["first_token_p50_s"]
        figures["later token"] = report["tokens"]["later_token_s"]
    for name, value in figures.items():
        if value is not None:
            yield name, value, None, name, None, None


def _throughput(report: Report) -> Iterable[_Item]:
    mark = report["benchmark"]
    figures = {
        "steps": mark["steps_per_s"],
        "items": mark["items_per_s"],
        "items over the run": report["run"]["items_per_s"],
        "tokens": report["tokens"]["new_tokens_per_s"] if report["tokens"] else None,
    }
    for name, value in figures.items():
        if value is not None:
            yield name, value, None, name, None, None
    for row in mark["throughput"]:
        name = f"batch of {row['batch_size']} {row['dtype'] or ''}".rstrip()
        yield name, row["items_per_s"], None, name, None, None


def _modules(report: Report) -> Iterable[_Item]:
    for row in report["tables"]["modules"]:
        whole = figure(row, "forward_s") + figure(row, "backward_s")
        scale = (row["calibrated_s"] or whole) / whole if whole else 1.0
        value = None if row["self_s"] is None else row["self_s"] * scale
        yield row["path"], value, row["calls"], row["path"], None, None


def _operator_rows(report: Report) -> dict[tuple[str, str | None], tuple[float, float]]:
    sums: dict[tuple[str, str | None], tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for row in report["tables"]["operators"]:
        key = row["name"], row["shapes"]
        seconds, calls = sums[key]
        time = row["calibrated_s"] if row["calibrated_s"] is not None else row["self_s"]
        sums[key] = seconds + (time or 0.0), calls + (row["calls"] or 0.0)
    return sums


def _operators(report: Report) -> Iterable[_Item]:
    for (name, shapes), (seconds, calls) in _operator_rows(report).items():
        yield (name, shapes), seconds, calls, f"{name} {shapes or ''}".rstrip(), None, None


def _operator_calls(report: Report) -> Iterable[_Item]:
    for (name, shapes), (_, calls) in _operator_rows(report).items():
        yield (name, shapes), calls, calls, f"{name} {shapes or ''}".rstrip(), None, None


def _kernels(report: Report) -> Iterable[_Item]:
    for row in report["tables"]["kernels"]:
        yield row["name"], row["device_s"], row["calls"], row["name"], None, None


def _functions(report: Report) -> Iterable[_Item]:
    for row in report["tables"]["functions"]:
        if row["phase"] == "step":
            value = row["calibrated_s"] if row["calibrated_s"] is not None else row["self_s"]
            key, name = FunctionKey(row["file"], row["line"], row["name"]), row["name"]
            if row["file"] == BUILTIN_FILE:
                name = name if "built-in" in name else f"{name} (built-in)"
                yield key, value, row["calls"], name, None, None
            else:
                yield key, value, row["calls"], name, row["file"], row["line"]


def _lines(report: Report) -> Iterable[_Item]:
    texts = {(row["file"], row["line"]): row for row in report["tables"]["lines"]}
    for (file, line), row in texts.items():
        if row["own"] and row["python_s"] is not None:
            value = figure(row, "python_s") + figure(row, "operator_s")
            source = (row["source"] or "").strip()
            yield (file, line), value, row["calls"], source or f"line {line}", file, line


def _memory(report: Report) -> Iterable[_Item]:
    for row in report["tables"]["memory_owners"]:
        name = f"{row['kind']} on {row['device']}"
        yield (row["device"], row["kind"]), row["peak_bytes"], None, name, None, None


def _holders(report: Report) -> Iterable[_Item]:
    for row in report["tables"]["peak_holders"]:
        key = row["device"], row["kind"], row["module"]
        name = f"{row['kind']} of {row['module'] or 'no module'} on {row['device']}"
        yield key, row["bytes"], None, name, None, None


def _flop(report: Report) -> Iterable[_Item]:
    whole = step_flop(report)
    if whole is not None:
        yield "step", whole, None, "step", None, None
    rows = {row["path"]: row for row in report["tables"]["modules"]}
    own: dict[str, float] = {}
    for path, row in rows.items():
        forward, backward = row["forward_flop"], row["backward_flop"]
        if forward is None and backward is None:
            continue
        value = (forward or 0.0) + (backward or 0.0)
        own[path] = own.get(path, 0.0) + value
        parent = path.rpartition(".")[0]
        if parent in rows:
            own[parent] = own.get(parent, 0.0) - value
    for path, value in own.items():
        yield path, value, rows[path]["calls"], path, None, None


_STARTING = ("start-up and imports", "model and data set-up", "first step and compilation")


def _start_up(report: Report) -> Iterable[_Item]:
    for part in run_rows(report):
        if part["part"] in _STARTING:
            yield part["part"], part["wall_s"], None, part["part"], None, None
            for each in part["functions"]:
                name = f"{each['name'] or 'the script'} in {part['part']}"
                key = part["part"], each["file"].rpartition("/")[2], each["name"] or each["line"]
                yield key, each["wall_s"], None, name, each["file"], each["line"]
