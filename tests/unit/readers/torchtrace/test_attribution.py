"""Owners of a step's time: every moment counted once, backward work where its forward was."""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from profstack.readers.torchtrace import attribution as module
from profstack.readers.torchtrace.events import EVALUATE, clip_to_steps, read_host
from profstack.readers.torchtrace.step_parts import divide
from tests.support.naive_attribution import Naive
from tests.support.random_events import LOSS_MODULE, MAIN, structure
from tests.support.torch_slices import observe, self_s

BYTES = ["host_net_bytes", "device_net_bytes"]
FIGURES = ["calls", "forward", "forward_self", "backward", "backward_self", "recomputed", *BYTES]


@pytest.mark.parametrize("first", range(0, 80, 40))
def test_rows_of_any_nesting_are_those_of_a_plain_search_and_add_up_to_the_steps(first):
    """Also with backward functions of two devices: the odd ones have those."""
    for seed in range(first, first + 40):
        made = structure(seed)
        host = read_host(made.events)
        clip_to_steps(host, made.boundaries, made.left_out)
        owned = module.attribute(host, made.boundaries, LOSS_MODULE.__eq__, made.left_out, MAIN)
        parts = divide(owned.scopes, made.boundaries, LOSS_MODULE.__eq__, made.left_out, MAIN)
        search = Naive(host, made.boundaries, made.left_out, MAIN)
        wanted = search.rows(parts.times, parts.losses)
        for number in wanted.keys() | owned.rows.keys():
            found = {name: getattr(owned.rows[number], name) or 0 for name in FIGURES}
            expected = {name: pytest.approx(wanted[number][name], abs=1e-6) for name in FIGURES}
            assert found == expected, (seed, number)
        records = module.module_records(owned, 3, memory=False)
        edges = zip(made.boundaries, made.boundaries[1:], strict=False)
        kept = [end - at for step, (at, end) in enumerate(edges) if step not in made.left_out]
        assert sum(map(self_s, records)) * 1e9 == pytest.approx(sum(kept), abs=1e-3), seed
        for row, way in ((row, way) for row in records for way in ("forward", "backward")):
            assert row[f"{way}_s"] + 1e-12 >= row[f"{way}_self_s"] >= -1e-12, seed


def test_records_have_units_and_what_was_not_seen_is_null():
    rows = {
        3: module.ModuleSums(2, 7e9, 5e9, 4e9, 3e9, 2e9, 6e9, 9e9, 640, -320),
        4: module.ModuleSums(0, 1e9, 1e9),
        -2: module.ModuleSums(0, 1e9, 1e9, host_net_bytes=3),
    }
    first, second, part = module.module_records(SimpleNamespace(rows=rows), 8, memory=True)
    times = "forward forward_self backward backward_self recomputed forward_device backward_device"
    wanted = dict(zip((f"{name}_s" for name in times.split()), (7, 5, 4, 3, 2, 6, 9), strict=True))
    wanted |= {"slice": 8, "module_id": 3, "calls": 2}
    assert first == {**wanted, "host_net_bytes": 640, "device_net_bytes": -320}
    columns = ("calls", "recomputed_s", "forward_device_s", *BYTES)
    assert [second[column] for column in columns] == [0, None, None, 0, None]
    assert [part[column] for column in columns] == [None] * 5
    unseen = module.module_records(SimpleNamespace(rows=rows), 8, memory=False)
    assert {row[column] for row in unseen for column in BYTES} == {None}


class Calls(nn.Module):
    """Calls the function given with itself, whose modules have names."""

    def __init__(self, forward, **modules):
        super().__init__()
        self.called = forward
        for name, inner in modules.items():
            setattr(self, name, inner)

    def forward(self, *given):
        return self.called(self, *given)


def mlp():
    return Calls(lambda m, x: m.b(torch.relu(m.a(x))), a=nn.Linear(32, 64), b=nn.Linear(64, 10))


def itself():

    def forward(m, x, depth=3):
        return m.linear(x) if depth == 0 else torch.tanh(m.inner(m, x, depth - 1))

    return Calls(forward, linear=nn.Linear(32, 32), inner=Calls(lambda _, m, *given: m(*given)))


def checkpointed():
    parts = {"before": nn.Linear(32, 32), "head": nn.Linear(32, 10)}
    parts["block"] = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
    again = {"use_reentrant": False}
    return Calls(lambda m, x: m.head(checkpoint(m.block, m.before(x), **again)), **parts)


def sgd(model):
    return torch.optim.SGD(model.parameters(), 1e-3)


def in_backward(model):
    for parameter in model.parameters():
        own = torch.optim.SGD([parameter], lr=1e-3)
        parameter.register_post_accumulate_grad_hook(lambda _, own=own: own.step())
    return SimpleNamespace(zero_grad=model.zero_grad, step=lambda: None)


def training(model, optimizers):
    optimizer = optimizers(model)
    x, labels = torch.randn(16, 32), torch.zeros(16, dtype=torch.long)

    def loss():
        optimizer.zero_grad()
        found = functional.cross_entropy(model(x), labels)
        found.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return found

    return lambda: (loss(), optimizer.step())


def gan():
    maker = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32))
    judge = nn.Sequential(nn.Linear(32, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    real, ones, zeros = torch.randn(16, 32), torch.ones(16, 1), torch.zeros(16, 1)
    criterion = nn.BCEWithLogitsLoss()

    def step():
        fake = maker(torch.randn(16, 8))
        (criterion(judge(real), ones) + criterion(judge(fake.detach()), zeros)).backward()
        criterion(judge(fake), ones).backward()

    return step


CHECKPOINT = ("Calls.block=1 Calls.block.0=1 Calls.head=1", "GeluBackward0=Calls.block.1")
TANH, ADDMM = "TanhBackward0=Calls", "AddmmBackward0=Calls.a,Calls.b"
# Model and optimizer, or a step; calls by path in one step; and the owners of operators.
PROGRAMS = {
    "training": (
        *(mlp, sgd, "Calls=1 Calls.a=1 (optimizer)=1 (zero_grad)=1"),
        f"""{ADDMM} aten::mm=Calls.a,Calls.b ReluBackward0=Calls NllLossBackward0=(loss)
        aten::add_=(optimizer) aten::linalg_vector_norm=None
        torch::autograd::AccumulateGrad=(gradient_accumulation)""",
    ),
    "two roots of one class": (
        *(gan, None, "Sequential=1 Sequential#2=3 BCEWithLogitsLoss=3"),
        "LeakyReluBackward0=Sequential#2.1 ReluBackward0=Sequential.1",
    ),
    "inside itself": (itself, sgd, "Calls=4 Calls.inner=3", TANH),
    "checkpoint": (checkpointed, sgd, *CHECKPOINT),
    "optimizers in the backward": (mlp, in_backward, "(optimizer)=4", ADDMM),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_rows_of_a_program(name):
    torch.manual_seed(0)
    make, optimizers, calls, owned = PROGRAMS[name]
    step = training(make(), optimizers) if optimizers else make()
    seen = observe(step, steps=3, mode="detail")
    rows = seen.rows
    # Stamps are rounded to whole nanoseconds.
    assert sum(map(self_s, rows.values())) == pytest.approx(seen.wall_s, abs=5e-9)
    for path, row in rows.items():
        for way in ("forward", "backward"):
            assert row[f"{way}_s"] >= row[f"{way}_self_s"] - 1e-12 >= -2e-12, path
        assert row["forward_s"] + row["backward_s"] <= seen.wall_s + 5e-9, path
        again = "checkpoint" in name and (path == "Calls" or path.startswith("Calls.block"))
        assert (row["recomputed_s"] is not None) == again, path
    for way in ("forward", "backward"):
        modules = {path: row for path, row in rows.items() if row["module_id"] > 0}
        roots = sum(row[f"{way}_s"] for path, row in modules.items() if "." not in path)
        own = sum(row[f"{way}_self_s"] for row in modules.values())
        assert roots == pytest.approx(own, abs=1e-11)
    for path, count in (each.split("=") for each in calls.split()):
        assert rows[path]["calls"] == 3 * int(count), path
    owners = defaultdict(set)
    for row in seen.operators:
        owners[row["name"]].add(str(seen.path(row["module_id"])).replace(" ", "_"))
    wanted = {each.split("=")[0]: set(each.split("=")[1].split(",")) for each in owned.split()}
    assert {function: owners[function] for function in wanted} == wanted
    evaluated = [owners[name] for name in owners if name.startswith(EVALUATE)]
    assert evaluated
    assert "(not_attributed)" not in set().union(*evaluated)
    if name == "training":
        assert min(rows[path]["forward_s"] for path in ("(loss)", "(before the optimizer)")) > 0
        ranges = seen.host().names.where(lambda text: text.startswith("Optimizer.step"))
        whole = seen.host().duration[ranges].sum() * 1e-9
        assert self_s(rows["(optimizer)"]) == pytest.approx(whole, abs=1e-12)
