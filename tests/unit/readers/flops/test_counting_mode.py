"""The dispatch mode of the flops layer: a script runs under it as it does without it."""

import traceback

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from profstack.readers.flops.counting import Count
from tests.support.flop_slices import count

X = torch.randn(3, 4)
PRODUCT = 2 * 3 * 4 * 3


def test_composite_operators_run_what_they_call():
    encoder, x = nn.TransformerEncoderLayer(16, 4, 32).eval(), torch.randn(6, 2, 16)
    recurrent = nn.LSTM(16, 8, bidirectional=True)

    def step():
        recurrent(encoder(x))
        torch.einsum("ij,jk->ik", X, X.T)

    # In inference mode composite operators reach the mode, which runs what they call one by one.
    inside, outside = count(torch.inference_mode()(step)), count(torch.no_grad()(step))
    assert sum(map(sum, inside.by_module.values())) > PRODUCT
    assert inside.by_module == outside.by_module


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ torch.ones(7, 7)


ERRORS = {
    "shapes": lambda: torch.ones(3, 4) @ torch.ones(3, 4),
    "backward": lambda: Broken.apply(torch.ones(2, 2, requires_grad=True)).sum().backward(),
    "memory": lambda: torch.empty(10**15),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_of_the_script_have_no_frame_of_ours(name):
    def raised():
        with pytest.raises(Exception) as caught:  # noqa: PT011  # compared below
            ERRORS[name]()
        trace = traceback.extract_tb(caught.value.__traceback__)
        return type(caught.value), str(caught.value), [(frame.name, frame.line) for frame in trace]

    plain, counting = raised(), Count(torch)
    counting.begin()
    try:
        assert (raised(), torch._C._len_torch_dispatch_stack()) == (plain, 1)
    finally:
        counting.end()
    assert (torch._C._len_torch_dispatch_stack(), counting.error) == (0, None)


# Where the mode is put on and taken off: outside of guards (`inference_mode`), and in them. A
# parameter that is made in between gives a thread back the keys of the modes on its stack.
@pytest.mark.parametrize(
    "places",
    [
        "on out", "out on", "on in out end", "in on end out", "in on end in out end",
        "in on end made in out end", "in on end made in in out end end", "in on in out end end",
        "on in made out end",
    ],
)  # fmt: skip
def test_operators_after_it_was_on_run_as_before(places):
    exit_, guards, counting = torch.inference_mode.__exit__, [], Count(torch)
    for place in places.split():
        if place == "in":
            guards.append(torch.inference_mode())
            # As `with` does it: what ends the guard is looked up when it begins.
            guards[-1].__enter__()
            guards.append(guards.pop().__exit__)
        elif place == "end":
            guards.pop()(None, None, None)
        elif place == "made":
            nn.Parameter(torch.ones(2))
        else:
            {"on": counting.begin, "out": counting.end}[place]()
    counting.end()
    try:
        assert torch.empty(3).shape == (3,)
        assert not torch._C._dispatch_tls_is_dispatch_key_included("Python")
    finally:
        torch._C._push_on_torch_dispatch_stack(counting._mode)
        torch._C._pop_torch_dispatch_stack(None)
    # A guard that began before it was put on ends by itself: the next one takes ours off.
    with torch.inference_mode():
        pass
    assert (torch._C._len_torch_dispatch_stack(), torch.inference_mode.__exit__) == (0, exit_)


@pytest.mark.parametrize("made_between", [False, True])
def test_a_step_that_begins_in_one_guard_is_counted_in_the_next(made_between):
    layer, counting = nn.Linear(4, 3), Count(torch)

    def call():
        counting.enter("module", "layer", layer)
        layer(X)
        counting.leave("module", "layer")

    with torch.inference_mode():
        counting.begin()
    if made_between:
        nn.Parameter(torch.ones(2))
    with torch.inference_mode():
        call()
        counting.step_ended(1)
    with torch.inference_mode():
        call()
        counting.step_ended(2)
        counting.end()
    assert [sum(step.flop.values()) for step in counting.steps] == [PRODUCT, PRODUCT]
    assert counting.gave_way is None


class Other(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen = [*getattr(self, "seen", ()), func]
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_scripts_stays_where_it_is_and_sees_what_it_would():
    counting, other = Count(torch), Other()
    guard = torch.inference_mode()
    guard.__enter__()
    end = guard.__exit__
    counting.begin()
    end(None, None, None)
    with other:
        # The counting began inside a guard that has ended: none of both is asked.
        with torch.inference_mode():
            counting.enter("module", "layer", nn.Linear(4, 3))
            X + 1
        X + 1
        assert len(other.seen) >= 2
        assert torch._C._get_dispatch_stack_at(1) is other
        counting.end()
        X + 1
    assert torch._C._len_torch_dispatch_stack() == 0
    assert not torch._C._dispatch_tls_is_dispatch_key_included("Python")


def test_a_guard_that_begins_and_ends_while_it_is_on_leaves_it_seeing():
    layer, counting = nn.Linear(4, 3), Count(torch)
    with torch.inference_mode():
        counting.begin()
    with torch.inference_mode():
        pass
    layer(X)
    counting.step_ended(1)
    counting.end()
    assert sum(counting.steps[0].flop.values()) == PRODUCT
