"""Follow the Python processes that the script starts: each records itself once it calls models.

Three ways of starting one are followed: a fork, `multiprocessing` by spawn or forkserver, and
`subprocess` with the script's own interpreter. Such a process is armed as the script's own is, and
then only looks out: nothing is recorded, and no folder made, before its third call of a model. A
worker of a DataLoader is left alone.

Used from the script's first line on: import nothing here that a bare interpreter has not loaded.
"""

import _thread
import os
import sys

from profstack.guard import (
    Guard,
    compiling,
    complain,
    dynamo_callback,
    replace,
    strip_frame,
    traced_as,
    unseen_by_dynamo,
)

# As in typing, which must not be imported here; type checkers know the name.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

# Options of a measured process: it was started by the script; it follows what it starts itself.
FOLLOWED, FOLLOWS = "followed", "follows"
# Outermost calls of models that a process makes before it records: one or two are no loop.
FIRST_CALLS = 2
_put_back: "list[Callable[[], None]]" = []
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_INJECTED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "injected")
# What `multiprocessing` starts by `python -c`, by the beginnings of the code.
_STARTS = tuple(f"from multiprocessing.{name} import" for name in ("spawn", "forkserver"))
_ARM = """
import sys
sys.path.insert(0, {root!r})
try:
    from profstack.launch.child import arm
    arm({folder!r}, [{word!r}])
except Exception:
    pass
finally:
    sys.path.remove({root!r})
"""
# Flags that keep `sitecustomize` or PYTHONPATH out.
_ISOLATING = frozenset("SIE")


def environment(folder: str, given: "Mapping[str, str]") -> "dict[str, str]":
    """Return the environment of a process that is to be followed, from that of any other."""
    made = dict(given)
    saved = made.get("PYTHONPATH")
    if saved is not None:
        made["PROFSTACK_PYTHONPATH"] = saved
    made["PYTHONPATH"] = os.pathsep.join(filter(None, (_INJECTED, saved)))
    made["PROFSTACK_CHILD"], made["PROFSTACK_CHILD_OPTIONS"] = folder, FOLLOWED
    return made


def is_own(program: "Any", arguments: "Any", given: "Mapping[Any, Any]") -> bool:
    """Return whether a command starts this interpreter, and lets it import `sitecustomize`."""
    words = [arguments] if isinstance(arguments, (str, bytes, os.PathLike)) else list(arguments)
    if not words or not sys.executable:
        return False
    name = os.fsdecode(words[0] if program is None else program)
    if not os.path.dirname(name):
        folders = os.get_exec_path({key: given[key] for key in ("PATH",) if key in given} or None)
        paths = (os.path.join(folder, name) for folder in folders)
        name = next((path for path in paths if os.access(path, os.X_OK)), name)
    here = os.path.dirname(os.path.abspath(sys.executable))
    beside = os.path.dirname(os.path.abspath(name)) == here
    if not beside or os.path.realpath(name) != os.path.realpath(sys.executable):
        return False
    flags = map(os.fsdecode, words[1:])
    for word in flags:
        if not word.startswith("-") or word in ("-", "-c", "-m"):
            break
        if word in ("-X", "-W"):
            next(flags, None)
        elif word[:2] not in ("--", "-X", "-W") and not _ISOLATING.isdisjoint(word):
            return False
    return True


def follow_subprocesses(module: "Any", folder: str) -> None:
    """Arm what `subprocess` starts from here on, where it is this interpreter."""
    original = module.Popen._execute_child

    def _execute_child(  # the names and the order of `subprocess`
        self: "Any", args: "Any", executable: "Any", *rest: "Any", **named: "Any"
    ) -> "Any":
        try:
            # preexec_fn, close_fds, pass_fds, cwd, env, ...
            if len(rest) > 4 and isinstance(rest[4], (type(None), dict, type(os.environ))):
                given = os.environ if rest[4] is None else rest[4]
                if is_own(executable, args, given):
                    rest = (*rest[:4], environment(folder, given), *rest[5:])
        except (TypeError, ValueError):
            pass  # what the script gave is wrong, and `subprocess` says so
        try:
            return original(self, args, executable, *rest, **named)
        except BaseException as error:
            strip_frame(error)
            raise

    _put_back.append(replace(module.Popen, "_execute_child", _execute_child))


def follow_spawned(module: "Any", folder: str) -> None:
    """Arm what `multiprocessing.util` starts from here on: spawned processes and forkservers."""
    original = module.spawnv_passfds
    # In names of its own and on the same line, so that the process finds all as without it.
    code = f"exec({_ARM.format(root=_ROOT, folder=folder, word=FOLLOWED)!r}, {{}}); "

    def spawnv_passfds(path: "Any", args: "Any", passfds: "Any") -> "Any":
        words = list(args)
        at = words.index("-c") + 1 if "-c" in words else len(words)
        if at < len(words) and str(words[at]).startswith(_STARTS):
            words[at] = f"{code}{words[at]}"
        return original(path, words, passfds)

    _put_back.append(replace(module, "spawnv_passfds", spawnv_passfds))


def stop_following() -> None:
    """Put the functions back that start processes."""
    while _put_back:
        _put_back.pop()()


def followed_modules(folder: str) -> "dict[str, Callable[[Any], None]]":
    """Return what is to be done with the modules that start processes, once they are there."""
    return {
        "subprocess": lambda module: follow_subprocesses(module, folder),
        "multiprocessing.util": lambda module: follow_spawned(module, folder),
    }


class LookOut:
    """Waits in a followed process for calls of models, then calls `begin` once."""

    def __init__(self, torch: "Any", begin: "Callable[[], None]") -> None:
        self._begin, self._seen = begin, 0
        # The threads of a server call models side by side.
        local: Any = _thread._local()
        original = torch.nn.Module.__call__
        under_dynamo, compiler = compiling(torch)
        traced = dynamo_callback(torch)

        def __call__(module: "Any", *args: "Any", **kwargs: "Any") -> "Any":
            if under_dynamo() or compiler._is_compiling_flag or traced() is not None:
                return original(module, *args, **kwargs)
            if getattr(local, "inside", False):
                return original(module, *args, **kwargs)
            local.inside = True
            try:
                self.called()
                return original(module, *args, **kwargs)
            except BaseException as error:
                strip_frame(error)
                raise
            finally:
                local.inside = False

        __call__.__wrapped__ = original  # type: ignore[attr-defined]  # as by functools.wraps
        __call__.__name__, __call__.__qualname__ = original.__name__, original.__qualname__
        wrapper = traced_as(unseen_by_dynamo(torch, __call__), original)
        self.end = replace(torch.nn.Module, "__call__", wrapper)

    def called(self) -> None:
        """Count an outermost call; after some of them recording begins, before the next one."""
        self._seen += 1
        if self._seen > FIRST_CALLS:
            self.begin()

    def begin(self) -> None:
        """Look out no longer; record this process, unless it is a worker of a DataLoader."""
        if self._seen < 0:
            return
        self._seen = -sys.maxsize
        self.end()
        with Guard(failed=lambda error: complain(f"not armed, {type(error).__name__}: {error}")):
            data: Any = sys.modules.get("torch.utils.data")
            if data is None or data.get_worker_info() is None:
                self._begin()


def rank_facts() -> "dict[str, int]":
    """Return the rank of this process and the number of ranks, as far as they are known by now."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return {"rank": distributed.get_rank(), "world_size": distributed.get_world_size()}
    known = {"rank": os.environ.get("RANK", ""), "world_size": os.environ.get("WORLD_SIZE", "")}
    return {name: int(text) for name, text in known.items() if text.isdigit()}
