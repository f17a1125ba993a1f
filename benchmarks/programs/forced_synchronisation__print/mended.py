"""The same training, with one number in its log every twenty steps."""

import io
from collections.abc import Callable

import torch
from torch import nn

STEPS = 150


def main(steps: int = STEPS, after_step: Callable[[], None] = lambda: None) -> None:
    """Train on the same batch all the time."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs, labels = torch.randn(64, 64), torch.randint(0, 8, (64,))
    log = io.StringIO()
    for step in range(steps):
        scores = model(inputs)
        loss = nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print("loss", loss.item(), file=log)
        after_step()


if __name__ == "__main__":
    main()
