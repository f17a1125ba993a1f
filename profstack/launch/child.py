"""Arm profstack in the measured process when the script imports torch.

Until the script itself imports torch nothing is imported here that a bare interpreter has not
loaded, so the script's first line finds `sys.modules` as under plain python. The hook is a
finder on `sys.meta_path`; it wraps the loader of the modules it waits for, calls back when they
have been executed, and takes itself away.
"""

import os
import sys
import time

from profstack.guard import CollectorOff, Guard, complain, delay_signals
from profstack.launch.children import (
    FOLLOWED,
    FOLLOWS,
    LookOut,
    followed_modules,
    rank_facts,
    stop_following,
)

# As in typing, which must not be imported here; type checkers know the name.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    from profstack.capture.engine import Engine


# The options of a process that tries a change, and of one whose watch is to cost next to nothing.
TRIES, SPARING = "tries", "sparing"
# The module whose models generate.
_GENERATION = "transformers.generation.utils"
_pid: "int | None" = None
_folder = ""
_finder: "_Finder | None" = None
_engine: "Engine | None" = None
# What runs since the script's first line, by layer.
_tools: "dict[str, Any]" = {}
_armed_at = 0.0
# Whether this process was started by the script, and not by `profstack run`; and if it was forked
# from one that had torch's profiler on at some time.
_followed = False
_profiled_before = False
_look_out: "LookOut | None" = None
# Whether this process is one of `profstack try`.
_tries = False


class _Loader:
    """Calls back when a module's own loader has completed the module."""

    def __init__(self, loader: "Any", callback: "Callable[[Any], None]") -> None:
        self._loader = loader
        self._callback = callback

    def __getattr__(self, name: str) -> "Any":
        return getattr(self._loader, name)

    def create_module(self, spec: "ModuleSpec") -> "ModuleType | None":
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: "Any") -> None:
        # The script may look at its modules' loaders: it must find the real ones.
        module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        try:
            self._loader.exec_module(module)
        except BaseException as error:
            # The script's traceback names the script's frames; python strips its own here too.
            if error.__traceback__ is not None:
                error.__traceback__ = error.__traceback__.tb_next
            raise
        with Guard(failed=lambda error: complain(f"not armed, {type(error).__name__}: {error}")):
            self._callback(module)


class _Finder:
    """Finds only the modules it waits for, through the finders behind it."""

    def __init__(self, callbacks: "Mapping[str, Callable[[Any], None]]") -> None:
        self.callbacks = callbacks

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        callback = self.callbacks.get(name)
        if callback is None:
            return None
        # Those behind alone: two of these that wait for one module would ask each other for ever.
        if self not in sys.meta_path:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            if find is None:
                continue
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    # It has all of a loader's names, through the real one.
                    spec.loader = _Loader(spec.loader, callback)  # type: ignore[assignment]
                return spec
        return None


def arm(folder: str, options: "Sequence[str]") -> None:
    """Wait for torch; from here on profile functions (option `profile`) or watch (`watch`).

    With `follows` the processes that this one starts are armed too, as `followed`.
    """
    global _pid, _folder, _finder, _armed_at, _followed, _tries
    _tries = TRIES in options
    _armed_at = time.perf_counter()
    _pid = os.getpid()
    _folder = folder
    _followed = FOLLOWED in options
    starting = followed_modules(folder) if _followed or FOLLOWS in options else {}
    _finder = _Finder(
        {
            "torch": _torch_arrived,
            _GENERATION: _generation_arrived,
            **starting,
        }
    )
    sys.meta_path.insert(0, _finder)
    for name, follow in starting.items():
        if name in sys.modules:
            follow(sys.modules[name])
    if starting and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forked)
    if "watch" not in options and "profile" not in options:
        return
    known = set(sys.path_importer_cache)
    from profstack.guard import import_unseen
    from profstack.readers.watch import Sampler

    for entry in set(sys.path_importer_cache) - known:
        del sys.path_importer_cache[entry]
    import_unseen("atexit").register(_finish_without_torch)
    if "watch" in options:
        _tools["watch"] = Sampler(_armed_at, sparing=SPARING in options)
        _tools["watch"].resume()
    if "profile" in options:
        profiler = import_unseen("_lsprof").Profiler()
        _tools["cprofile"] = profiler
        profiler.enable()


def engine() -> "Engine | None":
    """Return the engine of this process; None before torch comes and outside a measured run."""
    return _engine if _pid == os.getpid() else None


def is_armed() -> bool:
    """Return whether this process is measured: the run's child, or one with an open session.

    A process that the script has started is not before it records.
    """
    return _pid == os.getpid() and (_engine is not None or not _followed)


def attach(engine: "Engine") -> None:
    """Let a session's engine measure this process: it gets `profstack.step()` and `generate`."""
    global _engine, _pid, _finder
    if _look_out is not None:
        _look_out.end()
    _engine, _pid = engine, os.getpid()
    if _GENERATION in sys.modules:
        engine.generation_arrived(sys.modules[_GENERATION])
    else:
        _finder = _Finder({_GENERATION: _generation_arrived})
        sys.meta_path.insert(0, _finder)


def detach() -> None:
    """End the measurement of this process: the session is over."""
    global _engine, _pid
    release()
    _engine = _pid = None


def user_step() -> None:
    """End a step, for `profstack.step()`."""
    if _pid != os.getpid():
        return
    if _engine is None and _look_out is not None:
        _look_out.begin()
    if _engine is not None:
        _engine.events.user_step()


def _forked() -> None:
    """Begin anew in a forked process: what its parent records is not its own."""
    global _pid, _engine, _armed_at, _followed, _profiled_before
    _armed_at = time.perf_counter()
    _pid = os.getpid()
    if _engine is not None:
        is_begun = _engine.log.next_slice > 0 or _engine.planned is not None
        _profiled_before = _profiled_before or is_begun
        # Before this process looks out: it must find torch as it was.
        with Guard():
            _engine.abandon()
    _engine, _followed = None, True
    _tools.clear()


def _look(torch: "Any") -> None:
    """Look out for calls of models in a process that the script has started."""
    global _look_out
    if _look_out is not None:
        _look_out.end()
    _look_out = LookOut(torch, lambda: _begin_followed(torch))


def _begin_followed(torch: "Any") -> None:
    """Record a process that the script has started, into a folder inside the script's own."""
    global _engine
    with CollectorOff():
        from profstack.capture.run import start_followed

        _engine = start_followed(
            _folder,
            torch,
            _armed_at,
            _over,
            rank_facts,
            after_profiler=_profiled_before,
        )
    if _engine is not None and _GENERATION in sys.modules:
        _engine.generation_arrived(sys.modules[_GENERATION])


def _torch_arrived(torch: "Any") -> None:
    global _engine
    if _pid != os.getpid():
        return
    if _followed:
        _look(torch)
        _look_in_forks(torch)
        release()
        return
    if _tries:
        with Guard(failed=lambda error: complain(f"nothing is tried, {error}")):
            _begin_trial(torch)
    begun = time.perf_counter()
    # The imports below are no work of the script's.
    profiler, sampler = _tools.get("cprofile"), _tools.get("watch")
    if profiler is not None:
        profiler.disable()
    if sampler is not None:
        sampler.pause()
    try:
        # Beside all that torch has loaded, one collection would take as long as the rest.
        with CollectorOff():
            from profstack.capture.run import start_engine

            _engine = start_engine(_folder, torch, _tools, _armed_at, begun, _over)
    finally:
        if _engine is None and sampler is not None:
            # What it has seen will not be used.
            _tools.pop("watch").close()
    if profiler is not None and _engine is not None and "cprofile" in _engine.tools:
        profiler.enable()
    _look_in_forks(torch)
    if _engine is None:
        release()


def _begin_trial(torch: "Any") -> None:
    """Make the changes that this process tries."""
    from pathlib import Path

    from profstack.capture.run import read_options
    from profstack.changes.process import begin

    def when_imported(name: str, change: "Callable[[Any], None]") -> None:
        if name in sys.modules:
            change(sys.modules[name])
        else:
            sys.meta_path.insert(0, _Finder({name: change}))

    begin(Path(_folder), torch, read_options(Path(_folder))["trial"], when_imported)


def _look_in_forks(torch: "Any") -> None:
    """Let forks look out from here on, after the engine has let go of them."""
    follows = _finder is not None and "subprocess" in _finder.callbacks
    if follows and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: _look(torch))


def _generation_arrived(module: "Any") -> None:
    release()
    if _engine is not None and _pid == os.getpid():
        _engine.generation_arrived(module)


def release() -> None:
    """Wait for no further import: the recording is over."""
    if _finder is not None and _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


def _over() -> None:
    """Let the script's process go on as without profstack: the recording is over."""
    release()
    if _finder is not None:
        stop_following()


def _finish_without_torch() -> None:
    if _engine is None and _tools and _pid == os.getpid():
        if "cprofile" in _tools:
            _tools["cprofile"].disable()
        if "watch" in _tools:
            _tools["watch"].pause()
        from profstack.storage.vocabulary import undefined_profile

        has_remedy = undefined_profile(getattr(sys, "last_value", None)) is not None
        if "cprofile" not in _tools and not has_remedy and not _tools["watch"].has_seen():
            # The script ended before anything was seen.
            return
        if getattr(sys, "last_type", None) is KeyboardInterrupt:
            # Python ends by SIGINT then, but forgets to where anything is executed after it.
            return
        import warnings

        # The imports for it add warning filters, and the script's exit is not over yet.
        with warnings.catch_warnings():
            from profstack.capture.run import record_without_torch

            release()
            delay_signals(lambda: record_without_torch(_folder, _tools, _armed_at))
