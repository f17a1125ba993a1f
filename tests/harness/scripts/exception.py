"""Fails in the forward pass in mid-training; the traceback must be the script's own."""

import probe

probe.first_line()

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(10, 4)

    def forward(self, x):
        return self.layer(x)


def train(model, optimizer):
    for step in range(100):
        size = 10 if step < 37 else 11
        loss = model(torch.randn(8, size)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item().hex())
        print("steps", step + 1)


probe.seed(14)
net = Net()
sgd = torch.optim.SGD(net.parameters(), lr=0.01)
try:
    train(net, sgd)
finally:
    probe.last_step(net=net, sgd=sgd)
