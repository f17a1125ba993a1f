"""Time the ranges that the script marks for NVTX itself, among its regions.

Covered are `torch.cuda.nvtx` (push and pop, start and end, `range`) and the package nvtx
(`annotate` as a context manager, `push_range` and `pop_range`, `start_range` and `end_range`, under
whatever name the script has imported them). Where nothing listens, `start_range` gives no handle:
then ranges that are open one at a time are timed. Not covered are marks, which take no time, ranges
made on a `Domain` object or by functions decorated with `annotate`, and ranges that were open
before observation began. They are timed on every thread as regions are, and otherwise do what they
did before.

A build of torch without CUDA raises at these calls: they are not wrapped there.
"""

from __future__ import annotations

import sys
from _thread import _local
from collections.abc import Callable
from functools import partial, wraps
from types import FunctionType
from typing import Any

from profstack.capture import user_regions
from profstack.guard import Guard, has_compiled, replace, strip_frame

TORCH, NVTX = "torch.cuda.nvtx", "nvtx"
# profstack's own domain, where an old nvtx is driven by `annotate`.
_OWN_DOMAIN = "profstack"
_WRAPS = "_profstack_wraps"


class _Stacks(_local):
    """Ranges that one thread has pushed and not popped, by tool and domain."""

    def __init__(self) -> None:
        self.open: dict[Any, list[Any]] = {}


_stacks = _Stacks()
# Ranges that need not nest, by source and handle.
_apart: dict[Any, Any] = {}
# Ranges of the package without a handle; None for one whose end cannot be told from another's.
_unheard: list[Any] = []
# Of more that are never ended nothing is known any longer.
_MOST_UNHEARD = 1000
_untold = False
_restore: list[Callable[[], None]] = []
_UNTOLD = (
    "ranges of nvtx.start_range that overlap are not among the regions: without Nsight Systems it "
    "returns no handle that tells them apart; use nvtx.push_range or nvtx.annotate for them"
)
# A range is missing where noting it fails.
_GUARD = Guard()


def _push(source: str, domain: Any, name: Any) -> None:
    around = _stacks.open.setdefault((source, domain), [])
    around.append(user_regions.begin(source, str(name), [each for each in around if each]))


def _pop(source: str, domain: Any = None) -> None:
    around = _stacks.open.get((source, domain))
    if around and (span := around.pop()) is not None:
        user_regions.end(span)


def _start(source: str, handle: Any, name: Any) -> None:
    global _untold
    span = user_regions.begin(source, str(name), [])
    if handle is None:
        if _unheard:
            _untold = _untold or span is not None
            # Only the one that was alone has a span.
            for each in filter(None, (_unheard[-1], span)):
                user_regions.drop(each)
            _unheard[-1] = span = None
        if len(_unheard) < _MOST_UNHEARD:
            _unheard.append(span)
    elif span is not None:
        _apart[source, handle] = span


def _end(source: str, handle: Any = None, *, range_id: Any = None) -> None:
    # nvtx's own name of it.
    handle = range_id if handle is None else handle
    if handle is None:
        span = _unheard.pop() if _unheard else None
    else:
        span = _apart.pop((source, handle), None)
    if span is not None:
        user_regions.end(span)


class _NvtxProxy:
    """Takes the place of the module of C functions behind `torch.cuda.nvtx`, and notes its ranges.

    The functions that scripts call are not replaced: dynamo knows them by identity.
    """

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def rangePushA(self, message: Any) -> Any:  # noqa: N802  # torch's name
        depth = self._module.rangePushA(message)
        _note(_push, TORCH, None, message)
        return depth

    def rangePop(self) -> Any:  # noqa: N802  # torch's name
        _note(_pop, TORCH)
        return self._module.rangePop()

    def rangeStartA(self, message: Any) -> Any:  # noqa: N802  # torch's name
        handle = self._module.rangeStartA(message)
        _note(_start, TORCH, handle, message)
        return handle

    def rangeEnd(self, handle: Any) -> Any:  # noqa: N802  # torch's name
        _note(_end, TORCH, handle)
        return self._module.rangeEnd(handle)


def install() -> None:
    """Note the ranges of what the script has loaded; call again for what it has loaded since."""
    # A script's own module of that name fails here: its ranges are not noted.
    with _GUARD:
        module = sys.modules.get("torch.cuda.nvtx")
        behind = getattr(module, "_nvtx", None)
        # A build without CUDA has a stand-in there that raises.
        if module is not None and isinstance(behind, type(sys)):
            _restore.append(replace(module, "_nvtx", _NvtxProxy(behind)))
        _install_package(sys.modules.get("nvtx"))


def remove() -> None:
    """Restore everything, unless the script has replaced it since."""
    global _untold
    while _restore:
        _restore.pop()()
    _apart.clear()
    _unheard.clear()
    _untold = False


def missing() -> str | None:
    """Return which ranges were not timed, and why; None where none are known to be missing."""
    return _UNTOLD if _untold else None


def _install_package(package: Any) -> None:
    annotate: Any = getattr(package, "annotate", None)
    # There is none where NVTX_DISABLE has put a stand-in; it may be wrapped already.
    enter = getattr(annotate, "__dict__", {}).get("__enter__")
    if enter is None or hasattr(enter, _WRAPS) or has_compiled():
        return
    for owner, name, before, after in (
        (annotate, "__enter__", None, _annotated),
        (annotate, "__exit__", _left, None),
        (package, "push_range", None, _pushed),
        (package, "pop_range", partial(_pop, NVTX), None),
        (package, "start_range", None, _started),
        (package, "end_range", partial(_end, NVTX), None),
    ):
        function = vars(owner).get(name)
        if owner is package and _is_imported_by_name(function):
            _restore.append(_exchange(function, before, after))
        elif function is not None:
            _restore.append(replace(owner, name, _passing(function, before, after)))


def _is_imported_by_name(function: Any) -> bool:
    """Return whether it is a function of the package's, which scripts may hold by other names."""
    own = isinstance(function, FunctionType) and function.__module__.partition(".")[0] == NVTX
    return own and not function.__closure__ and not hasattr(function, "__wrapped__")


def _exchange(
    function: Any, before: Callable[..., None] | None, after: Callable[..., None] | None
) -> Callable[[], None]:
    """Take notes of a function's calls under all its names; return what ends that.

    The function stays the same object, and its code is exchanged.
    """
    code, defaults = function.__code__, function.__kwdefaults__
    original: Any = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__
    )
    original.__kwdefaults__ = defaults
    function.__kwdefaults__ = {"_passing": _passing(original, before, after)}
    # For those who read the signature.
    function.__wrapped__ = original
    function.__code__ = _exchanged.__code__

    def restore() -> None:
        if function.__code__ is _exchanged.__code__:
            function.__code__, function.__kwdefaults__ = code, defaults
            del function.__wrapped__

    return restore


def _exchanged(*args: Any, _passing: Any, **kwargs: Any) -> Any:
    """Stand for a function of the package's: it runs with the names of that module."""
    try:
        return _passing(*args, **kwargs)
    except BaseException as error:
        # As `strip_frame` does, whose name is not known there.
        if error.__traceback__ is not None:
            error.__traceback__ = error.__traceback__.tb_next
        raise


def _passing(
    original: Any, before: Callable[..., None] | None, after: Callable[..., None] | None
) -> Any:
    """Return `original` with a note taken before a call, or after it of its result."""

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if user_regions.is_compiling():
            return original(*args, **kwargs)
        if before is not None:
            _note(before, *args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            strip_frame(error)
            raise
        if after is not None:
            _note(after, result, *args, **kwargs)
        return result

    setattr(call, _WRAPS, original)
    return call


def _note(take: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Take a note of a call."""
    with _GUARD:
        take(*args, **kwargs)


def _annotated(_result: Any, annotation: Any) -> None:
    if (domain := _domain(annotation)) != _OWN_DOMAIN:
        given = getattr(annotation, "init_args", None)
        message = given[0] if given is not None else annotation.attributes.message
        # A registered one is an object with its text.
        _push(NVTX, domain, getattr(message, "string", message) or "")


def _left(annotation: Any, *_error: Any) -> None:
    if (domain := _domain(annotation)) != _OWN_DOMAIN:
        _pop(NVTX, domain)


def _domain(annotation: Any) -> Any:
    """Return the name of the domain that an annotation is for; None for the default one."""
    given = getattr(annotation, "init_args", None)
    return given[2] if given is not None else annotation.domain.name


def _pushed(
    _result: Any, message: Any = None, color: Any = None, domain: Any = None, *_: Any, **__: Any
) -> None:
    _push(NVTX, domain, message or "")


def _started(
    result: Any, message: Any = None, color: Any = None, domain: Any = None, *_: Any, **__: Any
) -> None:
    if domain != _OWN_DOMAIN:
        _start(NVTX, result, message or "")
