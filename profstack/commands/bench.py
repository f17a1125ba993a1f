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
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profstack.commands._options import chosen_layers, count, iso, number
from profstack.errors import UsageError

if TYPE_CHECKING:
    from profstack.benchmark.benchrun import Asked
    from profstack.benchmark.subject import Request

HELP = "Measure a function or a model until its time is known well, then under every layer."

_TARGETS_HELP = """\
targets: file.py:function, module:function, or in their place a model or a class of models with
--input. A function is called once to see what it is: if it returns (model, inputs) these are
measured, else the function itself. The exit code is 1 if the target raises an error.
"""
_NO_LAYERS = "none"
_VARIANTS = ("eager", "compile", "trace", "script")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_INTERRUPTED = 130


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.epilog = _TARGETS_HELP
    add = parser.add_argument
    add("spec", metavar="TARGET", help="file.py:function or module:function")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--factory", action="store_const", const="factory", dest="kind", help="it gives a model"
    )
    kind.add_argument(
        "--step", action="store_const", const="step", dest="kind", help="it is what is measured"
    )
    add("--input", action="append", default=[], metavar="SHAPE", help="1x3x224x224[:dtype]")
    add("--device", metavar="D", help="move the model and its inputs there")
    add("--batch-size", type=count, metavar="N", help="items of one call")
    add("--grad", action="store_true", help="record gradients (forward alone is called)")
    how = parser.add_argument_group("how long to measure")
    add = how.add_argument
    add("--warmup", type=count, metavar="N", help="calls before the samples (default: found out)")
    add("--repeat", type=count, metavar="N", help="samples (default: until --target is reached)")
    add(
        "--target",
        type=number,
        metavar="F",
        help="half-width of the interval, as a part (default: 0.01)",
    )
    add("--max-seconds", type=number, metavar="S", help="of warm-up and samples (default: 10)")
    modes = ("synchronised", "pipelined", "both")
    add("--mode", choices=modes, default="both", help="when a device is waited for")
    add("--processes", type=count, default=1, metavar="N", help="fresh processes, one by one")
    add("--gc", action="store_true", help="leave the garbage collector on while timing")
    what = parser.add_argument_group("what else to measure")
    add = what.add_argument
    add("--mistakes", action="store_true", help="what usual mistakes of timing make of it")
    add("--ablation", action="store_true", help="warm-up, waiting and events, each left out")
    add(
        "--compare",
        metavar="A,B",
        help=f"ways to run the model, every call synchronised: {','.join(_VARIANTS)}",
    )
    add("--throughput", action="store_true", help="largest batch, and the rate of each size")
    add("--search", choices=("binary", "linear"), help="for the largest batch (default: binary)")
    add("--dtype", metavar="A,B", help="data types for --throughput: float32,bfloat16")
    add("--memory-limit", type=_size, metavar="SIZE", help="most that a batch may take: 2GiB")
    add("--max-batch", type=count, metavar="N", help="largest batch to try (default: 65536)")
    add("--layers", metavar="A,B", help="only these layers, or none")
    add("--skip", metavar="A,B", help="all layers but these")
    add(
        "--no-peaks", action="store_true", help="do not measure the machine's peaks, once, after it"
    )
    add = parser.add_argument_group("the recording").add_argument
    add("-o", "--output", metavar="DIR", help="folder of the recording (default: profstack-runs/)")
    add("--force", action="store_true", help="replace the recording in --output")
    add("--open", action="store_true", help="open the page when it is written")
    add("-q", "--quiet", action="store_true", help="no progress and no summary")
    add("--json", action="store_true", help="print the figures as JSON")


def execute(arguments: argparse.Namespace) -> int:
    """Measure, and write the page; returns the exit code."""
    from profstack.benchmark import loading
    from profstack.benchmark.inputs import check_shape

    if os.environ.get("PROFSTACK") == "0":
        raise UsageError("PROFSTACK=0 switches profstack off", next_step="unset it to measure")
    for text in arguments.input:
        check_shape(text)
    request = _request(arguments)
    loading.check(request)
    layers = _layers(arguments)
    asked = _asked(arguments)
    return _Bench(arguments, request, asked, layers).execute()


def _request(arguments: argparse.Namespace) -> Request:
    from profstack.benchmark.subject import Request

    return Request(
        arguments.spec,
        arguments.kind,
        tuple(arguments.input),
        arguments.device,
        arguments.batch_size,
        arguments.grad,
    )


def _asked(arguments: argparse.Namespace) -> Asked:
    """What is to be measured; raises UsageError for options that contradict each other."""
    from profstack.benchmark.benchrun import Asked

    policy: dict[str, Any] = {"collect": arguments.gc}
    given = {
        "warmup": arguments.warmup,
        "repeat": arguments.repeat,
        "target": arguments.target,
        "max_s": arguments.max_seconds,
        "max_warmup_s": arguments.max_seconds,
    }
    policy.update((key, value) for key, value in given.items() if value is not None)
    if arguments.repeat is not None and arguments.target is not None:
        raise UsageError(
            "--repeat fixes the number of samples, and --target leaves it to them",
            next_step="give one of the two",
        )
    if arguments.target is not None and arguments.target >= 1:
        raise UsageError(
            f"--target {arguments.target:g} is no part of the median",
            next_step="write 0.01 for 1 % to either side",
        )
    _check_search(arguments)
    return Asked(
        mode=arguments.mode,
        policy=policy,
        mistakes=arguments.mistakes,
        ablation=arguments.ablation,
        compare=_compared(arguments.compare),
        throughput=arguments.throughput,
        search=arguments.search or "binary",
        dtypes=_words(arguments.dtype),
        memory_limit=arguments.memory_limit,
        max_batch=arguments.max_batch,
    )


def _check_search(arguments: argparse.Namespace) -> None:
    """Raise UsageError for options of a search that was not asked for."""
    of_search = {
        "--search": arguments.search,
        "--dtype": arguments.dtype,
        "--memory-limit": arguments.memory_limit,
        "--max-batch": arguments.max_batch,
    }
    given = [name for name, value in of_search.items() if value is not None]
    if given and not arguments.throughput:
        raise UsageError(
            f"{given[0]} is of the search for the largest batch", next_step="add --throughput"
        )


def _compared(text: str | None) -> list[str]:
    """The variants of --compare; raises UsageError where there is none, or one is unknown."""
    names = _words(text)
    known = f"it knows {', '.join(_VARIANTS)}"
    if text is not None and not names:
        raise UsageError("--compare names nothing", next_step=known)
    for name in names:
        if name not in _VARIANTS:
            raise UsageError(f"--compare knows no {name!r}", next_step=known)
    return names


def _layers(arguments: argparse.Namespace) -> list[str]:
    """The layers to record with; none for `--layers none`."""
    if arguments.layers == _NO_LAYERS:
        if arguments.skip is not None:
            raise UsageError("--layers none leaves none to skip", next_step="leave out --skip")
        return []
    return chosen_layers(arguments.layers, arguments.skip)[0]


class _Bench:
    """One benchmark, from the folder to the exit code."""

    def __init__(
        self,
        options: argparse.Namespace,
        request: Request,
        asked: Asked,
        layers: list[str],
    ) -> None:
        from profstack.benchmark.loading import short_name
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
                "id": str(uuid.uuid4()),
                "started_at": iso(started),
                "finished_at": iso(time.time()),
                "duration_s": seconds,
                "exit_code": code if code >= 0 else None,
                "signal": -code if code < 0 else None,
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
        (self.folder / "logs" / "run.json").write_text(
            json.dumps(self._run_facts), encoding="utf-8"
        )
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


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()] if text else []


def _size(text: str) -> int:
    """Bytes of `512M`, `2GiB` or `1000000`."""
    import re

    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    if not found or not float(found[1]):
        raise argparse.ArgumentTypeError(f"{text} is no size; write 512MiB or 2GiB")
    return int(float(found[1]) * _UNITS[found[2].upper()])
