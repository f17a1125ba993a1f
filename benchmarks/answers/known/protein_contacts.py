"""Labels the residues of a protein complex by a network over their contacts."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

ROLES = 4


def contacts(count: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Fold a random chain; return who touches whom, descriptions and roles."""
    generator = torch.Generator().manual_seed(43)
    chain = torch.randn(count, 3, generator=generator).cumsum(dim=0)
    touching = (torch.cdist(chain, chain) < 4.0).float()
    touching.fill_diagonal_(0.0)
    order = touching.sum(dim=1).argsort().argsort()
    roles = order * ROLES // count
    described = torch.randn(count, width, generator=generator)
    described[:, :ROLES] += 0.5 * nn.functional.one_hot(roles, ROLES)
    return touching, described, roles


def balance(touching: Tensor) -> Tensor:
    """Weigh each contact by how many contacts both ends have."""
    linked = touching + torch.eye(len(touching))
    scale = torch.diag(linked.sum(dim=1).pow(-0.5))
    return scale @ linked @ scale


class Smooth(nn.Module):
    """Takes in what the neighbours are like."""

    def __init__(self, width: int, wide: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))

    def forward(self, hidden: Tensor, links: Tensor) -> Tensor:
        return hidden + self.layers(links @ self.norm(hidden))


class Labeller(nn.Module):
    """Some rounds of smoothing, then a role for each residue."""

    def __init__(self, entry: int, width: int, rounds: int, fixed: Tensor | None) -> None:
        super().__init__()
        self.fixed = fixed
        self.enter = nn.Linear(entry, width)
        self.rounds = nn.ModuleList(Smooth(width, 2 * width) for _ in range(rounds))
        self.head = nn.Linear(width, ROLES)

    def forward(self, described: Tensor, touching: Tensor) -> Tensor:
        links = balance(touching) if self.fixed is None else self.fixed
        hidden = self.enter(described)
        for smooth in self.rounds:
            hidden = smooth(hidden, links)
        return self.head(hidden)


def train(model: Labeller, data: tuple[Tensor, Tensor, Tensor], steps: int) -> float:
    """Train with noise on the descriptions and return the last loss."""
    touching, described, roles = data
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    last = 0.0
    for _ in range(steps):
        noisy = described + 0.1 * torch.randn_like(described)
        loss = nn.functional.cross_entropy(model(noisy, touching), roles)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = loss.item()
    return last


def main() -> None:
    """Train the labeller of residues."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--steps", type=int, default=130)
    parser.add_argument("--residues", type=int, default=640)
    args = parser.parse_args()
    torch.manual_seed(0)
    data = contacts(args.residues, 32)
    fixed = balance(data[0]) if args.mended else None
    last = train(Labeller(32, 96, 3, fixed), data, args.steps)
    print(f"loss {last:.4f} after {args.steps} steps")


if __name__ == "__main__":
    main()
