"""Summaries of many ranks at once, by Dask: one task for each rank, put together in a tree.

A worker that is lost has its tasks done again by others. A summary has some KiB: it comes to this
process, which keeps it beside the page, so that a second start takes it up, and puts it together
with others. Without a cluster the ranks are read one after the other.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from profstack.environment import usable_cores
from profstack.errors import UsageError
from profstack.ranks.summary import Summary, decoded, together
from profstack.scale.reduce import Launch, folder_name, reduced
from profstack.scale.sources import Source
from profstack.units import format_seconds

if TYPE_CHECKING:
    from distributed import Client, Future

# So many summaries become one in a task.
_TOGETHER = 8
# Fewer ranks are read by this process: a cluster takes some seconds to begin.
LEAST_RANKS = 16
# The folder beside the page with the summaries that are finished, and the file that says so.
KEPT, MARK = "summaries", "of-profstack.txt"
_INSTALL = "install it: pip install 'profstack[scale]'"


@dataclass(frozen=True)
class Plan:
    """Where ranks are read: a `scheduler`'s address, or so many `workers` of this machine.

    `memory_limit` is of each worker of this machine, in Dask's words ("2GB"). Workers: 0 for none,
    None for as many as there are cores, where that is worth it.
    """

    scheduler: str | None = None
    workers: int | None = None
    memory_limit: str = "auto"


def summed_up(
    sources: Sequence[Source],
    launch: Launch,
    plan: Plan,
    folder: Path,
    tell: Callable[[str], None],
) -> Summary:
    """Return the summary of all ranks; what is finished is kept in `folder`.

    `tell` gets lines on how far it is. Raise UsageError where there is no cluster as planned.
    """
    kept = _Kept(folder / KEPT, launch)
    found = [(source, kept.read(source)) for source in sources]
    whole = _Tree()
    left = []
    for source, summary in found:
        if summary is None:
            left.append(source)
        else:
            whole.add(summary)
    if len(left) < len(sources):
        count = len(sources) - len(left)
        tell(f"{count:,} of {len(sources):,} ranks are there from an earlier start")
    progress = _Progress(len(left), tell)
    workers = _workers(plan, len(left))
    if plan.scheduler is None and not workers:
        for source in left:
            whole.add(kept.write(source, reduced(source, launch)))
            progress.one()
    elif left:
        with _client(plan, workers, tell) as client:
            for source, summary in _on_cluster(client, left, kept, launch):
                whole.add(kept.write(source, summary))
                progress.one()
    return whole.result()


def _workers(plan: Plan, count: int) -> int:
    """Return how many processes of this machine are to read so many ranks; 0 for this one alone."""
    if plan.workers is not None:
        return plan.workers
    cores = usable_cores() or 1
    is_worth_it = count >= LEAST_RANKS and cores > 1 and find_spec("distributed") is not None
    return min(cores, count) if is_worth_it else 0


class _Tree:
    """Puts summaries together as they come, some at a time: few are held, however many there are.

    As the order makes no difference, none of them waits for another.
    """

    def __init__(self) -> None:
        self._levels: list[list[Summary]] = []

    def add(self, summary: Summary) -> None:
        """Take a summary."""
        for level in self._levels:
            level.append(summary)
            if len(level) < _TOGETHER:
                return
            summary = together(level)
            level.clear()
        self._levels.append([summary])

    def result(self) -> Summary:
        """Return the summary of all."""
        return together(each for level in self._levels for each in level)


def _on_cluster(
    client: Client, sources: Sequence[Source], kept: _Kept, launch: Launch
) -> Iterator[tuple[Source, Summary]]:
    """Yield the ranks with their summaries as they are finished.

    A rank whose worker was killed is read once more, alone: Dask blames all that the worker had.
    """
    from distributed import as_completed

    source_of = {_submitted(client, each, kept, launch): each for each in sources}
    again = []
    for future in as_completed(source_of):
        source = source_of.pop(future)
        try:
            yield source, future.result()
        except Exception:
            again.append(source)
        # Its result is kept here.
        future.release()
    for source in again:
        try:
            yield source, _submitted(client, source, kept, launch, "again-").result()
        except Exception as error:
            words = str(error).strip().splitlines() or [type(error).__name__]
            why = f"reading it ended its worker, or failed: {words[-1]}"
            yield source, Summary(left_out={source.name: why})


def _submitted(
    client: Client, source: Source, kept: _Kept, launch: Launch, prefix: str = ""
) -> Future:
    return client.submit(reduced, source, launch, key=prefix + kept.name_of(source), retries=0)


@contextmanager
def _client(plan: Plan, workers: int, tell: Callable[[str], None]) -> Iterator[Client]:
    """Give a connection to the scheduler, or to a cluster of this machine, which ends with it."""
    try:
        import dask
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise UsageError(
            f"reading ranks on a cluster needs Dask ({error})", where="merge", next_step=_INSTALL
        ) from None
    if plan.scheduler is not None:
        try:
            client = Client(plan.scheduler, timeout=20)
        except (OSError, ValueError, TimeoutError) as error:
            raise UsageError(
                f"no scheduler answers ({error})",
                where=plan.scheduler,
                next_step="see that 'dask scheduler' runs there, and give tcp://HOST:PORT",
            ) from None
        with client:
            tell(f"scheduler {plan.scheduler}, dashboard {client.dashboard_link}")
            yield client
        return
    # A worker has one rank at a time: one that is too large takes no other with it.
    settings = {"distributed.scheduler.worker-saturation": 1.0}
    with (
        dask.config.set(settings),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            memory_limit=_bytes(plan.memory_limit),
            # Nobody else on the network is to see it.
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.ERROR,
        ) as cluster,
        Client(cluster) as client,
    ):
        tell(f"{workers} workers of this machine, dashboard {cluster.dashboard_link}")
        yield client


def _bytes(limit: str) -> int | str:
    """Return a limit of memory in bytes, or "auto"; raise UsageError for what is none."""
    from dask.utils import parse_bytes

    if limit == "auto":
        return limit
    try:
        return int(parse_bytes(limit))
    except ValueError:
        what, step = "no number of bytes", "give one such as 2GB"
        raise UsageError(what, where=f"--memory-limit {limit}", next_step=step) from None


class _Kept:
    """Summaries that are finished, a file for each rank.

    Its name has all that a summary depends on: the files, the launch, and the rank's machine.
    """

    def __init__(self, folder: Path, launch: Launch) -> None:
        self._folder, self._launch = folder, launch

    def name_of(self, source: Source) -> str:
        """Return the name of a rank's summary."""
        of = f"{source.key} {source.node} {self._launch}"
        return f"{folder_name(source.rank)}-{hashlib.sha256(of.encode()).hexdigest()[:16]}"

    def _path(self, source: Source) -> Path:
        return self._folder / self.name_of(source)

    def read(self, source: Source) -> Summary | None:
        """Return the summary of an earlier start; None without one, or where the files changed."""
        try:
            found = decoded(self._path(source).read_bytes())
        except OSError:
            return None
        return found if found is not None and {*found.ranks} == {source.rank} else None

    def write(self, source: Source, summary: Summary) -> Summary:
        """Keep a summary that has its rank; what failed is tried again at the next start."""
        if summary.ranks:
            path = self._path(source)
            part = path.with_name(path.name + ".part")
            part.write_bytes(summary.encoded())
            part.replace(path)
        return summary


class _Progress:
    """Tells how many ranks are read, and about how long the others take."""

    def __init__(self, count: int, tell: Callable[[str], None]) -> None:
        self._count, self._tell = count, tell
        self._done, self._begun, self._told = 0, time.monotonic(), 0.0

    def one(self) -> None:
        """Count a rank that is read."""
        self._done += 1
        passed = time.monotonic() - self._begun
        is_last = self._done == self._count
        # Twice a second is often enough to read.
        if passed - self._told < 0.5 and not is_last:
            return
        self._told = passed
        left_s = passed / self._done * (self._count - self._done)
        rest = f", about {format_seconds(left_s)} more" if not is_last else ""
        self._tell(f"{self._done:,} of {self._count:,} ranks in {format_seconds(passed)}{rest}")
