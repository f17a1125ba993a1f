"""`profstack run`: measure a script in one run and write its page.

This process never imports torch: it makes the recording's folder, starts the script in a child,
passes signals on, shows progress, and builds the page from the child's recording.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from profstack.capture.loops import BeginAt
from profstack.capture.slices import Targets
from profstack.capture.step_rules import RULES
from profstack.commands.options import (
    CommandParser,
    add_recording_options,
    chosen_layers,
    count,
    not_written,
    number,
    open_page,
    shown,
    tell,
)
from profstack.environment import environment_facts, under_nsys
from profstack.errors import ProfstackError, UsageError
from profstack.guard import delay_signals
from profstack.launch import process, progress, ranks, second_run, target
from profstack.launch.child import SPARING
from profstack.launch.children import FOLLOWS
from profstack.launch.other_runs import announced
from profstack.launch.target import Target
from profstack.layer import MEMORY_BY, OWN_TRACER, check_memory_by
from profstack.privacy import home_relative, package_version, presentable_argv
from profstack.readers import nvtx as readers_nvtx
from profstack.readers.nsys import tool
from profstack.storage.folder import (
    DATABASE,
    PAGE_MARKER,
    Writer,
    create_folder,
    create_rank_folder,
    exit_facts,
    iso,
    process_folders,
    read_run,
    record_nothing,
    run_times,
    write_run,
)
from profstack.storage.vocabulary import launcher_warning

if TYPE_CHECKING:
    from profstack.capture.run import RunOptions

HELP = "Run a PyTorch script once, unmodified, and write one page of everything measured."
RAW = True

_TARGETS_HELP = """\
targets: script.py, -m module, -c code, or - for a script on standard input;
everything after the target belongs to the script. The exit code is the script's.

several ranks: by profstack, or by a launcher that starts profstack in each of them,
  profstack run --nproc-per-node 2 train.py
  torchrun --nproc-per-node 2 --no-python profstack run --ranks all train.py
"""


# A run that is over sooner has its page at the end alone: writing it twice costs a second of CPU.
EARLY_PAGE_S = 60.0

# The options of `Targets`: how much is measured.
_MEANINGS = {
    "slice_steps": "steps of a timed layer's slice, from round 2 on",
    "slice_s": "least time of such a slice, in seconds",
    "clean_steps": "steps of the clean slice after each of them",
    "rounds": "rounds of slices",
    "final_steps": "least number of steps of the last clean slice",
    "final_s": "least time of the last clean slice, in seconds",
    "max_final_steps": "most steps of the last clean slice",
    "settle_s": "time that passes unmeasured after each switch, in seconds",
    "max_settle_steps": "most steps that pass unmeasured after a switch",
    "alone_s": "seconds of each further clean slice where no layer has slices",
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options of `profstack run`, which come before the target."""
    result = CommandParser("run", HELP)
    result.epilog = _TARGETS_HELP
    result.usage = "profstack run [options] script.py [arguments]"
    add = result.add_argument
    add_recording_options(result)
    add("--layers", metavar="A,B", help="only these layers (see 'profstack doctor')")
    add("--skip", metavar="A,B", help="all layers but these")
    add("--light", action="store_true", help="only the watch, for jobs of days: nothing is traced")
    add("--step-by", choices=(*RULES, "none"), help="what ends a step (default: found out)")
    add("--max-steps", type=count, metavar="N", help="end the script after N steps")
    add("--max-seconds", type=number, metavar="S", help="end it at the first step after S s")
    add(
        "--begin-at",
        metavar="N|PLACE",
        help="slices begin at step N, or count only steps of a region, or of train.py:LINE",
    )
    words = "do not record the processes that the script starts"
    add("--no-children", action="store_true", help=words)
    add("--sync", action="store_true", help="wait for the device after every clean step")
    words = "what measures memory by line: profstack alone, or memory_profiler beside it"
    add("--memory-by", choices=MEMORY_BY, default=OWN_TRACER, help=f"{words} (default: profstack)")
    add("--startup", choices=("cprofile",), help="profile the start-up exactly")
    add(
        "--no-peaks", action="store_true", help="do not measure the machine's peaks, once, after it"
    )
    add("--no-source", action="store_true", help="keep no text of the script's own files")
    add("--rerun", action="store_true", help="fill empty layers by running the script again")
    add("--nsys", action="store_true", help="run the script again, under Nsight Systems")
    add("--nsys-path", metavar="PATH", help="nsys for it, or its folder (default: found)")
    words = "ranks that record: 0, 0,3 or all (default: all with --nproc-per-node, else 0)"
    add("--ranks", metavar="LIST", help=words)
    ranks.add_options(result)
    group = result.add_argument_group("how much is measured")
    words = "what measuring may add to the run's time, after 5 s of its own (default: 10)"
    group.add_argument("--budget", type=number, default=10.0, metavar="PERCENT", help=words)
    for field in fields(Targets):
        kind = count if field.type in ("int", int) else number
        flag = "--" + field.name.replace("_", "-")
        words = f"{_MEANINGS[field.name]} (default: {field.default})"
        group.add_argument(flag, type=kind, default=field.default, metavar="X", help=words)
    return result


def main(argv: list[str]) -> int:
    """Run the command and return the script's exit code."""
    options_parser = parser()
    valued = [each.option_strings for each in options_parser._actions if each.nargs is None]
    own, words = target.split(argv, frozenset(chain.from_iterable(valued)))
    options = options_parser.parse_args(own)
    wanted = target.parse(words)
    if os.environ.get("PROFSTACK") == "0":
        return process.run_unrecorded(wanted.arguments)
    if options.light:
        if options.layers is not None or options.skip is not None:
            step = "leave out --layers and --skip, or --light"
            raise UsageError("--light chooses the layers itself", next_step=step)
        options.layers, options.no_peaks = "watch", True
    layers, left_out = chosen_layers(options.layers, options.skip)
    check_memory_by(options.memory_by, layers)
    if ranks.wanted(options):
        wanted.check()
        return _exit_code(_launched(options, own, words))
    rank = target.own_rank()
    recorded = target.recording_ranks(options.ranks or "0")
    # Before any rank passes through, so that an error ends all ranks alike.
    wants_nsys = options.nsys or options.nsys_path
    again = NsysRun.prepared(options, wanted, layers, rank) if wants_nsys else None
    missing = target.missing_ranks(recorded)
    if rank == 0 and missing is not None:
        # The other ranks would print the same.
        tell(f"profstack: {missing} (--ranks {options.ranks})")
    if rank is not None and recorded is not None and rank not in recorded:
        return process.run_unrecorded(wanted.arguments)
    wanted.check()
    if options.begin_at is not None:
        where = os.path.dirname(wanted.arguments[0]) if wanted.kind == "script" else "."
        try:
            options.begin_at = BeginAt.parse(options.begin_at, ".", where)
        except ValueError as error:
            step = "write --begin-at 200, --begin-at train.py:12 or --begin-at REGION"
            raise UsageError(f"--begin-at: {error}", next_step=step) from None
    with announced():
        code = _Run(options, wanted, layers, left_out, rank, again).execute()
    return _exit_code(code)


def _launched(options: argparse.Namespace, own: list[str], words: list[str]) -> int:
    """Start the ranks, write the page of all of them, and return the launcher's exit code."""
    from profstack.commands.merge import write_merged

    name, chosen = target.parse(words).name, target.recording_ranks(options.ranks or "all")
    folder = create_folder(name, options.output, force=options.force)
    display = progress.Display(quiet=options.quiet)
    with announced():
        code = ranks.Launch(options, own, words, folder).execute()
    try:
        with display.working("profstack: writing the page of all ranks"):
            page = write_merged(folder, chosen)
        _tell_ending(folder, display, quiet=options.quiet)
        display.line(f"Wrote {page}")
        if options.open:
            open_page(page)
    except Exception as error:
        display.line(not_written(folder, error))
    return code


def _tell_ending(folder: Path, display: progress.Display, *, quiet: bool) -> None:
    """Print the screen that a run ends with."""
    if quiet:
        return
    try:
        from profstack.report.terminal import ending

        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        display.line(shown(ending, report, sys.stderr))
    except Exception as error:
        display.line(f"profstack: no summary, {type(error).__name__}: {error}")


def _exit_code(code: int) -> int:
    """Return the exit code for that of a process, or end by SIGINT as it did."""
    if code == -signal.SIGINT:
        # End by SIGINT, as the script and every plain python: only then does a shell end its loop.
        sys.stdout.flush()
        sys.stderr.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
    return code if code >= 0 else 128 - code


@dataclass
class _Run:
    """One run, from the recording's folder to the exit code."""

    options: argparse.Namespace
    target: Target
    layers: list[str]
    left_out: dict[str, str]
    rank: int | None
    again: NsysRun | None
    stopped_by: str | None = None

    def __post_init__(self) -> None:
        name, output, force = self.target.name, self.options.output, self.options.force
        if self.rank is None:
            self.folder = create_folder(name, output, force=force)
        else:
            key = target.launch_key()
            self.folder = create_rank_folder(name, output, self.rank, key, force=force)
        self.log = progress.ProgressLog(self.folder)
        # The script must not find it.
        self.launched = os.environ.pop(ranks.LAUNCHED, None) is not None
        if self.launched and self.rank != 0:
            # The other ranks would print the same.
            self.options.quiet = True
        self.display = progress.Display(quiet=self.options.quiet)
        self._environment: dict[str, object] = {}
        self._child_options: RunOptions = {}
        self._page_thread: threading.Thread | None = None
        self._page_wanted = False

    def execute(self) -> int:
        """Run the script, write the page, and return the script's exit code, -n for signal n."""
        self._begun = time.perf_counter()
        child_options = self._write_options()
        if self.again is not None:
            self.again.announce(self.display.line)
        launches = launcher_warning(self.target.program) if self.options.no_children else None
        if launches and not self.options.quiet:
            self.display.line(f"profstack: {launches}")
        # What comes before is no part of the run.
        started, self._begun = time.time(), time.perf_counter()
        try:
            with self.display.beside_script():
                code = process.run(self.target.arguments, self.folder, child_options, self._poll)
            duration_s = time.perf_counter() - self._begun
        finally:
            self._read_log()
            if self._page_thread is not None:
                self._page_thread.join()
        try:
            if self.rank is None:
                self._write_up(code, started, duration_s)
            else:
                # Where one rank fails, the launcher ends the others: their pages come first.
                delay_signals(lambda: self._write_up(code, started, duration_s))
        except Exception as error:
            # The script has ended: its exit code is passed on whatever becomes of the page.
            self.display.line(not_written(self.folder, error))
        return code

    def _write_up(self, code: int, started: float, duration_s: float) -> None:
        """Write the end of the script into the recording, then write the page."""
        own = {
            "stopped_by": self.stopped_by,
            "rank": self.rank,
            "world_size": target.world_size(),
            "node": None if self.rank is None else target.own_node(),
            "recorded_ranks": None if self.rank is None else len(self._recording_ranks()),
        }
        self._write_run({**run_times(started, duration_s), **exit_facts(code), **own})
        # A script that a signal ended was meant to end: it is not started again.
        if self.options.rerun and code >= 0:
            self._rerun()
        if self.again is not None and (self.folder / DATABASE).is_file():
            self._early_page("the first run is over")
            self.again.execute(self.folder, code, self._child_options, duration_s)
        self._finish(code)

    def _write_options(self) -> list[str]:
        """Write the child's options; return those it needs before the script's first line."""
        options = self.options
        whole = options.step_by == "none" or (options.step_by is None and self.target.has_no_step())
        targets = Targets(**{one.name: getattr(options, one.name) for one in fields(Targets)})
        # Ranks that record keep in step: their slices end by counts of steps, never by time.
        lockstep = (target.world_size() or 1) > 1
        self._child_options = {
            "lockstep": lockstep,
            "step_by": options.step_by or ("step" if self.target.calls_step() else None),
            "asked_step_by": options.step_by,
            "launched": self.rank is not None,
            "layers": self.layers,
            "left_out": self.left_out,
            "targets": asdict(targets.in_lockstep() if lockstep else targets),
            "max_steps": options.max_steps,
            "max_seconds": options.max_seconds,
            "startup": options.startup,
            "sync": options.sync,
            "memory_by": options.memory_by,
            "budget": options.budget,
            "source": not options.no_source,
            "whole": whole,
            "sparing": options.light,
        }
        if options.begin_at is not None:
            self._child_options["begin_at"] = asdict(options.begin_at)
        process.write_options(self.folder, self._child_options)
        # Before the run, whose load the facts must not contain.
        where = self.target.arguments[0] if self.target.kind == "script" else "."
        self._environment = environment_facts(os.path.dirname(os.path.abspath(where)))
        self._write_run({"started_at": iso(time.time())})
        profile = (whole or options.startup == "cprofile") and "cprofile" in self.layers
        words = {
            "profile": profile,
            "watch": "watch" in self.layers,
            SPARING: options.light,
            FOLLOWS: not options.no_children,
        }
        return [word for word, wanted in words.items() if wanted]

    def _write_run(self, facts: Mapping[str, object]) -> None:
        """Write the report's facts on the run; secrets in arguments are masked."""
        content = {
            "script": home_relative(self.target.program),
            "argv": presentable_argv(list(self.target.arguments)),
            "run": facts,
            "begun_clock_s": self._begun,
            "environment": self._environment,
        }
        write_run(self.folder, content)

    def _poll(self) -> None:
        """Show what the script's process has done; write the early page where it is due."""
        self._read_log()
        is_due = self._page_wanted and time.perf_counter() - self._begun >= EARLY_PAGE_S
        if is_due and self._page_thread is None:
            self._page_thread = threading.Thread(target=self._early_page, daemon=True)
            self._page_thread.start()

    def _read_log(self) -> None:
        for event in self.log.events():
            if event["event"] == "page":
                self._page_wanted = True
            elif event["event"] == "finished":
                self.stopped_by = event["stopped_by"]
            self.display.show(event)

    def _early_page(self, why: str = "every layer has its slice") -> None:
        """Write the page while the script runs; the measured process waits with its slices."""
        from profstack.report.files import write_report

        try:
            page = write_report(self.folder)
            if not self.options.quiet:
                self.display.line(f"profstack: {why}, early page: {page}")
        except Exception as error:
            self.display.line(f"profstack: no early page, {type(error).__name__}: {error}")
        finally:
            (self.folder / PAGE_MARKER).touch()

    def _finish(self, code: int) -> None:
        from profstack.commands.merge import is_of_others, write_merged
        from profstack.launch import background_peaks
        from profstack.launch.peaks import keep_peaks
        from profstack.report.files import load, write_report

        started = process_folders(self.folder)
        if not (self.folder / DATABASE).is_file():
            why = "it never imported torch" if code == 0 else "it ended before it imported torch"
            record_nothing(self.folder, self.layers, why)
            if not started:
                self.display.line(f"profstack: nothing was recorded of the script: {why}")
                self.options.quiet = True
        with self.display.working("profstack: writing the page"):
            measure = "torch" in self.layers and not self.options.no_peaks
            pending = keep_peaks(self.folder, measure=measure, later=True)
            page = write_report(self.folder)
            for home in started:
                try:
                    keep_peaks(home, measure=measure, later=True)
                    write_report(home)
                except Exception as error:
                    # One that was killed early may hold nothing whole.
                    self.display.line(not_written(home, error))
            if started and is_of_others(load(self.folder), self.folder):
                page = write_merged(self.folder)
        # Who started the ranks prints what they came to.
        _tell_ending(self.folder, self.display, quiet=self.options.quiet or self.launched)
        # Nobody waits while the machine's peaks are measured.
        if pending and background_peaks.begin(self.folder) and not self.options.quiet:
            words = "measuring this machine's peaks, once, in the background"
            self.display.line(f"profstack: {words}: the page has them some seconds from now")
        if not self.launched:
            self.display.line(f"Wrote {page}")
            if self.rank is not None and (page_of_all := self._merged()) is not None:
                self.display.line(f"Wrote {page_of_all}, of all ranks")
        if self.options.open:
            open_page(page)

    def _merged(self) -> Path | None:
        """Write the page of all ranks that record, by the last of them; None by the others."""
        from profstack.commands.merge import write_merged

        recording = self._recording_ranks()
        homes = [self.folder.parent / f"rank-{rank:05d}" for rank in recording]
        if len(homes) < 2 or not all((home / "report.json").is_file() for home in homes):
            return None
        runs = (read_run(home).get("run", {}) for home in homes)
        # The page of a rank that has not ended is an early one: it merges again at its end.
        if not all("finished_at" in run for run in runs):
            return None
        return write_merged(homes[0].parent, recording)

    def _recording_ranks(self) -> list[int]:
        """Return the ranks of the launch that record."""
        everyone = range(target.world_size() or 1)
        chosen = target.recording_ranks(self.options.ranks or "0")
        return [rank for rank in everyone if chosen is None or rank in chosen]

    def _rerun(self) -> None:
        """Run the script once more, as the user asked, for the layers that stayed empty."""
        if not (layers := second_run.empty_layers(self.folder)):
            return
        again = self.folder / second_run.FOLDER
        content: RunOptions = {**self._child_options, "layers": layers}
        process.write_options(again, {**content, "step_by": "none", "whole": True})
        self.display.line(f"profstack: running again for {', '.join(layers)}")
        profile = ["profile"] if "cprofile" in layers else []
        with self.display.beside_script():
            code = process.run(self.target.arguments, again, profile, lambda: None)
        filled = second_run.copy_layers(self.folder, again, layers)
        if code != 0 or len(filled) < len(layers):
            end = f"exit code {code} and filled {', '.join(filled) or 'no layer'}"
            self.display.line(f"profstack: the second run ended with {end}")


# The second run, under Nsight Systems -----------------------------------------------------------

# With --nsys the user agrees to a second run. It ends after its steps and adds what nsys saw to the
# recording; an error in it changes nothing in what the first run recorded.

# Under nsys everything is slower; a script without steps runs to its end.
_SLOWER, _AT_LEAST_S = 3, 60


def check(target: Target, layers: Sequence[str], rank: int | None) -> None:
    """Raise UsageError where there can be no second run under nsys."""
    if under_nsys():
        what = "Nsight Systems observes this run already"
        next_step = "leave --nsys away, or start profstack without nsys"
    elif rank is not None:
        what = "one rank of several cannot be run a second time"
        next_step = "start nsys by hand: nsys profile ... torchrun ... -m profstack run ..."
    elif target.kind == "stdin":
        what = "a script on standard input can be read once alone"
        next_step = "save it to a file and name that"
    elif "nvtx" not in layers:
        what = "the layer nvtx makes the ranges that nsys records, and is left out"
        next_step = "leave it in --layers, and out of --skip"
    else:
        return
    raise UsageError(what, where="--nsys", next_step=next_step)


@dataclass
class NsysRun:
    """The second run of a script that an ordinary run has measured."""

    options: argparse.Namespace
    target: Target
    problem: str | None = None
    nsys: tool.Nsys | None = None
    _tell: Callable[[str], None] = print

    @classmethod
    def prepared(
        cls, options: argparse.Namespace, target: Target, layers: Sequence[str], rank: int | None
    ) -> NsysRun:
        """Look for nsys before anything runs: the user may stop here and install it.

        Raise UsageError where there can be no second run, or `--nsys-path` names no nsys.
        """
        check(target, layers, rank)
        run = cls(options, target)
        try:
            run.nsys = tool.find_nsys(options.nsys_path)
        except tool.NsysError as error:
            if options.nsys_path is not None:
                raise
            run.problem = f"no run under Nsight Systems: {error}"
        return run

    def announce(self, tell: Callable[[str], None]) -> None:
        """Print what prevents the second run; `tell` prints a line, here and from here on."""
        self._tell = tell
        problem = self.problem if self.nsys is None else self._blind()
        if problem is not None:
            tell(f"profstack: {problem}")

    def _blind(self) -> str | None:
        """Return why this nsys sees no range, and the remedy; None where it may see them."""
        nsys = self.nsys.version if self.nsys is not None else None
        nvtx = package_version("nvtx")
        if readers_nvtx.takes_ranges(nsys, nvtx) is not False:
            return None
        words = f"{readers_nvtx.limit_of_old_nsys()}; {readers_nvtx.REMEDY}"
        return f"nsys {nsys} sees no range of nvtx {nvtx}: {words}"

    def execute(
        self, folder: Path, code: int, child_options: RunOptions, duration_s: float
    ) -> None:
        """Run the script again and add what nsys saw to the recording in `folder`.

        `code` and `duration_s` are of the first run. Problems are printed and noted.
        """
        if self.problem is None:
            try:
                self._run(folder, code, child_options, duration_s)
            except KeyboardInterrupt:
                self.problem = "the run under Nsight Systems was interrupted"
            except Exception as error:
                # The first run's recording is whole and gets its page.
                name = "" if isinstance(error, ProfstackError) else f"{type(error).__name__}: "
                self.problem = f"the run under Nsight Systems came to nothing: {name}{error}"
            if self.problem is not None:
                self._tell(f"profstack: {self.problem}")
        if self.problem is not None:
            note(folder, self.problem)

    def _run(self, folder: Path, code: int, child_options: RunOptions, duration_s: float) -> None:
        from profstack.readers.nsys.importing import import_file

        if code != 0:
            how = f"exit code {code}" if code > 0 else f"signal {-code}"
            self.problem = f"no run under Nsight Systems: the script ended with {how}"
            return
        assert self.nsys is not None
        first = second_run.FirstRun.read(folder)
        if (blind := self._blind()) is not None and not first.on_device:
            # Without a device to trace there is nothing but ranges.
            self.problem = f"no run under Nsight Systems, which has nothing to see: {blind}"
            return
        limit_s = int(duration_s * _SLOWER + _AT_LEAST_S)
        self._tell(f"profstack: running again under Nsight Systems {self.nsys.version}")
        with tempfile.TemporaryDirectory(prefix="profstack-nsys-") as name:
            again = Path(name) / "again"
            process.write_options(again, second_run.options(child_options, first))
            command = [sys.executable, *process.interpreter_flags(), *self.target.arguments]
            environment, on_device = process.child_environment(again, []), first.on_device
            captured = second_run.capture(
                self.nsys, command, environment, Path(name), on_device=on_device, limit_s=limit_s
            )
            report = second_run.keep(captured.report, folder, force=self.options.force)
        self._tell(
            f"profstack: the report of Nsight Systems is {report}; it holds the environment's "
            "variables, the page does not"
        )
        try:
            fact = import_file(report, folder, nsys_path=self.nsys.path)
        except ProfstackError as error:
            remedy = shlex.join(["profstack", "import", str(report), "--into", str(folder)])
            self.problem = f"the report of Nsight Systems was not taken in ({error}): {remedy}"
            return
        self._judge(folder, captured, first, limit_s, fact)

    def _judge(
        self,
        folder: Path,
        captured: second_run.NsysRun,
        first: second_run.FirstRun,
        limit_s: int,
        fact: Mapping[str, object],
    ) -> None:
        """Print and note what the capture lacks."""
        problems = []
        if captured.timed_out:
            problems.append(f"was ended after {limit_s} s, before the steps it was for were over")
        elif captured.exit_code:
            problems.append(f"ended with exit code {captured.exit_code}")
            from profstack.report.screen import printable

            # On the terminal alone: a script's error may contain anything.
            self._tell(f"profstack: the script's last words there: {printable(captured.said)}")
        if first.steps and (not fact["steps"] or fact.get("step_range") is not None):
            why = self._blind() if first.has_ranges else first.nvtx_reason
            problems.append(f"has no range of a step{f': {why}' if why else ''}")
        for problem in problems:
            text = f"the run under Nsight Systems {problem}"
            self._tell(f"profstack: {text}")
            note(folder, text)


def note(folder: Path, text: str) -> None:
    """Write a note on the second run into the recording, and as the reason of the layer nvtx.

    Secrets in it are masked.
    """
    text = presentable_argv([text])[0]
    with closing(Writer(folder)) as writer:
        writer.write({"notes": [{"slug": "nsys-run", "layer": "nvtx", "text": text}]})
        writer.reason("nvtx", text)
