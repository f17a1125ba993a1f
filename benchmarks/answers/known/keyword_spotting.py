"""Spots spoken keywords in short clips from their mel spectrograms."""

from __future__ import annotations

import argparse

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

RATE = 16000
WORDS = 8
Array = npt.NDArray[np.float64]


def hertz(mels: Array) -> Array:
    """Turn mels into hertz."""
    return 700.0 * (10.0 ** (mels / 2595.0) - 1.0)


class Spectrogram:
    """Turns a clip into the logarithm of its energy by band and frame."""

    def __init__(self, length: int, hop: int, bands: int, mended: bool) -> None:
        self.length = length
        self.hop = hop
        self.bands = bands
        self.prepared = (self.window(), self.filters()) if mended else None

    def window(self) -> Tensor:
        places = np.arange(self.length)
        curve = 0.5 - 0.5 * np.cos(2 * np.pi * places / self.length)
        return torch.from_numpy(curve.astype(np.float32))

    def filters(self) -> Tensor:
        bins = np.linspace(0, RATE / 2, self.length // 2 + 1)
        top = 2595.0 * np.log10(1.0 + RATE / 2 / 700.0)
        edges = hertz(np.linspace(0, top, self.bands + 2))
        weights = np.zeros((self.bands, len(bins)), dtype=np.float32)
        for band in range(self.bands):
            left, centre, right = edges[band : band + 3]
            rising = (bins - left) / (centre - left)
            falling = (right - bins) / (right - centre)
            weights[band] = np.maximum(0.0, np.minimum(rising, falling)) * 2.0 / (right - left)
        return torch.from_numpy(weights)

    def __call__(self, clip: Tensor) -> Tensor:
        window, filters = self.prepared or (self.window(), self.filters())
        frames = clip.unfold(0, self.length, self.hop) * window
        power = torch.fft.rfft(frames, dim=1).abs().square()
        return torch.log(filters @ power.T + 1e-6)


class Clips(Dataset[tuple[Tensor, int]]):
    """Clips in which a chord stands for a keyword."""

    def __init__(self, count: int, samples: int, spectrogram: Spectrogram) -> None:
        generator = torch.Generator().manual_seed(11)
        self.spectrogram = spectrogram
        self.words = torch.randint(0, WORDS, (count,), generator=generator).tolist()
        times = torch.arange(samples) / RATE
        self.clips: list[Tensor] = []
        for word in self.words:
            pitch = 200.0 + 150.0 * word
            chord = torch.sin(6.28 * pitch * times) + torch.sin(9.42 * pitch * times)
            self.clips.append(chord + torch.randn(samples, generator=generator))

    def __len__(self) -> int:
        return len(self.clips)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.spectrogram(self.clips[index]), self.words[index]


class Spotter(nn.Module):
    """Convolutions over time and a linear head."""

    def __init__(self, bands: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(bands, width, 5, padding=2),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, width, 5, padding=2),
            nn.BatchNorm1d(width),
            nn.ReLU(),
        )
        self.head = nn.Linear(width, WORDS)

    def forward(self, spectra: Tensor) -> Tensor:
        return self.head(self.layers(spectra).mean(dim=2))


def train(model: Spotter, loader: DataLoader[tuple[Tensor, Tensor]], epochs: int) -> float:
    """Train for some epochs and return the last loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    last = 0.0
    for _ in range(epochs):
        for spectra, words in loader:
            loss = nn.functional.cross_entropy(model(spectra), words)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            last = loss.item()
    return last


def main() -> None:
    """Train the spotter of keywords."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    torch.manual_seed(0)
    clips = Clips(480, 8000, Spectrogram(512, 160, 64, args.mended))
    loader = DataLoader(clips, batch_size=16, shuffle=True)
    last = train(Spotter(64, 192), loader, args.epochs)
    print(f"loss {last:.4f} after {args.epochs * len(loader)} steps")


if __name__ == "__main__":
    main()
