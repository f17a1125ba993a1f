"""Forecasts the next reading of a machine from a log of its sensors."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

SENSORS = 16


def write_log(path: Path, blocks: int, rows: int) -> None:
    """Write the log as the machine does: one line a reading, day after day."""
    rng = np.random.default_rng(29)
    steps = rng.normal(size=(rows, SENSORS)).cumsum(axis=0) * 0.05
    body = "\n".join(",".join(f"{value:.3f}" for value in row) for row in steps)
    with path.open("w") as file:
        for _ in range(blocks):
            file.write(body + "\n")


def read_log(path: Path, mended: bool) -> Tensor:
    """Read the log."""
    if mended:
        frame = pd.read_csv(path, header=None, dtype=np.float32)
        return torch.from_numpy(frame.to_numpy())
    readings: list[Tensor] = []
    with path.open() as file:
        for line in file:
            fields = [field.strip() for field in line.split(",")]
            if len(fields) == SENSORS:
                readings.append(torch.tensor([float(field) for field in fields]))
    return torch.stack(readings)


def windows(readings: Tensor, length: int, count: int) -> TensorDataset:
    """Cut windows out of the readings, each with the reading that follows."""
    starts = torch.randint(0, len(readings) - length, (count,))
    places = starts[:, None] + torch.arange(length)
    return TensorDataset(readings[places].flatten(1), readings[starts + length])


class Forecaster(nn.Module):
    """A network from a window to the reading after it."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(length * SENSORS, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, SENSORS),
        )

    def forward(self, seen: Tensor) -> Tensor:
        return seen[:, -SENSORS:] + self.layers(seen)


def train(model: Forecaster, loader: DataLoader[tuple[Tensor, ...]]) -> float:
    """Train for one pass and return the last loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    last = 0.0
    for seen, following in loader:
        loss = nn.functional.smooth_l1_loss(model(seen), following)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = loss.item()
    return last


def main() -> None:
    """Read the log and train the forecaster."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--steps", type=int, default=120)
    args = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "machine.log"
        write_log(path, args.blocks, 5000)
        readings = read_log(path, args.mended)
    data = windows(readings, 32, args.steps * 128)
    loader = DataLoader(data, batch_size=128, shuffle=True)
    last = train(Forecaster(32, 1024), loader)
    print(f"loss {last:.4f} after {len(loader)} steps")


if __name__ == "__main__":
    main()
