"""Forced synchronisation, and copies from host to device.

On an accelerator the host stops until all queued work is done, and the device then has nothing to
do until the host has launched more: what counts is the time in which the device was idle after
such a wait, which the torch layer's gaps give. On the CPU there is no queue to wait for: there the
cost is the calls themselves, which is nothing for one `.item()` in a step and much for one per
element, or for a tensor that is printed with every step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from profstack.analysis.functions import PROFILED
from profstack.findings import reading, rules
from profstack.storage.reader import Recorded, known_sum
from profstack.storage.schema.report import Evidence, Finding, Report
from profstack.storage.schema.rows import GapRow, KernelRow, LineRow, OperatorRow
from profstack.units import format_count, format_seconds

_MOST_ROWS = 4

# Values that Python asks tensors for.

# Values asked for in a step from which it is a loop over elements, and no logging of losses.
_LOOP = 8
# Operators that hand a value to Python, and on a device wait for it.
_ITEM = "aten::item"
_READS = (_ITEM, "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero")
_ASKS = re.compile(r"\bitem\b|\btolist\(|\b(?:float|int|bool)\(|^\s*(?:if|elif|while|assert)\b")
_ASKS_DEVICE = re.compile(
    _ASKS.pattern + r"|\.(?:cpu|numpy|nonzero)\(|\bprint\(|\.to\(\s*[\"']cpu|synchronize\("
)
# What asks for one value, by its text.
_VALUES = re.compile(r"\.item\(|\b(?:float|int|bool)\(")
# A line that holds a whole loop: how often it runs does not say how often that does.
_ALL_IN_ONE = re.compile(r"\s*(?!(?:async\s+)?for\b)\S.*(?:\bfor\b.*\bin\b|\b(?:map|filter)\()")
_PRINTS = re.compile(r"\bprint\(|\b(?:str|repr|format)\(|\bf[\"']|\blog|\.(?:write|info|debug)\(")
_PRINTER_FILE, _PRINTER = "torch/_tensor_str.py", "_str"
_ALONE = "the calls alone, without the loop round them"
_NEEDED = "a run of the loop needs what the one before has made: what else it does would stay"


@reading.family
def forced_synchronisation(recorded: Recorded, report: Report, step_s: float) -> Iterator[Finding]:
    """Yield a finding on waits for values, and one on tensors that are printed in each step."""
    if reading.on_accelerator(report):
        yield from _on_device(report, step_s)
    else:
        yield from _items(recorded, report, step_s)
        yield from _printing(recorded, report, step_s)


def _items(recorded: Recorded, report: Report, step_s: float) -> Iterator[Finding]:
    """Yield the finding on values that are asked for one after the other, on the CPU."""
    lines = _working_lines(report, _ASKS)
    loops = [row for row in lines if (row["calls"] or _LOOP) >= _LOOP]
    loops = [row for row in loops if "item" in reading.text_of(row)] or loops
    site = max(loops or lines, key=reading.line_s, default=None)
    count = 0.0 if site is None else _asked(report, site)
    if site is None or count < _LOOP:
        return
    graph = reading.CallGraph(report)
    around = graph.function_around(site)
    cost, how, reason = _cost_of_loop(recorded, report, graph, site)
    if cost is None or cost < rules.FORCED_SYNCHRONISATION.threshold * step_s:
        return
    functions: list[Evidence] = []
    if around is not None:
        link, calls = reading.to_function(around), graph.rows[around]["calls"]
        functions = [{"function": around.name, "calls": calls, "link": link}]
    yield reading.finding(
        rules.FORCED_SYNCHRONISATION,
        f"{format_count(count)} values are taken out of tensors one by one in every step"
        f"{reading.in_brackets(site)}",
        severity=reading.severity_of(cost, step_s),
        gain_s=None if reason else min(cost, step_s),
        gain_reason=reason,
        place=site,
        layers=["torch", *(["cprofile"] if around else [])],
        evidence=[
            {
                "values_per_step": count,
                "cost_s": cost,
                "cost_is": how,
                "step_share": min(cost / step_s, 1.0),
            },
            reading.line_evidence(site, "calls", "operator_s"),
            *_operator_evidence(report, (_ITEM,)),
            *functions,
        ],
        advice=f"Work on the whole tensor ((scores.argmax(1) == labels).sum()) and ask for one "
        f"value at the end, or take all of them at once with .tolist(). On the CPU the cost is "
        f"the calls themselves, {format_seconds(cost / count)} for each value; on a GPU each one "
        "would also wait for everything that was launched before it.",
    )


def _asked(report: Report, site: LineRow) -> float:
    """Return the values per step that the loop round a line asks tensors for, by its lines.

    No more than were asked for outside the optimizer, which asks for its own counts of steps.
    """
    rows = [row for row in _operators(report, _ITEM) if row["module"] != "(optimizer)"]
    loop = loop_lines(report, site)
    if site["calls"] is None or any(_ALL_IN_ONE.match(reading.text_of(row)) for row in loop):
        return reading.total(rows, "calls")
    in_loop = sum(
        reading.figure(row, "calls") * len(_VALUES.findall(reading.text_of(row))) for row in loop
    )
    return min(reading.total(rows, "calls"), in_loop or site["calls"])


def _cost_of_loop(
    recorded: Recorded, report: Report, graph: reading.CallGraph, site: LineRow
) -> tuple[float | None, str, str | None]:
    """Return the cost per step of a line's loop, how it is known, and why there is no gain."""
    asks = [key for key in graph.rows if re.search(r"'(?:item|tolist)' of 'torch", key.name)]
    if calls_the_model(report, site):
        # One value for each call of a model is next to nothing beside that call.
        return None, _ALONE, None
    if is_carried(report, site):
        calls = reading.total((graph.rows[key] for key in asks), "calls")
        least = clean_s_of(recorded, report, graph, asks)
        part = min(_asked(report, site) / calls, 1.0) if calls else 0.0
        return None if least is None else least * part, _ALONE, _NEEDED
    functions = _functions_of_loop(graph, site, asks)
    if (cost := clean_s_of(recorded, report, graph, functions)) is not None:
        return cost, "the function's own time and its calls, without cProfile's cost", None
    if (cost := line_costs(recorded, report, site)) is not None:
        return cost, "the share of the loop's lines in the steps with traced lines", None
    why = "the loop ran too many lines for them to be timed: in a function of its own it would be"
    return clean_s_of(recorded, report, graph, asks), _ALONE, why


def _functions_of_loop(
    graph: reading.CallGraph, site: LineRow, asks: Sequence[reading.FunctionKey]
) -> set[reading.FunctionKey]:
    """Return the function with a loop and what its time is in; none where it calls a model."""
    around = graph.function_around(site)
    below = graph.below([around] if around else [])
    if around is None or any(key.name == "_call_impl" for key in below & graph.rows.keys()):
        return set()
    # Comprehensions and the like are functions of their own.
    loops = {around} | {
        key
        for key in below
        if key.file == around.file and key.line >= around.line and key.name.startswith("<")
    }
    called = {callee for key in loops for callee, _ in graph.callees.get(key, ())}
    # To go through a tensor makes a tensor of each element first.
    begun = {key for key in called if key.name == "__iter__" and key.file.endswith("_tensor.py")}
    called |= {callee for key in begun for callee, _ in graph.callees.get(key, ())}
    beside = {key for key in called if key in asks or "unbind" in key.name} | begun
    return loops | beside


def _printing(recorded: Recorded, report: Report, step_s: float) -> Iterator[Finding]:
    """Yield the finding on tensors that are turned into text with every step."""
    graph = reading.CallGraph(report)
    printers = [
        key
        for key in graph.rows
        if key.name == _PRINTER and key.file.replace("\\", "/").endswith(_PRINTER_FILE)
    ]
    # What they call is called by nothing else in most steps: it is all of it the printing's.
    cost = clean_s_of(recorded, report, graph, graph.below(printers) | set(printers))
    if cost is None or cost < rules.FORCED_SYNCHRONISATION.threshold * step_s:
        return
    site = max(_working_lines(report, _PRINTS), key=reading.line_s, default=None)
    yield reading.finding(
        rules.FORCED_SYNCHRONISATION,
        f"A tensor is printed or turned into text in the steps{reading.in_brackets(site)}",
        severity=reading.severity_of(cost, step_s),
        gain_s=min(cost, step_s),
        place=site,
        layers=["cprofile", *(["torch"] if site else [])],
        evidence=[
            {
                "function": _PRINTER,
                "calls": graph.rows[printers[0]]["calls"],
                "cost_s": cost,
                "link": reading.to_function(printers[0]),
            },
            *([reading.line_evidence(site, "calls", "operator_s")] if site else []),
        ],
        advice=f"Turning tensors into text takes {format_seconds(cost)} of a step of "
        f"{format_seconds(step_s)}: every element that is shown is asked for by itself. Log "
        "loss.item() or a mean, and only every so many steps. On a GPU it would also wait for "
        "everything that was launched before it.",
    )


def _on_device(report: Report, step_s: float) -> Iterator[Finding]:
    """Yield the finding on a device that is idle after the host waited for a value."""
    gaps, cost = reading.gaps_by(report, "synchronisation")
    if cost is None or cost < rules.FORCED_SYNCHRONISATION.threshold * step_s:
        return
    # Where the host waits, time inside operators is long and what they launch is little.
    lines = reading.by_size(_working_lines(report, _ASKS_DEVICE), "operator_s")[:_MOST_ROWS]
    site = lines[0] if lines else None
    yield reading.finding(
        rules.FORCED_SYNCHRONISATION,
        f"The host waits for values, and the device is idle after it{reading.in_brackets(site)}",
        severity=reading.severity_of(cost, step_s),
        gain_s=min(cost, step_s),
        place=site,
        layers=["torch"],
        evidence=[
            *(_gap_evidence(report, row, after=row["after"]) for row in gaps),
            *_operator_evidence(report, _READS),
            *(reading.line_evidence(row, "calls", "operator_s") for row in lines),
        ],
        advice="Each .item(), .cpu(), .tolist(), bool(tensor), nonzero() or printed tensor waits "
        "until the device has done everything launched before it. Keep values on the device "
        "(sum losses there), ask for them every so many steps, use torch.where instead of if, "
        "and copy with non_blocking=True.",
    )


# Loops of the script, as far as the counts and the texts of their lines show them.

# Names that a line sets, and what it sets them to; a sum, whose parts do not need it.
_ASSIGNS = re.compile(r"\s*([A-Za-z_]\w*(?:\s*,\s*[A-Za-z_]\w*)*)\s*=(?!=)(.*)")
_ADDS = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:[-+]=|=\s*\1\s*[-+])(.*)")
_NAMES = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
# Lines of one loop run about equally often.
_ABOUT = 2.0


def loop_lines(report: Report, site: LineRow) -> list[LineRow]:
    """Return the lines next to this one that run about as often, itself included."""
    rows = {row["line"]: row for row in report["tables"]["lines"] if row["file"] == site["file"]}
    calls = site["calls"] or 0.0
    found = [site]
    for way in (-1, 1) if calls >= 2 else ():
        at = site["line"] + way
        while at in rows and 1 / _ABOUT <= (rows[at]["calls"] or 0.0) / calls <= _ABOUT:
            found.append(rows[at])
            at += way
    return found


def has_carried_name(rows: Iterable[LineRow]) -> bool:
    """Whether lines of a loop, by their text, read a name before they set it.

    Such a name carries a value from one run to the next. A sum does not count, unless something
    else reads it in the loop.
    """
    reads: list[tuple[set[str], set[str]]] = []
    targets: set[str] = set()
    for row in sorted(rows, key=lambda row: row["line"]):
        for statement in reading.text_of(row).split("#")[0].split(";"):
            if statement.lstrip().startswith("for ") or _is_comprehension(statement):
                continue
            match = _ADDS.match(statement) or _ASSIGNS.match(statement)
            names, text = match.groups() if match else ("", statement)
            made = set(_NAMES.findall(names))
            targets |= made
            is_sum = match is not None and match.re is _ADDS
            reads.append((set(_NAMES.findall(text)), set() if is_sum else made))
    held: set[str] = set()
    for read, made in reads:
        if read & (targets - held):
            return True
        held |= made
    return False


def _is_comprehension(statement: str) -> bool:
    """Whether a statement holds a whole loop: what it sets is set after the last run."""
    return _ALL_IN_ONE.match(statement) is not None and ":=" not in statement


def is_carried(report: Report, site: LineRow) -> bool:
    """Whether the loop that a line runs in carries a value from one run to the next, by its text.

    A line may be in a function that each run calls: its names are new in each call, and the lines
    that run as often outside it tell.
    """
    graph, calls = reading.CallGraph(report), site["calls"] or 0.0
    waiting, known = [site], set[reading.FunctionKey]()
    while waiting:
        line = waiting.pop()
        key = graph.function_around(line)
        if key is None or (graph.rows[key]["calls"] or 0.0) * _ABOUT < calls:
            if has_carried_name(loop_lines(report, line)):
                return True
        elif key not in known:
            known.add(key)
            waiting += [
                row
                for row in report["tables"]["lines"]
                if row["own"] and calls / _ABOUT <= (row["calls"] or 0.0) <= calls * _ABOUT
                if graph.function_around(row) not in known
            ]
    return False


def calls_the_model(report: Report, site: LineRow) -> bool:
    """Whether a model of the script's is called about as often as a line runs, or oftener.

    Where the line's runs were not counted, or the whole loop is in it, a model that is called more
    than once may be in that loop.
    """
    least = max((site["calls"] or 0.0) / _ABOUT, 2.0)
    return any(
        row["depth"] == 0 and not row["path"].startswith("(") and (row["calls"] or 0.0) >= least
        for row in report["tables"]["modules"]
    )


# Calls in clean time, where the tools that saw them slowed them down. cProfile's own cost per call
# was measured in the process that was profiled: it is taken off, both of these calls and of the
# whole step, and what is left is their share of the clean step. The cost of tracing lines is not
# known: there it is the plain share of the slice's steps.


def clean_s_of(
    recorded: Recorded,
    report: Report,
    graph: reading.CallGraph,
    keys: Iterable[reading.FunctionKey],
) -> float | None:
    """Return clean seconds per step of these functions' own time together.

    None where there are none, or cProfile's cost is not known.
    """
    profiled, step_s = recorded.select("cprofile", PROFILED), reading.clean_step_s(report)
    known = [graph.rows[key] for key in dict.fromkeys(keys) if key in graph.rows]
    times = [row["corrected_self_s"] for row in known]
    own_s = sum(time or 0.0 for time in times)
    if profiled is None or not profiled.steps or step_s is None or not times or None in times:
        return None
    cost_s = sum(
        (row["self_s"] or 0.0) - row["corrected_self_s"]
        for row in graph.rows.values()
        if row["corrected_self_s"] is not None
    )
    whole = profiled.wall_s / profiled.steps - cost_s
    return min(own_s / whole, 1.0) * step_s if whole > 0 else None


def line_costs(recorded: Recorded, report: Report, site: LineRow) -> float | None:
    """Return clean seconds per step of the loop that a line is in: its share of the traced steps.

    The lines of the loop are the neighbours that run about as often. None where lines were not
    followed to their end.
    """
    traced, step_s = recorded.select("torch", (("lines",),)), reading.clean_step_s(report)
    if site["calls"] is None or traced is None or not traced.steps or step_s is None:
        return None
    # The lines' times are without the tracing of them, of which the steps' wall time is full.
    seen = reading.total(report["tables"]["module_lines"], "python_s")
    seen += reading.total(report["tables"]["module_lines"], "operator_s")
    whole = min(traced.wall_s / traced.steps, seen) or traced.wall_s / traced.steps
    return float(min(sum(map(reading.line_s, loop_lines(report, site))) / whole, 1.0) * step_s)


# Copies from the host to the device inside the step. The device's own records of a copy say which
# kind of memory it came from. A copy from pageable memory holds up the host as well, which then
# launches nothing; one from pinned memory can go on beside the kernels if `non_blocking=True` asks
# for it. A copy costs the time in which the device had nothing else to do, which the gaps give.

# As CUDA's and ROCm's tools name them.
_TO_DEVICE = re.compile(r"memcpy.*(?:HtoD|HostToDevice)", re.IGNORECASE)
_MEMORY = re.compile("pageable|pinned", re.IGNORECASE)
_COPIES = re.compile(r"\.(?:to|cuda|copy_|type)\(|\btorch\.(?:tensor|as_tensor|from_numpy)\(")
_OPERATORS = ("aten::_to_copy", "aten::copy_")
# What to do about copies from each kind of memory.
_COPY_ADVICE = {
    "pageable": "From pageable memory a copy holds up the host until it is done: give the "
    "DataLoader pin_memory=True (or call pin_memory() once) and copy with .to(device, "
    "non_blocking=True). ",
    "pinned": "What is pinned already is copied beside the kernels only with non_blocking=True, "
    "and best a step ahead of its use. ",
}


@reading.family
def host_to_device_copies(recorded: Recorded, report: Report, step_s: float) -> Iterator[Finding]:
    """Yield the finding where copies to the device take a good part of the clean step."""
    copies = [row for row in report["tables"]["kernels"] if _TO_DEVICE.search(row["name"])]
    taken = reading.calibrated(report, reading.total(copies, "device_s"))
    if not copies or taken is None:
        return
    gaps, seen_s = reading.gaps_by(report, "copy")
    idle = None if seen_s is None or not gaps else min(seen_s, step_s)
    cost = taken if idle is None else idle
    if cost < rules.HOST_TO_DEVICE_COPY.threshold * step_s:
        return
    kinds = set(map(_memory_of, copies))
    lines = sorted(_working_lines(report, _COPIES), key=reading.line_s, reverse=True)[:_MOST_ROWS]
    site = lines[0] if lines else None
    kind = next((each for each in ("pageable", "pinned") if each in kinds), "host")
    yield reading.finding(
        rules.HOST_TO_DEVICE_COPY,
        f"Steps copy from {kind} memory to the device{reading.in_brackets(site)}",
        severity=reading.severity_of(cost, step_s),
        gain_s=idle,
        gain_reason="the device was not seen idle for it: the copies may run beside kernels",
        place=site,
        module=reading.by_size(copies, "device_s")[0]["module"],
        layers=["torch"],
        evidence=[
            *map(_copy_evidence, copies[:_MOST_ROWS]),
            *_copying_operators(report, copies),
            *(_gap_evidence(report, row) for row in gaps),
            *(reading.line_evidence(row, "operator_s", "device_s") for row in lines),
        ],
        advice="".join(words for memory, words in _COPY_ADVICE.items() if memory in kinds)
        + "What is the same in every step (masks, positions, weights) belongs on the device once, "
        "before the loop; what is computed from nothing is best created there "
        "(torch.zeros(..., device=device)).",
    )


def _memory_of(copy: KernelRow) -> str:
    """Return the kind of host memory that a copy reads."""
    match = _MEMORY.search(copy["name"])
    return match[0].lower() if match else "unknown"


def _copy_evidence(row: KernelRow) -> Evidence:
    memory = _memory_of(row)
    return {
        "copy": row["name"],
        "copies": row["calls"],
        "device_s": row["device_s"],
        "memory": memory,
        "holds_up_the_host": True if memory == "pageable" else None,
        **reading.pick(row, "module", "operator"),
        "link": f"kernels/{row['name']}",
    }


def _copying_operators(report: Report, copies: Iterable[KernelRow]) -> list[Evidence]:
    """Return what the operators that made these copies read and wrote, where that is known."""
    made_by = {(row["operator"], row["module"]) for row in copies}
    rows: list[Evidence] = []
    for name in _OPERATORS:
        some = [row for row in _operators(report, name) if (name, row["module"]) in made_by]
        moved = known_sum(row["moved_bytes"] for row in some)
        if some:
            # An operator reads a byte here and writes it there: half of it is copied.
            copied: Evidence = {} if moved is None else {"copied_bytes": moved / 2}
            found: Evidence = {"operator": name, "calls": reading.total(some, "calls")}
            rows.append({**found, **copied, "link": f"operators/{name}"})
    return rows


# Rows that both kinds of finding read and show.


def _working_lines(report: Report, pattern: re.Pattern[str]) -> list[LineRow]:
    """Return the user's own lines that ran operators and whose text has the pattern."""
    return [row for row in reading.own_lines(report, pattern) if row["operator_s"]]


def _gap_evidence(report: Report, row: GapRow, **more: str | None) -> Evidence:
    return {
        "device": row["device"],
        "idle_s": reading.calibrated(report, row["total_s"]),
        "gaps": row["count"],
        **more,
        "link": "ranges/gaps",
    }


def _operators(report: Report, name: str) -> list[OperatorRow]:
    return [row for row in report["tables"]["operators"] if row["name"] == name]


def _operator_evidence(report: Report, names: Iterable[str]) -> list[Evidence]:
    """Return the calls and time of the operators of these names, where they were called."""
    return [
        {
            "operator": name,
            "calls": reading.total(some, "calls"),
            "self_s": reading.total(some, "self_s"),
            "link": f"operators/{name}",
        }
        for name in names
        if (some := _operators(report, name))
    ]
