"""The layout holds: who may import whom, what the parent must never load, what a module must be.

The table below is the design's order. A module imports only from its own line and from lines
above it; to add a module, write its name on a line.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CHECKOUT, clean_environment

PACKAGE = CHECKOUT / "profstack"
WRAPPERS = CHECKOUT / "wrappers"

# Names ending in a dot stand for every module of that package.
ORDER = (
    (
        "interrupts rawthreads ownfiles errors units tabletypes recordedtables nsystables schema "
        "torchtables privacy warningslugs nvtxpairs"
    ),
    "wrapper registry software environment stepcalls",
    (
        "steps slices regions passthrough collector liveobjects watch samples evaluation quickstep "
        "regionsums regionstay userregions decorated regionoutlet scriptranges threadtimes "
        "modulefacts scriptlabel threadkinds"
    ),
    "benchmark.",
    "callcost functiontable nvtxranges devicegaps torchtrace. flops. memory.",
    "recording runfacts",
    "nsys.",
    "runner engine. hooks. target child groupwitness launch progress probe rerun benchfolder",
    "merge.",
    "findings.",
    "report.",
    "frozen inprocess loopsteps session benchlayers benchchild benchstart benchsession",
    "commands.",
    "__main__",
)
# A wrapper may import these alone: the contract, the leaves, and what reads a tool's own data.
OPEN_TO_WRAPPERS = frozenset(
    (
        *["wrapper", "passthrough", "watch", "callcost", "functiontable", "nvtxranges"],
        *["torchtrace.events", "torchtrace.eventkinds", "torchtrace.attribution"],
        "torchtrace.linetrace",
        *["torchtrace.eventbound", "torchtrace.otherprofilers"],
        "torchtrace.linerows",
        *["torchtrace.callpaths", "torchtrace.clocks", "torchtrace.stackbound", "stepcalls"],
        *["torchtrace.slicetables", "flops.flopsprofiler"],
        *["flops.copies", "flops.counting", "flops.owners"],
        *["memory.readings", "memory.tracer", "memory.rows", "memory.mprofile"],
        *["memory.devicehistory", "memory.owners"],
        *ORDER[0].split(),
    )
)

PARENT_SIDE = (
    "nsys.",
    "merge.",
    "findings.",
    "report.",
    "commands.",
    "recording",
    "launch",
    "progress",
)
HEAVY = ("torch", "profstack.wrappers")

MAY_PRINT = ("commands.", "progress")
LONGEST_MODULE = 400


def _modules() -> dict[str, Path]:
    """Every module of profstack by its name without `profstack.`; the wrappers have their own."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        # injected/ is no package: its file stands on a path of the child's.
        if parts[0] in ("wrappers", "injected"):
            continue
        name = ".".join(part for part in parts if part != "__init__")
        found[name + "." if path.name == "__init__.py" and name else name] = path
    return found


MODULES = _modules()
WRAPPER_FILES = sorted(WRAPPERS.glob("*.py"))
SOURCES = [*MODULES.values(), *sorted(PACKAGE.glob("injected/*.py")), *WRAPPER_FILES]


def _shown(path: Path) -> str:
    return str(path.relative_to(CHECKOUT))


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _imports(path: Path) -> set[str]:
    """Full names of all modules that a file imports anywhere, also inside functions."""
    found = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{_shown(path)}:{node.lineno} imports relatively"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                known = _own(inner) in MODULES or f"{_own(inner)}." in MODULES
                is_module = inner.startswith("profstack.") and (known or _is_wrapper(inner))
                found.add(inner if is_module else str(node.module))
    return found


def _is_wrapper(name: str) -> bool:
    return name.startswith("profstack.wrappers")


def _own(name: str) -> str:
    return name.removeprefix("profstack.")


def _line(name: str) -> int | None:
    """Number of the line a module stands on; `name` is without `profstack.`."""
    for number, line in enumerate(ORDER):
        for entry in line.split():
            if name == entry or (entry.endswith(".") and f"{name}.".startswith(entry)):
                return number
    return None


def _stands_in(name: str, entries: tuple[str, ...]) -> bool:
    return any(name == e or (e.endswith(".") and f"{name}.".startswith(e)) for e in entries)


def _faults(name: str, path: Path) -> list[str]:
    """What a module imports that stands below its own line."""
    own = _line(name)
    assert own is not None, f"{_shown(path)} stands on no line of ORDER"
    faults = []
    for imported in sorted(_imports(path)):
        if imported == "profstack" or not imported.startswith("profstack."):
            continue
        if _is_wrapper(imported):
            faults.append(imported)
            continue
        line = _line(_own(imported))
        assert line is not None, f"{imported} stands on no line of ORDER"
        if line > own:
            faults.append(imported)
    return faults


@pytest.mark.parametrize("name", [name for name in MODULES if name])
def test_a_module_imports_only_from_above(name):
    assert _faults(name, MODULES[name]) == []


def test_the_check_would_see_a_fault(tmp_path, monkeypatch):
    # The judge is judged: an import inside a function, by either form, must be found.
    path = tmp_path / "units.py"
    monkeypatch.setattr(sys.modules[__name__], "CHECKOUT", tmp_path)
    path.write_text("def f():\n    from profstack import recording\n")
    assert _faults("units", path) == ["profstack.recording"]
    path.write_text("import profstack.wrappers.cprofile\nfrom profstack import __version__\n")
    assert _faults("errors", path) == ["profstack.wrappers.cprofile"]
    path.write_text("from profstack.errors import ProfstackError\n")
    assert _faults("units", path) == []


@pytest.mark.parametrize("path", WRAPPER_FILES, ids=lambda path: path.stem)
def test_a_wrapper_imports_only_what_is_open_to_it(path):
    own = {name for name in _imports(path) if name.split(".")[0] in ("profstack", "wrappers")}
    assert {_own(name) for name in own} <= OPEN_TO_WRAPPERS


def _parent_modules() -> list[str]:
    return [name for name in MODULES if name and _stands_in(name.rstrip("."), PARENT_SIDE)]


@pytest.mark.parametrize("name", _parent_modules())
def test_the_parent_never_imports_torch_or_a_wrapper(name):
    heavy = {i for i in _imports(MODULES[name]) if i.split(".")[0] == "torch" or _is_wrapper(i)}
    assert heavy == set()


def test_the_parent_loads_neither_torch_nor_a_wrapper_by_detours():
    names = [f"profstack.{name}".rstrip(".") for name in _parent_modules()]
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=clean_environment(),
        check=False,
    )
    assert answer.stderr == ""
    assert answer.stdout == "[]\n"


def test_wrappers_have_one_name():
    answer = subprocess.run(
        [sys.executable, "-c", "import profstack.wrappers, wrappers"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        env=clean_environment(),
        check=False,
    )
    assert answer.returncode == 1
    assert "this package has one name" in answer.stderr


@pytest.mark.parametrize("path", SOURCES, ids=_shown)
def test_only_environment_reads_proc(path):
    tree = _tree(path)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    said = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and "/proc" in node.value
        and id(node) not in docstrings
    ]
    assert path == PACKAGE / "environment.py" or said == []


def _calls(path: Path, names: set[str]) -> list[int]:
    """Lines on which one of these is called."""
    return [
        node.lineno
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in names
    ]


@pytest.mark.parametrize("name", [name for name in MODULES if name not in ("", "__main__")])
def test_only_commands_print_and_exit(name):
    if not _stands_in(name.rstrip("."), MAY_PRINT):
        assert _calls(MODULES[name], {"print", "exit", "quit", "sys.exit"}) == []


def _all_files() -> list[Path]:
    folders = (CHECKOUT / "examples", CHECKOUT / "benchmarks", CHECKOUT / "tests")
    return [*SOURCES, *(path for folder in folders for path in sorted(folder.rglob("*.py")))]


@pytest.mark.parametrize("path", _all_files(), ids=_shown)
def test_every_module_says_what_it_is_for(path):
    assert ast.get_docstring(_tree(path)), f"{_shown(path)} has no docstring"


@pytest.mark.parametrize("path", SOURCES, ids=_shown)
def test_no_module_is_a_drawer_or_a_cupboard(path):
    assert path.stem not in ("utils", "util", "helpers", "misc", "common")
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_MODULE
