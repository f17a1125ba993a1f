"""The process that tries batch sizes on a CPU under a memory limit; it may be killed.

It reads a `TrialRequest` from standard input, loads the target, sets its limit and tries the sizes
in order, until one does not run. Each `TrialAnswer` is a line of JSON on the file descriptor that
the parent named, so that the model's output cannot mix with it: `ready` once the limit holds, then
`probe` for each size; or `failed` where the target cannot be loaded, `no_limit` without a limit.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict
from typing import Any, cast

from profstack.bench.batch_trial import (
    HostMemory,
    Maker,
    NoLimitError,
    Trial,
    TrialAnswer,
    TrialRequest,
    attempt,
    limit_memory,
    maker,
    own_dtype,
    probe_of_error,
    share_of_available,
)
from profstack.bench.measure import Policy, measure
from profstack.bench.subject import Request
from profstack.bench.target import load
from profstack.stats.clock import Clock

# Elements of work that every thread of the pool gets a part of.
_PER_THREAD = 2**16


def main() -> None:
    """Try the sizes that standard input names."""
    request: TrialRequest = json.load(sys.stdin)
    # Should this hang after its parent has ended, the alarm ends it.
    signal.alarm(request["give_up_s"])
    answers = request["answers"]
    try:
        make, dtype = _load(request)
    except (Exception, SystemExit) as error:
        _answer(answers, {"failed": probe_of_error(error, 0).reason})
        return
    _take_own_memory()
    memory = HostMemory()
    try:
        limit = limit_memory(request["allowance_bytes"] or share_of_available())
    except NoLimitError as error:
        _answer(answers, {"no_limit": str(error)})
        return
    _answer(answers, {"ready": {"allowance_bytes": limit.allowance_bytes, "dtype": dtype}})
    trial, clock = Trial(**cast("dict[str, Any]", request["trial"])), Clock()
    for batch_size in range(request["first"], request["last"] + 1):
        signal.alarm(request["give_up_s"])
        probe = attempt(make, batch_size, trial, clock, memory, timed=request["timed"])
        if not probe.worked:
            # The answer takes memory too, and a model may have kept all.
            limit.lift()
        _answer(answers, {"probe": asdict(probe)})
        if not probe.worked:
            return


def _load(request: TrialRequest) -> tuple[Maker, str | None]:
    """Return the maker of the target by batch size, and its floating-point type."""
    import torch

    torch.set_num_threads(request["threads"])
    subject = load(Request(**cast("dict[str, Any]", request["request"]))).subject
    make = maker(subject, request["dtype"])
    return make, own_dtype(subject)


def _take_own_memory() -> None:
    """Allocate the memory of torch's threads and of the measurement before it is counted."""
    import torch

    torch.ones(torch.get_num_threads() * _PER_THREAD).add_(1.0)
    square = torch.ones(128, 128)
    torch.mm(square, square)
    measure(lambda: None, Policy(repeat=100, max_warmup_s=0.05))


def _answer(answers: int, answer: TrialAnswer) -> None:
    os.write(answers, json.dumps(answer).encode() + b"\n")
