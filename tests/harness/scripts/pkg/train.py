"""Run as `-m pkg.train`: relative imports and `__spec__` must work."""

import probe

probe.first_line()

import sys

import torch

from .data import batch

probe.seed(10)
print(__name__, __spec__.name, __package__, sys.argv[1:])
model = torch.nn.Sequential(torch.nn.Linear(12, 12), torch.nn.Sigmoid(), torch.nn.Linear(12, 12))
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
steps = 0
for _ in range(50):
    x = batch()
    loss = (model(x) - x).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
    steps += 1
probe.last_step(model=model, optimizer=optimizer)
print("steps", steps)
