"""A compiled model: graphs, breaks and losses must be as without a profiler.

Both passes are traced, as for inductor, whose code would take most of the test's time to compile.
"""

import probe

probe.first_line()

import torch
from torch import nn
from torch._dynamo.utils import counters

probe.seed(16)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps = 0
for _ in range(60):
    loss = compiled(torch.randn(8, 16)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
    steps += 1
print("graphs", sorted(counters["stats"].items()))
print("breaks", sorted(counters["graph_break"].items()))
print("frames", sorted(counters["frames"].items()))
probe.last_step(model=model, optimizer=optimizer)
print("steps", steps)
