"""Does everything have an owner? Time, backward work and memory of ten models, in one table.

Each model trains in a process of its own. There a plain loop is timed by hand, a `Session` watches
the same loop, and the plain loop is timed again; so in each round, and the table shows the median
of the rounds. "owned" is what the rows of modules, loss, optimizer and waiting add up to,
calibrated, over the median of the loops by hand: rows without an owner do not count. Run it with
nothing else running and OMP_NUM_THREADS=1; `--quick` only shows that it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from ten_models import MODELS, Step
from workloads import step_times

from profstack.session import Session

COLUMNS = (
    "step_ms",
    "clean_over_hand",
    "owned_share",
    "owned_over_hand",
    "backward_attributed_share",
    "memory_attributed_share",
    "negative_rows",
)


def one_round(step: Step, steps: int) -> dict[str, Any]:
    """Return the owners of the step by a session, between two loops timed by hand."""
    hand_steps = max(5, steps // 4)
    hand = step_times(step, hand_steps)
    with Session("attribution") as session:
        for _ in range(steps):
            step()
    hand += step_times(step, hand_steps)
    report = session.recording.to_dict()
    found: dict[str, Any] = dict(report["attribution"] or {})
    typical = median(hand)
    found["step_ms"] = typical * 1e3
    # Null where the session did not say: too few steps, or a disturbed slice.
    for part, column in (("clean_median_s", "clean"), ("calibrated_owned_s", "owned")):
        known = found[part] is not None
        found[f"{column}_over_hand"] = found[part] / typical if known else None
    return found


def observe(name: str, rounds: int, steps: int) -> None:
    """Measure one model in this process and print what was found as JSON."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    step = MODELS[name]()
    step_times(step, 3)
    print(json.dumps([one_round(step, steps) for _ in range(rounds)]))


def middle(rounds: Sequence[dict[str, Any]], column: str) -> float | None:
    """The median over the rounds; None if one of them has no figure."""
    values = [each.get(column) for each in rounds]
    return None if None in values else median(value for value in values if value is not None)


def in_words(column: str, value: float | None) -> str:
    """One cell of the table."""
    if value is None:
        return "-"
    return f"{value:.1f}" if column in ("step_ms", "negative_rows") else f"{value:.2%}"


def show(name: str, rounds: Sequence[dict[str, Any]]) -> None:
    """Print one row, and below it the time without an owner."""
    cells = (in_words(column, middle(rounds, column)) for column in COLUMNS)
    print(f"{name:20}" + "".join(f"{cell:>27}" for cell in cells))
    for row in rounds[-1]["unowned"]:
        print(f"    {row['path']} {row['share']:.2%}")
    sys.stdout.flush()


def main() -> None:
    """Measure every model in a fresh process and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60, help="of the session in each round")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--quick", action="store_true", help="one round of few steps")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps = 1, 50
    if options.child:
        observe(options.child, options.rounds, options.steps)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(" " * 20 + "".join(f"{column:>27}" for column in COLUMNS))
    for name in options.models:
        size = ["--rounds", str(options.rounds), "--steps", str(options.steps)]
        done = subprocess.run(
            [sys.executable, __file__, "--child", name, *size],
            check=True,
            capture_output=True,
            text=True,
        )
        show(name, json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
