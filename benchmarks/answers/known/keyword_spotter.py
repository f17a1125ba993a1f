"""Train a keyword spotter on one-second synthetic utterances.

A keyword is a sequence of three chirps.  Log-mel features are computed inside
the model, a small convolutional network classifies them.
"""
import argparse
import math
import time

import torch
import torch.nn.functional as F
from torch import nn

RATE = 16_000


def make_utterances(count, keywords, seed=7):
    """Waveforms (count, RATE) with the keyword spoken in each."""
    generator = torch.Generator().manual_seed(seed)
    chirps = torch.randint(200, 3000, (keywords, 3, 2), generator=generator).float()
    labels = torch.randint(0, keywords, (count,), generator=generator)
    part = RATE // 4
    ramp = torch.arange(part) / part
    waves = torch.randn(count, RATE, generator=generator) * 0.1
    for row, label in enumerate(labels.tolist()):
        offset = int(torch.randint(0, RATE - 3 * part, (1,), generator=generator))
        for index, (low, high) in enumerate(chirps[label]):
            phase = torch.cumsum(low + (high - low) * ramp, 0) * 2 * math.pi / RATE
            begin = offset + index * part
            waves[row, begin:begin + part] += torch.sin(phase) * 0.5
    return waves, labels


def hz_to_mel(hz):
    return 2595.0 * math.log10(1.0 + hz / 700.0)


def mel_to_hz(mel):
    return 700.0 * (10.0 ** (mel / 2595.0) - 1.0)


def mel_filterbank(n_mels, n_fft, rate):
    """Triangular filters, (n_mels, n_fft // 2 + 1)."""
    bins = n_fft // 2 + 1
    bank = torch.zeros(n_mels, bins)
    top = hz_to_mel(rate / 2)
    edges = [mel_to_hz(top * i / (n_mels + 1)) for i in range(n_mels + 2)]
    for m in range(n_mels):
        low, centre, high = edges[m:m + 3]
        for k in range(int(low * n_fft / rate), min(bins, int(high * n_fft / rate) + 2)):
            hz = k * rate / n_fft
            rising = (hz - low) / (centre - low)
            falling = (high - hz) / (high - centre)
            bank[m, k] = max(0.0, min(rising, falling))
    return bank


class LogMel(nn.Module):
    def __init__(self, n_mels=80, n_fft=2048, hop=512, rate=RATE, keep_bank=False):
        super().__init__()
        self.n_mels, self.n_fft, self.hop, self.rate = n_mels, n_fft, hop, rate
        self.register_buffer("window", torch.hann_window(n_fft))
        bank = mel_filterbank(n_mels, n_fft, rate) if keep_bank else None
        self.register_buffer("bank", bank, persistent=False)

    def forward(self, waves):
        spectrum = torch.stft(waves, self.n_fft, self.hop, window=self.window,
                              return_complex=True)
        power = spectrum.real.square() + spectrum.imag.square()
        bank = self.bank
        if bank is None:
            bank = mel_filterbank(self.n_mels, self.n_fft, self.rate).to(waves.device)
        return torch.log(torch.matmul(bank, power) + 1e-5)


class Spotter(nn.Module):
    def __init__(self, keywords, n_mels=80, width=24, keep_bank=False):
        super().__init__()
        self.features = LogMel(n_mels, keep_bank=keep_bank)
        self.body = nn.Sequential(
            nn.Conv1d(n_mels, width * 2, 5, stride=2), nn.ReLU(),
            nn.Conv1d(width * 2, width * 2, 5), nn.ReLU(),
            nn.Conv1d(width * 2, width * 2, 3), nn.ReLU(),
        )
        self.classifier = nn.Linear(width * 2, keywords)

    def forward(self, waves):
        features = self.features(waves)
        return self.classifier(self.body(features).mean(-1))


def train(model, waves, labels, args):
    generator = torch.Generator().manual_seed(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    start = time.perf_counter()
    for step in range(1, args.steps + 1):
        rows = torch.randint(0, len(waves), (args.batch_size,), generator=generator)
        loss = F.cross_entropy(model(waves[rows]), labels[rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 200 == 0:
            print(f"step {step}: loss {loss.item():.4f} ({time.perf_counter() - start:.1f} s)")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--utterances", type=int, default=1000)
    parser.add_argument("--keywords", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    waves, labels = make_utterances(args.utterances, args.keywords)
    model = Spotter(args.keywords, keep_bank=args.mended)
    train(model, waves, labels, args)


if __name__ == "__main__":
    main()
