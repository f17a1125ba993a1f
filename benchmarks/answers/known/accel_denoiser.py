"""Train a denoiser for microscope pictures with accelerate.

The pictures lie in a folder as PNG files (drawn by the program) and are read
by the workers of a data loader; noise is added while training.
"""
import argparse
import os
import tempfile
import time

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler


def draw_pictures(folder, count, size, seed=37):
    """Bright round cells with dark kernels on a grey ground."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:size, :size]
    for number in range(count):
        picture = np.full((size, size), 60.0)
        for _ in range(rng.integers(3, 7)):
            cx, cy = rng.integers(0, size, 2)
            radius = rng.integers(5, 12)
            distance = np.hypot(x - cx, y - cy)
            picture[distance < radius] = rng.integers(130, 220)
            picture[distance < radius / 3] = rng.integers(20, 60)
        Image.fromarray(picture.astype(np.uint8)).save(
            os.path.join(folder, f"cells{number:04d}.png"))


class CellPictures(Dataset):
    def __init__(self, folder):
        self.paths = sorted(os.path.join(folder, name) for name in os.listdir(folder))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with Image.open(self.paths[index]) as picture:
            pixels = np.asarray(picture, dtype=np.float32)
        return torch.from_numpy(pixels / 255)[None]


class Denoiser(nn.Module):
    """Predicts the noise, which is taken off the picture."""

    def __init__(self, width=8, layers=3):
        super().__init__()
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.middle = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1)
                                    for _ in range(layers))
        self.last = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, noisy):
        x = F.relu(self.first(noisy))
        for convolution in self.middle:
            x = F.relu(convolution(x)) + x
        return noisy - self.last(x)


def build_loader(folder, args):
    pictures = CellPictures(folder)
    order = RandomSampler(pictures, generator=torch.Generator().manual_seed(40))
    return DataLoader(pictures, batch_size=args.batch_size, sampler=order,
                      num_workers=args.workers, drop_last=True,
                      persistent_workers=args.keep_workers)


def train(accelerator, model, optimizer, schedule, loader, epochs, strength):
    generator = torch.Generator().manual_seed(38)
    start = time.perf_counter()
    model.train()
    for epoch in range(1, epochs + 1):
        total = 0.0
        for clean in loader:
            noise = torch.randn(clean.shape, generator=generator) * strength
            loss = F.mse_loss(model(clean + noise), clean)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            total += loss.item()
        schedule.step()
        if epoch % 15 == 0:
            accelerator.print(f"epoch {epoch}: loss {total / len(loader):.5f} "
                              f"({time.perf_counter() - start:.1f} s)")


@torch.no_grad()
def gain(model, loader, strength):
    """By how many decibels the pictures get better."""
    generator = torch.Generator().manual_seed(39)
    model.eval()
    before = after = 0.0
    for clean in loader:
        noisy = clean + torch.randn(clean.shape, generator=generator) * strength
        before += F.mse_loss(noisy, clean).item()
        after += F.mse_loss(model(noisy), clean).item()
    return 10 * np.log10(before / after)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, default=48)
    parser.add_argument("--size", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=75)
    parser.add_argument("--strength", type=float, default=0.15)
    parser.add_argument("--keep-workers", action="store_true")
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    args.keep_workers = args.keep_workers or args.mended
    set_seed(0)
    accelerator = Accelerator(cpu=True)
    with tempfile.TemporaryDirectory() as folder:
        draw_pictures(folder, args.pictures, args.size)
        model = Denoiser()
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
        model, optimizer, loader = accelerator.prepare(
            model, optimizer, build_loader(folder, args))
        train(accelerator, model, optimizer, schedule, loader, args.epochs, args.strength)
        accelerator.print(f"gain {gain(model, loader, args.strength):.2f} dB")


if __name__ == "__main__":
    main()
