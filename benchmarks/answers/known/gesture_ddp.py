"""Recognises gestures in recordings of motion, trained by two processes together."""

from __future__ import annotations

import argparse
import os
import tempfile

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

GESTURES = 5
FRAMES = 64


class Recordings(Dataset[tuple[Tensor, int]]):
    """One process's recordings, brought to one length."""

    def __init__(self, numbers: range, total: int) -> None:
        self.numbers = numbers
        self.total = total

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        number = self.numbers[index]
        rng = np.random.default_rng(number)
        gesture = number % GESTURES
        length = 300 + int(20000 * (number / self.total) ** 2)
        times = np.linspace(0, 1, length)[:, None]
        motion = np.sin(times * (gesture + 1) * np.array([9.0, 5.0, 2.0]))
        motion = motion + rng.normal(0, 0.5, motion.shape)
        kernel = np.hanning(31) / np.hanning(31).sum()
        smooth = [np.convolve(axis, kernel, mode="same") for axis in motion.T]
        places = np.linspace(0, length - 1, FRAMES)
        frames = np.stack([np.interp(places, np.arange(length), axis) for axis in smooth])
        return torch.from_numpy(frames.astype(np.float32)), gesture


class Recogniser(nn.Module):
    """Convolutions over time and a linear head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(3, width, 5, padding=2),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, padding=2),
            nn.ReLU(),
        )
        self.head = nn.Linear(width, GESTURES)

    def forward(self, frames: Tensor) -> Tensor:
        return self.head(self.layers(frames).mean(dim=2))


def share(rank: int, processes: int, total: int, mended: bool) -> range:
    """Return the numbers of the recordings that a process takes."""
    if mended:
        return range(rank, total, processes)
    each = total // processes
    return range(rank * each, (rank + 1) * each)


def work(rank: int, processes: int, meeting: str, args: argparse.Namespace) -> None:
    """Train in one of the processes."""
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=processes
    )
    torch.manual_seed(0)
    total = args.steps * args.batch * processes
    data = Recordings(share(rank, processes, total, args.mended), total)
    loader = DataLoader(data, batch_size=args.batch, shuffle=True)
    model = DistributedDataParallel(Recogniser(48))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    last = 0.0
    for frames, gestures in loader:
        loss = nn.functional.cross_entropy(model(frames), gestures)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = loss.item()
    if rank == 0:
        print(f"loss {last:.4f} after {args.steps} steps")
    dist.destroy_process_group()


def main() -> None:
    """Start the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "meeting")
        mp.spawn(work, args=(args.processes, meeting, args), nprocs=args.processes)


if __name__ == "__main__":
    main()
