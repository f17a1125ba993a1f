"""The made-up report of a very large run: what the page must still bear."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.support.full_report import full
from tests.support.reports import rows as records

_TYPES = ("Block", "Linear", "LayerNorm", "Dropout", "GELU", "Conv2d")
_MODULES = (
    "path type depth parameters forward_s backward_s self_s python_s calibrated_s forward_flop "
    "backward_flop forward_mac flop_per_s host_net_bytes"
)


def large(modules: int, functions: int, operators: int) -> Any:
    """The full report with so many more modules, functions and operators, and what hangs on them.

    Times fall off as they do in programs: few rows take much, most take next to nothing.
    """
    report, chance = full(), random.Random(3)
    tables = report["tables"]

    def took(at: int, most: float) -> float:
        return most / (at + 1) * chance.random()

    def add(table: str, names: str, rows: Sequence[tuple[Any, ...]], **same: Any) -> None:
        tables[table] += records(table, names, *rows, **same)

    paths = ["Large"]
    for at in range(1, modules):
        # Each module after the one around it, which holds four.
        paths.append(f"{paths[(at - 1) // 4]}.{at}")
    add("modules", _MODULES, [
        (path, _TYPES[at % 6], path.count("."), at * 37, one, 2 * one, one / 3, one / 9, 2.8 * one,
         at * 1_000, at * 2_000, at * 500, 1e9 * chance.random(), at * 64)
        for at, path in enumerate(paths) for one in [took(at, 0.4)]
    ], instance=1, calls=1.0)  # fmt: skip
    names = "name shapes calls self_s total_s calibrated_s flop moved_bytes module"
    add("operators", names, [
        (f"aten::op{at % 500}", f"[[{at}, 64], [64, {at % 97}]]", 1.0 + at % 3, one, 1.1 * one,
         0.9 * one, float(at * 128), float(at * 512), module)
        for at in range(operators) for module, one in [(chance.choice(paths), took(at, 0.1))]
    ])  # fmt: skip
    names = "file line name calls self_s total_s calibrated_s"
    rows = [
        (f"lib/site-packages/pack{at % 60}/mod{at % 900}.py", at % 1_500 + 1, f"function_{at}",
         1.0 + at % 7, one, 3 * one, 0.8 * one)
        for at in range(functions) for one in [took(at, 0.2)]
    ]  # fmt: skip
    add("functions", names, rows, phase="step", own=False, primitive_calls=1.0)
    labels = ["{}:{}({})".format(*one) for one in rows]
    add("calls", "caller callee self_s total_s", [
        (labels[chance.randrange(at + 1)], labels[at], *rows[at][4:6])
        for at in range(functions)], calls=1.0)  # fmt: skip
    add("lines", "file line source python_s operator_s", [
        (f"pack{at % 60}/mod{at % 300}.py", at % 1_500 + 1,
         f"    value_{at} = self.layer_{at}(value, scale={at})", 1e-5 * chance.random(),
         1e-4 * chance.random()) for at in range(functions // 10)
    ], own=False, calls=1.0)  # fmt: skip
    add("kernels", "name module device_s operator", [
        (f"kernel_{at % 800}<float, {at % 800}>", path, 1e-5 * chance.random(),
         f"aten::op{at % 500}")
        for at, path in enumerate(chance.choices(paths, k=operators))],
        calls=1.0, device="cuda:0")  # fmt: skip
    return report
