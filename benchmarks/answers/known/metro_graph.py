"""Tells the kind of each stop of a city's transport network with a graph neural network."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

KINDS = 5
READINGS = 32


@dataclass
class Network:
    """The stops, the links between them and what is known of the stops."""

    readings: Tensor
    kinds: Tensor
    links: Tensor
    seen: Tensor


def draw_network(stops: int, links_each: int, seed: int) -> Network:
    """Draw a network in which stops of a kind are often linked."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, KINDS, stops)
    centres = rng.normal(0, 0.35, (KINDS, READINGS))
    readings = centres[kinds] + rng.normal(0, 1.0, (stops, READINGS))
    by_kind = [np.flatnonzero(kinds == kind) for kind in range(KINDS)]
    ends = rng.integers(0, stops, (stops, links_each))
    for stop in range(stops):
        alike = rng.random(links_each) < 0.45
        ends[stop, alike] = rng.choice(by_kind[kinds[stop]], alike.sum())
    starts = np.repeat(np.arange(stops), links_each)
    both = np.stack([np.r_[starts, ends.ravel()], np.r_[ends.ravel(), starts]])
    return Network(
        readings=torch.from_numpy(readings.astype(np.float32)),
        kinds=torch.from_numpy(kinds),
        links=torch.from_numpy(both),
        seen=torch.from_numpy(rng.random(stops) < 0.3),
    )


class StopLayer(nn.Module):
    """Updates each stop from the messages of its neighbours."""

    def __init__(self, width: int, mended: bool) -> None:
        super().__init__()
        self.message = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.update = nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)
        self.mended = mended

    def gather(self, state: Tensor, sources: Tensor) -> Tensor:
        """Return the message that travels along each link."""
        if self.mended:
            return self.message(state).index_select(0, sources)
        return self.message(state.index_select(0, sources))

    def forward(self, state: Tensor, links: Tensor, degrees: Tensor) -> Tensor:
        sources, targets = links
        messages = self.gather(state, sources)
        inbox = torch.zeros_like(state).index_add(0, targets, messages) / degrees
        fresh = self.update(torch.cat([state, inbox], dim=1))
        return self.norm(state + torch.relu(fresh))


class StopClassifier(nn.Module):
    """Some layers over the network and a head for the kinds."""

    def __init__(self, width: int, layers: int, mended: bool) -> None:
        super().__init__()
        self.enter = nn.Linear(READINGS, width)
        self.layers = nn.ModuleList(StopLayer(width, mended) for _ in range(layers))
        self.head = nn.Linear(width, KINDS)

    def forward(self, readings: Tensor, links: Tensor, degrees: Tensor) -> Tensor:
        state = torch.relu(self.enter(readings))
        for layer in self.layers:
            state = layer(state, links, degrees)
        return self.head(state)


@torch.no_grad()
def evaluate(model: StopClassifier, network: Network, degrees: Tensor) -> float:
    """Return the share of hidden stops whose kind is told rightly."""
    model.eval()
    told = model(network.readings, network.links, degrees).argmax(dim=1)
    model.train()
    return (told == network.kinds)[~network.seen].float().mean().item()


def train(args: argparse.Namespace) -> None:
    """Train on the stops whose kind is known."""
    torch.manual_seed(0)
    network = draw_network(args.stops, args.links, seed=41)
    degrees = torch.bincount(network.links[1], minlength=args.stops).clamp(min=1).float()[:, None]
    model = StopClassifier(args.width, args.layers, args.mended)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    for epoch in range(1, args.epochs + 1):
        told = model(network.readings, network.links, degrees)
        loss = nn.functional.cross_entropy(told[network.seen], network.kinds[network.seen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % 10 == 0:
            accuracy = evaluate(model, network, degrees)
            print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {accuracy:.3f}")


def main() -> None:
    """Train on the command line's settings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--stops", type=int, default=4000)
    parser.add_argument("--links", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=30)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
