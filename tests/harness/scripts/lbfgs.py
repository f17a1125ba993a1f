"""LBFGS, whose step calls the closure, and so the model, several times."""

import probe

probe.first_line()

import torch

probe.seed(5)
x = torch.randn(64, 8)
y = x.pow(2).sum(1, keepdim=True)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=5)
criterion = torch.nn.MSELoss()


def closure():
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    print("closure", loss.item().hex())
    return loss


steps = 0
for _ in range(24):
    print(optimizer.step(closure).item().hex())
    steps += 1
probe.last_step(model=model, optimizer=optimizer)
print("steps", steps)
