"""A perceptron over features that was never told that it is only asked."""

from collections.abc import Callable

import torch
from torch import nn

STEPS = 300


def main(steps: int = STEPS, after_step: Callable[[], None] = lambda: None) -> None:
    """Ask the model again and again."""
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.Linear(256, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.1))
        for _ in range(4)
    ]
    model = nn.Sequential(*blocks, nn.Linear(256, 8))
    inputs = torch.randn(128, 256)
    total = 0.0
    with torch.inference_mode():
        for _ in range(steps):
            total += model(inputs).mean().item()  # @call
            after_step()


if __name__ == "__main__":
    main()
