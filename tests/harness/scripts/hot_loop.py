"""A hot loop of plain Python inside every step."""

import probe

probe.first_line()

import torch


def checksum(numbers):
    total = 0
    for _ in range(20):
        for number in numbers:
            total = (total * 31 + int(number * 1000)) % 65521
    return total


probe.seed(18)
model = torch.nn.Linear(32, 32)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps = 0
for _ in range(40):
    x = torch.randn(16, 32)
    loss = (model(x) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex(), checksum(x.flatten().tolist()))
    steps += 1
probe.last_step(model=model, optimizer=optimizer)
print("steps", steps)
