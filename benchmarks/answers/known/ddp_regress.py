"""Data-parallel training of a deep residual MLP on two processes with gloo."""
import argparse
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


class ResidualBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class ResidualMLP(nn.Module):
    def __init__(self, features=32, dim=48, depth=16):
        super().__init__()
        self.inp = nn.Linear(features, dim)
        self.blocks = nn.Sequential(*[ResidualBlock(dim) for _ in range(depth)])
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        return self.out(self.blocks(self.inp(x))).squeeze(-1)


class Shard:
    """Each rank draws its own half of every global batch."""

    def __init__(self, rank, world, n=16384, features=32, seed=0):
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(n, features, generator=g)
        w = torch.randn(features, 8, generator=g)
        y = torch.tanh(x @ w).sum(1) + 0.1 * torch.randn(n, generator=g)
        self.x, self.y = x[rank::world], y[rank::world]
        self.gen = torch.Generator().manual_seed(seed + 1)

    def batch(self, size):
        idx = torch.randint(0, len(self.x), (size,), generator=self.gen)
        return self.x[idx], self.y[idx]


def average_gradients(model):
    world = float(dist.get_world_size())
    for param in model.parameters():
        dist.all_reduce(param.grad, op=dist.ReduceOp.SUM)
        param.grad /= world


def train(rank, world, port, args):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = ResidualMLP()
    model = DistributedDataParallel(net) if args.mended else net
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=True)
    data = Shard(rank, world)
    for step in range(1, args.steps + 1):
        x, y = data.batch(args.batch_size)
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        if not args.mended:
            average_gradients(net)
        optimizer.step()
        if rank == 0 and step % 25 == 0:
            print(f"step {step} mse {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    mp.spawn(train, args=(args.world, free_port(), args), nprocs=args.world)


if __name__ == "__main__":
    main()
