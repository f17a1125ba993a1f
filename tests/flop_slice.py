"""For tests of the flops layer: counts a workload the way the engine does, in-process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from profstack.capture.hooks import DISCOVER, TorchHooks
from profstack.capture.module_names import ModuleNames
from profstack.layer import SliceContext, SliceData
from profstack.storage.schema.recorded import RECORDED
from profstack.storage.vocabulary import STEP_PARTS
from profstack.wrappers.flops import FlopsWrapper

Step = Callable[[], object]


class Sink:
    """Told of everything, says nothing."""

    waiting = False
    follows_calls = True
    follows_backward = True
    evaluated = first_activity = call_started = call_ended = "".format
    backward_started = backward_ended = optimizer_started = optimizer_ended = "".format
    generate_started = generate_ended = "".format


@dataclass
class Counted:
    """What a slice gave; rows by module path, operator and direction."""

    captured: SliceData
    paths: dict[int, str]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [*self.captured.frames.get("flop_counts", [])]

    def of(self, path: str | None, backward: int) -> int:
        """Operations of the module itself, without those of the modules inside it."""
        return sum(
            row["flop"] or 0
            for row in self.rows
            if self.paths.get(row["module_id"]) == path and row["backward"] == backward
        )

    def total(self, backward: int) -> int:
        return sum(row["flop"] or 0 for row in self.rows if row["backward"] == backward)

    @property
    def operators(self) -> dict[str, int | None]:
        """Operations by operator; None where any call has no figure."""
        found: dict[str, int | None] = defaultdict(int)
        for row in self.rows:
            known, flop = found[row["operator"]], row["flop"]
            found[row["operator"]] = None if known is None or flop is None else known + flop
        return dict(found)

    @property
    def modules(self) -> set[str | None]:
        return {self.paths.get(row["module_id"]) for row in self.rows}


def count(
    step: Step,
    steps: int = 1,
    left_out: tuple[int, ...] = (),
    wrapper: FlopsWrapper | None = None,
) -> Counted:
    """Count `step` the way the engine does: real hooks, the real wrapper."""
    hooks = TorchHooks(torch, Sink(), ModuleNames())
    wrapper = wrapper or FlopsWrapper()
    hooks.install()
    hooks.set_mode(DISCOVER)
    try:
        assert wrapper.busy_reason("count") is None
        wrapper.start(SliceContext(0, "count", steps, Path()))
        listener = wrapper.listener()
        assert listener is not None
        hooks.listen(listener)
        for number in range(steps):
            step()
            listener.step_ended(number + 1)
    finally:
        hooks.listen(None)
        wrapper.stop()
        hooks.remove()
    assert torch._C._len_torch_dispatch_stack() == 0
    modules = hooks.names.by_number()
    captured = wrapper.take([0.0] * (steps + 1), modules, left_out)
    RECORDED["flop_counts"].rows(captured.frames.get("flop_counts", []))
    wrapper.close()
    paths = {number: named.path for number, named in modules.items()} | STEP_PARTS
    return Counted(captured, paths)


def without_grad(call: Step) -> Step:
    def step() -> None:
        with torch.no_grad():
            call()

    return step


class Attention(nn.Module):
    """Four projections around fused attention."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(size, size) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        split = [
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        ]
        mixed = functional.scaled_dot_product_attention(*split, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))
