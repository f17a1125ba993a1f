"""Limits the memory of the process that tries a batch size, so that too large a batch is refused.

What is limited is what the process may map on top of what it has mapped by then: torch alone maps
half a gigabyte of libraries that it hardly touches. `RLIMIT_DATA` counts private memory that can
be written, which is close to what a model takes; where a system does not hold to it,
`RLIMIT_AS` counts all addresses. Either is tried before it is relied on. Processes that the model
itself starts, and memory it shares with them, are not limited.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass

from profstack import environment

# Part of the available memory that a probe may take unless the user says otherwise. The rest is
# for the system, and for what others take meanwhile: nothing else may be killed for a probe.
SHARE = 0.8

# Where statm counts, in pages, what each limit is of: data and stack, all addresses.
_COUNTED_AT = (("RLIMIT_DATA", 5), ("RLIMIT_AS", 0))
# A first limit is set this far off, and must refuse twice as much.
_TRIED_BYTES = 64 * 2**20


class NoLimitError(Exception):
    """This system sets no limit that holds; the text says what is missing."""


@dataclass(frozen=True)
class MemoryLimit:
    """A limit that holds: its name, the bytes it allows on top, and what takes it off again."""

    name: str
    allowance_bytes: int
    lift: Callable[[], None]


def share_of_available() -> int:
    """Bytes that a probe may take by default; raises NoLimitError where nothing tells."""
    available = environment.available_memory_bytes()
    if available is None:
        raise NoLimitError("it is not known how much memory is available")
    return int(SHARE * available)


def limit_memory(allowance_bytes: int) -> MemoryLimit:
    """Allow this process so much memory on top of what it has now.

    A limit that it has already and that allows less stays. Raises NoLimitError.
    """
    try:
        import resource
    except ImportError:
        raise NoLimitError("this system limits no process's memory") from None
    for name, place in _COUNTED_AT:
        number = getattr(resource, name, None)
        mapped = _mapped_bytes(place)
        if number is None or not mapped:
            continue
        before = resource.getrlimit(number)
        finite = [one for one in before if one != resource.RLIM_INFINITY]
        limit = min([mapped + allowance_bytes, *finite])
        try:
            if not _refuses(resource.setrlimit, number, mapped + _TRIED_BYTES, before):
                continue
            resource.setrlimit(number, (limit, before[1]))
        except (OSError, ValueError):
            continue

        def lift(number: int = number, before: tuple[int, int] = before) -> None:
            resource.setrlimit(number, before)

        return MemoryLimit(name, max(0, limit - mapped), lift)
    raise NoLimitError("this system holds to no limit of a process's memory")


def _refuses(
    setrlimit: Callable[[int, tuple[int, int]], None],
    number: int,
    limit: int,
    before: tuple[int, int],
) -> bool:
    """Whether a mapping beyond such a limit is refused; the limit is as it was afterwards."""
    finite = before[1] if before[1] >= 0 else limit
    setrlimit(number, (min(limit, finite), before[1]))
    try:
        mmap.mmap(-1, 2 * _TRIED_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError:
        return True
    finally:
        setrlimit(number, before)
    return False


def _mapped_bytes(place: int) -> int | None:
    """What this process has mapped, by one field of statm; 0 where the system does not count it."""
    fields = environment.rss_text().split()
    return int(fields[place]) * mmap.PAGESIZE if len(fields) > place else None
