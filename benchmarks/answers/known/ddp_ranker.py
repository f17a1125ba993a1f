"""Train a ranking model for search results on two processes with DDP.

Every process draws its own queries.  A query has several candidate documents,
the one that was clicked should get the highest score.  Gradients of several
small batches are accumulated before each update.
"""
import argparse
import contextlib
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class ClickLog:
    """Queries with candidates; clicks follow a hidden relevance."""

    def __init__(self, queries, documents, candidates, seed):
        shared = torch.Generator().manual_seed(28)
        self.query_taste = torch.randn(queries, 6, generator=shared)
        self.document_taste = torch.randn(documents, 6, generator=shared)
        self.generator = torch.Generator().manual_seed(seed)
        self.candidates = candidates

    def batch(self, size):
        queries = torch.randint(0, len(self.query_taste), (size,), generator=self.generator)
        documents = torch.randint(0, len(self.document_taste), (size, self.candidates),
                                  generator=self.generator)
        relevance = torch.einsum("qd,qcd->qc", self.query_taste[queries],
                                 self.document_taste[documents])
        return queries, documents, relevance.argmax(1)


class Ranker(nn.Module):
    def __init__(self, queries, documents, dim=48, hidden=256):
        super().__init__()
        self.queries = nn.Embedding(queries, dim)
        self.documents = nn.Embedding(documents, dim)
        self.score = nn.Sequential(nn.Linear(3 * dim, hidden), nn.ReLU(),
                                   nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, queries, documents):
        d = self.documents(documents)
        q = self.queries(queries)[:, None].expand_as(d)
        return self.score(torch.cat([q, d, q * d], dim=-1)).squeeze(-1)


def accumulate(model, log, args):
    """Forward and backward of all the small batches of one update."""
    total = 0.0
    for part in range(args.accumulate):
        queries, documents, clicked = log.batch(args.batch_size)
        last = part == args.accumulate - 1
        quiet = model.no_sync() if args.mended and not last else contextlib.nullcontext()
        with quiet:
            loss = F.cross_entropy(model(queries, documents), clicked) / args.accumulate
            loss.backward()
        total += loss.item()
    return total


def train(model, log, args, rank):
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    start = time.perf_counter()
    for step in range(1, args.steps + 1):
        optimizer.zero_grad()
        loss = accumulate(model, log, args)
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss:.4f} ({time.perf_counter() - start:.1f} s)", flush=True)


def work(rank, args, meeting_point):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank,
                            world_size=args.ranks)
    model = DistributedDataParallel(Ranker(args.queries, args.documents))
    log = ClickLog(args.queries, args.documents, args.candidates, seed=29 + rank)
    train(model, log, args, rank)
    dist.barrier()
    dist.destroy_process_group()


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--queries", type=int, default=15_000)
    parser.add_argument("--documents", type=int, default=30_000)
    parser.add_argument("--candidates", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--accumulate", type=int, default=6)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--mended", action="store_true")
    return parser.parse_args()


def main():
    args = parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        meeting_point = os.path.join(folder, "meeting")
        mp.spawn(work, args=(args, meeting_point), nprocs=args.ranks)


if __name__ == "__main__":
    main()
