"""Summaries of many ranks at once, by Dask: one task for each rank, put together in a tree.

A worker that is lost has its tasks done again by others. What is finished is kept beside the page,
so that a second start takes it up. Without a cluster the ranks are read one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
# The folder beside the page with the summaries that are finished.
KEPT = "summaries"
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

    `tell` gets lines on how far it is.
    """
    kept = _Kept(folder / KEPT)
    found = [(source, kept.read(source)) for source in sources]
    known = [summary for _, summary in found if summary is not None]
    left = [source for source, summary in found if summary is None]
    if known:
        tell(f"{len(known):,} of {len(sources):,} ranks are there from an earlier start")
    progress = _Progress(len(left), tell)
    if not left:
        return together(known)
    workers = plan.workers
    if workers is None:
        workers = min(usable_cores() or 1, len(left)) if len(left) >= LEAST_RANKS else 0
    if plan.scheduler is None and not workers:
        for source in left:
            known.append(kept.write(source, reduced(source, launch)))
            progress.one()
        return together(known)
    with _client(plan, workers, tell) as client:
        return together([*known, _on_cluster(client, left, launch, kept, progress)])


def _on_cluster(
    client: Client,
    sources: Sequence[Source],
    launch: Launch,
    kept: _Kept,
    progress: _Progress,
) -> Summary:
    """Return the summary of ranks: as many as are finished become one, until there is one left."""
    from distributed import as_completed

    source_of = {
        client.submit(reduced, source, launch, key=f"rank-{source.rank}-{source.key}"): source
        for source in sources
    }
    waiting: list[Future] = []
    # A later number has priority: what is put together needs no memory any more.
    done = as_completed(source_of, with_results=True, raise_errors=False)
    for future, result in done:
        source = source_of.pop(future)
        if isinstance(result, Summary):
            kept.write(source, result)
            waiting.append(future)
        else:
            why = f"reading it ended its worker, or failed: {_last_line(result)}"
            waiting.append(client.scatter(Summary(left_out={source.name: why})))
        progress.one()
        while len(waiting) >= _TOGETHER or (not source_of and len(waiting) > 1):
            some, waiting = waiting[:_TOGETHER], waiting[_TOGETHER:]
            waiting.append(client.submit(together, some, pure=False, priority=1))
    whole: Summary = waiting[0].result()
    return whole


def _last_line(result: object) -> str:
    """Return what went wrong with a task, which comes as an error, or as one with its place."""
    error = result[1] if isinstance(result, tuple) and len(result) > 1 else result
    return str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__


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
    # Nobody else on the network is to see it.
    settings = {"distributed.worker.daemon": True, "distributed.comm.timeouts.connect": "30s"}
    with (
        dask.config.set(settings),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            memory_limit=plan.memory_limit,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            silence_logs=40,
        ) as cluster,
        Client(cluster) as client,
    ):
        tell(f"{workers} workers of this machine, dashboard {cluster.dashboard_link}")
        yield client


class _Kept:
    """Summaries that are finished, a file for each rank."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, source: Source) -> Path:
        return self._folder / f"{folder_name(source.rank)}-{source.key}"

    def read(self, source: Source) -> Summary | None:
        """Return the summary of an earlier start; None without one, or where the files changed."""
        try:
            return decoded(self._path(source).read_bytes())
        except OSError:
            return None

    def write(self, source: Source, summary: Summary) -> Summary:
        """Keep a summary that has its rank; what failed is tried again at the next start."""
        if summary.ranks:
            path = self._path(source)
            path.parent.mkdir(exist_ok=True)
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
