"""One process of `profstack bench`: load the target, measure it cleanly, then the rest.

The command starts it with the recording's folder, which holds its options. Figures are written
there after every part: a later part that is killed loses none of them. The first process also
records the layers.
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
from typing import Any, TypedDict

from profstack.bench import results
from profstack.bench.results import ProcessResult
from profstack.bench.run import BenchOptions, BenchRun, record_layers
from profstack.bench.subject import Request
from profstack.bench.target import LoadedTarget, load, split_spec
from profstack.capture.run import device_facts, torch_facts
from profstack.errors import ProfstackError
from profstack.guard import PACKAGE
from profstack.stats.blocks import timed_block, undisturbed
from profstack.stats.clock import Clock
from profstack.units import format_seconds

# Exit codes of an error that a user can mend, and of the target's own error.
USAGE, RAISED = 2, 1


class ProcessOptions(TypedDict):
    """The options that the command writes for its processes, as JSON."""

    request: dict[str, Any]
    asked: dict[str, Any]
    layers: list[str]
    layers_apart: bool
    processes: int
    quiet: bool
    json: bool


def main(arguments: list[str]) -> int:
    """Measure by the options in the folder; return the exit code.

    `arguments` are the recording's folder and the number of this process, or `layers` for the one
    that only records these.
    """
    folder, process = Path(arguments[0]).resolve(), arguments[1]
    options: ProcessOptions = json.loads((folder / results.OPTIONS).read_text(encoding="utf-8"))
    if options["json"]:
        # Standard output is the command's answer: output of the target must not be in it.
        sys.stdout.flush()
        os.dup2(2, 1)
    signal.signal(signal.SIGINT, _InterruptHandler())
    return _BenchProcess(folder, process, options).run()


class _InterruptHandler:
    """Python's handler of Ctrl-C that takes two within a second for one.

    The terminal signals this process, and the command that started it may do so too.
    """

    _SAME_S = 1.0
    _last = -_SAME_S

    def __call__(self, number: int, frame: object) -> None:
        now = time.monotonic()
        again, self._last = now - self._last < self._SAME_S, now
        if not again:
            raise KeyboardInterrupt


class _BenchProcess:
    """One process's work, from the target to its last part."""

    def __init__(self, folder: Path, process: str, options: ProcessOptions) -> None:
        self.folder = folder
        self.process = process
        self.options = options
        self.request = Request(**options["request"])
        self.kept: ProcessResult = {"figures": None, "environment": {}, "error": None}

    def run(self) -> int:
        """Do all the work; an error of the target is shown as its own, and results stay."""
        place, _ = split_spec(self.request.spec)
        sys.argv = [place]
        if place.endswith(".py"):
            _set_program(place)
        try:
            self._measure()
        except KeyboardInterrupt:
            self._keep({"error": "KeyboardInterrupt"})
            return results.INTERRUPTED
        except ProfstackError as error:
            sys.stderr.write(f"profstack: {' '.join(str(error).split())}\n")
            self._keep({"error": str(error)})
            return USAGE
        except SystemExit as stop:
            called = f"{self.request.spec} called sys.exit({stop.code!r})"
            sys.stderr.write(f"profstack: {called}: a benchmark needs a call that returns\n")
            self._keep({"error": f"SystemExit({stop.code!r})"})
            return stop.code if isinstance(stop.code, int) and stop.code else RAISED
        except BaseException as error:
            self._keep({"error": f"{type(error).__name__}: {error}"})
            # Without a frame of the target the error is ours: then every frame is needed.
            trace = _target_part(error.__traceback__) or error.__traceback__
            error.__traceback__ = trace
            traceback.print_exception(type(error), error, trace)
            return RAISED
        return 0

    def _measure(self) -> None:
        import torch

        opened: list[float | None] = []
        clock = Clock()
        wants_device = not (self.request.device or "").startswith("cpu")
        initialise = (lambda: opened.append(clock.initialise())) if wants_device else None
        target = load(self.request, initialise)
        module = sys.modules.get(split_spec(self.request.spec)[0])
        if module is not None and getattr(module, "__file__", None):
            _set_program(str(module.__file__))
        subject = target.subject
        if subject.model is None and target.first_s is None:
            # The device that a function uses is known only after its first call.
            with undisturbed(), subject.conditions():
                first = timed_block(subject.step, 1, 1, clock)
            target = replace(target, first_s=first.host_s[0])
        clock = clock if clock.was_used() else Clock(device=False)
        on_cpu = {} if clock.has_device else {"device": "cpu", "gpu": None}
        self.kept["environment"] = {**torch_facts(torch), **device_facts(torch), **on_cpu}
        if self.process == results.LAYERS_ALONE:
            self._record_layers(target)
            return
        self._tell(_description(target))
        asked = BenchOptions.of_json(self.options["asked"], int(self.process))
        run = BenchRun(subject, asked, clock, first_s=target.first_s, tell=self._tell)
        run.keep = lambda figures: self._keep({"figures": figures})
        run.result["initialisation_s"] = opened[0] if opened and clock.has_device else None
        run.result["import_s"], run.result["build_s"] = target.import_s, target.build_s
        run.check()
        run.clean()
        run.parts()
        if self.process == "0" and self.options["layers"] and not self.options["layers_apart"]:
            self._record_layers(target)

    def _record_layers(self, target: LoadedTarget) -> None:
        """Record all layers over the same callable; an error of ours costs the layers alone."""
        names = self.options["layers"]
        self._tell(f"layers {', '.join(names)} ...")
        try:
            subject, output = target.subject, self.folder / results.LAYERS
            record_layers(subject, subject.name, names, output=output)
        except Exception as error:
            if _target_part(error.__traceback__) is not None:
                raise
            self._keep({"layers_problem": f"{type(error).__name__}: {error}"})

    def _keep(self, part: ProcessResult) -> None:
        """Write the process's file with a further or a changed part."""
        self.kept.update(part)
        path = results.result_path(self.folder, self.process)
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(self.kept), encoding="utf-8")
        os.replace(unfinished, path)

    def _tell(self, text: str) -> None:
        if self.options["quiet"]:
            return
        count = self.options["processes"]
        numbered = count > 1 and self.process != results.LAYERS_ALONE
        which = f"process {int(self.process) + 1} of {count}: " if numbered else ""
        sys.stderr.write(f"profstack: {which}{text}\n")
        sys.stderr.flush()


def _set_program(file: str) -> None:
    """Make the target's file the program.

    The layers tell the user's own code from libraries by it, and processes that the target starts
    find its names.
    """
    sys.modules["__main__"].__file__ = os.path.abspath(file)


def _description(target: LoadedTarget) -> str:
    """Return the line on the subject that is measured."""
    subject = target.subject
    if subject.model is None:
        return f"function {subject.name}, imported in {format_seconds(target.import_s)}"
    mode = "training" if subject.training else "evaluation"
    gradients = "on" if subject.gradients else "off"
    batch = f", batch size {subject.batch_size}" if subject.batch_size is not None else ""
    return f"model {subject.name} in {mode} mode, gradients {gradients}{batch}"


def _target_part(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame that is neither ours nor the import system's."""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not (file.startswith((PACKAGE, "<frozen importlib", "<string>")) or "importlib" in file):
            return trace
        trace = trace.tb_next
    return None
