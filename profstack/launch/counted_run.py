"""Run a script in a fresh process that counts exactly what a few of its steps do, and ends it.

What the script prints is kept from the terminal: it is shown where the script fails.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from profstack.capture.loops import BeginAt
from profstack.capture.run import RunOptions
from profstack.capture.slices import Targets
from profstack.errors import TargetError
from profstack.launch import process
from profstack.storage.folder import DATABASE, OPTIONS_FILE

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

    Raise TargetError where the script fails or never imports torch.
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
        )
        try:
            code = child.wait()
        except BaseException:
            child.kill()
            child.wait()
            raise
    if code != 0 or not (folder / DATABASE).is_file():
        lines = printed.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        said = " / ".join(lines[-_LAST_LINES:])
        how = f"it ended with exit code {code}" if code > 0 else f"signal {-code} ended it"
        what = how if code else "it never imported torch"
        step = f"its last words: {said}" if said and code else "see that it runs by itself"
        raise TargetError(what, where=arguments[0], next_step=step)
