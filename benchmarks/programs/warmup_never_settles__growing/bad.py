"""A training that waits for its log with every step, and for longer the more it has written."""

import time
from collections.abc import Callable

import torch
from torch import nn

STEPS = 160


def write_log(lines: int) -> None:
    """Stands for a file that is read and written anew as a whole, far away."""
    time.sleep(2e-4 * lines)


def main(steps: int = STEPS, after_step: Callable[[], None] = lambda: None) -> None:
    """Train on random numbers."""
    torch.manual_seed(0)
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(64, 64)
    for step in range(steps):
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        write_log(step)
        after_step()


if __name__ == "__main__":
    main()
