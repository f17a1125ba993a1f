"""Forecasts the power of a wind farm for several horizons with a recurrent network."""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

HORIZONS = {"1h": 6, "3h": 18, "6h": 36, "12h": 72}
QUANTILES = torch.tensor([0.1, 0.5, 0.9])
MASTS = 8


def measure(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Make ten-minute readings of the masts and the power of the farm."""
    rng = np.random.default_rng(seed)
    clock = np.arange(count)
    gusts = rng.normal(0, 0.25, count)
    front = np.zeros(count)
    for step in range(1, count):
        front[step] = 0.985 * front[step - 1] + gusts[step]
    wind = 8 + 2 * front + 1.5 * np.sin(2 * np.pi * clock / 144)
    masts = np.stack([np.roll(wind, shift) for shift in range(0, -MASTS, -1)], axis=1)
    masts = masts + rng.normal(0, 0.4, masts.shape)
    power = np.clip((wind - 3) / 9, 0, 1) ** 2
    return ((masts - 8) / 4).astype(np.float32), power.astype(np.float32)


class Readings(Dataset[tuple[Tensor, Tensor]]):
    """Windows of readings with the power at each horizon."""

    def __init__(self, masts: np.ndarray, power: np.ndarray, past: int) -> None:
        self.masts = torch.from_numpy(masts)
        self.power = torch.from_numpy(power)
        self.past = past
        self.ahead = torch.tensor(list(HORIZONS.values()))

    def __len__(self) -> int:
        return len(self.masts) - self.past - int(self.ahead.max())

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        now = index + self.past
        return self.masts[index:now], self.power[now - 1 + self.ahead]


class FarmModel(nn.Module):
    """A shared reader of the past and one head for each horizon."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = nn.Conv1d(MASTS, width, 5, stride=3)
        self.reader = nn.GRU(width, width, num_layers=2, batch_first=True)
        self.heads = nn.ModuleDict(
            {
                name: nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, len(QUANTILES)))
                for name in HORIZONS
            }
        )

    def forward(self, masts: Tensor) -> dict[str, Tensor]:
        blocks = torch.relu(self.enter(masts.transpose(1, 2))).transpose(1, 2)
        _, state = self.reader(blocks)
        return {name: head(state[-1]) for name, head in self.heads.items()}


def pinball(told: Tensor, wanted: Tensor) -> Tensor:
    """Return the quantile loss."""
    gap = wanted[:, None] - told
    return torch.maximum(QUANTILES * gap, (QUANTILES - 1) * gap).mean()


class Trainer:
    """Trains the model and keeps the losses of the horizons."""

    def __init__(self, model: FarmModel, mended: bool) -> None:
        self.model = model
        self.mended = mended
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        self.losses = dict.fromkeys(HORIZONS, 0.0)

    def learn(self, losses: dict[str, Tensor]) -> None:
        """Work out the gradients of the losses."""
        if self.mended:
            torch.stack(list(losses.values())).sum().backward()
            return
        for loss in losses.values():
            loss.backward(retain_graph=True)

    def step(self, masts: Tensor, wanted: Tensor) -> None:
        """Take one step of the optimizer."""
        told = self.model(masts)
        losses = {
            name: pinball(told[name], wanted[:, place]) for place, name in enumerate(HORIZONS)
        }
        self.optimizer.zero_grad()
        self.learn(losses)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        for name, loss in losses.items():
            self.losses[name] += loss.item()

    def epoch(self, loader: DataLoader[tuple[Tensor, Tensor]]) -> str:
        """Train for one epoch and describe how it went."""
        self.model.train()
        self.losses = dict.fromkeys(HORIZONS, 0.0)
        for masts, wanted in loader:
            self.step(masts, wanted)
        return ", ".join(f"{name} {loss / len(loader):.4f}" for name, loss in self.losses.items())

    @torch.no_grad()
    def evaluate(self, loader: DataLoader[tuple[Tensor, Tensor]]) -> float:
        """Return the mean absolute error of the medians."""
        self.model.eval()
        total, count = 0.0, 0
        for masts, wanted in loader:
            medians = torch.stack([told[:, 1] for told in self.model(masts).values()], dim=1)
            total += (medians - wanted).abs().sum().item()
            count += wanted.numel()
        return total / count


def main() -> None:
    """Train on the command line's settings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--readings", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(0)
    masts, power = measure(args.readings, seed=3)
    cut = int(0.85 * args.readings)
    known = Readings(masts[:cut], power[:cut], past=144)
    later = Readings(masts[cut:], power[cut:], past=144)
    trainer = Trainer(FarmModel(width=64), args.mended)
    loader = DataLoader(known, batch_size=args.batch, shuffle=True, drop_last=True)
    for epoch in range(1, args.epochs + 1):
        print(f"epoch {epoch}: {trainer.epoch(loader)}")
    error = trainer.evaluate(DataLoader(later, batch_size=256))
    print(f"error on later days {error:.4f}")


if __name__ == "__main__":
    main()
