"""The flops layer: exact counts by module, forward and backward, and nothing changed by counting.

Expected figures are worked out by hand next to each model: 2 operations for every multiply-add of
every product.
"""

from __future__ import annotations

import importlib.util
import sqlite3
import subprocess
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from conftest import CHECKOUT, RunProfstack, clean_environment
from flop_slice import Attention, Sink, Step, count, without_grad
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from profstack.capture.hooks import DISCOVER, TorchHooks
from profstack.capture.module_names import ModuleNames
from profstack.layer import SliceContext
from profstack.readers.flops.counting import Count, Owners
from profstack.wrappers.flops import FlopsWrapper

X = torch.randn(3, 4)


def script(name: str) -> ModuleType:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(name, CHECKOUT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- figures that everybody agrees on --------------------------------------------------------------


def test_resnet18_has_its_published_count() -> None:
    model = script("resnet18_inference").ResNet18().eval()
    images = torch.randn(1, 3, 224, 224)
    counted = count(without_grad(lambda: model(images)))
    assert counted.total(0) == 2 * 1_814_073_344
    assert counted.total(1) == 0
    # The stem: 112 x 112 places, 64 outputs, 3 inputs, 7 x 7.
    assert counted.of("ResNet18.stem.0", 0) == 2 * 112 * 112 * 64 * 3 * 49
    assert counted.of("ResNet18.fc", 0) == 2 * 512 * 1000
    assert counted.captured.notes == []


@pytest.mark.slow
@pytest.mark.parametrize("heads", [4, 8])
def test_bert_with_fused_attention_is_exact(heads: int) -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=heads,
        intermediate_size=1024,
        vocab_size=1000,
    )
    model = BertModel(config).eval()
    tokens = torch.randint(0, 1000, (8, 128))
    counted = count(without_grad(lambda: model(tokens)))
    projections = 4 * 2 * 8 * 128 * 256 * 256
    attention = 2 * 2 * 8 * 128 * 128 * 256
    feed_forward = 2 * 2 * 8 * 128 * 256 * 1024
    pooler = 2 * 8 * 256 * 256
    assert 4 * (projections + attention + feed_forward) + pooler == 6_980_370_432
    assert counted.total(0) == 6_980_370_432
    fused = "aten::_scaled_dot_product_flash_attention_for_cpu"
    assert counted.operators[fused] == 4 * attention
    assert None not in counted.operators.values()


@pytest.mark.slow
def test_gpt2_in_training_and_evaluation_agrees() -> None:
    """Dropout takes the fused attention away; the products stay the same."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(
        GPT2Config(n_layer=2, n_embd=64, n_head=4, n_positions=64, vocab_size=500)
    )
    tokens = torch.randint(0, 500, (2, 32))
    rows = 2 * 32
    layer = 2 * rows * 64 * (3 * 64 + 64 + 4 * 64 + 4 * 64) + 4 * 2 * 32 * 32 * 64
    expected = 2 * layer + 2 * rows * 64 * 500

    evaluated = count(without_grad(lambda: model.eval()(tokens)))

    def train() -> None:
        model.train()(tokens, labels=tokens).loss.backward()

    trained = count(train)
    assert evaluated.total(0) == trained.total(0) == expected
    # Either gradient of every product: only the embeddings come before the first one.
    assert trained.total(1) == 2 * expected
    assert evaluated.operators != trained.operators


# -- forward and backward, by hand -----------------------------------------------------------------


def test_mlp_by_module() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(net.parameters())
    x = torch.randn(5, 4)

    def step() -> None:
        optimizer.zero_grad()
        functional.mse_loss(net(x), torch.zeros(5, 3)).backward()
        optimizer.step()

    counted = count(step)
    assert counted.of("Sequential.0", 0) == 2 * 5 * 4 * 8
    assert counted.of("Sequential.2", 0) == 2 * 5 * 8 * 3
    # The first layer's input needs no gradient.
    assert counted.of("Sequential.0", 1) == 2 * 5 * 4 * 8
    assert counted.of("Sequential.2", 1) == 2 * 2 * 5 * 8 * 3
    assert counted.modules == {"Sequential.0", "Sequential.2"}
    assert sum(row["calls"] for row in counted.rows) == 2 + 3
    with FlopCounterMode(display=False) as stock:
        step()
    assert counted.total(0) + counted.total(1) == stock.get_total_flops()


def test_convolution_net_by_module() -> None:
    """Strided, depthwise and transposed; torch's own formula has the depthwise backward 6 times."""
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2, padding=1),  # 9 x 9 -> 5 x 5
        nn.Conv2d(6, 6, 3, groups=6),  # -> 3 x 3
        nn.ConvTranspose2d(6, 4, 2, stride=2),  # -> 6 x 6
        nn.Flatten(),
        nn.Linear(4 * 36, 5),
    )
    images = torch.randn(2, 3, 9, 9)
    counted = count(lambda: net(images).sum().backward())
    forward = {
        "Sequential.0": 2 * 2 * 25 * 6 * 3 * 9,
        "Sequential.1": 2 * 2 * 9 * 6 * 1 * 9,
        "Sequential.2": 2 * 2 * 9 * 6 * 4 * 4,
        "Sequential.4": 2 * 2 * 144 * 5,
    }
    assert {path: counted.of(path, 0) for path in forward} == forward
    backward = {path: 2 * flop for path, flop in forward.items()}
    backward["Sequential.0"] //= 2
    assert {path: counted.of(path, 1) for path in forward} == backward
    assert counted.modules == set(forward)


def test_attention_block_by_module() -> None:
    block = Attention(64, 4)
    x = torch.randn(2, 32, 64)
    counted = count(lambda: block(x).sum().backward())
    linear = 2 * 2 * 32 * 64 * 64
    # 2 sequences, 4 heads of 16: one product is 32 x 32 x 16; causal attention counts dense.
    product = 2 * 2 * 4 * 32 * 32 * 16
    for name in ("query", "key", "value"):
        assert counted.of(f"Attention.{name}", 0) == linear
        assert counted.of(f"Attention.{name}", 1) == linear
    assert counted.of("Attention.out", 0) == linear
    assert counted.of("Attention.out", 1) == 2 * linear
    # Scores and values; then the scores again and one gradient for each factor of both.
    assert counted.of("Attention", 0) == 2 * product
    assert counted.of("Attention", 1) == 5 * product


def test_two_networks_of_one_class_are_kept_apart() -> None:
    generator = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 8))
    critic = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1))
    noise = torch.randn(3, 2)
    counted = count(lambda: critic(generator(noise)).mean().backward())
    assert counted.of("Sequential.0", 0) == 2 * 3 * 2 * 16
    assert counted.of("Sequential#2.0", 0) == 2 * 3 * 8 * 4
    assert counted.of("Sequential.0", 1) == 2 * 3 * 2 * 16
    assert counted.of("Sequential.2", 1) == 2 * 2 * 3 * 16 * 8
    assert counted.of("Sequential#2.0", 1) == 2 * 2 * 3 * 8 * 4
    assert counted.of("Sequential#2.2", 1) == 2 * 2 * 3 * 4 * 1


# -- whose work it is ------------------------------------------------------------------------------


def test_work_outside_modules_and_in_optimizers() -> None:
    weight = nn.Parameter(torch.randn(6, 6))

    class Whitening(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.data -= 0.01 * parameter.grad @ parameter.grad.T @ parameter.grad

    optimizer = Whitening([weight], {})

    def step() -> None:
        (torch.randn(4, 6) @ weight).square().sum().backward()
        optimizer.step()

    counted = count(step)
    assert counted.of(None, 0) == 2 * 4 * 6 * 6
    assert counted.of(None, 1) == 2 * 4 * 6 * 6
    assert counted.of("(optimizer)", 0) == 2 * 2 * 6 * 6 * 6
    assert counted.modules == {None, "(optimizer)"}


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_counts_forward_work_again_as_backward(reentrant: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = (nn.Linear(8, 8) for _ in range(3))
            self.again = False

        def block(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(self.second(torch.tanh(self.first(x))))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = checkpoint(self.block, x, use_reentrant=reentrant) if self.again else self.block(x)
            return self.last(y)

    net = Net()
    x = torch.randn(5, 8, requires_grad=True)
    product = 2 * 5 * 8 * 8
    plain = count(lambda: net(x).sum().backward())
    net.again = True
    counted = count(lambda: net(x).sum().backward())
    for name in ("first", "second", "last"):
        assert counted.of(f"Net.{name}", 0) == plain.of(f"Net.{name}", 0) == product
        assert plain.of(f"Net.{name}", 1) == 2 * product
    assert counted.of("Net.first", 1) == 3 * product
    assert counted.of("Net.second", 1) == 3 * product
    assert counted.of("Net.last", 1) == 2 * product


def test_second_derivatives_belong_to_the_module_whose_forward_it_was() -> None:
    net = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 1))
    x = torch.randn(4, 6, requires_grad=True)

    def step() -> None:
        (gradient,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        gradient.square().sum().backward()

    counted = count(step)
    assert counted.modules == {"Sequential.0", "Sequential.2"}
    first, last = 2 * 4 * 6 * 10, 2 * 4 * 10 * 1
    assert counted.of("Sequential.0", 0) == first
    assert counted.of("Sequential.2", 0) == last
    # First pass: to the input through both. Second: through both of those products (their two
    # gradients each, but for the last layer's, whose incoming gradient is a constant), and on
    # through tanh to the first layer's weights and to the input.
    assert counted.of("Sequential.0", 1) == first + 2 * first + 2 * first
    assert counted.of("Sequential.2", 1) == last + last


def test_gradients_taken_inside_a_forward() -> None:
    """As energy models do: the force is the energy's gradient."""

    class Force(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.energy = nn.Linear(3, 7)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.requires_grad_()
            return torch.autograd.grad(self.energy(x).square().sum(), x)[0]

    net = Force()
    counted = count(lambda: net(torch.randn(5, 3)))
    assert counted.of("Force.energy", 0) == 2 * 5 * 3 * 7
    assert counted.of("Force.energy", 1) == 2 * 5 * 3 * 7
    assert counted.modules == {"Force.energy"}


def test_an_error_inside_a_call_leaves_the_rest_where_it_belongs() -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("now and then")

    net, fails = nn.Linear(3, 3), Fails()

    def step() -> None:
        with pytest.raises(ValueError, match="now and then"):
            fails(torch.ones(2))
        net(torch.ones(2, 3))
        torch.ones(2, 2) @ torch.ones(2, 2)

    counted = count(step)
    assert counted.of("Linear", 0) == 2 * 2 * 3 * 3
    assert counted.of(None, 0) == 2 * 2 * 2 * 2


def test_a_pass_over_a_graph_from_before_is_of_nobody() -> None:
    net = nn.Linear(3, 3)
    loss = net(torch.ones(2, 3)).sum()
    counted = count(loss.backward)
    assert counted.of(None, 1) == 2 * 2 * 3 * 3
    assert counted.modules == {None}


@pytest.mark.parametrize("reentrant", [False, True])
def test_on_another_thread_the_frames_tell_whose_work_it_is(reentrant: bool) -> None:
    """As on the threads on which the autograd engine does the backward of a device."""
    net = nn.Sequential(
        nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Sin() if False else nn.Tanh()
    )
    first, last = net[0], net[2]
    owners = Owners(torch)
    found: list[tuple[Any, int]] = []

    class Asks(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func._overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
                found.append(owners.owner())
            return func(*args, **(kwargs or {}))

    def told(module: nn.Module, name: str, x: torch.Tensor) -> torch.Tensor:
        if threading.current_thread() is not threading.main_thread():
            return module(x)
        owners.enter("module", name, module)
        try:
            return module(x)
        finally:
            owners.leave("module", name)

    x = torch.randn(3, 4, requires_grad=True)
    again = checkpoint(
        lambda x: net[3](told(last, "last", torch.tanh(told(first, "first", x)))),
        x,
        use_reentrant=reentrant,
    )

    out = again.sum()
    engine = torch.autograd.Variable._execution_engine

    def backward() -> None:
        # As there, no pass is begun in Python on this thread but those inside this one.
        with Asks():
            engine.run_backward((out,), (torch.ones(()),), False, False, (), True, True)

    thread = threading.Thread(target=backward)
    thread.start()
    thread.join()
    # Forward again, then both gradients of the last layer and both of the first.
    assert found == [("first", 1), ("last", 1), *[("last", 1)] * 2, *[("first", 1)] * 2]


# -- nothing is changed by counting ----------------------------------------------------------------


class Zoo(nn.Module):
    """Kernels that have a second implementation, fused and random ones."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 64), nn.Mish(), nn.Dropout(0.3)
        )
        self.convolution = nn.Sequential(
            nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.Hardswish(), nn.Conv1d(4, 4, 3, groups=4)
        )
        self.lstm = nn.LSTM(60, 16, bidirectional=True)
        self.encoder = nn.TransformerEncoderLayer(32, 4, 32, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.convolution(self.layers(x)[:, None])
        return self.encoder(self.lstm(y)[0])


def trained(net: nn.Module, x: torch.Tensor, steps: int = 2) -> list[Any]:
    optimizer = torch.optim.Adam(net.parameters())
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        out = net(x)
        loss = (out * torch.randn_like(out)).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [*losses, *[parameter.tolist() for parameter in net.parameters()]]


def inferred(net: nn.Module, x: torch.Tensor) -> list[Any]:
    with torch.inference_mode():
        return [net.eval()(x).tolist()]


@pytest.mark.parametrize("run", [trained, inferred])
def test_losses_and_random_numbers_to_the_last_digit(run: Callable[..., list[Any]]) -> None:
    def whole() -> list[Any]:
        torch.manual_seed(5)
        return [*run(Zoo(), torch.randn(6, 16)), torch.get_rng_state().tolist()]

    plain = whole()
    observed: list[Any] = []
    counted = count(lambda: observed.extend(whole()))
    assert counted.total(0) > 0
    assert observed == plain


def test_inference_mode_counts_what_no_grad_counts() -> None:
    net = Zoo().eval()
    x = torch.randn(6, 16)

    def step() -> None:
        with torch.inference_mode():
            net(x)

    inside, outside = count(step), count(without_grad(lambda: net(x)))
    assert inside.total(0) == outside.total(0) > 0
    assert {path: inside.of(path, 0) for path in inside.modules} == {
        path: outside.of(path, 0) for path in outside.modules
    }


OTHER_BACKWARD: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "prod": lambda w: (w @ w).prod(1),
    "masked_fill": lambda w: (w @ w).masked_fill(w > 0, w.mean()),
    "cumprod": lambda w: torch.cumprod(w @ w, 0),
    "det": lambda w: torch.det(w @ w),
}


@pytest.mark.parametrize("name", OTHER_BACKWARD)
def test_the_mode_is_left_before_a_backward_that_it_would_change(name: str) -> None:
    """These have other digits under any dispatch mode, some for second derivatives alone."""

    def run() -> list[Any]:
        torch.manual_seed(2)
        size = 64 if name == "masked_fill" else 8
        w = torch.randn(size, size, requires_grad=True)
        out = OTHER_BACKWARD[name](w)
        (gradient,) = torch.autograd.grad((out * torch.randn_like(out)).sum(), w, create_graph=True)
        return [out.tolist(), gradient.tolist()]

    plain = run()
    observed: list[Any] = []
    counted = count(lambda: observed.extend(run()))
    assert observed == plain
    assert counted.rows == []
    ((slug, text),) = counted.captured.notes
    assert slug == "gave-way"
    assert "dispatch mode" in text


@pytest.mark.parametrize("name", ["prod", "masked_fill"])
def test_without_a_backward_they_are_counted_as_any(name: str) -> None:
    w = torch.randn(8, 8)
    assert count(lambda: OTHER_BACKWARD[name](w)).operators == {"aten::mm": 2 * 8 * 8 * 8}
    weight = torch.randn(8, 8, requires_grad=True)
    # What is put in has no gradient here.
    counted = count(lambda: (weight @ w).masked_fill(w > 0, torch.tensor(1.0)).sum().backward())
    assert counted.total(0) == counted.total(1) == 2 * 8 * 8 * 8


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient @ torch.ones(7, 7)


def in_inference_mode() -> None:
    with torch.inference_mode():
        functional.linear(torch.ones(2, 3), torch.ones(2, 4))


ERRORS: dict[str, Step] = {
    "shapes": lambda: torch.ones(3, 4) @ torch.ones(3, 4),
    "index": lambda: nn.Embedding(3, 4)(torch.tensor([7])),
    "backward": lambda: Broken.apply(torch.ones(2, 2, requires_grad=True)).sum().backward(),
    "inference": in_inference_mode,
    "memory": lambda: torch.empty(10**15),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_of_the_script_are_its_own(name: str) -> None:
    def told() -> tuple[Any, ...]:
        with pytest.raises(Exception) as caught:  # noqa: PT011  # compared below
            ERRORS[name]()
        trace = traceback.extract_tb(caught.value.__traceback__)
        return type(caught.value), str(caught.value), [(frame.name, frame.line) for frame in trace]

    plain = told()
    counting = Count(torch)
    counting.begin()
    try:
        assert told() == plain
        assert torch._C._len_torch_dispatch_stack() == 1
    finally:
        counting.end()
    assert torch._C._len_torch_dispatch_stack() == 0
    assert counting.error is None


def test_an_error_of_ours_ends_the_layer_and_not_the_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(self: Any) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(Count, "owner", fails)
    seen: list[torch.Tensor] = []
    with pytest.raises(KeyError, match="ours"):
        count(lambda: seen.append(torch.mm(X, X.T)))
    assert torch.equal(seen[0], X @ X.T)


def test_a_dispatch_mode_of_the_script_has_precedence() -> None:
    wrapper = FlopsWrapper()
    with FlopCounterMode(display=False):
        assert "dispatch mode" in str(wrapper.busy_reason("count"))
    assert wrapper.busy_reason("count") is None
    stock = FlopCounterMode(display=False)

    def step() -> None:
        torch.mm(X, X.T)
        # Entered inside the slice, and left after it.
        stock.__enter__()
        torch.mm(X, X.T)

    wrapper.start(SliceContext(0, "count", 1, Path()))
    step()
    wrapper.stop()
    torch.mm(X, X.T)
    stock.__exit__(None, None, None)
    assert stock.get_total_flops() == 2 * 2 * 3 * 4 * 3
    assert torch._C._len_torch_dispatch_stack() == 0
    rows = wrapper.take([0.0, 1.0], {}).frames["flop_counts"]
    assert [row["flop"] for row in rows] == [2 * 2 * 3 * 4 * 3]


def test_a_slice_ended_inside_an_operator_leaves_nothing(tmp_path: Path) -> None:
    """A signal may end the run at any time."""
    wrapper = FlopsWrapper()

    @torch.library.custom_op("profstack_test::ends_it", mutates_args=())
    def ends_it(x: torch.Tensor) -> torch.Tensor:
        wrapper.stop()
        return x.clone()

    wrapper.start(SliceContext(0, "count", 1, tmp_path))
    ends_it(X)
    torch.mm(X, X.T)
    wrapper.close()
    assert torch._C._len_torch_dispatch_stack() == 0
    assert wrapper.take([0.0, 1.0], {}).frames["flop_counts"] == []


def test_other_threads_are_left_alone() -> None:
    def step() -> None:
        thread = threading.Thread(target=lambda: torch.mm(X, X.T))
        thread.start()
        thread.join()
        torch.mv(X, X[0])

    assert count(step).operators == {"aten::mv": 2 * 3 * 4}


# -- slices ----------------------------------------------------------------------------------------


def test_rows_are_totals_of_the_steps_that_count() -> None:
    sizes: Iterator[int] = iter(range(1, 9))
    net = nn.Linear(4, 4)
    product = 2 * 4 * 4

    def step() -> None:
        net(torch.ones(next(sizes), 4))

    assert count(step, steps=3).of("Linear", 0) == (1 + 2 + 3) * product
    assert count(step, steps=3, left_out=(1,)).of("Linear", 0) == (4 + 6) * product
    (row,) = count(step, steps=2).rows
    assert (row["calls"], row["flop"]) == (2, (7 + 8) * product)


def test_what_came_after_the_last_step_is_left_out(tmp_path: Path) -> None:
    wrapper = FlopsWrapper()
    wrapper.start(SliceContext(3, "count", 2, tmp_path))
    listener = wrapper.listener()
    assert listener is not None
    torch.mm(X, X.T)
    listener.step_ended(1)
    torch.mv(X, X[0])
    wrapper.stop()
    taken = wrapper.take([0.0, 1.0], {})
    assert [(row["slice"], row["operator"]) for row in taken.frames["flop_counts"]] == [
        (3, "aten::mm")
    ]
    assert not taken.holds_all


def test_nothing_to_count_says_so() -> None:
    counted = count(lambda: X + X)
    assert counted.rows == []
    assert [slug for slug, _ in counted.captured.notes] == ["empty-capture"]


# -- the check by flops-profiler -------------------------------------------------------------------


def test_the_check_counts_the_same_forward() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    hooks = TorchHooks(torch, Sink(), ModuleNames())
    wrapper = FlopsWrapper()
    assert wrapper.busy_reason("check") is None
    hooks.install()
    hooks.set_mode(DISCOVER)
    wrapper.start(SliceContext(1, "check", 1, Path()))
    hooks.listen(wrapper.listener())
    net(torch.randn(5, 4))
    wrapper.stop()
    hooks.remove()
    rows = wrapper.take([0.0, 1.0], hooks.names.by_number()).frames["flop_counts"]
    linear = [row["flop"] for row in rows if row["operator"] == "linear"]
    assert linear == [2 * 5 * 4 * 8, 2 * 5 * 8 * 3]
    assert {(row["slice"], row["counter"]) for row in rows} == {(1, "flops-profiler")}


def test_the_check_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if "flops" in name else found(name)
    )
    assert "profstack[all]" in str(FlopsWrapper().busy_reason("check"))


# -- compiled code, and whole runs -----------------------------------------------------------------

COMPILES = """
    import sys, torch
    from torch import nn
    from profstack.readers.flops.counting import Count
    from profstack.guard import has_compiled
    from torch._dynamo.utils import counters

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    @torch.compile(backend=sys.argv[1])
    def model(x):
        y = net(x)
        if sys.argv[1] == "eager":
            torch._dynamo.graph_break()
        return y @ torch.ones(8, 8)

    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []

    def step():
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    if sys.argv[2] == "count":
        count = Count(torch)
        count.begin()
        step()
        count.end()
        assert "compiled" in count.gave_way, count.gave_way
        assert has_compiled()
    for _ in range(4 - len(losses)):
        step()
    print(losses, counters["frames"], counters["stats"], len(counters["graph_break"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_first_compilation_inside_the_slice_is_as_without(backend: str, tmp_path: Path) -> None:
    code = tmp_path / "compiles.py"
    code.write_text(textwrap.dedent(COMPILES))
    answers = [
        subprocess.run(
            [sys.executable, str(code), backend, word],
            capture_output=True,
            text=True,
            check=False,
            env=clean_environment(OMP_NUM_THREADS="1"),
        )
        for word in ("plain", "count")
    ]
    assert answers[0].returncode == answers[1].returncode == 0, answers[1].stderr
    assert answers[0].stdout == answers[1].stdout != ""


SCRIPT = """
    import torch
    from torch import nn
    {head}
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    critic = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    {after}
    optimizer = torch.optim.SGD([*net.parameters(), *critic.parameters()], lr=0.1)
    for step in range(40):
        optimizer.zero_grad()
        loss = critic(net(torch.ones(5, 4))).square().mean()
        loss.backward()
        optimizer.step()
    print(loss.item())
"""


def recorded(folder: Path, query: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(folder / "recording.sqlite") as connection:
        return connection.execute(query).fetchall()


@pytest.mark.slow
def test_a_training_is_counted_end_to_end(run_profstack: RunProfstack, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT.format(head="", after="")))
    plain = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        check=True,
        env=clean_environment(),
    )
    folder = tmp_path / "recording"
    answer = run_profstack(["run", "--layers", "flops", "-o", folder, path])
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == plain.stdout
    rows = recorded(
        folder,
        "select path, backward, sum(flop), max(slices.steps) from flop_counts "
        "join modules using (module_id) join slices using (slice) "
        "where counter = 'FlopCounterMode' group by path, backward",
    )
    found = {(path, backward): flop for path, backward, flop, steps in rows}
    assert {steps for *_, steps in rows} == {1}
    assert found == {
        ("Sequential.0", 0): 2 * 5 * 4 * 8,
        ("Sequential.0", 1): 2 * 5 * 4 * 8,
        ("Sequential.2", 0): 2 * 5 * 8 * 3,
        ("Sequential.2", 1): 2 * 2 * 5 * 8 * 3,
        ("Sequential#2.0", 0): 2 * 5 * 3 * 2,
        ("Sequential#2.0", 1): 2 * 2 * 5 * 3 * 2,
        ("Sequential#2.1", 0): 2 * 5 * 2 * 1,
        ("Sequential#2.1", 1): 2 * 2 * 5 * 2 * 1,
    }
    assert recorded(folder, "select status, reason from layers") == [("recorded", None)]
    slices = "select mode, count(*) from slices where layer = 'flops' group by mode"
    assert dict(recorded(folder, slices)) == {"check": 1, "count": 1}


@pytest.mark.slow
def test_a_compiled_training_leaves_the_counting_to_the_torch_slice(
    run_profstack: RunProfstack, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        textwrap.dedent(SCRIPT.format(head="", after="net = torch.compile(net, backend='eager')"))
    )
    folder = tmp_path / "recording"
    answer = run_profstack(["run", "--layers", "torch,flops", "-o", folder, path])
    assert answer.returncode == 0, answer.stderr
    ((status, reason),) = recorded(folder, "select status, reason from layers where name = 'flops'")
    assert status == "skipped"
    assert "compiled" in reason
    assert recorded(folder, "select distinct counter from flop_counts") == [("recorded_shapes",)]
