"""The heaviest rows of a report as small tables, and its highlights in a line each."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from profstack.code_owner import place_words
from profstack.report.overview import counter_of_record, function_times, held_at_peak
from profstack.report.page_tables import AnyRow, forward_only, operators_by_name, weight
from profstack.report.screen import WIDE, Screen, figure, label, short_name
from profstack.storage.schema.nsys_rows import NsysStepRow
from profstack.storage.schema.rank_rows import RankRow
from profstack.storage.schema.report import Processes, Report
from profstack.storage.schema.rows import FunctionRow
from profstack.units import format_bytes, format_count, format_seconds

# Parts of a capture by the names under which they may be missing, those that matter most first.
_CAPTURE_PARTS = {
    "ranges": "NVTX ranges",
    "calls": "CUDA calls",
    "work": "work of a device",
    "libraries": "cuDNN and cuBLAS calls",
    "os_calls": "system calls",
    "memory": "memory usage",
    "samples": "CPU samples",
    "callchains": "call stacks",
}
# At most this many of them are named.
_MOST_MISSING = 3
IMPORT_ALONE = "the recording holds an import of Nsight Systems alone"
# As Python names a method of a type that is not written in Python.
_METHOD = re.compile(r"^<method '([^']+)' of '([^']+)' objects>$")
# Below these widths columns are left out: a number that is cut is another number.
_NARROW, _NARROWEST = 72, 48
# Kinds of rows of nsys_stats that are kernels.
_KERNELS = ("kernel", "graph")
# A row and the name to print for it.
_Named = tuple[str, AnyRow]


def is_import_alone(report: Report) -> bool:
    """Return whether the recording holds an import of Nsight Systems and no run of its own."""
    return bool(report.get("nsys")) and not (report["tables"]["steps"] or report["layers"])


def has_no_step(report: Report) -> bool:
    """Return whether the recording was made from files of other tools that know no step."""
    return bool(report.get("imports")) and report["script"] is None and not report["step"]["count"]


# The heaviest rows --------------------------------------------------------------------------


def print_top_tables(screen: Screen, report: Report, most: int, *, parts: bool = True) -> None:
    """Print the heaviest rows of each kind, every table after an empty line.

    Without `parts` the parts of the step outside modules are left out.
    """
    tables = report["tables"]
    if is_import_alone(report):
        # Ranges of modules; of a capture without steps any ranges.
        facts = report["nsys"]
        own = (None, facts["process"] if facts else None)
        every = [row for row in tables.get("nsys_ranges") or [] if row.get("process") in own]
        modules = tables.get("nsys_modules") or []
        ranges: list[_Named] = [(row["path"], row) for row in modules]
        ranges = ranges or [(row["name"], {**row, "host_s": row["wall_s"]}) for row in every]
        _print_heaviest(screen, "range", ranges, ("calls", "host_s", "device_s"), most)
        kernels = [(row["name"], row) for row in tables.get("nsys_kernels") or []]
        stats = [row for row in tables.get("nsys_stats") or [] if row["kind"] in _KERNELS]
        places = {(row["device"], row["process"]) for row in stats}
        by_name: list[_Named] = [
            (
                f"{row['name']}  {row['device']}, {row['process']}"
                if len(places) > 1
                else row["name"],
                {**row, "device_s": row["total_s"]},
            )
            for row in stats
        ]
        shares = ("share", "mean_s") if by_name and screen.width >= _NARROW else ()
        columns = ("calls", "device_s", *shares)
        _print_heaviest(screen, "kernel", by_name or kernels, columns, most)
        return
    print_modules(screen, report, most, parts=parts)
    calls = ("calls",) if screen.width >= _NARROWEST else ()
    operators = [(row["name"], row) for row in operators_by_name(tables["operators"])]
    _print_heaviest(screen, "operator", operators, (*calls, "self_s", "calibrated_s"), most)
    timed, kind, *_ = function_times(report)
    column = "self_s" if kind.endswith("raw") else "calibrated_s"
    named: list[_Named] = [(_function_name(row), {**row, column: time}) for row, time in timed]
    _print_heaviest(screen, "function", named, (*calls, column), most)


def _print_heaviest(
    screen: Screen, heading: str, named: Iterable[_Named], columns: Sequence[str], most: int
) -> None:
    """Print names with their figures, those with most of the first time in front."""
    heavy = weight(next(key for key in columns if key.endswith("_s")))
    first = sorted(named, key=lambda pair: heavy(pair[1]), reverse=True)[:most]
    _print_rows(screen, heading, first, columns, screen.width - 36)


def _print_rows(
    screen: Screen, heading: str, named: Iterable[_Named], columns: Sequence[str], room: int
) -> None:
    """Print names with their figures after an empty line; nothing where there is no row."""
    rows = [
        [short_name(name, room), *(figure(key, row[key]) for key in columns)] for name, row in named
    ]
    if rows:
        screen.gap()
        screen.table([(heading, "l"), *((label(key), "r") for key in columns)], rows)


def _function_name(row: FunctionRow) -> str:
    name = _METHOD.sub(r"\2.\1", row["name"])
    return name if row["file"] == "~" else f"{name}  {place_words(row['file'], row['line'])}"


def print_modules(screen: Screen, report: Report, most: int, *, parts: bool = True) -> None:
    """Print the heaviest modules by their own time, and the parts of the step outside modules."""
    rows = report["tables"]["modules"]
    median = report["benchmark"]["median_s"]
    inside = [row for row in rows if not row["path"].startswith("(")]
    roots = [row for row in inside if row["depth"] == 0]
    heavy = sorted((row for row in inside if row["depth"]), key=weight("self_s"), reverse=True)
    # A part that this workload has not, as a loss in inference, is no row with nothing in it.
    timed = [row for row in rows if row["forward_s"] or row["backward_s"] or row["self_s"]]
    outside = [row for row in timed if parts and row["path"].startswith("(")]
    wide = screen.width >= _NARROW
    rate = screen.width >= WIDE and any(row["flop_per_s"] is not None for row in inside)
    columns = {
        "forward_s": wide,
        "backward_s": wide and any(row["backward_s"] for row in rows),
        "self_s": True,
        "calibrated_s": True,
        "share": screen.width >= _NARROWEST,
        "FLOP_per_s": rate,
    }
    named: list[_Named] = []
    for row in forward_only([*roots, *heavy[:most], *outside]):
        calibrated = row["calibrated_s"]
        share = f"{100 * calibrated / median:.1f} %" if median and calibrated is not None else None
        named.append((row["path"], {**row, "share": share, "FLOP_per_s": row["flop_per_s"]}))
    room = screen.width - (57 if wide else 32) - 10 * rate
    shown = [key for key, is_shown in columns.items() if is_shown]
    _print_rows(screen, "module", named, shown, room)


# The ranks of a launch: the straggler and so many others.
_OTHER_RANKS = 7


def print_ranks(screen: Screen, report: Report) -> None:
    """Print the latest ranks after an empty line; nothing in the report of one process."""
    facts = report.get("ranks")
    if not facts:
        return
    found = facts["straggler"]
    late = weight("late_s")

    def lateness(row: RankRow) -> tuple[bool, bool, float]:
        is_straggler = found is not None and row["rank"] == found["rank"]
        return is_straggler, row["status"] == "missing", late(row)

    rows = sorted(report["tables"]["ranks"], key=lateness, reverse=True)
    times = ("step_s", "own_s", "waits_s", "late_s") if screen.width >= _NARROW else ("late_s",)
    wide = screen.width >= _NARROWEST
    headings = [(facts.get("kind", "rank"), "r"), *((_TIMES_OF_RANK[key], "r") for key in times)]
    screen.gap()
    screen.table(
        [*headings, *([("largest part", "l"), ("place", "l")] if wide else [])],
        [
            [
                str(row["rank"]),
                *(figure(key, row.get(key)) for key in times),
                *((_part_words(row), _place_of(row)) if wide else ()),
            ]
            for row in rows[: _OTHER_RANKS + 1]
        ],
    )
    if (left := len(rows) - _OTHER_RANKS - 1) > 0:
        screen.line(f"{left} more: profstack show --table ranks")
    screen.gap()


_TIMES_OF_RANK = {"step_s": "step", "own_s": "own", "waits_s": "waits", "late_s": "late"}


def _part_words(row: RankRow) -> str:
    """Return the part that takes more time than on the other ranks; why a rank has no report."""
    if row["status"] == "missing":
        return row["ended"] or row["status"]
    return f"{row['part']} +{format_seconds(row['part_s'])}" if row["part"] else "–"


def _place_of(row: RankRow) -> str:
    return "–" if row["file"] is None else place_words(row["file"], row["line"])


# Highlights ---------------------------------------------------------------------------------


def highlights(report: Report) -> list[str]:
    """Return the lines of a summary, none for a layer that found nothing; names as recorded."""
    lines = (
        _owners(report), _threads(report), _peak(report), _flops(report), _growth(report),
        _startup(report), _outliers(report), nsys_line(report),
    )  # fmt: skip
    return [line for line in lines if line is not None]


def _owners(report: Report) -> str | None:
    """Return how much of the step has an owner, and what has none."""
    sums = report.get("attribution")
    if not sums or sums["owned_share"] is None:
        return None
    words = f"owners: {figure('share', sums['owned_share'])} of a step's time has one"
    rest = [(row["path"], row["share"] or 0.0) for row in sums["unowned"]]
    named = ", ".join(f"{path} {figure('share', share)}" for path, share in rest if share >= 0.0005)
    return words + (f"; not {named}" if named else "")


def _threads(report: Report) -> str | None:
    """Return what the steps' thread did and what no layer saw, or why neither is known."""
    # A report of an older version may lack it.
    facts = cast("Processes | None", report.get("processes"))
    is_profiled = report["benchmark"]["mode"] == "profiled"
    if facts is None or is_profiled or is_import_alone(report) or has_no_step(report):
        return None
    if facts["reason"]:
        return f"threads: not known: {facts['reason']}"
    return f"threads: {'; '.join(facts['sentences'][:2])}" if facts["sentences"] else None


def peak_bytes(report: Report) -> int | None:
    """Return the bytes at the peak of a step, on the device that holds most; None if unknown."""
    return max((held.total_bytes for held in held_at_peak(report)), default=0) or None


def _peak(report: Report) -> str | None:
    """Return the kinds of the bytes at the peak of a step, on the device that holds most."""
    devices, whole = held_at_peak(report), peak_bytes(report)
    if whole is None:
        return None
    most = max(devices, key=lambda held: held.total_bytes)
    large = [(kind, size) for kind, size in most.kinds if size >= 0.01 * whole]
    kinds = [f"{kind} {format_bytes(size)}" for kind, size in large]
    where = f" on {most.device}" if len(devices) > 1 else ""
    # A snapshot that was imported has a history in place of a step.
    step = "" if has_no_step(report) else " of a step"
    words = f"bytes at the peak{step}{where}: {format_bytes(whole)}, {', '.join(kinds[:5])}"
    holders = report["tables"].get("peak_holders") or []
    held = [row for row in holders if row["device"] == most.device and row["bytes"]]
    if not held:
        return words
    first = max(held, key=weight("bytes"))
    module = f" of {first['module']}" if first["module"] else ""
    return f"{words}; the largest holder: {first['kind']}{module}, {format_bytes(first['bytes'])}"


def _flops(report: Report) -> str | None:
    """Return the operations of a step by the counter of record, and those without a formula."""
    record = counter_of_record(report)
    if record is None:
        return None
    words = f"operations: {format_count(record['forward_flop'])} FLOP forward"
    if record["backward_flop"] is not None:
        words += f", {format_count(record['backward_flop'])} backward"
    words += f" per step ({record['counter']})"
    left = [str(row.get("operator")) for row in record["uncounted"] or []]
    return words + (f"; without a formula: {', '.join(left)}" if left else "")


def _growth(report: Report) -> str | None:
    """Return the line over which memory grew most at once."""
    lines = [row for row in report["tables"]["lines"] if row["largest_bytes"]]
    if not lines:
        return None
    line = max(lines, key=weight("largest_bytes"))
    at, source = place_words(line["file"], line["line"]), (line["source"] or "").strip()
    return f"memory: largest growth {format_bytes(line['largest_bytes'])} at {at}  {source}"


def _startup(report: Report) -> str | None:
    """Return the lines of the script that took most of its start-up."""
    lines = sorted(report["tables"]["lines"], key=weight("startup_share"), reverse=True)[:3]
    shares = [
        f"{100 * share:.0f} % {place_words(row['file'], row['line'])}"
        for row in lines
        if (share := row["startup_share"] or 0.0) >= 0.01
    ]
    return f"start-up: {', '.join(shares)}" if shares else None


def _outliers(report: Report) -> str | None:
    """Return how many steps are outliers, and the slowest of them."""
    rows = report["tables"].get("outliers") or []
    if not rows:
        return None
    slowest = max(rows, key=weight("wall_s"))
    count = "1 step" if len(rows) == 1 else f"{len(rows)} steps"
    doing = f": {slowest['doing']}" if slowest["doing"] else ""
    took = format_seconds(slowest["wall_s"])
    return f"out of line: {count}; step {slowest['index']} took {took}{doing}"


# An import of Nsight Systems ----------------------------------------------------------------


def nsys_line(report: Report) -> str | None:
    """Return the content of an import and where the torch layer differs; None without one."""
    facts = report.get("nsys")
    if facts is None:
        return None
    version = f" (nsys {facts['version']})" if facts["version"] else ""
    extent = f"the whole capture ({format_seconds(facts['captured_s'])}, no step range)"
    if facts["steps"]:
        extent = _counted(facts["steps"], "step")
        if (named := facts.get("step_range")) is not None:
            extent += f" (the ranges {named})"
    words = [f"nsys: {extent} of {facts['file']}{version}"]
    steps = report["tables"].get("nsys_steps") or []
    own = (None, facts["process"])
    words += _device_words([row for row in steps if row.get("process") in own])
    modules = report["tables"].get("nsys_modules") or []
    if (why := facts.get("not_compared")) is not None and modules:
        words.append(f"not compared with the torch layer: {why}")
    elif any(row["torch_calls"] for row in modules):
        apart = sum(row["disagreement"] is not None for row in modules)
        verb, of = ("differs from", f"{apart:,} of ") if apart else ("agrees with", "")
        words.append(f"{verb} the torch layer in {of}{_counted(len(modules), 'module')}")
    if facts["missing"]:
        words.append(f"not in the file: {_missing_words(facts['missing'])}")
    if len(read := facts.get("processes") or []) > 1:
        words.append(f"{len(read)} processes side by side")
    if facts["other_processes"]:
        words.append(f"{_counted(facts['other_processes'], 'other process', 'es')} left out")
    return "; ".join(words)


def _missing_words(missing: Mapping[str, str]) -> str:
    """Return the missing parts, those that matter most first."""
    words = [text for name, text in _CAPTURE_PARTS.items() if name in missing]
    words += sorted(name for name in missing if name not in _CAPTURE_PARTS)
    rest = len(words) - _MOST_MISSING
    return ", ".join(words[:_MOST_MISSING]) + (f" and {rest} more" if rest > 0 else "")


def _device_words(steps: Sequence[NsysStepRow]) -> list[str]:
    """Return the median step's kernels, and how long the device was idle in it."""
    known = [row for row in steps if row["kernels"] is not None and row["idle_s"] is not None]
    if not known:
        return []
    # A step has a row for each device: its kernels are those of all of them.
    counts: defaultdict[int | None, float] = defaultdict(float)
    for row in known:
        counts[row["step"]] += row["kernels"] or 0
    devices = len({row["device"] for row in known})
    where = f", on each of {devices} devices" if devices > 1 else ""
    idle = format_seconds(statistics.median(row["idle_s"] or 0.0 for row in known))
    wall = format_seconds(statistics.median(row["wall_s"] or 0.0 for row in known))
    kernels = format_count(statistics.median(counts.values()))
    return [f"{kernels} kernels a step", f"no kernel for {idle} of {wall}{where}"]


def _counted(number: int, word: str, ending: str = "s") -> str:
    return f"{number:,} {word}{'' if number == 1 else ending}"
