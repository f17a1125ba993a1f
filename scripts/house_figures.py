"""Print the figures of the house: how many modules, how entangled, how many lines, how typed.

    python scripts/house_figures.py                       this checkout
    python scripts/house_figures.py OTHER                 another one
    python scripts/house_figures.py --against OTHER       both, side by side
    python scripts/house_figures.py --details             and what was counted, name by name

Only source text is read; nothing is imported. What is counted:

- modules: every `.py` file below profstack/ and wrappers/, each `__init__` and the injected
  `sitecustomize` included, the link profstack/wrappers left out.
- an import: a statement at any depth of a module, so lazy ones too, and `import_module` with the
  name written out. `from a import b` imports the module a.b where there is one, else a. What
  Python imports along with a module, the packages around it, does not count, nor do modules that
  are only named in a table. Imports under TYPE_CHECKING make an importer, but no cycle: cycles
  with them have a row of their own.
- one importer: no `__init__` or `__main__`; one module alone imports it, which is in the same
  package (for a module at the top, one at the top), and it has fewer than 150 lines of text.
- a cycle: a largest set of modules that all reach one another by imports. Between packages the
  same, where a folder directly below profstack/ is one package and a module at the top another.
- lines of code: those with a token that is neither a comment nor part of a docstring.
- `dict[str, Any]`: `dict`, `Mapping` or `MutableMapping` of these, wherever one is written in an
  annotation (of an argument, a result, a variable; text in quotes too), in an alias's definition
  or in the type given to `cast`. With aliases: each use of a name that is defined as one counts as
  well, followed through imports; in a row of its own each use of a name of a type that contains
  one, as `Rows = list[dict[str, Any]]` does.
- the three counts of files: the different files named in a section of the architecture page
  (ARCHITECTURE.md or docs/ARCHITECTURE.md), each by its path from the checkout or from profstack/.
  For a layer and a column, files below tests/ and docs/ and pages of text are left out.
- a test file of a module's name: `test_NAME.py` below tests/, in a folder of the module's package
  or in one that is no package's; modules without a name of their own (`__init__`) are left out.
- lines of tests: all lines of all `.py` files below tests/.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
PACKAGE = "profstack"
SHORT = 150
ARCHITECTURE = ("ARCHITECTURE.md", "docs/ARCHITECTURE.md")

Graph = Mapping[str, frozenset[str]]


@dataclass
class Module:
    """A module's source, and what it imports."""

    name: str
    path: Path
    text: str
    tree: ast.Module
    is_package: bool
    imports: set[str] = field(default_factory=set)
    typing_imports: set[str] = field(default_factory=set)
    # Names bound by `from x import y` and `import x as y`: the full name of their object.
    names: dict[str, str] = field(default_factory=dict)

    @property
    def package(self) -> str:
        """Name of the package that the module is in."""
        return self.name.rpartition(".")[0] or self.name

    @property
    def unit(self) -> str:
        """The folder directly below the package, or the module itself where it is at the top."""
        return ".".join(self.name.split(".")[:2])


# Modules and imports --------------------------------------------------------------------------


def read_modules(checkout: Path) -> dict[str, Module]:
    """Read every module of a checkout, by its full name."""
    roots = ((checkout / PACKAGE, (PACKAGE,)), (checkout / "wrappers", (PACKAGE, "wrappers")))
    modules = {}
    for root, prefix in roots:
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            if prefix == (PACKAGE,) and parts[0] == "wrappers":
                continue
            is_package = parts[-1] == "__init__"
            name = ".".join(prefix + (parts[:-1] if is_package else parts))
            text = path.read_text("utf-8")
            modules[name] = Module(name, path, text, ast.parse(text, str(path)), is_package)
    for module in modules.values():
        for node, for_types in _statements(module.tree):
            names = set(_imported(module, node, modules)) - {module.name}
            (module.typing_imports if for_types else module.imports).update(names)
    return modules


def _statements(tree: ast.AST, for_types: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Walk all nodes, each with whether it is under `if TYPE_CHECKING`."""
    yield tree, for_types
    typing_body = (
        tree.body
        if isinstance(tree, ast.If) and ast.unparse(tree.test).endswith("TYPE_CHECKING")
        else []
    )
    for child in ast.iter_child_nodes(tree):
        yield from _statements(child, for_types or child in typing_body)


def _imported(module: Module, node: ast.AST, known: Mapping[str, Module]) -> Iterator[str]:
    """Find the modules of the package that a node imports; note the names it binds."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            module.names[alias.asname or alias.name] = alias.name
            if alias.name in known:
                yield alias.name
    elif isinstance(node, ast.ImportFrom):
        source = _source(module, node)
        for alias in node.names:
            inner = f"{source}.{alias.name}"
            module.names[alias.asname or alias.name] = inner
            if inner in known or source in known:
                yield inner if inner in known else source
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        for argument in node.args[:1]:
            if isinstance(argument, ast.Constant) and argument.value in known:
                yield str(argument.value)


def _source(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    around = module.name.split(".") if module.is_package else module.name.split(".")[:-1]
    kept = around[: len(around) - node.level + 1]
    return ".".join([*kept, *([node.module] if node.module else [])])


def single_importer(modules: Mapping[str, Module]) -> list[tuple[str, str]]:
    """List short modules that exactly one other imports, of the same package; with that one."""
    importers: dict[str, set[str]] = {name: set() for name in modules}
    for module in modules.values():
        for name in module.imports | module.typing_imports:
            importers[name].add(module.name)
    found = []
    for name, by in importers.items():
        module = modules[name]
        if module.is_package or name.endswith("__main__") or len(by) != 1:
            continue
        (importer,) = by
        # A package's own module speaks for the package itself.
        other = modules[importer]
        home = other.name if other.is_package else other.package
        if home == module.package and len(module.text.splitlines()) < SHORT:
            found.append((name, importer))
    return found


def import_graph(modules: Mapping[str, Module], with_types: bool = False) -> Graph:
    """Map each module to what it imports."""
    return {
        module.name: frozenset(module.imports | (module.typing_imports if with_types else set()))
        for module in modules.values()
    }


def package_graph(modules: Mapping[str, Module]) -> Graph:
    """Map each package directly below the top, or module at the top, to those it imports."""
    graph: dict[str, set[str]] = {}
    for module in modules.values():
        others = {modules[name].unit for name in module.imports} - {module.unit}
        graph.setdefault(module.unit, set()).update(others)
    return {unit: frozenset(others) for unit, others in graph.items()}


def cycles(graph: Graph) -> list[list[str]]:
    """List the strongly connected components of more than one node."""
    reached = {start: _reach(graph, start) for start in graph}
    found = {
        tuple(sorted(other for other in reached[start] if start in reached[other]))
        for start in graph
        if start in reached[start]
    }
    return sorted(list(names) for names in found)


def _reach(graph: Graph, start: str) -> set[str]:
    """Collect what a node reaches, itself only by a cycle."""
    reached: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += graph[name]
    return reached


# Lines and types ------------------------------------------------------------------------------


def code_lines(module: Module) -> int:
    """Count lines with code: no blank ones, comments or docstrings."""
    texts = module.text.splitlines()
    lines: set[int] = set()
    empty = {
        *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
        *(tokenize.ENDMARKER, tokenize.ENCODING),
    }
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type not in empty:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(module.tree):
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            lines.difference_update(
                range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1)
            )
    return sum(bool(texts[line - 1].strip()) for line in lines)


def _last(node: ast.AST) -> str:
    """Last part of a dotted name; empty for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_record(node: ast.AST) -> bool:
    """Whether a node is `dict[str, Any]` or `Mapping[str, Any]`."""
    return (
        isinstance(node, ast.Subscript)
        and _last(node.value) in ("dict", "Dict", "Mapping", "MutableMapping")
        and isinstance(node.slice, ast.Tuple)
        and [_last(part) for part in node.slice.elts] == ["str", "Any"]
    )


class _Unquote(ast.NodeTransformer):
    """Parses what is written in quotes within a type."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Return what the text says, or the text where it is none of a type."""
        if isinstance(node.value, str):
            try:
                return ast.parse(node.value, mode="eval").body
            except SyntaxError:
                pass
        return node


def _parsed(node: ast.AST) -> ast.AST:
    parsed: ast.AST = _Unquote().visit(node)
    return parsed


def _aliases_of(module: Module) -> dict[str, ast.AST]:
    """Map names that may be aliases of types to their values: assigned in the module's body."""
    found: dict[str, ast.AST] = {}
    for node, _ in _statements(module.tree):
        value: ast.AST | None = getattr(node, "value", None)
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target: ast.AST = node.targets[0]
        elif isinstance(node, ast.AnnAssign) and _last(node.annotation) == "TypeAlias":
            target = node.target
        elif type(node).__name__ == "TypeAlias":
            target = node.name  # type: ignore[attr-defined]  # newer than the oldest Python
        else:
            continue
        # A type with a part in it, a union, a name, or one of these in quotes.
        may_be = ast.Subscript | ast.BinOp | ast.Name | ast.Attribute | ast.Constant
        if isinstance(target, ast.Name) and isinstance(value, may_be):
            found[target.id] = _parsed(value)
    return found


def _types(module: Module) -> Iterator[ast.AST]:
    """Walk all types written in a module: annotations, and the type given to `cast`."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.AnnAssign):
            written: ast.AST | None = node.annotation
        elif isinstance(node, ast.arg):
            written = node.annotation
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            written = node.returns
        elif isinstance(node, ast.Call) and _last(node.func) == "cast" and node.args:
            written = node.args[0]
        else:
            continue
        if written is not None:
            yield _parsed(written)


class Aliases:
    """Every alias of a type in the package, by its full name, followed through imports."""

    def __init__(self, modules: Mapping[str, Module]) -> None:
        self.modules = modules
        self.values = {
            f"{module.name}.{name}": (module, value)
            for module in modules.values()
            for name, value in _aliases_of(module).items()
        }
        # Names of `dict[str, Any]` itself, and of types with one in them.
        self.direct = self._closed(lambda value: [value])
        self.containing = self._closed(ast.walk)

    def _closed(self, parts: Callable[[ast.AST], Iterable[ast.AST]]) -> set[str]:
        """Collect the aliases of which a part is a record, or an alias collected before."""
        found: set[str] = set()
        size = -1
        while size != len(found):
            size = len(found)
            for full, (module, value) in self.values.items():
                if any(_is_record(at) or self.target(module, at) in found for at in parts(value)):
                    found.add(full)
        return found

    def target(self, module: Module, node: ast.AST) -> str | None:
        """Return the full name of the alias that a name in a module means."""
        if not isinstance(node, ast.Name | ast.Attribute):
            return None
        first, _, rest = ast.unparse(node).partition(".")
        full = module.names.get(first, f"{module.name}.{first}") + (f".{rest}" if rest else "")
        seen = set()
        while full not in self.values and full not in seen:
            seen.add(full)
            home, _, name = full.rpartition(".")
            if home not in self.modules:
                return None
            # A name that the other module imports in its turn.
            full = self.modules[home].names.get(name, full)
        return full if full in self.values else None

    def written_in(self, module: Module) -> Iterator[ast.AST]:
        """Walk the types in a module, those of its aliases that contain a record included."""
        yield from _types(module)
        for full in self.containing:
            home, value = self.values[full]
            if home is module:
                yield value


@dataclass(frozen=True)
class Untyped:
    """How often records without types are written, by module, and used under other names."""

    written: Counter[str]
    aliased: Counter[str]
    contained: Counter[str]


def untyped(modules: Mapping[str, Module]) -> Untyped:
    """Count `dict[str, Any]` in types by module, and the uses of each alias of it."""
    aliases = Aliases(modules)
    found = Untyped(Counter(), Counter(), Counter())
    for module in modules.values():
        for root in aliases.written_in(module):
            for node in ast.walk(root):
                used = aliases.target(module, node)
                if _is_record(node):
                    found.written[module.name] += 1
                elif used is not None and used in aliases.direct:
                    found.aliased[used] += 1
                elif used is not None and used in aliases.containing:
                    found.contained[used] += 1
    return found


# The architecture page ------------------------------------------------------------------------

_HEADING = re.compile(r"(#+)\s+(?:[\d.]+\s+)?(.*?)\s*#*\s*$")
_FILE = re.compile(r"(?<![\w/.-])(?:\.\./)?((?:[\w-]+/)*[\w-]+(?:\.[\w-]+)*\.[a-z]\w+)(?![\w/(])")


def documented_files(checkout: Path, heading: str) -> set[str] | str:
    """List the files that a section of the architecture page names; or say why there are none."""
    pages = [checkout / name for name in ARCHITECTURE if (checkout / name).is_file()]
    if not pages:
        return "there is no architecture page"
    section = _section(pages[0].read_text("utf-8"), heading)
    if section is None:
        return f"{pages[0].relative_to(checkout)} has no section '{heading}'"
    found, missing = set(), set()
    for name in _FILE.findall(section):
        places = [path for path in (name, f"{PACKAGE}/{name}") if (checkout / path).is_file()]
        if places:
            found.add((checkout / places[0]).resolve().relative_to(checkout).as_posix())
        elif "/" in name:
            missing.add(name)
    if missing:
        return f"'{heading}' names what is not there: {', '.join(sorted(missing))}"
    return found or f"'{heading}' names no file"


def _section(text: str, heading: str) -> str | None:
    """Text below a heading, up to the next one of the same or a higher level."""
    level, lines = 0, []
    is_code = False
    for line in text.splitlines():
        is_code ^= line.startswith("```")
        found = None if is_code else _HEADING.match(line)
        if found and level and len(found[1]) <= level:
            break
        if level:
            lines.append(line)
        elif found and found[2].lower() == heading.lower():
            level = len(found[1])
    return "\n".join(lines) if level else None


def _is_code_file(path: str) -> bool:
    return not path.startswith(("tests/", "docs/")) and not path.endswith((".md", ".rst"))


# The table ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """A row of the table; a value of None has a reason."""

    name: str
    value: int | None
    limit: int | None
    reason: str | None = None
    details: tuple[str, ...] = ()


def without_test_file(checkout: Path, modules: Mapping[str, Module]) -> list[str]:
    """Find the modules that no test file is named after."""
    packages = {part for name in modules for part in name.split(".")[1:-1]}
    found = {
        (path.stem, path.parent.name if path.parent.name in packages else "")
        for path in (checkout / "tests").rglob("test_*.py")
    }
    return [
        name
        for name, module in modules.items()
        if not module.path.stem.startswith("__")
        and not {(f"test_{module.path.stem}", folder) for folder in (name.split(".")[-2], "")}
        & found
    ]


def _section_figure(
    checkout: Path, name: str, heading: str, limit: int, is_counted: bool = False
) -> Figure:
    """Count the files of a section; those of code alone unless all are counted."""
    files = documented_files(checkout, heading)
    if isinstance(files, str):
        return Figure(name, None, limit, files)
    counted = sorted(path for path in files if is_counted or _is_code_file(path))
    return Figure(name, len(counted), limit, None, tuple(counted))


def figures(checkout: Path) -> list[Figure]:
    """Measure a checkout."""
    modules = read_modules(checkout)
    top = [name for name, module in modules.items() if module.path.parent == checkout / PACKAGE]
    single = single_importer(modules)
    between = cycles(import_graph(modules))
    with_types = cycles(import_graph(modules, with_types=True))
    packages = cycles(package_graph(modules))
    records = untyped(modules)
    written = records.written.total()
    aliased = written + records.aliased.total()
    lines = sum(code_lines(module) for module in modules.values())
    untried = without_test_file(checkout, modules)
    tests = sum(
        len(path.read_text("utf-8").splitlines()) for path in (checkout / "tests").rglob("*.py")
    )
    readme = (checkout / "README.md").read_text("utf-8").splitlines()
    return [
        Figure("modules in profstack/ and wrappers/", len(modules), 180),
        Figure("modules at the top of profstack/", len(top), 12, None, tuple(top)),
        Figure(
            f"modules with exactly one importer, of the same package, under {SHORT} lines",
            len(single), 15, None, tuple(f"{name} < {by}" for name, by in single),
        ),
        Figure("cycles between modules, lazy imports included", len(between), 0, None,
               _joined(between)),
        Figure("the same with imports under TYPE_CHECKING", len(with_types), None, None,
               _joined(with_types)),
        Figure("cycles between packages, lazy imports included", len(packages), 0, None,
               _joined(packages)),
        Figure("Python lines of code in the package", lines, 36_000),
        Figure("dict[str, Any] and Mapping[str, Any] in annotations", written, None, None,
               _counted(records.written)),
        Figure("the same with uses of aliases of them", aliased, 120, None,
               _counted(records.aliased)),
        Figure("the same with uses of aliases that contain one",
               aliased + records.contained.total(), None, None, _counted(records.contained)),
        _section_figure(checkout, "files from a step's hook to its cell on the page",
                        "The path of a step", 20, is_counted=True),
        _section_figure(checkout, "files touched by the layer memray", "A new layer", 4),
        _section_figure(checkout, "files touched by a new column", "A new column", 2),
        Figure("README lines", len(readme), 140),
        Figure("modules without a test file of their name", len(untried), len(modules) // 5, None,
               tuple(untried)),
        Figure("lines of tests", tests, 39_999),
    ]  # fmt: skip


def _joined(found: Sequence[Sequence[str]]) -> tuple[str, ...]:
    return tuple(" <-> ".join(names) for names in found)


def _counted(counter: Counter[str]) -> tuple[str, ...]:
    return tuple(f"{count:5} {name}" for name, count in counter.most_common())


def _cell(value: int | None) -> str:
    return "null" if value is None else f"{value:,}"


def table(columns: Mapping[str, Sequence[Figure]]) -> list[str]:
    """Write the figures of one or two checkouts as a table in Markdown."""
    heads = ["figure", *columns, "at most"]
    rows = [
        [row[0].name, *(_cell(one.value) for one in row), "" if row[0].limit is None else
         _cell(row[0].limit)]
        for row in zip(*columns.values(), strict=True)
    ]  # fmt: skip
    widths = [max(len(cells[at]) for cells in [heads, *rows]) for at in range(len(heads))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return [_row(cells, widths) for cells in (heads, rule, *rows)]


def _row(cells: Iterable[str], widths: Sequence[int]) -> str:
    first, *rest = cells
    padded = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
    return f"| {' | '.join([first.ljust(widths[0]), *padded])} |"


def notes(columns: Mapping[str, Sequence[Figure]]) -> list[str]:
    """Say why values are null."""
    return [
        f"null ({head}), {one.name}: {one.reason}"
        for head, measured in columns.items()
        for one in measured
        if one.reason
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", nargs="?", type=Path, default=CHECKOUT, metavar="CHECKOUT")
    parser.add_argument("--against", type=Path, metavar="OTHER", help="a checkout from before")
    parser.add_argument("--details", action="store_true", help="print what was counted")
    options = parser.parse_args(arguments)
    columns = {"now": figures(options.checkout.resolve())}
    if options.against is not None:
        columns = {"before": figures(options.against.resolve()), **columns}
    lines = [*table(columns), "", *notes(columns)]
    if options.details:
        for one in columns["now"]:
            lines += ["", f"{one.name}: {_cell(one.value)}", *(f"  {name}" for name in one.details)]
    sys.stdout.write("\n".join(lines).rstrip() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
