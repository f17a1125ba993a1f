"""Gradients that no optimizer uses: which are, which only look so, and what they pass through."""

import gc
import weakref

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
    x, told = torch.ones(4, 3), []
    for number in numbers:
        notes.call_begins(net, [x] if given is None else given)
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


def sgd_by_hand(way, parameter):
    with torch.no_grad():
        if way == "in place":
            parameter -= 0.1
        elif way == "data":
            parameter.data -= 0.1
        elif way == "copied":
            parameter.data = parameter.data - 0.1


@pytest.mark.parametrize("way", ["frozen", "in place", "data", "copied"])
def test_what_is_frozen_or_changed_by_hand_is_not_told(way):
    notes, net = UnusedGradients(torch), Net()
    net.first.requires_grad_(False)
    if way == "frozen":
        net.encoder.requires_grad_(False)
    for number in range(20):
        steps(notes, net, [sgd(net.head)], [number])
        for parameter in net.encoder.parameters():
            sgd_by_hand(way, parameter)
    assert of_parts(notes) == []


def test_what_steps_rarely_is_not_told():
    notes, net = UnusedGradients(torch), Net()
    rare = sgd(net.encoder, net.first)
    steps(notes, net, [sgd(net.head)], (1, 2, 3))
    steps(notes, net, [rare], (4,))
    steps(notes, net, [sgd(net.head)], (5, 20))
    assert of_parts(notes) == []


def test_an_optimizer_of_copies_trains_all():
    notes, net = UnusedGradients(torch), Net()
    masters = [each.detach().clone().requires_grad_() for each in net.parameters()]
    steps(notes, net, [torch.optim.SGD(masters, lr=0.1)], (1, 2, 10, 11))
    assert of_parts(notes) == []


def test_what_was_called_no_more_since_it_was_found_may_be_behind_trained_parts():
    notes, net = UnusedGradients(torch), Net()
    steps(notes, net, [sgd(net.head)], (1,))
    for number in (2, 11):
        notes.check(number)
    assert [after for _, _, after in of_parts(notes)] == [True, True]


def test_a_part_that_is_called_alone_too_is_told_once():
    notes, net = UnusedGradients(torch), Net()
    for number in (1, 2, 11):
        notes.call_begins(net.encoder, ())
        notes.module_begins("Net.encoder", net.encoder)
        steps(notes, net, [sgd(net.head)], [number])
    assert [name for name, _, _ in of_parts(notes)] == ["Net.encoder", "Net.first"]


class Lazy(list):
    def __iter__(self):
        raise AssertionError("a class of the script's is not gone through")


@pytest.mark.parametrize(
    ("given", "behind"),
    [
        ([torch.ones(1)], False),
        ([torch.ones(1, requires_grad=True)], True),
        # Not a leaf: what made it may be trained.
        ([torch.ones(1, requires_grad=True) * 2], True),
        ([{"x": [torch.ones(1), (3, None, "a")]}], False),
        ([{"x": [torch.ones(1), (torch.ones(1, requires_grad=True),)]}], True),
        # What holds a tensor may be anything.
        ([object()], True),
        ([Lazy([torch.ones(1)])], True),
        ([[0] * 101], True),
        ([[[[[torch.ones(1)]]]]], True),
    ],
)
def test_an_input_with_gradients_of_its_own_needs_those_that_pass(given, behind):
    notes, net = UnusedGradients(torch), Net()
    steps(notes, net, [sgd(net.head)], (1, 2, 3, 11), given=given)
    assert [after for _, _, after in of_parts(notes)] == [behind, behind]


def test_a_trained_part_of_the_model_itself_comes_before_all_of_it():
    class Prompted(nn.Module):
        def __init__(self):
            super().__init__()
            self.prompt, self.body = nn.Parameter(torch.ones(3)), nn.Linear(3, 2)

        def forward(self, x):
            return self.body(x + self.prompt)

    notes, net = UnusedGradients(torch), Prompted()
    steps(notes, net, [torch.optim.SGD([net.prompt], lr=0.1)], (1, 2, 3, 11))
    assert of_parts(notes) == [("Net.body", 8, True)]


def test_what_changes_much_later_is_told_no_more():
    notes, net = UnusedGradients(torch), Net()
    steps(notes, net, [sgd(net.head)], (1, 2))
    for number in (*range(10, 60), 4000, 8000):
        notes.check(number)
    assert of_parts(notes)
    with torch.no_grad():
        for parameter in (*net.encoder.parameters(), *net.first.parameters()):
            parameter -= 0.1
    assert notes.check(12_000)
    assert notes.facts() is None
    # From some checks on they are ever further apart.
    assert notes._checks < 40


def test_no_module_is_kept_alive_and_what_was_told_of_it_stays():
    notes, net = UnusedGradients(torch), Net()
    steps(notes, net, [sgd(net.head)], (1, 2, 10, 12))
    told = notes.facts()
    assert told["steps"] == 11
    # A script that trains in a function has no model left at its end.
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None
    assert (notes.check(40), notes.facts()) == (False, told)


def test_a_part_that_is_gone_while_others_are_there_is_told_no_more():
    notes, net = UnusedGradients(torch), Net()
    steps(notes, net, [sgd(net.head)], (1, 2, 11))
    assert [name for name, *_ in of_parts(notes)] == ["Net.encoder", "Net.first"]
    net.encoder = nn.Identity()
    gc.collect()
    assert notes.check(12)
    assert [name for name, *_ in of_parts(notes)] == ["Net.first"]


@pytest.mark.parametrize("kind", [nn.ReLU, nn.Identity])
def test_modules_without_parameters_are_none(kind):
    notes, net = UnusedGradients(torch), nn.Sequential(kind(), nn.Linear(3, 2))
    steps(notes, net, [sgd(net)], (1, 2, 11))
    assert notes.facts() is None
