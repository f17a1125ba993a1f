"""A deep, narrow model, whose optimizer goes through its many tensors one operator at a time."""

from collections.abc import Callable

import torch
from torch import nn

STEPS = 200


def main(steps: int = STEPS, after_step: Callable[[], None] = lambda: None) -> None:
    """Train on the same batch again and again."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(48, 48) for _ in range(40)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs = torch.randn(16, 48)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()  # @step
        after_step()


if __name__ == "__main__":
    main()
