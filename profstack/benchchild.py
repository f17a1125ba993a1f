"""One process of `profstack bench`: loads the target, measures it cleanly, then the rest.

It is started by the command with the recording's folder, in which its options lie, and leaves its
figures there after every part: a later part that is killed takes none of them with it. The first
process also records the layers.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import profstack
from profstack.benchfolder import LAYERS, LAYERS_ALONE, OPTIONS, result_path
from profstack.benchlayers import record_layers
from profstack.benchmark.benchrun import Asked, BenchRun
from profstack.benchmark.blocks import timed_block
from profstack.benchmark.clock import Clock
from profstack.benchmark.conditions import undisturbed
from profstack.benchmark.loading import Loaded, load
from profstack.benchmark.subject import Request
from profstack.benchmark.targetname import split_spec
from profstack.errors import ProfstackError
from profstack.runner import device_facts, torch_facts
from profstack.units import format_seconds

_OWN = os.path.dirname(os.path.abspath(profstack.__file__)) + os.sep

# Exit codes: of an error a user can mend, of the target's own error, and of Ctrl-C.
USAGE, RAISED, INTERRUPTED = 2, 1, 130


def main(arguments: list[str]) -> int:
    """Measure as the options in the folder say; returns the exit code.

    `arguments` are the recording's folder and the number of this process, or `layers` for one that
    records these alone.
    """
    folder, process = Path(arguments[0]).resolve(), arguments[1]
    options = json.loads((folder / OPTIONS).read_text(encoding="utf-8"))
    if options["json"]:
        # Standard output is the command's answer: what the target prints must not be in it.
        sys.stdout.flush()
        os.dup2(2, 1)
    signal.signal(signal.SIGINT, _Once())
    return _Child(folder, process, options).run()


class _Once:
    """Ctrl-C as Python has it, but one that comes at once a second time is the same one.

    The terminal tells this process, and so may the command that started it.
    """

    _SAME_S = 1.0

    def __init__(self) -> None:
        self._last = -self._SAME_S

    def __call__(self, number: int, frame: object) -> None:
        now = time.monotonic()
        again, self._last = now - self._last < self._SAME_S, now
        if not again:
            raise KeyboardInterrupt


class _Child:
    """One process's work, from the target to its last part."""

    def __init__(self, folder: Path, process: str, options: dict[str, Any]) -> None:
        self.folder = folder
        self.process = process
        self.options = options
        self.request = Request(**options["request"])
        self.kept: dict[str, Any] = {"figures": None, "environment": {}, "error": None}

    def run(self) -> int:
        """Everything; an error of the target is shown as its own, and what there is stays."""
        place, _ = split_spec(self.request.spec)
        sys.argv = [place]
        if place.endswith(".py"):
            _stand_for(place)
        try:
            self._measure()
        except KeyboardInterrupt:
            self._keep_error("KeyboardInterrupt")
            return INTERRUPTED
        except ProfstackError as error:
            sys.stderr.write(f"profstack: {' '.join(str(error).split())}\n")
            self._keep_error(str(error))
            return USAGE
        except SystemExit as stop:
            called = f"{self.request.spec} called sys.exit({stop.code!r})"
            sys.stderr.write(f"profstack: {called}: a benchmark needs a call that returns\n")
            self._keep_error(f"SystemExit({stop.code!r})")
            return stop.code if isinstance(stop.code, int) and stop.code else RAISED
        except BaseException as error:
            self._keep_error(f"{type(error).__name__}: {error}")
            _show(error)
            return RAISED
        return 0

    def _measure(self) -> None:
        import torch

        opened: list[float | None] = []
        clock = Clock()
        wants_device = not (self.request.device or "").startswith("cpu")
        initialise = (lambda: opened.append(clock.initialise())) if wants_device else None
        loaded = load(self.request, initialise)
        module = sys.modules.get(split_spec(self.request.spec)[0])
        if module is not None and getattr(module, "__file__", None):
            _stand_for(str(module.__file__))
        loaded = _called(loaded, clock)
        clock = clock if clock.was_used() else Clock(device=False)
        self.kept["environment"] = _facts(torch, clock)
        if self.process == LAYERS_ALONE:
            self._record_layers(loaded)
            return
        self._tell(_described(loaded))
        run = BenchRun(
            loaded.subject,
            Asked(**{**self.options["asked"], "process": int(self.process)}),
            clock,
            first_s=loaded.first_s,
            keep=self._keep,
            tell=self._tell,
        )
        run.result["initialisation_s"] = opened[0] if opened and clock.has_device else None
        run.result["import_s"], run.result["build_s"] = loaded.import_s, loaded.build_s
        run.check()
        run.clean()
        run.parts()
        if self.process == "0" and self.options["layers"] and not self.options["layers_apart"]:
            self._record_layers(loaded)

    def _record_layers(self, loaded: Loaded) -> None:
        """All layers over the same callable; a defect in here costs the layers alone."""
        names = self.options["layers"]
        self._tell(f"layers {', '.join(names)} ...")
        try:
            name = loaded.subject.name
            record_layers(loaded.subject, name, names, output=self.folder / LAYERS)
        except Exception as error:
            if _target_part(error.__traceback__) is not None:
                raise
            self.kept["layers_problem"] = f"{type(error).__name__}: {error}"
            self._write()

    def _keep(self, figures: dict[str, Any]) -> None:
        self.kept["figures"] = figures
        self._write()

    def _keep_error(self, error: str) -> None:
        self.kept["error"] = error
        self._write()

    def _write(self) -> None:
        path = result_path(self.folder, self.process)
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(self.kept), encoding="utf-8")
        os.replace(unfinished, path)

    def _tell(self, text: str) -> None:
        if self.options["quiet"]:
            return
        count = self.options["processes"]
        numbered = count > 1 and self.process != LAYERS_ALONE
        which = f"process {int(self.process) + 1} of {count}: " if numbered else ""
        sys.stderr.write(f"profstack: {which}{text}\n")
        sys.stderr.flush()


def _stand_for(file: str) -> None:
    """Let the target's file stand for the program.

    By it the layers tell the user's own code from that of libraries, and processes that the target
    starts find its names.
    """
    sys.modules["__main__"].__file__ = os.path.abspath(file)


def _called(loaded: Loaded, clock: Clock) -> Loaded:
    """The target after its first call, if it is a function: before it nobody knows its device."""
    subject = loaded.subject
    if subject.model is not None or loaded.first_s is not None:
        return loaded
    with undisturbed(), subject.conditions():
        first = timed_block(subject.step, 1, 1, clock)
    return replace(loaded, first_s=first.host_s[0])


def _facts(torch: Any, clock: Clock) -> dict[str, Any]:
    facts = {**torch_facts(torch), **device_facts(torch)}
    return facts if clock.has_device else {**facts, "device": "cpu", "gpu": None}


def _described(loaded: Loaded) -> str:
    """What is measured, in one line."""
    subject = loaded.subject
    if subject.model is None:
        return f"function {subject.name}, imported in {format_seconds(loaded.import_s)}"
    mode = "training" if subject.training else "evaluation"
    gradients = "on" if subject.gradients else "off"
    batch = f", batch size {subject.batch_size}" if subject.batch_size is not None else ""
    return f"model {subject.name} in {mode} mode, gradients {gradients}{batch}"


def _show(error: BaseException) -> None:
    """The traceback of the target's error, without the frames that called it."""
    trace = _target_part(error.__traceback__)
    # Without a frame of the target's the error is ours, and every frame is needed.
    error.__traceback__ = trace if trace is not None else error.__traceback__
    traceback.print_exception(type(error), error, error.__traceback__)


def _target_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame on that is neither ours nor the import system's."""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not (file.startswith((_OWN, "<frozen importlib", "<string>")) or "importlib" in file):
            return trace
        trace = trace.tb_next
    return None
