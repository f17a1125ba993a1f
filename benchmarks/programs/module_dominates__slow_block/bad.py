"""Four blocks that are alike, one of which was left to look at all that comes in."""

from collections.abc import Callable

import torch
from torch import nn

STEPS = 100


class Block(nn.Module):
    """A layer with a residual connection; `watched` makes it keep how its inputs are spread."""

    def __init__(self, width: int, *, watched: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width)
        self.watched = watched

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.watched:
            self.spread = torch.quantile(inputs.detach(), torch.linspace(0.0, 1.0, 11))
        return inputs + torch.relu(inputs @ self.weight)


def main(steps: int = STEPS, after_step: Callable[[], None] = lambda: None) -> None:
    """Train on random numbers."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(32, watched=number == 2) for number in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(2048, 32)
    for _ in range(steps):
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after_step()


if __name__ == "__main__":
    main()
