"""A deep, narrow model, whose gradients are zeroed before each backward pass adds to them."""

from collections.abc import Callable

import torch
from torch import nn

STEPS = 150


def main(steps: int = STEPS, after_step: Callable[[], None] = lambda: None) -> None:
    """Train on the same batch again and again."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(32, 32) for _ in range(30)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
    inputs = torch.randn(8, 32)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=False)  # @zero
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        after_step()


if __name__ == "__main__":
    main()
