"""The same training, with the samples made by two workers beside it."""

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH = 16
STEPS = 150


class Signals(Dataset[tuple[torch.Tensor, int]]):
    """Waves that are made one number after the other."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        wave, value = [], float(index % 17)
        for at in range(4_000):
            value = (value * 1.7 + at) % 11.0  # @slow
            if at % 125 == 0:
                wave.append(value)
        return torch.tensor(wave), index % 4


def main(steps: int = STEPS, after_step: Callable[[], None] = lambda: None) -> None:
    """Train on as many batches as there are steps."""
    torch.manual_seed(0)
    loader = DataLoader(Signals(steps * BATCH), batch_size=BATCH, num_workers=2)
    model = nn.Sequential(nn.Linear(32, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.Linear(1024, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for waves, labels in loader:
        loss = nn.functional.cross_entropy(model(waves), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after_step()


if __name__ == "__main__":
    main()
