"""Whose work an operator is when an optimizer's step fails, which nobody is told of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode

from profstack.readers.flops.counting import Owner, Owners
from profstack.storage.vocabulary import OPTIMIZER


class Fails(torch.optim.Optimizer):
    """Multiplies matrices, and fails if it is to."""

    def __init__(self, parameter: nn.Parameter) -> None:
        super().__init__([parameter], {})
        self.fails = True

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            parameter = self.param_groups[0]["params"][0]
            parameter @ parameter
        if closure is not None:
            closure()
        if self.fails:
            raise ValueError("no step")


class Asks(TorchDispatchMode):
    """Asks whose each matrix multiplication is."""

    def __init__(self, owners: Owners) -> None:
        super().__init__()
        self.owners = owners
        self.found: list[Owner] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._overloadpacket is torch.ops.aten.mm:
            self.found.append(self.owners.owner())
        return func(*args, **(kwargs or {}))


@pytest.fixture
def asks() -> Iterator[Asks]:
    owners = Owners(torch)

    def began(optimizer: Any, args: Any, kwargs: Any) -> None:
        owners.enter("optimizer", type(optimizer).__name__)

    def ended(optimizer: Any, args: Any, kwargs: Any) -> None:
        owners.leave("optimizer", type(optimizer).__name__)

    handles = [register_optimizer_step_pre_hook(began), register_optimizer_step_post_hook(ended)]
    with Asks(owners) as asking:
        yield asking
    for handle in handles:
        handle.remove()


def failed(optimizer: Fails) -> None:
    with pytest.raises(ValueError, match="no step"):
        optimizer.step()


WEIGHT = nn.Parameter(torch.eye(3))
STEP: Owner = (OPTIMIZER, 0)


def test_work_after_a_step_that_failed_is_not_the_optimizers(asks: Asks) -> None:
    failed(Fails(WEIGHT))
    out = WEIGHT @ WEIGHT
    out.sum().backward()
    assert asks.found == [STEP, (None, 0), (None, 1), (None, 1)]


def test_modules_called_after_a_step_that_failed_have_their_work(asks: Asks) -> None:
    failed(Fails(WEIGHT))
    asks.owners.enter("module", "Net", object())
    inside = WEIGHT @ WEIGHT
    asks.owners.leave("module", "Net")
    outside = WEIGHT @ WEIGHT
    inside.sum().backward()
    outside.sum().backward()
    assert asks.found[1:3] == [("Net", 0), (None, 0)]
    assert asks.found[3:] == [*[("Net", 1)] * 2, *[(None, 1)] * 2]


def test_each_of_several_steps_that_failed_is_forgotten(asks: Asks) -> None:
    optimizer = Fails(WEIGHT)
    for _ in range(3):
        failed(optimizer)
    optimizer.fails = False
    optimizer.step()
    WEIGHT @ WEIGHT
    assert asks.found == [*[STEP] * 4, (None, 0)]
    assert asks.owners._stack == []


def test_work_inside_a_step_is_the_optimizers_also_after_an_inner_one_failed(asks: Asks) -> None:
    inner, outer = Fails(WEIGHT), Fails(WEIGHT)
    outer.fails = False

    def closure() -> None:
        failed(inner)
        WEIGHT @ WEIGHT

    outer.step(closure)
    WEIGHT @ WEIGHT
    assert asks.found == [*[STEP] * 3, (None, 0)]
