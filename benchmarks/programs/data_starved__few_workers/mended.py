"""The same training, with workers enough to read several samples at a time."""

import time
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH = 8
STEPS = 130
READ_S = 0.001


class Remote(Dataset[tuple[torch.Tensor, int]]):
    """Samples that each take a while to come."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(READ_S)
        return torch.full((32,), index % 7, dtype=torch.float32), index % 4


def main(steps: int = STEPS, after_step: Callable[[], None] = lambda: None) -> None:
    """Train on as many batches as there are steps."""
    torch.manual_seed(0)
    loader = DataLoader(Remote(steps * BATCH), batch_size=BATCH, num_workers=8)
    model = nn.Sequential(nn.Linear(32, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.Linear(1024, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for samples, labels in loader:
        loss = nn.functional.cross_entropy(model(samples), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after_step()


if __name__ == "__main__":
    main()
