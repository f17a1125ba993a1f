"""Changes to DistributedDataParallel: its buckets, a graph that stays, gradients inside buckets."""

from __future__ import annotations

import functools
from typing import Any

from profstack.changes.contract import Change, Edit, Run, Seen

DDP = "DistributedDataParallel"


def _with(name: str) -> Any:
    def patch(run: Run) -> None:
        from torch.nn.parallel import DistributedDataParallel

        original = DistributedDataParallel.__init__
        value = run.value if name == "bucket_cap_mb" else True

        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **{**kwargs, name: value})
            run.took_hold()

        DistributedDataParallel.__init__ = __init__  # type: ignore[method-assign]

    return patch


def _applies(name: str) -> Any:
    def applies(seen: Seen) -> str | None:
        if not seen.wrapped:
            return "the script makes no DistributedDataParallel"
        return f"{name} is set already" if any(each.get(name) for each in seen.wrapped) else None

    return applies


BUCKETS = Change(
    "ddp-buckets",
    "reduce gradients in buckets of another size",
    "digits",
    lambda seen: None if seen.wrapped else "the script makes no DistributedDataParallel",
    _with("bucket_cap_mb"),
    values=lambda seen: [5, 100],
    edit=Edit(DDP, ("bucket_cap_mb", "{value}")),
)
STATIC_GRAPH = Change(
    "ddp-static-graph",
    "tell DistributedDataParallel that each step uses the same parameters",
    "equal",
    _applies("static_graph"),
    _with("static_graph"),
    edit=Edit(DDP, ("static_graph", "True")),
)
BUCKET_VIEW = Change(
    "ddp-bucket-view",
    "keep gradients inside the buckets instead of copying them",
    "equal",
    _applies("gradient_as_bucket_view"),
    _with("gradient_as_bucket_view"),
    edit=Edit(DDP, ("gradient_as_bucket_view", "True")),
)

CHANGES = (BUCKETS, STATIC_GRAPH, BUCKET_VIEW)
