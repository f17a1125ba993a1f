"""Train a small CNN that sorts photographs of metal plates into defect classes.

The plates are drawn by the program itself: a brushed background with one of
five kinds of defect on it.  Images are stored at camera size and the network
sees them at 64 x 64.
"""
import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = ("none", "scratch", "dent", "stain", "hole")
MEAN = torch.tensor([0.45, 0.45, 0.47]).view(3, 1, 1)
STD = torch.tensor([0.21, 0.21, 0.20]).view(3, 1, 1)


def draw_plate(label, size, generator):
    """One RGB uint8 picture of a plate with the defect `label`."""
    strips = torch.randint(90, 150, (1, 1, size), generator=generator)
    image = strips.expand(3, size, size).clone().float()
    image += torch.randn(1, size, size, generator=generator) * 12
    x, y = torch.randint(size // 4, 3 * size // 4, (2,), generator=generator).tolist()
    if label == 1:
        image[:, y - 2:y + 2, x // 2:x + size // 5] += 70
    elif label == 2:
        image[:, y - 25:y + 25, x - 25:x + 25] -= 35
    elif label == 3:
        image[0, y - 30:y + 30, x - 20:x + 20] += 50
    elif label == 4:
        image[:, y - 12:y + 12, x - 12:x + 12] = 5
    return image.clamp(0, 255).to(torch.uint8)


class PlateImages(Dataset):
    """Plates at camera size with their labels, prepared for the network."""

    def __init__(self, count, camera_size=240, input_size=64, keep_prepared=False, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.input_size = input_size
        self.labels = torch.randint(0, len(CLASSES), (count,), generator=generator).tolist()
        self.images = [draw_plate(label, camera_size, generator) for label in self.labels]
        self.prepared = [self.prepare(image) for image in self.images] if keep_prepared else None

    def __len__(self):
        return len(self.labels)

    def prepare(self, image):
        scaled = image.float().div(255).unsqueeze(0)
        scaled = F.interpolate(scaled, size=(self.input_size, self.input_size), mode="bicubic",
                               antialias=True, align_corners=False)
        return (scaled[0].clamp(0, 1) - MEAN) / STD

    def __getitem__(self, index):
        if self.prepared is not None:
            return self.prepared[index], self.labels[index]
        return self.prepare(self.images[index]), self.labels[index]


def conv_block(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    )


class PlateNet(nn.Module):
    def __init__(self, width=16, classes=len(CLASSES)):
        super().__init__()
        self.features = nn.Sequential(
            conv_block(3, width),
            conv_block(width, 2 * width),
            conv_block(2 * width, 4 * width),
        )
        self.classifier = nn.Linear(4 * width, classes)

    def forward(self, images):
        features = self.features(images)
        return self.classifier(features.mean(dim=(2, 3)))


def train_epoch(model, loader, optimizer):
    model.train()
    total, seen = 0.0, 0
    for images, labels in loader:
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(labels)
        seen += len(labels)
    return total / seen


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=480)
    parser.add_argument("--epochs", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--mended", action="store_true")
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    dataset = PlateImages(args.images, keep_prepared=args.mended)
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = PlateNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        start = time.perf_counter()
        loss = train_epoch(model, loader, optimizer)
        print(f"epoch {epoch}: loss {loss:.4f} ({time.perf_counter() - start:.1f} s)")


if __name__ == "__main__":
    main()
