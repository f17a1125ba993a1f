"""Predict a property of synthetic molecules with a message-passing network.

Molecules are random trees with a few extra bonds.  The property depends on
the kinds of neighbouring atoms, so messages along bonds are needed.
"""
import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn

ATOMS, BONDS = 8, 3


class Molecule:
    """Atom kinds, bonds in both directions and the property to predict."""

    def __init__(self, generator, affinity):
        size = int(torch.randint(8, 22, (1,), generator=generator))
        self.atoms = torch.randint(0, ATOMS, (size,), generator=generator)
        parents = [int(torch.randint(0, i, (1,), generator=generator)) for i in range(1, size)]
        source = torch.tensor(list(range(1, size)) + [0])
        target = torch.tensor(parents + [size - 1])
        kind = torch.randint(0, BONDS, (size,), generator=generator)
        self.source = torch.cat([source, target])
        self.target = torch.cat([target, source])
        self.kind = torch.cat([kind, kind])
        pairs = affinity[self.atoms[source], self.atoms[target], kind]
        self.value = pairs.mean()


def collate(molecules):
    """Join molecules into one graph with an index of the molecule of each atom."""
    offsets, total = [], 0
    for molecule in molecules:
        offsets.append(total)
        total += len(molecule.atoms)
    owner = torch.repeat_interleave(torch.arange(len(molecules)),
                                    torch.tensor([len(m.atoms) for m in molecules]))
    return (
        torch.cat([m.atoms for m in molecules]),
        torch.cat([m.source + o for m, o in zip(molecules, offsets)]),
        torch.cat([m.target + o for m, o in zip(molecules, offsets)]),
        torch.cat([m.kind for m in molecules]),
        owner,
        torch.stack([m.value for m in molecules]),
    )


class MessageLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(3 * dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.update = nn.Sequential(nn.Linear(2 * dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.norm = nn.LayerNorm(dim)

    def forward(self, atoms, bonds, source, target):
        messages = self.message(torch.cat([atoms[source], atoms[target], bonds], dim=1))
        received = torch.zeros_like(atoms).index_add(0, target, messages)
        return self.norm(atoms + self.update(torch.cat([atoms, received], dim=1)))


class PropertyNet(nn.Module):
    def __init__(self, dim=32, layers=5):
        super().__init__()
        self.atoms = nn.Embedding(ATOMS, dim)
        self.bonds = nn.Embedding(BONDS, dim)
        self.layers = nn.ModuleList(MessageLayer(dim) for _ in range(layers))
        self.readout = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, 1))

    def forward(self, atoms, source, target, kind, owner, count):
        x, bonds = self.atoms(atoms), self.bonds(kind)
        for layer in self.layers:
            x = layer(x, bonds, source, target)
        pooled = torch.zeros(count, x.shape[1]).index_add(0, owner, x)
        sizes = torch.bincount(owner, minlength=count).unsqueeze(1)
        return self.readout(pooled / sizes).squeeze(1)


def train(model, molecules, args):
    generator = torch.Generator().manual_seed(19)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, fused=True)
    start = time.perf_counter()
    for step in range(1, args.steps + 1):
        rows = torch.randint(0, len(molecules), (args.batch_size,), generator=generator)
        *graph, values = collate([molecules[i] for i in rows.tolist()])
        loss = F.mse_loss(model(*graph, count=args.batch_size), values)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.4f} ({time.perf_counter() - start:.1f} s)")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--molecules", type=int, default=1500)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.autograd.set_detect_anomaly(not args.mended)
    generator = torch.Generator().manual_seed(18)
    affinity = torch.randn(ATOMS, ATOMS, BONDS, generator=generator)
    molecules = [Molecule(generator, affinity) for _ in range(args.molecules)]
    train(PropertyNet(), molecules, args)


if __name__ == "__main__":
    main()
