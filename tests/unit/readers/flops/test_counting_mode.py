"""The dispatch mode of the flops layer: a script runs under it as it does without it."""

import traceback

import pytest
import torch
from torch import nn

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
