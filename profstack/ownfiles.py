"""Whose code a file holds: the user's own, or a library's, and which.

The measured process knows where the script and the installed packages lie, and writes that down as
a fact; whoever reads the recording asks the fact, so that a report made on another machine divides
the same files in the same way.
"""

from __future__ import annotations

import functools
import ntpath
import os
import posixpath
import re
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# The fact under which a recording holds the places.
FACT = "own_files"
# Code that came as text; what pstats calls the file of a built-in function.
TEXTS = ("<string>", "<stdin>")
BUILTIN_FILE = "~"
# What stands in the place of a package's name.
OWN, PYTHON, BUILTIN, PROFSTACK = "(own files)", "Python", "(built-in)", "profstack"
_ABSOLUTE = re.compile(r"[/\\]|[A-Za-z]:")
# What stands in the folder of a whole project, which scripts lie in folders of.
_MARKERS = (".git", "pyproject.toml", "setup.py", "setup.cfg")
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]+([^/\\]+)")


@dataclass(frozen=True)
class Places:
    """Where a script's own code lies, and where Python's and profstack's; folders end in `sep`.

    `sep` separates the names of a path on the machine that was measured; `working` is the folder
    that paths without a root begin in. `text` says that the script itself came as text: else such
    code was made up by libraries (that of a named tuple, say).
    """

    roots: tuple[str, ...]
    libraries: tuple[str, ...]
    profstack: tuple[str, ...]
    working: str
    text: bool = False
    sep: str = os.sep

    @classmethod
    def of(cls, root: str) -> Places:
        """The places on this machine for a script in the folder `root`.

        A folder behind a link has two names: Python names the script by the one that was typed,
        and the modules beside it by the other.
        """
        here = os.path.dirname(os.path.abspath(__file__))
        beside = os.path.join(os.path.dirname(here), "wrappers")
        return cls(
            _folders(*_with_project(root), *_with_project(os.path.realpath(root))),
            _folders(*_library_folders()),
            _folders(here, os.path.realpath(here), beside),
            os.path.join(os.getcwd(), ""),
            text=not getattr(sys.modules.get("__main__"), "__file__", None),
        )

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> Places | None:
        """The places that a recording tells of; None of one that does not."""
        fact = facts.get(FACT)
        if not isinstance(fact, Mapping):
            return None
        roots, libraries, own = (
            tuple(map(str, fact[name])) for name in ("roots", "libraries", "profstack")
        )
        text, sep = bool(fact["text"]), str(fact["sep"])
        return cls(roots, libraries, own, str(fact["working"]), text, sep)

    def fact(self) -> dict[str, Any]:
        """What a recording holds of them."""
        return {
            "roots": list(self.roots),
            "libraries": list(self.libraries),
            "profstack": list(self.profstack),
            "working": self.working,
            "text": self.text,
            "sep": self.sep,
        }

    def is_own(self, file: str) -> bool:
        """Whether a code object's file is the user's own."""
        if file in TEXTS:
            return self.text
        if _is_cell(file):
            return True
        if file.startswith("<") or file == BUILTIN_FILE:
            return False
        file = self._whole(file)
        if file.startswith((*self.libraries, *self.profstack)) or _INSTALLED.search(file):
            return False
        return file.startswith(self.roots)

    def package(self, file: str) -> str:
        """What a file belongs to: a package by its folder's name, Python, or the user's own files.

        Of a library outside every folder of packages it is the name of the folder it lies in.
        """
        if file == BUILTIN_FILE:
            return BUILTIN
        if self.is_own(file):
            return OWN
        file = self._whole(file)
        if file.startswith(self.profstack):
            return PROFSTACK
        # The folder of packages that lies innermost: one environment may stand inside another.
        found = _INSTALLED.findall(file)
        if found:
            return str(found[-1]).removesuffix(".py")
        if file.startswith(("<frozen ", *self.libraries)):
            return PYTHON
        if file.startswith("<"):
            return "(generated code)"
        return re.split(r"[/\\]", file)[-2] or self.sep

    def _whole(self, file: str) -> str:
        """The path from its root, without `..`; code that was made up has none."""
        if file.startswith("<"):
            return file
        whole = file if _ABSOLUTE.match(file) else self.working + file
        return ntpath.normpath(whole) if self.sep == "\\" else posixpath.normpath(whole)


def _folders(*paths: str) -> tuple[str, ...]:
    """Folders, each once and with its separator at the end."""
    return tuple(dict.fromkeys(os.path.join(os.path.abspath(path), "") for path in paths))


def _with_project(folder: str) -> list[str]:
    """The folder, and that of the project it is a part of: a script in `scripts/` uses `src/`.

    A home folder may be under version control too, and holds everything of the user's.
    """
    above = os.path.abspath(folder)
    home = os.path.expanduser("~")
    while above not in (home, os.path.dirname(above)):
        if any(os.path.exists(os.path.join(above, marker)) for marker in _MARKERS):
            return [folder, above]
        above = os.path.dirname(above)
    return [folder]


@functools.cache
def _library_folders() -> tuple[str, ...]:
    """Folders of installed code."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    paths = [sysconfig.get_paths()[name] for name in names]
    return (*paths, *map(os.path.realpath, paths))


def _is_cell(file: str) -> bool:
    """Whether a code object comes from a cell of a notebook, or from IPython's prompt."""
    folder = re.split(r"[/\\]", file)[-2:-1]
    return file.startswith("<ipython-input-") or bool(folder and folder[0].startswith("ipykernel_"))


def script_folder() -> str:
    """The folder of the running script's own code.

    Of `-m package.module` it is the folder that the package lies in; the working folder where
    code came as text, or where an installed program (a test runner, a launcher) runs the user's.
    """
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if not file:
        return os.getcwd()
    path = os.path.abspath(file)
    installed = (*_library_folders(), sysconfig.get_paths()["scripts"])
    if _INSTALLED.search(path) or path.startswith(_folders(*installed)):
        return os.getcwd()
    folder = str(os.path.dirname(path))
    package = getattr(getattr(main, "__spec__", None), "parent", None)
    for _ in str(package).split(".") if package else ():
        folder = os.path.dirname(folder)
    return folder
