"""Serves readings of water meters: clients send photos, a model answers them in batches."""

from __future__ import annotations

import argparse
import queue
import statistics
import threading
import time
from concurrent.futures import Future

import numpy as np
import torch
from torch import Tensor, nn

DIGITS = 5
HEIGHT, WIDTH = 48, 160


class MeterNet(nn.Module):
    """Reads the digits from left to right."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for enter, leave in ((1, width), (width, 2 * width), (2 * width, 4 * width)):
            layers += [nn.Conv2d(enter, leave, 3, padding=1), nn.BatchNorm2d(leave)]
            layers += [nn.ReLU(), nn.MaxPool2d(2)]
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d((2, DIGITS)))
        self.head = nn.Linear(8 * width, 10)

    def forward(self, photos: Tensor) -> Tensor:
        columns = self.layers(photos).permute(0, 3, 1, 2).flatten(2)
        return self.head(columns)


class MeterServer:
    """One thread that gathers requests and answers them together."""

    def __init__(self, model: MeterNet, max_batch: int, window: float) -> None:
        self.model = model.eval()
        self.max_batch = max_batch
        self.window = window
        self.requests: queue.Queue[tuple[np.ndarray, Future[str]] | None] = queue.Queue()
        self.sizes: list[int] = []
        self.open = True
        self.thread = threading.Thread(target=self.run, name="reader")
        self.thread.start()

    def submit(self, photo: np.ndarray) -> Future[str]:
        """Take a photo and promise its reading."""
        answer: Future[str] = Future()
        self.requests.put((photo, answer))
        return answer

    def gather(self) -> list[tuple[np.ndarray, Future[str]]]:
        """Return the requests to be answered next."""
        batch: list[tuple[np.ndarray, Future[str]]] = []
        deadline = None
        while len(batch) < self.max_batch:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            try:
                request = self.requests.get(timeout=left)
            except queue.Empty:
                break
            if request is None:
                self.open = False
                break
            batch.append(request)
            deadline = deadline or time.monotonic() + self.window
        return batch

    @torch.inference_mode()
    def read(self, photos: list[np.ndarray]) -> list[str]:
        """Return the readings of some photos."""
        pixels = torch.from_numpy(np.stack(photos)).unsqueeze(1).float() / 255 - 0.5
        digits = self.model(pixels).argmax(2).tolist()
        return ["".join(str(digit) for digit in row) for row in digits]

    def run(self) -> None:
        """Answer requests until the server is closed."""
        while self.open:
            batch = self.gather()
            if not batch:
                continue
            self.sizes.append(len(batch))
            readings = self.read([photo for photo, _ in batch])
            for (_, answer), reading in zip(batch, readings, strict=True):
                answer.set_result(reading)

    def close(self) -> None:
        """Stop the thread."""
        self.requests.put(None)
        self.thread.join()


def take_photo(rng: np.random.Generator) -> np.ndarray:
    """Draw a dim row of number wheels."""
    photo = rng.integers(0, 60, (HEIGHT, WIDTH), dtype=np.uint8)
    for place in range(DIGITS):
        left = place * WIDTH // DIGITS + int(rng.integers(4, 10))
        top, tall = int(rng.integers(4, 12)), int(rng.integers(18, 30))
        photo[top : top + tall, left : left + 14] += rng.integers(80, 190, dtype=np.uint8)
    return photo


def client(server: MeterServer, seed: int, count: int, waits: list[float], sums: list[int]) -> None:
    """Send photos one after the other and note how long each answer took."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        photo = take_photo(rng)
        start = time.perf_counter()
        reading = server.submit(photo).result()
        waits.append(time.perf_counter() - start)
        sums.append(sum(int(digit) for digit in reading))


def main() -> None:
    """Serve some clients and report on the answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--requests", type=int, default=110)
    args = parser.parse_args()
    torch.manual_seed(9)
    max_batch = args.clients if args.mended else 16
    server = MeterServer(MeterNet(56), max_batch=max_batch, window=0.05)
    waits: list[float] = []
    sums: list[int] = []
    threads = [
        threading.Thread(target=client, args=(server, seed, args.requests, waits, sums))
        for seed in range(args.clients)
    ]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    server.close()
    print(f"{len(waits)} readings, digit sum {statistics.mean(sums):.3f}")
    print(f"{len(waits) / seconds:.1f} a second, median {1000 * statistics.median(waits):.1f} ms")


if __name__ == "__main__":
    main()
