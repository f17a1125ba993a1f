"""A training that counts its hits by asking for one number after the other."""

from collections.abc import Callable

import torch
from torch import nn

BATCH = 256
STEPS = 150


def hits(scores: torch.Tensor, labels: torch.Tensor) -> int:
    """How many of the scores are highest at the label."""
    best, count = scores.argmax(1), 0
    for at in range(len(labels)):
        if best[at].item() == labels[at].item():  # @item
            count += 1
    return count


def main(steps: int = STEPS, after_step: Callable[[], None] = lambda: None) -> None:
    """Train on the same batch all the time."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs, labels = torch.randn(BATCH, 64), torch.randint(0, 8, (BATCH,))
    seen = 0
    for _ in range(steps):
        scores = model(inputs)
        loss = nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += hits(scores, labels)
        after_step()


if __name__ == "__main__":
    main()
