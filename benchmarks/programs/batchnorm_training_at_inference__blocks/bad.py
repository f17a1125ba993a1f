"""A deep convolutional net that was never told that it is only asked."""

from collections.abc import Callable

import torch
from torch import nn

STEPS = 60


def main(steps: int = STEPS, after_step: Callable[[], None] = lambda: None) -> None:
    """Ask the model again and again."""
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
        for _ in range(6)
    ]
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *blocks)
    inputs = torch.randn(4, 3, 40, 40)
    total = 0.0
    with torch.inference_mode():
        for _ in range(steps):
            total += model(inputs).mean().item()  # @call
            after_step()


if __name__ == "__main__":
    main()
