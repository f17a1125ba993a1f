"""Changes to how the processor is used: threads, how they wait, and who hands out memory."""

from __future__ import annotations

import ctypes.util
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from profstack.changes.contract import Called, Change, Edit, Run, Seen, Value
from profstack.environment import huge_page_mode, is_mapped


def _threads(run: Run) -> None:
    run.torch.set_num_threads(int(run.value or 1))
    run.took_hold()


def _thread_numbers(seen: Seen) -> Sequence[Value]:
    cores = max(seen.cores, 1)
    wanted = {1, cores // 2, cores} - {0, seen.threads}
    return sorted(wanted, reverse=True)


def _on_cpu(seen: Seen) -> str | None:
    return None if seen.device == "cpu" else "its work is on a device"


def _called_with_threads(torch: Any, target: Any, value: Value | None, _: str) -> Called:
    @contextmanager
    def active() -> Iterator[None]:
        before = torch.get_num_threads()
        torch.set_num_threads(int(value or 1))
        try:
            yield
        finally:
            torch.set_num_threads(before)

    return Called(target, active)


THREADS = Change(
    "threads",
    "let an operator use another number of threads",
    "digits",
    lambda seen: _on_cpu(seen) or ("there is one core" if seen.cores < 2 else None),
    _threads,
    values=_thread_numbers,
    edit=Edit(line="torch.set_num_threads({value})"),
    on_call=_called_with_threads,
    findings=("threads-without-cores",),
)


def _interop(run: Run) -> None:
    run.torch.set_num_interop_threads(int(run.value or 1))
    run.took_hold()


INTEROP = Change(
    "interop-threads",
    "let another number of operators run side by side",
    "equal",
    lambda seen: (
        _on_cpu(seen)
        or ("the script sets it" if seen.calls.get("interop") else None)
        or (None if seen.calls.get("script") else "no module of torch.jit can fork")
    ),
    _interop,
    values=lambda seen: sorted({1, seen.cores, 2 * seen.cores} - {0, seen.interop}),
    edit=Edit(line="torch.set_num_interop_threads({value})"),
)


def _waiting(value: Value | None) -> Mapping[str, str]:
    return {
        "OMP_WAIT_POLICY": str(value),
        "GOMP_SPINCOUNT": "0" if value == "PASSIVE" else "10000000",
    }


WAITING = Change(
    "waiting-threads",
    "let threads without work sleep (PASSIVE) or spin (ACTIVE)",
    "equal",
    lambda seen: _on_cpu(seen) or ("an operator has one thread" if seen.threads < 2 else None),
    environment=_waiting,
    values=lambda seen: ["PASSIVE", "ACTIVE"],
    edit=Edit(line="OMP_WAIT_POLICY={value} in the environment"),
)
BINDING = Change(
    "bound-threads",
    "bind each thread to a core",
    "equal",
    lambda seen: _on_cpu(seen) or ("an operator has one thread" if seen.threads < 2 else None),
    environment=lambda value: {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"},
    edit=Edit(line="OMP_PROC_BIND=close OMP_PLACES=cores in the environment"),
)

# --- Memory ---

_ALLOCATORS = {"jemalloc": ("jemalloc",), "tcmalloc": ("tcmalloc", "tcmalloc_minimal")}
_FOLDERS = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib")


def library(allocator: str) -> str | None:
    """Return the file of an allocator's library on this machine; None where there is none."""
    for name in _ALLOCATORS[allocator]:
        found = ctypes.util.find_library(name)
        for folder in map(Path, _FOLDERS) if found else ():
            for path in (folder / str(found), *folder.glob(f"*/{found}")):
                if path.is_file():
                    return str(path)
    return None


def _added(name: str, value: str, between: str) -> Mapping[str, str]:
    """Return a variable with a value added to what the user has set."""
    before = os.environ.get(name, "")
    return {name: f"{value}{between}{before}" if before else value}


def _preloaded(value: Value | None) -> Mapping[str, str]:
    return _added("LD_PRELOAD", library(str(value)) or "", ":")


ALLOCATOR = Change(
    "allocator",
    "take memory from jemalloc or tcmalloc",
    "equal",
    lambda seen: (
        _on_cpu(seen)
        or (
            None if any(map(library, _ALLOCATORS)) else "neither jemalloc nor tcmalloc is installed"
        )
    ),
    environment=_preloaded,
    holds=lambda value: is_mapped(str(value)),
    values=lambda seen: [name for name in _ALLOCATORS if library(name)],
    edit=Edit(line="LD_PRELOAD=<lib{value}.so> in the environment"),
)


def _huge_pages(seen: Seen) -> str | None:
    """Return why glibc cannot take huge pages: it asks the kernel for them from 2.35 on."""
    known = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else None
    if not known or tuple(map(int, known.split()[-1].split(".")[:2])) < (2, 35):
        return "it needs glibc 2.35"
    if huge_page_mode() != "madvise":
        return f"the kernel gives huge pages {huge_page_mode() or 'to nobody'}, whoever asks"
    return _on_cpu(seen)


HUGE_PAGES = Change(
    "huge-pages",
    "let glibc take memory in huge pages",
    "equal",
    _huge_pages,
    environment=lambda value: _added("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", ":"),
    edit=Edit(line="GLIBC_TUNABLES=glibc.malloc.hugetlb=1 in the environment"),
)
CUDA_ALLOCATOR = Change(
    "cuda-allocator",
    "let CUDA's allocator grow its segments",
    "equal",
    lambda seen: None if seen.device.startswith("cuda") else "it uses no NVIDIA GPU",
    environment=lambda value: _added("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", ","),
    edit=Edit(line="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in the environment"),
)

CHANGES = (THREADS, INTEROP, WAITING, BINDING, ALLOCATOR, HUGE_PAGES, CUDA_ALLOCATOR)
