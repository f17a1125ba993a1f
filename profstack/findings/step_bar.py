"""The clean step as one bar whose parts add up to its median.

Of a run on a CPU the bar is the time of the thread that makes the steps, on an accelerator that
of the device; `time_line` says which. A part that is not known is left out, and the rest is a part
of its own, "not attributed". What goes by before a step's first work is a wait for data where
torch's DataLoader was asked for some, and the making of the batch where functions or lines tell so;
what the loop does after the optimizer's step is a part of its own.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from profstack.code_owner import BUILTIN_FILE
from profstack.findings import reading
from profstack.findings.rules import IDLE_SHARE
from profstack.findings.step_cut import Cut, is_io, loading_share
from profstack.storage.schema.report import Report, StepBar, StepBarPart, StepPart
from profstack.storage.schema.rows import FunctionRow, ModuleRow
from profstack.storage.vocabulary import OUTSIDE, STEP_PARTS
from profstack.units import add_up, format_share

# A clean step cut into shares of what its device did: kernels by part of the step, and idle time.
# On an accelerator the host runs ahead, and its own times say little of where a step goes: a step
# is as long as its device takes. Shares are of the time in which the torch layer's slice saw the
# device: busy and idle together are the step, by the tables `launches` and `gaps`.

DEVICE_DATA_WAIT, HOST_LATE, START = "data wait", "host late", "start of step"
# The step parts that are an optimizer's.
OF_OPTIMIZER = ("(optimizer)", "(zero_grad)", "(before the optimizer)")
_COMMUNICATION = re.compile("nccl|rccl", re.IGNORECASE)


@dataclass
class DeviceCut:
    """Shares of a step by the device that is busy longest.

    `data_wait` and `host_late` say for how long it is idle since the host waits for data, or has
    not launched the next kernel yet; `parts` are its kernels and why none ran then.
    `communication` is the part of the busy time in which nothing but collectives can have run.
    """

    data_wait: float
    host_late: float
    parts: Mapping[StepPart, float]
    communication: float
    communication_name: str | None


def device_cut(report: Report) -> DeviceCut | None:
    """Return the cut; None where no kernel was recorded, or too few steps."""
    tables = report["tables"]
    known = [row for row in tables["launches"] if row["device_busy_s"] is not None]
    busy_s = {
        name: reading.total(rows, "device_busy_s") / len(rows)
        for name in dict.fromkeys(row["device"] for row in known)
        if name is not None and (rows := [row for row in known if row["device"] == name])
    }
    device = max(busy_s, key=busy_s.__getitem__, default=None)
    if device is None:
        return None
    rows = [row for row in known if row["device"] == device]
    step_s = busy_s[device] + reading.total(rows, "device_idle_s") / len(rows)
    if step_s <= 0:
        return None
    busy = busy_s[device] / step_s
    gaps = {
        gap["cause"]: (gap["total_s"] or 0.0) / step_s
        for gap in tables["gaps"]
        if gap["device"] == device
    }
    kernels = [row for row in tables["kernels"] if row["device_s"]]
    collectives = [row for row in kernels if _COMMUNICATION.search(row["name"])]
    communicated = reading.total(collectives, "device_s") / step_s
    others = reading.total(kernels, "device_s") / step_s - communicated
    longest = reading.largest(collectives, "device_s")
    waits = min(gaps.get(DEVICE_DATA_WAIT, 0.0), 1 - busy)
    kernel_parts = _kernel_parts(tables["modules"], busy, step_s)
    return DeviceCut(
        waits,
        gaps.get(HOST_LATE, 0.0) + gaps.get(START, 0.0),
        {**kernel_parts, DATA_WAIT: waits, "idle": max(1 - busy - waits, 0.0)},
        min(max(busy - others, 0.0), communicated),
        longest["name"] if longest is not None else None,
    )


def _kernel_parts(
    modules: Sequence[ModuleRow], busy: float, step_s: float
) -> dict[StepPart, float]:
    """Return kernels by part of the step; where streams overlap, scaled to the busy time."""
    parts: dict[StepPart, float] = defaultdict(float)
    for row in modules:
        if row["depth"] == 0:
            parts["backward"] += (row["backward_device_s"] or 0.0) / step_s
            parts[_part_of(row)] += (row["forward_device_s"] or 0.0) / step_s
    known = sum(parts.values())
    if known > busy > 0:
        return {name: share * busy / known for name, share in parts.items()}
    parts["other"] += busy - known
    return dict(parts)


def _part_of(row: ModuleRow) -> StepPart:
    """Return the part of a step that the forward work of a row belongs to."""
    path, kind = row["path"], (row["type"] or "").lower()
    if path in OF_OPTIMIZER:
        return "optimizer"
    if path == "(loss)" or (kind.endswith(("loss", "criterion")) and not row["parameters"]):
        return "loss"
    if path == "(gradient accumulation)":
        return "backward"
    return "other" if path.startswith("(") else "forward"


# Smaller parts are left to the rest: they would only be the rounding of others.
_LEAST = 1e-6
# A rest from this share of the step on is explained.
_LARGE_REST = 0.01
# "other" is explained from this share on, by so many lines.
_LARGE_OTHER = 0.05
_MOST_LINES = 2
REST: StepPart = "not attributed"
DATA_WAIT: StepPart = "data wait"
MAKING: StepPart = "making the batch"
BEFORE: StepPart = "before the model's first call"
AFTER: StepPart = "after the step"
# The parts that a step begins with: one of them.
WAITS = (DATA_WAIT, MAKING, BEFORE)
NO_CLEAN = "there is no clean step whose time could be divided"
# In the order in which a step does them; what is no work of the step comes last.
NAMES: tuple[StepPart, ...] = (
    *WAITS, "forward", "loss", "backward", "optimizer", AFTER, "Python", "I/O", "idle", "other",
)  # fmt: skip


def step_bar(report: Report, cut: Cut | None, device: DeviceCut | None) -> StepBar:
    """Return the bar; without parts, and with a reason, where there is no clean step."""
    if cut is None:
        return {"median_s": None, "time_line": None, "parts": [], "reason": NO_CLEAN, "note": None}
    median_s = cut.median_s
    shares, wait_is = _host_shares(cut), cut.wait_is
    time_line: Literal["host", "device"] = "host"
    sampled = report["watch"]["step_parts"] if report["watch"] and not cut.torch else None
    if device is not None and cut.torch:
        shares, wait_is, time_line = device.parts, "calibrated", "device"
    elif sampled:
        shares = _sampled_shares(cut, sampled)
    links = _links(report, cut, device)
    known = ((name, shares.get(name)) for name in NAMES)
    times = {name: share * median_s for name, share in known if share and share > _LEAST}
    rest = median_s - sum(times.values())
    if abs(rest) > _LEAST * median_s:
        times[REST] = rest
    parts: list[StepBarPart] = [
        {
            "name": name,
            "seconds": seconds,
            "share": seconds / median_s,
            "link": links.get(name),
            "is": wait_is if name in WAITS else "sampled" if sampled else "calibrated",
        }
        for name, seconds in times.items()
    ]
    if parts:
        # What rounding leaves is the last part's.
        exact = add_up([part["seconds"] for part in parts], median_s, rest=-1)
        for part, seconds in zip(parts, exact, strict=True):
            part["seconds"] = seconds
    reason = None
    if sampled:
        reason = f"it is divided by the watch's samples: {cut.torch_reason}"
    elif not cut.torch:
        reason = f"only the time before the model's first call is known: {cut.torch_reason}"
        if cut.wait is None:
            parts, reason = [], f"nothing tells what a step goes to: {cut.torch_reason}"
    elif rest > _LARGE_REST * median_s:
        reason = f"the torch layer's rows leave {100 * rest / median_s:.0f} % without an owner"
    is_explained = cut.torch and time_line == "host" and cut.other >= _LARGE_OTHER
    return {
        "median_s": median_s,
        "time_line": time_line,
        "parts": parts,
        "reason": reason,
        "note": _other_note(report) if is_explained else None,
    }


def align_wait(report: Report) -> None:
    """Give the wait's row among the modules the bar's time: the clean steps know it better."""
    bar, row = report["step_bar"], reading.module_rows(report).get("(wait)")
    if bar is None or bar["time_line"] != "host" or row is None or row["calibrated_s"] is None:
        return
    for part in bar["parts"]:
        if part["name"] in WAITS:
            row["calibrated_s"] = part["seconds"]


def _other_note(report: Report) -> str | None:
    """Return what is in "other": operators outside modules, by the lines that call most of them."""
    times = reading.sums_of(
        (reading.in_words(row), row["operator_s"])
        for row in report["tables"]["module_lines"]
        if row["module"] in (None, STEP_PARTS[OUTSIDE]) and row["operator_s"]
    )
    if not times or report["benchmark"]["target"] is not None:
        return None
    first = sorted(times, key=lambda place: -times[place])[:_MOST_LINES]
    if sum(times[place] for place in first) < sum(times.values()) / 2:
        return None
    places = " and ".join(first)
    return f"other is operators that the script calls outside modules, most at {places}"


def wait_name(cut: Cut) -> StepPart:
    """Return what the time before a step's first work is called."""
    return DATA_WAIT if cut.has_loader else MAKING if cut.makes_batch else BEFORE


def _host_shares(cut: Cut) -> Mapping[StepPart, float | None]:
    wait: dict[StepPart, float | None] = {wait_name(cut): cut.wait}
    if not cut.torch:
        return wait
    return wait | {
        "forward": cut.forward,
        "loss": cut.loss,
        "backward": cut.backward,
        "optimizer": cut.optimizer,
        AFTER: cut.after_step,
        "Python": cut.python,
        "I/O": cut.io,
        "idle": cut.idle,
        "other": cut.other,
    }


def _sampled_shares(cut: Cut, sampled: Mapping[StepPart, float]) -> Mapping[StepPart, float | None]:
    """Return the watch's shares; what comes before the first work is known better, where it is."""
    if cut.wait is None:
        return sampled
    if DATA_WAIT not in sampled:
        # A sampler does not see where a step begins.
        before = min(cut.wait, sampled.get("other", 0.0))
        return {**sampled, wait_name(cut): before, "other": sampled.get("other", 0.0) - before}
    rest = (1 - cut.wait) / ((1 - sampled[DATA_WAIT]) or 1.0)
    return {part: share * rest for part, share in sampled.items()} | {DATA_WAIT: cut.wait}


def _links(report: Report, cut: Cut, device: DeviceCut | None) -> dict[StepPart, str | None]:
    """Return the link to each part's rows; None where it has none."""
    paths = reading.module_rows(report)
    roots = [path for path, row in paths.items() if row["depth"] == 0 and path[0] != "("]
    models = [path for path in roots if paths[path]["parameters"]] or roots
    model = max(models, key=lambda path: paths[path]["forward_s"] or 0.0, default=None)
    losses = [path for path in roots if paths[path]["type"].endswith("Loss")]
    of_model = f"modules/{model}" if model is not None else None
    python, writer = hottest(report), cut.io_time.function or cut.io_time.heaviest
    idle = f"ranges/{cut.communication_name}" if cut.communication else "method/threads"

    def part(path: str) -> str | None:
        return f"modules/{path}" if path in paths else None

    return {
        **dict.fromkeys(WAITS, part("(wait)")),
        AFTER: reading.to_source(cut.after.line) if cut.after is not None else None,
        "forward": of_model,
        "loss": part(losses[0] if losses else "(loss)"),
        "backward": of_model or part("(gradient accumulation)"),
        "optimizer": part("(optimizer)"),
        "Python": reading.to_function(reading.key_of(python)) if python is not None else None,
        "I/O": reading.to_function(reading.key_of(writer)) if writer is not None else None,
        "idle": "ranges/gaps" if device is not None else idle,
        "other": part("(outside modules)"),
        REST: part("(not attributed)"),
    }


def hottest(report: Report) -> FunctionRow | None:
    """Return the function written in Python with the most time of its own, the user's own first.

    What data is loaded by belongs to the wait, and what reads and writes to I/O. A library's
    function comes first only where it has five times as much as the user's first one.
    """
    graph = reading.CallGraph(report)
    loading = loading_share(graph)
    timed = [
        row
        for key, row in graph.rows.items()
        if key.file != BUILTIN_FILE and row["self_s"] and not is_io(row) and loading(key) < 0.5
    ]
    first = reading.largest(timed, "self_s")
    user = reading.largest((row for row in timed if row["own"]), "self_s")
    if first is None or user is None:
        return first
    return first if reading.figure(first, "self_s") > 5 * reading.figure(user, "self_s") else user


# The idle time of the steps' thread, where neither data nor files nor other ranks explain it. How
# long it is comes from the thread's own clock (`step_cut`); here it is given a place: the built-in
# function with most time, and the user's own function that asks for it.

# As much of the time must be in one function to name it.
_MOSTLY = 0.5


def most_unknown(known: Iterable[float], idle: float) -> float:
    """Return the most that an unknown share can be, beside the known ones and the idle one."""
    return max(1 - idle - sum(known), 0.0)


def idle_sentence(
    report: Report, cut: Cut, step: str, idle: float, shares: Collection[float | None]
) -> str | None:
    """Return why the verdict is unclear where the thread is idle for longer than for any cause.

    `idle` is its share of the clean step, `step` names that step, `shares` are the tests'
    measures. None where it is less than `IDLE_SHARE`, than one of them, or than an unknown one can
    be.
    """
    known = [share for share in shares if share is not None]
    unknown = most_unknown(known, idle) if len(known) < len(shares) else 0.0
    if idle < IDLE_SHARE or idle <= max([*known, unknown]):
        return None
    graph, where = reading.CallGraph(report), ""
    built_in = (row for row in graph.rows.values() if row["file"] == BUILTIN_FILE)
    first = reading.largest(built_in, "self_s")
    if first is not None and reading.figure(first, "self_s") >= _MOSTLY * idle * cut.median_s:
        # Without what Python puts round the name of a built-in function.
        name = re.sub(r"^<method '(.+)' of '(.+)' objects>$", r"\2.\1", first["name"])
        where = " in " + re.sub(r"^<built-in method (.+)>$", r"\1", name)
        if caller := graph.own_caller({reading.key_of(first): 1.0}):
            named = reading.qualified_name(report, caller, caller["name"])
            where += f" ({named}, {reading.in_words(caller)})"
    return (
        f"for {format_share(idle)} of {step} its thread is idle{where}, which no wait for "
        "data, for files or for other ranks explains"
    )
