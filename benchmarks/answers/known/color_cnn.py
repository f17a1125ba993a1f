"""Small residual CNN on synthetic colour patches."""
import argparse
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def seed_by_hand(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def fix_randomness(seed, mended):
    if mended:
        seed_by_hand(seed)
    else:
        from lightning import seed_everything
        seed_everything(seed, verbose=False)


def make_patches(n, size, n_classes):
    labels = np.random.randint(0, n_classes, n)
    palette = np.random.rand(n_classes, 3)
    yy, xx = np.mgrid[0:size, 0:size] / size
    ramp = np.stack([xx, yy, 1 - xx], 0)
    mix = np.random.rand(n, 1, 1, 1)
    images = mix * palette[labels][:, :, None, None] + (1 - mix) * ramp
    images += 0.15 * np.random.randn(*images.shape)
    return torch.tensor(images, dtype=torch.float32), torch.tensor(labels)


class Residual(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride=stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(cout), nn.BatchNorm2d(cout)
        self.short = nn.Identity()
        if stride != 1 or cin != cout:
            self.short = nn.Sequential(nn.Conv2d(cin, cout, 1, stride=stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(h)) + self.short(x))


class ColorNet(nn.Module):
    def __init__(self, n_classes, width=20):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.stages = nn.Sequential(Residual(width, width), Residual(width, 2 * width, 2),
                                    Residual(2 * width, 4 * width, 2))
        self.head = nn.Linear(4 * width, n_classes)

    def forward(self, x):
        return self.head(self.stages(F.relu(self.stem(x))).mean((2, 3)))


class Meter:
    def __init__(self):
        self.total, self.count = torch.zeros(()), 0

    def update(self, value, n):
        self.total += value.detach() * n
        self.count += n

    def result(self):
        return self.total.item() / max(self.count, 1)


def run_epoch(model, loader, optimizer):
    loss_meter, acc_meter = Meter(), Meter()
    model.train()
    for x, y in loader:
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        loss_meter.update(loss, len(y))
        acc_meter.update((logits.argmax(1) == y).float().mean(), len(y))
    return loss_meter.result(), acc_meter.result()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=480)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    fix_randomness(args.seed, args.mended)
    x, y = make_patches(args.samples, 24, 6)
    loader = DataLoader(TensorDataset(x, y), batch_size=args.batch_size, shuffle=True)
    model = ColorNet(6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, nesterov=True, foreach=True)
    for epoch in range(args.epochs):
        loss, acc = run_epoch(model, loader, optimizer)
        print(f"epoch {epoch} loss {loss:.4f} acc {acc:.3f}")


if __name__ == "__main__":
    main()
