"""The script uses torch.profiler itself; what it records must stay complete and its own."""

import probe

probe.first_line()

import torch
from torch.profiler import ProfilerActivity, profile, schedule

probe.seed(25)
model = torch.nn.Linear(10, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def told(profiler):
    for row in sorted(profiler.key_averages(), key=lambda row: row.key):
        print("event", row.key, row.count)


plan = schedule(skip_first=2, wait=3, warmup=2, active=10, repeat=2)
steps = 0
with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=told) as profiler:
    for _ in range(60):
        loss = model(torch.randn(8, 10)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item().hex())
        steps += 1
        profiler.step()
probe.last_step(model=model, optimizer=optimizer)
print("steps", steps)
