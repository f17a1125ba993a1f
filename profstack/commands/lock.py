"""`profstack lock`: write the exact numbers of a script's step into a file for the repository."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from profstack.capture.step_rules import RULES
from profstack.commands.options import CommandParser, count, tell
from profstack.errors import RecordingError, UsageError
from profstack.launch.counted_run import Counting, run_counted
from profstack.launch.target import Target, own_rank, parse, split
from profstack.lock import lockfile
from profstack.lock.facts import CountedRun, Facts, TooFewStepsError, read_facts
from profstack.lock.lockfile import FILE, Lock, Table
from profstack.privacy import mask_secrets

HELP = "Write the exact numbers of a script's step into a file for the repository."
RAW = True

_EPILOG = """\
The script is run several times in fresh processes, which end after a few steps. What differs
between these runs is named in the lock and not compared. 'profstack check script.py' compares
later; to accept a wanted change, lock again.
"""

# Steps that go by before the counting, and steps that each layer sees.
WARMUP, STEPS, RUNS = 3, 3, 3


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `lock` and `check` share."""
    add = parser.add_argument
    add("-o", "--output", metavar="FILE", help=f"the lock (default: {FILE} beside the script)")
    add("-q", "--quiet", action="store_true", help="print nothing but differences and errors")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options of `profstack lock`, which come before the target."""
    result = CommandParser("lock", HELP)
    result.epilog = _EPILOG
    result.usage = "profstack lock [options] script.py [arguments]"
    add_options(result)
    add = result.add_argument
    add("--runs", type=count, default=RUNS, metavar="N", help=f"fresh processes (default: {RUNS})")
    words = f"steps that go by before anything is counted (default: {WARMUP})"
    add("--warmup", type=count, metavar="N", help=words)
    words = f"steps that every layer counts (default: {STEPS}, or 1 in a short script)"
    add("--steps", type=count, metavar="N", help=words)
    add("--step-by", choices=RULES, help="what ends a step (default: found out)")
    add("--force", action="store_true", help="replace the lock of another script")
    return result


def read_arguments(
    options_parser: argparse.ArgumentParser, argv: list[str]
) -> tuple[argparse.Namespace, Target]:
    """Return the options, and the target with what belongs to it."""
    valued = [each.option_strings for each in options_parser._actions if each.nargs is None]
    own, words = split(argv, frozenset(chain.from_iterable(valued)))
    options = options_parser.parse_args(own)
    if not words:
        raise UsageError("no script is named", next_step=f"{options_parser.usage}")
    target = parse(words)
    target.check()
    if own_rank() is not None:
        raise UsageError(
            "one rank of several cannot be run alone", next_step="start it without a launcher"
        )
    if target.kind == "stdin":
        raise UsageError(
            "a script on standard input cannot be run several times",
            next_step="save it to a file and name that",
        )
    return options, target


def lock_path(output: str | None, target: Target) -> Path:
    """Return the path of a lock: beside the script, or as chosen."""
    return Path(output) if output is not None else Path(script_folder(target)) / FILE


def script_folder(target: Target) -> str:
    """Return the folder of the script as it was named; the working folder for a module or code."""
    if target.kind != "script":
        return "."
    path = target.arguments[0]
    return path if os.path.isdir(path) else os.path.dirname(path) or "."


@dataclass
class Counter:
    """Runs the script and reads what its steps did."""

    target: Target
    counting: Counting
    quiet: bool

    def __post_init__(self) -> None:
        self.root = os.path.realpath(script_folder(self.target))

    @contextmanager
    def counted(self, words: str) -> Iterator[CountedRun]:
        """Run the script once; its recording is there inside the `with` block."""
        if not self.quiet:
            tell(f"profstack: {words}")
        folder = Path(tempfile.mkdtemp(prefix="profstack-lock-"))
        try:
            run_counted(self.target.arguments, folder / "run", self.counting)
            yield CountedRun(folder / "run", self.root)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def made(self, run: CountedRun) -> Table:
        """Return with what a run was made, and how."""
        environment = run.facts.get("environment") or {}
        arguments = mask_secrets([_portable(each) for each in self.target.arguments[1:]])
        program = self.target.program
        return {
            "script": Path(program).name if self.target.kind == "script" else program,
            "arguments": arguments,
            "torch": str(environment.get("torch", "")).partition("+")[0],
            "device": str(environment.get("device", "cpu")),
            "threads": int(environment.get("torch_threads") or 0),
            "cpu": str(run.facts.get("cpu_capability") or platform.machine()),
            "warmup": self.counting.warmup,
            "steps": self.counting.steps,
            **({"step_by": self.counting.step_by} if self.counting.step_by else {}),
        }


def _portable(argument: str) -> str:
    """Return an argument without the folders of this machine."""
    name, separator, value = argument.rpartition("=")
    return f"{name}{separator}{os.path.basename(value)}" if os.path.isabs(value) else argument


def main(argv: list[str]) -> int:
    """Run the command and return its exit code."""
    options, target = read_arguments(parser(), argv)
    path = lock_path(options.output, target)
    _refuse_other(path, target, force=options.force)
    lock = _shortest(options, target)
    try:
        path.write_text(lockfile.text_of(lock), encoding="utf-8")
    except OSError as error:
        what = f"cannot be written ({error.strerror})"
        raise RecordingError(what, where=str(path), next_step="choose another with -o") from None
    if not options.quiet:
        from profstack.report.screen import printable

        for key, values in sorted(lock.unstable.items()):
            name = " ".join(part for part in (key.section, key.of, key.name) if part)
            said = f"profstack: left out, it differs from run to run: {name} ({values})"
            tell(printable(said))
        tell(f"profstack: {len(lock.facts)} facts, equal in {max(options.runs, 2)} runs")
        if lock.made["device"] == "cpu":
            tell(f"profstack: {CPU_LIMITS}")
    print(f"Wrote {path}")
    return 0


CPU_LIMITS = (
    "without an accelerator it holds no kernel launches and no device memory; .cpu(), .item() and "
    "copies are counted where the script calls them"
)


def _shortest(options: argparse.Namespace, target: Target) -> Lock:
    """Return the lock; of a script with few steps it is counted in fewer of them."""
    warmup, steps = options.warmup or WARMUP, options.steps or STEPS
    ways = [(warmup, steps)]
    if options.warmup is options.steps is None:
        ways += [(WARMUP, 1), (1, 1)]
    for number, way in enumerate(ways, 1):
        counter = Counter(target, Counting(*way, options.step_by), options.quiet)
        try:
            return make_lock(counter, max(options.runs, 2))
        except TooFewStepsError as error:
            if number == len(ways):
                raise
            tell(f"profstack: {error.what}: trying with fewer")
    raise AssertionError("one of the ways returns or raises")


def make_lock(counter: Counter, runs: int) -> Lock:
    """Count in `runs` fresh processes and return what they agree on."""
    seen: list[Facts] = []
    made: Table = {}
    for number in range(runs):
        with counter.counted(f"run {number + 1} of {runs}") as run:
            seen.append(read_facts(run))
            made = counter.made(run)
    facts, unstable = lockfile.merged(seen)
    return Lock(made, facts, unstable)


def _refuse_other(path: Path, target: Target, *, force: bool) -> None:
    """Raise UsageError where a file is no lock of this script, which is not to be replaced."""
    if force or not path.exists():
        return
    try:
        script = lockfile.read(path).made.get("script")
    except RecordingError as error:
        step = "choose another with -o, or replace it with --force"
        raise RecordingError(error.what, where=str(path), next_step=step) from None
    own = Path(target.program).name if target.kind == "script" else target.program
    if script != own:
        name = f"{Path(own).stem}.lock"
        raise UsageError(
            f"it is the lock of {script}",
            where=str(path),
            next_step=f"choose another with -o {name}, or replace it with --force",
        )
