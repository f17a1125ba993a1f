"""The largest batch that memory takes, and items per second on the way there.

One search for each data type (`largestbatch`), each tried where the subject is: on a device in this
process, on a CPU in processes of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from profstack.benchmark.clock import Clock
from profstack.benchmark.largestbatch import BINARY, LINEAR, Options, Search
from profstack.benchmark.probedtype import borrowed, check_dtype, device_kind, own_dtype
from profstack.benchmark.probers import ChildProber, DeviceProber, Prober, limited_device
from profstack.benchmark.probetrial import ENDED, FAILED, Probe, judged
from profstack.benchmark.subject import Subject
from profstack.errors import UsageError

_ROW = (
    *("batch_size", "batches", "total_s", "items_per_s", "latency_s", "latency_p90_s"),
    *("peak_memory_bytes", "status", "reason"),
)


def search(
    subject: Subject,
    *,
    dtypes: Sequence[str] = (),
    search: str = BINARY,
    options: Options | None = None,
    clock: Clock | None = None,
    tell: Callable[[str], None] | None = None,
    keep: Callable[[list[dict[str, Any]], list[dict[str, Any]]], None] | None = None,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows for `benchmark.throughput` and `benchmark.throughput_limits` of the report.

    `dtypes` are names of floating-point types to convert model and inputs to, none for the ones
    they have; `search` is `binary` or `linear`; `tell` is called with lines about the sizes, and
    `keep` with rows and limits so far as these change. On a device sizes are tried in this process,
    and the model is afterwards as it was; on a CPU in processes that load `subject.request` anew.
    What the model raises is a row, never raised.

    Raises UsageError where other batch sizes cannot be had of the subject, for a type that torch
    has not, and where the search needs another process or a memory limit and cannot have it.
    """
    options = options or Options()
    check(subject, dtypes, search, options)
    clock, tell = clock or Clock(), tell or _silent
    rows: list[dict[str, Any]] = []
    limits: list[dict[str, Any]] = []

    def so_far(one: Search) -> None:
        """Hand over what there is, of a search that is going on."""
        if keep is not None:
            own = [_row(one.dtype, probe) for probe in one.shown()]
            keep([*rows, *own], [*limits, one.limits()])

    # Each type once, in the order given.
    for dtype in dict.fromkeys(dtypes) or (None,):
        one = Search(search, options, tell, so_far, dtype)
        try:
            with _prober(subject, dtype, options, clock) as prober:
                one.run(prober)
        except UsageError:
            raise
        except Exception as error:
            # The model cannot be converted, or there is no memory to.
            one.stop(judged(error, 1))
        except BaseException:
            # Ctrl-C, say.
            so_far(one)
            raise
        one.is_over = True
        rows += [_row(one.dtype, probe) for probe in one.shown()]
        limits.append(one.limits())
    return rows, limits


@contextmanager
def _prober(
    subject: Subject, dtype: str | None, options: Options, clock: Clock
) -> Iterator[Prober]:
    """What tries batch sizes where the subject is; a device and the model are then as before."""
    kind, limit = device_kind(subject), options.memory_limit_bytes
    if kind == "cpu":
        assert subject.request is not None
        yield ChildProber(
            subject.request,
            dtype,
            options.trial,
            limit_bytes=limit,
            patience_s=options.patience_s,
        )
        return
    with borrowed(subject, dtype) as make, limited_device(kind, limit):
        prober = DeviceProber(make, kind, options.trial, clock, limit)
        prober.dtype = dtype or own_dtype(subject)
        yield prober


def check(subject: Subject, dtypes: Sequence[str], search: str, options: Options) -> None:
    """Raise UsageError for what `search` would refuse, without trying anything."""
    if search not in (BINARY, LINEAR):
        raise UsageError(f"--search {search} is not known", next_step="give binary or linear")
    if options.max_batch < 1:
        raise UsageError("the largest batch to try must be at least 1", next_step="give 1 or more")
    limit = options.memory_limit_bytes
    if limit is not None and limit <= 0:
        raise UsageError("--memory-limit must be more than nothing", next_step="try 1GiB")
    if subject.of_batch is None:
        raise UsageError(
            f"--throughput needs other batch sizes: "
            f"{subject.why_no_batches or 'the target makes its own inputs'}",
            where=subject.spec or subject.name,
            next_step="name a factory of (model, inputs), with a parameter batch_size if the batch "
            "is not the inputs' leading dimension",
        )
    for name in dtypes:
        check_dtype(name)
    if device_kind(subject) == "cpu" and subject.request is None:
        raise UsageError(
            "on a CPU a batch is tried in a process of its own, which cannot load this target",
            where=subject.name,
            next_step="put it into a file and give 'profstack bench file.py:function'",
        )


def _row(dtype: str | None, probe: Probe) -> dict[str, Any]:
    values = probe.as_json()
    # To the report a size that took too long is one without a result.
    values["status"] = FAILED if probe.status == ENDED else probe.status
    return {"dtype": dtype, **{name: values[name] for name in _ROW}}


def _silent(line: str) -> None:
    """Say nothing of the progress."""
