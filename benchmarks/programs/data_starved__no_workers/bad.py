"""A training whose data set works on every sample in Python, in the process that trains."""

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH = 64
DIFFERENT = 64
STEPS = 100


def wave(number: int) -> torch.Tensor:  # @slow
    """One sample, made one number after the other."""
    values, value = [], float(number)
    for at in range(1_600):
        value = (value * 1.7 + at) % 11.0
        if at % 50 == 0:
            values.append(value)
    return torch.tensor(values)


class Signals(Dataset[tuple[torch.Tensor, int]]):
    """As many waves as are asked for, each made when it is asked for."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:  # @sample
        return wave(index % DIFFERENT), index % 4


def main(steps: int = STEPS, after_step: Callable[[], None] = lambda: None) -> None:
    """Train on as many batches as there are steps."""
    torch.manual_seed(0)
    loader = DataLoader(Signals(steps * BATCH), batch_size=BATCH)  # @loader
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
