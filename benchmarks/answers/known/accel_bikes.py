"""Forecasts how many bikes are hired at the stations of a city, trained with accelerate."""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

STATIONS = 24
FIRST_HOUR = "2023-01-01 00:00"


def hires(hours: int) -> np.ndarray:
    """Make the hires of every hour and station."""
    rng = np.random.default_rng(29)
    clock = np.arange(hours)[:, None]
    peaks = rng.uniform(6, 20, STATIONS)
    daily = np.exp(-(((clock % 24 - peaks) / 3) ** 2))
    weekend = np.where((clock // 24 + 6) % 7 >= 5, 0.5, 1.0)
    season = 1 + 0.5 * np.sin(2 * np.pi * clock / (24 * 365))
    noise = rng.normal(0, 0.1, (hours, STATIONS))
    return (daily * weekend * season + noise).astype(np.float32)


def describe(hours: pd.DatetimeIndex) -> np.ndarray:
    """Return what the calendar says of some hours."""
    rows = []
    for hour in hours:
        quarter_end = hour.is_quarter_end or hour.is_quarter_start
        rows.append(
            (
                hour.hour / 23 - 0.5,
                hour.day_of_week / 6 - 0.5,
                (hour.day - 1) / 30 - 0.5,
                (hour.day_of_year - 1) / 365 - 0.5,
                (hour.month - 1) / 11 - 0.5,
                float(hour.day_of_week >= 5),
                float(quarter_end),
            )
        )
    return np.array(rows, dtype=np.float32)


class Windows(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Past hours with their calendar, and the hours to forecast."""

    def __init__(self, values: np.ndarray, past: int, ahead: int, mended: bool) -> None:
        self.values = torch.from_numpy(values)
        self.hours = pd.date_range(FIRST_HOUR, periods=len(values), freq="h")
        self.past = past
        self.ahead = ahead
        self.calendar = describe(self.hours) if mended else None

    def __len__(self) -> int:
        return len(self.values) - self.past - self.ahead + 1

    def marks(self, first: int, last: int) -> Tensor:
        """Return the calendar of the hours from first to last."""
        if self.calendar is not None:
            return torch.from_numpy(self.calendar[first:last])
        return torch.from_numpy(describe(self.hours[first:last]))

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        now = index + self.past
        end = now + self.ahead
        return self.values[index:now], self.marks(index, end), self.values[now:end]


class Forecaster(nn.Module):
    """A GRU over the past and a head over the calendar to come."""

    def __init__(self, width: int, marks: int = 7) -> None:
        super().__init__()
        self.enter = nn.Linear(STATIONS + marks, width)
        self.mix = nn.Conv1d(width, width, 12, stride=12)
        self.reader = nn.GRU(width, width, batch_first=True)
        self.head = nn.Sequential(
            nn.Linear(width + marks, width), nn.GELU(), nn.Linear(width, STATIONS)
        )

    def forward(self, past: Tensor, marks: Tensor) -> Tensor:
        hours = past.shape[1]
        entered = torch.relu(self.enter(torch.cat([past, marks[:, :hours]], dim=2)))
        blocks = torch.relu(self.mix(entered.transpose(1, 2))).transpose(1, 2)
        _, state = self.reader(blocks)
        coming = marks[:, hours:]
        known = state[-1][:, None].expand(-1, coming.shape[1], -1)
        return self.head(torch.cat([known, coming], dim=2))


def train(args: argparse.Namespace) -> None:
    """Train the forecaster for some epochs."""
    accelerator = Accelerator(cpu=True)
    set_seed(0)
    data = Windows(hires(args.hours), past=168, ahead=24, mended=args.mended)
    loader = DataLoader(data, batch_size=args.batch, shuffle=True, drop_last=True)
    model = Forecaster(args.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(args.epochs):
        total = torch.zeros(())
        for past, marks, wanted in loader:
            loss = nn.functional.mse_loss(model(past, marks), wanted)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
        accelerator.print(f"epoch {epoch}: error {total.item() / len(loader):.4f}")


def main() -> None:
    """Train on the command line's settings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--hours", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--width", type=int, default=48)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
