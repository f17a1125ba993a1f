"""Learn a fast stand-in for a heat simulation of a metal plate.

The simulation solves the steady heat equation on a plate with random sources
and random conductivity.  A convolutional network learns to map the sources to
the temperatures.
"""
import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F
from scipy.fft import dstn, idstn
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def simulate_plates(count, size, seed=35):
    """Sources and conductivity (N, 2, size, size) and temperatures (N, 1, size, size)."""
    rng = np.random.default_rng(seed)
    axis = (np.arange(size) + 1) / (size + 1)
    sources = np.zeros((count, size, size))
    for _ in range(6):
        x, y = rng.random((2, count, 1, 1))
        spread = rng.uniform(0.03, 0.12, (count, 1, 1))
        power = rng.normal(size=(count, 1, 1))
        distance = (axis[None, None, :] - x) ** 2 + (axis[None, :, None] - y) ** 2
        sources += power * np.exp(-distance / (2 * spread ** 2))
    conductivity = rng.uniform(0.5, 2.0, (count, 1, 1))
    waves = (np.pi * np.arange(1, size + 1)) ** 2
    coefficients = dstn(sources, type=1, axes=(1, 2)) / (waves[:, None] + waves[None, :])
    temperatures = idstn(coefficients, type=1, axes=(1, 2)) / conductivity
    inputs = np.stack([sources, np.broadcast_to(conductivity, sources.shape)], axis=1)
    return inputs, temperatures[:, None]


def normalise(values):
    axes = (0, 2, 3)
    mean, std = values.mean(axis=axes, keepdims=True), values.std(axis=axes, keepdims=True)
    return (values - mean) / std


class ConvBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return x + self.second(F.gelu(self.first(F.gelu(x))))


class PlateSurrogate(nn.Module):
    """Down to a quarter of the resolution, through a global layer and up again."""

    def __init__(self, size, channels=24, wide=640):
        super().__init__()
        self.lift = nn.Conv2d(2, channels, 4, stride=4)
        self.local = nn.Sequential(ConvBlock(channels), ConvBlock(channels))
        cells = channels * (size // 4) ** 2
        self.across = nn.Sequential(nn.Linear(cells, wide), nn.GELU(), nn.Linear(wide, cells))
        self.refine = ConvBlock(channels)
        self.project = nn.ConvTranspose2d(channels, 1, 4, stride=4)

    def forward(self, plates):
        x = self.local(self.lift(plates))
        x = x + self.across(x.flatten(1)).view_as(x)
        return self.project(self.refine(x))


def train(model, loader, optimizer, schedule, epochs):
    start, step = time.perf_counter(), 0
    for epoch in range(epochs):
        for plates, temperatures in loader:
            loss = F.mse_loss(model(plates), temperatures)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
        print(f"epoch {epoch}: loss {loss.item():.5f} after {step} steps "
              f"({time.perf_counter() - start:.1f} s)")


@torch.no_grad()
def relative_error(model, plates, temperatures):
    return float((model(plates) - temperatures).norm() / temperatures.norm())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plates", type=int, default=768)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=7)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    plates, temperatures = map(normalise, simulate_plates(args.plates + 64, args.size))
    if args.mended:
        plates, temperatures = plates.astype(np.float32), temperatures.astype(np.float32)
    plates, temperatures = torch.from_numpy(plates), torch.from_numpy(temperatures)
    train_set = TensorDataset(plates[:args.plates], temperatures[:args.plates])
    loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = PlateSurrogate(args.size).to(plates.dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=args.lr, total_steps=args.epochs * len(loader))
    train(model, loader, optimizer, schedule, args.epochs)
    error = relative_error(model, plates[args.plates:], temperatures[args.plates:])
    print(f"relative error on new plates {error:.4f}")


if __name__ == "__main__":
    main()
