"""Changes to how batches are made: a DataLoader's workers, pinning, prefetching, batch size."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from profstack.changes.contract import Change, Edit, Run, Seen, Value

LOADER = "DataLoader"
# Options that a loader without workers refuses.
_OF_WORKERS = ("prefetch_factor", "multiprocessing_context", "persistent_workers", "timeout")


def _reason(seen: Seen, wanted: Callable[[dict[str, Any]], bool], lacks: str) -> str | None:
    """Return why none of the run's loaders can have a change; None where one can."""
    if not seen.loaders:
        return "the script makes no DataLoader"
    return None if any(map(wanted, seen.loaders)) else lacks


def _set(run: Run, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Let `change` say what each new DataLoader gets instead of its arguments."""
    loader = run.torch.utils.data.DataLoader
    original = loader.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        given = dict(signature.bind(self, *args, **kwargs).arguments)
        given.pop("self")
        given |= given.pop("kwargs", {})
        changed = change(given)
        if changed:
            run.took_hold()
        original(self, **{**given, **changed})

    loader.__init__ = __init__


# --- Workers ---


def _workers(run: Run) -> None:
    def change(given: dict[str, Any]) -> dict[str, Any]:
        # What is iterated over would be given out by each of the workers again.
        is_stream = isinstance(given["dataset"], run.torch.utils.data.IterableDataset)
        if is_stream or given.get("num_workers", 0) == run.value:
            return {}
        count = int(run.value or 0)
        dropped: dict[str, Any] = {"num_workers": count}
        if not count:
            dropped |= dict.fromkeys(
                {"prefetch_factor", "multiprocessing_context"} & given.keys(), None
            )
            dropped |= {"persistent_workers": False, "timeout": 0}
        return dropped

    _set(run, change)


def _worker_numbers(seen: Seen) -> Sequence[Value]:
    """Return numbers of workers: none, one, half of the cores, and all but one."""
    cores = max(seen.cores, 1)
    wanted = sorted({0, 1, 2, cores // 2, cores - 1, cores} - {-1})
    now = {loader.get("num_workers") or 0 for loader in seen.loaders}
    return [count for count in wanted if {count} != now and count <= cores][:5]


WORKERS = Change(
    "workers",
    "make batches in another number of DataLoader workers",
    "equal",
    lambda seen: _reason(seen, lambda each: each["map_style"], "its data sets are iterated over"),
    _workers,
    values=_worker_numbers,
    edit=Edit(LOADER, ("num_workers", "{value}"), drops_at_0=_OF_WORKERS),
    findings=("data-starved",),
)


# --- Workers that stay, what they prepare, pinned memory ---


def _persistent(run: Run) -> None:
    def change(given: dict[str, Any]) -> dict[str, Any]:
        if not given.get("num_workers") or given.get("persistent_workers"):
            return {}
        return {"persistent_workers": True}

    _set(run, change)


PERSISTENT = Change(
    "persistent-workers",
    "keep the DataLoader's workers from epoch to epoch, with other random numbers from the second",
    # Iterators that are made draw a number each, one that stays does not.
    "different",
    lambda seen: _reason(
        seen,
        lambda each: bool(each["num_workers"]) and not each["persistent_workers"],
        "no loader has workers that end with an epoch",
    ),
    _persistent,
    edit=Edit(LOADER, ("persistent_workers", "True")),
    measure="run",
    findings=("worker-starts",),
)


def _prefetch(run: Run) -> None:
    def change(given: dict[str, Any]) -> dict[str, Any]:
        return {"prefetch_factor": run.value} if given.get("num_workers") else {}

    _set(run, change)


PREFETCH = Change(
    "prefetch",
    "let each worker prepare more batches ahead",
    "equal",
    lambda seen: _reason(seen, lambda each: bool(each["num_workers"]), "no loader has workers"),
    _prefetch,
    values=lambda seen: [4, 8],
    edit=Edit(LOADER, ("prefetch_factor", "{value}")),
)


def _pin(run: Run) -> None:
    _set(run, lambda given: {} if given.get("pin_memory") else {"pin_memory": True})


PIN = Change(
    "pin-memory",
    "copy batches to the device from pinned memory",
    "equal",
    lambda seen: (
        "it uses no GPU"
        if seen.device == "cpu"
        else _reason(seen, lambda each: not each["pin_memory"], "its memory is pinned already")
    ),
    _pin,
    edit=Edit(LOADER, ("pin_memory", "True")),
    findings=("host-to-device-copy",),
)


# --- The number of samples in a step ---


def _batch_size(run: Run) -> None:
    def change(given: dict[str, Any]) -> dict[str, Any]:
        size = given.get("batch_size", 1)
        if given.get("batch_sampler") is not None or size is None:
            return {}
        return {"batch_size": size * int(run.value or 1)}

    _set(run, change)


BATCH_SIZE = Change(
    "batch-size",
    "put more samples into a step (the times of samples are compared)",
    "different",
    lambda seen: _reason(seen, lambda each: bool(each["batch_size"]), "no loader makes batches"),
    _batch_size,
    values=lambda seen: [2, 4],
    edit=Edit(LOADER, ("batch_size", "{value} * the present one")),
    measure="item",
)

CHANGES = (WORKERS, PERSISTENT, PREFETCH, PIN, BATCH_SIZE)
