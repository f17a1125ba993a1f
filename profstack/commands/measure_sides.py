"""The sides that `profstack compare` measures: two commands, or two revisions of a script."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from profstack.commands import run as run_command
from profstack.commands.options import count, number, tell
from profstack.errors import UsageError
from profstack.launch import target
from profstack.launch.alternate import (
    CONFIDENCE,
    Alternation,
    Outcome,
    Plan,
    Program,
    output_folder,
)
from profstack.launch.alternate import parse_command as parse_side
from profstack.launch.other_runs import announced
from profstack.launch.process import interrupted_by_signals
from profstack.launch.worktrees import CHECKOUT, Repository, Worktrees

if TYPE_CHECKING:
    from profstack.compare.gates import Rule
    from profstack.compare.sides import Side
    from profstack.storage.schema.comparison import Comparison

_LONGER = "measure for longer with --budget, while nothing else runs"
_TIMES = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "": 1.0}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of measuring both sides."""
    group = parser.add_argument_group("measuring both sides, in fresh processes that take turns")
    add = group.add_argument
    words = "a command as for 'profstack run', such as 'A=1 train.py --lr 1'; twice"
    add("--run", action="append", metavar="COMMAND", help=words)
    words = f"a revision of the script's repository, {CHECKOUT!r} for the checkout as it is; twice"
    add("--rev", action="append", metavar="REV", help=f"{words}; the script follows all options")
    words = "half-width of the ratio's interval to measure until (default: 2%%)"
    add("--precision", type=_precision, metavar="P", default=Plan.precision, help=words)
    words = "time to measure for, such as 90s, 10m or 1h; 3 processes a side are made in any case"
    add(
        "--budget", type=_budget, metavar="T", default=Plan.budget_s, help=f"{words} (default: 10m)"
    )
    words = "with --rev: an untracked file or folder (data) that both revisions get, too"
    add("--share", action="append", default=[], metavar="PATH", help=words)
    for name, kind, metavar in (("steps", count, "N"), ("seconds", number, "S")):
        words = f"end each process after so many {name}, as in 'profstack run'"
        add(f"--max-{name}", type=kind, metavar=metavar, help=words)


def _precision(text: str) -> float:
    """Return the part of `2%` or `0.02`."""
    value = number(text.removesuffix("%").rstrip())
    value = value / 100.0 if text.endswith("%") else value
    if value >= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is no part of the time; write 2% or 0.02")
    return value


def _budget(text: str) -> float:
    """Return the seconds of `90s`, `10m`, `1.5h` or `600`."""
    found = re.fullmatch(r"([0-9]*\.?[0-9]+) ?(s|m|min|h|)", text)
    if not found or not float(found[1]):
        raise argparse.ArgumentTypeError(f"{text} is no time; write 90s, 10m or 1h")
    return float(found[1]) * _TIMES[found[2]]


@dataclass
class MeasuredSides:
    """The measurement: labels of both sides, the recordings, and the way files were renamed.

    `checkout_path` maps a file of a working tree that is gone to the user's checkout.
    """

    labels: tuple[str, str]
    outcome: Outcome
    checkout_path: Callable[[str], str] = str

    def comparison(self, read: Callable[..., Side], rules: Sequence[Rule]) -> Comparison:
        """Compare both sides; `read` makes one of the paths of its recordings and its label."""
        from profstack.compare.comparison import compare
        from profstack.compare.noise import remember_spread

        pairs = zip(self.labels, self.outcome.recordings, strict=True)
        before, after = (read(list(map(str, paths)), label=label) for label, paths in pairs)
        comparison = compare(
            before, after, rules=rules, confidence=CONFIDENCE, measured=self.outcome.sentence
        )
        remember_spread((before, after))
        for answer in (comparison["verdict"], *comparison["answers"]):
            # Recordings are not to be made by hand here.
            answer["action"] = answer["action"] and _LONGER
        parts = comparison["parts"]
        rows = chain.from_iterable(table["rows"] for table in comparison["tables"])
        places = chain.from_iterable(part["places"] for part in parts)
        for row in chain(parts, places, comparison["findings"], comparison["gates"], rows):
            row["file"] = row["file"] and self.checkout_path(row["file"])
        return comparison


def wanted(options: argparse.Namespace) -> bool:
    """Return whether the sides are to be measured."""
    return bool(options.run or options.rev)


def measure(
    options: argparse.Namespace, words: Sequence[str], limits: Sequence[float]
) -> MeasuredSides:
    """Measure both sides; `words` are the script and its arguments for --rev.

    `limits` are the ratios that the answer is about, see `Plan`. Raises UsageError for options that
    do not fit together, TargetError where a process fails.
    """
    _check(options, words)
    plan = Plan(options.precision, options.budget, limits)
    with announced(), interrupted_by_signals():
        if options.run:
            programs = [_of_command(text, _own(options)) for text in options.run]
            return _alternated(options, programs, plan)
        repository = Repository(Path.cwd())
        with _trees(options, repository) as trees:
            _tell_changes(repository, options.rev)
            given = target.parse(words)
            script, environment = trees.target(given), trees.environment()
            programs = [
                Program(
                    revision.label,
                    tuple(_own(options)),
                    script,
                    environment,
                    trees.folder(),
                    prepare=partial(trees.use, side),
                )
                for side, revision in enumerate(trees.revisions)
            ]
            measured = _alternated(options, programs, plan)
            return replace(measured, checkout_path=trees.checkout_path)


def _check(options: argparse.Namespace, words: Sequence[str]) -> None:
    what = next_step = ""
    given = options.run or options.rev
    option = "--run" if options.run else "--rev"
    if options.run and options.rev:
        what, next_step = "--run and --rev are two ways to name the sides", "give one of them"
    elif len(given) != 2:
        what, next_step = f"two sides are needed, {len(given)} given", f"give {option} twice"
    elif options.rev and not words:
        what = "no script to run"
        next_step = "write it after the options: profstack compare --rev A --rev B train.py"
    elif options.run and words:
        what = f"{words[0]!r} is in neither command"
        next_step = "write each command with its arguments in quotes"
    elif options.share and not options.rev:
        what, next_step = "--share is for --rev", "leave it out"
    elif os.environ.get("PROFSTACK") == "0":
        what, next_step = "PROFSTACK=0 switches profstack off", "unset it to measure"
    elif target.own_rank() is not None:
        what = "several ranks cannot be compared in turn"
        next_step = "start compare without the launcher"
    if what:
        raise UsageError(what, where="compare", next_step=next_step)


def _own(options: argparse.Namespace) -> Iterator[str]:
    """Return the options that are passed on to `profstack run`."""
    for name in ("max_steps", "max_seconds"):
        value = getattr(options, name)
        if value is not None:
            yield from (f"--{name.replace('_', '-')}", str(value))


def _of_command(text: str, own: Iterator[str]) -> Program:
    """Return the program of a command line of --run."""
    program = parse_side(text, run_command.parser())
    return replace(program, own=(*own, *program.own))


@contextmanager
def _trees(options: argparse.Namespace, repository: Repository) -> Iterator[Worktrees]:
    """Make the working trees of both revisions, and remove them in any case."""
    revisions = [repository.revision(text) for text in options.rev]
    trees = Worktrees(repository, revisions, options.share)
    try:
        with trees:
            yield trees
    finally:
        if trees.left:
            tell(f"profstack: {trees.left}")


def _tell_changes(repository: Repository, revisions: Sequence[str]) -> None:
    """Print how much of the checkout is on neither side."""
    changed, untracked = repository.changes()
    if changed and CHECKOUT not in revisions:
        remedy = f"--rev {CHECKOUT} takes them"
        tell(f"profstack: uncommitted changes ({changed} tracked) are on neither side; {remedy}")
    if untracked:
        tell(f"profstack: untracked files ({untracked}) are on neither side; see --share")


def _alternated(
    options: argparse.Namespace, programs: Sequence[Program], plan: Plan
) -> MeasuredSides:
    """Run both programs in turn, and return their recordings."""
    folder = output_folder(options.output)

    def say(text: str) -> None:
        if not options.quiet:
            tell(f"profstack: {text}")

    for name, program in zip(("before", "after"), programs, strict=True):
        say(f"{name} is {program.label}")
    alternation = Alternation(programs, folder, plan, say)
    try:
        outcome = alternation.run()
    except KeyboardInterrupt:
        if all(alternation.outcome.recordings):
            sides = " ".join(f"'{folder}/{name}-*'" for name in ("before", "after"))
            tell(f"profstack: interrupted; what was measured: profstack compare {sides}")
        raise
    pairs = len(outcome.recordings[0])
    say(f"{pairs} processes a side: {outcome.ended}")
    return MeasuredSides((programs[0].label, programs[1].label), outcome)
