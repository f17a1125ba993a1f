"""A training that waits for its log with every step, and for longer the more it has written."""

import time

import torch
from torch import nn

model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
inputs = torch.randn(64, 64)
for step in range(160):
    loss = model(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(2e-4 * step)
