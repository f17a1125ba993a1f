"""The classic lecture's two-layer network with modules and a hand-written update."""

import probe

probe.first_line()

import torch

probe.seed(1)
x, y = torch.randn(64, 1000), torch.randn(64, 10)
model = torch.nn.Sequential(torch.nn.Linear(1000, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10))
loss_fn = torch.nn.MSELoss(reduction="sum")
steps = 0
for _ in range(500):
    y_pred = model(x)
    loss = loss_fn(y_pred, y)
    print(loss.item().hex())
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for param in model.parameters():
            param -= 1e-4 * param.grad
    steps += 1
probe.last_step(model=model)
print("steps", steps)
