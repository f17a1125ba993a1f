"""The same training, with the whole batch in one call of the model."""

from collections.abc import Callable

import torch
from torch import nn

STEPS = 150
BATCH = 32


def main(steps: int = STEPS, after_step: Callable[[], None] = lambda: None) -> None:
    """Train on the same batch all the time."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    samples = torch.randn(BATCH, 16)
    for _ in range(steps):
        scores = net(samples)
        loss = scores.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after_step()


if __name__ == "__main__":
    main()
