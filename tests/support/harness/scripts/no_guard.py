"""No main guard; shows what the script can see of itself. Uses profilers of its own.

Its ranges around epochs, cProfile and torch.profiler record all that is its own. A profiler that is
stopped and started again inside an open range corrupts memory: torch writes the range's end into
the first profiler's freed event.
"""

import probe

probe.first_line()

import cProfile
import gc
import pickle
import pstats
import sys

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 2)

    def forward(self, x):
        return self.layer(x).relu()


def train_step():
    probe.descend(net(torch.randn(8, 16)).pow(2).mean(), optimizer)


def told(profiler):
    for row in sorted(profiler.key_averages(), key=lambda row: row.key):
        print("event", row.key, row.count)


probe.seed(9)
print(__name__, __spec__, __package__, sys.argv, Net.__module__, Net.__qualname__)
print(pickle.loads(pickle.dumps(Net)) is Net, sys.modules["__main__"].Net is Net)
net = Net()
optimizer = torch.optim.RMSprop(net.parameters())
own = cProfile.Profile()
own.enable()
for _ in range(50):
    train_step()
own.disable()
for (file, _line, name), (_, calls, *_) in sorted(pstats.Stats(own).stats.items()):
    if file == __file__ or file.endswith(("linear.py", "rmsprop.py")):
        print(name, calls)
plan = schedule(skip_first=2, wait=3, warmup=2, active=10, repeat=2)
with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=told) as profiler:
    for _ in range(60):
        train_step()
        profiler.step()
for epoch in range(30):
    with record_function(f"epoch {epoch}"):
        for _ in range(2 + epoch % 5):
            with record_function("step"):
                train_step()
    # Brings damage to light near where it is done.
    if epoch % 6 == 0:
        gc.collect()
probe.last_step(net=net, optimizer=optimizer)
