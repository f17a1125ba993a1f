"""The same training, with all heads in one batched product."""

from collections.abc import Callable

import torch
from torch import nn

STEPS = 150
HEADS, WIDTH = 48, 8


class Heads(nn.Module):
    """A small matrix for each part of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(HEADS, WIDTH, WIDTH) / WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.bmm(inputs, self.weight))


class Net(nn.Module):
    """Heads between two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.heads = Heads()
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(self.heads(self.first(inputs)))


def main(steps: int = STEPS, after_step: Callable[[], None] = lambda: None) -> None:
    """Train on the same batch all the time."""
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    inputs = torch.randn(HEADS, 16, WIDTH)
    for _ in range(steps):
        loss = net(inputs).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after_step()


if __name__ == "__main__":
    main()
