"""The layout: which package may import which, and what a module must and must not do.

Each test lists all offenders. An import counts wherever it is written: inside functions, and under
TYPE_CHECKING, too.
"""

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter

from tests.support.processes import CHECKOUT, run_python

# A package directly below profstack/, or a module at its top, and what it may import from there.
# The leaves may import each other, and a package its own modules.
LEAVES = "errors units guard environment privacy models code_owner cache"
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
    "changes": LEAVES,
    "analysis": _READ,
    "findings": f"{_READ} analysis",
    "compare": f"{_READ} analysis findings",
    "ranks": f"{_READ} analysis findings compare",
    "lock": f"{LEAVES} storage stats",
    "report": f"{_JUDGE} compare",
    "recording": f"{_JUDGE} report",
    "scale": f"{_READ} readers analysis findings ranks report",
    "launch": f"{_READ} readers capture changes analysis report recording",
    "bench": f"{_READ} readers capture changes recording launch",
    "session": f"{_READ} readers capture report recording launch bench",
    # The public names.
    "profstack": f"{LEAVES} capture recording launch session",
    "commands": f"profstack {_JUDGE} compare ranks scale lock readers capture changes report "
    "recording launch bench session",
    "__main__": "commands",
    # The fixtures of pytest.
    "pytest_plugin": "pytest_steps",
    "pytest_steps": f"{LEAVES} storage compare lock report launch bench",
}
# They run where torch may be missing, or before the script's process imports it.
_PLACES = (
    "storage analysis findings compare ranks scale lock report recording commands readers.nsys"
)
_PLACES += " launch.process launch.target launch.progress launch.second_run"
WITHOUT_TORCH = [f"profstack.{place}" for place in _PLACES.split()]
MAY_PRINT = ("profstack.commands", "profstack.launch.progress")
READS_PROC = "profstack.environment"
# Names that say nothing of what a module holds.
NO_NAMES = ("utils", "util", "helpers", "misc", "common")


def _modules():
    """Return every module by its name; wrappers by the name they are imported under."""
    for folder, package in (("profstack", "profstack"), ("wrappers", "profstack.wrappers")):
        for path in sorted((CHECKOUT / folder).rglob("*.py")):
            parts = path.relative_to(CHECKOUT / folder).with_suffix("").parts
            # The link to the wrappers; `injected` is a folder on a path, and no package.
            if parts[0] != "wrappers" and "injected" not in parts:
                yield ".".join((package, *parts)).removesuffix(".__init__"), path


MODULES = dict(_modules())
INJECTED = CHECKOUT / "profstack" / "launch" / "injected" / "sitecustomize.py"


@cache
def _parsed(path, changed_ns):
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))))


def _nodes(path):
    return _parsed(path, path.stat().st_mtime_ns)


def _imports(path, *, types=True):
    """Return the full names of all modules that a file imports, with or without those for types."""
    found, nodes = set(), _nodes(path)
    blocks = [node for node in nodes if isinstance(node, ast.If)]
    blocks = [node for node in blocks if ast.unparse(node.test) == "TYPE_CHECKING"]
    typing = {id(inner) for node in blocks for inner in ast.walk(node)}
    for node in nodes:
        if id(node) in typing and not types:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found.update(name if name in MODULES else node.module for name in names)
    return found


def _package(module):
    return f"{module}.".split(".")[1] or module


def _is_in(module, places):
    return any(f"{module}.".startswith(f"{place}.") for place in places)


def _own(path, **options):
    return {name for name in _imports(path, **options) if _is_in(name, ["profstack"])}


def _cycle(graph):
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_packages_import_only_what_the_table_allows_and_nothing_in_a_cycle():
    pairs = ((name, imported) for name, path in MODULES.items() for imported in sorted(_own(path)))
    assert not [
        f"{name} imports {imported}"
        for name, imported in pairs
        if _package(imported) not in (_package(name), *MAY_IMPORT[_package(name)].split())
    ]
    # Between modules imports inside functions count; those for types alone are never made.
    assert _cycle({name: _own(path, types=False) - {name} for name, path in MODULES.items()}) == []
    graph = {}
    for name, path in MODULES.items():
        imported = {_package(each) for each in _own(path)} - {_package(name)}
        graph.setdefault(_package(name), set()).update(imported)
    assert _cycle(graph) == []


def test_reports_and_the_parent_import_neither_torch_nor_a_wrapper_nor_wrappers_torch():
    heavy = ("torch", "profstack.wrappers")
    light = [name for name in MODULES if _is_in(name, WITHOUT_TORCH)]
    direct = {(name, each) for name in light for each in _imports(MODULES[name])}
    assert not [pair for pair in direct if _is_in(pair[1], heavy)]
    # Wrappers are loaded in the process of a script that never imports torch.
    wrappers = [name for name in MODULES if _is_in(name, ["profstack.wrappers"])]
    code = (
        "import importlib, sys\n"
        f"for name in {light!r}: importlib.import_module(name)\n"
        f"print([name for name in {heavy!r} if name in sys.modules])\n"
        f"for name in {wrappers!r}:\n"
        "    importlib.import_module(name)\n"
        "    if 'torch' in sys.modules: sys.exit(f'{name} loads torch')\n"
        "import wrappers"
    )
    answer = run_python("-c", code, code=1, cwd=CHECKOUT)
    assert answer.stdout == "[]\n"
    assert "this package has one name" in answer.stderr


def _faults(paths, is_fault):
    """Return the lines of files that have a fault, docstrings left out."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in paths:
        nodes = _nodes(path)
        first = [node.body[0] for node in nodes if isinstance(node, kinds) and node.body]
        documented = {id(each.value) for each in first if isinstance(each, ast.Expr)}
        for node in nodes:
            if id(node) not in documented and is_fault(node):
                yield f"{path.relative_to(CHECKOUT)}:{node.lineno}"


def _prints(node):
    ways = ("print", "exit", "quit", "sys.exit")
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ways


def test_who_reads_proc_prints_and_exits_and_names_say_something():
    def names_proc(node):
        return isinstance(node, ast.Constant) and "/proc" in str(node.value)

    quiet = [name for name in MODULES if not _is_in(name, (*MAY_PRINT, "profstack.__main__"))]
    assert list(_faults([MODULES[name] for name in quiet], _prints)) == []
    others = [path for name, path in MODULES.items() if name != READS_PROC]
    assert list(_faults([INJECTED, *others], names_proc)) == []
    assert list(_faults([MODULES[READS_PROC]], names_proc)) != []
    folders = ("examples", "benchmarks", "scripts", "tests")
    paths = [path for folder in folders for path in (CHECKOUT / folder).rglob("*.py")]
    assert [path for path in (*paths, *MODULES.values()) if path.stem in NO_NAMES] == []


# What runs in the measured process while the script does.
PACKAGE = CHECKOUT / "profstack"
IN_THE_SCRIPT = [
    *(PACKAGE / "capture").glob("*.py"),
    *(PACKAGE / "readers").rglob("*.py"),
    *(CHECKOUT / "wrappers").glob("*.py"),
    *(PACKAGE / f"{name}.py" for name in ("guard", "layer", "models", "session", "environment")),
    *(PACKAGE / "launch" / f"{name}.py" for name in ("child", "children", "in_process")),
]
# A decorated generator throws the error into the script's own.
ASKING = "is_scripts _is_for_script( self._passes( .caught( inner.throw inner.athrow"
# Functions in which no handler of a signal runs: bodies of profstack's own threads, and what
# `delay_signals` calls.
UNINTERRUPTED = ("_run", "run", "finish_engine", "record_without_torch")


def _asks_nothing(node):
    """Whether a handler catches everything and does not ask whose the error is."""
    text = ast.unparse(node) if isinstance(node, ast.ExceptHandler) else ""
    catches_all = re.match(r"except( Exception| BaseException)?( as \w+)?:", text)
    return catches_all and not (any(map(text.count, ASKING.split())) or text.endswith("raise"))


def test_whoever_catches_everything_in_the_measured_process_asks_whose_the_error_is():
    assert len(IN_THE_SCRIPT) > 30
    nodes = [node for path in IN_THE_SCRIPT for node in _nodes(path)]
    own = [each for each in nodes if getattr(each, "name", "") in UNINTERRUPTED]
    free = {id(inner) for each in own for inner in ast.walk(each)}
    faults = _faults(IN_THE_SCRIPT, lambda node: id(node) not in free and _asks_nothing(node))
    assert list(faults) == []
