"""Forced synchronisation: the script asks a tensor for its value, and waits for it.

On an accelerator the host stops until all queued work is done, and the device then has nothing to
do until the host has launched more: what counts is the time in which the device was idle after
such a wait, which the torch layer's gaps tell. On the CPU there is no queue to wait for: there the
cost is the calls themselves, which is nothing for one `.item()` in a step and much for one per
element, or for a tensor that is printed with every step. So little costs are not told.
"""

from __future__ import annotations

import re
from typing import Any

from profstack.findings.callcosts import clean_s_of, line_costs
from profstack.findings.extents import function_around
from profstack.findings.figures import (
    CallGraph,
    Key,
    Report,
    Row,
    calibrated,
    clean_step_s,
    line_s,
    on_accelerator,
    short,
    to_function,
    to_source,
)
from profstack.findings.loops import calls_the_model, carries, loop_lines
from profstack.findings.made import Finding, finding, severity_of
from profstack.merge.recorded import Recorded
from profstack.units import format_count, format_seconds

SLUG = "forced-synchronisation"
# A share of the clean step: with less, what else a mended line does is as much.
_WORTH_SHARE = 0.02
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
_MOST_ROWS = 4
_ALONE = "the calls alone, without the loop round them"
_NEEDED = "a run of the loop needs what the one before has made: what else it does would stay"


def forced_synchronisation(recorded: Recorded, report: dict[str, Any]) -> list[Finding]:
    """One finding of what waits for values, another of tensors that are printed with each step."""
    step_s = clean_step_s(report)
    if step_s is None:
        return []
    if on_accelerator(report):
        found = [_on_device(report, step_s)]
    else:
        found = [_items(recorded, report, step_s), _printing(recorded, report, step_s)]
    return [each for each in found if each is not None]


# -- on the CPU ------------------------------------------------------------------------------------


def _items(recorded: Recorded, report: Report, step_s: float) -> Finding | None:
    """Values asked for one after the other."""
    lines = _own_lines(report, _ASKS)
    loops = [row for row in lines if (row["calls"] or _LOOP) >= _LOOP and "item" in _text(row)]
    loops = loops or [row for row in lines if (row["calls"] or _LOOP) >= _LOOP]
    site = max(loops or lines, key=line_s, default=None)
    if site is None:
        return None
    count = _asked(report, site)
    if count < _LOOP:
        return None
    graph = CallGraph(report)
    around = function_around(report, graph, site["file"], site["line"])
    cost, how, reason = _cost_of_loop(recorded, report, graph, site, around)
    if cost is None or cost < _WORTH_SHARE * step_s:
        return None
    place = f"{short(site['file'])}:{site['line']}"
    evidence: list[dict[str, Any]] = [
        {"values_per_step": count, "cost_s": cost, "cost_is": how},
        _line_row(site),
        *_operator_rows(report, (_ITEM,)),
    ]
    if around is not None:
        row = graph.rows[around]
        evidence.append(
            {"function": around[2], "calls": row["calls"], "link": to_function(*around)}
        )
    return finding(
        SLUG,
        f"{format_count(count)} values are taken out of tensors one by one in every step ({place})",
        severity=severity_of(cost, step_s),
        gain_s=None if reason else min(cost, step_s),
        gain_reason=reason,
        file=site["file"],
        line=site["line"],
        layers=["torch", *(["cprofile"] if around else [])],
        evidence=evidence,
        advice=f"Work on the whole tensor ((scores.argmax(1) == labels).sum()) and ask for one "
        f"value at the end, or take all of them at once with .tolist(). On the CPU the cost is "
        f"the calls themselves, {format_seconds(cost / count)} for each value; on a GPU each one "
        "would also wait for everything that was launched before it.",
    )


def _asked(report: Report, site: Row) -> float:
    """Values that the loop round a line asks tensors for, per step, as far as its lines tell.

    No more than were asked for outside the optimizer, which asks for its own counts of steps.
    """
    rows = [row for row in report["tables"]["operators"] if row["name"] == _ITEM]
    whole = float(sum(row["calls"] or 0.0 for row in rows if row["module"] != "(optimizer)"))
    if site["calls"] is None or any(_ALL_IN_ONE.match(_text(row)) for row in _loop(report, site)):
        return whole
    in_loop = sum(row["calls"] * len(_VALUES.findall(_text(row))) for row in _loop(report, site))
    return min(whole, float(in_loop or site["calls"]))


def _loop(report: Report, site: Row) -> list[Row]:
    return [site] if site["calls"] is None else loop_lines(report, site)


def _cost_of_loop(
    recorded: Recorded,
    report: Report,
    graph: CallGraph,
    site: Row,
    around: Key | None,
) -> tuple[float | None, str, str | None]:
    """What the loop round a line costs per step, how that is known, and why there is no gain."""
    asks = [key for key in graph.rows if re.search(r"'(?:item|tolist)' of 'torch", key[2])]
    if calls_the_model(report, site):
        # One value for each call of a model is next to nothing beside that call.
        return None, _ALONE, None
    if carries(_loop(report, site)):
        calls = sum(graph.rows[key]["calls"] for key in asks)
        least = clean_s_of(recorded, report, graph, asks)
        part = min(_asked(report, site) / calls, 1.0) if calls else 0.0
        return None if least is None else least * part, _ALONE, _NEEDED
    if around is not None and not graph.below([around]) & _modules(graph):
        loops = {around, *(key for key in graph.below([around]) if _is_inside(key, around))}
        called = {callee for key in loops for callee, _ in graph.callees.get(key, ())}
        # To go through a tensor makes a tensor of each element first.
        begun = {key for key in called if key[2] == "__iter__" and key[0].endswith("_tensor.py")}
        called |= {callee for key in begun for callee, _ in graph.callees.get(key, ())}
        beside = {key for key in called if key in asks or "unbind" in key[2]} | begun
        cost = clean_s_of(recorded, report, graph, loops | beside)
        if cost is not None:
            return cost, "the function's own time and its calls, without cProfile's cost", None
    cost = line_costs(recorded, report, site)
    if cost is not None:
        return cost, "the share of the loop's lines in the steps with traced lines", None
    least = clean_s_of(recorded, report, graph, asks)
    why = "the loop ran too many lines for them to be timed: in a function of its own it would be"
    return least, _ALONE, why


def _is_inside(key: Key, around: Key) -> bool:
    """Whether a function is a comprehension or the like of a function's file."""
    return key[0] == around[0] and key[1] >= around[1] and key[2].startswith("<")


def _modules(graph: CallGraph) -> set[Key]:
    return {key for key in graph.rows if key[2] == "_call_impl"}


def _printing(recorded: Recorded, report: Report, step_s: float) -> Finding | None:
    """Tensors turned into text with every step."""
    graph = CallGraph(report)
    printers = [
        key
        for key in graph.rows
        if key[2] == _PRINTER and key[0].replace("\\", "/").endswith(_PRINTER_FILE)
    ]
    if not printers:
        return None
    row = graph.rows[printers[0]]
    below = graph.below(printers) | set(printers)
    # What they call is called by nothing else in most steps: it is all of it the printing's.
    cost = clean_s_of(recorded, report, graph, below)
    if cost is None or cost < _WORTH_SHARE * step_s:
        return None
    site = max(_own_lines(report, _PRINTS), key=line_s, default=None)
    where = f" ({short(site['file'])}:{site['line']})" if site else ""
    return finding(
        SLUG,
        f"A tensor is printed or turned into text in the steps{where}",
        severity=severity_of(cost, step_s),
        gain_s=min(cost, step_s),
        file=site["file"] if site else None,
        line=site["line"] if site else None,
        layers=["cprofile", *(["torch"] if site else [])],
        evidence=[
            {"function": _PRINTER, "calls": row["calls"], "cost_s": cost}
            | {"link": to_function(*printers[0])},
            *([_line_row(site)] if site else []),
        ],
        advice=f"Turning tensors into text takes {format_seconds(cost)} of a step of "
        f"{format_seconds(step_s)}: every element that is shown is asked for by itself. Log "
        "loss.item() or a mean, and only every so many steps. On a GPU it would also wait for "
        "everything that was launched before it.",
    )


# -- on an accelerator -----------------------------------------------------------------------------


def _on_device(report: Report, step_s: float) -> Finding | None:
    """The device is idle after the host waited for a value."""
    gaps = [row for row in report["tables"]["gaps"] if row["cause"] == "synchronisation"]
    idle = sum(row["total_s"] for row in gaps)
    cost = calibrated(report, idle)
    if cost is None or cost < _WORTH_SHARE * step_s:
        return None
    lines = _own_lines(report, _ASKS_DEVICE)
    # Where the host waits, time inside operators is long and what they launch is little.
    lines = sorted(lines, key=lambda row: -(row["operator_s"] or 0.0))[:_MOST_ROWS]
    site = lines[0] if lines else None
    where = f" ({short(site['file'])}:{site['line']})" if site else ""
    return finding(
        SLUG,
        f"The host waits for values, and the device is idle after it{where}",
        severity=severity_of(cost, step_s),
        gain_s=min(cost, step_s),
        file=site["file"] if site else None,
        line=site["line"] if site else None,
        layers=["torch"],
        evidence=[
            *(
                {
                    "device": row["device"],
                    "idle_s": calibrated(report, row["total_s"]),
                    "gaps": row["count"],
                    "after": row["after"],
                    "link": "ranges/gaps",
                }
                for row in gaps
            ),
            *_operator_rows(report, _READS),
            *(_line_row(row) for row in lines),
        ],
        advice="Each .item(), .cpu(), .tolist(), bool(tensor), nonzero() or printed tensor waits "
        "until the device has done everything launched before it. Keep values on the device "
        "(sum losses there), ask for them every so many steps, use torch.where instead of if, "
        "and copy with non_blocking=True.",
    )


# -- rows ------------------------------------------------------------------------------------------


def _own_lines(report: Report, pattern: re.Pattern[str]) -> list[Row]:
    """The user's own lines that ran operators and whose text has the pattern."""
    return [
        row
        for row in report["tables"]["lines"]
        if row["own"] and row["operator_s"] and pattern.search(_text(row))
    ]


def _text(row: Row) -> str:
    return str(row["source"] or "")


def _line_row(row: Row) -> dict[str, Any]:
    return {
        "file": row["file"],
        "line": row["line"],
        "text": _text(row).strip(),
        "calls": row["calls"],
        "operator_s": row["operator_s"],
        "link": to_source(row["file"], row["line"]),
    }


def _operator_rows(report: Report, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """What the operators of these names come to, without those that are not called."""
    rows = []
    for name in names:
        some = [row for row in report["tables"]["operators"] if row["name"] == name]
        if some:
            rows.append(
                {
                    "operator": name,
                    "calls": sum(row["calls"] or 0.0 for row in some),
                    "self_s": sum(row["self_s"] or 0.0 for row in some),
                    "link": f"operators/{name}",
                }
            )
    return rows
