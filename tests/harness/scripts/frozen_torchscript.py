"""A frozen TorchScript model, as it is deployed: it has neither a mode nor parameters left."""

import probe

probe.first_line()

import torch
from torch import nn

probe.seed(19)
net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
net.append(nn.Linear(8, 10)).eval()
steps = 0
with torch.no_grad():
    model = torch.jit.freeze(torch.jit.trace(net, torch.randn(1, 3, 32, 32)))
    assert not hasattr(model, "training")
    for _ in range(60):
        print(model(torch.randn(4, 3, 32, 32)).sum().item().hex())
        steps += 1
probe.last_step(model=net)
print("steps", steps)
