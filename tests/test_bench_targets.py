"""What `profstack bench` can be given, and what it says of what it cannot measure."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from profstack.bench.run import BenchOptions, BenchRun
from profstack.bench.subject import Request, Subject, make_input, of_model, resized, split_inputs
from profstack.bench.target import FACTORY, STEP, load, short_name
from profstack.errors import TargetError, UsageError
from profstack.stats.clock import Clock
from profstack.storage.vocabulary import READ, STATED

torch = pytest.importorskip("torch")

TARGETS = """
import torch
from torch import nn

NAME = __name__

def factory(batch_size=4):
    return nn.Linear(8, 2), torch.ones(batch_size, 8)

def named():
    class Two(nn.Module):
        def forward(self, *, a, b):
            return a + b
    return Two(), {"a": torch.ones(3, 2), "b": torch.zeros(3, 2)}

def pair():
    return nn.Bilinear(4, 4, 2), (torch.ones(5, 4), torch.ones(5, 4))

def bare():
    return nn.Linear(8, 2)

calls = []

def step():
    calls.append(1)

def needs(path, batch_size):
    return nn.Linear(8, 2), torch.ones(batch_size, 8)

def sized(batch_size):
    return nn.Linear(8, 2), torch.ones(batch_size, 8)

async def later():
    pass

def raises():
    raise ValueError("the target's own")

class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.inner = nn.Linear(width, 2)
    def forward(self, x):
        return self.inner(x)

net = Net()
"""


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The file of the targets; what loading it changes is put back."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "targets.py"
    path.write_text(TARGETS)
    yield str(path)
    sys.modules.pop("targets", None)


def test_a_factory_gives_a_model_with_its_inputs(target: str) -> None:
    loaded = load(Request(f"{target}:factory"))
    subject = loaded.subject
    assert type(subject.model).__name__ == subject.name == "Linear"
    assert (subject.batch_size, subject.batch_size_is, subject.gradients) == (4, READ, False)
    assert loaded.first_s is None, "the model has not been called"
    with subject.conditions():
        assert subject.step().shape == (4, 2)
        assert not torch.is_grad_enabled()
    other = subject.of_batch(7)
    assert other.step().shape == (7, 2)
    assert other.model is not subject.model, "the factory was asked again"


def test_inputs_may_be_several_or_have_names(target: str) -> None:
    subject = load(Request(f"{target}:named")).subject
    assert subject.step().shape == (3, 2)
    assert subject.of_batch(5).step().shape == (5, 2)
    assert load(Request(f"{target}:pair")).subject.step().shape == (5, 2)


def test_a_function_is_called_once_and_that_is_its_first_call(target: str) -> None:
    loaded = load(Request(f"{target}:step"))
    assert loaded.first_s is not None
    assert loaded.first_s > 0
    assert len(sys.modules["targets"].calls) == 1
    assert loaded.subject.model is None
    assert "own inputs" in str(loaded.subject.why_no_batches)
    loaded.subject.step()
    assert len(sys.modules["targets"].calls) == 2


def test_the_users_word_settles_what_it_is(target: str) -> None:
    loaded = load(Request(f"{target}:factory", kind=STEP))
    assert loaded.subject.model is None
    assert loaded.first_s is None
    with pytest.raises(TargetError, match="gave None; a factory returns"):
        load(Request(f"{target}:step", kind=FACTORY))


def test_models_and_classes_take_their_inputs_from_the_command_line(target: str) -> None:
    for name in ("net", "Net", "bare"):
        subject = load(Request(f"{target}:{name}", inputs=["6x8"])).subject
        assert subject.step().shape == (6, 2)
    with pytest.raises(TargetError, match="model without inputs; give their shapes: --input"):
        load(Request(f"{target}:net"))


def test_a_stated_batch_size_is_given_to_a_factory_that_takes_one(target: str) -> None:
    subject = load(Request(f"{target}:sized", batch_size=9)).subject
    assert (subject.batch_size, subject.batch_size_is) == (9, STATED)
    assert subject.step().shape == (9, 2)
    with pytest.raises(TargetError, match=r"needs arguments .batch_size.; give --batch-size"):
        load(Request(f"{target}:sized"))


def test_the_same_subject_comes_of_the_request_as_json(target: str) -> None:
    request = Request(f"{target}:net", inputs=("2x8",), gradients=True)
    again = Request(**asdict(request))
    assert again == request
    subject = load(again).subject
    assert subject.request == request
    with subject.conditions():
        assert torch.is_grad_enabled()


def test_the_file_is_a_module_and_its_folder_is_on_the_path(target: str) -> None:
    load(Request(f"{target}:step"))
    assert sys.modules["targets"].NAME == "targets"
    assert sys.path[0] == str(Path(target).parent)


def test_a_module_is_found_by_its_name() -> None:
    subject = load(Request("torch.nn:ReLU", inputs=["16"])).subject
    assert subject.step().shape == (16,)
    assert short_name("torch.nn:ReLU") == "torch.nn-ReLU"
    assert short_name("some/where/bench.py:build") == "bench-build"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("faktory", "has no 'faktory'; did you mean 'factory'"),
        ("zzz", "has no 'zzz'; it has factory, named"),
        ("needs", "needs arguments .path, batch_size.; name a function that calls needs"),
        ("later", "is a coroutine"),
        ("NAME", "is a str"),
    ],
)
def test_what_cannot_be_measured_is_said_in_one_line(target: str, name: str, said: str) -> None:
    with pytest.raises(TargetError, match=said) as raised:
        load(Request(f"{target}:{name}"))
    assert "\n" not in str(raised.value)


def test_places_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="no such file"):
        load(Request(f"{tmp_path}/nowhere.py:f"))
    with pytest.raises(TargetError, match="no such module"):
        load(Request("profstack_nowhere:f"))
    (tmp_path / "some.py").write_text("def one(): pass\n")
    with pytest.raises(TargetError, match=r"names no function; .*; it has one"):
        load(Request(f"{tmp_path}/some.py"))


def test_a_device_is_no_business_of_a_function(target: str) -> None:
    with pytest.raises(TargetError, match="--device cannot move"):
        load(Request(f"{target}:step", device="meta"))
    moved = load(Request(f"{target}:factory", device="meta")).subject
    assert moved.inputs[0].device.type == next(moved.model.parameters()).device.type == "meta"


def test_the_targets_own_error_stays_its_own(target: str) -> None:
    with pytest.raises(ValueError, match="the target's own"):
        load(Request(f"{target}:raises"))


class TestInputs:
    def test_are_the_same_each_time_and_leave_the_random_stream_alone(self) -> None:
        torch.manual_seed(5)
        state = torch.get_rng_state()
        first, second = make_input("2x3"), make_input("2x3:float64")
        assert torch.equal(first, second.float())
        assert torch.equal(torch.get_rng_state(), state)
        assert make_input("4:bfloat16").dtype == torch.bfloat16
        assert set(make_input("64:int64").tolist()) == {0, 1}

    @pytest.mark.parametrize("text", ["", "ax3", "3x", "2x3:", "2x3:floaty", "-1x2"])
    def test_refuses_what_is_none(self, text: str) -> None:
        with pytest.raises(UsageError, match="--input"):
            make_input(text)

    def test_become_more_and_fewer(self) -> None:
        rows = torch.arange(3.0).reshape(3, 1).requires_grad_()
        inputs = {"x": (rows, 7), "scale": torch.tensor(2.0)}
        larger = resized(inputs, 5)
        assert larger["x"][0].flatten().tolist() == [0, 1, 2, 0, 1]
        assert larger["x"][0].requires_grad
        assert larger["x"][1] == 7
        assert larger["scale"].shape == ()
        assert resized(inputs, 2)["x"][0].flatten().tolist() == [0, 1]

    def test_of_a_factory(self) -> None:
        x, y = torch.ones(1), torch.ones(2)
        assert split_inputs((x,)) == ((x,), {})
        assert split_inputs(((x, y),)) == ((x, y), {})
        assert split_inputs((x, y)) == ((x, y), {})
        assert split_inputs(({"x": x},)) == ((), {"x": x})

    def test_without_a_shared_dimension_have_no_batch_size(self) -> None:
        model = torch.nn.Bilinear(4, 4, 2)
        subject = of_model(model, (torch.ones(5, 4), torch.ones(1, 4)))
        assert subject.batch_size is None
        assert subject.of_batch is None
        assert "share no leading dimension" in str(subject.why_no_batches)
        stated = of_model(model, (torch.ones(5, 4), torch.ones(5, 4)), batch_size=2)
        assert (stated.batch_size, stated.batch_size_is) == (2, STATED)
        assert stated.of_batch is None


def test_modules_that_behave_otherwise_in_training_are_named() -> None:
    nn = torch.nn
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.1), nn.Dropout(0.0))
    assert of_model(model, (torch.ones(2, 2),)).training_layers == ["BatchNorm1d", "Dropout"]
    assert of_model(model.eval(), (torch.ones(2, 2),)).training_layers == []
    assert of_model(nn.LSTM(2, 2, 2, dropout=0.5), ()).training_layers == ["LSTM"]


def test_a_function_is_called_with_gradients_as_the_program_has_them() -> None:
    seen: list[bool] = []
    subject = Subject("look", lambda: seen.append(torch.is_grad_enabled()))
    for outside in (torch.no_grad(), torch.enable_grad()):
        with outside, subject.conditions():
            subject.step()
    with torch.no_grad(), replace(subject, gradients=True).conditions():
        subject.step()
    assert seen == [False, True, True]


def test_a_device_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    target = tmp_path / "device_target.py"
    target.write_text("import torch\n\ndef make():\n    return torch.nn.ReLU(), torch.ones(1)\n")
    with pytest.raises(TargetError, match=r"--device nope: cannot be used: .*nope"):
        load(Request(f"{target}:make", device="nope"))


def test_a_search_that_cannot_be_is_refused_before_anything_is_timed() -> None:
    def step() -> None:
        raise AssertionError("it was called")

    of_function = BenchRun(Subject("step", step), BenchOptions(throughput=True), Clock())
    with pytest.raises(UsageError, match="--throughput needs other batch sizes"):
        of_function.check()
    subject = of_model(torch.nn.Linear(2, 2), (torch.ones(1, 2),), request=Request("a.py:b"))
    asked = BenchOptions(throughput=True, dtypes=["float99"])
    with pytest.raises(UsageError, match="float99"):
        BenchRun(subject, asked, Clock()).check()
