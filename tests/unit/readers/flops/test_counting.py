"""Whose work an operator is, and when counting gives way; figures by hand beside each model."""

import threading
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from profstack.readers.flops.counting import COMPILED, Count, Owners
from tests.support.engine import elsewhere
from tests.support.flop_slices import count

X = torch.randn(3, 4)


def test_layers_have_their_own_work_and_the_rest_is_outside_or_the_optimizers():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    critic, weight = nn.Sequential(nn.Linear(3, 2), nn.Tanh()), nn.Parameter(torch.randn(6, 6))

    class Whitening(torch.optim.Optimizer):
        def step(self, closure=None):
            weight.data -= 0.01 * weight.grad @ weight.grad.T @ weight.grad

    adam = torch.optim.Adam([*net.parameters(), *critic.parameters()])
    whitening = Whitening([weight], {})

    def step():
        adam.zero_grad()
        functional.mse_loss(critic(net(torch.ones(5, 4))), torch.zeros(5, 2)).backward()
        adam.step()
        (torch.randn(4, 6) @ weight).square().sum().backward()
        whitening.step()

    counted = count(step, steps=2)
    first, second, third, around = (2 * 2 * n for n in (5 * 4 * 8, 5 * 8 * 3, 5 * 3 * 2, 4 * 36))
    assert counted.by_module == {
        # The first layer's input needs no gradient.
        "Sequential.0": (first, first),
        "Sequential.2": (second, 2 * second),
        "Sequential#2.0": (third, 2 * third),
        None: (around, around),
        "(optimizer)": (2 * 2 * 2 * 6 * 6 * 6, 0),
    }
    assert sum(row["calls"] for row in counted.rows) == 2 * (3 + 5 + 2 + 2)


def test_forward_work_done_again_is_backward_work_as_are_second_derivatives():
    first, second, last = (nn.Linear(8, 8) for _ in range(3))
    x, each = torch.randn(5, 8, requires_grad=True), 2 * 5 * 8 * 8
    block = lambda x: torch.sin(second(torch.tanh(first(x))))  # noqa: E731
    for reentrant in (False, True):
        out = partial(checkpoint, block, x, use_reentrant=reentrant)
        counted = count(lambda out=out: last(out()).sum().backward())
        again, once = (each, 3 * each), (each, 2 * each)
        assert counted.by_module == {"Linear": again, "Linear#2": again, "Linear#3": once}
    net, x = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 1)), torch.randn(4, 6)

    def step():
        (gradient,) = torch.autograd.grad(net(x.requires_grad_()).sum(), x, create_graph=True)
        gradient.square().sum().backward()

    first, last = 2 * 4 * 6 * 10, 2 * 4 * 10
    # First pass: to the input through both. Second: through both of those products (their two
    # gradients each, but for the last layer's, whose incoming gradient is a constant), and on
    # through tanh to the first layer's weights and to the input.
    works = {"Sequential.0": (first, first + 4 * first), "Sequential.2": (last, last + last)}
    assert count(step).by_module == works


def test_an_error_or_another_thread_leaves_the_rest_where_it_belongs():
    net, outer = nn.Linear(3, 3), nn.Sequential(nn.Identity(), nn.Linear(5, 5))

    def step():
        with pytest.raises(RuntimeError):
            outer(torch.ones(2, 2))
        net(torch.ones(2, 3))
        elsewhere(lambda: torch.mm(X, X.T))
        torch.mv(X, X[0])

    assert count(step).by_module == {"Linear": (2 * 2 * 3 * 3, 0), None: (2 * 3 * 4, 0)}


class Asks(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.owners, self.found = Owners(torch), []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
            self.found.append(self.owners.owner())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("reentrant", [False, True])
def test_on_another_thread_the_frames_tell_the_owner(reentrant):
    """As on the threads on which the autograd engine does the backward of a device."""
    modules, asking = {"first": nn.Linear(4, 4), "last": nn.Linear(4, 4)}, Asks()

    def called(name, x):
        told = threading.current_thread() is threading.main_thread()
        if told:
            asking.owners.enter("module", name, modules[name])
        out = modules[name](x)
        if told:
            asking.owners.leave("module", name)
        return out

    both = lambda x: torch.tanh(called("last", torch.tanh(called("first", x))))  # noqa: E731
    out = checkpoint(both, torch.randn(3, 4, requires_grad=True), use_reentrant=reentrant).sum()
    engine = torch.autograd.Variable._execution_engine

    def backward():
        # As there, no pass is begun in Python on this thread but those inside this one.
        with asking:
            engine.run_backward((out,), (torch.ones(()),), False, False, (), True, True)

    elsewhere(backward)
    # Forward again, then both gradients of the last layer and both of the first.
    again = [("first", 1), ("last", 1)]
    assert asking.found == [*again, *[("last", 1)] * 2, *[("first", 1)] * 2]


def test_calls_without_a_formula_have_rows_of_their_own():
    square = torch.randn(6, 6)
    rows = count(lambda: torch.linalg.solve(square, square @ square)).rows
    found = {row["operator"]: (row["calls"], row["flop"]) for row in rows}
    assert found == {"aten::mm": (1, 2 * 6 * 6 * 6), "aten::_linalg_solve_ex": (1, None)}


def test_what_a_closure_computes_is_the_loops():
    weight = nn.Parameter(torch.ones(4, 5))

    class Doubling(torch.optim.SGD):
        def step(self, closure):
            closure()
            torch.mm(X, X.T)

    def closure():
        (X @ weight).sum().backward()

    found = count(lambda: Doubling([weight], 0.1).step(closure)).by_module
    assert found == {None: (2 * 3 * 4 * 5, 2 * 3 * 4 * 5), "(optimizer)": (2 * 3 * 4 * 3, 0)}


def test_targets_that_a_loss_ignores_are_counted_by_number_of_classes(monkeypatch):
    words = torch.tensor([[1, -100, 2], [-100, -100, 0]])
    pixels = torch.tensor([[[1, 255], [0, 255]]])

    def step():
        logits = torch.randn(2, 3, 7, requires_grad=True)
        functional.cross_entropy(logits.flatten(0, 1), words.flatten()).backward()
        nn.CrossEntropyLoss(ignore_index=2)(logits.transpose(1, 2), words.clamp(min=0))
        functional.cross_entropy(torch.randn(1, 4, 2, 2), pixels, ignore_index=255)
        functional.cross_entropy(torch.randn(2, 5), torch.rand(2, 5).softmax(1))
        functional.mse_loss(X, X)

    rows = count(step, steps=2).captured.frames["loss_targets"]
    names = ("classes", "targets", "ignored_index", "calls", "ignored")
    found = {tuple(row[name] for name in names) for row in rows}
    assert found == {(7, 6, -100, 2, 6), (7, 6, 2, 2, 2), (4, 4, 255, 2, 4)}
    # What cannot be read is left alone, and ends nothing.
    odd = lambda *_: 1 / 0  # noqa: E731
    monkeypatch.setattr("profstack.readers.flops.counting.can_be_read", odd)
    captured = count(lambda: (step(), torch.mm(X, X.T))).captured
    assert (captured.frames["loss_targets"], len(captured.frames["flop_counts"])) == ([], 1)


OTHER_BACKWARD = {
    "prod": lambda w: (w @ w).prod(1),
    "masked_fill": lambda w: (w @ w).masked_fill(w > 0, w.mean()),
    "cumprod": lambda w: torch.cumprod(w @ w, 0),
    "det": lambda w: torch.det(w @ w),
}


def test_the_mode_is_left_before_a_backward_that_it_would_change():
    """These have other digits under any dispatch mode, some for second derivatives alone."""

    def run():
        torch.manual_seed(2)
        w = torch.randn(size, size, requires_grad=True)
        out = call(w)
        (gradient,) = torch.autograd.grad((out * torch.randn_like(out)).sum(), w, create_graph=True)
        return [out.tolist(), gradient.tolist()]

    for name, call in OTHER_BACKWARD.items():  # noqa: B007  # the run calls it
        size, observed = (64 if name == "masked_fill" else 8), []
        counted = count(lambda observed=observed: observed.extend(run()))
        assert (observed, counted.rows) == (run(), [])
        ((slug, text),) = counted.captured.notes
        assert (slug, "dispatch mode" in text) == ("gave-way", True)
    # Without a backward they are counted as any.
    w, weight, product = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True), 2 * 8 * 8 * 8
    for name in ("prod", "masked_fill"):
        call = OTHER_BACKWARD[name]
        for step in (partial(call, w), torch.no_grad()(partial(call, weight))):
            assert count(step).operators == {"aten::mm": product}


def test_an_error_of_ours_ends_the_counting_and_is_kept(monkeypatch):
    monkeypatch.setattr(Count, "owner", lambda self: 1 / 0)
    counts = Count(torch)
    counts.begin()
    torch.mm(X, X.T)
    counts.end()
    assert (counts.on, type(counts.error)) == (False, ZeroDivisionError)


def test_what_a_mask_leaves_out_is_unknown_where_it_is_for_one_call(monkeypatch):
    for left, both in (([3, 4], 7), ([None, 4], None), ([3, None], None)):
        left_out = lambda *_, left=left: left.pop(0)  # noqa: E731
        monkeypatch.setattr("profstack.readers.flops.counting.left_out", left_out)
        (row,) = count(lambda: (torch.mm(X, X.T), torch.mm(X, X.T))).rows
        assert (row["calls"], row["masked_flop"]) == (2, both)


def test_counting_ends_where_a_pass_takes_the_mode_off_or_dynamo_compiles():
    import torch._dynamo

    counts, out = Count(torch), torch.ones(2, requires_grad=True) * 2
    # Autograd puts the modes back that were on when the pass began.
    out.register_hook(lambda gradient: counts.begin())
    out.sum().backward()
    assert counts.gave_way is None
    counts.step_ended(1)
    assert (counts.on, "inside a backward pass" in counts.gave_way) == (False, True)
    counts = Count(torch)
    counts.begin()
    (starts,) = torch._dynamo.callback.callback_handler.start_callbacks
    torch.mm(X, X.T)
    starts()
    torch.mm(X, X.T)
    assert (counts.on, counts.gave_way) == (False, COMPILED)
    counts.end()
    assert list(counts.rest().calls.values()) == [1]
