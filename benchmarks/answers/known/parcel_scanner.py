"""Serves scans of parcels with a pool of threads: each request gets the parcel's class."""

from __future__ import annotations

import argparse
import queue
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor, nn

CLASSES = 12


class ScanNet(nn.Module):
    """Convolutions and a classifier."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(32 * width, CLASSES),
        )

    def forward(self, scans: Tensor) -> Tensor:
        return self.layers(scans)


class ScanServer:
    """Gathers requests into batches and answers them in one thread."""

    def __init__(self, model: ScanNet, largest: int, patience: float) -> None:
        self.model = model
        self.largest = largest
        self.patience = patience
        self.requests: queue.Queue[tuple[Tensor, Future[int]] | None] = queue.Queue()
        self.answered = 0
        self.thread = threading.Thread(target=self.work, name="answers")
        self.thread.start()

    def ask(self, scan: Tensor) -> int:
        """Return the class of a scan."""
        answer: Future[int] = Future()
        self.requests.put((scan, answer))
        return answer.result()

    def close(self) -> None:
        """End the thread that answers."""
        self.requests.put(None)
        self.thread.join()

    def gather(self) -> list[tuple[Tensor, Future[int]] | None]:
        """Return the requests that wait, at least one."""
        waiting = [self.requests.get()]
        end = time.monotonic() + self.patience
        while len(waiting) < self.largest:
            left = end - time.monotonic()
            try:
                waiting.append(self.requests.get(block=left > 0, timeout=max(left, 0.0)))
            except queue.Empty:
                break
        return waiting

    def answer(self, pairs: list[tuple[Tensor, Future[int]]]) -> None:
        """Answer a batch of requests."""
        with torch.inference_mode():
            classes = self.model(torch.stack([scan for scan, _ in pairs])).argmax(dim=1)
        for (_, answer), chosen in zip(pairs, classes.tolist(), strict=True):
            answer.set_result(chosen)
        self.answered += len(pairs)

    def work(self) -> None:
        """Answer requests until the end."""
        open_ = True
        while open_:
            waiting = self.gather()
            open_ = None not in waiting
            pairs = [pair for pair in waiting if pair is not None]
            if pairs:
                self.answer(pairs)


def client(server: ScanServer, seed: int, count: int) -> int:
    """Ask for the classes of many scans, one after the other."""
    generator = torch.Generator().manual_seed(seed)
    return sum(server.ask(torch.rand(1, 128, 128, generator=generator)) for _ in range(count))


def main() -> None:
    """Serve some clients."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=150)
    args = parser.parse_args()
    torch.manual_seed(0)
    server = ScanServer(ScanNet(32).eval(), 32, 0.0 if args.mended else 0.03)
    with ThreadPoolExecutor(args.clients) as pool:
        jobs = [pool.submit(client, server, seed, args.requests) for seed in range(args.clients)]
        total = sum(job.result() for job in jobs)
    server.close()
    print(f"answered {server.answered} requests, classes add up to {total}")


if __name__ == "__main__":
    main()
