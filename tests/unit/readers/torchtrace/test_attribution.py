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
from profstack.storage import vocabulary as words
from tests.support.events import events, instant
from tests.support.random_events import LOSS_MODULE, MAIN, structure
from tests.support.torch_slices import observe, self_s

BYTES = ["host_net_bytes", "device_net_bytes"]
FIGURES = ["calls", "forward", "forward_self", "backward", "backward_self", "recomputed"]
PARTS = {"loss": words.LOSS, "optimizer": words.OPTIMIZER, "zero": words.ZERO_GRAD}
PARTS |= {"compiled": words.COMPILED, "accumulation": words.ACCUMULATION}
PARTS |= {"rest": words.UNATTRIBUTED}
# A module in a module, an operator of each, and the marks of what these make; a pass.
FORWARD = "module:1 100-200; module:2 120-180; aten::mm 130-140 sequence=3;"
FORWARD += "aten::add 190-195 sequence=4;"
OF_1, OF_2 = "sequence=4 forward=1", "sequence=3 forward=1"
BOTH = f"{FORWARD} pass 300-400"
# Rows by module or part, with as many figures as are not 0.
CASES = f"""
# Own time is without the modules inside; a module in itself counts once.
module:1 100-400; module:2 150-250; module:2 300-320 = 1: 1 300 180, 2: 2 120 120
module:1 100-400; module:2 150-350; module:1 200-300 = 1: 2 300 200, 2: 1 200 100
# Functions last until the next one or the end of the pass; before the first it is the loss's.
{BOTH}; function:A 310-330 {OF_1}; function:B 340-370 {OF_2} \
= 1: 1 100 40 90 30, 2: 1 60 60 60 60, loss: 0 0 0 10 10
# Forward work done again belongs beside the first time.
{BOTH}; function:B 310-390 {OF_2}; module:2 320-350 \
= 1: 1 100 40 90 0 30, 2: 1 60 60 90 90 30, loss: 0 0 0 10 10
# On devices' threads: until the next one begins on any thread.
{BOTH}; function:B 320-380 thread=2 {OF_2}; function:A 350-390 thread=3 {OF_1} \
= 1: 1 100 40 80 50, 2: 1 60 60 30 30, loss: 0 0 0 20 20
{BOTH}; function:B 320-380 thread=2 {OF_2}; function:A 340-360 {OF_1} \
= 1: 1 100 40 80 60, 2: 1 60 60 20 20, loss: 0 0 0 20 20
# What is inside has no more time than that.
{BOTH}; function:B 320-380 thread=2 {OF_2}; module:2 325-345 thread=2; \
function:A 330-390 thread=3 {OF_1} = 1: 1 100 40 80 70 10, 2: 1 60 60 10 10 10
# Second derivatives, of an operator inside a function; a function in a function.
{BOTH}; function:B 310-350 {OF_2}; aten::mul 320-330 sequence=5; pass 500-600; \
function:C 510-590 sequence=5 forward=1 = 1: 1 100 40 180, 2: 1 60 60 180 180
{BOTH}; function:A 310-390 {OF_1}; pass 320-380; function:B 330-370 {OF_2} \
= 1: 1 100 40 90 50, 2: 1 60 60 40 40, loss: 0 0 0 10 10
# One operator made several functions; of another the maker is not known.
{BOTH}; function:C 310-390 sequence=9 forward=1 = 1: 1 100 40 90 90, 2: 1 60 60
{BOTH}; function:X 310-390 = rest: 0 700 700 90 90, loss: 0 0 0 10 10
{BOTH}; function:torch::autograd::AccumulateGrad 350-380 \
= accumulation: 0 0 0 50 50, loss: 0 0 0 50 50
# A pass inside a module is its own.
module:1 100-400; aten::mm 110-120 sequence=3; pass 200-300; function:A 220-290 {OF_2} \
= 1: 1 200 200 100 100
# An optimizer in an optimizer, with a model in a closure; and one in a pass.
step 500-700; step 520-600; module:1 620-650; zero 720-740 \
= 1: 1 30 30, optimizer: 1 170 170, zero: 1 20 20
{BOTH}; function:B 310-330 {OF_2}; step 340-360 \
= 2: 1 60 60 20 20, optimizer: 1 20 20, loss: 0 0 0 60 60
# Calls inside a compiled function are its graph's.
Torch-Compiled Region: 0/0 100-200; CompiledFunction 120-180; module:1 130-150 \
= 1: 0, compiled: 1 100 100
"""


@pytest.mark.parametrize("case", [line for line in CASES[1:].splitlines() if line[0] != "#"])
def test_rows_by_hand_and_their_own_times_are_the_step(case):
    text, wanted = case.split(" = ")
    rows = module.attribute(read_host(events(text)), [0, 1000], LOSS_MODULE.__eq__).rows
    for name, figures in (row.split(": ") for row in wanted.split(", ")):
        row = rows[PARTS.get(name) or int(name)]
        expected = [int(figure) for figure in figures.split()]
        expected += [0] * (len(FIGURES) - len(expected))
        assert [getattr(row, figure) or 0 for figure in FIGURES] == expected, name
    assert sum(row.forward_self + row.backward_self for row in rows.values()) == 1000


def test_memory_is_that_of_the_calls_around_it():
    made = [*events(f"{BOTH}; function:B 310-330 {OF_2}"), instant(110, 64), instant(150, 32)]
    made += [instant(160, -8), instant(170, 5, device=0), instant(250, 900), instant(320, 900)]
    rows = module.attribute(read_host(made), [0, 1000], bool).rows
    found = {n: (rows[n].host_net_bytes, rows[n].device_net_bytes) for n in (1, 2)}
    assert found == {1: (88, 5), 2: (24, 5)}


@pytest.mark.parametrize("seed", range(80))
def test_rows_of_any_nesting_add_up_to_the_steps(seed):
    """Also with backward functions of two devices: the odd ones have those."""
    made = structure(seed)
    host = read_host(made.events)
    clip_to_steps(host, made.boundaries, made.left_out)
    owned = module.attribute(host, made.boundaries, LOSS_MODULE.__eq__, made.left_out, MAIN)
    records = module.module_records(owned, 3, memory=False)
    edges = zip(made.boundaries, made.boundaries[1:], strict=False)
    kept = [end - at for step, (at, end) in enumerate(edges) if step not in made.left_out]
    assert sum(map(self_s, records)) * 1e9 == pytest.approx(sum(kept), abs=1e-3)
    for row, way in ((row, way) for row in records for way in ("forward", "backward")):
        assert row[f"{way}_s"] + 1e-12 >= row[f"{way}_self_s"] >= -1e-12


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


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 10)
        self.block = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

    def forward(self, x):
        return self.b(checkpoint(self.block, torch.relu(self.a(x)), use_reentrant=False))


def training():
    model, x, labels = Net(), torch.randn(16, 32), torch.zeros(16, dtype=torch.long)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def step():
        optimizer.zero_grad()
        functional.cross_entropy(model(x), labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


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


LINEAR = "Net.a,Net.b,Net.block.0,Net.block.2"
# A step; calls by path in one; and the owners of operators.
PROGRAMS = {
    "training": (
        training,
        "Net=1 Net.a=1 Net.block=1 Net.block.0=1 (optimizer)=1 (zero_grad)=1",
        f"""AddmmBackward0={LINEAR} aten::mm={LINEAR} ReluBackward0=Net GeluBackward0=Net.block.1
        NllLossBackward0=(loss) aten::add_=(optimizer) aten::linalg_vector_norm=None
        torch::autograd::AccumulateGrad=(gradient_accumulation)""",
    ),
    "two roots of one class": (
        gan,
        "Sequential=1 Sequential#2=3 BCEWithLogitsLoss=3",
        "LeakyReluBackward0=Sequential#2.1 ReluBackward0=Sequential.1",
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_rows_of_a_program(name):
    torch.manual_seed(0)
    make, calls, owned = PROGRAMS[name]
    seen = observe(make(), steps=3, mode="detail")
    rows = seen.rows
    # Stamps are rounded to whole nanoseconds.
    assert sum(map(self_s, rows.values())) == pytest.approx(seen.wall_s, abs=5e-9)
    for path, row in rows.items():
        assert row["forward_s"] + row["backward_s"] <= seen.wall_s + 5e-9, path
        again = path == "Net" or path.startswith("Net.block")
        assert (row["recomputed_s"] is not None) == again, path
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
