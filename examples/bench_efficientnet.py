"""EfficientNet-b0 on one image of 224 x 224, for `profstack bench`; all of it plain `torch.nn`.

The architecture is the published one (5,288,548 parameters; 0.386 G multiply-adds), the weights
are random: time and work do not depend on them. What a training drops at random (whole blocks,
and a fifth of the classifier's inputs) is nothing in inference; of both, the dropout is here.

    profstack bench examples/bench_efficientnet.py:efficientnet_b0
    profstack bench examples/bench_efficientnet.py:efficientnet_b0 --throughput
"""

import torch
from torch import nn

# The table of the publication: expansion, width of the kernel, stride, channels, blocks.
STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
STEM, HEAD = 32, 1280
IMAGE = (3, 224, 224)


def convolution(
    inputs: int, outputs: int, width: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    """A convolution that keeps height and width but for its stride, and its normalisation."""
    padding = width // 2
    return [
        nn.Conv2d(inputs, outputs, width, stride, padding, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]


class Excitation(nn.Module):
    """Scales every channel by a weight between 0 and 1, worked out from all channels' means."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.weights = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            nn.SiLU(inplace=True),
            nn.Conv2d(squeezed, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weights(x)


class InvertedBottleneck(nn.Module):
    """More channels by 1x1, a convolution of each channel by itself, excitation, and fewer again.

    Where nothing changes in shape, the block's input is added to what it gives.
    """

    def __init__(self, inputs: int, outputs: int, expansion: int, width: int, stride: int) -> None:
        super().__init__()
        inner = inputs * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers += [*convolution(inputs, inner, 1), nn.SiLU(inplace=True)]
        layers += [*convolution(inner, inner, width, stride, groups=inner), nn.SiLU(inplace=True)]
        # Squeezed to a quarter of the channels that the block began with.
        layers += [Excitation(inner, inputs // 4), *convolution(inner, outputs, 1)]
        self.layers = nn.Sequential(*layers)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x) if self.adds else self.layers(x)


class EfficientNetB0(nn.Module):
    """A 3x3 stem, seven stages of inverted bottlenecks, a 1x1 head, the mean, and a classifier."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(*convolution(3, STEM, 3, stride=2), nn.SiLU(inplace=True))
        self.stages = nn.Sequential()
        channels = STEM
        for expansion, width, stride, outputs, blocks in STAGES:
            stage = nn.Sequential()
            for number in range(blocks):
                step = stride if number == 0 else 1
                stage.append(InvertedBottleneck(channels, outputs, expansion, width, step))
                channels = outputs
            self.stages.append(stage)
        self.head = nn.Sequential(*convolution(channels, HEAD, 1), nn.SiLU(inplace=True))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(HEAD, classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.pool(self.head(self.stages(self.stem(images))))
        return self.classifier(features.flatten(1))


def efficientnet_b0(batch_size: int = 1) -> tuple[nn.Module, tuple[torch.Tensor]]:
    """The model, ready for inference, and its inputs: images of 3 x 224 x 224."""
    return EfficientNetB0().eval(), (torch.randn(batch_size, *IMAGE),)
