"""The made-up report of a very large run: what the page must still bear."""

from __future__ import annotations

import random
from typing import Any

from data_full_report import full
from data_report import row

_TYPES = ("Block", "Linear", "LayerNorm", "Dropout", "GELU", "Conv2d")


def large(modules: int, functions: int, operators: int) -> dict[str, Any]:
    """The full report with so many more modules, functions and operators, and what hangs on them.

    Times fall off as they do in programs: few rows take much, most take next to nothing.
    """
    report = full()
    chance = random.Random(3)
    tables = report["tables"]
    paths = _paths(modules)
    tables["modules"] += [_module(path, at, chance) for at, path in enumerate(paths)]
    tables["operators"] += [_operator(at, chance.choice(paths), chance) for at in range(operators)]
    names = [_function(at, chance) for at in range(functions)]
    tables["functions"] += names
    tables["calls"] += [
        _call(names[chance.randrange(at + 1)], names[at]) for at in range(functions)
    ]
    tables["lines"] += [_line(at, chance) for at in range(functions // 10)]
    tables["kernels"] += [
        row("kernels", name=f"kernel_{at % 800}<float, {at % 800}>", calls=1.0, module=path,
            device_s=1e-5 * chance.random(), device="cuda:0", operator=f"aten::op{at % 500}")
        for at, path in enumerate(chance.choices(paths, k=operators))
    ]  # fmt: skip
    return report


def _paths(count: int) -> list[str]:
    """Module paths, each after the one around it, which holds four."""
    paths = ["Large"]
    for at in range(1, count):
        paths.append(f"{paths[(at - 1) // 4]}.{at}")
    return paths


def _module(path: str, at: int, chance: random.Random) -> dict[str, Any]:
    took = 0.4 / (at + 1) * chance.random()
    return row(
        "modules", path=path, type=_TYPES[at % len(_TYPES)], instance=1, depth=path.count("."),
        calls=1.0, parameters=at * 37, forward_s=took, backward_s=2 * took, self_s=took / 3,
        python_s=took / 9, calibrated_s=2.8 * took, forward_flop=at * 1_000,
        backward_flop=at * 2_000, forward_mac=at * 500, flop_per_s=1e9 * chance.random(),
        host_net_bytes=at * 64,
    )  # fmt: skip


def _operator(at: int, module: str, chance: random.Random) -> dict[str, Any]:
    took = 0.1 / (at + 1) * chance.random()
    return row(
        "operators", name=f"aten::op{at % 500}", shapes=f"[[{at}, 64], [64, {at % 97}]]",
        calls=1.0 + at % 3, self_s=took, total_s=1.1 * took, calibrated_s=0.9 * took,
        flop=float(at * 128), moved_bytes=float(at * 512), module=module,
    )  # fmt: skip


def _function(at: int, chance: random.Random) -> dict[str, Any]:
    took = 0.2 / (at + 1) * chance.random()
    return row(
        "functions", phase="step", file=f"lib/site-packages/pack{at % 60}/mod{at % 900}.py",
        line=at % 1_500 + 1, name=f"function_{at}", own=False, calls=1.0 + at % 7,
        primitive_calls=1.0, self_s=took, total_s=3 * took, calibrated_s=0.8 * took,
    )  # fmt: skip


def _call(caller: dict[str, Any], callee: dict[str, Any]) -> dict[str, Any]:
    names = (f"{one['file']}:{one['line']}({one['name']})" for one in (caller, callee))
    seconds = {"self_s": callee["self_s"], "total_s": callee["total_s"]}
    return row("calls", **dict(zip(("caller", "callee"), names, strict=True)), calls=1.0, **seconds)


def _line(at: int, chance: random.Random) -> dict[str, Any]:
    return row(
        "lines", file=f"pack{at % 60}/mod{at % 300}.py", line=at % 1_500 + 1, own=False, calls=1.0,
        source=f"    value_{at} = self.layer_{at}(value, scale={at})",
        python_s=1e-5 * chance.random(), operator_s=1e-4 * chance.random(),
    )  # fmt: skip
