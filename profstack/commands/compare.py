"""`profstack compare`: two sides, one answer: faster or slower, by how much, and why."""

from __future__ import annotations

import glob
import os
import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from profstack.commands import measure_sides
from profstack.commands.options import CommandParser, open_page, tell, write_both
from profstack.commands.settings import read_settings
from profstack.compare import gates
from profstack.errors import RecordingError, UsageError
from profstack.launch import target
from profstack.report import files

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from profstack.compare.sides import Side
    from profstack.storage.schema.comparison import Comparison

RAW = True
_BROKEN, _UNCLEAR = 1, 3
HELP = "Say which of two recordings is faster, by how much beyond noise, and why."

_SIDES_HELP = """\
BEFORE and AFTER are each a recording's folder or its report.json, several of the same
program separated by commas, a quoted pattern ('runs/old-*'), or a folder of recordings,
which stands for all of them. Several a side may also be written one by one:

  profstack compare BEFORE AFTER
  profstack compare BEFORE1 BEFORE2 BEFORE3 --with AFTER1 AFTER2 AFTER3

Both sides can be measured at once:

  profstack compare --run 'train.py --workers 0' --run 'train.py --workers 4'
  profstack compare --rev main --rev HEAD train.py --epochs 1
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options; a script after --rev has its own."""
    result = CommandParser("compare", HELP)
    configure(result)
    return result


def main(argv: list[str]) -> int:
    """Run the command and return the exit code."""
    options_parser = parser()
    valued = [each.option_strings for each in options_parser._actions if each.nargs is None]
    own, words = target.split(argv, frozenset(chain.from_iterable(valued)))
    if not any(word.partition("=")[0] == "--rev" for word in own):
        arguments = options_parser.parse_args(argv)
        return execute(arguments, arguments.sides)
    return execute(options_parser.parse_args(own), words)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.epilog = _SIDES_HELP
    parser.add_argument("sides", nargs="*", metavar="SIDE", help="BEFORE AFTER, see below")
    parser.add_argument(
        "--with", nargs="+", dest="after", metavar="AFTER", help="the second side's recordings"
    )
    parser.add_argument("-o", "--output", metavar="DIR", help="write compare.json and compare.html")
    parser.add_argument("--open", action="store_true", help="open the page; needs -o")
    parser.add_argument(
        "--format",
        choices=("text", "json", "markdown", "csv"),
        default="text",
        help="default: text",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    _add_gates(parser.add_argument_group("gates"))
    measure_sides.add_options(parser)


def _add_gates(group: argparse._ArgumentGroup) -> None:
    figures = ", ".join((*gates.FIGURES, "module:PATH", "operator:NAME"))
    words = f"exit with 1 where this is so beyond noise, such as 'step > 5%%'; of {figures}"
    group.add_argument("--fail-if", action="append", default=[], metavar="RULE", help=words)
    words = "exit with 3 where noise leaves it open whether a rule is kept"
    group.add_argument("--strict", action="store_true", help=words)
    words = "show broken rules beside the code (default: github where GITHUB_ACTIONS is true)"
    group.add_argument("--annotations", choices=("github", "none"), help=words)


def execute(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Compare, write the files that were asked for, and print the answer.

    `words` are the sides, or the script and its arguments where both are measured. Return 1 where a
    rule is broken, and 3 where one is unclear and `--strict` is given.
    """
    # What is wrong in the rules is said before anything is measured.
    rules, strict = _rules(arguments)
    given = measure_sides.wanted(arguments)
    if arguments.open and arguments.output is None and not given:
        raise UsageError("--open needs -o DIR", where="compare", next_step="add '-o comparison'")
    if given:
        measured = measure_sides.measure(arguments, words, gates.step_limits(rules) or (1.0,))
        arguments.output = str(measured.outcome.folder)
        comparison = measured.comparison(read_side, rules)
    else:
        from profstack.compare.comparison import compare
        from profstack.compare.noise import remember_spread

        before, after = (read_side(paths) for paths in _sides(arguments))
        comparison = compare(before, after, rules=rules)
        remember_spread((before, after))
    from profstack.report import compare_page

    # The reader of standard output may go at any time: nothing is to be lost by that.
    page = None
    if arguments.output is not None:
        page = write_both(comparison, Path(arguments.output), "compare", compare_page.write)
    code = _verdict_of_gates(comparison, strict=strict, arguments=arguments)
    _print(comparison, arguments.format)
    if page is not None:
        if arguments.format == "text":
            print(f"Wrote {page}")
        if arguments.open:
            open_page(page)
    return code


def _rules(arguments: argparse.Namespace) -> tuple[list[gates.Rule], bool]:
    """Return the rules of the command line, or else of the project's settings."""
    settings = read_settings(Path.cwd())
    strict = arguments.strict or settings.strict
    if arguments.fail_if:
        return gates.parse_all(arguments.fail_if), strict
    try:
        return gates.parse_all(settings.fail_if), strict
    except UsageError as error:
        where = f"{settings.file}, {error.where.removeprefix('--fail-if ')}"
        raise UsageError(error.what, where=where, next_step=error.next_step) from None


def _print(comparison: Comparison, form: str) -> None:
    from profstack.report import compare_markdown, terminal_compare
    from profstack.report.screen import fitting

    texts: dict[str, Callable[[Comparison], str]] = {
        "json": files.text,
        "csv": terminal_compare.as_csv,
        "markdown": compare_markdown.markdown,
        "text": terminal_compare.text,
    }
    sys.stdout.write(fitting(texts[form](comparison), sys.stdout.encoding))
    sys.stdout.flush()


def _verdict_of_gates(
    comparison: Comparison, *, strict: bool, arguments: argparse.Namespace
) -> int:
    """Print what became of the rules on standard error, and return the exit code."""
    from profstack.report.screen import printable

    results = [gate["result"] for gate in comparison["gates"]]
    for gate in comparison["gates"]:
        # Names of files are of the reports, and may hold anything.
        tell(printable(f"profstack: {gate['result']}: {gate['rule']} ({gate['text']})"))
    if "unclear" in results and not strict:
        tell("profstack: an unclear rule fails with --strict only; more processes decide it")
    wanted = arguments.annotations or (
        "github" if os.environ.get("GITHUB_ACTIONS") == "true" else "none"
    )
    if wanted == "github":
        from profstack.report import annotations

        top = os.environ.get("GITHUB_WORKSPACE") or os.getcwd()
        for line in annotations.github(comparison, top):
            # The runner reads both streams; standard output may be a file of Markdown.
            print(line, file=sys.stderr, flush=True)
    if "broken" in results:
        return _BROKEN
    return _UNCLEAR if strict and "unclear" in results else 0


def _sides(arguments: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Return the paths of both sides as they were given."""
    given, after = arguments.sides, arguments.after
    if after is not None:
        if not given:
            what = "the first side is missing before --with"
            raise UsageError(what, where="compare", next_step="write 'compare BEFORE --with AFTER'")
        return given, after
    if len(given) != 2:
        what = f"two sides are needed, {len(given)} given"
        several = "'compare BEFORE1 BEFORE2 --with AFTER1 AFTER2'"
        next_step = f"write 'compare BEFORE AFTER'; several recordings a side: {several}"
        raise UsageError(what, where="compare", next_step=next_step)
    return [given[0]], [given[1]]


def read_side(paths: Sequence[str], *, label: str | None = None) -> Side:
    """Return the recordings that `paths` name as one side; `label` is what to call it."""
    from profstack.compare.inequalities import script_name
    from profstack.compare.sides import Side

    folders = [folder for path in paths for folder in _recordings(path)]
    folders = list(dict.fromkeys(folders))
    reports = [files.load(folder, _PARTS) for folder in folders]
    scripts = list(dict.fromkeys(str(script_name(report)) for report in reports))
    if len(scripts) > 1:
        what = f"recordings of {len(scripts)} programs: {', '.join(scripts)}"
        next_step = "a side is one program; name its recordings one by one, or a pattern"
        raise RecordingError(what, where=", ".join(paths), next_step=next_step)
    names = [str(folder) for folder in folders]
    return Side(label or ", ".join(str(path) for path in paths), reports, names)


# Parts that a comparison reads, with their keys. Nothing is filled in: a table without rows would
# mean that all of it was new on the other side.
_PARTS = {
    "benchmark": (
        "median_s", "mean_s", "p90_s", "p99_s", "cpu_mean_s", "first_step_s", "n", "steps_per_s",
        "items_per_s", "throughput",
    ),
    "environment": (), "setup": (), "run": ("items_per_s",), "processes": ("no_core_s", "step_s"),
    "launching": ("operators",), "step_bar": ("parts",),
    "requests": ("p50_s", "p90_s", "p99_s"),
    "tokens": ("first_token_p50_s", "later_token_s", "new_tokens_per_s"),
    "script": (), "argv": (), "status": (), "sources": (), "layers": (), "findings": (),
    "warnings": (), "step": ("batch_size", "phase", "count", "shapes"),
    "tables": ("kernels", "memory_owners", "peak_holders", "flops"),
}  # fmt: skip


def _recordings(given: str) -> list[Path]:
    """Return the recordings that one argument names, in the order of their names."""
    if Path(given).exists():
        return files.all_recordings(Path(given))
    if "," in given:
        return [folder for part in given.split(",") if part for folder in _recordings(part)]
    matches = sorted(glob.glob(given))
    if not matches:
        next_step = "name a recording's folder, or make one with 'profstack run script.py'"
        raise RecordingError("no such recording", where=given, next_step=next_step)
    return [folder for match in matches for folder in files.all_recordings(Path(match))]
