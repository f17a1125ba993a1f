"""A compiled model that prints a tensor and asks for its value in the midst of its forward."""

from collections.abc import Callable

import torch
from torch import nn

STEPS = 80


class Talkative(nn.Module):
    """Two layers, and a look at what is between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = nn.Linear(64, 64)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.first(inputs))
        print("between", hidden.shape)  # @print
        return self.second(hidden)


def main(steps: int = STEPS, after_step: Callable[[], None] = lambda: None) -> None:
    """Train on random numbers."""
    torch.manual_seed(0)
    model = Talkative()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(16, 64)
    for _ in range(steps):
        loss = compiled(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after_step()


if __name__ == "__main__":
    main()
