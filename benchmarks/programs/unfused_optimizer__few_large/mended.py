"""The same training with the fused optimizer, which goes through the memory once."""

from collections.abc import Callable

import torch
from torch import nn

STEPS = 100


def main(steps: int = STEPS, after_step: Callable[[], None] = lambda: None) -> None:
    """Train on the same batch again and again."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(1200, 1200) for _ in range(3)])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    inputs = torch.randn(16, 1200)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        after_step()


if __name__ == "__main__":
    main()
