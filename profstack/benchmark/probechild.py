"""The process that tries batch sizes on a CPU: under a memory limit, and nobody's loss if it dies.

It reads one JSON object from standard input, loads the target, sets its limit and tries the sizes
it was given, in order, until one does not run. Each answer is a line of JSON on the file
descriptor that the parent named, so that what the model prints cannot mix with it:
`{"ready": {...}}` once the limit holds, then `{"probe": {...}}` for each size; or
`{"failed": reason}` where the target cannot be loaded, `{"no_limit": reason}` where no limit holds.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from profstack.benchmark.clock import Clock
from profstack.benchmark.loading import load
from profstack.benchmark.measure import Policy, measure
from profstack.benchmark.probedtype import Maker, maker, own_dtype
from profstack.benchmark.probelimit import (
    MemoryLimit,
    NoLimitError,
    limit_memory,
    share_of_available,
)
from profstack.benchmark.probetrial import HostMemory, Trial, attempt, judged
from profstack.benchmark.subject import Request

# Elements of work that every thread of the pool gets a part of.
_PER_THREAD = 2**16


def main() -> None:
    """Try the sizes that standard input asks for."""
    asked = json.load(sys.stdin)
    # Should the parent be gone when this hangs, nobody else would end it.
    signal.alarm(asked["give_up_s"])
    answers = int(asked["answers"])
    try:
        make, dtype = _loaded(asked)
    except (Exception, SystemExit) as error:
        _say(answers, failed=judged(error, 0).reason)
        return
    _take_own_memory()
    memory = HostMemory()
    try:
        limit = limit_memory(asked["allowance_bytes"] or share_of_available())
    except NoLimitError as error:
        _say(answers, no_limit=str(error))
        return
    _say(answers, ready={"allowance_bytes": limit.allowance_bytes, "dtype": dtype})
    _try_all(asked, make, memory, limit)


def _loaded(asked: dict[str, Any]) -> tuple[Maker, str | None]:
    """What makes the target for a batch size, and the floating-point type it is in."""
    import torch

    torch.set_num_threads(asked["threads"])
    subject = load(Request(**asked["request"])).subject
    make = maker(subject, asked["dtype"])
    return make, own_dtype(subject)


def _try_all(asked: dict[str, Any], make: Maker, memory: HostMemory, limit: MemoryLimit) -> None:
    trial, clock, answers = Trial(**asked["trial"]), Clock(), int(asked["answers"])
    for batch_size in range(asked["first"], asked["last"] + 1):
        signal.alarm(asked["give_up_s"])
        probe = attempt(make, batch_size, trial, clock, memory, timed=asked["timed"])
        if not probe.worked:
            # To say so takes memory too, of which a model may have kept all.
            limit.lift()
        _say(answers, probe=probe.as_json())
        if not probe.worked:
            return


def _take_own_memory() -> None:
    """What torch's threads and the measuring itself take is taken before memory is counted."""
    import torch

    torch.ones(torch.get_num_threads() * _PER_THREAD).add_(1.0)
    square = torch.ones(128, 128)
    torch.mm(square, square)
    measure(lambda: None, Policy(repeat=100, max_warmup_s=0.05))


def _say(answers: int, **answer: Any) -> None:
    os.write(answers, json.dumps(answer).encode() + b"\n")
