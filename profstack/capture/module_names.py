"""Names that every layer shares: a number and one module path for each live module.

A root is a module called with no other module's call around it; its path is its class name, and
a second live instance of the class is `Net#2`. Children have the attribute path below their
root. Objects are distinguished by identity, held weakly: two roots of one class never merge, and a
module made again at every step keeps the path of the one it replaced.

The wrappers that torch puts around a model (DistributedDataParallel, FSDP, torch.compile) are not
in the paths: `Net.fc1` stays `Net.fc1`, and the wrapper's own time is a row of its own, named
`Net (DistributedDataParallel)`.
"""

from __future__ import annotations

import ast
import inspect
import json
import linecache
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from types import FrameType
from typing import Any

from profstack.models import (
    TRANSPARENT,
    WRAPPERS,
    class_name,
    innermost,
    is_loss,
    own_parameters,
    parameter_count,
    wrapped_module,
)
from profstack.storage.schema.column import SqlValue
from profstack.storage.vocabulary import MODULE_PREFIX


@dataclass
class ModuleInfo:
    """A module path, and the module that has it: `alive` returns it, or None once it has died."""

    module_id: int
    path: str
    label: str | None
    type: str
    instance: int
    parent_id: int | None
    parameters: int | None
    # Parameters of its own, their bytes, and the trainable ones.
    own: tuple[int, int, int] | None = None
    is_loss: bool = False
    range_name: str = ""
    # One of torch's wrappers is around it; the script may call it without that.
    wrapped: bool = False
    aliases: list[str] = field(default_factory=list)
    alive: Callable[[], Any] = lambda: None

    def record(self) -> dict[str, SqlValue]:
        """Return the row of table `modules`."""
        columns = ("module_id", "path", "label", "type", "instance", "parent_id", "parameters")
        row: dict[str, SqlValue] = {column: getattr(self, column) for column in columns}
        names = ("own_parameters", "own_bytes", "own_trainable")
        row.update(zip(names, self.own or (None, None, None), strict=True))
        return {**row, "aliases": json.dumps(self.aliases)}


class ModuleNames:
    """Gives every module its path at its first call and remembers it."""

    def __init__(self) -> None:
        self.by_path: dict[str, ModuleInfo] = {}
        self.by_identity: dict[int, ModuleInfo] = {}
        # Range names of living modules while ranges are emitted: of those whose calls say nothing
        # of steps (inner ones, losses), and of roots.
        self.inner_ranges: dict[int, str] = {}
        self.root_ranges: dict[int, str] = {}

    def begin_ranges(self) -> None:
        """Prepare the range names of all living modules, for a look-up by identity."""
        for key, named in self.by_identity.items():
            # A part that outlived the whole it was named in has lost its path to the new part.
            if id(named.alive()) == key:
                inner = named.is_loss or (named.parent_id is not None and not named.wrapped)
                (self.inner_ranges if inner else self.root_ranges)[key] = named.range_name

    def end_ranges(self) -> None:
        """Forget the range names: from now on every module is looked up in full."""
        self.inner_ranges.clear()
        self.root_ranges.clear()

    def _forget(self, key: int, dead: weakref.ref[Any]) -> None:
        """Forget a dead module: its address may be another one's by the next call."""
        self.inner_ranges.pop(key, None)
        self.root_ranges.pop(key, None)
        if (named := self.by_identity.get(key)) is not None and named.alive is dead:
            del self.by_identity[key]

    def known(self, module: Any) -> ModuleInfo | None:
        """Return the name of a module seen before; None for a new one, also at a reused address."""
        named = self.by_identity.get(id(module))
        return named if named is not None and named.alive() is module else None

    def root(self, module: Any, label: str | None) -> ModuleInfo:
        """Return the name of a module called outside every other module, made at need."""
        return self._name(module, None, label)

    def inner(self, module: Any, parent: ModuleInfo) -> ModuleInfo:
        """Return the name of a module called inside `parent`, made at need.

        One that is no attribute of a module (built on the fly, or held in a plain list) goes by
        its class name below the module that called it; a second one alive is `#2`.
        """
        return self._name(module, parent, None)

    def _name(self, module: Any, parent: ModuleInfo | None, label: str | None) -> ModuleInfo:
        if (named := self.known(module)) is not None:
            return named
        core = innermost(module)
        if (known := self.known(core)) is not None:
            # It ran before anything was put around it.
            path, instance = known.path, known.instance
        elif parent is None:
            path, instance = self._free_path(class_name(core), core, parameter_count(core))
        else:
            path, _ = self._free_path(f"{parent.path}.{class_name(core)}", core)
            instance = parent.instance
        return self._enter(module, path, parent, label, instance, ())

    def by_number(self) -> dict[int, ModuleInfo]:
        """Return all names by module number."""
        return {named.module_id: named for named in self.by_path.values()}

    def _free_path(self, base: str, module: Any, count: int | None = None) -> tuple[str, int]:
        """Return `base`, or `base#2` and so on, and its number, so that no other module has it.

        A path whose module has died is free again for one of the same class and, where `count`
        is given, with as many parameters: to the reader of the page it is the same module.
        """
        kind, instance = type(module).__name__, 1
        while True:
            path = base if instance == 1 else f"{base}#{instance}"
            holder = self.by_path.get(path)
            alike = holder is None or (holder.type == kind and count in (None, holder.parameters))
            if alike and (holder is None or holder.alive() is None):
                return path, instance
            instance += 1

    def _enter(
        self,
        module: Any,
        path: str,
        parent: ModuleInfo | None,
        label: str | None,
        instance: int,
        around: tuple[int, ...],
    ) -> ModuleInfo:
        """Name a module and what it holds; torch's wrapper around it gets a name of its own."""
        if (known := self.known(module)) is not None:
            return known
        around = (*around, id(module))
        if (wrapped := wrapped_module(module)) is None:
            named = self._add(module, path, parent, label, instance)
            self._add_children(module, named, around)
            return named
        kind, core = wrapped
        if kind in TRANSPARENT:
            inside = self._enter(core, path, parent, label, instance, around)
            named = replace(inside, alive=weakref.ref(module, partial(self._forget, id(module))))
            self.by_identity[id(module)] = named
        else:
            outer, _ = self._free_path(f"{path} ({type(module).__name__})", module)
            named = self._add(module, outer, parent, label, instance)
            inside = self._enter(core, path, named, None, instance, around)
            if inside.parent_id is None:
                inside.parent_id = named.module_id
            inside.wrapped = True
        own_path = f"{type(module).__name__ if parent is None else path}.{WRAPPERS[kind]}"
        if own_path not in inside.aliases:
            inside.aliases.append(own_path)
        return named

    def _add_children(self, module: Any, named: ModuleInfo, around: tuple[int, ...]) -> None:
        """Name what a module holds, read from where torch keeps it.

        `named_modules` may be overridden, and never ends where a module holds the one around it.
        """
        for name, child in module._modules.items():
            if child is None or id(child) in around:
                continue
            path = f"{named.path}.{name}"
            core = innermost(child)
            if (known := self.known(core)) is None:
                path, _ = self._free_path(path, core)
                self._enter(child, path, named, None, named.instance, around)
            else:
                if path != known.path and path not in known.aliases:
                    known.aliases.append(path)
                if child is not core:
                    self._enter(child, known.path, named, None, known.instance, around)

    def _add(
        self, module: Any, path: str, parent: ModuleInfo | None, label: str | None, instance: int
    ) -> ModuleInfo:
        if (named := self.by_path.get(path)) is None:
            number = len(self.by_path) + 1
            named = self.by_path[path] = ModuleInfo(
                number,
                path,
                label,
                type(module).__name__,
                instance,
                parent.module_id if parent else None,
                parameter_count(module),
                own_parameters(module),
                is_loss(module),
                f"{MODULE_PREFIX}{number}",
            )
        named.alive = weakref.ref(module, partial(self._forget, id(module)))
        self.by_identity[id(module)] = named
        return named


# -- the script's own name of a module: the variable by which the calling frame knows it ---------


def script_label(module: Any, frame: FrameType | None) -> str | None:
    """Return the variable by which the calling frame, or its module, knows `module`."""
    while frame is not None and frame.f_code.co_filename.startswith("<frozen"):
        frame = frame.f_back
    if frame is None:
        return None
    # Not `f_locals`: up to Python 3.12 the frame keeps that copy, and with it everything the
    # function holds right now, also what it lets go of later.
    is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if is_function and (called := _called_name(frame)) is not None:
        return called
    names = (name for name, value in list(frame.f_globals.items()) if value is module)
    return next((name for name in names if not name.startswith("_")), None)


def _called_name(frame: FrameType) -> str | None:
    """Return the local variable (or its attribute) that the frame calls, read in its source."""
    code = frame.f_code
    if not hasattr(code, "co_positions"):
        return None
    line, last, begin, end = next(islice(code.co_positions(), frame.f_lasti // 2, None))
    if None in (line, last, begin, end):
        return None
    lines = [text.encode() for text in linecache.getlines(code.co_filename)[line - 1 : last]]
    if not lines:
        return None
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    try:
        call = ast.parse(f"({b''.join(lines).decode()})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, SystemError):
        return None
    root = call = call.func if isinstance(call, ast.Call) else call
    while isinstance(root, ast.Attribute):
        root = root.value
    variables = (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
    return ast.unparse(call) if isinstance(root, ast.Name) and root.id in variables else None
