"""Ranking service on asyncio: requests are grouped into batches before the model runs."""
import argparse
import asyncio
import time
from dataclasses import dataclass, field

import torch
import torch.nn as nn

N_ITEMS = 5000


class Ranker(nn.Module):
    def __init__(self, dim=64, hidden=256):
        super().__init__()
        self.items = nn.Embedding(N_ITEMS, dim)
        self.encoder = nn.GRU(dim, hidden, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(hidden + dim, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, history, candidates):
        _, h = self.encoder(self.items(history))
        c = self.items(candidates)
        u = h[-1].unsqueeze(1).expand(-1, c.size(1), -1)
        return self.mlp(torch.cat([u, c], -1)).squeeze(-1)


@dataclass
class Request:
    history: list
    candidates: list
    done: asyncio.Future = field(default=None)


class BatchingServer:
    def __init__(self, model, max_batch, max_wait):
        self.model = model.eval()
        self.max_batch = max_batch
        self.max_wait = max_wait
        self.queue = asyncio.Queue()
        self.sizes = []

    async def rank(self, history, candidates):
        req = Request(history, candidates, asyncio.get_running_loop().create_future())
        await self.queue.put(req)
        return await req.done

    async def gather_batch(self):
        batch = [await self.queue.get()]
        deadline = time.monotonic() + self.max_wait
        while len(batch) < self.max_batch:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            try:
                batch.append(await asyncio.wait_for(self.queue.get(), left))
            except asyncio.TimeoutError:
                break
        return batch

    @torch.inference_mode()
    def score(self, batch):
        history = torch.tensor([r.history for r in batch])
        candidates = torch.tensor([r.candidates for r in batch])
        scores = self.model(history, candidates)
        return scores.topk(10, dim=1).indices.tolist()

    async def run(self):
        loop = asyncio.get_running_loop()
        while True:
            batch = await self.gather_batch()
            self.sizes.append(len(batch))
            top = await loop.run_in_executor(None, self.score, batch)
            for req, idx in zip(batch, top):
                req.done.set_result([req.candidates[i] for i in idx])


async def client(server, cid, n_requests, latencies):
    gen = torch.Generator().manual_seed(cid)
    for _ in range(n_requests):
        history = torch.randint(0, N_ITEMS, (50,), generator=gen).tolist()
        candidates = torch.randint(0, N_ITEMS, (60,), generator=gen).tolist()
        t0 = time.perf_counter()
        await server.rank(history, candidates)
        latencies.append(time.perf_counter() - t0)


async def serve(args):
    torch.manual_seed(0)
    max_wait = 0.002 if args.mended else args.max_wait_ms / 1000
    server = BatchingServer(Ranker(), max_batch=32, max_wait=max_wait)
    worker = asyncio.create_task(server.run())
    latencies = []
    t0 = time.perf_counter()
    await asyncio.gather(*[client(server, c, args.requests, latencies) for c in range(args.clients)])
    wall = time.perf_counter() - t0
    worker.cancel()
    latencies.sort()
    print(f"{len(latencies)} requests in {wall:.2f} s, p50 {1e3 * latencies[len(latencies) // 2]:.1f} ms, "
          f"p95 {1e3 * latencies[int(0.95 * len(latencies))]:.1f} ms, "
          f"mean batch {sum(server.sizes) / len(server.sizes):.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--requests", type=int, default=90)
    parser.add_argument("--max-wait-ms", type=float, default=40.0)
    parser.add_argument("--mended", action="store_true")
    asyncio.run(serve(parser.parse_args()))
