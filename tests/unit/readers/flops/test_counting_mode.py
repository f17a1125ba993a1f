"""The dispatch mode of the flops layer: a script runs under it as it does without it."""

import traceback

import pytest
import torch
from torch import nn

from profstack.readers.flops.counting import Count
from tests.support.flop_slices import count

X = torch.randn(3, 4)
PRODUCT = 2 * 3 * 4 * 3


class Zoo(nn.Module):
    """Kernels that have a second implementation, fused and random ones."""

    def __init__(self):
        super().__init__()
        layers = (nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 64), nn.Mish(), nn.Dropout(0.3))
        first, last = nn.Conv1d(1, 4, 3), nn.Conv1d(4, 4, 3, groups=4)
        self.layers = nn.Sequential(*layers)
        self.convolution = nn.Sequential(first, nn.BatchNorm1d(4), nn.Hardswish(), last)
        self.lstm = nn.LSTM(60, 16, bidirectional=True)
        self.encoder = nn.TransformerEncoderLayer(32, 4, 32, batch_first=True)

    def forward(self, x):
        y = self.convolution(self.layers(x)[:, None])
        return self.encoder(self.lstm(y)[0])


def trained(net, x):
    optimizer, losses = torch.optim.Adam(net.parameters()), []
    for _ in range(2):
        optimizer.zero_grad()
        out = net(x)
        losses.append((out * torch.randn_like(out)).sum())
        losses[-1].backward()
        optimizer.step()
    return [each.tolist() for each in (*losses, *net.parameters())]


def inferred(net, x):
    with torch.inference_mode():
        return [net.eval()(x).tolist()]


@pytest.mark.parametrize("run", [trained, inferred])
def test_losses_and_random_numbers_are_the_same_to_the_last_digit(run):
    def whole():
        torch.manual_seed(5)
        return [*run(Zoo(), torch.randn(6, 16)), torch.get_rng_state().tolist()]

    plain, observed = whole(), []
    counted = count(lambda: observed.extend(whole()))
    assert (observed == plain, sum(map(sum, counted.by_module.values())) > 0) == (True, True)


def test_composite_operators_run_what_they_call():
    net, x = Zoo().eval(), torch.randn(6, 16)

    def step():
        net(x)
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
