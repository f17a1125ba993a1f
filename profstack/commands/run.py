"""`profstack run`: measure a script in one run and write its page.

This process never imports torch: it makes the recording's folder, starts the script in a child,
passes signals on, shows progress, and builds the page from what the child recorded.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profstack import launch, progress, rerun, target
from profstack.commands import _ranks
from profstack.commands._failures import not_written
from profstack.commands._options import chosen_layers, count, number
from profstack.commands._parser import CommandParser
from profstack.recording import (
    DATABASE,
    PAGE_MARKER,
    create_folder,
    create_rank_folder,
    record_nothing,
)
from profstack.runfacts import exit_facts, iso, run_times, write_run
from profstack.slices import Targets
from profstack.steps import RULES

if TYPE_CHECKING:
    from profstack.commands._nsysrun import NsysRun

HELP = "Run a PyTorch script once, unmodified, and write one page of everything measured."
RAW = True

_TARGETS_HELP = """\
targets: script.py, -m module, -c code, or - for a script on standard input;
everything after the target belongs to the script. The exit code is the script's.

several ranks: the launcher starts profstack in each of them,
  torchrun --nproc-per-node 2 --no-python profstack run --ranks all train.py
"""


def parser() -> argparse.ArgumentParser:
    """The options of `profstack run`, all of which stand before the target."""
    result = CommandParser("run", HELP)
    result.epilog = _TARGETS_HELP
    result.usage = "profstack run [options] script.py [arguments]"
    add = result.add_argument
    add("-o", "--output", metavar="DIR", help="folder of the recording (default: profstack-runs/)")
    add("--force", action="store_true", help="replace the recording in --output")
    add("--open", action="store_true", help="open the page when it is written")
    add("-q", "--quiet", action="store_true", help="no progress and no summary")
    add("--layers", metavar="A,B", help="only these layers (see 'profstack doctor')")
    add("--skip", metavar="A,B", help="all layers but these")
    add("--step-by", choices=(*RULES, "none"), help="what ends a step (default: found out)")
    add("--max-steps", type=count, metavar="N", help="end the script after N steps")
    add("--max-seconds", type=number, metavar="S", help="end it at the first step after S s")
    add("--sync", action="store_true", help="wait for the device after every clean step")
    add("--startup", choices=("cprofile",), help="profile the start-up exactly")
    add(
        "--no-peaks", action="store_true", help="do not measure the machine's peaks, once, after it"
    )
    add("--no-source", action="store_true", help="keep no text of the script's own files")
    add("--rerun", action="store_true", help="fill empty layers by running the script again")
    add("--nsys", action="store_true", help="run the script again, under Nsight Systems")
    add("--nsys-path", metavar="PATH", help="nsys for it, or its folder (default: found)")
    add("--ranks", default="0", metavar="LIST", help="ranks that record: 0, 0,3 or all (see below)")
    for field in fields(Targets):
        kind = count if field.type in ("int", int) else number
        flag = "--" + field.name.replace("_", "-")
        add(flag, type=kind, default=field.default, metavar="X", help=argparse.SUPPRESS)
    return result


def main(argv: list[str]) -> int:
    """Run the command; returns the script's exit code."""
    options_parser = parser()
    valued = {
        flag
        for action in options_parser._actions
        if action.nargs is None
        for flag in action.option_strings
    }
    own, words = target.split(argv, frozenset(valued))
    options = options_parser.parse_args(own)
    wanted = target.parse(words)
    if os.environ.get("PROFSTACK") == "0":
        return launch.passed_through(wanted.arguments)
    layers, left_out = chosen_layers(options.layers, options.skip)
    rank = _ranks.own_rank()
    recorded = _ranks.recording_ranks(options.ranks)
    # Before any rank passes through: all end alike, and none waits for another.
    again = _nsys_run(options, wanted, layers, rank)
    missing = _ranks.missing_ranks(recorded)
    if rank == 0 and missing is not None:
        # One of them says it; the others would say the same.
        print(f"profstack: {missing} (--ranks {options.ranks})", file=sys.stderr, flush=True)
    if rank is not None and recorded is not None and rank not in recorded:
        return launch.passed_through(wanted.arguments)
    wanted.check()
    code = _Run(options, wanted, layers, left_out, rank, again).execute()
    if code == -signal.SIGINT:
        _end_interrupted()
    return code if code >= 0 else 128 - code


def _end_interrupted() -> None:
    """End by SIGINT, as the script and every plain python: only then does a shell end its loop."""
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.raise_signal(signal.SIGINT)


def _nsys_run(
    options: argparse.Namespace, wanted: target.Target, layers: list[str], rank: int | None
) -> NsysRun | None:
    """The second run, under Nsight Systems, if one is asked for."""
    if not (options.nsys or options.nsys_path):
        return None
    from profstack.commands._nsysrun import NsysRun

    return NsysRun.prepared(options, wanted, layers, rank)


class _Run:
    """One run, from the folder to the exit code."""

    def __init__(
        self,
        options: argparse.Namespace,
        wanted: target.Target,
        layers: list[str],
        left_out: dict[str, str],
        rank: int | None,
        again: NsysRun | None,
    ) -> None:
        self.options = options
        self.target = wanted
        self.layers = layers
        self.left_out = left_out
        self.rank = rank
        self.again = again
        self.folder = self._make_folder()
        self.log = progress.ProgressLog(self.folder)
        self.display = progress.Display(quiet=options.quiet)
        self.stopped_by: str | None = None
        self._environment: dict[str, Any] = {}
        self._child_options: dict[str, Any] = {}
        self._page_thread: threading.Thread | None = None

    def execute(self) -> int:
        """Run the script, then write the page; the script's exit code, -n for signal n."""
        started = time.time()
        begun = time.perf_counter()
        child_options = self._write_options()
        if self.again is not None:
            self.again.announce(self.display.line)
        launches = target.launcher_warning(self.target.program)
        if launches is not None and not self.options.quiet:
            self.display.line(f"profstack: {launches}")
        try:
            with self.display.beside_script():
                code = launch.run(self.target.arguments, self.folder, child_options, self._poll)
        finally:
            self._poll()
            if self._page_thread is not None:
                self._page_thread.join()
        try:
            self._write_up(code, started, time.perf_counter() - begun)
        except Exception as error:
            # The script has ended: its exit code is passed on whatever becomes of the page.
            self.display.line(not_written(self.folder, error))
        return code

    def _write_up(self, code: int, started: float, duration_s: float) -> None:
        """Note what became of the script, then write the page."""
        facts = {
            **run_times(started, duration_s),
            **exit_facts(code),
            "stopped_by": self.stopped_by,
            "rank": self.rank,
            "world_size": _ranks.world_size(),
        }
        self._write_run(facts)
        if self.options.rerun:
            self._rerun()
        if self.again is not None and (self.folder / DATABASE).is_file():
            self._early_page("the first run is over")
            self.again.execute(self.folder, code, self._child_options, duration_s)
        self._finish(code)

    def _make_folder(self) -> Path:
        name, output, force = self.target.name, self.options.output, self.options.force
        if self.rank is None:
            return create_folder(name, output, force=force)
        return create_rank_folder(name, output, self.rank, _ranks.launch_key(), force=force)

    def _write_options(self) -> list[str]:
        """Write the child's options; returns those it needs before the script's first line."""
        options = self.options
        whole = options.step_by == "none" or (options.step_by is None and self.target.has_no_step())
        targets = {field.name: getattr(options, field.name) for field in fields(Targets)}
        # Ranks that record keep in step: their slices end by counts of steps, never by time.
        lockstep = (_ranks.world_size() or 1) > 1
        chosen = Targets(**targets).in_lockstep() if lockstep else Targets(**targets)
        content = {
            "lockstep": lockstep,
            "step_by": options.step_by or ("step" if self.target.calls_step() else None),
            "layers": self.layers,
            "left_out": self.left_out,
            "targets": asdict(chosen),
            "max_steps": options.max_steps,
            "max_seconds": options.max_seconds,
            "startup": options.startup,
            "sync": options.sync,
            "source": not options.no_source,
            "whole": whole,
        }
        self._child_options = content
        (self.folder / "logs" / "options.json").write_text(json.dumps(content), encoding="utf-8")
        self._environment = self._facts()
        self._write_run({"started_at": iso(time.time())})
        profile = (whole or options.startup == "cprofile") and "cprofile" in self.layers
        words = {"profile": profile, "watch": "watch" in self.layers}
        return [word for word, wanted in words.items() if wanted]

    def _write_run(self, facts: dict[str, Any]) -> None:
        """Write what the report says of the run itself; secrets in arguments are masked."""
        from profstack.privacy import home_relative, presentable_argv

        arguments = list(self.target.arguments)
        content = {
            "script": home_relative(self.target.program),
            "argv": presentable_argv(arguments),
            "run": facts,
            "environment": self._environment,
        }
        write_run(self.folder, content)

    def _facts(self) -> dict[str, Any]:
        """Facts of the machine before the run: its load is not yet the run's own."""
        from profstack.environment import environment_facts

        where = self.target.arguments[0] if self.target.kind == "script" else "."
        return environment_facts(os.path.dirname(os.path.abspath(where)))

    def _poll(self) -> None:
        for event in self.log.events():
            if event["event"] == "page":
                self._page_thread = threading.Thread(target=self._early_page, daemon=True)
                self._page_thread.start()
            elif event["event"] == "finished":
                self.stopped_by = event["stopped_by"]
            self.display.show(event)

    def _early_page(self, why: str = "every layer has its slice") -> None:
        """Write the page while the script runs; the measured process waits with its slices."""
        from profstack.report.write import write_report

        try:
            page = write_report(self.folder)
            if not self.options.quiet:
                self.display.line(f"profstack: {why}, early page: {page}")
        except Exception as error:
            self.display.line(f"profstack: no early page, {type(error).__name__}: {error}")
        finally:
            (self.folder / PAGE_MARKER).touch()

    def _finish(self, code: int) -> None:
        from profstack.report.write import write_report

        if not (self.folder / DATABASE).is_file():
            why = "it never imported torch" if code == 0 else "it ended before it imported torch"
            record_nothing(self.folder, self.layers, why)
            self.display.line(f"profstack: nothing was recorded of the script: {why}")
            self.options.quiet = True
        with self.display.working("profstack: writing the page"):
            self._keep_peaks()
            page = write_report(self.folder)
        if not self.options.quiet:
            try:
                self._summary()
            except Exception as error:
                self.display.line(f"profstack: no summary, {type(error).__name__}: {error}")
        self.display.line(f"Wrote {page}")
        if self.options.open:
            import webbrowser

            webbrowser.open(page.resolve().as_uri())

    def _keep_peaks(self) -> None:
        """What the machine can do, beside which the page sets what the script did."""
        from profstack.merge.machinepeaks import keep_peaks

        measure = "torch" in self.layers and not self.options.no_peaks
        tell = None if self.options.quiet else self.display.line
        keep_peaks(self.folder, measure=measure, tell=tell)

    def _summary(self) -> None:
        import shutil

        from profstack.report.ending import ending
        from profstack.report.textparts import colourful, fitting

        report = json.loads((self.folder / "report.json").read_text(encoding="utf-8"))
        width = shutil.get_terminal_size((80, 24)).columns
        told = ending(report, width=width, colour=colourful(sys.stderr)).rstrip()
        self.display.line(fitting(told, sys.stderr.encoding))

    def _rerun(self) -> None:
        """Run the script once more, at the user's word, for the layers that stayed empty."""
        layers = rerun.empty_layers(self.folder)
        if not layers:
            return
        again = self.folder / rerun.FOLDER
        (again / "logs").mkdir(parents=True)
        content = {**self._child_options, "layers": layers, "step_by": "none", "whole": True}
        (again / "logs" / "options.json").write_text(json.dumps(content), encoding="utf-8")
        self.display.line(f"profstack: running again for {', '.join(layers)}")
        profile = ["profile"] if "cprofile" in layers else []
        with self.display.beside_script():
            code = launch.run(self.target.arguments, again, profile, lambda: None)
        filled = rerun.copy_layers(self.folder, again, layers)
        if code != 0 or len(filled) < len(layers):
            self.display.line(
                f"profstack: the second run ended with exit code {code} and filled "
                f"{', '.join(filled) or 'no layer'}"
            )
