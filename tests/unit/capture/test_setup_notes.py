"""Notes of how a script set its work up: what they see, what they leave alone, what ends them."""

from pathlib import Path

import pytest
import torch
from torch import nn

from profstack import code_owner
from profstack.capture.setup_notes import MOST_NAMED, SetupNotes, SetupRecorder
from profstack.capture.slices import SlicePlan
from tests.support.engine import Hears
from tests.support.tables import of

PLACES = code_owner.Places.of(str(Path(__file__).parent))


@pytest.fixture
def noted():
    return SetupNotes(torch, PLACES)


def call(noted, module, inputs=None, name="Net"):
    """A call of a module whose beginning and end are told, as the hooks tell them."""
    noted.enter("module", name, module)
    result = None if inputs is None else module(inputs)
    noted.leave("module", "")
    return result


def calls(noted):
    return dict(noted.facts()["calls"])


def test_calls_by_their_circumstances(noted, monkeypatch):
    count = iter([100, 107, 200, 200, 300, 311, 400, 400, 500, 504])
    monkeypatch.setattr(torch._C._autograd, "_get_sequence_nr", lambda: next(count))
    noted, model = SetupNotes(torch, PLACES), nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    counts = ("count", "training", "with_grad", "inference_mode", "nodes")
    words = dict.fromkeys(("module", "place", "autocast"))
    assert calls(noted) == {**dict.fromkeys(counts, 0), **words}
    call(noted, model, name="first")
    with torch.no_grad():
        call(noted, model.eval())
    for circumstance in (torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode()):
        with circumstance:
            call(noted, model)
    # A loss is a module too, and has no parameters.
    call(noted, nn.MSELoss(), name="loss")
    made = calls(noted)
    place, known = made.pop("place"), dict(zip(counts, (4, 1, 2, 1, 7 + 11), strict=True))
    assert made == {**known, "module": "first", "autocast": "bfloat16"}
    # The script's own line that is being run.
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert place["file"] == __file__
    assert lines[place["line"] - 1].strip() == 'noted.enter("module", name, module)'


def test_calls_inside_calls_passes_and_optimizers_are_none_of_their_own(noted):
    model = nn.Linear(4, 4)

    def happen(events):
        """`+m` and `-m` are the ends of a call, a pass (b), a step (o), its closure or a region."""
        kinds = {"m": "module", "b": "backward", "o": "optimizer", "r": "region", "c": "closure"}
        for sign, letter in events.split():
            if sign == "+":
                noted.enter(kinds[letter], "", model if letter == "m" else None)
            elif sign == "-":
                noted.leave(kinds[letter], "")
            else:
                noted.step_ended(1)
        return calls(noted)["count"], *of(noted.facts(), "backward_passes steps")

    assert happen("+m +m -m -m +b +b -b +m -m -b +o +b -b +m -m -o +r -r .s") == (1, 3, 1)
    # What an error has ended without a word is over with its step.
    assert happen("+o +m .s +m .s -m -b -o +m -m") == (3, 3, 3)
    # A closure is the loop's, also one that another optimizer is given; not in a pass.
    assert happen("+o +c +m -m +b +m -m -b -c +m -m +c +m -m -c -o .s") == (5, 4, 4)
    assert happen("+o +o +c +c +m -m -c -c +m -m -o -o +b +o +c +m -m -c -o -b .s") == (6, 5, 5)
    assert happen("+o +c .s +m -m -c +o +m -m -o .s") == (7, 5, 7)


def test_passes_that_keep_their_graph_or_are_checked_are_counted(noted):
    keeps = {"kept": True, "not": False, "unknown": None}
    for name in ("kept", "not", "unknown", "kept"):
        with torch.autograd.set_detect_anomaly(name == "not"):
            noted.enter("backward", "backward", keeps[name])
            noted.leave("backward", "backward")
    expected = [4, 2, 1]
    assert of(noted.facts(), "backward_passes kept_graphs anomaly_passes") == expected


DDP = type("DistributedDataParallel", (nn.Module,), {"__module__": "torch.nn.parallel"})


def test_exchanges_of_gradients_and_steps_that_use_them(noted):
    ddp = DDP()
    ddp.module, ddp.require_backward_grad_sync = nn.Linear(2, 2), True
    assert noted.facts()["exchanges"] is None
    # Those of single gradients (None) exchange nothing.
    for keeps in (False, None, True):
        call(noted, ddp)
        noted.enter("backward", "backward", keeps)
        noted.leave("backward", "backward")
    optimizer = torch.optim.SGD(ddp.module.parameters())
    noted.enter("optimizer", "SGD", optimizer)
    noted.leave("optimizer", "SGD")
    assert noted.facts()["exchanges"] == {"passes": 2, "exchanged": 2, "updates": 1}


def test_parts_on_a_constant_input_but_not_those_that_train(noted):
    frozen, trained = nn.Linear(1, 1).requires_grad_(False), nn.Linear(1, 1)
    whole = nn.ModuleList([frozen, trained])
    for number in range(4):
        noted.given(None, (torch.full((3,), float(number)),), {})
        noted.enter("module", "Net", whole)
        for name, part in (("Net.0", frozen), ("Net.1", trained)):
            noted.given(whole, (torch.ones(3),), {})
            call(noted, part, name=name)
        noted.leave("module", "Net")
        noted.enter("backward", "backward", None)
        noted.leave("backward", "backward")
        noted.step_ended(number)
    assert noted.facts()["constant"] == [{"module": "Net.0", "calls": 3, "same": 3}]


def test_gradients_that_are_never_used_are_written_once_they_are_old():
    written, net = [], nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    setup, optimizer = SetupRecorder(torch, written.append), torch.optim.SGD(net[1].parameters())
    for number in (1, 2):
        notes = setup.beside(Hears(), sliced(1), 1)
        call(notes, net, torch.ones(3, 2))
        for name, part in (("Net.0", net[0]), ("Net.1", net[1])):
            call(notes, part, name=name)
        net(torch.ones(3, 2)).sum().backward()
        notes.enter("optimizer", "SGD", optimizer)
        notes.leave("optimizer", "SGD")
        setup.end(1, number)
    # Slices that take no notes look whether it is still so.
    for number in (8, 9, 10, 11):
        setup.end(1, number)
    found = [each["setup_1"]["unused_gradients"] for each in written]
    assert found[:2] == [None, None]
    assert len(found) == 3
    assert of(found[2]["modules"][0], "module parameters") == ["Net.0", 6]


def test_layers_that_work_differently_in_training_are_named(noted):
    layers = {"a": nn.BatchNorm1d(4), "b": nn.BatchNorm1d(4, track_running_stats=False)}
    # It computes new averages, which is the purpose of such a pass.
    layers["c"] = nn.BatchNorm1d(4, momentum=None)
    layers |= {"d": nn.Dropout(0.5), "e": nn.Dropout(0.0), "f": nn.Linear(2, 2)}
    for path, layer in layers.items():
        for _ in range(2):
            call(noted, layer, name=path)
        call(noted, layer.eval(), name=f"{path}.eval")
    norm, dropout = {"path": "a", "type": "BatchNorm1d"}, {"path": "d", "type": "Dropout"}
    assert of(noted.facts(), "training_norms training_dropouts") == [
        *({"count": 1, "modules": [norm]}, {"count": 1, "modules": [dropout]})
    ]
    for number in range(MOST_NAMED + 3):
        call(noted, nn.BatchNorm1d(2), name=f"norm.{number}")
    norms = noted.facts()["training_norms"]
    assert (norms["count"], len(norms["modules"]), MOST_NAMED) == (MOST_NAMED + 4, MOST_NAMED, 50)


def test_an_optimizer_by_its_class_settings_and_tensors(noted):
    model, half = nn.Linear(8, 4), nn.Parameter(torch.zeros(5, dtype=torch.float16))
    half.grad = torch.zeros_like(half)
    model(torch.randn(2, 8)).sum().backward()
    # A parameter without a gradient is not updated.
    unused = nn.Parameter(torch.zeros(100))
    optimizer = torch.optim.AdamW([*model.parameters(), half, unused], amsgrad=True)
    for _ in range(2):
        noted.enter("optimizer", "AdamW", optimizer)
        noted.leave("optimizer", "")
    (found,) = noted.facts()["optimizers"]
    assert (noted.failed, found.pop("calls")) == (None, 2)
    assert found.pop("place")["file"] == __file__
    on = ("amsgrad", "weight_decay", "has_fused", "has_foreach")
    off = ("capturable", "differentiable", "maximize", "momentum", "centered")
    sizes = {"tensors": 3, "elements": 32 + 4 + 5, "parameter_bytes": 36 * 4 + 5 * 2}
    sizes["sparse_tensors"] = 0
    words = {"name": "AdamW", "base": "AdamW", "devices": ["cpu"], "dtypes": ["float16", "float32"]}
    flags = dict.fromkeys(on, True) | dict.fromkeys(off, False)
    unset = dict.fromkeys(("fused", "foreach", "nesterov"))
    assert found == words | sizes | flags | unset


def sliced(number, kind="flops"):
    return SlicePlan(kind, (("flops", "count"),), number, 1)


def test_only_first_slices_are_listened_in():
    written = []
    setup, told = SetupRecorder(torch, written.append), Hears()
    for listener, planned in ((told, sliced(2)), (told, sliced(1, "whole")), (None, sliced(1))):
        assert setup.beside(listener, planned, 1) is listener
    setup.end(1, 5)
    assert written == []
    for number, plan in ((0, 1), (1, 1), (1, 2)):
        beside = setup.beside(told, sliced(number), plan)
        beside.enter("module", "Linear", nn.Linear(2, 2))
        beside.step_ended(1)
        setup.end(plan, number)
    setup.end(2, 9)
    assert told.heard == ["+module Linear Linear", "ended 1"] * 3
    steps = [{name: notes["steps"] for name, notes in each.items()} for each in written]
    assert steps == [{"setup_1": 1}, {"setup_1": 2}, {"setup_2": 1}]
