"""Time the ranges that the script marks for NVTX itself, among its regions.

Covered are `torch.cuda.nvtx` (push and pop, start and end, `range`) and the package nvtx
(`annotate` as a context manager, `push_range` and `pop_range`, called by the module's name;
`start_range` where something listens, since there is no handle without). Not covered are marks,
which take no time, ranges made on a `Domain` object or by functions decorated with `annotate`, and
ranges that were open before observation began. They are timed on every thread as regions are, and
otherwise do what they did before.

A build of torch without CUDA raises at these calls: they are not wrapped there.
"""

from __future__ import annotations

import sys
from _thread import _local
from collections.abc import Callable
from functools import wraps
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
_restore: list[Callable[[], None]] = []
# A range is missing where noting it fails.
_GUARD = Guard()


def _push(source: str, domain: Any, name: Any) -> None:
    around = _stacks.open.setdefault((source, domain), [])
    around.append(user_regions.begin(source, str(name), [each for each in around if each]))


def _pop(source: str, domain: Any) -> None:
    around = _stacks.open.get((source, domain))
    span = around.pop() if around else None
    if span is not None:
        user_regions.end(span)


def _start(source: str, handle: Any, name: Any) -> None:
    span = user_regions.begin(source, str(name), [])
    if span is not None:
        _apart[source, handle] = span


def _end(source: str, handle: Any) -> None:
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
        _note(_pop, TORCH, None)
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
    while _restore:
        _restore.pop()()
    _apart.clear()


def _install_package(package: Any) -> None:
    annotate: Any = getattr(package, "annotate", None)
    if not hasattr(annotate, "__enter__") or has_compiled():
        return
    if hasattr(annotate.__dict__.get("__enter__"), _WRAPS) or "__enter__" not in vars(annotate):
        # On it already; or NVTX_DISABLE has put a stand-in there.
        return
    for owner, name, before, after in (
        (annotate, "__enter__", None, _annotated),
        (annotate, "__exit__", _left, None),
        (package, "push_range", None, _pushed),
        (package, "pop_range", _popped, None),
        (package, "start_range", None, _started),
        (package, "end_range", _ended, None),
    ):
        if name in vars(owner):
            _restore.append(replace(owner, name, _passing(vars(owner)[name], before, after)))


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


def _annotated(_result: Any, self: Any) -> None:
    domain = _domain(self)
    if domain != _OWN_DOMAIN:
        _push(NVTX, domain, _message(self))


def _left(self: Any, *_error: Any) -> None:
    domain = _domain(self)
    if domain != _OWN_DOMAIN:
        _pop(NVTX, domain)


def _domain(annotation: Any) -> Any:
    """Return the name of the domain that an annotation is for; None for the default one."""
    given = getattr(annotation, "init_args", None)
    return given[2] if given is not None else annotation.domain.name


def _message(annotation: Any) -> Any:
    """Return an annotation's message, as it was given or as it was registered."""
    given = getattr(annotation, "init_args", None)
    if given is not None:
        return given[0] or ""
    message = annotation.attributes.message
    return getattr(message, "string", message) or ""


def _pushed(
    _result: Any, message: Any = None, color: Any = None, domain: Any = None, *_: Any, **__: Any
) -> None:
    _push(NVTX, domain, message or "")


def _popped(domain: Any = None) -> None:
    _pop(NVTX, domain)


def _started(
    result: Any, message: Any = None, color: Any = None, domain: Any = None, *_: Any, **__: Any
) -> None:
    if result is not None and domain != _OWN_DOMAIN:
        _start(NVTX, result, message or "")


def _ended(handle: Any = None) -> None:
    if handle is not None:
        _end(NVTX, handle)
