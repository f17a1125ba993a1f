"""Recognises birds by their calls in excerpts of long recordings."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

RATE = 16_000
HOP = 160
BIRDS = 6


def record(count: int, seconds: int) -> tuple[Tensor, Tensor]:
    """Make recordings, each with the repeated chirp of one bird."""
    generator = torch.Generator().manual_seed(3)
    birds = torch.randint(0, BIRDS, (count,), generator=generator)
    time = torch.arange(seconds * RATE) / RATE
    waves = 0.3 * torch.randn(count, len(time), generator=generator)
    for wave, bird in zip(waves, birds.tolist(), strict=True):
        sweep = 700 + 450 * bird + 200 * torch.sin(2 * torch.pi * 3 * time)
        wave += 0.4 * torch.sin(2 * torch.pi * sweep.cumsum(0) / RATE)
    return waves, birds


class Excerpts(Dataset[tuple[Tensor, Tensor]]):
    """Random excerpts of the recordings as logarithmic spectrograms."""

    def __init__(self, count: int, seconds: int, frames: int, mended: bool) -> None:
        self.waves, self.birds = record(count, seconds)
        self.frames = frames
        self.mended = mended
        self.window = torch.hann_window(512)

    def __len__(self) -> int:
        return len(self.waves)

    def spectrogram(self, wave: Tensor) -> Tensor:
        """Return the logarithmic power of a wave."""
        power = torch.stft(
            wave, 512, HOP, window=self.window, center=False, return_complex=True
        ).abs()
        return power.square().add(1e-6).log()

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        wave = self.waves[index]
        last = (len(wave) - 512) // HOP - self.frames
        first = int(torch.randint(0, last, ()))
        if self.mended:
            excerpt = wave[first * HOP : (first + self.frames - 1) * HOP + 512]
            return self.spectrogram(excerpt)[None], self.birds[index]
        spectrum = self.spectrogram(wave)
        return spectrum[None, :, first : first + self.frames], self.birds[index]


class CallNet(nn.Module):
    """Convolutions over time and pitch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 5, stride=2, padding=2),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(2 * width, BIRDS),
        )

    def forward(self, spectra: Tensor) -> Tensor:
        return self.layers(spectra)


def train(model: CallNet, loader: DataLoader, epochs: int) -> None:
    """Train the network."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(epochs):
        total = 0.0
        for spectra, birds in loader:
            loss = nn.functional.cross_entropy(model(spectra), birds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(loader):.4f}")


def main() -> None:
    """Train the recogniser of calls."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--count", type=int, default=160)
    args = parser.parse_args()
    torch.manual_seed(0)
    excerpts = Excerpts(args.count, seconds=30, frames=96, mended=args.mended)
    loader = DataLoader(
        excerpts, batch_size=16, shuffle=True, num_workers=1, persistent_workers=True
    )
    train(CallNet(12), loader, args.epochs)


if __name__ == "__main__":
    main()
