"""A training whose batches an iterator of its own makes, of spectra anew in each step."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn

BATCH, SAMPLES, KEPT = 64, 2048, 64
STEPS = 150


class Spectra:
    """The lowest frequencies of noise: C code all of it, of most of which cProfile is not told."""

    def __init__(self, steps: int) -> None:
        self.left = steps
        self.random = np.random.default_rng(0)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return self

    def __next__(self) -> torch.Tensor:  # @batch
        if not self.left:
            raise StopIteration
        self.left -= 1
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
