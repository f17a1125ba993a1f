"""The same training with the fused optimizer."""

from collections.abc import Callable

import torch
from torch import nn

STEPS = 150


def block(width: int) -> nn.Sequential:
    """A convolution, its normalisation and an activation."""
    return nn.Sequential(nn.Conv2d(width, width, 1), nn.BatchNorm2d(width), nn.ReLU())


def main(steps: int = STEPS, after_step: Callable[[], None] = lambda: None) -> None:
    """Train on the same batch again and again."""
    torch.manual_seed(0)
    model = nn.Sequential(*[block(32) for _ in range(20)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, fused=True)
    inputs = torch.randn(4, 32, 4, 4)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        after_step()


if __name__ == "__main__":
    main()
