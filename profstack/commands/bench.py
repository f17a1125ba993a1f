"""`profstack bench`: measure one callable or model cleanly, then under every layer.

This process never imports torch: it makes the recording's folder, starts one fresh process after
the other, each of which loads the target and measures it, and builds the page from what they left.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profstack.commands._benchoptions import add_options, asked_of, layers_of, request_of
from profstack.errors import UsageError
from profstack.runfacts import exit_facts, run_times, write_run

if TYPE_CHECKING:
    from profstack.benchmark.benchrun import Asked
    from profstack.benchmark.subject import Request

HELP = "Measure a function or a model until its time is known well, then under every layer."

_TARGETS_HELP = """\
targets: file.py:function, module:function, or in their place a model or a class of models with
--input. A function is called once to see what it is: if it returns (model, inputs) these are
measured, else the function itself. The exit code is 1 if the target raises an error.
"""
_INTERRUPTED = 130


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.epilog = _TARGETS_HELP
    add_options(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Measure, and write the page; returns the exit code."""
    from profstack.benchmark.inputs import check_shape
    from profstack.benchmark.targetname import check

    if os.environ.get("PROFSTACK") == "0":
        raise UsageError("PROFSTACK=0 switches profstack off", next_step="unset it to measure")
    for text in arguments.input:
        check_shape(text)
    request = request_of(arguments)
    check(request.spec)
    layers = layers_of(arguments)
    asked = asked_of(arguments)
    return _Bench(arguments, request, asked, layers).execute()


class _Bench:
    """One benchmark, from the folder to the exit code."""

    def __init__(
        self,
        options: argparse.Namespace,
        request: Request,
        asked: Asked,
        layers: list[str],
    ) -> None:
        from profstack.benchmark.targetname import short_name
        from profstack.frozen import folder_name
        from profstack.recording import create_folder

        self.options = options
        self.request = request
        self.asked = asked
        self.layers = layers
        name = folder_name(f"bench-{short_name(request.spec)}")
        self.folder = create_folder(name, options.output, force=options.force)
        self.codes: list[int] = []
        # Of the process of the layers alone, if there is one.
        self.layers_code: int | None = None
        self._environment: dict[str, Any] = {}

    def execute(self) -> int:
        """Run the processes, then write the page; returns the exit code."""
        from profstack import benchfolder

        started, begun = time.time(), time.perf_counter()
        self._write_options()
        for process in range(self.options.processes):
            self.codes.append(self._run_process(process))
            if self.codes[-1]:
                break
        if self._layers_apart and not self.codes[-1]:
            self.layers_code = self._run_process(benchfolder.LAYERS_ALONE)
        code = _exit_code([*self.codes, self.layers_code or 0])
        results = benchfolder.read_results(self.folder, len(self.codes))
        if code in (2, _INTERRUPTED) and not any(one and one["figures"] for one in results):
            # The target cannot be measured, or nothing of it was: nothing is left behind.
            shutil.rmtree(self.folder)
            if code == _INTERRUPTED:
                _tell("profstack: interrupted before there was a sample: nothing was recorded")
            return code
        self._write_run(started, time.perf_counter() - begun, results)
        self._join(results)
        return self._finish() or code

    def _write_options(self) -> None:
        from profstack.benchfolder import OPTIONS
        from profstack.environment import environment_facts

        content = {
            "request": self.request.as_json(),
            "asked": self.asked.as_json(),
            "layers": self.layers,
            "layers_apart": self._layers_apart,
            "processes": self.options.processes,
            "quiet": self.options.quiet,
            "json": self.options.json,
        }
        (self.folder / OPTIONS).write_text(json.dumps(content), encoding="utf-8")
        place = self.request.spec.rpartition(":")[0]
        where = os.path.dirname(os.path.abspath(place)) if place.endswith(".py") else os.getcwd()
        self._environment = environment_facts(where)

    @property
    def _layers_apart(self) -> bool:
        """Whether a process of their own records the layers.

        Where dynamo has compiled anything the layers can see less, also of code that is eager.
        """
        return bool(self.layers) and "compile" in self.asked.compare

    def _run_process(self, process: int | str) -> int:
        from profstack import launch

        start = Path(__file__).resolve().parents[1] / "benchstart.py"
        arguments = [str(start), str(self.folder), str(process)]
        return _wait([sys.executable, *launch.interpreter_flags(), *arguments])

    def _write_run(self, started: float, seconds: float, results: list[Any]) -> None:
        """What the report says of the run itself; secrets in arguments are masked."""
        from profstack.privacy import home_relative, presentable_argv

        code = self.layers_code or self.codes[-1]
        first = results[0] or {}
        content = {
            "script": home_relative(self.request.spec),
            "argv": presentable_argv(sys.argv[1:]),
            "run": {
                **run_times(started, seconds),
                **exit_facts(code),
                "stopped_by": "interrupt" if code == _INTERRUPTED else None,
                "rank": None,
                "world_size": None,
            },
            "environment": {**self._environment, **first.get("environment", {})},
        }
        self._run_facts = content

    def _join(self, results: list[Any]) -> None:
        """Make one recording of what the processes left."""
        from profstack import benchfolder, registry
        from profstack.merge.machinepeaks import keep_peaks

        has_layers = benchfolder.take_layers(self.folder)
        write_run(self.folder, self._run_facts)
        fact = benchfolder.joined(results, self.codes)
        # There the callable was not warm when the layers began.
        fact["layers_apart"] = self._layers_apart
        fact["problems"] += benchfolder.layers_problems(self.folder, self.layers_code)
        why = "left out by --layers none"
        if self.layers:
            why = "the benchmark ended before its layers began"
        names = [] if has_layers else registry.layer_names()
        benchfolder.write_figures(self.folder, fact, dict.fromkeys(names, why))
        keep_peaks(
            self.folder,
            measure=has_layers and "torch" in self.layers and not self.options.no_peaks,
            tell=None if self.options.quiet else _tell,
        )

    def _finish(self) -> int:
        """Write the page and print the summary; 2 where there is no page, else 0."""
        from profstack.commands._failures import not_written
        from profstack.report.write import write_report

        try:
            page = write_report(self.folder)
        except Exception as error:
            # What was measured is not to be lost with its page.
            _tell(not_written(self.folder, error))
            return 2
        report = json.loads((self.folder / "report.json").read_text(encoding="utf-8"))
        if self.options.json:
            print(json.dumps(report["benchmark"]))
        elif not self.options.quiet:
            from profstack.report import text
            from profstack.report.textparts import colourful, fitting

            width = shutil.get_terminal_size((80, 24)).columns
            told = text.summary(report, width=width, colour=colourful(sys.stdout)).rstrip()
            print(fitting(told, sys.stdout.encoding))
        wrote = f"Wrote {page}"
        # What is read by a program is JSON alone.
        print(wrote, file=sys.stderr if self.options.json else sys.stdout)
        if self.options.open:
            import webbrowser

            webbrowser.open(page.resolve().as_uri())
        return 0


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _wait(command: list[str]) -> int:
    """Run a process to its end and pass on what ends it; the exit code, negative for a signal."""
    child = subprocess.Popen(command)
    before = signal.signal(signal.SIGTERM, lambda number, frame: child.terminate())
    try:
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:
                # Where it was the terminal it has told the child as well, which takes two at once
                # for one. What it still writes is waited for.
                child.send_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit_code(codes: list[int]) -> int:
    """That of the process that failed, as `profstack run` gives it."""
    code = next((one for one in codes if one), 0)
    return code if code >= 0 else 128 - code
