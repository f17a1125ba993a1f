"""Predict customer churn from numeric columns with a deep residual network.

Follows the "ResNet for tabular data" recipe: many narrow pre-norm blocks with
skip connections, trained by AdamW.  The customers are synthetic.
"""
import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn


def make_customers(count, columns, seed=10):
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(count, columns, generator=generator)
    weights = torch.randn(columns, generator=generator)
    score = table @ weights / columns ** 0.5
    score = score + table[:, 0] * table[:, 1] - table[:, 2].abs() + 0.5
    noise = torch.randn(count, generator=generator) * 0.3
    return table, (score + noise > 0).float()


class Block(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.enter = nn.Linear(width, hidden)
        self.leave = nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.leave(F.relu(self.enter(self.norm(x))))


class TabularResNet(nn.Module):
    def __init__(self, columns, width, depth):
        super().__init__()
        self.stem = nn.Linear(columns, width)
        self.blocks = nn.Sequential(*[Block(width, width) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1)

    def forward(self, table):
        return self.head(self.norm(self.blocks(self.stem(table)))).squeeze(1)


def parameter_groups(model, weight_decay):
    """Weight decay for matrices only."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    return [{"params": matrices, "weight_decay": weight_decay},
            {"params": vectors, "weight_decay": 0.0}]


def train(model, optimizer, table, churned, steps, batch_size):
    generator = torch.Generator().manual_seed(11)
    start = time.perf_counter()
    model.train()
    for step in range(1, steps + 1):
        rows = torch.randint(0, len(table), (batch_size,), generator=generator)
        loss = F.binary_cross_entropy_with_logits(model(table[rows]), churned[rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 200 == 0:
            print(f"step {step}: loss {loss.item():.4f} ({time.perf_counter() - start:.1f} s)")


@torch.no_grad()
def evaluate(model, table, churned):
    model.eval()
    return ((model(table) > 0).float() == churned).float().mean().item()


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--customers", type=int, default=20_000)
    parser.add_argument("--columns", type=int, default=40)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--depth", type=int, default=48)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--mended", action="store_true")
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    table, churned = make_customers(args.customers, args.columns)
    held_out = args.customers // 10
    model = TabularResNet(args.columns, args.width, args.depth)
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.01), lr=args.lr,
                                  fused=True if args.mended else None)
    train(model, optimizer, table[held_out:], churned[held_out:], args.steps, args.batch_size)
    score = evaluate(model, table[:held_out], churned[:held_out])
    print(f"held-out accuracy {score:.4f}")


if __name__ == "__main__":
    main()
