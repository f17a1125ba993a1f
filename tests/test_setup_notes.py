"""Notes of how a script set its work up: what they see, what they leave alone, what ends them."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from profstack import code_owner
from profstack.capture import setup_notes
from profstack.capture.setup_notes import SetupNotes, SetupRecorder
from profstack.capture.slices import SlicePlan
from profstack.layer import Listener


def notes() -> SetupNotes:
    return SetupNotes(torch, code_owner.Places.of(code_owner.script_folder()))


def call(noted: SetupNotes, module: nn.Module, inputs: torch.Tensor, name: str = "Net") -> Any:
    """A call of a module whose beginning and end are told, as the hooks tell them."""
    noted.enter("module", name, module)
    try:
        return module(inputs)
    finally:
        noted.leave("module", "")


class Told(Listener):
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def enter(self, kind: str, name: str, module: Any = None) -> None:
        self.heard.append(("enter", kind, name, module))

    def leave(self, kind: str, name: str) -> None:
        self.heard.append(("leave", kind, name))

    def step_ended(self, number: int) -> None:
        self.heard.append(("step", number))


def test_nodes_are_those_that_autograd_records() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    noted = notes()
    result = call(noted, model, torch.randn(3, 4))
    # Two products with their transposed weights, and what lies between.
    assert result.grad_fn is not None
    made = noted.facts()["calls"]
    assert (made["count"], made["with_grad"], made["training"]) == (1, 1, 1)
    assert made["nodes"] >= 3
    for context in (torch.no_grad(), torch.inference_mode()):
        quiet = notes()
        with context:
            call(quiet, model.eval(), torch.randn(3, 4))
        made = quiet.facts()["calls"]
        assert (made["nodes"], made["with_grad"], made["training"]) == (0, 0, 0)
    assert made["inference_mode"] == 1


def test_frozen_parameters_record_nothing_though_gradients_are_on() -> None:
    model = nn.Linear(4, 4).requires_grad_(False)
    noted = notes()
    call(noted, model, torch.randn(3, 4))
    made = noted.facts()["calls"]
    assert (made["nodes"], made["with_grad"]) == (0, 1)


def test_calls_inside_calls_passes_and_optimizers_are_none_of_their_own() -> None:
    model = nn.Linear(4, 4)
    noted = notes()
    noted.enter("module", "Net", model)
    noted.enter("module", "Net.0", model)
    noted.leave("module", "")
    noted.leave("module", "")
    noted.enter("backward", "backward", None)
    noted.enter("module", "Net", model)
    noted.leave("module", "")
    noted.leave("backward", "")
    noted.step_ended(1)
    assert noted.facts()["calls"]["count"] == 1
    assert noted.facts()["backward_passes"] == 1
    # A call that an error ended without a word.
    noted.enter("module", "Net", model)
    noted.step_ended(1)
    noted.enter("module", "Net", model)
    noted.leave("module", "")
    assert noted.facts()["calls"]["count"] == 3


def test_a_loss_is_no_call_of_a_model() -> None:
    noted = notes()
    loss = nn.MSELoss()
    noted.enter("module", "MSELoss", loss)
    noted.leave("module", "")
    assert noted.facts()["calls"]["count"] == 0


def test_layers_in_training_mode_are_named() -> None:
    noted = notes()
    own, gathering = nn.BatchNorm1d(4), nn.BatchNorm1d(4, momentum=None)
    without = nn.BatchNorm1d(4, track_running_stats=False)
    layers = {"a": own, "b": without, "c": gathering, "d": nn.Dropout(0.5), "e": nn.Dropout(0.0)}
    for path, layer in layers.items():
        noted.enter("module", path, layer)
        noted.leave("module", "")
    for path, layer in layers.items():
        noted.enter("module", f"{path}.eval", layer.eval())
        noted.leave("module", "")
    facts = noted.facts()
    assert facts["training_norms"] == {
        "count": 1,
        "modules": [{"path": "a", "type": "BatchNorm1d"}],
    }
    assert [each["path"] for each in facts["training_dropouts"]["modules"]] == ["d"]


def test_more_layers_than_can_be_named_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_notes, "MOST_NAMED", 2)
    noted = notes()
    for number in range(5):
        noted.enter("module", f"norm.{number}", nn.BatchNorm1d(2))
        noted.leave("module", "")
    norms = noted.facts()["training_norms"]
    assert norms["count"] == 5
    assert len(norms["modules"]) == 2


def stepped(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What is noted of the optimizer's step."""
    noted = notes()
    noted.enter("optimizer", type(optimizer).__name__, optimizer)
    noted.leave("optimizer", "")
    assert noted.failed is None
    (found,) = noted.facts()["optimizers"]
    return dict(found)


def test_an_optimizer_is_told_by_its_class_settings_and_tensors() -> None:
    model = nn.Linear(8, 4)
    unused = nn.Parameter(torch.zeros(100))
    model(torch.randn(2, 8)).sum().backward()
    found = stepped(torch.optim.AdamW([*model.parameters(), unused], lr=1e-3, amsgrad=True))
    assert (found["name"], found["base"]) == ("AdamW", "AdamW")
    assert found["amsgrad"] is True
    assert found["fused"] is None
    assert found["has_fused"]
    # A parameter without a gradient is not updated.
    assert (found["tensors"], found["elements"]) == (2, 36)
    assert found["parameter_bytes"] == 144
    assert (found["devices"], found["dtypes"]) == (["cpu"], ["float32"])
    assert found["place"]["file"].endswith("test_setup_notes.py")


def test_groups_that_differ_leave_a_flag_open() -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    first(second(torch.randn(1, 2))).sum().backward()
    groups = [
        {"params": first.parameters(), "maximize": True, "momentum": 0.9},
        {"params": second.parameters()},
    ]
    found = stepped(torch.optim.SGD(groups, lr=torch.tensor(1e-3), fused=True))
    assert found["maximize"] is None
    assert found["momentum"] is True
    assert found["fused"] is True


def test_sparse_gradients_and_optimizers_of_others_are_told() -> None:
    table = nn.Embedding(10, 3, sparse=True)
    table(torch.tensor([1, 2])).sum().backward()
    assert stepped(torch.optim.SparseAdam(table.parameters()))["sparse_tensors"] == 1

    class Mine(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 0.1})

    table.zero_grad()
    found = stepped(Mine(nn.Linear(2, 2).parameters()))
    assert (found["base"], found["has_fused"], found["tensors"]) == (None, False, 0)


class Asked(torch.Tensor):
    """A tensor of the script's that hears of what is done with it."""

    heard: list[Any] = []  # noqa: RUF012  # of the class, as a script's may be

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        cls.heard.append(function)
        return super().__torch_function__(function, types, args, kwargs or {})


def test_what_is_the_scripts_is_not_asked_through_its_own_code() -> None:
    class Guarded(nn.BatchNorm1d):
        def __getattr__(self, name: str) -> Any:
            if name in ("p", "momentum"):
                raise AssertionError(name)
            return super().__getattr__(name)

        def parameters(self, recurse: bool = True) -> Any:
            raise AssertionError("parameters")

    noted = notes()
    noted.enter("module", "Guarded", Guarded(3))
    noted.leave("module", "")
    assert noted.facts()["calls"]["count"] == 1
    weight = Asked([1.0, 2.0]).requires_grad_()
    weight.grad = torch.ones(2)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    Asked.heard.clear()
    assert stepped(optimizer)["tensors"] == 1
    assert Asked.heard == []


def test_nothing_of_the_scripts_is_kept() -> None:
    noted = notes()
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    result = call(noted, model, torch.randn(3, 4))
    result.sum().backward()
    noted.enter("optimizer", "SGD", optimizer)
    noted.leave("optimizer", "")
    gone = [weakref.ref(each) for each in (model, model[1], optimizer, result)]
    del model, optimizer, result
    gc.collect()
    assert [each() for each in gone] == [None] * 4
    assert noted.facts()["optimizers"][0]["name"] == "SGD"


def test_the_random_stream_and_the_gradients_are_left_as_they_are() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    inputs = torch.randn(3, 4)
    torch.manual_seed(1)
    plain = model(inputs)
    torch.manual_seed(1)
    assert torch.equal(call(notes(), model, inputs), plain)


def test_autocast_is_told() -> None:
    noted = notes()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        call(noted, nn.Linear(4, 4), torch.randn(3, 4))
    assert noted.facts()["calls"]["autocast"] == "bfloat16"


# -- beside a slice's own listener -------------------------------------------------------------


def test_only_first_slices_are_listened_in() -> None:
    written: list[dict[str, Any]] = []
    setup = SetupRecorder(torch, written.append)
    told = Told()
    first, later = (SlicePlan("flops", (("flops", "count"),), number, 1) for number in (1, 2))
    assert setup.beside(told, later, 1) is told
    assert setup.beside(None, first, 1) is None
    setup.end()
    assert written == []
    beside = setup.beside(told, first, 1)
    assert beside is not None
    model = nn.Linear(2, 2)
    beside.enter("module", "Linear", model)
    beside.leave("module", "Linear")
    beside.step_ended(1)
    assert told.heard == [
        ("enter", "module", "Linear", model),
        ("leave", "module", "Linear"),
        ("step", 1),
    ]
    setup.end()
    setup.end()
    ((key, facts),) = written[0].items()
    assert (len(written), key, facts["steps"]) == (1, "setup_1", 1)
    # A plan of its own has notes of its own.
    setup.beside(told, first, 2)
    setup.end()
    assert written[1]["setup_2"]["steps"] == 0


def test_an_error_ends_the_notes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: SetupNotes, kind: str, name: str, module: Any) -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr(SetupNotes, "enter", broken)
    written: list[dict[str, Any]] = []
    setup, told = SetupRecorder(torch, written.append), Told()
    planned = SlicePlan("flops", (("flops", "count"),), 1, 1)
    beside = setup.beside(told, planned, 1)
    assert beside is not None
    beside.enter("backward", "backward")
    beside.enter("backward", "backward")
    assert len(told.heard) == 2
    setup.end()
    assert written[0]["setup_1"]["failed"] == "ValueError: no such thing"
    assert setup.beside(told, planned, 1) is told


def test_an_error_of_the_listener_passes() -> None:
    class Broken(Told):
        def enter(self, kind: str, name: str, module: Any = None) -> None:
            raise RuntimeError("its own")

    setup = SetupRecorder(torch, lambda facts: None)
    beside = setup.beside(Broken(), SlicePlan("flops", (("flops", "count"),), 1, 1), 1)
    assert beside is not None
    with pytest.raises(RuntimeError, match="its own"):
        beside.enter("backward", "backward")


def test_what_is_not_noted_is_passed_on() -> None:
    class More(Told):
        takes_apart = True

        def step_begun(self, number: int) -> None:
            self.heard.append(("begun", number))

        def enter_apart(self, key: int, name: str) -> None:
            self.heard.append(("apart", key, name))

        def leave_apart(self, key: int) -> None:
            self.heard.append(("over", key))

    setup = SetupRecorder(torch, lambda facts: None)
    more = More()
    beside: Any = setup.beside(more, SlicePlan("flops", (("flops", "count"),), 1, 1), 1)
    assert beside.takes_apart
    beside.step_begun(3)
    beside.enter_apart(7, "load")
    beside.leave_apart(7)
    assert more.heard == [("begun", 3), ("apart", 7, "load"), ("over", 7)]
