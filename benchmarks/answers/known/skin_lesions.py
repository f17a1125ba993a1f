"""Imbalanced image classification with a weighted sampler over JPEG files."""
import argparse
import os
import shutil
import tempfile
from collections import Counter

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

CLASSES = ["nevus", "keratosis", "melanoma"]
SHARES = [0.8, 0.14, 0.06]


def write_images(root, n_images, size=448, originals=6, seed=0):
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[0:size, 0:size] / size - 0.5
    number = 0
    for c, (name, share) in enumerate(zip(CLASSES, SHARES)):
        folder = os.path.join(root, name)
        os.makedirs(folder)
        masters = []
        for k in range(originals):
            blob = np.exp(-(xx**2 + (1 + 0.5 * c) * yy**2) / (0.03 + 0.02 * c))
            rgb = np.stack([210 - 90 * blob, 160 - (60 + 30 * c) * blob, 140 - 70 * blob], -1)
            rgb += rng.normal(0, 10, rgb.shape)
            masters.append(os.path.join(folder, f"{number:05d}.jpg"))
            Image.fromarray(rgb.clip(0, 255).astype(np.uint8)).save(masters[-1], quality=90)
            number += 1
        for k in range(int(n_images * share) - originals):
            shutil.copy(masters[k % originals], os.path.join(folder, f"{number:05d}.jpg"))
            number += 1


class LesionFolder(Dataset):
    def __init__(self, root, size=48, train=True, seed=0):
        self.samples = [(os.path.join(root, c, f), i) for i, c in enumerate(CLASSES)
                        for f in sorted(os.listdir(os.path.join(root, c)))]
        self.size, self.train = size, train
        self.rng = np.random.default_rng(seed)

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        path, label = self.samples[i]
        img = Image.open(path).convert("RGB").resize((self.size, self.size), Image.BILINEAR)
        x = torch.from_numpy(np.asarray(img).copy()).permute(2, 0, 1).float() / 255
        if self.train and self.rng.random() < 0.5:
            x = x.flip(-1)
        return (x - 0.6) / 0.2, label


def balanced_sampler(dataset, num_samples, mended):
    if mended:
        labels = [label for _, label in dataset.samples]
    else:
        labels = [dataset[i][1] for i in range(len(dataset))]
    counts = Counter(labels)
    print("class counts:", {CLASSES[k]: v for k, v in sorted(counts.items())})
    weights = [1.0 / counts[label] for label in labels]
    return WeightedRandomSampler(weights, num_samples, generator=torch.Generator().manual_seed(0))


class LesionNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        layers, cin = [], 3
        for k in range(4):
            cout = width * min(2**k, 4)
            layers += [nn.Conv2d(cin, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU(), nn.MaxPool2d(2)]
            cin = cout
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(cin, len(CLASSES))

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=1200)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as root:
        write_images(root, args.images)
        train_set = LesionFolder(root)
        sampler = balanced_sampler(train_set, args.steps * args.batch_size, args.mended)
        loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)
        model = LesionNet()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for step, (x, y) in enumerate(loader, 1):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                print(f"step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
