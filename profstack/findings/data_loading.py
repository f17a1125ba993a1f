"""Data loading starves the step: the model waits for its batch.

The wait of a step is measured in the clean steps: from the end of one step to the first module call
or backward pass of the next. Not all of it is loading (a line that logs takes time there too), so
only what torch's DataLoader takes counts, by the ranges that torch itself puts round it. Where a
step takes several batches, these ranges have the waits after the first one, too. Where there is no
DataLoader, the user's own functions outside modules must take most of it. The gain is what
overlapping would save.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from profstack.analysis.functions import COST
from profstack.code_owner import BUILTIN_FILE
from profstack.findings import known_calls, names, reading, rules
from profstack.findings.step_cut import (
    after_step,
    clean_loader,
    clean_wait_share,
    wait_alone,
)
from profstack.storage.reader import Recorded
from profstack.storage.schema.report import Evidence, Finding, Place, Report
from profstack.storage.schema.rows import FunctionRow, LineRow, RegionRow
from profstack.storage.vocabulary import OUTSIDE, STEP_PARTS, WAIT, ZERO_GRAD
from profstack.units import format_seconds

# A step that loads beside its work takes at least its work, at least its share of the loading over
# the workers, and at least all CPU time over the cores that there are: a machine with one core
# gains nothing.

# What a small batch costs on its way from a worker to the step: about 0.1 to 0.3 ms on CPUs of
# the 2020s, for the queue, the shared memory and the threads that wake.
_HANDOVER_S = 0.2e-3
# Where a worker runs Python code all the time, its thread that hands a batch over gets a turn only
# when the interpreter switches threads: Python's own switch interval, 5 ms unless it was set.
_SWITCH_S = 5e-3
# Most workers to advise where they do nothing but wait for disks and networks.
_MOST_WAITING = 16
_IN_USE = "the cores are in use: what cheaper samples would save is not known"


class Loading(NamedTuple):
    """Loading of one step, in seconds per clean step, that of the median."""

    step_s: float
    wait_s: float
    load_s: float
    # CPU time of the process tree (None where it is not known), and the cores it may use.
    cpu_s: float | None
    cores: float
    # DataLoader workers that were alive, and whether loading is mostly no use of a CPU.
    workers: int
    is_waiting: bool
    # Whether making samples mostly is Python code, which holds the interpreter's lock.
    is_python: bool
    # Batches that a step takes: several where it gathers their gradients.
    batches: float = 1.0
    # Part of the loading in which the step's own thread may have lacked a core, with workers alive.
    no_core_s: float = 0.0
    # For how long it lacked one without workers: others, as ranks on the same cores, had them.
    crowded_s: float = 0.0

    @property
    def work_s(self) -> float:
        """The step without its loading; more workers give its thread no core."""
        return max(self.step_s - self.load_s + self.no_core_s, 0.0)

    @property
    def whole_s(self) -> float:
        """All loading of a step, whoever does it."""
        return self.workers * self.step_s if self.workers else self.load_s

    def wanted(self) -> int:
        """Workers with which loading is no longer the longest part, as far as there are cores."""
        most = _MOST_WAITING if self.is_waiting else max(1, int(self.cores))
        return max(1, min(math.ceil(self.whole_s / max(self.work_s, 1e-9)), most))


def gain_of(loading: Loading, count: int) -> tuple[float | None, str | None]:
    """Return what so many workers save of a step, or why that is not known."""
    if loading.workers and count <= loading.workers:
        return None, _IN_USE
    if loading.crowded_s >= _CROWDED * loading.step_s:
        time = format_seconds(loading.crowded_s)
        return None, f"for {time} of a step its thread lacks a core: workers would lack it too"
    cpu_s = loading.step_s if loading.cpu_s is None else loading.cpu_s
    # What workers that are there already cost is a part of the step.
    each = 0.0 if loading.workers else _SWITCH_S if loading.is_python else _HANDOVER_S
    # The step with so many workers cannot be shorter than any of its parts.
    work_s = loading.work_s + loading.batches * each
    gain = loading.step_s - max(work_s, loading.whole_s / count, cpu_s / loading.cores)
    if gain >= reading.WORTH_TELLING * loading.step_s:
        return min(gain, loading.load_s - loading.no_core_s), None
    if loading.cores < 2:
        return None, "with one core nothing can be loaded beside the step"
    if loading.workers:
        return None, _IN_USE
    return None, "handing batches over would take about as long as making them does"


def _rest(loading: Loading, count: int, gain_s: float) -> str | None:
    """Return what keeps the rest of the loading where so many workers save `gain_s` of it."""
    left_s = loading.load_s - gain_s
    if format_seconds(loading.load_s) == format_seconds(gain_s):
        return None
    kept, cpu_s = loading.step_s - gain_s, loading.cpu_s or 0.0
    why = "handing batches over from the workers"
    if loading.no_core_s >= left_s:
        why = "the wait for a core"
    elif cpu_s / loading.cores >= _ALMOST * kept:
        why = f"all CPU time of a step on {loading.cores:g} cores"
    elif loading.whole_s / count >= _ALMOST * kept:
        why = f"making the batches in {count} worker{'s' * (count > 1)}"
    return f"the other {format_seconds(left_s)} of the loading stay: {why}"


# Times as near are the same one.
_ALMOST = 1 - 1e-9
_LOADER_FILE = "torch/utils/data/dataloader.py"
_LOADER_RANGE = "DataLoaderIter.__next__"
# Of a time, as much must be of a kind to call it so.
MOSTLY = 0.5
# Batches per step: above this it takes several, not one and sometimes the end of the loader.
_SEVERAL = 1.5
# With a core lacking for this share of the step, not all that has no CPU waits for something else.
_CROWDED = 0.1


def loading_of(report: Report, step_s: float, share: float) -> Loading | None:
    """Return the loading of a clean step of `step_s` seconds; None without a DataLoader.

    `share` is the part of the step that it waits before its first work.
    """
    wait_s = share * step_s
    # Batches that a step takes, by how often the loader was asked.
    batches = reading.total(loader_ranges(report), "calls")
    workers = int(report["processes"]["workers"] or 0)
    range_s = reading.total(loader_ranges(report), "wall_s") or None
    several_s = reading.calibrated(report, range_s) if batches >= _SEVERAL else None
    if several_s is not None and several_s >= wait_s:
        wait_s = load_s = min(several_s, step_s)
    elif (in_loader := _loader_share(report)) is not None:
        load_s = in_loader * wait_s
    else:
        return None
    # A batch may be ready while nothing lets the step's thread run to fetch it. It waits for it
    # all the same: that counts as loading, and nothing is promised for it.
    no_core_s = _at_median(report, "no_core_s", step_s) or 0.0
    # Whether what loads mostly waits for something other than a CPU. Where the step's thread lacks
    # a core its workers do, too: that is no disk or network.
    idle_s = (_at_median(report, "off_cpu_s", step_s) or 0.0) - no_core_s
    is_waiting = idle_s > MOSTLY * load_s
    if workers:
        busy = busy_share(report)
        is_waiting = busy is not None and busy < MOSTLY and no_core_s < _CROWDED * step_s
    environment = report["environment"]
    names = ("usable_cores", "cpu_limit_cores", "logical_cores")
    cores = [float(str(environment[name])) for name in names if environment.get(name)]
    return Loading(
        step_s,
        wait_s,
        load_s,
        cpu_s=_at_median(report, "cpu_s", step_s),
        cores=min(cores, default=1.0),
        workers=workers,
        is_waiting=is_waiting,
        is_python=not is_waiting and _is_python(report),
        batches=max(batches, 1.0),
        no_core_s=min(no_core_s, load_s) if workers else 0.0,
        crowded_s=0.0 if workers else no_core_s,
    )


def _at_median(
    report: Report, key: Literal["cpu_s", "no_core_s", "off_cpu_s"], step_s: float
) -> float | None:
    """Return a time of `processes`, which is of a mean step, at the clean median `step_s`."""
    time, mean_s = report["processes"][key], report["processes"]["step_s"]
    return None if time is None or not mean_s else time / mean_s * step_s


def _is_python(report: Report) -> bool:
    """Whether Python code takes most of the loading; taken to be so where it was not seen."""
    graph = reading.CallGraph(report)
    roots = loaders(graph)
    whole = reading.total((graph.rows[key] for key in roots), "total_s")
    below = (key for key in graph.below(roots) & graph.rows.keys() if key.file != BUILTIN_FILE)
    return reading.total((graph.rows[key] for key in below), "self_s") >= MOSTLY * whole


def busy_share(report: Report) -> float | None:
    """Return the share of a step in which a worker used a CPU, mean over mean; None if unknown."""
    processes = report["processes"]
    cpu_s, step_s, workers = processes["worker_cpu_s"], processes["step_s"], processes["workers"]
    return None if cpu_s is None or not step_s or not workers else cpu_s / (workers * step_s)


def wait_share(report: Report) -> float | None:
    """Return the share of the clean steps that is waiting, as the verdict has it.

    Of quick steps the torch layer gives it.
    """
    clean, rows = clean_wait_share(report, fewest=1), reading.module_rows(report)
    if clean is not None:
        traced_s = reading.traced_step_s(report)
        # Shares of the torch layer's steps; 0 where they are not known.
        wait, zeroed, outside = (
            reading.figure(rows[name], "self_s") / traced_s
            if traced_s and name in rows and rows[name]["calibrated_s"] is not None
            else 0.0
            for name in (STEP_PARTS[part] for part in (WAIT, ZERO_GRAD, OUTSIDE))
        )
        alone = wait_alone(clean, wait, zeroed, outside)
        return clean if alone is None else alone
    step_s, row = reading.clean_step_s(report), rows.get("(wait)")
    if step_s is None or row is None or row["calibrated_s"] is None:
        return None
    return row["calibrated_s"] / step_s


def _loader_share(report: Report) -> float | None:
    """Return the part of the wait in which the DataLoader was asked for a batch; None without."""
    clean, waited = clean_loader(report, fewest=1), wait_share(report)
    if clean is not None and waited:
        return min(clean.inside / waited, 1.0)
    taken = reading.total(loader_ranges(report), "wall_s")
    wait = reading.module_rows(report).get("(wait)")
    if taken and wait is not None and wait["self_s"]:
        return min(taken / wait["self_s"], 1.0)
    graph = reading.CallGraph(report)
    totals = [
        (row["total_s"] or 0.0) * row["calibrated_s"] / row["self_s"]
        for row in map(graph.rows.__getitem__, loaders(graph))
        if row["self_s"] and row["calibrated_s"]
    ]
    step_s, share = reading.clean_step_s(report), wait_share(report)
    if not totals or step_s is None or not share:
        return None
    return min(max(totals) / (share * step_s), 1.0)


def loader_ranges(report: Report) -> list[RegionRow]:
    """Return the ranges that torch puts round the loader's work."""
    return [
        row
        for row in report["tables"]["regions"]
        if row["source"] == "torch" and _LOADER_RANGE in row["path"]
    ]


def loaders(graph: reading.CallGraph) -> list[reading.FunctionKey]:
    """Return the functions by which a DataLoader is asked for a batch."""
    named = (key for key in graph.rows if key.name == "__next__")
    return [key for key in named if key.file.replace("\\", "/").endswith(_LOADER_FILE)]


# The user's own functions that are called in a step and have nothing to do with the model's work:
# they are neither called by a module, a backward pass or an optimizer, nor call one.

_WORK = ("torch/nn/modules/module.py", "torch/_tensor.py", "torch/optim/", "torch/autograd/")
_WORK_NAMES = ("_call_impl", "_wrapped_call_impl", "backward", "step", "zero_grad", "wrapper")
# What `torch.no_grad()` puts round a function, an optimizer's step as well as the user's own: all
# that is decorated would be called by each other.
_DECORATORS = ("decorate_context",)
# Where else in a step the script's own functions run, outside modules.
_ELSEWHERE = (
    "(compiled functions)", "(loss)", "(before the optimizer)", "(outside modules)",
    "(not attributed)",
)  # fmt: skip
# Times of two layers that are as near are about the same.
_ABOUT = 1.2


class FunctionTime(NamedTuple):
    """A function with its seconds per clean step."""

    row: FunctionRow
    clean_s: float


def before_first_work(report: Report, wait_s: float, slowed: float) -> list[FunctionTime]:
    """Return the outermost such functions that may run in a wait of `wait_s` before the first work.

    A function that took longer under cProfile runs elsewhere; unless profiling slowed its Python,
    by `slowed` at most, and nowhere else in the step is as much time: then it has all the wait.
    Left out is what makes no input since it is called after the optimizer's step. Empty where the
    profiled times could not be calibrated.
    """
    graph = reading.CallGraph(report)
    known = [row for row in graph.rows.values() if row["self_s"] and row["calibrated_s"]]
    first = reading.largest(known, "self_s")
    if first is None:
        return []
    # Clean seconds of a second of the profiled steps.
    ratio = reading.figure(first, "calibrated_s") / reading.figure(first, "self_s")
    # The time of a clean step outside modules, without the wait and torch's own Python, as far as
    # the torch layer, which slows no Python, gives it.
    modules = reading.module_rows(report)
    times = [modules[name]["calibrated_s"] for name in _ELSEWHERE if name in modules]
    elsewhere_s = sum(math.inf if time is None else time for time in times) if times else math.inf
    after = after_step(report)
    found = []
    for key in outermost(graph):
        if after is not None and key in after.functions:
            continue
        clean_s = (graph.rows[key]["total_s"] or 0.0) * ratio
        is_there = elsewhere_s < clean_s / max(slowed, 1.0) <= _ABOUT * wait_s
        if clean_s and (clean_s <= _ABOUT * wait_s or is_there):
            found.append(FunctionTime(graph.rows[key], min(clean_s, wait_s)))
    return sorted(found, key=lambda each: -each.clean_s)


def model_work(graph: reading.CallGraph) -> set[reading.FunctionKey]:
    """Return the functions by which modules, backward passes and optimizers are called."""
    return {
        key
        for key in graph.rows
        if key.name in _WORK_NAMES and any(part in key.file.replace("\\", "/") for part in _WORK)
    }


def outermost(graph: reading.CallGraph) -> list[reading.FunctionKey]:
    """Return the user's own functions beside the model's work that no other such one calls."""
    work = model_work(graph)
    called = graph.below_in_part(work, not_by=_DECORATORS) | work
    own = [key for key, row in graph.rows.items() if row["own"] and key not in called]
    apart = [key for key in own if not graph.below([key]) & work]
    return [key for key in apart if not any(key in graph.below([other]) for other in apart)]


# The functions that a step's loading goes to: first the one to look at, then the longest others.
# What the loader calls has all of the loading, and says nothing by that. The one to look at is the
# deepest of the user's own that still has most of it: all that it calls has less.

# A function with less of the loading is left out.
_LEAST_SHARE = 0.1
_MOST_ROWS = 3
# A line that asks for a batch.
_ASKS = re.compile(r"^\s*(async )?for |\bnext\(")
# Functions that such a line calls without their name.
_OF_LOOPS = ("__iter__", "__next__", "__aiter__", "__anext__")


class LoadingFunction(NamedTuple):
    """A function that loading calls, and its part of the clean step's loading."""

    row: FunctionRow
    # Its name with that of its class, and its part in loading where the loader itself calls it.
    name: str
    share: float
    clean_s: float
    # The user's own function that calls it for longest.
    called_from: str | None
    heaviest_line: LineRow | None

    @property
    def place(self) -> str:
        """The function in words."""
        return f"{self.name}{reading.in_brackets(self.row)}"

    @property
    def evidence(self) -> Evidence:
        """A row of evidence; keys that do not apply are left out."""
        row, line = self.row, self.heaviest_line
        return {
            "function": row["name"],
            **reading.pick(row, "file", "line"),
            **({"called_from": self.called_from} if self.called_from else {}),
            "calls": row["calls"],
            "clean_s": self.clean_s,
            "loading_share": self.share,
            **({"heaviest_line": line["line"], "text": reading.text_of(line)} if line else {}),
            "link": reading.to_function(reading.key_of(row)),
        }


def loading_functions(report: Report, load_s: float) -> list[LoadingFunction]:
    """Return the functions that loading goes to, the one to look at first.

    The user's own by their time with what they call; a library's by its own time where none is the
    user's.
    """
    graph = reading.CallGraph(report)
    roots = loaders(graph)
    whole = reading.total((graph.rows[key] for key in roots), "total_s")
    if not whole:
        return []

    def described(row: FunctionRow, column: str) -> LoadingFunction:
        share = min(reading.figure(row, column) / whole, 1.0)
        # The user's own function that calls it for longest.
        callers = graph.callers_s.get(reading.key_of(row), {}) if row["own"] else {}
        known = (key for key in callers if key in graph.rows and graph.rows[key]["own"])
        caller = max(known, key=lambda key: (callers[key], key), default=None)
        line = _heaviest_line(graph, row)
        name = names.name_in_loading(report, graph, row)
        called_from = caller.name if caller else None
        return LoadingFunction(row, name, share, share * load_s, called_from, line)

    below = [graph.rows[key] for key in graph.below(roots) & graph.rows.keys()]
    own = reading.by_size((row for row in below if row["own"]), "total_s")
    own = [row for row in own if reading.figure(row, "total_s") >= _LEAST_SHARE * whole]
    if not own:
        return [described(row, "self_s") for row in reading.by_size(below, "self_s")[:1]]
    most = {
        reading.key_of(row): row for row in own if reading.figure(row, "total_s") >= MOSTLY * whole
    }
    # Those that call none of the others; the longest where that is not one.
    last = [row for key, row in most.items() if not (graph.below([key]) - {key}) & most.keys()]
    first = reading.largest(last or most.values(), "total_s") or own[0]
    rows = [first, *(row for row in own if row is not first)][:_MOST_ROWS]
    return [described(row, "total_s") for row in rows]


def most_of_it(functions: Sequence[LoadingFunction]) -> str:
    """Say which function the loading goes to."""
    first, *others = functions
    much = "Most" if first.share >= MOSTLY else "The longest part"
    words = f"{much} of the loading is {first.place}"
    if first.called_from is not None:
        words += f", called from {first.called_from}"
    called = next((each for each in others if each.called_from == first.row["name"]), None)
    if called is not None and first.heaviest_line is None:
        words += f"; the longest of what that calls is {called.place}"
    return f"{words}."


def _heaviest_line(graph: reading.CallGraph, row: FunctionRow) -> LineRow | None:
    """Return the heaviest line of a function of the user's, where all its lines were followed.

    Lines have no time of the user's functions that they call: where these have most of the
    function's, a line would be blamed for theirs.
    """
    key, most_s = reading.key_of(row), (1 - MOSTLY) * reading.figure(row, "total_s")
    if not row["own"] or _in_others_s(graph, key) > most_s:
        return None
    line = graph.heaviest_line(key)
    return line if line is not None and reading.line_s(line) else None


def _in_others_s(graph: reading.CallGraph, key: reading.FunctionKey) -> float:
    """Return the time in others of the user's, called by a function or through a library."""
    waiting, seen, total = [key], {key}, 0.0
    while waiting:
        for callee, edge in graph.callees.get(waiting.pop(), ()):
            row = graph.rows.get(callee)
            if row is None or callee == key:
                continue
            if row["own"]:
                total += edge["total_s"] or 0.0
            elif callee not in seen:
                seen.add(callee)
                waiting.append(callee)
    return total


@reading.family
def data_starved(recorded: Recorded, report: Report, step_s: float) -> Iterator[Finding]:
    """Yield a finding where the wait for data is a quarter of the clean step or more."""
    share, least = wait_share(report), rules.DATA_STARVED.threshold
    if share is None:
        return
    loading = loading_of(report, step_s, share)
    if loading is not None:
        if loading.load_s >= least * step_s:
            yield _with_loader(report, loading)
    elif share >= least:
        yield from _without_loader(report, step_s, share * step_s, slowed_by(recorded))


# Workers that save less of the loading are no remedy.
_WORTH_WORKERS = 0.2


def _with_loader(report: Report, loading: Loading) -> Finding:
    """Return the finding on a DataLoader: without workers, or with too few or too slow ones."""
    gain, reason = gain_of(loading, loading.wanted())
    wait: Evidence = {
        "loading_s": loading.load_s,
        "step_share": loading.load_s / loading.step_s,
        "wait_before_work_s": loading.wait_s,
        "cores": loading.cores,
        "link": "modules/(wait)",
    }
    if loading.no_core_s:
        wait["waited_for_core_s"] = loading.no_core_s
    if (cpu_s := report["processes"]["cpu_s"]) is not None:
        wait["mean_cpu_s"] = cpu_s
    wait["workers"] = loading.workers
    # The longest line on which a loader is asked for its next batch.
    asks = max(reading.own_lines(report, _ASKS), key=reading.line_s, default=None)
    place: Place | None = asks
    if loading.workers:
        if (busy := busy_share(report)) is not None:
            worker_cpu_s = report["processes"]["worker_cpu_s"]
            wait |= {"mean_worker_cpu_s": worker_cpu_s, "worker_busy_share": busy}
        rows = [reading.line_evidence(asks)] if asks else []
        advice = _advice_on_workers(loading, gain, " and ".join(names.parts_by_text(report)))
    else:
        functions = loading_functions(report, loading.load_s)
        little = None
        if gain is not None and gain < _WORTH_WORKERS * loading.load_s:
            little = _rest(loading, loading.wanted(), gain) or ""
            gain, reason = None, "how much cheaper samples can be made is not known"
        place = next((each.row for each in functions if each.row["own"]), None)
        rows = [each.evidence for each in functions]
        advice = _advice(loading, functions, gain, little)
        if functions and functions[0].row["own"]:
            slow = known_calls.hint(report, functions[0].heaviest_line or functions[0].row)
            advice = f"{advice} {slow}".rstrip()
    if gain:
        # Its options are the remedy.
        made = names.made_at(report, "DataLoader", reading.text_of(asks) if asks else "")
        place = made or place
    # The time of these ranges is the loading, which the clean steps know better.
    ranges: list[Evidence] = [
        {"range": row["path"], "calls": row["calls"], "link": f"ranges/{row['path']}"}
        for row in loader_ranges(report)[:1]
    ]
    seen = {layer["name"] for layer in report["layers"] if layer["status"] == "recorded"}
    graph = reading.CallGraph(report)
    outermost = names.outermost_loading(report, graph, loaders(graph))
    where = f": most of it is {outermost[1]}" if outermost and outermost[2] >= MOSTLY else ""
    return reading.finding(
        rules.DATA_STARVED,
        f"Data loading takes {100 * loading.load_s / loading.step_s:.0f} % of a step, and the "
        f"model waits for it{where}",
        severity=reading.severity_of(loading.load_s, loading.step_s),
        gain_s=gain,
        gain_reason=reason,
        rest=None if gain is None else _rest(loading, loading.wanted(), gain),
        place=place,
        layers=seen & {"torch", "cprofile"},
        evidence=[wait, *ranges, *rows],
        advice=advice,
    )


def _advice_on_workers(loading: Loading, gain: float | None, parts: str) -> str:
    who = "The one DataLoader worker makes"
    if loading.workers > 1:
        who = f"The {loading.workers} DataLoader workers make"
    words = f"{who} batches more slowly than the step takes them"
    is_crowded = loading.no_core_s > MOSTLY * loading.load_s
    if is_crowded:
        words = (
            f"For up to {format_seconds(loading.no_core_s)} of the "
            f"{format_seconds(loading.load_s)} that a step waits for its batch, its thread could "
            "run and had no core: the workers and other programs had them all"
        )
    elif loading.is_waiting:
        words += ", and its CPU time says that it mostly waits (for files, a network, or a core)"
    if gain is not None:
        words += f". Try num_workers={loading.wanted()} with persistent_workers=True"
        if loading.is_waiting:
            words += ", or hold the data in memory"
    elif is_crowded:
        words += ". If no other program ran, only cheaper samples help"
    else:
        words += f". All {loading.cores:g} cores have work: only cheaper samples help"
    return (
        f"{words}. No layer looks into workers{f', which run {parts}' * bool(parts)}: one run with "
        "num_workers=0 names the functions and lines that make the samples."
    )


def _advice(
    loading: Loading,
    functions: Sequence[LoadingFunction],
    gain: float | None,
    little: str | None,
) -> str:
    """Return what to do without workers; `little` says why they would save little, None if not."""
    words = ""
    if gain:
        words = (
            f"With num_workers={loading.wanted()}, persistent_workers=True the DataLoader makes "
            "the next batches while the model works on this one. "
        )
    elif loading.cores < 2:
        words += "There is one core: workers would take it from the step. "
    elif little is not None:
        words += f"Workers would save little of it{': ' * bool(little)}{little}. "
    if functions and "collate" in f"{functions[0].place} {functions[0].called_from}":
        words += "Collate whole tensors at once (torch.stack, torch.cat) without Python loops. "
    other = "Else make" if gain or "Collate whole" in words else "Make"
    return (
        f"{words}{other} samples cheaper: decode and transform once and keep the result (in "
        "memory or in a file of tensors), or work on whole batches instead of sample after sample."
        + (f" {most_of_it(functions)}" if functions else "")
    )


def _without_loader(
    report: Report, step_s: float, wait_s: float, slowed: float
) -> Iterator[Finding]:
    """Yield the finding on a script that makes its batches itself, where its functions show it."""
    functions = batch_makers(report, wait_s, slowed)
    if sum(each.clean_s for each in functions) < rules.DATA_STARVED.threshold * step_s:
        return
    first, share = functions[0], wait_s / step_s
    name = reading.qualified_name(report, first.row, first.row["name"])
    region = names.region_of(report, first.row, wait_s)
    where = name if region is None else f"region '{region[0]}'"
    yield reading.finding(
        rules.DATA_STARVED,
        f"Making its batch takes {100 * share:.0f} % of a step, most of it in {where}",
        severity=reading.severity_of(wait_s, step_s),
        gain_reason="nothing tells whether this can be done beside the step: it runs on the step's "
        "own thread",
        place=first.row,
        layers=["cprofile"],
        evidence=[
            {"wait_before_work_s": wait_s, "step_share": share, "link": "modules/(wait)"},
            *(
                {
                    "function": row["name"],
                    **reading.pick(row, "file", "line", "calls"),
                    "clean_s": clean_s,
                    "link": reading.to_function(reading.key_of(row)),
                }
                for row, clean_s in functions[:_MOST_ROWS]
            ),
        ],
        advice=f"{name}{reading.in_brackets(first.row)} takes {format_seconds(first.clean_s)} of a "
        f"step of {format_seconds(step_s)}. If it makes the batch, put it into a "
        "torch.utils.data.Dataset and let a DataLoader with num_workers make batches while the "
        "model works; else make it cheaper or rarer.",
    )


def batch_makers(report: Report, wait_s: float, slowed: float) -> list[FunctionTime]:
    """Return the functions that make the batches of a script without a DataLoader, the longest
    first; empty where most of the wait is not theirs.
    """
    graph = reading.CallGraph(report)
    functions = [
        each
        for each in before_first_work(report, wait_s, slowed)
        if _is_taken(report, graph, reading.key_of(each.row))
    ]
    return functions if sum(each.clean_s for each in functions) >= MOSTLY * wait_s else []


def slowed_by(recorded: Recorded) -> float:
    """Return by what factor cProfile slowed plain Python at most; 1 where that is not known."""
    return float((recorded.facts.get(COST) or {}).get("bytecode_factor", 1.0))


def _is_taken(report: Report, graph: reading.CallGraph, key: reading.FunctionKey) -> bool:
    """Whether a line of the user's takes what a function gives.

    One that gives nothing, or what is added to a sum, loads nothing. A loop calls its iterator
    without its name.
    """
    texts = [line["source"] or "" for line in report["tables"]["lines"]]
    yields = any(re.search(r"\byield\b", line["source"] or "") for line in graph.lines_of(key))
    if key.name in _OF_LOOPS or yields:
        return any(_ASKS.search(text) for text in texts)
    taken = re.compile(rf"(?:[\w\s\]),]=(?!=)|\bin\b).*?\b{re.escape(key.name)}\(")
    return any(taken.search(text) for text in texts)
