"""Learns to tell the calls of frogs in short excerpts from night-long pond recordings."""

from __future__ import annotations

import argparse
import tempfile
import wave
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

RATE = 16_000
FROGS = ["bullfrog", "green frog", "spring peeper", "tree frog", "wood frog"]


def record(path: Path, frog: int, seconds: int, rng: np.random.Generator) -> None:
    """Write a recording in which one frog calls again and again."""
    pitch = 350.0 * 1.5**frog * rng.uniform(0.93, 1.07)
    clock = np.arange(RATE, dtype=np.float32) / RATE
    pulse = np.maximum(np.sin(2 * np.pi * (3 + frog) * clock), 0)
    call = np.sin(2 * np.pi * pitch * clock).astype(np.float32) * pulse
    hiss = rng.normal(0, 0.35, (8, RATE)).astype(np.float32)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        for _ in range(seconds):
            second = rng.uniform(0.2, 0.5) * call + hiss[rng.integers(0, 8)]
            file.writeframes((second * 12_000).clip(-32_768, 32_767).astype("<i2").tobytes())


def make_pond(folder: Path, nights: int, seconds: int) -> list[tuple[Path, int]]:
    """Record some nights of every frog."""
    rng = np.random.default_rng(21)
    recordings = []
    for night in range(nights):
        for frog in range(len(FROGS)):
            path = folder / f"night{night}_{frog}.wav"
            record(path, frog, seconds, rng)
            recordings.append((path, frog))
    return recordings


def load_excerpt(path: Path, start: int, length: int, mended: bool) -> Tensor:
    """Return some samples of a recording, between -1 and 1."""
    with wave.open(str(path), "rb") as file:
        if mended:
            file.setpos(start)
            samples = np.frombuffer(file.readframes(length), dtype="<i2")
            return torch.from_numpy(samples.astype(np.float32) / 32_768)
        samples = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
    sound = torch.from_numpy(samples.astype(np.float32) / 32_768)
    return sound[start : start + length]


class Excerpts(Dataset[tuple[Tensor, int]]):
    """Excerpts from the recordings, at random places or at fixed ones."""

    def __init__(
        self, recordings: list[tuple[Path, int]], seconds: int, count: int, mended: bool
    ) -> None:
        self.recordings = recordings
        self.frames = seconds * RATE
        self.count = count
        self.mended = mended

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, frog = self.recordings[index % len(self.recordings)]
        start = int(torch.randint(self.frames - RATE, ()))
        return load_excerpt(path, start, RATE, self.mended), frog


class FrogNet(nn.Module):
    """Convolutions over a logarithmic spectrogram."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(512))
        self.layers = nn.Sequential(
            nn.Conv1d(257, width, 3, padding=1),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, width, 3, stride=2, padding=1),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, width, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Linear(width, len(FROGS))

    def forward(self, sounds: Tensor) -> Tensor:
        spectra = torch.stft(sounds, 512, 256, window=self.window, return_complex=True)
        return self.head(self.layers(torch.log1p(spectra.abs())).mean(2))


@torch.no_grad()
def evaluate(model: FrogNet, loader: DataLoader[tuple[Tensor, int]]) -> float:
    """Return how many excerpts are given to the right frog."""
    model.eval()
    pairs = [(model(sounds).argmax(1), frogs) for sounds, frogs in loader]
    return sum((best == frogs).float().mean().item() for best, frogs in pairs) / len(pairs)


def main() -> None:
    """Record, train and evaluate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--nights", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=150)
    parser.add_argument("--excerpts", type=int, default=800)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(6)
    with tempfile.TemporaryDirectory() as folder:
        pond = make_pond(Path(folder), args.nights, args.seconds)
        cut = len(FROGS) * (args.nights - 1)
        train = Excerpts(pond[:cut], args.seconds, args.excerpts, args.mended)
        held_out = Excerpts(pond[cut:], args.seconds, args.excerpts // 8, args.mended)
        loader = DataLoader(train, batch_size=32, shuffle=True, drop_last=True)
        model = FrogNet(128)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        for epoch in range(args.epochs):
            model.train()
            for sounds, frogs in loader:
                loss = nn.functional.cross_entropy(model(sounds), frogs)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            right = evaluate(model, DataLoader(held_out, batch_size=50))
            print(f"epoch {epoch}: last loss {loss.item():.4f}, accuracy {right:.3f}")


if __name__ == "__main__":
    main()
