"""Gradient accumulation: four backward passes for one optimizer step."""

import probe

probe.first_line()

import torch
from torch import nn

probe.seed(4)
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
steps = 0
for micro in range(240):
    loss = criterion(model(torch.randn(16, 32)), torch.randint(4, (16,))) / 4
    loss.backward()
    print(loss.item().hex())
    if micro % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
probe.last_step(model=model, optimizer=optimizer)
print("steps", steps)
