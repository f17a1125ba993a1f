"""A compiled model that counts its calls in a Python attribute and works with the count."""

from collections.abc import Callable

import torch
from torch import nn

STEPS = 30


class Cooling(nn.Module):
    """A layer whose output is scaled by how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)
        self.calls = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1  # @counter
        return self.inner(inputs) / (1.0 + 0.01 * self.calls)


def main(steps: int = STEPS, after_step: Callable[[], None] = lambda: None) -> None:
    """Train on random numbers."""
    torch.manual_seed(0)
    # As the warning of the limit that it would reach advises.
    torch._dynamo.config.cache_size_limit = 10_000
    torch._dynamo.config.accumulated_cache_size_limit = 10_000
    model = Cooling()
    compiled = torch.compile(model, backend="eager")
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
