"""A bare inference loop in eval mode, no optimizer anywhere."""

import probe

probe.first_line()

import torch
from torch import nn

probe.seed(28)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(2),
    nn.Flatten(),
    nn.Linear(32, 5),
).eval()
steps = 0
with torch.no_grad():
    for _ in range(60):
        print(model(torch.randn(2, 3, 16, 16)).sum().item().hex())
        steps += 1
probe.last_step(model=model)
print("steps", steps)
