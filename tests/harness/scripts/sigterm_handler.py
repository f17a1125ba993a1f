"""Sends itself SIGTERM, as a cluster does, and saves its state from its own handler."""

import probe

probe.first_line()

import os
import signal

import torch

asked = []
signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
probe.seed(26)
model = torch.nn.Linear(10, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps = 0
while not asked:
    loss = model(torch.randn(8, 10)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
    steps += 1
    if steps == 50:
        os.kill(os.getpid(), signal.SIGTERM)
with open("state.txt", "w") as file:
    file.write(repr([p.tolist() for p in model.parameters()]))
probe.last_step(model=model, optimizer=optimizer)
print("steps", steps)
