"""Training steps of a chosen length, for the benchmarks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Perceptron(nn.Module):
    """Linear layers with ReLU between them: one module call for each layer and one for all."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Scores of the ten classes; inputs are (batch, width)."""
        for layer in self.layers:
            inputs = torch.relu(layer(inputs))
        scores: torch.Tensor = self.head(inputs)
        return scores


def training_step(
    width: int, depth: int, batch: int
) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    """A model, its optimizer, and a function that trains it by one step on fixed data."""
    torch.manual_seed(0)
    model = Perceptron(width, depth)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(batch, width)
    labels = torch.randint(0, 10, (batch,))

    def step() -> None:
        optimizer.zero_grad()
        loss: torch.Tensor = functional.cross_entropy(model(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch has none there
        optimizer.step()

    return model, optimizer, step


# Name -> width, depth, batch: on one core of a 2020s server about 0.3 ms and 5 ms a step.
STEPS = {"0.3 ms": (256, 1, 64), "5 ms": (320, 4, 256)}


def step_times(step: Callable[[], Any], steps: int) -> list[float]:
    """Seconds of each step of a plain loop, stamped by the loop itself."""
    times = []
    before = time.perf_counter()
    for _ in range(steps):
        step()
        now = time.perf_counter()
        times.append(now - before)
        before = now
    return times
