"""What the words of a target name: `file.py:function` or `module:function`, found and imported.

What is wrong with the name is a `TargetError`, most of which can be told before anything is
imported; what the target's own code raises is raised as it is, so that its traceback can be shown.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from profstack.errors import TargetError


def split_spec(spec: str) -> tuple[str, str]:
    """The file or module of a target, and the name in it; raises TargetError without a name."""
    place, colon, name = spec.rpartition(":")
    if not colon or not place or not name or "/" in name or "\\" in name:
        raise TargetError(
            "names no function",
            where=spec,
            next_step=f"write file.py:function or module:function{_offered(Path(spec))}",
        )
    return place, name


def check(spec: str) -> None:
    """Raise TargetError for what can be seen to be wrong without running anything."""
    place, _ = split_spec(spec)
    if _is_file(place):
        if os.path.isdir(place):
            raise TargetError("is a folder", where=place, next_step="name a file in it")
        if not os.path.isfile(place):
            raise TargetError("no such file", where=place, next_step="check the path")


def short_name(spec: str) -> str:
    """A name of the target for a folder: the file or module, and what is called in it."""
    place, name = split_spec(spec)
    stem = Path(place).stem if _is_file(place) else place
    return f"{stem}-{name}"


def imported(spec: str) -> Any:
    """Import the target's file or module; what has its name there.

    Raises TargetError, or what the target's own code raises.
    """
    place, name = split_spec(spec)
    check(spec)
    module = _import_file(place) if _is_file(place) else _import_module(place)
    return _find(module, place, name)


def _offered(path: Path) -> str:
    """The functions of a file that was named without one, as an ending of the sentence."""
    import ast

    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return ""
    kinds = (ast.FunctionDef, ast.ClassDef)
    names = [node.name for node in tree.body if isinstance(node, kinds)]
    names = [name for name in names if not name.startswith("_")]
    return f"; it has {', '.join(names)}" if names else ""


def _is_file(place: str) -> bool:
    return place.endswith(".py") or os.sep in place or "/" in place


def _import_file(place: str) -> ModuleType:
    """Execute a file as a module of its own name; its folder comes first on sys.path."""
    path = Path(place).resolve()
    folder = str(path.parent)
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    # A file may be called as something that is loaded already; that one stays.
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_target"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError("is no Python file", where=place, next_step="name a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_module(place: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        # One that the target itself imports and that is missing is the target's own error.
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise
        hint = f"{place}.py:function" if os.path.isfile(f"{place}.py") else "check its name"
        raise TargetError("no such module", where=place, next_step=hint) from None


def _find(module: ModuleType, place: str, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise TargetError(f"has no {part!r}", where=place, next_step=_known_names(module, part))
        found = getattr(found, part)
    return found


def _known_names(module: ModuleType, wanted: str) -> str:
    """What the module itself defines, the likeliest one meant first."""
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and callable(value)
        and getattr(value, "__module__", module.__name__) == module.__name__
    ]
    close = get_close_matches(wanted, own, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"it has {', '.join(own)}" if own else "it defines nothing that can be called"
