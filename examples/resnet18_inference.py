"""Run ResNet-18 over random images, the network written out in plain `torch.nn`.

The architecture is the published one (11,689,512 parameters), the weights are random: time and
work do not depend on them.

    python -m profstack run examples/resnet18_inference.py --size 128 --repeats 40
"""

import argparse

import torch
from torch import nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False),
                nn.BatchNorm2d(outputs),
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + self.shortcut(x))


class ResNet18(nn.Module):
    """A 7x7 stem, four stages of two blocks (64, 128, 256, 512 channels), and a classifier."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.layer1 = stage(64, 64, stride=1)
        self.layer2 = stage(64, 128, stride=2)
        self.layer3 = stage(128, 256, stride=2)
        self.layer4 = stage(256, 512, stride=2)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stem(images)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.pool(x).flatten(1))


def stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Two blocks, the first of which may halve height and width."""
    return nn.Sequential(
        BasicBlock(inputs, outputs, stride),
        BasicBlock(outputs, outputs, 1),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=128, help="height and width of the images")
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--every", type=int, default=10, help="print a checksum this often")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    model = ResNet18().eval()
    images = torch.randn(options.batch_size, 3, options.size, options.size)
    print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")

    steps = 0
    with torch.no_grad():
        for repeat in range(options.repeats):
            scores = model(images)
            steps += 1
            if repeat % options.every == 0 or repeat == options.repeats - 1:
                print(f"batch {repeat:4d}: highest score {scores.max().item():.6f}")
    print(f"steps: {steps}")


if __name__ == "__main__":
    main()
