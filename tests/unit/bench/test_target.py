"""What `profstack bench` can be given, and what it says of what it cannot measure."""

import sys
from pathlib import Path

import pytest
import torch

from profstack.bench.subject import Request
from profstack.bench.target import STEP, load
from profstack.errors import TargetError
from profstack.storage.vocabulary import READ, STATED
from tests.support.tables import cases

TARGETS = """
import torch
from functools import partial
from torch import nn

NAME = __name__

def factory(batch_size=4):
    return nn.Linear(8, 2), torch.ones(batch_size, 8)

def named():
    class Two(nn.Module):
        def forward(self, *, a, b):
            return a + b
    return Two(), {"a": torch.ones(3, 2), "b": torch.zeros(3, 2)}

bare = lambda: nn.Linear(8, 2)
calls = []
step = lambda: calls.append(1)
sized = lambda batch_size: (nn.Linear(8, 2), torch.ones(batch_size, 8))

class Net(nn.Linear):
    def __init__(self, width=8):
        super().__init__(width, 2)

net = Net()
"""


@pytest.fixture
def target(tmp_path, monkeypatch):
    """The file of the targets; what loading it changes is put back."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "targets.py").write_text(TARGETS)
    yield str(tmp_path / "targets.py")
    sys.modules.pop("targets", None)


def test_a_factory_gives_a_model_with_its_inputs(target):
    loaded = load(Request(f"{target}:factory"))
    subject = loaded.subject
    assert type(subject.model).__name__ == subject.name == "Linear"
    assert (subject.batch_size, subject.batch_size_is, subject.gradients) == (4, READ, False)
    assert loaded.first_s is None, "the model has not been called"
    with subject.conditions():
        assert (subject.step().shape, torch.is_grad_enabled()) == ((4, 2), False)
    other = subject.of_batch(7)
    assert other.step().shape == (7, 2)
    assert other.model is not subject.model, "the factory was asked again"
    # Inputs may have names; the user's word settles what it is.
    named = load(Request(f"{target}:named")).subject
    assert (named.step().shape, named.of_batch(5).step().shape) == ((3, 2), (5, 2))
    loaded = load(Request(f"{target}:factory", kind=STEP))
    assert loaded.subject.model is loaded.first_s is None
    subject = load(Request(f"{target}:sized", batch_size=9)).subject
    assert (subject.batch_size, subject.batch_size_is, subject.step().shape) == (9, STATED, (9, 2))


def test_functions_models_and_classes_are_called_with_their_inputs(target):
    loaded, module = load(Request(f"{target}:step")), sys.modules["targets"]
    assert (loaded.first_s > 0, len(module.calls), loaded.subject.model) == (True, 1, None)
    loaded.subject.step()
    assert (len(module.calls), module.NAME, sys.path[0]) == (2, "targets", str(Path(target).parent))
    for name in ("net", "Net", "bare"):
        subject = load(Request(f"{target}:{name}", inputs=["6x8"])).subject
        assert subject.step().shape == (6, 2)
    moved = load(Request(f"{target}:factory", device="meta")).subject
    assert moved.inputs[0].device.type == next(moved.model.parameters()).device.type == "meta"


@cases("name said more", ("faktory", "has no 'faktory'; did you mean 'factory'", {}),
       ("net", "model without inputs; give their shapes: --input", {}),
       ("sized", "needs arguments .batch_size.; give --batch-size", {}),
       ("bare", "--device nope: cannot be used: .*nope", {"device": "nope"}))  # fmt: skip
def test_what_cannot_be_measured_is_said_in_one_line(target, name, said, more):
    with pytest.raises(TargetError, match=said) as raised:
        load(Request(f"{target}:{name}", **more))
    assert "\n" not in str(raised.value)
