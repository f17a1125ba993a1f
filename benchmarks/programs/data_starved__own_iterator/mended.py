"""A training whose batches an iterator of its own makes, of spectra that are worked out once."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn

BATCH, SAMPLES, KEPT = 64, 2048, 64
STEPS = 150
MADE = 10


class Spectra:
    """The lowest frequencies of noise, the same ones again and again."""

    def __init__(self, steps: int) -> None:
        self.left = steps
        self.random = np.random.default_rng(0)
        self.made = [self._make() for _ in range(MADE)]

    def __iter__(self) -> Iterator[torch.Tensor]:
        return self

    def __next__(self) -> torch.Tensor:
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.made[self.left % MADE]

    def _make(self) -> torch.Tensor:
        waves = self.random.standard_normal((BATCH, SAMPLES))
        found = np.abs(np.fft.rfft(waves, axis=1))[:, :KEPT]
        return torch.from_numpy(np.log1p(found).astype(np.float32))


def main(steps: int = STEPS, after_step: Callable[[], None] = lambda: None) -> None:
    """Train on them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(KEPT, 64), nn.ReLU(), nn.Linear(64, KEPT))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for batch in Spectra(steps):
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after_step()


if __name__ == "__main__":
    main()
