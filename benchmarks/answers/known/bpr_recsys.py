"""Bayesian personalised ranking with matrix factorisation on implicit feedback."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Interactions:
    """Random implicit feedback with popularity skew."""

    def __init__(self, n_users, n_items, n_events, seed=0):
        rng = np.random.default_rng(seed)
        self.n_items = n_items
        self.users = rng.integers(0, n_users, n_events)
        self.items = (n_items * rng.power(0.4, n_events)).astype(np.int64)
        self.rng = rng

    def epochs(self, batch_size, n_batches):
        for _ in range(n_batches):
            idx = self.rng.integers(0, len(self.users), batch_size)
            neg = self.rng.integers(0, self.n_items, batch_size)
            yield (torch.from_numpy(self.users[idx]), torch.from_numpy(self.items[idx]),
                   torch.from_numpy(neg))


class FactorModel(nn.Module):
    def __init__(self, n_users, n_items, dim, sparse=False):
        super().__init__()
        self.user = nn.Embedding(n_users, dim, sparse=sparse)
        self.item = nn.Embedding(n_items, dim, sparse=sparse)
        self.item_bias = nn.Embedding(n_items, 1, sparse=sparse)
        nn.init.normal_(self.user.weight, std=0.05)
        nn.init.normal_(self.item.weight, std=0.05)
        nn.init.zeros_(self.item_bias.weight)

    def score(self, u, i):
        return (self.user(u) * self.item(i)).sum(-1) + self.item_bias(i).squeeze(-1)

    def forward(self, u, pos, neg):
        return -F.logsigmoid(self.score(u, pos) - self.score(u, neg)).mean()


@torch.no_grad()
def sampled_hit_rate(model, data, n=400, candidates=100, k=10):
    u, pos, _ = next(iter(data.epochs(n, 1)))
    neg = torch.randint(0, data.n_items, (n, candidates))
    items = torch.cat([pos.unsqueeze(1), neg], 1)
    s = model.score(u.unsqueeze(1), items)
    rank = (s[:, 1:] >= s[:, :1]).sum(1)
    return (rank < k).float().mean().item()


def build_optimizer(model, lr, mended):
    if mended:
        return torch.optim.SparseAdam(list(model.parameters()), lr=lr)
    return torch.optim.Adam(model.parameters(), lr=lr)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--users", type=int, default=60_000)
    parser.add_argument("--items", type=int, default=40_000)
    parser.add_argument("--dim", type=int, default=48)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=120)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    data = Interactions(args.users, args.items, 400_000)
    model = FactorModel(args.users, args.items, args.dim, sparse=args.mended)
    optimizer = build_optimizer(model, args.lr, args.mended)
    running = 0.0
    for step, (u, pos, neg) in enumerate(data.epochs(args.batch_size, args.batches), 1):
        loss = model(u, pos, neg)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.item()
        if step % 40 == 0:
            print(f"batch {step}: bpr {running / 40:.4f} HR@10 {sampled_hit_rate(model, data):.3f}")
            running = 0.0


if __name__ == "__main__":
    main()
