"""A net over sequences that was never told that it is only asked."""

from collections.abc import Callable

import torch
from torch import nn

STEPS = 200


def main(steps: int = STEPS, after_step: Callable[[], None] = lambda: None) -> None:
    """Ask the model again and again."""
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.Conv1d(32, 32, 5, padding=2), nn.BatchNorm1d(32), nn.GELU())
        for _ in range(4)
    ]
    model = nn.Sequential(*blocks, nn.LSTM(200, 32))
    inputs = torch.randn(8, 32, 200)
    total = 0.0
    with torch.inference_mode():
        for _ in range(steps):
            total += model(inputs)[0].mean().item()  # @call
            after_step()


if __name__ == "__main__":
    main()
