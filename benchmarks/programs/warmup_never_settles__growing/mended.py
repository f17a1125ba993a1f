"""A training that waits for its log with every step."""

import time
from collections.abc import Callable

import torch
from torch import nn

STEPS = 120


def write_log(lines: int) -> None:
    """Stands for a line that is added to a file, far away."""
    time.sleep(2e-2 * lines)


def main(steps: int = STEPS, after_step: Callable[[], None] = lambda: None) -> None:
    """Train on random numbers."""
    torch.manual_seed(0)
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(64, 64)
    for _ in range(steps):
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        write_log(1)
        after_step()


if __name__ == "__main__":
    main()
