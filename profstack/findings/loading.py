"""How long a step loads its data, and what is known of who does it.

What a step waits for is measured in the clean steps: from the end of one step to the first module
call or backward pass of the next. Not all of that is loading (a line that logs stands there too),
so of it counts what torch's DataLoader takes, by the ranges that torch itself puts round it. Where
a step takes several batches, these ranges have the waits after the first one, too.
"""

from __future__ import annotations

from profstack.findings.figures import (
    CallGraph,
    Key,
    Report,
    Row,
    calibrated,
    clean_step_s,
    module_rows,
)
from profstack.findings.overlap import Loading
from profstack.findings.stepcut import wait_alone
from profstack.regions import OUTSIDE, STEP_PARTS, WAIT, ZERO_GRAD

_LOADER_FILE = "torch/utils/data/dataloader.py"
_LOADER_RANGE = "DataLoaderIter.__next__"
# Of a time, as much must be of a kind to call it so.
MOSTLY = 0.5
# Batches per step: above this it takes several, not one and sometimes the end of the loader.
_SEVERAL = 1.5
# With a core lacking for this share of the step, not all that has no CPU waits for something else.
_CROWDED = 0.1


def loading_of(report: Report, step_s: float, share: float) -> Loading | None:
    """What is known of a step's loading, None without a DataLoader.

    `share` is the part of the clean step, in seconds `step_s`, that it waits before its first work.
    """
    wait_s, batches = share * step_s, _batches(report)
    told = report.get("processes") or {}
    workers = int(told.get("workers") or 0)
    several_s = calibrated(report, _range_s(report)) if batches >= _SEVERAL else None
    if several_s is not None and several_s >= wait_s:
        wait_s = load_s = min(several_s, step_s)
    elif (in_loader := _loader_share(report)) is not None:
        load_s = in_loader * wait_s
    else:
        return None
    is_waiting = _is_waiting(report, load_s, step_s)
    # A batch may lie there while nothing lets the step's thread run to fetch it. It waits for it
    # all the same: that is told, and nothing is promised for it.
    no_core_s = _at_median(report, "no_core_s", step_s) or 0.0
    return Loading(
        *(step_s, wait_s, load_s, _at_median(report, "cpu_s", step_s), _cores(report)),
        workers=workers,
        is_waiting=is_waiting,
        is_python=not is_waiting and _is_python(report),
        batches=max(batches, 1.0),
        no_core_s=min(no_core_s, load_s) if workers else 0.0,
    )


def _at_median(report: Report, key: str, step_s: float) -> float | None:
    """One of the times of `processes`, which are of a mean step, at the clean median `step_s`."""
    told = report.get("processes") or {}
    time, mean_s = told.get(key), told.get("step_s")
    return None if time is None or not mean_s else float(time / mean_s * step_s)


def _is_waiting(report: Report, load_s: float, step_s: float) -> bool:
    """Whether who loads mostly waits for something other than a CPU."""
    told = report.get("processes") or {}
    no_core_s = _at_median(report, "no_core_s", step_s) or 0.0
    if told.get("workers"):
        # Where the step's thread lacks a core its workers do, too: that is no disk or network.
        busy = busy_share(report)
        return busy is not None and busy < MOSTLY and no_core_s < _CROWDED * step_s
    idle_s = (_at_median(report, "off_cpu_s", step_s) or 0.0) - no_core_s
    return idle_s > MOSTLY * load_s


def _is_python(report: Report) -> bool:
    """Whether Python code takes most of the loading; so it is taken to be where nobody saw it."""
    graph = CallGraph(report)
    roots = loaders(graph)
    whole = sum(graph.rows[key]["total_s"] for key in roots)
    own = (graph.rows[key] for key in graph.below(roots) if key in graph.rows)
    return bool(sum(row["self_s"] for row in own if row["file"] != "~") >= MOSTLY * whole)


def busy_share(report: Report) -> float | None:
    """How much of a step a worker used a CPU, mean over mean; None where nobody told."""
    told = report["processes"]
    if told["worker_cpu_s"] is None or not told["step_s"]:
        return None
    return float(told["worker_cpu_s"] / (told["workers"] * told["step_s"]))


def _cores(report: Report) -> float:
    """Cores that the process tree may use."""
    environment = report.get("environment") or {}
    names = ("usable_cores", "cpu_limit_cores", "logical_cores")
    known = [float(environment[name]) for name in names if environment.get(name)]
    return min(known, default=1.0)


def wait_share(report: Report) -> float | None:
    """The share of the clean steps that is waiting, as the verdict has it.

    Of quick steps the torch layer tells it.
    """
    counted = set((report.get("benchmark") or {}).get("counted_steps") or ())
    steps = [
        row
        for row in report["tables"].get("steps") or ()
        if row["index"] in counted and row["wait_s"] is not None and row["wall_s"]
    ]
    if steps:
        clean = sum(row["wait_s"] for row in steps) / sum(row["wall_s"] for row in steps)
        parts = [_traced_share(report, name) for name in (WAIT, ZERO_GRAD, OUTSIDE)]
        alone = wait_alone(clean, *parts)
        return float(clean if alone is None else alone)
    step_s = clean_step_s(report)
    row = module_rows(report).get("(wait)") if report["tables"].get("modules") else None
    if step_s is None or row is None or row["calibrated_s"] is None:
        return None
    return float(row["calibrated_s"]) / step_s


def _traced_share(report: Report, part: int) -> float:
    """The share of the torch layer's steps that a part of the step has; 0 where it saw none."""
    step_s = (report.get("attribution") or {}).get("step_s")
    row = module_rows(report).get(STEP_PARTS[part]) if report["tables"].get("modules") else None
    if row is None or row["calibrated_s"] is None or not step_s:
        return 0.0
    return float(row["self_s"] or 0.0) / float(step_s)


def _loader_share(report: Report) -> float | None:
    """The part of the wait in which the DataLoader was asked for a batch; None without one."""
    taken = _range_s(report)
    wait = module_rows(report).get("(wait)")
    if taken is not None and wait is not None and wait["self_s"]:
        return min(taken / float(wait["self_s"]), 1.0)
    rows = [row for row in report["tables"]["functions"] if _is_loader(row)]
    known = [(row, row["calibrated_s"]) for row in rows if row["self_s"] and row["calibrated_s"]]
    step_s, share = clean_step_s(report), wait_share(report)
    if not known or step_s is None or not share:
        return None
    total = max(row["total_s"] * own / row["self_s"] for row, own in known)
    return min(float(total) / (share * step_s), 1.0)


def _batches(report: Report) -> float:
    """Batches that a step takes, by how often the loader was asked; 0 where nothing tells."""
    return sum(row["calls"] or 0.0 for row in loader_ranges(report))


def _range_s(report: Report) -> float | None:
    taken = [row["wall_s"] for row in loader_ranges(report) if row["wall_s"]]
    return float(sum(taken)) if taken else None


def loader_ranges(report: Report) -> list[Row]:
    """The ranges that torch puts round the loader's work."""
    return [
        row
        for row in report["tables"]["regions"]
        if row["source"] == "torch" and _LOADER_RANGE in row["path"]
    ]


def loaders(graph: CallGraph) -> list[Key]:
    """The functions by which a DataLoader is asked for a batch."""
    return [key for key, row in graph.rows.items() if _is_loader(row)]


def _is_loader(row: Row) -> bool:
    file = str(row["file"]).replace("\\", "/")
    in_step = row.get("phase", "step") == "step"
    return in_step and row["name"] == "__next__" and file.endswith(_LOADER_FILE)
