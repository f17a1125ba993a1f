"""A model that scales its inputs by their covariance: all its time is in counted products."""

from collections.abc import Callable

import torch
from torch import nn

STEPS = 100


class Whitening(nn.Module):
    """Inputs in units of their own covariance."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        covariance = inputs.T @ inputs / len(inputs) + torch.eye(inputs.shape[1])
        return inputs @ covariance @ covariance


def main(steps: int = STEPS, after_step: Callable[[], None] = lambda: None) -> None:
    """Train on random numbers."""
    torch.manual_seed(0)
    model = nn.Sequential(Whitening(), nn.Linear(192, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(256, 192)
    for _ in range(steps):
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after_step()


if __name__ == "__main__":
    main()
