"""The kinds of memory of what steps do, and tensors of all sorts that are found alive."""

import sys
import weakref

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from profstack.readers.memory import kinds
from profstack.readers.memory.kinds import HELD, Block, find_alive
from tests.support import memory_slices
from tests.support.memory_slices import BATCH, FLOAT, INPUT, LEARNED, WIDE, WIDTH, Net, training
from tests.support.torch_slices import observe

pytestmark = pytest.mark.usefixtures("nothing_left")


def owners(step, warm=2):
    return memory_slices.owners(observe(step, 1, "detail", warm=warm))


def batch(**how):
    return torch.randn(BATCH, WIDTH, **how)


def test_the_first_step_takes_gradients_and_state_and_inference_gives_an_output():
    found = owners(training(Net()), warm=0)
    assert (found["gradients"][0], *found["gradients"][2:]) == (0, LEARNED, LEARNED)
    assert found["optimizer state"] == (0, 0, memory_slices.ADAM, memory_slices.ADAM)
    net, x = Net().eval(), batch()
    found = owners(torch.no_grad()(lambda: (net(x), None)[1]))
    assert (found["inputs"], found["parameters"]) == ((INPUT,) * 4, (LEARNED,) * 4)
    assert "gradients" not in found
    # What it gave back outlives the call; the script lets go of it after.
    assert found["activations"][2:] == (memory_slices.NARROW, 0)
    assert found["temporaries"][1] == 2 * WIDE


def test_a_model_of_functions_and_what_the_script_keeps_or_makes_ahead():
    weight, x = torch.randn(WIDTH, 128, requires_grad=True), batch()

    def functional():
        torch.tanh(x @ weight).sum().backward()
        with torch.no_grad():
            weight.sub_(weight.grad, alpha=0.1)
        weight.grad = None

    taken = observe(functional, 1, "detail")
    found, held = memory_slices.owners(taken), memory_slices.holders(taken)
    figures = (found["activations"][2], found["inputs"][0], found["gradients"][2])
    assert figures == (WIDE + FLOAT, INPUT, WIDTH * 128 * FLOAT)
    assert {row[1] for row in held if row[0] == "activations"} == {"(outside modules)"}

    def step():
        # What the script holds is read before the model's inputs are made: it is none.
        spare = own + 1
        made = batch()
        del spare
        net(made).sum().backward()
        net.zero_grad()
        kept.append(torch.ones(3 * BATCH))
        torch.ones(5 * BATCH)

    net, kept, own = Net(), [], torch.ones(7 * BATCH)
    x.data, weight.data = torch.empty(0), torch.empty(0)
    found = owners(step)
    # The two steps before kept one each.
    assert found["held by the script"] == tuple((7 + 3 * n) * BATCH * FLOAT for n in (2, 2, 3, 3))
    assert (found["inputs"][2], found["temporaries"][2] >= 7 * BATCH * FLOAT) == (INPUT, True)


class Strange(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *arguments, **keywords):
        raise AssertionError("asked")


class Pretender:
    @property
    def __class__(self):
        raise AssertionError("asked for its class")

    def __getattr__(self, name):
        raise AssertionError(f"asked for {name}")


def block_of(found, tensor):
    with torch._C.DisableTorchFunction():
        return found.blocks.get(("cpu", torch._C._data_address(tensor)))


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_tensors_of_all_sorts_are_found_and_not_touched():
    base, eye = torch.zeros(100), torch.eye(5)
    views = [base[2:], base.view(10, 10), base.detach()]
    strange, copied = torch.zeros(7).as_subclass(Strange), torch._lazy_clone(torch.zeros(9))
    sparse = (eye.to_sparse(), eye.to_sparse_csr(), eye[:4, :4].to_sparse_bsc((2, 2)))
    with FakeTensorMode():
        fake = torch.zeros(1000)
    kept = [Pretender(), torch.empty(8, device="meta"), fake, torch.empty(0)]
    found = find_alive()
    assert (block_of(found, base), len(kept)) == (Block(400, HELD, False), 4)
    assert all(block_of(found, view) is block_of(found, base) for view in views)
    assert block_of(found, strange) == Block(28, HELD, False)
    parts = (sparse[0]._values(), sparse[0]._indices(), sparse[1].crow_indices())
    sizes = [block_of(found, part).nbytes for part in (*parts, sparse[2].values())]
    assert sizes == [5 * 4, 2 * 5 * 8, 6 * 8, 2 * 4 * 4]
    # Looked at, it would have become a copy.
    assert torch._C._is_cow_tensor(copied)
    assert (found.unread, found.left_out, found.totals) == (0, 0, {})


def test_the_scripts_tensors_get_no_weak_references_which_swapping_them_forbids():
    net = torch.nn.Linear(3, 2)
    alive = find_alive(watched=True)
    assert alive.blocks
    assert [weakref.getweakrefcount(each) for each in net.parameters()] == [0, 0]


def test_kinds_of_what_modules_and_optimizers_hold():
    net = nn.Sequential(nn.Linear(4, 4, dtype=torch.float64), nn.BatchNorm1d(4).double())
    # A parameter of two modules is one block.
    tied = nn.Linear(4, 4, dtype=torch.float64)
    tied.weight, both = net[0].weight, [net[0], tied]
    loose, leaf = nn.Parameter(torch.zeros(3)), torch.zeros(5, requires_grad=True)
    optimizer = torch.optim.Adam([*net.parameters(), loose])
    net(torch.randn(8, 4).double()).sum().backward()
    optimizer.step()
    # Shared memory is an input where nothing else is known.
    shared, layer = torch.zeros(1000).share_memory_(), nn.Linear(2, 2).share_memory()
    found, weight = find_alive(), net[0].weight
    for tensor, *expected in (
        (weight, kinds.PARAMETERS, 128, both),
        (net[1].running_mean, kinds.BUFFERS, 32, [net[1]]),
        (optimizer.state[weight]["exp_avg"], kinds.OPTIMIZER_STATE, 128, both),
        (weight.grad, kinds.GRADIENTS, 128, both), (loose, kinds.PARAMETERS, 12, []),
        (leaf, HELD, 20, []), (layer.weight, kinds.PARAMETERS, 16, [layer]),
    ):  # fmt: skip
        block = block_of(found, tensor)
        assert [block.kind, block.nbytes, [holder() for holder in block.holders]] == expected
    assert block_of(found, shared) == Block(4000, kinds.INPUTS, True)


def test_too_many_tensors_are_left_out_odd_ones_not_read_and_devices_asked(monkeypatch):
    # Half a second's worth of them.
    assert 100_000 < kinds.MOST_TENSORS < 400_000
    kept, unread = [torch.zeros(2) for _ in range(5)], []
    with monkeypatch.context() as patch:
        patch.setattr(kinds, "MOST_TENSORS", 3)
        found = find_alive()
    assert (found.left_out, len(found.blocks)) == (2, 3)
    assert all(block_of(found, tensor) for tensor in kept[:3])
    torch.func.vmap(lambda x: (unread.append(find_alive().unread), x)[1])(torch.zeros(3))
    assert unread[0] >= 1
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda number: (70, 0, 90)[number])
    assert find_alive().totals == {"cuda:0": 70, "cuda:2": 90}


def test_a_death_is_noted_without_a_line_of_python():
    tensor, calls = torch.zeros(1000), []
    view, block = tensor[10:], block_of(find_alive(watched=True), tensor)
    del tensor
    assert block.died_ns == []
    sys.setprofile(lambda frame, event, argument: calls.append(frame.f_code.co_filename))
    try:
        del view
    finally:
        sys.setprofile(None)
    assert (len(block.died_ns), kinds.__file__ in calls) == (1, False)
    unwatched = torch.zeros(3)
    assert block_of(find_alive(), unwatched).watched is None
