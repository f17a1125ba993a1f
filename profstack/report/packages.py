"""Which library a source file belongs to, so that a page can put the user's own files first.

Decided by the path alone: a report is read where its files may no longer be.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from profstack.ownfiles import BUILTIN, BUILTIN_FILE, OWN, PYTHON

UNKNOWN = "(generated code)"

_INSTALLED = re.compile(r"/(?:site|dist)-packages/([^/]+)")
_STANDARD = re.compile(r"/lib(?:64)?/(?:python|pypy)\d[\d.]*t?/|/python\d+\.zip/|/Lib/(?!site-)")
_ENDING = re.compile(r"(?:\.cpython-[^/]*)?\.(?:pyc?|so|pyd)$")


def package_of(file: Any, *, own: Any = None) -> str:
    """The library of a file, `OWN` for the user's own.

    `own` is what the report says of it; where that is null, a file of no known library is taken
    for the user's.
    """
    if own:
        return OWN
    path = str(file or "").replace("\\", "/")
    if path == BUILTIN_FILE:
        return BUILTIN
    if path.startswith("<"):
        return PYTHON if path.startswith("<frozen") else UNKNOWN
    installed = _INSTALLED.search(path)
    if installed is not None:
        return _ENDING.sub("", installed[1])
    if _STANDARD.search(path):
        return PYTHON
    return OWN if own is None and path else _by_folder(path)


def _by_folder(path: str) -> str:
    """A library that lies in no folder of packages: the folder of its file.

    Of a relative path it is the first one: of `torch/nn/modules/conv.py` that is `torch`.
    """
    names = [name for name in path.split("/") if name not in ("", ".", "..", "~")]
    whole = path.startswith(("/", "~")) or ":" in path[:3]
    if len(names) < 2:
        return _ENDING.sub("", path)
    return names[-2] if whole else names[0]


def with_package(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same records, each with the `package` of its file; one that has it keeps it."""
    return [
        {
            **record,
            "package": record.get("package")
            or package_of(record.get("file"), own=record.get("own")),
        }
        for record in records
    ]
