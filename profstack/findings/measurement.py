"""Findings on the measurement: short or noisy runs, steps that never settle, uncounted operators.

The limit of a noisy interval is 20 %. Five per cent is what a comparison of two runs wants, and the
finding says how far the interval reaches beside that; but a shared machine scatters by more than
that without anything wrong in the program, and what the other findings promise is good to 30 %.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import median

from profstack.analysis.benchmark import relative_half_width
from profstack.analysis.clean_steps import FEW_STEPS
from profstack.findings import reading, rules
from profstack.storage.reader import Recorded
from profstack.storage.schema.report import Evidence, Finding, Report, StepPart
from profstack.storage.vocabulary import BENCH_FACT, NATIVE
from profstack.units import format_seconds, format_share

# To how much of it the median should be known where two runs are compared.
_WANTED = 0.05
# Fewer unobserved steps than this show no trend that means something.
_FEWEST_FOR_TREND = 30
_NO_TIME = "it says how far the other figures can be trusted; it costs no time"


def trust(recorded: Recorded, report: Report) -> list[Finding]:
    """Return what speaks against the clean figures."""
    return [*_noisy(report), *_unsettled(recorded, report)]


def _noisy(report: Report) -> Iterator[Finding]:
    figures = report["benchmark"]
    count, half = figures["n"], relative_half_width(figures)
    is_wide = half is not None and half > rules.TOO_SHORT_OR_NOISY.threshold
    # Without any clean step there is no figure that could be doubted; a warning says why.
    if not count or (count >= FEW_STEPS and not is_wide) or reading.is_profiled(report):
        return
    title = f"The step time is rough: its interval reaches {format_share(half)} to a side"
    if count < FEW_STEPS:
        title = f"Only {count} clean {'step' if count == 1 else 'steps'}: the step time is rough"
    reach = "there are too few of them for an interval"
    if half is not None:
        reach = f"the 95 % interval reaches {format_share(half)} of the median to a side, and "
        reach += f"{format_share(_WANTED)} is wanted where two runs are compared"
    yield reading.finding(
        rules.TOO_SHORT_OR_NOISY,
        title,
        severity="low",
        gain_reason=_NO_TIME,
        evidence=[
            {
                "clean_steps": count,
                "clean_steps_wanted": FEW_STEPS,
                **reading.pick(figures, "median_s", "ci95_low_s", "ci95_high_s"),
                "interval_share": half,
                "interval_wanted_share": _WANTED,
                "link": "benchmark/samples",
            }
        ],
        advice=f"There are {count} clean steps (at least {FEW_STEPS} are wanted), and {reach}. "
        "Gains and shares on this page are no better than that. Let the script run more steps, on "
        "a machine with nothing else to do; 'profstack bench' repeats until the interval is "
        "narrow.",
    )


def threads_without_cores(recorded: Recorded, report: Report) -> list[Finding]:
    """Return the finding on operators of several threads that other work takes the cores from.

    All threads of an operator wait for the one without a core, and spin on their own meanwhile.
    """
    processes, roofline, parts = (
        report["processes"], report["roofline"], reading.host_parts(report),
    )  # fmt: skip
    count, cpu_s = report["environment"].get("torch_threads"), processes["cpu_s"]
    step_s, pool = processes["step_s"], report["tables"]["threads"]
    peak = next((row["value"] for row in roofline["mfu"]), None) if roofline else None
    if not isinstance(count, int) or count < 2 or not step_s or cpu_s is None or peak is None:
        return []
    pool_s = reading.total((row for row in pool if row["kind"] == NATIVE), "cpu_s")
    share = (processes["no_core_s"] or 0.0) / step_s
    is_spinning = pool_s >= rules.THREADS_SHARE * cpu_s and peak < rules.FAR_FROM_PEAK
    is_of_operators = sum(parts.get(part, 0.0) for part in _OF_OPERATORS) > sum(parts.values()) / 2
    is_enough = share >= rules.THREADS_WITHOUT_CORES.threshold
    if not (is_enough and is_spinning and is_of_operators):
        return []
    fewer = max(count // 2, 1)
    seen: Evidence = {"step_share": share, "threads": count, "pool_cpu_s": pool_s}
    seen |= {"mean_cpu_s": cpu_s, "peak_share": peak, "link": "method/threads"}
    found = reading.finding(
        rules.THREADS_WITHOUT_CORES,
        f"{count} threads share busy cores: for {format_share(share)} of a step its own has none",
        severity=reading.severity_of(share, 1.0),
        gain_reason="what a step takes where each thread has a core was not seen",
        evidence=[seen],
        advice=f"Give operators as many threads as cores are free (torch.set_num_threads({fewer}) "
        f"or OMP_NUM_THREADS={fewer}), or end the other programs. All threads of an operator wait "
        f"for the one without a core, and spin meanwhile: a step takes {format_seconds(cpu_s)} of "
        f"CPU time, and reaches {format_share(peak)} of the peak.",
    )
    return [found]


# Parts of the step's bar that are work of operators.
_OF_OPERATORS: tuple[StepPart, ...] = ("forward", "loss", "backward", "optimizer", "other")


def _unsettled(recorded: Recorded, report: Report) -> Iterator[Finding]:
    """Yield the finding where the unobserved steps change to the very end, and by much."""
    seen = [row["text"] for row in report["warnings"] if row["slug"] == "warmup-unsettled"]
    is_bench = recorded.facts.get(BENCH_FACT) is not None
    if not seen or is_bench or reading.clean_step_s(report) is None:
        return
    steps = recorded.steps
    kinds = ("settle", "clean", "watch")
    free = (row["wall_s"] for row in steps if row["kind"] in kinds and not row["flags"])
    times = [wall_s for wall_s in free if wall_s]
    third = len(times) // 3
    if len(times) < _FEWEST_FOR_TREND:
        return
    early, late = median(times[third : 2 * third]), median(times[-third:])
    change = late / early - 1.0
    if abs(change) <= rules.WARMUP_NEVER_SETTLES.threshold:
        return
    yield reading.finding(
        rules.WARMUP_NEVER_SETTLES,
        f"The step never settles: it is still getting {'slower' if change > 0 else 'faster'} "
        "when the run ends",
        severity="low",
        gain_reason=_NO_TIME,
        evidence=[
            {
                "steps": len(times),
                "middle_third_s": early,
                "last_third_s": late,
                "change_share": change,
                "seen": seen[0],
                "link": "benchmark/warmup",
            }
        ],
        advice=f"Steps take {format_seconds(late)} in the last third of the run and "
        f"{format_seconds(early)} in the one before ({seen[0]}), so the median is one of a moving "
        "thing. "
        + (
            "Look for what grows with the steps: a list or a cache that each step goes through, a "
            "graph that is kept, longer inputs; or a machine that gets hot or is shared."
            if change > 0
            else "Caches, an allocator or a compiler are still settling: let the run go on longer."
        ),
    )


# Operators that the FLOP counter has no formula for. What they compute is missing in every FLOP
# figure, so that FLOP/s and the share of the peak (MFU) are too low by an unknown amount. Work that
# counts leave out by convention (elementwise operators, normalisation, pooling) is not meant.

_MOST = 8
# torch.compile names its graphs by a hash of 52 letters.
_GRAPH = re.compile(r"## Call (?P<graph>CompiledFxGraph \w{6})\w* ##")


def uncounted(recorded: Recorded, report: Report) -> list[Finding]:
    """Return the finding where the counter of record leaves out a good part of the step."""
    counters = report["tables"]["flops"]
    if not counters:
        return []
    record = next((row for row in counters if row["forward_flop"] is not None), counters[0])
    rows = reading.by_size(record["uncounted"] or (), "time_share")
    share = min(1.0, reading.total(rows, "time_share"))
    if share < rules.OPERATORS_WITHOUT_FLOP_FORMULA.threshold:
        return []
    rows = [row for row in rows if row["time_share"]]
    first = ", ".join(_GRAPH.sub(r"\g<graph>...", row["operator"]) for row in rows[:3])
    first += ", ..." if len(rows) > 3 else ""
    operators = report["tables"]["operators"]
    known = {row["name"] for row in operators}
    # As the table of operators names them.
    names = [
        row["operator"] if row["operator"] in known else f"aten::{row['operator']}" for row in rows
    ]
    modules = {row["module"] for row in operators if row["name"] in names} - {None}
    return [
        reading.finding(
            rules.OPERATORS_WITHOUT_FLOP_FORMULA,
            f"{format_share(share)} of the step is in operators without a FLOP formula ({first})",
            severity="low",
            gain_reason="it makes nothing slower: it makes FLOP/s and MFU too low by what these "
            "operators compute",
            module=modules.pop() if len(modules) == 1 else None,
            layers=("flops", "torch") if record["counter"] != "recorded_shapes" else ("torch",),
            evidence=[
                {"counter": record["counter"], "uncounted_share": share, "link": "method/flops"},
                *(
                    reading.pick(row, "operator", "calls", "time_share")
                    | {"link": f"operators/{name}"}
                    for row, name in zip(rows[:_MOST], names, strict=False)
                ),
            ],
            advice=f"Do not judge this model by MFU or FLOP/s: {format_share(share)} of its time "
            "is in operators whose operations are in no figure. Where you know their count, add it "
            "to the forward and backward FLOP by hand and divide by the clean step time.",
        )
    ]
