"""Count a slice's forward work with flops-profiler's formulas, and leave nothing of it behind.

flops-profiler itself puts hooks on every module object, which switches fused paths off and changes
results; it fails in the middle of the script's call on inputs its formulas do not know; and it does
not restore everything. Here its own tables are read (the functions it counts, and their formulas),
and those functions are counted by wrappers of ours, only during a module's forward call, on the
thread that makes it. Errors of the tool's formulas stay in here. No module is changed.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from _thread import get_ident
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from types import FunctionType, ModuleType
from typing import Any, ClassVar

from profstack.guard import Guard, compiling, has_compiled, replace, strip_frame
from profstack.privacy import package_version
from profstack.readers.flops.counting import Calls, CompileNotice, count_row, in_one_line
from profstack.storage.schema.column import Record

# --- The functions of torch that flops-profiler counts --------------------------------------------

# Functions and formulas are read from the tool; nothing is patched for that.

# It takes the arguments of the function, and returns operations and multiply-adds.
Formula = Callable[..., tuple[Any, Any]]


def recurrent_function(module: Any) -> str:
    """Return the function of torch that a recurrent layer or cell calls."""
    if hasattr(module, "mode"):
        return str(module.mode).lower()
    cell = type(module).__name__.removesuffix("Cell").lower()
    return f"rnn_{module.nonlinearity}_cell" if cell == "rnn" else f"{cell}_cell"


class _Assignments:
    """Replaces a module or a class, and records assignments to it instead of making them."""

    def __init__(self, real: Any, found: list[tuple[Any, str, Any]]) -> None:
        vars(self).update(_real=real, _found=found)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._real, name)
        return _Assignments(value, self._found) if isinstance(value, (type, ModuleType)) else value

    def __setattr__(self, name: str, value: Any) -> None:
        self._found.append((self._real, name, value))


def counted_functions(tool: Any, torch: Any) -> list[tuple[Any, str, Formula]]:
    """Return the functions flops-profiler counts (owner, name), each with its formula.

    The tool's own functions that patch torch are run over stand-ins, so that nothing is patched.
    Raises AttributeError where the tool does not fit this torch.
    """
    found: list[tuple[Any, str, Any]] = []
    stand_ins = {
        "F": _Assignments(torch.nn.functional, found),
        "torch": _Assignments(torch, found),
        "_wrapFunc": lambda function, formula: formula,
    }
    for patches in (tool._patch_functionals, tool._patch_tensor_methods):
        FunctionType(patches.__code__, {**vars(tool), **stand_ins})()
    return found


COUNTER = "flops-profiler"

# The warnings module skips frames of files so named: a warning inside a counted function names the
# same line as without the wrapper.
_UNSEEN_FRAME = "<profstack, passed over like importlib._bootstrap>"


class FencedFlopsProfiler(Calls):
    """Counts the forward work of a slice by module with flops-profiler's formulas.

    A listener (`layer.Listener`) of module calls between `start` and `stop`; then `records` returns
    rows of `flop_counts` and `notes` the functions it could not count.
    """

    _in_use: ClassVar[FencedFlopsProfiler | None] = None

    def __init__(self) -> None:
        super().__init__()
        self._torch: Any = None
        self._formulas: list[tuple[Any, str, Formula]] = []
        self._recurrent: Collection[type] = ()
        self._plain: frozenset[type] = frozenset()
        self._thread = 0
        self._step = 0
        self._counting = False
        # What takes our wrapper off each function.
        self._restore: dict[tuple[Any, str], Callable[[], None]] = {}
        # (step, module path, function, whether a formula gave a figure) -> calls, operations,
        # multiply-adds.
        self._counts: dict[tuple[int, str, str, bool], list[int]] = {}
        self._failures: dict[str, str] = {}
        self._compiling = CompileNotice(self._dynamo_compiles)
        self._compiled = False

    @staticmethod
    def unavailable_reason() -> str | None:
        """Return why it cannot count on this machine, with what to install; None if it can."""
        if importlib.util.find_spec("flops_profiler") is None:
            return "flops-profiler is not installed; pip install 'profstack[all]'"
        return None

    @staticmethod
    def version() -> str | None:
        """Return the version of flops-profiler, None when it is not installed."""
        return package_version("flops-profiler")

    def busy_reason(self) -> str | None:
        """Return why it must not count right now; None if it may."""
        if has_compiled():
            return "flops-profiler is left out once dynamo has compiled: it would compile again"
        if FencedFlopsProfiler._in_use is not None:
            return "flops-profiler is counting already, and can do so only once at a time"
        return None

    def start(self) -> None:
        """Count module calls of this thread from now on.

        Raises RuntimeError where `busy_reason` has one, and whatever importing flops-profiler or
        reading its tables raises.
        """
        if (reason := self.busy_reason()) is not None:
            raise RuntimeError(reason)
        import torch

        tool: Any = importlib.import_module("flops_profiler.profiler")
        self._torch = torch
        self._formulas = counted_functions(tool, torch)
        self._recurrent = frozenset(tool.MODULE_HOOK_MAPPING)
        tensors = (torch.Tensor, torch.nn.Parameter, torch.Size, torch.dtype)
        self._plain = frozenset((*tensors, int, float, bool, str, tuple, list, type(None)))
        self._thread, self._step = get_ident(), 0
        self._counts, self._failures, self._stack = {}, {}, []
        self._compiled, self._counting = False, True
        FencedFlopsProfiler._in_use = self
        self._compiling.look()

    def stop(self) -> None:
        """End counting and restore every function. Safe to call twice."""
        self._counting = False
        self._stack = []
        self._take_off()
        self._compiling.end()
        if FencedFlopsProfiler._in_use is self:
            FencedFlopsProfiler._in_use = None

    def enter(self, kind: str, name: str, module: Any = None) -> None:
        """Note the begin of a module's call, a backward pass, an optimizer's step or a region."""
        if not self._counting:
            return
        self._compiling.look()
        self._stack.append((kind, name))
        if kind == "module" and type(module) in self._recurrent and self._in_forward():
            function = recurrent_function(module)
            self._failures[function] = "a multiply-add of it would count as one operation"
            self._add(function, None)
        self._changed()

    def step_ended(self, number: int) -> None:
        """Count the step."""
        self._step += 1

    def records(
        self, index: int, modules: Mapping[int, Any], left_out: Collection[int] = ()
    ) -> list[Record]:
        """Return rows of `flop_counts`, one per module and function, of forward work alone.

        `modules` are the modules' entries by number; `left_out` are steps, from 0 in the slice.
        Calls without a figure have a row of their own, with flop None. No rows where dynamo
        compiled something meanwhile.
        """
        if self._compiled:
            return []
        sums: dict[tuple[str, str, bool], list[int]] = defaultdict(lambda: [0, 0, 0])
        for (step, path, function, known), amounts in self._counts.items():
            if step not in left_out:
                entry = sums[path, function, known]
                entry[:] = map(sum, zip(entry, amounts, strict=True))
        numbers = {named.path: number for number, named in modules.items()}
        return [
            {
                **count_row(index, COUNTER, numbers.get(path), function, 0, calls, flop, None),
                "mac": mac,
            }
            for (path, function, known), (calls, *amounts) in sums.items()
            for flop, mac in (amounts if known else (None, None),)
        ]

    def notes(self) -> list[tuple[str, str]]:
        """Return notes on functions that could not be counted: slugs and sentences."""
        if self._compiled:
            return [("gave-way", "flops-profiler gave way: dynamo compiled something in its slice")]
        if not self._counts:
            return [("empty-capture", "flops-profiler saw none of the functions it counts")]
        return [
            ("flops-uncounted", f"flops-profiler could not count {function}: {reason}")
            for function, reason in sorted(self._failures.items())
        ]

    # --- The wrappers

    def _in_forward(self) -> bool:
        kinds = [kind for kind, _ in self._stack]
        return "module" in kinds and "backward" not in kinds

    def _changed(self) -> None:
        """Put the wrappers on in forward calls only."""
        wanted = self._counting and self._in_forward()
        if self._restore and not wanted:
            self._take_off()
        if self._restore or not wanted:
            return
        try:
            for owner, name, formula in self._formulas:
                wrapper = self._counted(owner, name, getattr(owner, name), formula)
                self._restore[owner, name] = replace(owner, name, wrapper)
        except BaseException:
            self._take_off()
            raise

    def _take_off(self) -> None:
        """Restore every name, unless something else has replaced our wrapper."""
        every, self._restore = self._restore, {}
        for restore in every.values():
            restore()

    def _counted(self, owner: Any, name: str, original: Any, formula: Formula) -> Any:
        """Return a wrapper that counts a call and makes it."""
        under_dynamo, compiler = compiling(self._torch)
        tracing, modes = self._torch._C._get_tracing_state, self._torch._C._len_torch_function_stack

        @functools.wraps(original)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if under_dynamo() or compiler._is_compiling_flag:
                return original(*args, **kwargs)
            handled = None
            try:
                restore = self._restore.get((owner, name))
                if restore is not None and get_ident() == self._thread and tracing() is None:
                    odd = {*map(type, args), *map(type, kwargs.values())} - self._plain
                    self._count(name, formula, args, kwargs, odd)
                    if odd or modes():
                        handled = restore
                        restore()
                return original(*args, **kwargs)
            except BaseException as error:
                strip_frame(error)
                raise
            finally:
                # The script's handlers (`__torch_function__`) were called: functions in Python pass
                # them the object under their own name, which had to be the original.
                if handled is not None and self._restore.get((owner, name)) is handled:
                    setattr(owner, name, counted)

        code = counted.__code__.replace(co_filename=_UNSEEN_FRAME)  # type: ignore[attr-defined]
        counted.__code__ = code  # type: ignore[attr-defined]  # typed as what it wraps
        return counted

    def _count(
        self, name: str, formula: Formula, args: Any, kwargs: Any, odd: Collection[type]
    ) -> None:
        """Count with the tool's formula; its errors go no further.

        The shape of an `odd` input, neither tensor nor number, is not read: reading may be counted.
        """
        counted = None

        def fail(error: BaseException) -> None:
            self._failures[name] = f"its formula raises {in_one_line(error)}"

        with Guard(failed=fail):
            if odd:
                kinds = ", ".join(sorted(kind.__name__ for kind in odd))
                self._failures[name] = f"it was called with {kinds}"
            else:
                # Formulas read shapes; handlers of the script must not see that.
                with self._torch._C.DisableTorchFunction():
                    flop, mac = formula(*args, **kwargs)
                    counted = int(flop), int(mac)
        self._add(name, counted)

    def _add(self, function: str, counted: tuple[int, int] | None) -> None:
        path = next((name for kind, name in reversed(self._stack) if kind == "module"), "")
        key = (self._step, path, function, counted is not None)
        entry = self._counts.setdefault(key, [0, 0, 0])
        entry[:] = map(sum, zip(entry, (1, *(counted or (0, 0))), strict=True))

    def _dynamo_compiles(self, *_: Any) -> None:
        self._counting, self._compiled = False, True
        self._take_off()
