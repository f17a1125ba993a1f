"""Which events of a profile are ranges that somebody named, not operators, and who named them.

A range says of the work in it what it is for; the work itself is that of the operators inside. So
ranges are no rows of `operators`: those of `profstack.region`, `record_function` and torch itself
are rows of `regions`, and optimizers have rows of their own among the modules.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from profstack.regionoutlet import REGION_PREFIX
from profstack.regions import RANGE_PREFIX
from profstack.regionstay import OWN
from profstack.torchtrace.eventkinds import MEMORY_NAME
from profstack.torchtrace.events import Bools, HostEvents

FUNCTION, TORCH, OPTIMIZER = "record_function", "torch", "optimizer"
# torch's own ranges, `Optimizer.step#Adam.step`: rows of the module tree have all of their time.
_OPTIMIZERS = re.compile(r"Optimizer\.(step|zero_grad)#")
# Names of the other ranges that torch puts round work of its own.
_TORCHS = re.compile(
    r"enumerate\(Data|ProfilerStep#|Torch-Compiled Region|"
    r"TorchDynamo|Pregraph bytecode|DistributedDataParallel\.|DataParallel\.|"
    r"FullyShardedDataParallel\.|FSDP::|nccl:|gloo:|c10d::|"
    # The parts of a compilation, by torch's own clock and by what it notes of them.
    r".* \(dynamo_timed\)$|[\w.]+_data: (.*, )?compile_id="
)
_COMPILED = re.compile(r"## |triton_")


@dataclass(frozen=True)
class NamedRanges:
    """Who names the ranges of every name of a slice, None for what is no range; and which events
    are ranges, profstack's own bookkeeping not among them."""

    sources: list[str | None]
    is_range: Bools


def named_ranges(events: HostEvents, *, shapes: bool) -> NamedRanges:
    """The ranges among the events of a slice.

    `shapes` says that the profile has the inputs of operators, without which ranges that were
    begun in C look like one.
    """
    names = events.names
    # Where each name stands first.
    firsts = np.full(len(names.values), -1, np.int64)
    firsts[names.ids[::-1]] = np.arange(len(events))[::-1]
    sources = [
        _source(name, events, first, shapes=shapes) if first >= 0 else None
        for name, first in zip(names.values, firsts.tolist(), strict=True)
    ]
    known = np.array([source is not None for source in sources], np.bool_)
    is_range = known[names.ids] if len(known) else np.zeros(len(events), np.bool_)
    return NamedRanges(sources, is_range)


def _source(name: str, events: HostEvents, first: int, *, shapes: bool) -> str | None:
    """Who names the ranges called `name`, as their first one tells; None for what is no range."""
    if name.startswith(RANGE_PREFIX):
        return OWN if name.startswith(REGION_PREFIX) else None
    # Code that a compiler made is work, though torch records it as it does a range.
    if name == MEMORY_NAME or _COMPILED.match(name):
        return None
    [event] = events.raw(np.array([first], np.int64))
    if not event.is_user_annotation() and not (shapes and _is_bare_range(name, event)):
        return None
    if _OPTIMIZERS.match(name):
        return OPTIMIZER
    return TORCH if _TORCHS.match(name) else FUNCTION


def _is_bare_range(name: str, event: Any) -> bool:
    """Whether the event is a range that was begun in C (`_RecordFunctionFast`).

    It is recorded as an operator is, but has neither inputs nor a place in the backward graph, and
    torch has no operator of that name.
    """
    if "::" in name or event.scope() or event.sequence_nr() >= 0:
        return False
    return not event.shapes() and not is_operator_name(name)


@cache
def is_operator_name(name: str) -> bool:
    """Whether torch has an operator of this name: some of them are recorded without a namespace."""
    import torch

    return bool(torch._C._jit_get_schemas_for_operator(f"aten::{name}"))
