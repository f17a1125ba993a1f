"""Solves the equation of heat in a rod with a network that knows the physics."""

from __future__ import annotations

import argparse
import math

import torch
from torch import Tensor, nn


class Sine(nn.Module):
    """The sine as an activation."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.sin()


class RodNet(nn.Module):
    """Place and time in, temperature out."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Linear(2, width), Sine()]
        for _ in range(depth):
            layers += [nn.Linear(width, width), Sine()]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, place: Tensor, time: Tensor) -> Tensor:
        return self.layers(torch.cat([place, time], dim=1))


def slope(values: Tensor, inputs: Tensor) -> Tensor:
    """Return the derivative of values by their inputs."""
    ones = torch.ones_like(values)
    return torch.autograd.grad(values, inputs, ones, create_graph=True)[0]


def physics_loss(model: RodNet, count: int) -> Tensor:
    """Return how much the equation is violated at random points."""
    place = torch.rand(count, 1, requires_grad=True)
    time = torch.rand(count, 1, requires_grad=True)
    heat = model(place, time)
    bend = slope(slope(heat, place), place)
    return (slope(heat, time) - 0.1 * bend).square().mean()


def edge_loss(model: RodNet, count: int) -> Tensor:
    """Return how much the start and the ends of the rod are violated."""
    place, time = torch.rand(count, 1), torch.rand(count, 1)
    start = model(place, torch.zeros_like(place)) - (math.pi * place).sin()
    ends = model(torch.randint(0, 2, (count, 1)).float(), time)
    return start.square().mean() + ends.square().mean()


def train(model: RodNet, steps: int, count: int) -> float:
    """Train the network and return the last loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    last = 0.0
    for step in range(steps):
        loss = physics_loss(model, count) + 10 * edge_loss(model, count)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step == steps - 1:
            last = loss.item()
            print(f"step {step}: loss {last:.5f}")
    return last


def main() -> None:
    """Solve the equation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--points", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.autograd.set_detect_anomaly(not args.mended)
    print(f"loss {train(RodNet(48, 5), args.steps, args.points):.5f}")


if __name__ == "__main__":
    main()
