"""Would a test notice? Change one place of the package at a time and run the tests of its module.

    python scripts/mutants.py                                      what `make mutants` judges
    python scripts/mutants.py --only profstack/stats --count 60    more of one folder or file
    python scripts/mutants.py --only profstack/units.py --list  the places and changes alone
    python scripts/mutants.py --earlier RUN.log  what a run printed: its killers are asked first

The changes ("mutants") are those of Cosmic Ray where they fit, and five that this field needs:
median for mean and the like, swapped operands, first for last, a number halved or doubled, a
statement dropped. The page's scripts get the same ones. A place is drawn by a hash of its own
text, so that a change elsewhere in the package leaves the sample as it is.

A mutant of `profstack/stats/summary.py` is tried with `tests/unit/stats/test_summary.py` and
`tests/process/test_summary.py`, then with the rest of `tests/unit/stats`; one of `table.js` with
`tests/browser/test_table.py`. One that no test can kill, since it changes nothing that anybody
could see, stands in tests/support/equivalent_mutants.json with the reason, and is not counted.

Exit code 1: fewer than 85 % killed, or fewer than 80 % of a package.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cosmic_ray.plugins
import parso
from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.ast.ast_query import ASTQuery
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator

CHECKOUT = Path(__file__).resolve().parent.parent
EQUIVALENT = CHECKOUT / "tests" / "support" / "equivalent_mutants.json"
SEED = 15
COUNT = 440
LEAST_PER_PACKAGE = 15
LEAST_KILLED = 0.85
LEAST_KILLED_PER_PACKAGE = 0.80
SHORTEST_LIMIT_S = 60.0
# Declarations, and what is empty: nothing there computes or decides.
LEFT_OUT = re.compile(r"storage/schema/|/injected/|__init__\.py$|profstack/wrappers/")
SCRIPTS = "profstack/report/templates"

_CORE = (
    *("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_FloorDiv", "Pow_Mul"),
    *("Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt"),
    *("Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is", "USub_UAdd", "Delete_Not"),
    *("AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr"),
    *("ReplaceOrWithAnd", "ReplaceBreakWithContinue", "ReplaceContinueWithBreak"),
    *("ZeroIterationForLoop", "ExceptionReplacer"),
)
_SWAPPED = ("min max", "any all", "median mean", "floor ceil", "first last", "append extend")
_OTHER_NAME = {
    name: other
    for pair in _SWAPPED
    for name, other in (pair.split(), pair.split()[::-1])
    if name != "extend"
}
_ORDERED = frozenset({"-", "/", "//", "%"})

Position = tuple[int, int]


class OwnOperator(Operator):  # type: ignore[misc]
    """An operator of this field. Cosmic Ray asks each for examples, for tests of its own."""

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


class SwapNames(OwnOperator):
    """Another function of the same kind: the mean for the median, any for all."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Position, Position]]:
        if node.type == "name" and node.value in _OTHER_NAME:
            follower = node.get_next_leaf()
            if follower is not None and follower.value == "(":
                yield (node.start_pos, node.end_pos)

    def mutate(self, node: Any, index: int) -> Any:
        node.value = _OTHER_NAME[node.value]
        return node


class SwapOperands(OwnOperator):
    """`b - a` for `a - b`."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Position, Position]]:
        of_two = node.type in ("arith_expr", "term") and len(node.children) == 3
        if of_two and node.children[1].value in _ORDERED:
            yield (node.start_pos, node.end_pos)

    def mutate(self, node: Any, index: int) -> Any:
        left, _, right = node.children
        prefix = left.get_first_leaf().prefix
        left.get_first_leaf().prefix = " "
        right.get_first_leaf().prefix = prefix
        node.children[0], node.children[2] = right, left
        return node


class SwapEnds(OwnOperator):
    """The last for the first, and the other way round."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Position, Position]]:
        if node.type == "trailer" and node.get_code(include_prefix=False) in ("[0]", "[-1]"):
            yield (node.start_pos, node.end_pos)

    def mutate(self, node: Any, index: int) -> Any:
        other = "[-1]" if node.get_code(include_prefix=False) == "[0]" else "[0]"
        return parso.parse(other)  # type: ignore[no-untyped-call]  # parso has types for some


class ScaleNumber(OwnOperator):
    """A limit doubled or halved; one more or one less where it is a small whole number."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Position, Position]]:
        if node.type == "number" and "j" not in node.value.lower():
            for _ in range(2):
                yield (node.start_pos, node.end_pos)

    def mutate(self, node: Any, index: int) -> Any:
        value = ast.literal_eval(node.value)
        if isinstance(value, int) and value < 10:
            other: float = value + 1 if index == 0 else value - 1
        elif isinstance(value, int):
            other = value * 2 if index == 0 else value // 2
        else:
            other = (value * 2 if index == 0 else value / 2) if value else 0.5
        node.value = repr(other)
        return node


class DropStatement(OwnOperator):
    """`pass` for a call, a raise, or an assignment to an attribute or an item."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Position, Position]]:
        if node.type != "simple_stmt" or node.parent.type == "file_input":
            return
        first = node.children[0]
        calls = first.type in ("atom_expr", "await") and first.get_last_leaf().value == ")"
        assigns = first.type == "expr_stmt" and first.children[0].type in ("atom_expr", "power")
        adds = first.type == "expr_stmt" and first.children[1].get_code().strip() in ("+=", "-=")
        if calls or assigns or adds or first.type == "raise_stmt":
            yield (first.start_pos, first.end_pos)

    def mutate(self, node: Any, index: int) -> Any:
        passes = node.get_first_leaf().prefix + "pass"
        node.children[0] = parso.parse(passes)  # type: ignore[no-untyped-call]  # as above
        return node


def operators() -> dict[str, Operator]:
    """All operators by name; Cosmic Ray's keep theirs."""
    kinds = ("ReplaceBinaryOperator_", "ReplaceComparisonOperator_", "ReplaceUnaryOperator_", "")
    known = set(cosmic_ray.plugins.operator_names())
    named: dict[str, Operator] = {}
    for name in _CORE:
        full = next(f"core/{kind}{name}" for kind in kinds if f"core/{kind}{name}" in known)
        named[name] = cosmic_ray.plugins.get_operator(full)()
    own = (SwapNames, SwapOperands, SwapEnds, ScaleNumber, DropStatement)
    return named | {kind.__name__: kind() for kind in own}


@dataclass(frozen=True)
class Mutant:
    """One change of one place."""

    path: str
    line: int
    operator: str
    before: str
    after: str
    source: str
    rank: str

    @property
    def package(self) -> str:
        return package_of(self.path)

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.path, self.before, self.after)

    def text(self) -> str:
        return f"{self.path}:{self.line} {self.operator}\n    - {self.before}\n    + {self.after}"


def package_of(path: str) -> str:
    """The folder that a table of results names."""
    if path.endswith(".js"):
        return "the page's scripts"
    folder = str(Path(path).parent).removeprefix("profstack/")
    return {"profstack": "profstack", "storage/schema": "storage"}.get(folder, folder)


def _rank(*parts: object) -> str:
    return hashlib.sha1("\0".join(map(str, (SEED, *parts))).encode()).hexdigest()


def _changed_lines(source: str, changed: str) -> tuple[int, str, str]:
    """The first changed line's number, and both texts of what changed, on one line each."""
    one, two = source.splitlines(), changed.splitlines()
    matcher = difflib.SequenceMatcher(None, one, two, autojunk=False)
    for tag, first, last, begin, end in matcher.get_opcodes():
        if tag != "equal":
            before = " ".join(line.strip() for line in one[first:last])
            after = " ".join(line.strip() for line in two[begin:end])
            return first + 1, before, after
    return 0, "", ""


def _skipped_spans(tree: ast.Module) -> list[tuple[Position, Position]]:
    """Annotations and what is imported for them alone: nothing runs there."""
    nodes: list[ast.AST] = []
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            nodes += [part] if (part := getattr(node, field, None)) else []
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            nodes.append(node)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("TypeVar", "cast"):
            nodes.append(node)
    return [
        ((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0))
        for node in nodes
        if isinstance(node, ast.expr | ast.stmt)
    ]


@dataclass(frozen=True)
class Place:
    """A place of a Python file that an operator can change, and which of its occurrences it is."""

    path: str
    operator: str
    occurrence: int
    start: Position
    rank: str


def python_places(path: Path) -> list[Place]:
    """The places of one module, one operator each, in the order of their hashes."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    spans = _skipped_spans(ast.parse(source))
    relative = path.relative_to(CHECKOUT).as_posix()
    seen: dict[tuple[str, str, str], int] = defaultdict(int)
    found: dict[tuple[Position, Position], list[Place]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    named = operators()
    for node in ast_nodes(get_ast_from_path(path)):
        for name, operator in named.items():
            for start, end in operator.mutation_positions(node):
                occurrence = counts[name]
                counts[name] += 1
                if any(first <= start and end <= last for first, last in spans):
                    continue
                text = lines[start[0] - 1].strip()
                where = (name, text, ASTQuery(node).get_definition_name() or "")
                rank = _rank(relative, *where, seen[where])
                seen[where] += 1
                found[start, end].append(Place(relative, name, occurrence, start, rank))
    return sorted((min(each, key=lambda place: place.rank) for each in found.values()), key=_by)


def _by(place: Place | Mutant) -> str:
    return place.rank


def python_mutant(place: Place) -> Mutant | None:
    """The mutant of a place; None where the code stays the same."""
    source = (CHECKOUT / place.path).read_text(encoding="utf-8")
    changed = mutate_code(source, operators()[place.operator], place.occurrence)
    if changed is None:
        return None
    with contextlib.suppress(SyntaxError):
        if ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source)):
            line, before, after = _changed_lines(source, changed)
            return Mutant(place.path, line, place.operator, before, after, changed, place.rank)
    return None


_SCRIPT_TOKENS = {
    "<": ("<=", ">="),
    "<=": ("<", ">"),
    ">": (">=", "<="),
    ">=": (">", "<"),
    "===": ("!==",),
    "!==": ("===",),
    "&&": ("||",),
    "||": ("&&",),
    "??": ("&&",),
    "+": ("-",),
    "-": ("+",),
    "*": ("/",),
    "/": ("*",),
    "+=": ("-=",),
    "-=": ("+=",),
    "true": ("false",),
    "false": ("true",),
}
_SCRIPT_NAMES = {"min": "max", "max": "min", "some": "every", "every": "some"} | {
    "floor": "ceil",
    "ceil": "floor",
}


def script_mutants(path: Path) -> list[Mutant]:
    """The mutants of one of the page's scripts, in the order of their hashes."""
    import tree_sitter
    import tree_sitter_javascript

    source = path.read_bytes()
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_javascript.language()))
    relative = path.relative_to(CHECKOUT).as_posix()
    lines = source.decode().splitlines()
    seen: dict[tuple[str, str], int] = defaultdict(int)
    found: list[Mutant] = []
    for start, end, other, name in _script_changes(parser.parse(source).root_node):
        changed = (source[:start] + other.encode() + source[end:]).decode()
        line = source[:start].count(b"\n") + 1
        where = (name, lines[line - 1].strip())
        rank = _rank(relative, *where, other, seen[where])
        seen[where] += 1
        _, before, after = _changed_lines(source.decode(), changed)
        found.append(Mutant(relative, line, name, before, after, changed, rank))
    return sorted(found, key=_by)


def _script_changes(root: Any) -> Iterator[tuple[int, int, str, str]]:
    """Where a script's text may be replaced, by what, and the name of the operator."""
    stack = [root]
    while stack:
        node = stack.pop()
        stack += node.children
        text = node.text.decode() if node.child_count == 0 else ""
        parent = node.parent.type if node.parent else ""
        if text in _SCRIPT_TOKENS and (node.is_named or parent.endswith("expression")):
            for other in _SCRIPT_TOKENS[text]:
                yield node.start_byte, node.end_byte, other, "Replace"
        elif node.type == "number":
            number = float(text) if re.fullmatch(r"[\d._eE+-]+", text) else 0.0
            other = str(int(number) + 1) if number < 10 and number % 1 == 0 else str(number * 2)
            yield node.start_byte, node.end_byte, other, "ScaleNumber"
        elif node.type == "property_identifier" and text in _SCRIPT_NAMES:
            yield node.start_byte, node.end_byte, _SCRIPT_NAMES[text], "SwapNames"
        elif node.type == "parenthesized_expression" and parent == "if_statement":
            yield node.start_byte, node.end_byte, f"(!{node.text.decode()})", "AddNot"
        elif node.type == "expression_statement" and parent == "statement_block":
            yield node.start_byte, node.end_byte, ";", "DropStatement"


def modules() -> list[Path]:
    """Every module of the package and every script of the page that a mutant may be of."""
    found = [
        path
        for folder in ("profstack", "wrappers")
        for path in (CHECKOUT / folder).rglob("*.py")
        if not LEFT_OUT.search(path.relative_to(CHECKOUT).as_posix())
    ]
    return sorted([*found, *(CHECKOUT / SCRIPTS).glob("*.js")])


def sample(chosen: Sequence[Path], count: int, least: int) -> list[Mutant]:
    """Draw mutants: of each package a share by its number of places, and `least` at least."""
    with ProcessPoolExecutor() as pool:
        each = list(pool.map(_candidates, chosen))
    packages: dict[str, list[Place | Mutant]] = defaultdict(list)
    for candidates in each:
        for candidate in candidates:
            packages[package_of(candidate.path)].append(candidate)
    total = sum(len(candidates) for candidates in packages.values())
    drawn: list[Mutant] = []
    for candidates in packages.values():
        wanted = max(least, round(count * len(candidates) / total))
        of_package: list[Mutant] = []
        for candidate in sorted(candidates, key=_by):
            made = candidate if isinstance(candidate, Mutant) else python_mutant(candidate)
            of_package += [made] if made is not None else []
            if len(of_package) == wanted:
                break
        drawn += of_package
    return drawn


def _candidates(path: Path) -> Sequence[Place | Mutant]:
    return script_mutants(path) if path.suffix == ".js" else python_places(path)


# --- Trying them ---


def stages(path: str, checkout: Path) -> list[list[str]]:
    """The test files that try a module: first those of its name, then the others of its package."""
    name = Path(path).stem
    if path.endswith(".js"):
        own = [f"tests/browser/test_{name}.py"]
        return [[file for file in own if (checkout / file).exists()]]
    inner = str(Path(path).parent).removeprefix("profstack").strip("/")
    folder = Path("tests/unit") / inner
    own = [str(folder / f"test_{name}.py"), f"tests/process/test_{name}.py"]
    rest = [
        str(file.relative_to(checkout)) for file in sorted((checkout / folder).glob("test_*.py"))
    ]
    return [
        [file for file in own if (checkout / file).exists()],
        [file for file in rest if file not in own],
    ]


def _copy_checkout(target: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (CHECKOUT / name).exists() or (CHECKOUT / name).is_symlink():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / name, target / name, follow_symlinks=False)


class Sandbox:
    """A copy of the checkout in which this process tries mutants, one at a time."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mutants-"))
        _copy_checkout(self.folder)
        # Imported once: each try is a fork of this process, which has them already.
        for name in ("torch", "numpy", "pandas", "jinja2", "jsonschema", "hypothesis", "pytest"):
            with contextlib.suppress(ImportError):
                __import__(name)
        # A file changed within a second and of the same length would be taken from the cache of
        # compiled code: each mutant gets a time of its own.
        self.clock = int(time.time()) + 1_000
        self.passed: dict[str, bool] = {}

    def run(self, files: Sequence[str], limit_s: float) -> tuple[str, float, str]:
        """Run test files in a fork: "passed", "failed" or "timeout", the seconds, the output."""
        log = self.folder / "mutants.log"
        begun = time.monotonic()
        child = os.fork()
        if child == 0:
            _test(self.folder, files, log)
        while time.monotonic() - begun < limit_s:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                word = "passed" if code in (0, 5) else "failed"
                break
            time.sleep(0.02)
        else:
            word = "timeout"
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        if word == "timeout":
            os.waitpid(child, 0)
        return word, time.monotonic() - begun, log.read_text(errors="replace")

    def passes(self, test: str) -> bool:
        """Whether a test exists and passes as the checkout is; it is asked once."""
        if test not in self.passed:
            self.passed[test] = self.run([test], SHORTEST_LIMIT_S)[0] == "passed"
        return self.passed[test]

    @contextlib.contextmanager
    def changed(self, mutant: Mutant) -> Iterator[None]:
        """Put the mutant in the module's place."""
        file = self.folder / mutant.path
        kept = file.read_bytes()
        times = (file.stat().st_atime, file.stat().st_mtime)
        self.clock += 10
        try:
            file.write_text(mutant.source, encoding="utf-8")
            os.utime(file, (self.clock, self.clock))
            yield
        finally:
            file.write_bytes(kept)
            os.utime(file, times)


def _test(folder: Path, files: Sequence[str], log: Path) -> None:
    """Run pytest in this process, which is a fork, and end it."""
    code = 70
    try:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(output, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(folder)
        os.environ["PYTHONPATH"] = str(folder)
        sys.path[:] = [str(folder), *(path for path in sys.path if path != str(CHECKOUT))]
        import pytest

        # Code of the sandbox is the user's own, as where pytest itself is what runs.
        sys.modules["__main__"].__file__ = pytest.__file__
        quiet = ["-x", "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist"]
        code = int(pytest.main([*quiet, "--rootdir", str(folder), *files]))
    finally:
        sys.stdout.flush()
        os._exit(code)


_sandbox: Sandbox | None = None


def _begin() -> None:
    global _sandbox
    _sandbox = Sandbox()


def _end() -> None:
    if _sandbox is not None:
        shutil.rmtree(_sandbox.folder, ignore_errors=True)


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: "killed" (by the files named), "survived", or "no tests"."""

    mutant: Mutant
    word: str
    by: str = ""


def try_module(mutants: Sequence[Mutant], killers: Mapping[str, str]) -> list[Outcome]:
    """Try the mutants of one module: each with its killer of an earlier run, then with the tests.

    The tests must pass without any mutant.
    """
    assert _sandbox is not None
    left, outcomes = [], []
    for mutant in mutants:
        killer = killers.get(mutant.text(), "")
        if killer and _sandbox.passes(killer):
            with _sandbox.changed(mutant):
                word, _, log = _sandbox.run([killer], SHORTEST_LIMIT_S)
            # What took too long may be the machine's business: all tests say more.
            if word == "failed":
                outcomes.append(Outcome(mutant, "killed", _killer(word, log)))
                continue
        left.append(mutant)
    named = stages(mutants[0].path, _sandbox.folder)
    for files in filter(None, named):
        if not left:
            break
        word, took, log = _sandbox.run(files, 1_800.0)
        if word != "passed":
            # A neighbour on the machine may spoil a test that starts processes.
            word, took, log = _sandbox.run(files, 1_800.0)
        if word != "passed":
            raise RuntimeError(f"{' '.join(files)} fail without any change:\n{log[-3000:]}")
        limit = max(SHORTEST_LIMIT_S, 5.0 * took)
        surviving = []
        for mutant in left:
            with _sandbox.changed(mutant):
                word, _, log = _sandbox.run(files, limit)
            if word == "passed":
                surviving.append(mutant)
            else:
                outcomes.append(Outcome(mutant, "killed", _killer(word, log)))
        left = surviving
    none = "" if any(named) else " (no tests)"
    return outcomes + [Outcome(mutant, "survived" + none) for mutant in left]


def _killer(word: str, log: str) -> str:
    if word == "timeout":
        return "the time limit"
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", log, re.MULTILINE)
    return failed[0] if failed else "an error of the run"


def killers_of(printed: str) -> dict[str, str]:
    """The test that killed each mutant, by the mutant's text, as an earlier run printed them."""
    mutant, test = r"(.*\n.*\n    \+ .*?)", r"(tests/\S+::\w+)\S*"
    return dict(re.findall(rf"^killed: {mutant}  {test}$", printed, re.MULTILINE))


# --- The table ---


def equivalents() -> dict[tuple[str, str, str], str]:
    """Reasons by path, line before and line after."""
    if not EQUIVALENT.exists():
        return {}
    rows = json.loads(EQUIVALENT.read_text(encoding="utf-8"))
    return {(row["path"], row["before"], row["after"]): row["reason"] for row in rows}


def table(outcomes: Iterable[Outcome], reasons: dict[tuple[str, str, str], str]) -> bool:
    """Print the table by package and the survivors; whether enough were killed."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    survivors = []
    for outcome in outcomes:
        same = outcome.word != "killed" and outcome.mutant.key in reasons
        column = 2 if same else 0 if outcome.word == "killed" else 1
        counts[outcome.mutant.package][column] += 1
        survivors += [outcome] if column == 1 else []
    total = [sum(row[column] for row in counts.values()) for column in range(3)]
    print(f"\n| {'package':<20} | sampled | equivalent | killed | survived | killed, % |")
    print(f"| {'-' * 20} | ------: | ---------: | -----: | -------: | --------: |")
    enough = True
    for name, row in [*sorted(counts.items()), ("all", total)]:
        killed, survived, same_count = row
        share = killed / (killed + survived) if killed + survived else 1.0
        enough &= share >= (LEAST_KILLED if name == "all" else LEAST_KILLED_PER_PACKAGE)
        print(
            f"| {name:<20} | {sum(row):>7} | {same_count:>10} | {killed:>6} | {survived:>8} "
            f"| {share * 100:>9.1f} |"
        )
    print(f"\nSeed {SEED}. {len(survivors)} survived:")
    for outcome in sorted(survivors, key=lambda each: (each.mutant.path, each.mutant.line)):
        print(f"  {outcome.mutant.text()}")
    return enough


def main() -> int:
    """Draw, try, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", help="a folder or file of the package")
    parser.add_argument("--count", type=int, default=COUNT, help="mutants to draw, about")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--list", action="store_true", help="print the mutants and try none")
    parser.add_argument("--earlier", type=Path, help="what an earlier run printed")
    parser.add_argument("--lines", help="with --only FILE: places in these lines alone, e.g. 10-40")
    given = parser.parse_args()
    chosen = [
        path
        for path in modules()
        if not given.only
        or any((CHECKOUT / only).resolve() in (path, *path.parents) for only in given.only)
    ]
    if not chosen:
        parser.error(f"no module in {' '.join(given.only)}; name a folder or file of the package")
    drawn = sample(chosen, given.count, 0 if given.only else LEAST_PER_PACKAGE)
    if given.lines:
        first, _, last = given.lines.partition("-")
        drawn = [each for each in drawn if int(first) <= each.line <= int(last or first)]
    if given.list:
        print("\n".join(mutant.text() for mutant in drawn))
        return 0
    by_module: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in drawn:
        by_module[mutant.path].append(mutant)
    reasons, outcomes, untried = equivalents(), [], 0
    killers = killers_of(given.earlier.read_text("utf-8")) if given.earlier else {}
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(given.workers, initializer=_begin) as pool:
        ahead = sorted(by_module.values(), key=len, reverse=True)
        futures = [pool.submit(try_module, mutants, killers) for mutants in ahead]
        for future in as_completed(futures):
            try:
                found = future.result()
            except RuntimeError as error:
                # The others go on: a whole run takes half an hour.
                print(f"untried: {error}", flush=True)
                untried += 1
                continue
            for outcome in found:
                outcomes.append(outcome)
                print(f"{outcome.word}: {outcome.mutant.text()}  {outcome.by}", flush=True)
        for _ in range(given.workers):
            pool.submit(_end)
    enough = table(outcomes, reasons)
    if untried:
        print(f"\n{untried} modules were not tried: their tests fail as they are.")
    return 0 if enough and not untried else 1


if __name__ == "__main__":
    sys.exit(main())
