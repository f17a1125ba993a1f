"""For tests of memory by owner: a model whose bytes are counted by hand, and a slice's tables."""

import torch
from torch import nn

BATCH, WIDTH, HIDDEN, OUT, FLOAT = 256, 64, 128, 32, 4
INPUT, WIDE, NARROW = (BATCH * size * FLOAT for size in (WIDTH, HIDDEN, OUT))
LEARNED_A, LEARNED_B = (WIDTH * HIDDEN + HIDDEN) * FLOAT, (HIDDEN * OUT + OUT) * FLOAT
LEARNED = LEARNED_A + LEARNED_B
# Adam's two moments of each parameter, and a step of its own for each of the four.
ADAM = 2 * LEARNED + 4 * FLOAT


class Net(nn.Module):
    """Of its calls only the output of `act` is kept for the backward pass."""

    def __init__(self):
        super().__init__()
        self.a, self.act, self.b = nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, OUT)

    def forward(self, x):
        return self.b(self.act(self.a(x)))


def training(net):
    """A step that makes its batch, and lets go of everything at its end."""
    optimizer = torch.optim.Adam(net.parameters())

    def step():
        optimizer.zero_grad()
        net(torch.randn(BATCH, WIDTH)).sum().backward()
        optimizer.step()

    return step


def owners(taken):
    """Bytes at the start and the peak, the most, and at the end, by kind."""
    rows = taken.captured.frames["memory_owners"]
    names = [f"{moment}_bytes" for moment in ("start", "peak", "largest", "end")]
    return {row["kind"]: tuple(row[name] for name in names) for row in rows}


def holders(taken):
    """Kind, path, operator, direction, tensors and bytes of what a model holds at the peak."""
    names = ("kind", "module_id", "operator", "backward", "tensors", "bytes")
    rows = ([row[name] for name in names] for row in taken.captured.frames["peak_holders"])
    return [(kind, taken.path(module), *rest) for kind, module, *rest in rows]
