"""A training with four faults; with the argument "mended" it does the same work without them."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MENDED = "mended" in sys.argv
BATCH, STEPS = 64, 120


def wave(number):  # @slow
    values, value = [], float(number)
    for at in range(1_200):
        value = (value * 1.7 + at) % 11.0
        if at % 75 == 0:
            values.append(value)
    return torch.tensor(values)


class Signals(Dataset):
    def __init__(self):
        self.waves = [wave(number) for number in range(64)] if MENDED else None

    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, index):
        return self.waves[index % 64] if self.waves else wave(index % 64), index % 4


def hits(scores, labels):
    best, count = scores.argmax(1), 0
    if MENDED:
        return int((best == labels).sum())
    for at in range(len(labels)):
        for _ in range(4):
            if best[at].item() == labels[at].item():  # @item
                count += 1
    return count // 4


torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(120)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=MENDED)
seen = 0
for waves, labels in DataLoader(Signals(), batch_size=BATCH):
    scores = model(waves)
    loss = nn.functional.cross_entropy(scores, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # @step
    seen += hits(scores, labels)
