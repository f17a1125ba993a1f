"""Fails inside backward, is caught and told, and goes on: an exception is not an end."""

import probe

probe.first_line()

import traceback

import torch


class Faulty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, fail):
        ctx.fail = fail
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        if ctx.fail:
            raise ArithmeticError("a gradient nobody can take")
        return gradient * 2, None


probe.seed(15)
model = torch.nn.Linear(10, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps = 0
for step in range(60):
    optimizer.zero_grad()
    loss = Faulty.apply(model(torch.randn(8, 10)), step % 20 == 9).pow(2).mean()
    try:
        loss.backward()
    except ArithmeticError:
        traceback.print_exc()
    optimizer.step()
    print(loss.item().hex())
    steps += 1
probe.last_step(model=model, optimizer=optimizer)
print("steps", steps)
