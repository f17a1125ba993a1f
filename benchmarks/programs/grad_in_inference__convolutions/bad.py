"""A model that is only asked, while autograd records what no backward pass will ever need."""

from collections.abc import Callable

import torch
from torch import nn

STEPS = 100


def main(steps: int = STEPS, after_step: Callable[[], None] = lambda: None) -> None:
    """Ask the model again and again."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()) for _ in range(6)]
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *layers).eval()
    images = torch.randn(4, 3, 48, 48)
    total = 0.0
    for _ in range(steps):
        total += model(images).mean().item()  # @call
        after_step()


if __name__ == "__main__":
    main()
