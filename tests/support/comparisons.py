"""Made-up comparisons of two sides: small with every part, very large, and of hostile names."""

from __future__ import annotations

import random
from typing import Any

from profstack.storage.schema.comparison import Comparison
from tests.support.reports import HOSTILE

# Seconds before and after of the parts of a step: name, before, after, noise, cause, file, line.
STEP_PARTS = (
    ("data wait", 0.00081, 0.0002, True, "jitter", "/app/loader.py", 41),
    ("forward", 0.00093, 0.00094, False, None, None, None),
    ("backward", 0.00072, 0.00068, False, None, None, None),
    ("optimizer", 0.0003, 0.00018, True, "fused", "/app/train.py", 57),
    ("other", 0.00008, 0.0001, None, None, None, None),
)
RUN_PARTS = (
    ("start-up and imports", 4.1, 5.3, True, "import pandas", "/app/train.py", 3),
    ("steps", 2.84, 2.1, True, "steps are faster", None, None),
)


def change(before: float | None, after: float | None, told: bool | None = None, **more: Any) -> Any:
    """One figure on both sides; where more than noise is told, with an interval."""
    known = before is not None and after is not None
    difference = (after or 0.0) - (before or 0.0)
    made = {
        "before": before, "after": after, "difference": difference,
        "low": None if told is None else difference - abs(difference) / 7,
        "high": None if told is None else difference + abs(difference) / 9,
        "ratio": after / before if known and before else None, "beyond_noise": told,
        "reason": None if told is not None else "one recording a side",
    }  # fmt: skip
    return made | more


def table_row(key: str, figures: Any, status: str = "both", **more: Any) -> Any:
    """A row of a table, matched as `status` says."""
    made = {
        "key": key, "status": status, "was": None, "file": None, "line": None, "calls_before": 1.0,
        "calls_after": 1.0, "change": figures,
    }  # fmt: skip
    return made | more


def table(name: str, title: str, unit: str, rows: list[Any], **more: Any) -> Any:
    """A table of a comparison, the largest difference first."""
    rows = sorted(rows, key=lambda row: -abs(row["change"]["difference"] or 0))
    return {"name": name, "title": title, "unit": unit, "rows": rows, "left_out": 0,
            "reason": None if rows else "not recorded on both sides"} | more  # fmt: skip


def side(label: str, medians_s: list[float], **more: Any) -> Any:
    """The facts of one side."""
    folders = [f"profstack-runs/{label}-{at:04}" for at in range(1, len(medians_s) + 1)]
    made = {
        "label": label, "folders": folders, "script": "train.py", "commit": f"{label}c0ffee",
        "recordings": len(medians_s), "steps": 120 * len(medians_s), "medians_s": medians_s,
    }  # fmt: skip
    return made | more


def _parts(of: str, parts: tuple[Any, ...]) -> list[Any]:
    return [
        {"of": of, "name": name, "before_s": before, "after_s": after,
         "difference_s": after - before, "low_s": after - before - before / 30,
         "high_s": after - before + before / 24, "beyond_noise": told, "cause": cause, "file": file,
         "line": line, "places": [{"file": file, "line": line, "cause": cause}]
         if file or cause else []}
        for name, before, after, told, cause, file, line in parts
    ]  # fmt: skip


def _modules() -> list[Any]:
    return [
        table_row("Net", change(0.0001, 0.000101, False)),
        table_row("Net.body", change(0.00002, 0.00003, True)),
        table_row("Net.body.linear1", change(0.0006, 0.0004, True), file="/app/net.py", line=12),
        table_row("Net.body.linear2", change(0.0003, 0.00042, True), file="/app/net.py", line=13),
        table_row("Net.head", change(0.0002, 0.00021, False), "moved", was="Net.classifier"),
        table_row("Net.norm", change(0.00015, None, True), "gone"),
        table_row("Net.scale", change(None, 0.00009, True), "new"),
        table_row("(optimizer)", change(0.0003, 0.00018, True)),
    ]


def _tables() -> list[Any]:
    functions = [
        table_row(f"{name} (loader.py:{line})", change(before, after, told), file="/app/loader.py",
                  line=line)
        for name, line, before, after, told in (
            ("augment", 41, 0.0007, 0.0001, True), ("collate", 60, 0.0001, 0.00011, False))
    ]  # fmt: skip
    return [
        table("modules", "Modules", "s", _modules()),
        table("operators", "Operators", "s", [
            table_row("aten::mm [[64, 64], [64, 8]]", change(0.0004, 0.00041, None))]),
        table("kernels", "Kernels", "s", [], reason="this machine has no accelerator"),
        table("functions", "Functions", "s", functions, left_out=311),
        table("memory", "Memory at the peak", "bytes", [
            table_row("activations", change(2**20, 3 * 2**20, True))]),
        table("throughput", "Throughput", "items/s", [
            table_row("items per second", change(11_267.0, 15_238.0, True))]),
    ]  # fmt: skip


def comparison(**changed: Any) -> Comparison:
    """A comparison with every part: the second side is faster, and not all was equal."""
    made: Any = {
        "schema_version": 1,
        "profstack_version": "0.1",
        "measured": "3 fresh processes of each side took turns",
        "before": side("main", [0.0028, 0.00284, 0.00291]),
        "after": side("HEAD", [0.00209, 0.00213, 0.00214]),
        "verdict": {
            "slug": "faster",
            "sentence": "step 2.84 -> 2.13 ms (-25 %, -28 to -22): data wait -0.61 "
            "(loader.py:41 jitter), optimizer -0.12 (fused), other +0.02",
            "action": "", "figure": "step", "before_s": 0.00284, "after_s": 0.00213,
            "ratio": 0.75, "ci95_low": 0.72, "ci95_high": 0.78, "spread": "between processes",
            "floor": 0.05, "reason": None,
        },
        "answers": [
            {"slug": "slower", "sentence": "run 6.94 -> 7.40 s (+6.6 %)", "action": "",
             "figure": "run", "before_s": 6.94, "after_s": 7.4, "ratio": 1.066, "ci95_low": 1.01,
             "ci95_high": 1.12, "spread": "this machine", "floor": 0.04, "reason": None},
        ],
        "inequalities": [
            {"slug": "commit", "text": "the script is of another commit", "before": "mainc0ffee",
             "after": "HEADc0ffee", "severity": "low"},
            {"slug": "load", "text": "the machine was busier on the first side", "before": "1.2",
             "after": "0.3", "severity": "low"},
        ],
        "parts": _parts("step", STEP_PARTS) + _parts("run", RUN_PARTS),
        "tables": _tables(),
        "findings": [
            {"kind": "finding", "status": "gone", "slug": "data-starved",
             "title": "The step waits for its data", "file": "/app/loader.py", "line": 41},
            {"kind": "warning", "status": "new", "slug": "few-steps",
             "title": "Few clean steps", "file": None, "line": None},
        ],
        "gates": [
            {"rule": "step > 5%", "result": "kept", "change": change(0.00284, 0.00213, True),
             "text": "step -25 %", "file": None, "line": None},
            {"rule": "memory > 50%", "result": "broken", "change": change(2**20, 3 * 2**20, True),
             "text": "peak memory +200 %, most of it activations", "file": "/app/net.py",
             "line": 12},
        ],
    }  # fmt: skip
    return made | changed  # type: ignore[no-any-return]  # tests give parts of any kind


def hostile() -> Comparison:
    """The same with a hostile name wherever a program could have given one."""
    made: Any = comparison()
    for name in ("before", "after"):
        made[name] |= {"label": HOSTILE, "script": HOSTILE, "commit": HOSTILE, "folders": [HOSTILE]}
    made["verdict"] |= {"sentence": HOSTILE, "action": HOSTILE}
    made["inequalities"][0] |= {"text": HOSTILE, "before": HOSTILE, "after": HOSTILE}
    place = {"cause": HOSTILE, "file": HOSTILE, "line": 3}
    made["parts"][0] |= {"name": HOSTILE, **place, "places": [place, place]}
    made["findings"][0] |= {"title": HOSTILE, "slug": HOSTILE, "file": HOSTILE}
    made["gates"][0] |= {"rule": HOSTILE, "text": HOSTILE, "file": HOSTILE}
    for each in made["tables"]:
        for row in each["rows"][:1]:
            row |= {"key": HOSTILE, "was": HOSTILE, "status": "moved", "file": HOSTILE, "line": 3}
    made["tables"][2]["reason"] = HOSTILE
    return made  # type: ignore[no-any-return]  # as above


def large(modules: int, functions: int, operators: int) -> Comparison:
    """The comparison of two very large runs; few rows take much, most take next to nothing."""
    chance, made = random.Random(5), comparison()
    paths = ["Large"]
    for at in range(1, modules):
        paths.append(f"{paths[(at - 1) // 4]}.{at}")

    def rows(names: list[str], most: float) -> list[Any]:
        found = []
        for at, name in enumerate(names):
            before = most / (at + 1) * chance.random()
            ratio = chance.choice((1.0, 1.0, 0.7, 1.01, 1.4))
            figures = change(before, before * ratio, abs(ratio - 1) > 0.05)
            found.append(table_row(name, figures, file=f"pack{at % 60}/mod{at % 900}.py",
                                   line=at % 1_500 + 1))  # fmt: skip
        return found

    named = [f"function_{at} (pack{at % 60}/mod{at % 900}.py)" for at in range(functions)]
    shaped = [f"aten::op{at % 500} [[{at}, 64], [64, {at % 97}]]" for at in range(operators)]
    made["tables"] = [
        table("modules", "Modules", "s", rows(paths, 0.4)),
        table("operators", "Operators", "s", rows(shaped, 0.1)),
        table("functions", "Functions", "s", rows(named, 0.2)),
    ]
    return made
