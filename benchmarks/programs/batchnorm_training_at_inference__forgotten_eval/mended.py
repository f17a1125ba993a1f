"""The same model in the mode that it is to be asked in."""

from collections.abc import Callable

import torch
from torch import nn

STEPS = 100


def main(steps: int = STEPS, after_step: Callable[[], None] = lambda: None) -> None:
    """Ask the model again and again."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.2), nn.Conv2d(16, 8, 3)
    ).eval()
    images = torch.randn(8, 3, 24, 24)
    total = 0.0
    with torch.inference_mode():
        for _ in range(steps):
            total += model(images).mean().item()
            after_step()


if __name__ == "__main__":
    main()
