"""What the threads of this process and the processes below it are, by how they are called.

Python's threads are told by `threading`, torch's by the names that it gives them.
"""

from __future__ import annotations

import sys
import threading

from profstack.environment import thread_name
from profstack.rawthreads import native_numbers

MAIN, BACKWARD, WORKER, PIN, OWN, NATIVE, OTHER = (
    "main",
    "backward",
    "DataLoader worker",
    "DataLoader pin memory",
    "profstack",
    "native",
    "other",
)
# What torch calls its threads and processes.
_WORKER_NAME, _PIN_NAME, _BACKWARD_NAME = "pt_data_worker", "pt_data_pin", "pt_autograd"
_PIN_MODULE = "torch.utils.data._utils.pin_memory"
UNNAMED = "threads without a name"


def kind_of_thread(
    number: int, step: int, python: tuple[str, str | None] | None, common: set[str | None]
) -> tuple[str, str] | None:
    """Kind and name of a thread of this process; None where it is gone.

    `step` is the thread that makes the steps, `python` what `python_threads` has of this one, and
    `common` are names that say nothing of a thread.
    """
    if number == step:
        return MAIN, python[0] if python is not None else "the steps' thread"
    if number in native_numbers:
        return OWN, "sampler of the watch"
    name = thread_name(number)
    if python is not None:
        called, made_of = python
        pins = name == _PIN_NAME or made_of == _PIN_MODULE
        return (PIN, _PIN_NAME) if pins else (OTHER, called)
    if name is not None and name.startswith(_BACKWARD_NAME):
        return BACKWARD, name
    # Pools of native code inherit the name of the thread that began them.
    return (NATIVE, UNNAMED if name in common else name) if name is not None else None


def kind_of_process(process: int) -> tuple[str, str]:
    """Kind and name of a process that this one has started."""
    name = thread_name(process, process)
    return (WORKER, _WORKER_NAME) if name == _WORKER_NAME else (OTHER, name or "process")


def python_threads() -> dict[int, tuple[str, str | None]]:
    """The threads that `threading` knows, by native number: name and module of their function."""
    return {
        thread.native_id: (
            thread.name,
            getattr(getattr(thread, "_target", None), "__module__", None),
        )
        for thread in threading.enumerate()
        if thread.native_id is not None
    }


def started_by_multiprocessing() -> list[int]:
    """The children that this process's `multiprocessing` knows of, where the kernel tells none."""
    module = sys.modules.get("multiprocessing.process")
    # Asked by its public function it would wait for those that have ended.
    known = list(getattr(module, "_children", ()))
    return [child.pid for child in known if isinstance(child.pid, int)]


def made_by_multiprocessing() -> int:
    """How many processes this one has had `multiprocessing` make, those that are over too.

    0 also where it does not tell.
    """
    module = sys.modules.get("multiprocessing.process")
    # Its words are all that an `itertools.count` shows of itself without counting on.
    told = repr(getattr(module, "_process_counter", None))
    number = told.removeprefix("count(").removesuffix(")")
    return int(number) - 1 if number.isdigit() else 0
