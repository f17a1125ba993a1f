"""Ends with exit code 3 after its training; `finally` and exit callbacks must run."""

import probe

probe.first_line()

import atexit
import sys

import torch

atexit.register(print, "callback of the script")
probe.seed(13)
model = torch.nn.Linear(10, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps = 0
try:
    for _ in range(50):
        loss = model(torch.randn(8, 10)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item().hex())
        steps += 1
    probe.last_step(model=model, optimizer=optimizer)
    sys.exit(3)
finally:
    print("steps", steps)
