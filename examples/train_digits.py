"""Train a small convolutional network on the handwritten digits that scikit-learn ships.

A plain PyTorch script, the kind one writes first: a dataset, a model, an optimizer, a loop with
an evaluation after every epoch. It knows nothing of profstack; `profstack run` measures it as
it is:

    python -m profstack run examples/train_digits.py --epochs 5
"""

import argparse
import random

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split

TEST_IMAGES = 357


class Digits(Dataset):
    """The 1,797 grey 8x8 digits, shifted by up to one pixel while training."""

    def __init__(self, shift: bool) -> None:
        images, labels = load_digits(return_X_y=True)
        scaled = images.astype(np.float32).reshape(-1, 1, 8, 8) / 16.0
        self.images = torch.from_numpy(scaled)
        self.labels = torch.from_numpy(labels.astype(np.int64))
        self.shift = shift

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.images[index]
        if self.shift:
            image = shift_randomly(image)
        return image, self.labels[index]


def shift_randomly(image: torch.Tensor) -> torch.Tensor:
    """The image moved by -1, 0 or 1 pixels each way, the freed edge left black."""
    down, right = random.randint(-1, 1), random.randint(-1, 1)
    padded = nn.functional.pad(image, (1, 1, 1, 1))
    return padded[:, 1 - down : 9 - down, 1 - right : 9 - right]


class ConvNet(nn.Module):
    """Two convolution blocks and a small classifier: 8x8 -> 4x4 -> 2x2 -> 10 classes."""

    def __init__(self, width: int = 32, dropout: float = 0.25) -> None:
        super().__init__()
        self.features = nn.Sequential(
            conv_block(1, width),
            conv_block(width, 2 * width),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(2 * width * 2 * 2, 128),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(128, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images))


def conv_block(inputs: int, outputs: int) -> nn.Sequential:
    """Convolution, normalisation, activation, and a halving of height and width."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


def make_loaders(batch_size: int, seed: int) -> tuple[DataLoader, DataLoader]:
    """Training and test loaders over disjoint images; the split depends on the seed alone."""
    augmented, plain = Digits(shift=True), Digits(shift=False)
    sizes = [len(plain) - TEST_IMAGES, TEST_IMAGES]
    train, _ = random_split(augmented, sizes, torch.Generator().manual_seed(seed))
    _, test = random_split(plain, sizes, torch.Generator().manual_seed(seed))
    shuffler = torch.Generator().manual_seed(seed)
    return (
        DataLoader(train, batch_size=batch_size, shuffle=True, generator=shuffler),
        DataLoader(test, batch_size=128),
    )


def train_epoch(
    model: nn.Module,
    loader: DataLoader,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
) -> tuple[float, int]:
    """One pass over the training images: mean loss and number of optimizer steps."""
    model.train()
    criterion = nn.CrossEntropyLoss()
    total, steps = 0.0, 0
    for images, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        schedule.step()
        total += loss.item()
        steps += 1
    return total / steps, steps


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader) -> float:
    """Share of images the model names correctly."""
    model.eval()
    right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in loader)
    return right / len(loader.dataset)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    random.seed(options.seed)
    torch.manual_seed(options.seed)
    train_loader, test_loader = make_loaders(options.batch_size, options.seed)

    model = ConvNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=options.learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=options.learning_rate,
        total_steps=max(1, options.epochs * len(train_loader)),
    )
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{parameters:,} parameters, {len(train_loader)} steps per epoch")

    steps = 0
    for epoch in range(1, options.epochs + 1):
        loss, taken = train_epoch(model, train_loader, optimizer, schedule)
        steps += taken
        print(f"epoch {epoch}: loss {loss:.6f}, test accuracy {accuracy(model, test_loader):.4f}")
    print(f"steps: {steps}")


if __name__ == "__main__":
    main()
