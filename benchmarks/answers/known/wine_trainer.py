"""Learns the prices of wines with a small trainer that calls callbacks."""

from __future__ import annotations

import argparse
import copy

import torch
from torch import Tensor, nn


def taste_wines(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Make the measurements of wines and their prices."""
    mixing = torch.randn(40, 8, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(seed)
    wines = torch.randn(count, 40, generator=generator)
    hidden = (wines @ mixing / 6).tanh()
    prices = hidden.prod(dim=1) * 50 + hidden.sum(dim=1)
    return wines, prices + 0.05 * torch.randn(count, generator=generator)


class Refinement(nn.Module):
    """Adds a little to what is known."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.outer(self.inner(self.norm(hidden)).relu())


class Callback:
    """What a trainer calls."""

    def on_batch_end(self, trainer: Trainer, loss: Tensor) -> None:
        """Be told of a step."""

    def on_epoch_end(self, trainer: Trainer, epoch: int) -> None:
        """Be told of an epoch."""


class Progress(Callback):
    """Prints the mean loss of an epoch."""

    def __init__(self) -> None:
        self.total, self.count = torch.zeros(()), 0

    def on_batch_end(self, trainer: Trainer, loss: Tensor) -> None:
        self.total += loss
        self.count += 1

    def on_epoch_end(self, trainer: Trainer, epoch: int) -> None:
        print(f"epoch {epoch}: loss {(self.total / self.count).item():.4f}")
        self.total, self.count = torch.zeros(()), 0


class BestWeights(Callback):
    """Keeps the weights of the best score."""

    def __init__(self, mended: bool) -> None:
        self.mended = mended
        self.lowest = float("inf")
        self.smooth: Tensor | None = None
        self.best: dict[str, Tensor] = {}

    def keep(self, trainer: Trainer) -> None:
        """Keep the state if its score is the best."""
        assert self.smooth is not None
        state = {
            "model": trainer.model.state_dict(),
            "optimizer": trainer.optimizer.state_dict(),
        }
        candidate = copy.deepcopy(state)
        if self.smooth.item() < self.lowest:
            self.lowest, self.best = self.smooth.item(), candidate

    def on_batch_end(self, trainer: Trainer, loss: Tensor) -> None:
        self.smooth = loss if self.smooth is None else 0.9 * self.smooth + 0.1 * loss
        if not self.mended:
            self.keep(trainer)

    def on_epoch_end(self, trainer: Trainer, epoch: int) -> None:
        if self.mended:
            self.keep(trainer)


class Trainer:
    """Fits a model and calls callbacks."""

    def __init__(self, model: nn.Module, callbacks: list[Callback]) -> None:
        self.model = model
        self.callbacks = callbacks
        self.optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)

    def train_step(self, wines: Tensor, prices: Tensor) -> Tensor:
        """Take one step and return its loss."""
        loss = nn.functional.mse_loss(self.model(wines)[:, 0], prices)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def fit(self, wines: Tensor, prices: Tensor, epochs: int, batch: int) -> None:
        """Fit the model for some epochs."""
        for epoch in range(epochs):
            for picks in torch.randperm(len(wines)).split(batch):
                loss = self.train_step(wines[picks], prices[picks])
                for callback in self.callbacks:
                    callback.on_batch_end(self, loss)
            for callback in self.callbacks:
                callback.on_epoch_end(self, epoch)


def main() -> None:
    """Train the estimate of prices."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=32)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(40, args.width),
        *[Refinement(args.width) for _ in range(args.depth)],
        nn.Linear(args.width, 1),
    )
    best = BestWeights(args.mended)
    trainer = Trainer(model, [Progress(), best])
    trainer.fit(*taste_wines(6400, seed=2), args.epochs, batch=128)
    print(f"best smoothed loss {best.lowest:.4f}")


if __name__ == "__main__":
    main()
