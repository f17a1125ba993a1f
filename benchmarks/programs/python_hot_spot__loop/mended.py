"""A training that makes the weights of its samples with each step, by the formula for their sum."""

from collections.abc import Callable

import torch
from torch import nn

BATCH = 256
STEPS = 150


def weights_of(lengths: list[int], decay: float) -> torch.Tensor:
    """A weight for each sample: the sum of a geometric series over its length."""
    return (1.0 - decay ** torch.tensor(lengths)) / (1.0 - decay)


def main(steps: int = STEPS, after_step: Callable[[], None] = lambda: None) -> None:
    """Train on random numbers."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(BATCH, 32)
    for step in range(steps):
        lengths = [100 + (step + sample) % 200 for sample in range(BATCH)]
        weights = weights_of(lengths, 0.98)
        loss = (model(inputs).squeeze(1).square() * weights).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after_step()


if __name__ == "__main__":
    main()
