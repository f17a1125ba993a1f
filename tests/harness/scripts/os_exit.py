"""Ends by os._exit: no exit callback runs, nothing is flushed but what the script flushed."""

import probe

probe.first_line()

import os

import torch

probe.seed(30)
model = torch.nn.Linear(10, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps = 0
for _ in range(50):
    loss = model(torch.randn(8, 10)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex(), flush=True)
    steps += 1
probe.last_step(model=model, optimizer=optimizer)
print("steps", steps, flush=True)
os._exit(7)
