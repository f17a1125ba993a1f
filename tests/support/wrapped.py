"""What tests of wrappers share: a small model, hooks that tell nobody, a domain that remembers."""

import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from profstack.capture.hooks import DISCOVER, TorchHooks
from profstack.capture.module_names import ModuleNames
from profstack.capture.observers import GuardedListener

# Of the engine, which is told of all this. It calls something built in, as the engine calls clocks.
_TOLD = "evaluated first_activity call_started call_ended backward_started backward_ended "
_TOLD += "optimizer_started optimizer_ended generate_started generate_ended"


@contextmanager
def installed_hooks():
    """Hooks that tell of every call."""
    sink = SimpleNamespace(waiting=False, follows_calls=True, follows_backward=True)
    vars(sink).update(dict.fromkeys(_TOLD.split(), "".format))
    made = TorchHooks(torch, sink, ModuleNames())
    made.install()
    made.set_mode(DISCOVER)
    try:
        yield made
    finally:
        made.listen(None)
        made.remove()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.linear(x))


def training(net):
    """A training step of the net."""
    optimizer, loss = torch.optim.SGD(net.parameters(), lr=0.1), nn.MSELoss()

    def step():
        optimizer.zero_grad()
        loss(net(torch.ones(2, 4)), torch.zeros(2, 4)).backward()
        optimizer.step()

    return step


def slice_of(hooks, wrapper, context, *steps):
    """Run the steps of a slice, as the engine does; the times at which they begin and end."""
    wrapper.start(context)
    hooks.emit_ranges(True)
    told, failed = wrapper.listener(), lambda error: pytest.fail(f"the listener raised {error!r}")
    # As in a run: told of calls are those alone who ask for it, and their errors are kept in.
    listener = GuardedListener(told, failed) if told is not None else None
    hooks.listen(listener)
    try:
        # That this began before the step is told by two clocks, which agree to a microsecond.
        time.sleep(0.0001)
        stamps = [time.perf_counter()]
        for number, step in enumerate(steps, context.first_step + 1):
            step()
            stamps.append(time.perf_counter())
            if listener is not None:
                listener.step_ended(number)
                if len(stamps) <= len(steps):
                    listener.step_begun(number)
    finally:
        hooks.listen(None)
        hooks.emit_ranges(False)
        wrapper.stop()
    return stamps


class RememberingDomain:
    """A domain of nvtx, with the methods that there are from 0.2.12 on."""

    def __init__(self):
        # Texts, indented by the ranges around; payloads; begins and ends of what nests in nothing.
        self.open, self.told, self.numbers, self.apart = [], [], [], []
        # And what is called with the name of each function of nvtx.
        self.categories, self.passes = {}, lambda name: None

    def get_event_attributes(self, message, color, category, payload=None):
        self.passes("make")
        assert isinstance(color, int)
        self.categories[message] = category
        return message, payload

    def push_range(self, attributes):
        self.passes("push")
        self.told.append("  " * len(self.open) + attributes[0])
        self.open.append(attributes[0])
        self.numbers += [] if attributes[1] is None else [attributes[1]]

    def pop_range(self):
        self.passes("pop")
        self.open.pop()

    def start_range(self, attributes):
        self.passes("start")
        self.apart.append(f"+{attributes[0]}")
        return attributes[0]

    def end_range(self, handle):
        self.passes("end")
        self.apart.append(f"-{handle}")
