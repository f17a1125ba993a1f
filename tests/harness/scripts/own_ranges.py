"""Ranges of the script's own around epochs, which begin under one slice and end under another.

A profiler that is stopped and started again inside an open range corrupts memory: torch writes
the range's end into the first profiler's freed event.
"""

import probe

probe.first_line()

import gc

import torch
from torch.profiler import record_function

probe.seed(35)
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps = 0
for epoch in range(30):
    with record_function(f"epoch {epoch}"):
        for _ in range(2 + epoch % 5):
            with record_function("step"):
                loss = model(torch.randn(8, 16)).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(loss.item().hex())
                steps += 1
    # Brings damage to light near where it is done.
    if epoch % 6 == 0:
        gc.collect()
probe.last_step(model=model, optimizer=optimizer)
print("steps", steps)
