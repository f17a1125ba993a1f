"""Write the reference pages in docs/reference from the code that they describe.

    python scripts/make_reference.py            write the pages
    python scripts/make_reference.py --check    exit code 1 where a page is not current

The pages are committed, so that they can be read where the repository is.
tests/project/test_docs.py compares them with the code.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

if TYPE_CHECKING:
    from profstack.storage.schema.column import Column

CHECKOUT = Path(__file__).resolve().parent.parent
REFERENCE = CHECKOUT / "docs" / "reference"
NOTE = "<!-- Made by scripts/make_reference.py: edit the code it names, not this page. -->"

_EXIT_CODES = (
    ("the script's", "`profstack run`: whatever the script ended with, also where no page is made"),
    ("128 + n", "the script was killed by signal n, as a shell says it (SIGTERM: 143)"),
    ("130", "interrupted by Ctrl-C; `profstack run` then ends by SIGINT itself, as the script did"),
    ("141", "the reader of standard output has gone (a closed pipe)"),
    ("2", "an error of profstack's own, in one line: what, where, next step"),
    ("1", ("`profstack doctor`: something that profstack needs does not work here; "
          "`profstack bench`: the target raised an error; "
          "`profstack check`: the step differs from its lock; "
          "`profstack compare --fail-if`: a rule is broken")),
    ("3", "`profstack compare --strict`: noise leaves it open whether a rule is kept"),
    ("0", "everything else"),
)  # fmt: skip

# Every variable that the code reads or sets; `None` for those between profstack's own processes.
_VARIABLES: dict[str, str | None] = {
    "PROFSTACK": "`0` switches profstack off: `profstack run` only runs the script, a `Session` "
    "does nothing",
    "PROFSTACK_PEAKS": "`0`: never measure the machine's peaks, as `--no-peaks`",
    "XDG_CACHE_HOME": "the folder in which the measured peaks and the page's packed charts are "
    "kept (default: `~/.cache`)",
    "GITHUB_ACTIONS": "`true`: `profstack compare` prints annotations for GitHub, as with "
    "`--annotations github`",
    "GITHUB_WORKSPACE": "the folder in which annotations name files (default: the working folder)",
    "NO_COLOR": "set: no colours in the terminal",
    "TERM": "`dumb`: no colours in the terminal",
    "RANK": "the rank of this process, as torchrun and accelerate set it",
    "WORLD_SIZE": "the number of ranks",
    "SLURM_PROCID": "the rank, where `RANK` is not set",
    "GROUP_RANK": "the number of this machine in the launch, as torchrun sets it",
    "SLURM_NODEID": "the same under srun",
    "TORCHELASTIC_RUN_ID": "with `MASTER_PORT`: what all ranks of one launch have in common",
    "MASTER_PORT": "see `TORCHELASTIC_RUN_ID`",
    "SLURM_JOB_ID": "with `SLURM_STEP_ID`: the same under srun",
    "SLURM_STEP_ID": "see `SLURM_JOB_ID`",
    "NSYS_PROFILING_SESSION_ID": "set by Nsight Systems: only the layers `nvtx` and `watch` are on",
    "NVTX_INJECTION64_PATH": "set by a tool that listens to NVTX ranges, such as Nsight Systems",
    "NVTX_DISABLE": "set: the package nvtx makes no ranges, and the layer `nvtx` is unavailable",
    "KINETO_LOG_LEVEL": "set to `6` while torch.profiler runs, so that it prints nothing; put back",
    "PYTHONPATH": "begins with a folder of profstack's for one start of the script's interpreter; "
    "put back before the script's first line",
    "PROFSTACK_CHILD": None,
    "PROFSTACK_CHILD_OPTIONS": None,
    "PROFSTACK_PYTHONPATH": None,
    "PROFSTACK_LAUNCHED": None,
}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, *rows]
    cells = [[" ".join(cell.replace("|", "\\|").split()) for cell in line] for line in lines]
    text = [f"| {' | '.join(line)} |" for line in cells]
    text.insert(1, "|---" * len(head) + "|")
    return "\n".join(text)


def page(title: str, *parts: str) -> str:
    """Return a page of these paragraphs, tables and sections."""
    return "\n\n".join([NOTE, f"# {title}", *parts]) + "\n"


def prose(text: str) -> str:
    """Return a docstring's or a help's text as one paragraph each, wrapped."""
    paragraphs = re.split(r"\n\s*\n", textwrap.dedent(text).strip())
    return "\n\n".join(textwrap.fill(" ".join(each.split()), 100) for each in paragraphs)


# The command line ---------------------------------------------------------------------------------


def _parser(command: str) -> argparse.ArgumentParser:
    from profstack.commands import MODULES
    from profstack.commands.options import CommandParser

    module = import_module(f"profstack.commands.{MODULES.get(command, command)}")
    if getattr(module, "RAW", False):
        made: argparse.ArgumentParser = module.parser()
        return made
    parser = CommandParser(command, module.HELP)
    module.configure(parser)
    return parser


def _option(action: argparse.Action) -> tuple[str, str]:
    """The row of an option or an argument."""
    value = "" if action.nargs == 0 else f" {_metavar(action)}"
    names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{_metavar(action)}`"
    named = names[:-1] + f"{value}`" if action.option_strings else names
    parts = [action.help or ""]
    if action.choices is not None:
        parts.append("one of " + ", ".join(f"`{choice}`" for choice in action.choices))
    if action.default not in (None, False, [], argparse.SUPPRESS) and "default" not in parts[0]:
        parts.append(f"default: `{action.default}`")
    return named, "; ".join(part for part in parts if part)


def _metavar(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    return action.dest.upper()


def command_line() -> str:
    """The page of all commands and their options."""
    from profstack.commands import SUMMARIES, command_names

    names = command_names()
    parts = [
        (
            "`profstack COMMAND --help` prints the same. `python -m profstack` is the same "
            "program. The options of `run` stand before the script; everything after it belongs "
            "to the script."
        ),
        table(
            ("command", "does"),
            [(f"[{name}](#profstack-{name})", SUMMARIES[name]) for name in names],
        ),
    ]
    for name in names:
        parser = _parser(name)
        parts += [f"## profstack {name}", prose(parser.description or ""), *_usage(parser)]
        shown = [each for each in parser._actions if each.help != argparse.SUPPRESS]
        parts.append(table(("option", "meaning"), map(_option, shown)))
    return page("Command line", *parts)


def _usage(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The usage and what stands below the options."""
    parser.formatter_class = lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=88)
    usage = parser.format_usage().removeprefix("usage: ").strip()
    indent = re.sub(r"\n {7}", "\n", usage)
    yield f"```text\n{indent}\n```"
    if parser.epilog:
        yield f"```text\n{parser.epilog.strip()}\n```"


# Findings, verdicts, warnings, layers -------------------------------------------------------------


def findings() -> str:
    """The page of all findings."""
    from profstack.findings.rules import RULES

    parts = [
        (
            "A finding names a problem, its place, the rows it rests on, what to change, and, "
            "where that can be known, what the change gains per clean step (`gain_s`). The rules "
            "are fixed. A run without findings is one in which no rule fired, not one without "
            "problems. `profstack show --findings` prints what was found in a run."
        )
    ]
    for rule in RULES:
        parts += [
            f"## {rule.slug}",
            f"**{rule.title}.**",
            prose(rule.rule),
            f"`gain_s`: {rule.gain}",
        ]
    return page("Findings", *parts)


def verdicts() -> str:
    """The page of all verdicts."""
    from profstack.findings.rules import LEAST_APART, OTHERS, SHOWN_INTERVAL, VERDICT_RULES

    rows = [
        (f"`{rule.slug}`", rule.measure, f"{100 * rule.threshold:.0f} %", rule.remedy)
        for rule in VERDICT_RULES
    ]
    return page(
        "Verdicts",
        "One sentence says what limits the clean step. Every test measures a share of it. The "
        "tests that reach their threshold are candidates, and the one with the largest share is "
        "the verdict. The margin is by how much its share could shrink and it would still be the "
        "verdict. A verdict is `certain` where the margin is "
        f"{100 * LEAST_APART:.0f} points of a hundred or more, nothing that is not known could be "
        f"as large, and the median is known within {100 * SHOWN_INTERVAL:.0f} %; else it is "
        "`likely`. Its `action` is the finding that gains most, or else what is usually done. "
        "`profstack show --verdict` prints every test of a run.",
        table(("verdict", "share of the clean step", "from", "what is usually done"), rows),
        "Without one that wins, of which balanced and unclear are a `hint`:",
        table(("verdict", "when"), [(f"`{slug}`", text) for slug, text in OTHERS.items()]),
    )


def warnings() -> str:
    """The page of all warnings."""
    from profstack.findings.rules import WARNINGS

    return page(
        "Warnings",
        "A warning says what was not measured, or what a figure must not be taken for.",
        table(("warning", "says that"), [(f"`{slug}`", text) for slug, text in WARNINGS.items()]),
    )


def layers() -> str:
    """The page of the built-in layers, in the words of their wrappers."""
    from profstack import layer

    parts = [
        (
            "Each layer is driven by one file in `wrappers/`. The page of a run says the same, "
            "with how much each layer slowed the steps it watched. Other packages "
            "[can add layers](../layers.md)."
        )
    ]
    on_request: Mapping[str, str] = getattr(layer, "ON_REQUEST", {})
    for name in (*layer.BUILT_IN, *on_request):
        kind = layer.load(name)
        words = kind.description
        facts = {
            "by": f"{words.tool}, {words.technique}",
            "measures": words.measures,
            "does not measure": words.does_not_measure,
            "usual slowdown": words.usual_slowdown,
            "conflicts with": words.conflicts,
            "occupies": ", ".join(f"`{each}`" for each in sorted(kind.occupies)) or "nothing",
        }
        if name in on_request:
            facts["used"] = f"only where it is asked for: `--layers {name}`"
        for own in getattr(kind, "tables", ()):
            facts[f"table `{own.name}`"] = own.text
        parts += [f"## {name}", table(("", ""), facts.items())]
    return page("Layers", *parts)


# Tables and report.json ---------------------------------------------------------------------------

_SENSES = {
    "clean": "measured with no layer on",
    "calibrated": "seen by a layer, and given at the speed of the clean steps",
    "raw": "as the layer saw it, with the layer's own cost",
    "counted": "an exact count",
    "rate": "a count of the layer `flops` over a calibrated time",
    "fact": "no measurement: a line, a size, an index",
    "mixed": "each row says its own",
}


def tables() -> str:
    """The page of the report's tables and their columns."""
    from profstack.storage.schema.column import SENSES
    from profstack.storage.schema.report import REPORT, Tables

    if set(SENSES) != _SENSES.keys():
        raise ValueError("the senses of columns have changed: see _SENSES")
    hints = get_type_hints(Tables)
    parts = [
        (
            "The tables stand in `report.json` under `tables`, in `Recording.frames` as pandas "
            "frames, and `profstack show --table NAME` prints one. Times and counts are per step, "
            "and times are host times unless the name says `device`. A column's unit is the end "
            "of its name: `_s` seconds, `_bytes`, `_flop`, `_mac`, `_per_s`. An empty cell was "
            "not measured; it is not 0."
        ),
        "A column's kind says how to read its numbers:",
        table(("kind", "meaning"), [(f"`{name}`", text) for name, text in _SENSES.items()]),
        ", ".join(f"[{name}](#{name})" for name in REPORT),
    ]
    for name, each in REPORT.items():
        row = get_args(hints[name])[0]
        given = f" Given by the layer `{each.given_by}`." if each.given_by else ""
        rows = [
            (f"`{column.name}`", column.label, _meaning_of(column), _kind_of(column))
            for column in each.columns
        ]
        head = ("column", "heading", "meaning", "unit, kind, layer")
        parts += [f"## {name}", f"Each row: {_sentence(row)}.{given}", table(head, rows)]
    return page("Tables and columns", *parts)


def _meaning_of(column: Column) -> str:
    """The meaning of a column, and the reasons that it may be empty."""
    parts = [column.meaning]
    if column.empty:
        parts.append(f"*Empty:* {column.empty}.")
    if column.cell:
        parts.append(f"*Single cells empty:* {column.cell}.")
    return "<br>".join(parts)


def _kind_of(column: Column) -> str:
    """The unit of a column, and how to read its numbers."""
    return ", ".join(each for each in (column.unit, column.sense, column.layer) if each)


def report_json() -> str:
    """The page of every field of report.json."""
    from profstack.storage.schema.report import Report, Tables

    parts = [
        (
            "`report.json` holds the same facts as the page, for programs. Its names are a "
            "contract: a change of meaning raises `schema_version`. The JSON schema ships with "
            "the package as `profstack/report/report.schema.json`. What was not measured is null, "
            "never 0."
        ),
    ]
    waiting: list[type] = [Report]
    seen: list[type] = []
    while waiting:
        kind = waiting.pop(0)
        if kind in seen or kind is Tables:
            continue
        seen.append(kind)
        rows = []
        inner: list[type] = []
        for name, hint in get_type_hints(kind, include_extras=True).items():
            shown = _type(hint, inner)
            rows.append((f"`{name}`", shown, _meaning(hint)))
        waiting = inner + waiting
        parts += [f"## {kind.__name__}", prose(kind.__doc__ or "")]
        parts.append(table(("field", "type", "meaning"), rows))
    return page("report.json", *parts)


def _meaning(hint: object) -> str:
    """The meaning that a field declares, or that of the one object it holds."""
    from profstack.storage.schema.column import declaration

    inner: list[type] = []
    _type(hint, inner)
    _, meaning, _ = declaration(hint)
    return meaning or next((_sentence(kind) for kind in inner[:1]), "")


def _sentence(kind: type) -> str:
    """The first line of a type's docstring as a phrase."""
    text = (kind.__doc__ or "").strip().partition("\n")[0].rstrip(".")
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


_JSON = {str: "text", float: "number", int: "whole number", bool: "true or false", object: "any"}


def _type(hint: Any, found: list[type]) -> str:
    """A type in words; the typed dictionaries in it are added to `found`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _type(arguments[0], found)
    if origin in (Union, UnionType):
        options = [each for each in arguments if each is not NoneType]
        words = [_type(each, found) for each in options]
        return " or ".join([*words, "null"] if NoneType in arguments else words)
    if origin is Literal:
        return ", ".join(f"`{each}`" for each in arguments)
    if origin is list:
        return f"list of {_type(arguments[0], found)}"
    if origin is not None and issubclass(origin, Mapping):
        return f"object, each value {_type(arguments[1], found)}"
    if is_typeddict(hint):
        if hint.__name__ == "Tables":
            return "[tables](tables.md)"
        found.append(hint)
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    return "null" if hint is NoneType else _JSON.get(hint, getattr(hint, "__name__", str(hint)))


# Exit codes and environment variables -------------------------------------------------------------


def environment() -> str:
    """The page of exit codes and environment variables."""
    read = set(_variables_in(CHECKOUT))
    unknown, gone = read - _VARIABLES.keys(), _VARIABLES.keys() - read
    if unknown or gone:
        raise ValueError(f"variables without a meaning: {unknown}; no longer read: {gone}")
    named = {name: text for name, text in _VARIABLES.items() if text is not None}
    hidden = ", ".join(f"`{name}`" for name, text in _VARIABLES.items() if text is None)
    return page(
        "Exit codes and environment variables",
        "## Exit codes",
        table(("exit code", "when"), _EXIT_CODES),
        "## Environment variables",
        table(("variable", "meaning"), [(f"`{name}`", text) for name, text in named.items()]),
        f"Between profstack's own processes, and gone before the script's first line: {hidden}.",
        "The page names which variables that change speed were set (`OMP_NUM_THREADS` and the "
        "like). Their values are never recorded.",
    )


def _variables_in(checkout: Path) -> Iterator[str]:
    """Find the environment variables that functions of the package read or set, by their names."""
    for folder in ("profstack", "wrappers"):
        for path in sorted((checkout / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "environ" in text and "profstack/wrappers" not in path.as_posix():
                yield from _variables(ast.parse(text))


def _variables(tree: ast.Module) -> Iterator[str]:
    """Find the words in capitals in the functions that use `os.environ`, or a reader of it."""
    named = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        nodes = list(ast.walk(function))
        words = {getattr(node, "attr", getattr(node, "id", "")) for node in nodes}
        if not words & {"environ", "_int_variable"}:
            continue
        # A constant of the module that holds one name; a list of names is only looked up in.
        nodes += [named[word] for word in words & named.keys()]
        for node in nodes:
            value = node.value if isinstance(node, ast.Constant) else None
            if isinstance(value, str) and re.fullmatch(r"[A-Z][A-Z0-9_]{3,}", value):
                yield value


PAGES: dict[str, Callable[[], str]] = {
    "command-line.md": command_line,
    "findings.md": findings,
    "verdicts.md": verdicts,
    "warnings.md": warnings,
    "layers.md": layers,
    "tables.md": tables,
    "report-json.md": report_json,
    "environment.md": environment,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pages, or compare them with the code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args(argv).check
    stale = []
    for name, make in PAGES.items():
        path, text = REFERENCE / name, make()
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    verb = "not current" if check else "written"
    sys.stdout.write(f"{verb}: {', '.join(stale) or 'none'}\n")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.path.insert(0, str(CHECKOUT))
    sys.exit(main())
