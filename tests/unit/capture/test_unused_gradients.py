"""Gradients that no optimizer uses: which are, which only look so, and what they pass through."""

import pytest
import torch
from torch import nn

from profstack.capture.unused_gradients import UnusedGradients
from tests.support.tables import cases


class Net(nn.Module):
    """An encoder, and a head on it."""

    def __init__(self):
        super().__init__()
        self.first, self.encoder = nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 5), nn.ReLU())
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.encoder(self.first(x)))


def steps(notes, net, optimizers, numbers, *, given=None, by_hand=()):
    """Steps of training as the hooks tell them, each in the run's step of that number."""
    x = torch.ones(4, 3) if given is None else given
    told = []
    for number in numbers:
        notes.call_begins(net, (x,))
        for path, module in net.named_modules():
            notes.module_begins(f"Net.{path}".rstrip("."), module)
        net(x).sum().backward()
        for optimizer in optimizers:
            notes.optimizer_begins(optimizer.param_groups)
            optimizer.step()
        for parameter in by_hand:
            parameter.data -= 0.1
        told.append(notes.check(number))
    return told


def sgd(*modules):
    return torch.optim.SGD([each for one in modules for each in one.parameters()], lr=0.1)


def of_parts(notes):
    """The parts that are told, with their parameters and whether trained ones come before them."""
    found = notes.facts()
    parts = found["modules"] if found else []
    return [(part["module"], part["parameters"], part["after_trained"]) for part in parts]


@cases(
    "trained parts",
    "head Net.encoder:20:False,Net.first:12:False; encoder Net.first:12:False,Net.head:12:True",
    "first Net.encoder:20:True,Net.head:12:True; first,encoder,head ''",
)
def test_parts_that_no_optimizer_has(trained, parts):
    notes, net = UnusedGradients(torch), Net()
    steps(notes, net, [sgd(*(getattr(net, name) for name in trained.split(",")))], (1, 2, 10, 11))
    named = [part.split(":") for part in parts.strip("'").split(",") if part]
    assert of_parts(notes) == [(name, int(n), after == "True") for name, n, after in named]


def test_it_takes_eight_steps_of_the_run_and_is_told_as_it_changes():
    notes, net = UnusedGradients(torch), Net()
    # The first look is after the first backward pass; told is what changed since.
    assert steps(notes, net, [sgd(net.head)], (1, 8, 9, 10)) == [False, False, True, False]
    assert notes.facts()["steps"] == 9
    assert notes.facts()["parameters"] == 32
    # An optimizer for a part of it comes later.
    net.encoder[0].weight.data = net.encoder[0].weight.data.clone()
    assert notes.check(11)
    assert of_parts(notes) == [("Net.first", 12, False)]
    net.first.weight.grad = None
    steps(notes, net, [sgd(net.first)], (12,))
    assert of_parts(notes) == []


def test_what_is_frozen_changed_by_hand_or_stepped_rarely_is_not_told():
    notes, net = UnusedGradients(torch), Net()
    net.first.requires_grad_(False)
    with torch.no_grad():
        by_hand = [net.encoder[0].weight]
        for number in range(20):
            with torch.enable_grad():
                steps(notes, net, [sgd(net.head)], [number])
            by_hand[0] -= 0.1
    assert of_parts(notes) == []
    notes, net = UnusedGradients(torch), Net()
    rare = sgd(net.encoder, net.first)
    steps(notes, net, [sgd(net.head)], (1, 2, 3))
    steps(notes, net, [rare], (4,))
    steps(notes, net, [sgd(net.head)], (5, 20))
    assert of_parts(notes) == []


def test_an_input_with_gradients_of_its_own_needs_those_that_pass():
    notes, net = UnusedGradients(torch), Net()
    picture = torch.ones(4, 3, requires_grad=True)
    steps(notes, net, [sgd(net.head)], (1, 2, 3, 11), given=picture)
    assert [after for _, _, after in of_parts(notes)] == [True, True]


def test_no_module_is_kept_alive():
    notes, net = UnusedGradients(torch), Net()
    steps(notes, net, [sgd(net.head)], (1, 2, 11))
    assert of_parts(notes)
    del net
    assert notes.check(12)
    assert notes.facts() is None


@pytest.mark.parametrize("kind", [nn.ReLU, nn.Identity])
def test_modules_without_parameters_are_none(kind):
    notes, net = UnusedGradients(torch), nn.Sequential(kind(), nn.Linear(3, 2))
    steps(notes, net, [sgd(net)], (1, 2, 11))
    assert notes.facts() is None
