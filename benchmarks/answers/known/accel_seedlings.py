"""Tells seedlings apart from photos with accelerate, in the time slots of a shared cluster."""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from PIL import Image, ImageEnhance
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

SPECIES = 6
SIDE = 48


def take_photo(species: int, rng: np.random.Generator, side: int = 160) -> bytes:
    """Draw a seedling and return it as a JPEG file."""
    grid = np.linspace(-1, 1, side)
    across, down = np.meshgrid(grid, grid)
    angle = np.arctan2(down, across) + rng.uniform(0, 2 * np.pi)
    leaf = np.hypot(across, down) < 0.45 + 0.25 * np.cos((species + 2) * angle)
    soil = rng.normal(90, 25, (side, side, 3))
    soil[leaf] = np.array([60, 120 + 12 * species, 50]) + rng.normal(0, 15, (leaf.sum(), 3))
    file = io.BytesIO()
    Image.fromarray(np.clip(soil, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


class Seedlings(Dataset[tuple[Tensor, int]]):
    """Photos of seedlings, each turned and lit a little differently."""

    def __init__(self, count: int, seed: int, vary: bool = True) -> None:
        rng = np.random.default_rng(seed)
        self.species = rng.integers(0, SPECIES, count).tolist()
        self.files = [take_photo(species, rng) for species in self.species]
        self.vary = vary

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        photo = Image.open(io.BytesIO(self.files[index])).convert("RGB")
        if self.vary:
            rng = np.random.default_rng(index)
            photo = photo.rotate(rng.uniform(-40, 40), Image.Resampling.BILINEAR)
            photo = ImageEnhance.Brightness(photo).enhance(rng.uniform(0.7, 1.3))
        photo = photo.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(np.array(photo)).permute(2, 0, 1).float()
        return pixels / 127.5 - 1, self.species[index]


def build_model() -> nn.Sequential:
    """Build a small convolutional classifier."""
    layers: list[nn.Module] = []
    for before, after in ((3, 24), (24, 48), (48, 64)):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1)]
        layers += [nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, SPECIES))


class Slot:
    """One time slot of the cluster: picks the work up, goes on, and saves it."""

    def __init__(self, data: Seedlings, folder: Path, args: argparse.Namespace) -> None:
        self.accelerator = Accelerator(cpu=True)
        self.folder = folder
        self.args = args
        model = build_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        order = torch.Generator().manual_seed(11)
        loader = DataLoader(
            data, batch_size=args.batch, shuffle=True, drop_last=True, generator=order
        )
        prepared = self.accelerator.prepare(model, optimizer, loader)
        self.model, self.optimizer, self.loader = prepared

    def learn(self, photos: Tensor, species: Tensor) -> Tensor:
        """Take one step of the optimizer."""
        loss = nn.functional.cross_entropy(self.model(photos), species)
        self.accelerator.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def run(self, done: int) -> int:
        """Go on after the steps that are done and return how many are done then."""
        if done:
            self.accelerator.load_state(str(self.folder))
        self.model.train()
        last = min(done + self.args.slot, len(self.loader))
        total = torch.zeros(())
        loader, first = self.loader, 0
        if self.args.mended:
            loader, first = self.accelerator.skip_first_batches(self.loader, done), done
        for step, (photos, species) in enumerate(loader, start=first):
            if step < done:
                continue
            total += self.learn(photos, species)
            if step + 1 == last:
                break
        self.accelerator.print(f"step {last}: loss {total.item() / (last - done):.4f}")
        self.accelerator.save_state(str(self.folder))
        return last


@torch.no_grad()
def evaluate(model: nn.Module, data: Seedlings) -> float:
    """Return the share of seedlings told rightly."""
    model.eval()
    right = 0
    for photos, species in DataLoader(data, batch_size=64):
        right += int((model(photos).argmax(dim=1) == species).sum())
    return right / len(data)


def main() -> None:
    """Train on the command line's settings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--photos", type=int, default=1440)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--slot", type=int, default=10)
    args = parser.parse_args()
    set_seed(0)
    data = Seedlings(args.photos, seed=21)
    with tempfile.TemporaryDirectory() as folder:
        done = 0
        while done < args.photos // args.batch:
            slot = Slot(data, Path(folder), args)
            done = slot.run(done)
    right = evaluate(slot.model, Seedlings(200, seed=22, vary=False))
    print(f"accuracy on new seedlings {right:.3f}")


if __name__ == "__main__":
    main()
