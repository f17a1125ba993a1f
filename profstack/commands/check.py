"""`profstack check`: compare a script's step with its lock, and say what differs and where."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from profstack.commands.lock import Counter, add_options, lock_path, read_arguments
from profstack.commands.options import CommandParser, tell
from profstack.errors import RecordingError
from profstack.launch.counted_run import Counting
from profstack.launch.target import Target
from profstack.lock import lockfile, text
from profstack.lock.differences import Comparison, Difference, compare
from profstack.lock.facts import CountedRun, Facts, read_facts
from profstack.lock.lockfile import Lock
from profstack.lock.meaning import Cause, explain
from profstack.lock.places import Sources
from profstack.report.annotations import command as annotation

HELP = "Compare the exact numbers of a script's step with its lock."
RAW = True

_EPILOG = """\
exit code: 0 where the step does what the lock says, 1 where it differs, 2 for an error.
To accept a wanted change, lock again: profstack lock script.py
"""

# GitHub shows no more of a kind and step.
_MOST_ANNOTATIONS = 10


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options of `profstack check`, which come before the target."""
    result = CommandParser("check", HELP)
    result.epilog = _EPILOG
    result.usage = "profstack check [options] script.py [arguments]"
    add_options(result)
    words = "show causes beside the code (default: github where GITHUB_ACTIONS is true)"
    result.add_argument("--annotations", choices=("github", "none"), help=words)
    result.add_argument("--all", action="store_true", help="show every fact that differs")
    return result


def main(argv: list[str]) -> int:
    """Run the command; return 0 where nothing differs, 1 where something does."""
    options, target = read_arguments(parser(), argv)
    path = lock_path(options.output, target)
    from profstack.report.screen import printable

    lock = _read(path, target)
    counter = Counter(target, _counting(lock), options.quiet)
    with counter.counted("counting") as run:
        now = read_facts(run)
        made = counter.made(run)
        comparison = compare(lock, now, made)
        if comparison.differences:
            comparison = _again(lock, now, counter, comparison)
        for note in comparison.notes:
            # They quote the lock, which anybody may have written.
            tell(printable(f"profstack: {note}"))
        if not comparison.differences:
            if not options.quiet:
                print(f"{target.program} does what {path} says: {comparison.compared} facts agree")
            return 0
        _Check(comparison, lock, now, run, target, path).show(options)
    return 1


def _read(path: Path, target: Target) -> Lock:
    try:
        return lockfile.read(path)
    except RecordingError as error:
        command = shlex.join(["profstack", "lock", *target.arguments])
        step = f"write it with '{command}'"
        raise RecordingError(error.what, where=str(path), next_step=step) from None


def _counting(lock: Lock) -> Counting:
    """Return how the lock was counted: the check must see the same steps."""
    step_by = lock.made.get("step_by")
    try:
        warmup, steps = int(str(lock.made["warmup"])), int(str(lock.made["steps"]))
    except (KeyError, ValueError):
        raise RecordingError("it does not say how it was counted", where="the lock") from None
    return Counting(warmup, steps, str(step_by) if step_by else None)


def _again(lock: Lock, now: Facts, counter: Counter, first: Comparison) -> Comparison:
    """Run the script once more; keep the differences that both runs have."""
    with counter.counted(f"{len(first.differences)} facts differ: counting once more") as run:
        again = read_facts(run)
    agreed: list[Difference] = []
    changing = 0
    for row in first.differences:
        if again.get(row.key, 0) == row.now:
            agreed.append(row)
        else:
            changing += 1
    notes = list(first.notes)
    if changing:
        words = "fact differs" if changing == 1 else "facts differ"
        notes.append(f"{changing} {words} from run to run, and do not count: lock again")
    return Comparison(agreed, first.compared, notes)


@dataclass
class _Check:
    """A check that found differences: the lock, and what the run gave."""

    comparison: Comparison
    lock: Lock
    now: Facts
    run: CountedRun
    target: Target
    path: Path

    def show(self, options: argparse.Namespace) -> None:
        """Print what differs, and what it means."""
        sources = Sources(self.run, self.path)
        differences = self.comparison.differences
        causes, left = explain(differences, self.lock.facts, self.now, self.run, sources)
        program = self.target.program
        changed, whole = sources.changed(), options.all
        said = text.answer(
            program, str(self.path), self.comparison, causes, left, changed, whole=whole
        )
        # Names of modules and functions are the script's, and may hold anything.
        print("".join(each if each.isprintable() or each == "\n" else "?" for each in said))
        chosen = [] if options.output is None else ["-o", options.output]
        command = shlex.join(["profstack", "lock", *chosen, *self.target.arguments])
        print(f"\nIf this is meant, write the lock again: {command}")
        on_github = "github" if os.environ.get("GITHUB_ACTIONS") == "true" else "none"
        if (options.annotations or on_github) == "github":
            self._annotate(causes)

    def _annotate(self, causes: Sequence[Cause]) -> None:
        """Print causes as annotations of GitHub Actions: its runner shows them beside the code."""
        top = os.environ.get("GITHUB_WORKSPACE") or os.getcwd()
        for cause in causes[:_MOST_ANNOTATIONS]:
            place = cause.places[0] if cause.places else None
            file, line = None, None
            if place is not None:
                whole = os.path.join(self.run.root, place.file)
                file, line = os.path.relpath(whole, os.path.realpath(top)), place.line
            title = f"profstack: {self.target.program} does other work than its lock says"
            # The runner reads both streams.
            tell(annotation("error", cause.text, title, file, line))
