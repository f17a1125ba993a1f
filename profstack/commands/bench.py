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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profstack.commands.options import (
    add_recording_options,
    chosen_layers,
    count,
    not_written,
    number,
    open_page,
    shown,
    tell,
)
from profstack.errors import UsageError
from profstack.launch.other_runs import announced
from profstack.storage.folder import exit_facts, run_times, write_run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from profstack.bench.run import BenchOptions
    from profstack.bench.subject import Request


# The options ------------------------------------------------------------------------------------

_VARIANTS = ("eager", "compile", "trace", "script")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def _add_parts(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
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


def asked_of(arguments: argparse.Namespace) -> BenchOptions:
    """Return what is to be measured; raise UsageError for options that contradict each other."""
    from profstack.bench.measure import Policy
    from profstack.bench.run import BenchOptions

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
    of_search = ("search", "dtype", "memory_limit", "max_batch")
    given = [name for name in of_search if getattr(arguments, name) is not None]
    if given and not arguments.throughput:
        what = f"--{given[0].replace('_', '-')} is of the search for the largest batch"
        raise UsageError(what, next_step="add --throughput")
    return BenchOptions(
        mode=arguments.mode,
        policy=Policy(
            warmup=arguments.warmup,
            repeat=arguments.repeat,
            target=arguments.target or Policy.target,
            max_s=arguments.max_seconds or Policy.max_s,
            max_warmup_s=arguments.max_seconds or Policy.max_warmup_s,
            collect=arguments.gc,
        ),
        mistakes=arguments.mistakes,
        ablation=arguments.ablation,
        compare=_compared(arguments.compare),
        throughput=arguments.throughput,
        search=arguments.search or "binary",
        dtypes=_words(arguments.dtype),
        memory_limit=arguments.memory_limit,
        max_batch=arguments.max_batch,
    )


def _compared(text: str | None) -> list[str]:
    """Return the variants of --compare; raise UsageError where there is none or one is unknown."""
    names = _words(text)
    known = f"it knows {', '.join(_VARIANTS)}"
    if text is not None and not names:
        raise UsageError("--compare names nothing", next_step=known)
    for name in names:
        if name not in _VARIANTS:
            raise UsageError(f"--compare knows no {name!r}", next_step=known)
    return names


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()] if text else []


def _size(text: str) -> int:
    """Return the bytes of `512M`, `2GiB` or `1000000`."""
    import re

    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    if not found or not float(found[1]):
        raise argparse.ArgumentTypeError(f"{text} is no size; write 512MiB or 2GiB")
    return int(float(found[1]) * _UNITS[found[2].upper()])


HELP = "Measure a function or a model until its time is known well, then under every layer."

_TARGETS_HELP = """\
targets: file.py:function, module:function, or in their place a model or a class of models with
--input. A function is called once to see what it is: if it returns (model, inputs) these are
measured, else the function itself. The exit code is 1 if the target raises an error.
"""
_INTERRUPTED = 130


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options, in groups."""
    parser.epilog = _TARGETS_HELP
    add = parser.add_argument
    add("spec", metavar="TARGET", help="file.py:function or module:function")
    add_kind = parser.add_mutually_exclusive_group().add_argument
    for kind, meaning in (("factory", "it gives a model"), ("step", "it is what is measured")):
        add_kind(f"--{kind}", action="store_const", const=kind, dest="kind", help=meaning)
    add("--input", action="append", default=[], metavar="SHAPE", help="1x3x224x224[:dtype]")
    add("--device", metavar="D", help="move the model and its inputs there")
    add("--batch-size", type=count, metavar="N", help="items of one call")
    add("--grad", action="store_true", help="record gradients (forward alone is called)")
    add = parser.add_argument_group("how long to measure").add_argument
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
    _add_parts(parser.add_argument_group("what else to measure"))
    recording = parser.add_argument_group("the recording")
    add_recording_options(recording)
    recording.add_argument("--json", action="store_true", help="print the figures as JSON")


def execute(arguments: argparse.Namespace) -> int:
    """Measure, write the page, and return the exit code."""
    from profstack.bench.subject import Request, check_shape
    from profstack.bench.target import check

    if os.environ.get("PROFSTACK") == "0":
        raise UsageError("PROFSTACK=0 switches profstack off", next_step="unset it to measure")
    for text in arguments.input:
        check_shape(text)
    check(arguments.spec)
    layers, asked = chosen_layers(arguments.layers, arguments.skip)[0], asked_of(arguments)
    inputs, how = tuple(arguments.input), (arguments.device, arguments.batch_size, arguments.grad)
    request = Request(arguments.spec, arguments.kind, inputs, *how)
    with announced():
        return _Bench(arguments, request, asked, layers).execute()


@dataclass
class _Bench:
    """One benchmark, from the folder to the exit code."""

    options: argparse.Namespace
    request: Request
    asked: BenchOptions
    layers: list[str]
    codes: list[int] = field(default_factory=list)
    # Of the process of the layers alone, if there is one.
    layers_code: int | None = None

    def __post_init__(self) -> None:
        from profstack.bench.target import short_name
        from profstack.recording import folder_name
        from profstack.storage.folder import create_folder

        name = folder_name(f"bench-{short_name(self.request.spec)}")
        self.folder = create_folder(name, self.options.output, force=self.options.force)
        self._environment: dict[str, object] = {}
        # Whether the layers are recorded in a process of their own: where dynamo has compiled
        # anything they see less, of eager code too.
        self._layers_apart = bool(self.layers) and "compile" in self.asked.compare

    def execute(self) -> int:
        """Run the processes, write the page, and return the exit code."""
        from profstack.bench import results as bench_results

        started, begun = time.time(), time.perf_counter()
        self._write_options()
        for process in range(self.options.processes):
            self.codes.append(self._run_process(process))
            if self.codes[-1]:
                break
        if self._layers_apart and not self.codes[-1]:
            self.layers_code = self._run_process(bench_results.LAYERS_ALONE)
        # Of the process that failed, as `profstack run` has it.
        code = next((one for one in (*self.codes, self.layers_code or 0) if one), 0)
        code = code if code >= 0 else 128 - code
        results = bench_results.read_results(self.folder, len(self.codes))
        if code in (2, _INTERRUPTED) and not any(one and one["figures"] for one in results):
            # The target cannot be measured, or nothing of it was: no folder is left behind.
            shutil.rmtree(self.folder)
            if code == _INTERRUPTED:
                tell("profstack: interrupted before there was a sample: nothing was recorded")
            return code
        self._join(results, run_times(started, time.perf_counter() - begun))
        return self._finish() or code

    def _write_options(self) -> None:
        from profstack.bench.results import OPTIONS
        from profstack.environment import environment_facts

        content = {
            "request": asdict(self.request),
            "asked": asdict(self.asked),
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

    def _run_process(self, process: int | str) -> int:
        """Run a process, pass signals on to it, and return its exit code, -n for signal n."""
        from profstack.launch import process as launch_process

        start = Path(__file__).resolve().parents[1] / "bench" / "start.py"
        command = [sys.executable, *launch_process.interpreter_flags(), str(start)]
        child = subprocess.Popen([*command, str(self.folder), str(process)])
        before = signal.signal(signal.SIGTERM, lambda number, frame: child.terminate())
        try:
            while True:
                try:
                    return child.wait()
                except KeyboardInterrupt:
                    # The terminal has signalled the child as well, which takes two at once for one.
                    # The child may still write its results.
                    child.send_signal(signal.SIGINT)
        finally:
            signal.signal(signal.SIGTERM, before)

    def _join(self, results: list[Any], times: Mapping[str, object]) -> None:
        """Join the results of the processes into one recording."""
        from profstack import layer
        from profstack.bench import results as bench_results
        from profstack.launch.peaks import keep_peaks
        from profstack.privacy import home_relative, presentable_argv

        has_layers = bench_results.take_layers(self.folder)
        code = self.layers_code or self.codes[-1]
        stopped_by = "interrupt" if code == _INTERRUPTED else None
        ended = {"stopped_by": stopped_by, "rank": None, "world_size": None}
        run_facts = {
            "script": home_relative(self.request.spec),
            # Secrets in arguments are masked.
            "argv": presentable_argv(sys.argv[1:]),
            "run": {**times, **exit_facts(code), **ended},
            "environment": {**self._environment, **(results[0] or {}).get("environment", {})},
        }
        write_run(self.folder, run_facts)
        fact = bench_results.join_results(results, self.codes)
        # There the callable was not warm when the layers began.
        fact["layers_apart"] = self._layers_apart
        fact["problems"] += bench_results.layers_problems(self.folder, self.layers_code)
        ended_early = "the benchmark ended before its layers began"
        why = ended_early if self.layers else "left out by --layers none"
        names = [] if has_layers else layer.layer_names()
        bench_results.write_figures(self.folder, fact, dict.fromkeys(names, why))
        keep_peaks(
            self.folder,
            measure=has_layers and "torch" in self.layers and not self.options.no_peaks,
            tell=None if self.options.quiet else tell,
        )

    def _finish(self) -> int:
        """Write the page and print the summary; 2 where there is no page, else 0."""
        from profstack.report.files import write_report

        try:
            page = write_report(self.folder)
        except Exception as error:
            # The measurement must not be lost with its page.
            tell(not_written(self.folder, error))
            return 2
        report = json.loads((self.folder / "report.json").read_text(encoding="utf-8"))
        if self.options.json:
            print(json.dumps(report["benchmark"]))
        elif not self.options.quiet:
            from profstack.report.terminal import summary

            print(shown(summary, report, sys.stdout))
        # A program reads JSON alone from standard output.
        print(f"Wrote {page}", file=sys.stderr if self.options.json else sys.stdout)
        if self.options.open:
            open_page(page)
        return 0
