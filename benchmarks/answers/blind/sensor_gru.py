"""Forecast plant sensors with a recurrent network over long windows.

A window is read in several segments; the recurrent state is carried from one
segment to the next and every segment contributes a one-step-ahead loss.
"""
import argparse
import math
import time

import torch
import torch.nn.functional as F
from torch import nn


def make_sensors(length, sensors, seed=13):
    """Coupled oscillations with drift and noise, (length, sensors)."""
    generator = torch.Generator().manual_seed(seed)
    t = torch.arange(length).float()[:, None]
    periods = torch.rand(sensors, generator=generator) * 60 + 15
    phases = torch.rand(sensors, generator=generator) * 2 * math.pi
    waves = torch.sin(2 * math.pi * t / periods + phases)
    mixing = torch.randn(sensors, sensors, generator=generator) / sensors ** 0.5
    drift = torch.randn(length, sensors, generator=generator).cumsum(0) * 0.01
    noise = torch.randn(length, sensors, generator=generator) * 0.05
    series = waves @ mixing + drift + noise
    return (series - series.mean(0)) / series.std(0)


class WindowSampler:
    def __init__(self, series, window, batch_size, seed=14):
        self.series, self.window, self.batch_size = series, window, batch_size
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self):
        last = len(self.series) - self.window - 1
        starts = torch.randint(0, last, (self.batch_size,), generator=self.generator)
        rows = starts[:, None] + torch.arange(self.window + 1)
        return self.series[rows]


class Forecaster(nn.Module):
    def __init__(self, sensors, hidden=64):
        super().__init__()
        self.rnn = nn.GRU(sensors, hidden, batch_first=True)
        self.head = nn.Linear(hidden, sensors)

    def forward(self, segment, state=None):
        features, state = self.rnn(segment, state)
        return segment + self.head(features), state


def learn_window(model, window, segments, joint):
    """Accumulate the gradients of one batch of windows; returns its loss."""
    inputs = window[:, :-1].chunk(segments, dim=1)
    targets = window[:, 1:].chunk(segments, dim=1)
    state, total = None, 0.0
    for segment, target in zip(inputs, targets):
        forecast, state = model(segment, state)
        loss = F.smooth_l1_loss(forecast, target) / segments
        if joint:
            total = total + loss
        else:
            loss.backward(retain_graph=True)
            total += loss.item()
    if joint:
        total.backward()
        total = total.item()
    return total


def train(model, sampler, args):
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    start = time.perf_counter()
    for step in range(1, args.steps + 1):
        optimizer.zero_grad(set_to_none=True)
        loss = learn_window(model, sampler.draw(), args.segments, joint=args.mended)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss:.4f} ({time.perf_counter() - start:.1f} s)")


@torch.no_grad()
def backtest(model, series, window):
    tail = series[-window - 1:].unsqueeze(0)
    forecast, _ = model(tail[:, :-1])
    return F.l1_loss(forecast, tail[:, 1:]).item()


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sensors", type=int, default=12)
    parser.add_argument("--window", type=int, default=100)
    parser.add_argument("--segments", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--mended", action="store_true")
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    series = make_sensors(6000, args.sensors)
    sampler = WindowSampler(series[:5500], args.window, args.batch_size)
    model = Forecaster(args.sensors)
    train(model, sampler, args)
    print(f"backtest error {backtest(model, series, 400):.4f}")


if __name__ == "__main__":
    main()
