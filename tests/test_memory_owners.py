"""Memory by owner: models whose bytes are counted by hand, and the traps on the way."""

from __future__ import annotations

import copy
import gc
import sys
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint
from torch_slice import Slice, observe

from profstack.readers.memory import kinds
from profstack.readers.memory.blocks import FOR_EVER, AllocatorEvents, Curves, blocks_of
from profstack.readers.memory.kinds import (
    BUFFERS,
    GRADIENTS,
    HELD,
    INPUTS,
    KINDS,
    OPTIMIZER_STATE,
    PARAMETERS,
    UNOWNED,
    Alive,
    Block,
    find_alive,
)
from profstack.readers.memory.owners import TensorBlocks

MIB = 2**20
BATCH, WIDTH, HIDDEN, OUT = 1024, 256, 512, 128
FLOAT = 4
INPUT = BATCH * WIDTH * FLOAT
WIDE = BATCH * HIDDEN * FLOAT
LEARNED_A = (WIDTH * HIDDEN + HIDDEN) * FLOAT
LEARNED_B = (HIDDEN * OUT + OUT) * FLOAT
LEARNED = LEARNED_A + LEARNED_B
# Two moments of each parameter, and a step of its own for each of the four.
ADAM = 2 * LEARNED + 4 * FLOAT


class Net(nn.Module):
    """Of its calls only the output of `act` is kept for the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(WIDTH, HIDDEN)
        self.act = nn.Tanh()
        self.b = nn.Linear(HIDDEN, OUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.b(self.act(self.a(x)))
        return result


def training(net: nn.Module) -> Callable[[], None]:
    """A step that makes its batch, and lets go of everything at its end."""
    optimizer = torch.optim.Adam(net.parameters())

    def step() -> None:
        optimizer.zero_grad()
        x = torch.randn(BATCH, WIDTH)
        loss = net(x).sum()
        loss.backward()
        optimizer.step()

    return step


def owners(taken: Slice) -> dict[str, tuple[int, int, int, int]]:
    """Bytes at the start and the peak, the most, and at the end, by kind."""
    return {
        row["kind"]: tuple(
            row[name] for name in ("start_bytes", "peak_bytes", "largest_bytes", "end_bytes")
        )
        for row in taken.captured.frames["memory_owners"]
    }  # type: ignore[return-value]  # four of them


def holders(taken: Slice) -> list[tuple[str, str | None, str | None, int | None, int, int]]:
    """Kind, path, operator, direction, tensors and bytes of what a model holds at the peak."""
    return [
        (
            *(row["kind"], taken.path(row["module_id"]), row["operator"], row["backward"]),
            *(row["tensors"], row["bytes"]),
        )
        for row in taken.captured.frames["peak_holders"]
    ]


@pytest.fixture
def others() -> dict[str, int]:
    """Bytes by kind that the process holds beside the test."""
    gc.collect()
    # As in the test there is a model: without one every leaf of other modules' tests is learned.
    model = nn.Linear(1, 1, bias=False)
    found: dict[str, int] = defaultdict(int)
    for block in find_alive().blocks.values():
        found[block.kind] += block.nbytes
    found["parameters"] -= FLOAT
    del model
    return found


# -- by hand ---------------------------------------------------------------------------------------


def test_a_training_step_to_the_byte(others: dict[str, int]) -> None:
    taken = observe(training(Net()), 1, "detail")
    assert taken.captured.notes == []
    found = owners(taken)
    # The peak is in the backward of `act`: its kept output, its gradient's two ends, and what
    # `b` has got already. The sum's result and the gradient it begins with are a number each.
    assert found["activations"] == (0, WIDE + FLOAT, WIDE + FLOAT, 0)
    assert found["temporaries"] == (0, 2 * WIDE + FLOAT, 2 * WIDE + FLOAT, 0)
    held = others["gradients"]
    assert found["gradients"] == (LEARNED + held, LEARNED_B + held, LEARNED + held, LEARNED + held)
    assert found["parameters"] == (LEARNED + others["parameters"],) * 4
    assert found["optimizer state"] == (ADAM + others["optimizer state"],) * 4
    assert found["inputs"] == (0, INPUT, INPUT, 0)
    assert "not attributed" not in found
    rows = {(kind, path): size for kind, path, _, _, _, size in holders(taken)}
    assert rows["activations", "Net.act"] == WIDE
    assert rows["temporaries", "Net.act"] == rows["temporaries", "Net.b"] == WIDE
    assert rows["parameters", "Net.a"] == LEARNED_A
    assert rows["optimizer state", "Net.b"] == 2 * LEARNED_B + 2 * FLOAT
    assert rows["inputs", "(wait)"] == INPUT
    gradients = [row for row in holders(taken) if row[:2] == ("gradients", "Net.b")]
    assert {(row[2], row[3], row[5]) for row in gradients} == {
        ("AddmmBackward0", 1, HIDDEN * OUT * FLOAT),
        ("aten::sum", 1, OUT * FLOAT),
    }
    sizes = [row[-1] for row in holders(taken)]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == sum(figures[1] for figures in found.values())


def test_peaks_of_modules_are_above_what_was_when_they_were_called() -> None:
    taken = observe(training(Net()), 1, "detail")
    peaks = {
        taken.path(row["module_id"]): (row["host_peak_bytes"], row["device_peak_bytes"])
        for row in taken.captured.frames["module_peaks"]
    }
    out = BATCH * OUT * FLOAT
    assert peaks == {
        "Net": (2 * WIDE, None),
        "Net.a": (WIDE, None),
        "Net.act": (WIDE, None),
        "Net.b": (out, None),
    }


def test_the_first_step_takes_the_gradients_and_the_optimizers_state(
    others: dict[str, int],
) -> None:
    taken = observe(training(Net()), 1, "detail", warm=0)
    found = owners(taken)
    before, state = others["gradients"], others["optimizer state"]
    assert found["gradients"][0] == before
    assert found["gradients"][2:] == (before + LEARNED,) * 2
    assert found["optimizer state"] == (state, state, state + ADAM, state + ADAM)


def test_torchs_own_memory_profile_says_the_same() -> None:
    net, again = Net(), Net()
    found = owners(observe(training(net), 1, "detail", warm=0))
    step = training(again)
    with torch.profiler.profile(record_shapes=True, profile_memory=True, with_stack=True) as told:
        step()
    profile = told._memory_profile()
    live: dict[str, int] = defaultdict(int)
    at_peak: dict[str, int] = {}
    for _, action, (key, version), size in profile.timeline:
        name = _category(profile, key, version)
        if action.name == "INCREMENT_VERSION":
            live[name] -= size
            live[_category(profile, key, version + 1)] += size
        else:
            live[name] += -size if action.name == "DESTROY" else size
        if sum(live.values()) > sum(at_peak.values()):
            at_peak = dict(live)
    # It does not call a number that begins the backward pass temporary, but an activation.
    assert at_peak["GRADIENT"] == LEARNED_B
    assert at_peak["PARAMETER"] == LEARNED
    assert at_peak["INPUT"] == found["inputs"][1] == INPUT
    works = ("ACTIVATION", "TEMPORARY", "AUTOGRAD_DETAIL")
    ours = found["activations"][1] + found["temporaries"][1]
    assert sum(at_peak.get(name, 0) for name in works) == ours
    assert live["OPTIMIZER_STATE"] == ADAM
    assert live["GRADIENT"] == LEARNED


def _category(profile: Any, key: Any, version: int) -> str:
    category = profile._categories.get(key, version)
    return "NONE" if category is None else str(category.name)


# -- what steps do ---------------------------------------------------------------------------------


class Deep(nn.Module):
    """Four blocks, each of two layers, done again in the backward pass or not."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(8)]
        self.blocks = nn.ModuleList(
            nn.Sequential(*layers[at : at + 2]) for at in range(0, len(layers), 2)
        )
        self.again = again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return x


def test_checkpointing_lowers_the_activations() -> None:
    plain = owners(observe(training(Deep(again=False)), 1, "detail"))["activations"]
    less = owners(observe(training(Deep(again=True)), 1, "detail"))["activations"]
    # Eight kept outputs; with checkpoints one for each block, with the state of the random numbers
    # before it, and those of one block made again.
    assert plain[2] == 8 * INPUT + FLOAT
    states = 4 * torch.get_rng_state().nbytes
    assert less[2] == 6 * INPUT + FLOAT + states
    assert less[1] < plain[1]


class Planted(nn.Module):
    """Takes 64 MiB that nobody needs a line later."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, OUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        large = torch.full((64 * MIB // FLOAT,), 2.0)
        factor = float(large[0])
        del large
        result: torch.Tensor = self.lin(x) * factor
        return result


def test_a_planted_temporary_comes_first() -> None:
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), Planted())
    taken = observe(training(net), 1, "detail")
    first = holders(taken)[0]
    assert first == ("temporaries", "Sequential.1", "aten::full", 0, 1, 64 * MIB)
    peaks = {taken.path(row["module_id"]): row for row in taken.captured.frames["module_peaks"]}
    assert peaks["Sequential.1"]["host_peak_bytes"] == 64 * MIB
    assert peaks["Sequential.0"]["host_peak_bytes"] == INPUT


def test_inference_has_an_output_and_no_gradients(others: dict[str, int]) -> None:
    net, x = Net().eval(), torch.randn(BATCH, WIDTH)

    def step() -> None:
        with torch.no_grad():
            net(x)

    taken = observe(step, 1, "detail")
    found = owners(taken)
    assert found.get("gradients", (0,))[0] == others["gradients"]
    # What it gave back outlives the call; the script lets go of it after.
    assert found["activations"][2] == BATCH * OUT * FLOAT
    assert found["temporaries"][1] == 2 * WIDE
    assert found["inputs"][0] == INPUT
    assert found["activations"][3] == 0


def test_gradients_set_to_zero_in_place_stay(others: dict[str, int]) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        for _ in range(2):
            x = torch.randn(BATCH, WIDTH)
            net(x).sum().backward()
        optimizer.step()

    found = owners(observe(step, 1, "detail"))
    assert found["gradients"] == (LEARNED + others["gradients"],) * 4
    # The second batch is made while the first is still held.
    assert found["inputs"][2] == 2 * INPUT
    assert "optimizer state" not in found or others["optimizer state"]


@pytest.mark.parametrize("emptied", ["before the model", "after the loss", "after the step"])
def test_the_loss_owns_what_it_takes_wherever_gradients_are_emptied(emptied: str) -> None:
    net = nn.Linear(WIDTH, OUT)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    targets = torch.zeros(BATCH, dtype=torch.long)

    def step() -> None:
        x = torch.randn(BATCH, WIDTH)
        if emptied == "before the model":
            optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), targets)
        if emptied == "after the loss":
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if emptied == "after the step":
            optimizer.zero_grad()

    taken = observe(step, 1, "detail")
    rows = {(row[0], row[2]): row[1] for row in holders(taken)}
    assert rows["activations", "aten::cross_entropy_loss"] == "(loss)"
    assert "(outside modules)" not in rows.values()


def test_what_a_second_derivative_needs_is_no_gradient() -> None:
    net = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        x = torch.randn(BATCH, WIDTH, requires_grad=True)
        y = torch.tanh(net(x)).sum()
        (slope,) = torch.autograd.grad(y, x, create_graph=True)
        slope.pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    taken = observe(step, 1, "detail")
    learned = (WIDTH * WIDTH + WIDTH) * FLOAT
    gradients = owners(taken)["gradients"]
    # Those of the parameters and of the batch, and the slope that was asked for.
    assert gradients[2] - gradients[0] <= learned + 2 * INPUT
    assert "not attributed" not in owners(taken)


@pytest.fixture
def alone() -> Iterator[None]:
    """What is alive before the test, models of other tests among it, is not looked at."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("alone")
def test_a_model_of_functions_and_bare_tensors() -> None:
    weight = torch.randn(WIDTH, HIDDEN, requires_grad=True)
    x = torch.randn(BATCH, WIDTH)

    def step() -> None:
        loss = torch.tanh(x @ weight).sum()
        loss.backward()
        with torch.no_grad():
            weight.sub_(weight.grad, alpha=0.1)
        weight.grad = None

    taken = observe(step, 1, "detail")
    found = owners(taken)
    assert found["activations"][2] == WIDE + FLOAT
    assert found["inputs"][0] == INPUT
    assert found["gradients"][2] >= WIDTH * HIDDEN * FLOAT
    path = {row[1] for row in holders(taken) if row[0] == "activations"}
    assert path == {"(outside modules)"}


def test_parameters_that_modules_share_stand_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into = nn.Linear(WIDTH, WIDTH, bias=False)
            self.out = nn.Linear(WIDTH, WIDTH, bias=False)
            self.out.weight = self.into.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.out(self.into(x))
            return result

    taken = observe(training(Tied()), 1, "detail")
    rows = {path: size for kind, path, *_, size in holders(taken) if kind == "parameters"}
    assert rows["Tied.into"] == WIDTH * WIDTH * FLOAT
    assert "Tied.out" not in rows


def test_a_script_that_trains_on_a_thread_of_its_own_is_told_why_there_is_nothing() -> None:
    taken: list[Slice] = []
    thread = threading.Thread(target=lambda: taken.append(observe(training(Net()), 1, "detail")))
    thread.start()
    thread.join()
    captured = taken[0].captured
    assert "memory_owners" not in captured.frames
    assert [slug for slug, _ in captured.notes] == ["no-memory-owners"]
    assert "thread of its own" in captured.notes[0][1]
    # Nothing was seen of the modules' memory either, which is not the same as none.
    assert {row["host_net_bytes"] for row in taken[0].rows.values()} == {None}


class Numbers(torch.utils.data.Dataset[Any]):
    """Rows of random numbers."""

    def __len__(self) -> int:
        return 6 * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((WIDTH,), float(index))


def test_batches_of_a_worker_are_inputs_that_no_allocator_saw() -> None:
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    loader = iter(torch.utils.data.DataLoader(Numbers(), batch_size=BATCH, num_workers=1))

    def step() -> torch.Tensor:
        nonlocal batch
        batch = next(loader)
        optimizer.zero_grad()
        net(batch).sum().backward()
        optimizer.step()
        return batch

    batch = torch.empty(0)
    found = owners(observe(step, 1, "detail"))
    # The batch before it goes when the new one comes; of the moment both may be there.
    assert found["inputs"][0] == found["inputs"][3] == INPUT
    assert INPUT <= found["inputs"][1] <= 2 * INPUT


def test_results_and_objects_are_as_without(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = Net()
    twin = copy.deepcopy(net)

    def train(model: nn.Module, **keywords: Any) -> list[torch.Tensor]:
        torch.manual_seed(1)
        gone = weakref.ref(model)
        observe(training(model), 1, **keywords)
        assert gone() is model
        return [*model.parameters(), torch.rand(3)]

    for ours, plain in zip(train(net, mode="detail"), train(twin, mode="timed"), strict=True):
        assert torch.equal(ours, plain)
    assert [name for name in vars(net) if "hook" in name and getattr(net, name)] == []
    gone = weakref.ref(net.a.weight.grad)
    net.zero_grad()
    assert gone() is None


def test_what_fails_is_a_note_and_the_times_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**keywords: Any) -> Alive:
        raise ValueError("no memory today")

    monkeypatch.setattr("profstack.readers.memory.kinds.find_alive", fail)
    captured = observe(training(Net()), 1, "detail").captured
    text = "no owners of memory: ValueError: no memory today"
    assert ("no-memory-owners", text) in captured.notes
    assert captured.frames["module_times"]
    assert "memory_owners" not in captured.frames


# -- what is alive ---------------------------------------------------------------------------------


class Strange(torch.Tensor):
    """A subclass that wants to hear of everything that is done to it."""

    @classmethod
    def __torch_function__(cls, *arguments: Any, **keywords: Any) -> Any:
        raise AssertionError("asked")


class Pretender:
    """Says that it is a tensor, to whoever asks it."""

    @property
    def __class__(self) -> Any:
        raise AssertionError("asked for its class")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"asked for {name}")


def block_of(found: Alive, tensor: torch.Tensor) -> Block | None:
    with torch._C.DisableTorchFunction():
        return found.blocks.get(("cpu", torch._C._data_address(tensor)))


def test_tensors_of_all_sorts_are_found_and_not_touched() -> None:
    base = torch.zeros(100)
    views = [base[2:], base.view(10, 10), base.detach()]
    strange = torch.zeros(7).as_subclass(Strange)
    copied = torch._lazy_clone(torch.zeros(9))
    sparse = torch.eye(5).to_sparse()
    with FakeTensorMode():
        fake = torch.zeros(1000)
    kept = [Pretender(), torch.empty(8, device="meta"), fake, torch.empty(0)]
    wide = nn.Linear(3, 3, dtype=torch.float64)
    found = find_alive()
    assert (block_of(found, base), len(kept)) == (Block(400, HELD, False), 4)
    assert all(block_of(found, view) is block_of(found, base) for view in views)
    assert block_of(found, strange) == Block(28, HELD, False)
    assert block_of(found, sparse._values()) == Block(20, HELD, False)
    # Looked at, it would have become a copy.
    assert torch._C._is_cow_tensor(copied)
    weight = block_of(found, wide.weight)
    assert weight is not None
    assert (weight.nbytes, weight.kind) == (72, PARAMETERS)
    assert [holder() for holder in weight.holders] == [wide]


def test_kinds_of_what_modules_and_optimizers_hold() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    found = find_alive()
    mean = block_of(found, net[1].running_mean)  # type: ignore[arg-type]  # it is a buffer
    moment = block_of(found, optimizer.state[net[0].weight]["exp_avg"])
    grad = net[0].weight.grad
    assert isinstance(grad, torch.Tensor)
    slope = block_of(found, grad)
    assert mean is not None
    assert moment is not None
    assert slope is not None
    assert [mean.kind, moment.kind, slope.kind] == [BUFFERS, OPTIMIZER_STATE, GRADIENTS]
    holders = [block.holders[0]() for block in (mean, moment, slope)]
    assert holders == [net[1], net[0], net[0]]


def test_shared_memory_is_an_input_where_nothing_else_is_known() -> None:
    tensor = torch.zeros(1000).share_memory_()
    assert block_of(find_alive(), tensor) == Block(4000, INPUTS, True)


def test_a_death_is_noted_without_a_line_of_python() -> None:
    tensor = torch.zeros(1000)
    view = tensor[10:]
    block = block_of(find_alive(watched=True), tensor)
    assert block is not None
    del tensor
    assert block.died_ns == []
    calls: list[str] = []
    sys.setprofile(lambda frame, event, argument: calls.append(frame.f_code.co_filename))
    try:
        del view
    finally:
        sys.setprofile(None)
    assert len(block.died_ns) == 1
    assert kinds.__file__ not in calls


# -- allocators' events ----------------------------------------------------------------------------


def told(*events: tuple[int, int, int], device: str = "cpu") -> AllocatorEvents:
    """Events of time, address and bytes; each has a position of its own."""
    time, address, nbytes = (np.array(column, np.int64) for column in zip(*events, strict=True))
    zeros = np.zeros(len(events), np.int64)
    return AllocatorEvents(time, address, nbytes, zeros, np.arange(len(events)), [device], {})


def test_blocks_at_one_address_follow_each_other() -> None:
    events = told((1, 7, 64), (2, 7, -64), (3, 7, 32), (4, 8, 16), (5, 7, 48), (6, 9, -128))
    born, given_back = blocks_of(events)
    columns = (born.address, born.nbytes, born.begin, born.end)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    # The block of 32 was given back by a thread that nobody watches.
    assert rows == [(7, 64, 1, 2), (7, 32, 3, 5), (7, 48, 5, FOR_EVER), (8, 16, 4, FOR_EVER)]
    assert born.freed.tolist() == [1, -1, -1, -1]
    assert (given_back.nbytes.tolist(), given_back.end.tolist()) == ([128], [6])


def test_no_event_makes_no_block() -> None:
    empty = np.zeros(0, np.int64)
    born, given_back = blocks_of(AllocatorEvents(empty, empty, empty, empty, empty, [], {}))
    assert (len(born), len(given_back)) == (0, 0)
    curves = Curves(born, [0, 1], ())
    assert curves.highest(curves.levels(born.nbytes > 0)) == 0


def test_a_device_tells_what_was_alive_before() -> None:
    # Stands for a CUDA device, which no machine of tests has: its allocator tells of every block
    # that is given back, and counts what it has given out.
    events = told((10, 512, -1024), (20, 4096, 2048), (30, 512, 512), device="cuda:0")
    born, given_back = blocks_of(events)
    module = nn.Linear(1, 1)
    held = [weakref.ref(module)]
    before = Alive(
        {("cuda:0", 1): Block(4096, PARAMETERS, False, held)}, totals={"cuda:0": 4096 + 1024 + 256}
    )
    named = SimpleNamespace(alive=lambda: module)
    known = TensorBlocks(events, 5, {3: named}, 0)
    older, owned = known.older(before, Alive(), born, given_back)
    rows = list(
        zip(
            (KINDS[number] for number in owned.kind.tolist()),
            *(older.nbytes.tolist(), older.end.tolist(), owned.owner.tolist()),
            strict=True,
        )
    )
    assert rows == [
        (PARAMETERS, 4096, FOR_EVER, 3),
        (UNOWNED, 1024, 10, 0),
        (UNOWNED, 256, FOR_EVER, 0),
    ]
    curves = Curves(older.with_(born), [5, 40], ())
    levels = curves.levels(curves.blocks.nbytes > 0)
    assert levels[curves.first + 1] == 4096 + 1024 + 256
    assert curves.highest(levels) == 4096 + 256 + 2048 + 512


def test_steps_that_do_not_count_have_no_peak() -> None:
    events = told((10, 1, 100), (15, 1, -100), (25, 2, 60), (26, 2, -60), (35, 3, 80), (36, 3, -80))
    born, _ = blocks_of(events)
    curves = Curves(born, [5, 20, 30, 40], left_out=(0, 2))
    levels = curves.levels(born.nbytes > 0)
    assert curves.highest(levels) == 60
    whole = Curves(born, [5, 20, 30, 40], left_out=(0, 1, 2))
    assert whole.highest(whole.levels(born.nbytes > 0)) == 100
