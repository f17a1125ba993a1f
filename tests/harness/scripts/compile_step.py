"""A whole train-step function compiled, which calls the model inside the compiled region."""

import probe

probe.first_line()

import torch
from torch import nn
from torch._dynamo.utils import counters


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 24), nn.Linear(24, 4)

    def forward(self, x):
        return self.second(self.first(x).relu())


@torch.compile(backend="aot_eager")
def forward_and_loss(model, x):
    return model(x).pow(2).mean() + model(x * 2).abs().mean()


probe.seed(17)
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
steps = 0
for _ in range(60):
    optimizer.zero_grad()
    loss = forward_and_loss(net, torch.randn(8, 16))
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
    steps += 1
print("graphs", sorted(counters["stats"].items()))
print("breaks", sorted(counters["graph_break"].items()))
print("frames", sorted(counters["frames"].items()))
probe.last_step(net=net, optimizer=optimizer)
print("steps", steps)
