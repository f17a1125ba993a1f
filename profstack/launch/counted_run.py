"""Count exactly what a few steps do: of a script in a fresh process, or of a function in this one.

The script is ended after its steps. What it prints is kept from the terminal: it is shown where the
script fails.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from profstack.capture.loops import BeginAt
from profstack.capture.marks import marks_of
from profstack.capture.run import CountOptions, RunOptions
from profstack.capture.slices import Targets
from profstack.errors import TargetError, UsageError
from profstack.guard import strip_frame
from profstack.launch import child, process
from profstack.launch.in_process import InProcess
from profstack.storage.folder import DATABASE, OPTIONS_FILE, Writer

LAYERS = ["cprofile", "torch"]
_LAST_LINES = 5


@dataclass(frozen=True)
class Counting:
    """How to count: `warmup` steps go by, then each layer sees `steps` steps.

    `step_by` and `begin_at` are the options of `profstack run`.
    """

    warmup: int
    steps: int
    step_by: str | None = None
    begin_at: BeginAt | None = None


def run_counted(arguments: Sequence[str], folder: Path, counting: Counting) -> None:
    """Record a run of `python arguments` in `folder`.

    Raise TargetError where the script fails or never imports torch. An interrupt ends the script
    with all that it has started.
    """
    options: RunOptions = {
        # Slices end by counts of steps, never by time.
        "lockstep": True,
        "step_by": counting.step_by,
        "layers": LAYERS,
        "left_out": {},
        "targets": asdict(Targets().in_lockstep()),
        "max_steps": None,
        "max_seconds": None,
        "sync": False,
        "source": True,
        "whole": False,
        "counting": {"warmup": counting.warmup, "steps": counting.steps},
    }
    if counting.begin_at is not None:
        options["begin_at"] = asdict(counting.begin_at)
    (folder / "logs").mkdir(parents=True)
    (folder / OPTIONS_FILE).write_text(json.dumps(options), encoding="utf-8")
    printed = folder / "logs" / "output.txt"
    with printed.open("wb") as output:
        child = subprocess.Popen(
            process.command(arguments),
            env=process.child_environment(folder, []),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code = process.wait_for_session(child)
    if code != 0 or not (folder / DATABASE).is_file():
        lines = printed.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        said = " / ".join(lines[-_LAST_LINES:])
        how = f"it ended with exit code {code}" if code > 0 else f"signal {-code} ended it"
        what = how if code else "it never imported torch"
        step = f"its last words: {said}" if said and code else "see that it runs by itself"
        raise TargetError(what, where=arguments[0], next_step=step)


def count_calls(call: Callable[[], Any], name: str, folder: Path, counting: Counting) -> None:
    """Record calls of a function in `folder`, a new one; each call is a step.

    Raise UsageError inside a measured run; an error of the function is raised as it is.
    """
    import torch

    if child.is_armed() or child.engine() is not None:
        raise UsageError(
            "steps cannot be counted inside a measured run",
            next_step="run the program by itself, or leave the session first",
        )
    counts: CountOptions = {"warmup": counting.warmup, "steps": counting.steps}
    run = InProcess(name, LAYERS, Targets().in_lockstep(), counting=counts)
    marks = marks_of(run.begin(torch, str(folder), force=False))
    failed: BaseException | None = None
    try:
        if marks.begin(object()):
            marks.repeat(call, math.inf)
    except BaseException as error:
        strip_frame(error)
        failed = error
        raise
    finally:
        marks.close(failed=failed is not None)
        run.end(type(failed) if failed is not None else None)
    writer = Writer(folder)
    writer.facts({"cpu_capability": torch.backends.cpu.get_cpu_capability()})
    writer.close()
