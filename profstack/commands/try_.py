"""`profstack try`: what changes of a script would gain, measured."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from profstack.commands.options import CommandParser, count, tell
from profstack.errors import UsageError
from profstack.launch.target import parse, split
from profstack.storage.folder import DATABASE, TRIALS_FILE
from profstack.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from profstack.changes.contract import Change
    from profstack.storage.schema.trials import TrialReport

HELP = "Try changes of a script in fresh processes, and say what each gains."
RAW = True

_EPILOG = """\
The script is run again and again, plain and with one change at a time, each time for some steps
and in a copy of the working folder. None of its files is edited. The edits that keep what gains
are printed as diffs that 'git apply' takes. With the folder of a recording its script is run with
the remedies of its findings alone, and its page gets what was found.
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options, which come before the target."""
    result = CommandParser("try", HELP)
    result.epilog = _EPILOG
    result.usage = "profstack try [options] script.py [arguments] | DIR"
    add = result.add_argument
    add("--change", action="append", metavar="NAME", help="try this change alone; may be repeated")
    add("--list", action="store_true", help="list the changes, and what each may do to results")
    add("--budget", type=_duration, default=600.0, metavar="T", help="time in all (default: 10m)")
    add("--steps", type=count, metavar="N", help="steps of each process (default: some 3 s)")
    add("--seed", type=int, default=0, metavar="N", help="seed of the random streams (default: 0)")
    add("--in-place", action="store_true", help="run in the working folder itself, not in a copy")
    add(
        "--copy-limit", type=count, default=1024, metavar="MIB", help="largest copy (default: 1024)"
    )
    add("-o", "--output", metavar="DIR", help="write try.json there")
    add("--json", action="store_true", help="print try.json instead of text")
    add("-q", "--quiet", action="store_true", help="no progress")
    return result


def main(argv: list[str]) -> int:
    """Run the command and return the exit code."""
    options_parser = parser()
    valued = [each.option_strings for each in options_parser._actions if each.nargs is None]
    own, words = split(argv, frozenset(chain.from_iterable(valued)))
    options = options_parser.parse_args(own)
    if options.list:
        _list()
        return 0
    if not words:
        raise UsageError("no script is named", next_step=str(options_parser.usage))
    return _try(options, words)


def _list() -> None:
    from profstack.changes.built_in import changes

    for name, change in changes().items():
        print(f"{name:<24}{change.results:<11}{change.summary}")


def _try(options: argparse.Namespace, words: list[str]) -> int:
    from profstack.changes.built_in import changes
    from profstack.launch.process import interrupted_by_signals
    from profstack.launch.trial_report import report_of
    from profstack.launch.trials import Plan, Trials
    from profstack.report import files

    if os.environ.get("PROFSTACK") == "0":
        raise UsageError("PROFSTACK=0 switches profstack off", next_step="unset it to try changes")
    known = changes()
    for name in options.change or ():
        if name not in known:
            step = "'profstack try --list' names all"
            raise UsageError(f"there is no change {name!r}", where="--change", next_step=step)
    recording, names = None, options.change
    if len(words) == 1 and (Path(words[0]) / DATABASE).is_file():
        recording = files.recording_folder(words[0], exactly=True)
        words, remedies = _of_recording(recording, known)
        names = names or remedies
    target = parse(words)
    target.check()

    def say(line: str) -> None:
        if not options.quiet:
            tell(f"profstack: {line}")

    plan = Plan(
        options.budget, options.steps, options.seed, options.in_place, options.copy_limit << 20
    )
    begun = time.monotonic()
    with TemporaryDirectory(prefix="profstack-trials-") as folder, interrupted_by_signals():
        trials = Trials(target.arguments, Path(folder), plan, say)
        say("running once to see what the script does")
        trials.look()
        trials.choose(names)
        trials.run()
        first = report_of(trials, target.arguments, 0.0)
        by_name = {arm.name: arm for arm in trials.arms}
        gains = [by_name[row["change"]] for row in first["trials"] if row["recommended"]]
        trials.combine(gains)
        report = report_of(trials, target.arguments, time.monotonic() - begun)
    _tell(report, options, recording)
    return 0


def _tell(report: TrialReport, options: argparse.Namespace, recording: Path | None) -> None:
    """Print the report, and write it where that is asked for; a recording's page gets it, too."""
    from profstack.report import files, terminal_try
    from profstack.report.html import replace_text

    whole = json.dumps(report, indent=2) + "\n"
    sys.stdout.write(whole if options.json else terminal_try.text(report))
    out = sys.stderr if options.json else sys.stdout
    for folder in filter(None, (options.output, recording)):
        path = Path(folder) / TRIALS_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, whole)
        print(f"Wrote {path}", file=out)
    if recording is not None:
        print(f"Wrote {files.write_report(recording)}", file=out)


def _of_recording(folder: Path, known: Mapping[str, Change]) -> tuple[list[str], list[str]]:
    """Return the command of a recording, and the changes that its findings ask for.

    Raise UsageError where there is no such change, or the command is not known whole.
    """
    from profstack.privacy import MASK
    from profstack.report import files

    report = files.build(folder)
    words = report["argv"]
    if not words or any(MASK in word for word in words):
        raise UsageError(
            "the recording does not hold its whole command",
            where=str(folder),
            next_step="give the script with its arguments instead of the folder",
        )
    slugs = {found["slug"] for found in report["findings"]}
    names = [name for name, change in known.items() if slugs.intersection(change.findings)]
    if not names:
        raise UsageError(
            "none of the recording's findings has a change that can be tried",
            where=str(folder),
            next_step="give the script instead of the folder: then all changes are tried",
        )
    return [str(Path(words[0]).expanduser()), *words[1:]], names


def _duration(text: str) -> float:
    """Return seconds of `90`, `90s`, `10m` or `1h`."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    try:
        seconds = float(number) * units[unit]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 90s or 10m") from None
    if not 0 < seconds < 1e6:
        raise argparse.ArgumentTypeError(f"{format_seconds(seconds)} is no time to try for")
    return seconds
