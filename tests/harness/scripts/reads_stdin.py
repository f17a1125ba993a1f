"""Trains on numbers read from standard input, one batch per line."""

import probe

probe.first_line()

import sys

import torch

probe.seed(12)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
print("first", input())
steps = 0
for line in sys.stdin:
    x = torch.tensor([float(word) for word in line.split()])
    loss = (model(x) - x.sum()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
    steps += 1
probe.last_step(model=model, optimizer=optimizer)
print("steps", steps)
