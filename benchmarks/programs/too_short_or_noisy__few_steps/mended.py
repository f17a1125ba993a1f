"""A training with steps enough for a median."""

from collections.abc import Callable

import torch
from torch import nn

STEPS = 250


def main(steps: int = STEPS, after_step: Callable[[], None] = lambda: None) -> None:
    """Train on random numbers."""
    torch.manual_seed(0)
    model = nn.Linear(256, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(256, 256)
    for _ in range(steps):
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after_step()


if __name__ == "__main__":
    main()
