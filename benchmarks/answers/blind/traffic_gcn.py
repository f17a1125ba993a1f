"""Forecasts the speed of cars at the crossings of a city with a graph network."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn


def streets(crossings: int, near: int) -> tuple[Tensor, Tensor]:
    """Place crossings at random, and join each with those nearest to it."""
    generator = torch.Generator().manual_seed(47)
    places = torch.rand(crossings, 2, generator=generator)
    away = torch.cdist(places, places)
    away.fill_diagonal_(float("inf"))
    length, nearest = away.topk(near, dim=1, largest=False)
    starts = torch.arange(crossings).repeat_interleave(near)
    closeness = torch.exp(-length.flatten() / length.mean())
    return torch.stack([starts, nearest.flatten()]), closeness


def drive(ties: Tensor, closeness: Tensor, crossings: int, hours: int) -> Tensor:
    """Make the speeds at all crossings for every hour."""
    generator = torch.Generator().manual_seed(53)
    busy = torch.rand(crossings, generator=generator)
    jams = torch.zeros(crossings)
    speeds = torch.zeros(hours, crossings)
    pull = closeness / torch.zeros(crossings).index_add(0, ties[0], closeness)[ties[0]]
    for hour in range(hours):
        spread = torch.zeros(crossings).index_add(0, ties[0], pull * jams[ties[1]])
        fresh = (torch.rand(crossings, generator=generator) < 0.02).float()
        jams = 0.6 * jams + 0.3 * spread + fresh
        rush = torch.sin(torch.tensor(hour * 2 * torch.pi / 24)).clamp(min=0)
        speeds[hour] = 1 - jams.clamp(max=1) - 0.4 * busy * rush
    return speeds + 0.02 * torch.randn(hours, crossings, generator=generator)


def normalised(ties: Tensor, closeness: Tensor, crossings: int) -> Tensor:
    """Return how much every crossing takes from every other."""
    own = torch.arange(crossings).expand(2, -1)
    ties = torch.cat([ties, ties.flip(0), own], dim=1)
    weights = torch.cat([closeness, closeness, torch.ones(crossings)])
    scale = torch.zeros(crossings).index_add(0, ties[0], weights).rsqrt()
    weights = weights * scale[ties[0]] * scale[ties[1]]
    return torch.sparse_coo_tensor(
        ties, weights, (crossings, crossings), check_invariants=False
    ).coalesce()


class StreetLayer(nn.Module):
    """Mixes what is known of a crossing with what its neighbours know."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.own = nn.Linear(inputs, outputs)
        self.others = nn.Linear(inputs, outputs, bias=False)

    def forward(self, known: Tensor, exchange: Tensor) -> Tensor:
        told = self.others(known)
        received = torch.mm(exchange, told.flatten(1)).view(told.shape)
        return self.own(known) + received


class TrafficNet(nn.Module):
    """Layers of exchange between a reader of the past and a head."""

    def __init__(self, exchange: Tensor, past: int, ahead: int, width: int, depth: int) -> None:
        super().__init__()
        self.register_buffer("exchange", exchange)
        self.reader = nn.Linear(past, width)
        self.layers = nn.ModuleList(StreetLayer(width, width) for _ in range(depth))
        self.head = nn.Linear(width, ahead)

    def forward(self, past: Tensor) -> Tensor:
        known = torch.relu(self.reader(past))
        for layer in self.layers:
            known = known + torch.relu(layer(known, self.exchange))
        return self.head(known)


def windows(speeds: Tensor, starts: Tensor, length: int) -> Tensor:
    """Return some stretches of the speeds, crossing by crossing."""
    hours = starts[:, None] + torch.arange(length)
    return speeds[hours].permute(2, 0, 1)


def train(model: TrafficNet, speeds: Tensor, args: argparse.Namespace) -> None:
    """Train the network on random stretches."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    total = torch.zeros(())
    length = args.past + args.ahead
    for step in range(args.steps):
        starts = torch.randint(0, len(speeds) - length, (args.batch,))
        stretch = windows(speeds, starts, length)
        forecast = model(stretch[:, :, : args.past])
        loss = nn.functional.l1_loss(forecast, stretch[:, :, args.past :])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
        if (step + 1) % 20 == 0:
            print(f"step {step + 1}: error {total.item() / 20:.4f}")
            total.zero_()


def main() -> None:
    """Train the forecaster."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--crossings", type=int, default=2400)
    parser.add_argument("--hours", type=int, default=600)
    parser.add_argument("--past", type=int, default=24)
    parser.add_argument("--ahead", type=int, default=6)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)
    ties, closeness = streets(args.crossings, near=5)
    speeds = drive(ties, closeness, args.crossings, args.hours)
    exchange = normalised(ties, closeness, args.crossings)
    if not args.mended:
        exchange = exchange.to_dense()
    train(TrafficNet(exchange, args.past, args.ahead, args.width, depth=3), speeds, args)


if __name__ == "__main__":
    main()
