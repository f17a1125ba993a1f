"""The layout: which package may import which, and what a module must and must not do.

Each test lists all offenders. An import counts wherever it is written: inside functions, and under
TYPE_CHECKING, too.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from conftest import CHECKOUT, clean_environment

# A package directly below profstack/, or a module at its top, and what it may import from there.
# The leaves may import each other, and a package its own modules.
LEAVES = "errors units guard environment privacy models code_owner"
_READ = f"{LEAVES} storage stats layer"
_JUDGE = f"{_READ} analysis findings"
MAY_IMPORT = {
    **dict.fromkeys(LEAVES.split(), LEAVES),
    "storage": LEAVES,
    "stats": LEAVES,
    "layer": f"{LEAVES} storage stats",
    "readers": _READ,
    "wrappers": f"{_READ} readers",
    "capture": f"{_READ} readers",
    "analysis": _READ,
    "findings": f"{_READ} analysis",
    "report": _JUDGE,
    "recording": f"{_JUDGE} report",
    "launch": f"{_READ} readers capture analysis report recording",
    "bench": f"{_READ} readers capture recording launch",
    "session": f"{_READ} readers capture report recording launch bench",
    # The public names.
    "profstack": f"{LEAVES} capture recording launch session",
    "commands": f"profstack {_JUDGE} readers capture report recording launch bench session",
    "__main__": "commands",
}

# They run where torch may be missing, or before the script's process imports it.
WITHOUT_TORCH = (
    *("profstack.storage", "profstack.analysis", "profstack.findings", "profstack.report"),
    *("profstack.recording", "profstack.commands", "profstack.readers.nsys"),
    *("profstack.launch.process", "profstack.launch.target", "profstack.launch.progress"),
    "profstack.launch.second_run",
)
MAY_PRINT = ("profstack.commands", "profstack.launch.progress")
READS_PROC = "profstack.environment"
# Names that say nothing of what a module holds.
NO_NAMES = ("utils", "util", "helpers", "misc", "common")


def _modules(checkout: Path) -> dict[str, Path]:
    """Return every module by its name; wrappers by the name they are imported under."""
    found = {}
    for folder, package in (("profstack", "profstack"), ("wrappers", "profstack.wrappers")):
        for path in sorted((checkout / folder).rglob("*.py")):
            parts = path.relative_to(checkout / folder).with_suffix("").parts
            # The link to the wrappers; `injected` is a folder on a path, and no package.
            if parts[0] != "wrappers" and "injected" not in parts:
                found[".".join((package, *parts)).removesuffix(".__init__")] = path
    return found


MODULES = _modules(CHECKOUT)
INJECTED = CHECKOUT / "profstack" / "launch" / "injected" / "sitecustomize.py"


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _imports(path: Path, known: Iterable[str] = MODULES, *, types: bool = True) -> set[str]:
    """Return the full names of all modules that a file imports, with or without those for types."""
    found = set()
    tree = _tree(path)
    typing = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing and not types:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in known else str(node.module))
    return found


def _package(module: str) -> str:
    """Return the package of a module, a key of `MAY_IMPORT`."""
    return f"{module}.".split(".")[1] or module


def _is_in(module: str, places: Iterable[str]) -> bool:
    return any(f"{module}.".startswith(f"{place}.") for place in places)


def _own(imported: Iterable[str]) -> set[str]:
    return {name for name in imported if _is_in(name, ["profstack"])}


def _forbidden(modules: Mapping[str, Path]) -> list[str]:
    return [
        f"{module} imports {imported}"
        for module, path in modules.items()
        for imported in sorted(_own(_imports(path)))
        if _package(imported) not in (_package(module), *MAY_IMPORT[_package(module)].split())
    ]


def _cycle(graph: Mapping[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_packages_import_only_what_the_table_allows() -> None:
    assert _forbidden(MODULES) == []


def test_modules_import_each_other_in_no_cycle() -> None:
    # Imports inside functions count; those for types alone are never made.
    own = {name: _own(_imports(path, types=False)) - {name} for name, path in MODULES.items()}
    assert _cycle(own) == []


def test_packages_import_each_other_in_no_cycle() -> None:
    graph: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        imported = {_package(each) for each in _own(_imports(path))} - {_package(name)}
        graph.setdefault(_package(name), set()).update(imported)
    assert _cycle(graph) == []


def test_the_checks_find_faults(tmp_path: Path) -> None:
    path = tmp_path / "units.py"
    modules = {"profstack.units": path}
    path.write_text("def f():\n    from profstack import recording\n")
    assert _forbidden(modules) == ["profstack.units imports profstack.recording"]
    path.write_text("import profstack.wrappers.cprofile\nfrom profstack import __version__\n")
    assert _forbidden(modules) == [
        "profstack.units imports profstack",
        "profstack.units imports profstack.wrappers.cprofile",
    ]
    path.write_text("from profstack.errors import ProfstackError\n")
    assert _forbidden(modules) == []
    assert set(_cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}})) == {"a", "b", "c"}


def _without_torch() -> dict[str, Path]:
    return {name: path for name, path in MODULES.items() if _is_in(name, WITHOUT_TORCH)}


def test_reports_and_the_parent_import_neither_torch_nor_a_wrapper() -> None:
    heavy = ("torch", "profstack.wrappers")
    assert [
        f"{module} imports {imported}"
        for module, path in _without_torch().items()
        for imported in sorted(_imports(path))
        if _is_in(imported, heavy)
    ] == []
    code = (
        "import importlib, sys\n"
        f"for name in {list(_without_torch())!r}: importlib.import_module(name)\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    answer = _python(code)
    assert (answer.stderr, answer.stdout) == ("", "[]\n")


def test_wrappers_load_without_torch() -> None:
    # They are loaded in the process of a script that never imports it.
    names = [name for name in MODULES if _is_in(name, ["profstack.wrappers"])]
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        "    if 'torch' in sys.modules: sys.exit(f'{name} loads torch')"
    )
    assert _python(code).stderr == ""


def test_wrappers_have_one_name() -> None:
    answer = _python("import profstack.wrappers, wrappers")
    assert answer.returncode == 1
    assert "this package has one name" in answer.stderr


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        env=clean_environment(),
        check=False,
    )


def _lines(path: Path, is_fault: Callable[[ast.AST], bool]) -> list[int]:
    """Return the lines of a file that have a fault, docstrings left out."""
    tree = _tree(path)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    nodes = (node for node in ast.walk(tree) if id(node) not in docstrings)
    return [getattr(node, "lineno", 0) for node in nodes if is_fault(node)]


def _names_proc(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and "/proc" in str(node.value)


def _prints(node: ast.AST) -> bool:
    ways = ("print", "exit", "quit", "sys.exit")
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ways


def test_only_environment_reads_proc() -> None:
    assert [
        f"{path.relative_to(CHECKOUT)}:{line}"
        for path in (INJECTED, *(path for name, path in MODULES.items() if name != READS_PROC))
        for line in _lines(path, _names_proc)
    ] == []


def test_only_commands_print_and_exit() -> None:
    assert [
        f"{path.relative_to(CHECKOUT)}:{line}"
        for name, path in MODULES.items()
        if not _is_in(name, MAY_PRINT) and name != "profstack.__main__"
        for line in _lines(path, _prints)
    ] == []


def test_every_module_has_a_docstring_and_a_name() -> None:
    folders = ("examples", "benchmarks", "scripts", "tests")
    paths = [path for folder in folders for path in (CHECKOUT / folder).rglob("*.py")]
    paths += [INJECTED, *MODULES.values()]
    assert [
        str(path.relative_to(CHECKOUT))
        for path in paths
        if not ast.get_docstring(_tree(path)) or path.stem in NO_NAMES
    ] == []
