"""A model that is only asked, with three faults; with the argument "mended" without them."""

import sys
from contextlib import nullcontext

import torch
from torch import nn

MENDED = "mended" in sys.argv


class Whitening(nn.Module):
    def forward(self, inputs):
        flat = inputs.flatten(2)
        covariance = flat @ flat.transpose(1, 2) + torch.eye(flat.shape[1])
        if MENDED:
            return (covariance @ flat).view_as(inputs)
        return (torch.linalg.inv(covariance) @ flat).view_as(inputs)


torch.manual_seed(0)
model = nn.Sequential(
    *(nn.Conv2d(3, 96, 3, padding=1), nn.BatchNorm2d(96), nn.Dropout(0.2)),
    *(Whitening(), nn.Conv2d(96, 8, 3, padding=1)),
)
if MENDED:
    model.eval()
images = torch.randn(8, 3, 12, 12)
total = 0.0
with torch.inference_mode() if MENDED else nullcontext():
    for _ in range(100):
        total += model(images).mean().item()  # @call
