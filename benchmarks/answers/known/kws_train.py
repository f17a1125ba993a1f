"""Keyword spotting on short 4 kHz clips with a 1-D convolutional network."""
import argparse
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

KEYWORDS = ["yes", "no", "up", "down", "left", "right", "stop", "go"]


def synthesize_archive(path, n_clips, n_samples, seed=0):
    rng = np.random.default_rng(seed)
    t = np.arange(n_samples) / 4000.0
    labels = rng.integers(0, len(KEYWORDS), n_clips)
    waves = np.empty((n_clips, n_samples), dtype=np.int16)
    for i, y in enumerate(labels):
        f0 = 150 + 90 * y + rng.normal(0, 8)
        env = np.exp(-((t - 0.25) ** 2) / 0.01)
        tone = np.sin(2 * np.pi * f0 * t) + 0.4 * np.sin(4 * np.pi * f0 * t)
        waves[i] = (6000 * env * tone + 900 * rng.standard_normal(n_samples)).astype(np.int16)
    np.savez_compressed(path, wave=waves, label=labels)


class KeywordClips(Dataset):
    def __init__(self, path, shift=200, in_memory=False):
        self.clips = np.load(path)
        if in_memory:
            self.clips = {k: self.clips[k] for k in self.clips.files}
        self.shift = shift
        self.rng = np.random.default_rng(1)
        self.n = len(self.clips["label"])

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        wave = self.clips["wave"][i].astype(np.float32) / 32768.0
        wave = np.roll(wave, self.rng.integers(-self.shift, self.shift))
        wave = wave * self.rng.uniform(0.7, 1.3)
        return torch.from_numpy(wave.astype(np.float32)), int(self.clips["label"][i])


class Block(nn.Module):
    def __init__(self, cin, cout, k, stride):
        super().__init__()
        self.conv = nn.Conv1d(cin, cout, k, stride=stride, padding=k // 2, bias=False)
        self.bn = nn.BatchNorm1d(cout)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))


class M5(nn.Module):
    def __init__(self, n_classes, width=32):
        super().__init__()
        self.blocks = nn.Sequential(
            Block(1, width, 41, 4),
            Block(width, width, 9, 2),
            Block(width, 2 * width, 5, 2),
            Block(2 * width, 2 * width, 3, 2),
        )
        self.fc = nn.Linear(2 * width, n_classes)

    def forward(self, wave):
        h = self.blocks(wave.unsqueeze(1))
        return self.fc(h.mean(-1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)

    with tempfile.TemporaryDirectory() as root:
        path = os.path.join(root, "keywords.npz")
        synthesize_archive(path, n_clips=240, n_samples=2000)
        train_set = KeywordClips(path, in_memory=args.mended)
        loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, drop_last=True)
        model = M5(len(KEYWORDS))
        optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
        for epoch in range(args.epochs):
            model.train()
            correct, seen, running = 0, 0, 0.0
            for wave, y in loader:
                logits = model(wave)
                loss = F.cross_entropy(logits, y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                running += loss.item() * len(y)
                correct += (logits.argmax(1) == y).sum().item()
                seen += len(y)
            print(f"epoch {epoch}: loss {running / seen:.4f} acc {correct / seen:.3f}")


if __name__ == "__main__":
    main()
