"""The classic lecture's two-layer network with tensors and autograd only."""

import probe

probe.first_line()

import torch

probe.seed(1)
x, y = torch.randn(64, 1000), torch.randn(64, 10)
w1 = torch.randn(1000, 100, requires_grad=True)
w2 = torch.randn(100, 10, requires_grad=True)
steps = 0
for _ in range(500):
    loss = (x.mm(w1).clamp(min=0).mm(w2) - y).pow(2).sum()
    print(loss.item().hex())
    loss.backward()
    with torch.no_grad():
        w1 -= 1e-6 * w1.grad
        w2 -= 1e-6 * w2.grad
        w1.grad.zero_()
        w2.grad.zero_()
    steps += 1
probe.last_step()
print("steps", steps)
