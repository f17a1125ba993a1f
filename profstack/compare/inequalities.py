"""What was not equal on both sides: said before any figure."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple

from profstack.compare.sides import Side
from profstack.privacy import ask_git
from profstack.storage.schema.comparison import Inequality
from profstack.storage.schema.report import Report
from profstack.units import format_count, format_share

# A count differs from this share on; load and waiting for cores from these values on.
_COUNTS_DIFFER = 1e-6
_CALLS_DIFFER = 0.01
_LOAD_DIFFERS = 1.0
_DISTURBED = 0.03
_CLOCKS_DIFFER = 0.03


class _Fact(NamedTuple):
    slug: str
    name: str
    severity: Literal["high", "low"]
    meaning: str
    read: Callable[[Report], object]


def _environment(name: str) -> Callable[[Report], object]:
    return lambda report: report["environment"].get(name)


def _dtypes(report: Report) -> object:
    """Return the types that parameters are of, and that autocast computes in."""
    found = {
        dtype
        for each in report["setup"].get("optimizers") or ()
        for dtype in each.get("dtypes") or ()
    }
    if not found and report["roofline"]:
        points = report["roofline"]["points"]
        found = {str(each["dtype"]) for each in points if each["kind"] == "step" and each["dtype"]}
    calls = report["setup"].get("calls")
    cast = calls.get("autocast") if calls else None
    return " ".join([*sorted(found), *([f"autocast to {cast}"] if cast else [])]) or None


def _optimizers(report: Report) -> object:
    names = [each["name"] for each in report["setup"].get("optimizers") or ()]
    return ", ".join(names) or None


def _arguments(report: Report) -> object:
    return " ".join(report["argv"][1:]) or None


def script_name(report: Report) -> str | None:
    """Return the script without its folder: another checkout of it is the same program."""
    return report["script"] and re.split(r"[/\\]", report["script"])[-1]


_WORK = "the work is not the same"
_MACHINE = "the machine is not the same"
_FACTS = (
    _Fact("script", "script", "high", "these are two programs", script_name),
    _Fact("argv", "arguments", "high", _WORK, _arguments),
    _Fact("status", "state of the recording", "high", "it does not hold the whole run",
          lambda report: report["status"]),
    _Fact("commit", "commit", "low", "the code differs", _environment("commit")),
    _Fact("changed", "uncommitted changes", "low", "a commit alone is not the code that ran",
          _environment("changed")),
    _Fact("device", "device", "high", _MACHINE, _environment("device")),
    _Fact("gpu", "GPU", "high", _MACHINE, _environment("gpu")),
    _Fact("cpu", "processor", "high", _MACHINE, _environment("cpu")),
    _Fact("cores", "usable cores", "high", _MACHINE, _environment("usable_cores")),
    _Fact("threads", "torch's threads", "high", "operators use another number of cores",
          _environment("torch_threads")),
    _Fact("torch", "torch", "high", "operators may be others", _environment("torch")),
    _Fact("python", "Python", "high", "Python itself is faster or slower", _environment("python")),
    _Fact("governor", "CPU governor", "low", "clocks may differ", _environment("cpu_governor")),
    _Fact("batch-size", "batch size", "high", "compare the throughput, not the step",
          lambda report: report["step"]["batch_size"]),
    _Fact("precision", "data type", "high", "operators compute in another precision", _dtypes),
    _Fact("optimizer", "optimizer", "high", _WORK, _optimizers),
    _Fact("phase", "phase", "high", "training and inference do not compare",
          lambda report: report["step"]["phase"]),
    _Fact("steps", "steps of the run", "low", "the whole run does not compare, the step does",
          lambda report: report["step"]["count"]),
)  # fmt: skip


def inequalities(before: Side, after: Side) -> list[Inequality]:
    """Return what differs, the most severe first."""
    found = [
        *_facts(before, after),
        *_folders(before, after),
        *_shapes(before, after),
        *_packages(before, after),
    ]
    found += [*_work(before, after), *_load(before, after)]
    return sorted(found, key=lambda each: each["severity"] != "high")


def _facts(before: Side, after: Side) -> Iterator[Inequality]:
    for fact in _FACTS:
        was, now = (
            list(dict.fromkeys(_words(fact.read(report)) for report in side.reports))
            for side in (before, after)
        )
        # What one side does not know is not known to differ; no argument is one.
        is_known = fact.slug == "argv" or (any(was) and any(now))
        if is_known and set(was) != set(now):
            yield _row(fact.slug, fact.name, fact.severity, fact.meaning, _all(was), _all(now))


def _folders(before: Side, after: Side) -> Iterator[Inequality]:
    """Yield that scripts of one name lie in two folders, unless these are of one repository."""
    was, now = (side.first["script"] for side in (before, after))
    if was is None or now is None or script_name(before.first) != script_name(after.first):
        return
    folders = [os.path.dirname(os.path.expanduser(script)) for script in (was, now)]
    commits = [side.first["environment"].get("commit") for side in (before, after)]
    if folders[0] == folders[1] or (commits[0] is not None and commits[0] == commits[1]):
        return
    if (repository := _repository(folders[0])) is None or repository != _repository(folders[1]):
        meaning = "these may be two programs of one name"
        yield _row(
            "folder", "the script's folder", "low", meaning, *map(os.path.dirname, (was, now))
        )


def _repository(folder: str) -> str | None:
    """Return the repository that a folder is a working tree of; None where that is not known."""
    if not os.path.isabs(folder):
        return None
    found = ask_git(folder, "rev-parse", "--path-format=absolute", "--git-common-dir")
    return found and found.strip()


def _words(value: object) -> str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return None if value is None else str(value)


def _all(values: list[str | None]) -> str | None:
    known = [value for value in values if value is not None]
    return ", ".join(known) or None


def _row(
    slug: str,
    name: str,
    severity: Literal["high", "low"],
    meaning: str,
    before: str | None,
    after: str | None,
) -> Inequality:
    return {
        "slug": slug,
        "text": f"{name}: {before or 'none'} -> {after or 'none'}; {meaning}",
        "before": before,
        "after": after,
        "severity": severity,
    }


def _shapes(before: Side, after: Side) -> Iterator[Inequality]:
    was, now = (side.first["step"]["shapes"][:3] for side in (before, after))
    if was and now and was[0] != now[0]:
        yield _row("shapes", "input shapes", "high", _WORK, was[0], now[0])


def _packages(before: Side, after: Side) -> Iterator[Inequality]:
    was, now = (side.first["environment"].get("packages") for side in (before, after))
    if not isinstance(was, Mapping) or not isinstance(now, Mapping):
        return
    names = [name for name in {**was, **now} if name != "torch" and was.get(name) != now.get(name)]
    if names:
        old, new = (
            ", ".join(f"{name} {versions.get(name) or 'none'}" for name in names)
            for versions in (was, now)
        )
        yield _row("packages", "packages", "low", "other code may run", old, new)


def _work(before: Side, after: Side) -> Iterator[Inequality]:
    """Yield that a step computes other things: its operations, its calls of operators."""
    was, now = (side.figure(step_flop) for side in (before, after))
    if was and now and abs(now - was) > _COUNTS_DIFFER * was:
        meaning = f"a step computes {now / was:.3g} times as much"
        yield _row("flop", "FLOP", "high", meaning, format_count(was), format_count(now))
    was, now = (
        side.figure(lambda report: report["launching"]["operators"]) for side in (before, after)
    )
    if was and now and abs(now - was) > max(_CALLS_DIFFER * was, 1.0):
        meaning = "a step calls other operators"
        row = _row("operators", "operator calls", "low", meaning, f"{was:.0f}", f"{now:.0f}")
        yield row


def step_flop(report: Report) -> float | None:
    """Return the operations of a step, forward and backward; None where they were not counted."""
    for row in report["tables"]["flops"]:
        if row["forward_flop"] is not None:
            return row["forward_flop"] + (row["backward_flop"] or 0.0)
    return None


def _load(before: Side, after: Side) -> Iterator[Inequality]:
    loads = [side.figure(_load_average) for side in (before, after)]
    was, now = loads
    if was is not None and now is not None and abs(now - was) >= _LOAD_DIFFERS:
        meaning = "other programs took the cores at another rate"
        yield _row("load", "load average", "low", meaning, f"{was:.1f}", f"{now:.1f}")
    was, now = (side.figure(waited_share) for side in (before, after))
    if max(was or 0.0, now or 0.0) >= _DISTURBED:
        meaning = "share of the clean steps that waited for a core: the intervals are wider"
        shares = format_share(was), format_share(now)
        yield _row("disturbed", "disturbed", "low", meaning, *shares)
    was, now = (side.figure(_megahertz) for side in (before, after))
    if was and now and abs(now / was - 1.0) >= _CLOCKS_DIFFER:
        yield _row("clocks", "clock", "low", "clocks differ", f"{was:.0f} MHz", f"{now:.0f} MHz")


def _load_average(report: Report) -> float | None:
    found = report["environment"].get("load_average")
    return float(found[0]) if isinstance(found, list) and found else None


def _megahertz(report: Report) -> float | None:
    states = report["benchmark"].get("device_state")
    state = states["after"] if states else None
    devices = state.get("devices") if state else None
    for each in devices if isinstance(devices, list) else ():
        hertz = each.get("sm_hz") if isinstance(each, Mapping) else None
        if isinstance(hertz, (int, float)):
            return float(hertz) / 1e6
    return None


def waited_share(report: Report) -> float | None:
    """Return the share of the clean steps in which their thread waited for a core."""
    found = report["processes"]
    if found["no_core_s"] is None or not found["step_s"]:
        return None
    return found["no_core_s"] / found["step_s"]
