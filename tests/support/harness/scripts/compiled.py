"""A compiled model, then a compiled step: graphs, breaks and losses must be as without us.

Compiled code does not see regions; a hook of the script's own is compiled with its module.

Both passes are traced, as for inductor, whose code would take most of the test's time to compile.
"""

import probe

probe.first_line()

import profstack
import torch
from torch import nn
from torch._dynamo.utils import counters


@profstack.region("decorated")
def size(x):
    return x.abs().mean()


@torch.compile(backend="aot_eager")
def forward_and_loss(model, x):
    with profstack.region("inside"):
        return model(x).pow(2).mean() + size(model(x * 2))


def train(model, loss_of, steps):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for number in range(steps):
        # The second shape has it compiled once more.
        x = torch.randn(8 if number < 3 else 6, 16)
        with profstack.region("step"):
            probe.descend(loss_of(x), optimizer)
    for group in ("stats", "graph_break", "frames"):
        print(group, sorted(counters[group].items()))


# The report is of the first loop: it has more time, even where a step of the other is held up.
probe.seed(16)
first = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
first[1].register_forward_hook(lambda module, given, made: made * 1.0)
compiled = torch.compile(first, backend="aot_eager")
train(first, lambda x: compiled(x).pow(2).mean(), 200)
second = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4))
train(second, lambda x: forward_and_loss(second, x), 20)
probe.last_step(first=first, second=second)
