"""ResNet-18 on one image of 1024 x 2048, for `profstack bench`; all of it plain `torch.nn`.

The architecture is the published one (11,689,512 parameters; 1.814 G multiply-adds at 224 x 224),
the weights are random: time and work do not depend on them.

    profstack bench examples/bench_resnet18.py:resnet18
    profstack bench examples/bench_resnet18.py:resnet18 --warmup 10 --repeat 300
"""

import torch
from torch import nn

# Channels of the four stages, of two blocks each; all but the first halve height and width.
STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
IMAGE = (3, 1024, 2048)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, and the block's input added to what they give."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(outputs))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.convolutions(x) + self.shortcut(x))


class ResNet18(nn.Module):
    """A 7x7 stem that quarters height and width, four stages, the mean, and a classifier."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.stages = nn.Sequential()
        channels = 64
        for outputs, stride in STAGES:
            first = BasicBlock(channels, outputs, stride)
            self.stages.append(nn.Sequential(first, BasicBlock(outputs, outputs, 1)))
            channels = outputs
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.pool(self.stages(self.stem(images)))
        return self.classifier(features.flatten(1))


def resnet18(batch_size: int = 1) -> tuple[nn.Module, tuple[torch.Tensor]]:
    """The model, ready for inference, and its inputs: images of 3 x 1024 x 2048."""
    return ResNet18().eval(), (torch.randn(batch_size, *IMAGE),)
