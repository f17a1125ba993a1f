"""Follow the Python processes that the script starts: each records itself once it calls models.

Three ways of starting one are followed: a fork, `multiprocessing` by spawn or forkserver, and
`subprocess` with the script's own interpreter. Such a process is armed as the script's own is, and
then only looks out: nothing is recorded, and no folder made, before its second call of a model has
ended. A worker of a DataLoader is left alone.

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
# Outermost calls of models that a process makes before it records: one or two are no loop. Ranks
# that meet begin after the same one.
FIRST_CALLS, FIRST_CALLS_OF_RANKS = 2, 1
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


def is_own(program: "Any", arguments: "Any", given: "Mapping[str, str]") -> bool:
    """Return whether a command starts this interpreter, and lets it import `sitecustomize`.

    What is no list of words, such as an iterator that can be read once, is not looked at.
    """
    words = [arguments] if isinstance(arguments, (str, bytes, os.PathLike)) else arguments
    if not isinstance(words, (list, tuple)) or not words or not sys.executable:
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


def _is_relative(command: "Any") -> bool:
    name = os.fsdecode(command[0] if isinstance(command, (list, tuple)) else command)
    return bool(os.path.dirname(name)) and not os.path.isabs(name)


def follow_subprocesses(module: "Any", folder: str) -> None:
    """Arm what `subprocess` starts from here on, where it is this interpreter."""
    original = module.Popen._execute_child

    def _execute_child(  # the names and the order of `subprocess`
        self: "Any", args: "Any", executable: "Any", *rest: "Any", **named: "Any"
    ) -> "Any":
        with Guard():
            # preexec_fn, close_fds, pass_fds, cwd, env, ...
            before, cwd, given = rest[0], rest[3], os.environ if rest[4] is None else rest[4]
            # Elsewhere a relative name is another file, and bytes may name a variable twice.
            is_plain = all(isinstance(name, str) for name in given)
            is_here = cwd is None or not _is_relative(args if executable is None else executable)
            if before is None and is_plain and is_here and is_own(executable, args, given):
                rest = (*rest[:4], environment(folder, given), *rest[5:])
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
        with Guard():
            is_start = at < len(words) and str(words[at]).startswith(_STARTS)
            if is_start and is_own(path, [path], os.environ):
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
                result = original(module, *args, **kwargs)
            except BaseException as error:
                strip_frame(error)
                raise
            finally:
                local.inside = False
            self.called()
            return result

        __call__.__wrapped__ = original  # type: ignore[attr-defined]  # as by functools.wraps
        __call__.__name__, __call__.__qualname__ = original.__name__, original.__qualname__
        wrapper = traced_as(unseen_by_dynamo(torch, __call__), original)
        self.end = replace(torch.nn.Module, "__call__", wrapper)

    def called(self) -> None:
        """Count an outermost call that has ended; after some of them recording begins."""
        self._seen += 1
        is_rank = rank_facts().get("world_size", 1) > 1
        if self._seen >= (FIRST_CALLS_OF_RANKS if is_rank else FIRST_CALLS):
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


def rank_facts(*, launched: bool = False) -> "dict[str, int]":
    """Return the rank of this process and the number of ranks, as far as they are known by now.

    Where the script itself was `launched` as a rank, its variables say nothing of its processes.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return {"rank": distributed.get_rank(), "world_size": distributed.get_world_size()}
    if launched:
        return {}
    known = {"rank": os.environ.get("RANK", ""), "world_size": os.environ.get("WORLD_SIZE", "")}
    return {name: int(text) for name, text in known.items() if text.isdigit()}
