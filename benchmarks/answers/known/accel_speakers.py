"""Learn speaker embeddings from synthetic voices with accelerate.

A voice is a fundamental with formants of its own.  Embeddings of one speaker
are pulled together and those of different speakers pushed apart.
"""
import argparse
import time

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Voices(Dataset):
    """Spectral envelopes over time, several utterances of every speaker."""

    def __init__(self, batches, speakers, utterances, bins=64, frames=80, seed=25):
        self.generator = torch.Generator().manual_seed(seed)
        self.bins, self.frames = bins, frames
        self.formants = torch.rand(200, 4, generator=self.generator) * bins
        groups = [torch.randperm(200, generator=self.generator)[:speakers]
                  for _ in range(batches)]
        self.speakers = torch.cat([group.repeat_interleave(utterances) for group in groups])
        self.noise = torch.randn(64, bins, frames, generator=self.generator) * 0.3

    def __len__(self):
        return len(self.speakers)

    def __getitem__(self, index):
        speaker = int(self.speakers[index])
        wobble = torch.sin(torch.arange(self.frames) / (7 + index % 5)) * 1.5
        centres = self.formants[speaker][:, None] + wobble
        axis = torch.arange(self.bins).view(1, -1, 1)
        envelope = torch.exp(-((axis - centres[:, None]) / 2.5) ** 2).sum(0)
        return envelope + self.noise[index % 64], speaker


class SpeakerEncoder(nn.Module):
    def __init__(self, bins=64, width=96, dim=64):
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv1d(bins, width, 5, padding=2), nn.ReLU(),
            nn.Conv1d(width, width, 3, padding=2, dilation=2), nn.ReLU(),
            nn.Conv1d(width, width, 3, padding=3, dilation=3), nn.ReLU(),
        )
        self.project = nn.Linear(2 * width, dim)

    def forward(self, spectra):
        frames = self.convolutions(spectra)
        return self.project(torch.cat([frames.mean(-1), frames.std(-1)], dim=1))


class PairLoss(nn.Module):
    """Cosine embedding loss averaged over all pairs of a batch."""

    def __init__(self, margin=0.2):
        super().__init__()
        self.margin = margin

    def forward(self, embeddings, speakers):
        losses = []
        for i in range(len(speakers)):
            for j in range(i + 1, len(speakers)):
                similarity = F.cosine_similarity(embeddings[i], embeddings[j], dim=0)
                if speakers[i] == speakers[j]:
                    losses.append((1 - similarity) ** 2)
                else:
                    losses.append(F.relu(similarity - self.margin) ** 2)
        return torch.stack(losses).mean()


class MatrixPairLoss(PairLoss):
    def forward(self, embeddings, speakers):
        unit = F.normalize(embeddings, dim=1)
        i, j = torch.triu_indices(len(speakers), len(speakers), offset=1)
        similarity = (unit @ unit.T)[i, j]
        apart = F.relu(similarity - self.margin) ** 2
        return torch.where(speakers[i] == speakers[j], (1 - similarity) ** 2, apart).mean()


def train(accelerator, encoder, criterion, optimizer, loader):
    encoder.train()
    start = time.perf_counter()
    for step, (spectra, speakers) in enumerate(loader, start=1):
        loss = criterion(encoder(spectra), speakers)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            accelerator.print(f"step {step}: loss {loss.item():.4f} "
                              f"({time.perf_counter() - start:.1f} s)")
    accelerator.print(f"last loss {loss.item():.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--speakers", type=int, default=8, help="speakers in a batch")
    parser.add_argument("--utterances", type=int, default=3, help="utterances of a speaker")
    parser.add_argument("--steps", type=int, default=350)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    set_seed(0)
    accelerator = Accelerator(cpu=True)
    dataset = Voices(args.steps, args.speakers, args.utterances)
    loader = DataLoader(dataset, batch_size=args.speakers * args.utterances)
    encoder = SpeakerEncoder()
    optimizer = torch.optim.Adam(encoder.parameters(), lr=args.lr)
    encoder, optimizer, loader = accelerator.prepare(encoder, optimizer, loader)
    criterion = MatrixPairLoss() if args.mended else PairLoss()
    train(accelerator, encoder, criterion, optimizer, loader)


if __name__ == "__main__":
    main()
