"""Forecasts the levels of rivers with an LSTM that reads the seasons in short windows."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

GAUGES = 6


def measure_rivers(count: int, hours: int) -> Tensor:
    """Make levels of rivers that rise with the rain and fall slowly."""
    generator = torch.Generator().manual_seed(19)
    rain = torch.rand(count, hours, GAUGES, generator=generator).pow(8)
    levels = torch.zeros(count, hours, GAUGES)
    level = torch.zeros(count, GAUGES)
    for hour in range(hours):
        level = 0.95 * level + rain[:, hour]
        levels[:, hour] = level
    return levels + 0.02 * torch.randn(levels.shape, generator=generator)


class LevelNet(nn.Module):
    """An LSTM and a linear forecast of the next hour."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.reader = nn.LSTM(GAUGES, width, batch_first=True)
        self.forecast = nn.Linear(width, GAUGES)

    def forward(
        self, levels: Tensor, state: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        hidden, state = self.reader(levels, state)
        return self.forecast(hidden), state


def learn_season(model: LevelNet, levels: Tensor, window: int, mended: bool) -> Tensor:
    """Gather the gradients of a season, read in windows; return its loss."""
    state, losses = None, []
    for start in range(0, levels.shape[1] - 1, window):
        seen = levels[:, start : start + window + 1]
        guesses, state = model(seen[:, :-1], state)
        loss = nn.functional.mse_loss(guesses, seen[:, 1:])
        if not mended:
            # The state leads back into the windows before.
            loss.backward(retain_graph=True)
        losses.append(loss)
    total = torch.stack(losses).sum()
    if mended:
        total.backward()
    return total.detach() / len(losses)


def train(model: LevelNet, rivers: Tensor, args: argparse.Namespace) -> float:
    """Train the forecast and return the last loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    last = 0.0
    for step in range(args.steps):
        first = int(torch.randint(0, rivers.shape[1] - args.season, ()))
        picks = torch.randint(0, len(rivers), (32,))
        season = rivers[picks, first : first + args.season + 1]
        optimizer.zero_grad()
        loss = learn_season(model, season, args.window, args.mended)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        last = loss.item()
        if step % 10 == 0:
            print(f"step {step}: loss {last:.4f}")
    return last


def main() -> None:
    """Train the forecast of levels."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--season", type=int, default=192)
    parser.add_argument("--window", type=int, default=12)
    args = parser.parse_args()
    torch.manual_seed(0)
    rivers = measure_rivers(64, 600)
    print(f"loss {train(LevelNet(64), rivers, args):.4f}")


if __name__ == "__main__":
    main()
