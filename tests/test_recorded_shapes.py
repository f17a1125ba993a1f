"""Operations from the shapes in a profile: derived by hand, and beside FlopCounterMode.

FlopCounterMode is torch's own here, with the added formulas and its own way of telling modules
apart: what it says of a module, forward and backward, the profile must say too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode
from torch_slice import Quiet, Slice, observe

from profstack.capture.hooks import DISCOVER, TorchHooks
from profstack.capture.module_names import ModuleNames
from profstack.layer import SliceContext
from profstack.readers.flops import recorded_shapes
from profstack.readers.flops.formulas import custom_mapping
from profstack.readers.torchtrace import slice_tables
from profstack.storage.vocabulary import LOSS, OPTIMIZER
from profstack.wrappers.flops import FlopsWrapper

STEPS = 2
Step = Callable[[], object]


def rows(observed: Slice) -> list[dict[str, Any]]:
    return [*observed.captured.frames["flop_counts"]]


def counted(step: Step, after: int = 0) -> list[dict[str, Any]]:
    """Rows over `STEPS` steps of `step`, with the paths of the modules; `after` others."""
    observed = observe(step, steps=after + STEPS, left_out=tuple(range(after)))
    for row in rows(observed):
        assert row["counter"] == "recorded_shapes"
        assert row["slice"] == 0
        row["path"] = observed.path(row["module_id"])
    return rows(observed)


def per_step(found: list[dict[str, Any]]) -> dict[tuple[str | None, str], tuple[int, int]]:
    """Operations of one step, forward and backward, by path and operator."""
    sums: dict[tuple[str | None, str], list[int]] = defaultdict(lambda: [0, 0])
    for row in found:
        assert row["flop"] % STEPS == 0
        sums[row["path"], row["operator"]][row["backward"]] += row["flop"] // STEPS
    return {key: (forward, backward) for key, (forward, backward) in sums.items()}


def by_path(found: list[dict[str, Any]]) -> dict[str | None, int]:
    """Forward operations by path: dropout in attention makes other operators do the same work."""
    sums: dict[str | None, int] = defaultdict(int)
    for (path, _), (forward, _) in per_step(found).items():
        sums[path] += forward
    return {path: forward for path, forward in sums.items() if forward}


def training(model: nn.Module, *inputs: Any) -> Step:
    def step() -> None:
        output = model(*inputs)
        if not isinstance(output, torch.Tensor):
            output = output[0]
        output.float().square().mean().backward()

    return step


def by_flop_counter_mode(step: Step) -> int:
    """Forward and backward of one step, by torch's own counter."""
    counter = FlopCounterMode(display=False, custom_mapping=custom_mapping(torch))
    with counter:
        step()
    return int(counter.get_total_flops())


def by_the_layer(step: Step) -> dict[tuple[str | None, str], tuple[int, int]]:
    """The same by path and operator, by the layer that drives the counter."""
    hooks = TorchHooks(torch, Quiet(), ModuleNames())
    hooks.install()
    hooks.set_mode(DISCOVER)
    wrapper = FlopsWrapper()
    try:
        wrapper.start(SliceContext(0, "count", STEPS, Path()))
        hooks.listen(wrapper.listener())
        for _ in range(STEPS):
            step()
    finally:
        hooks.listen(None)
        wrapper.stop()
        hooks.remove()
    modules = hooks.names.by_number()
    found = [*wrapper.take([], modules).frames["flop_counts"]]
    for row in found:
        number = row["module_id"]
        row["path"] = modules[number].path if number is not None else None
    return per_step(found)


# -- derived by hand ----------------------------------------------------------------------------


def test_a_perceptron():
    # 5 rows through 6 x 8 and 8 x 2 weights; the first layer's input needs no gradient.
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    found = counted(training(model, torch.randn(5, 6)))
    first, second = 2 * 5 * 6 * 8, 2 * 5 * 8 * 2
    assert per_step(found) == {
        ("Sequential.0", "aten::addmm"): (first, 0),
        ("Sequential.0", "aten::mm"): (0, first),
        ("Sequential.2", "aten::addmm"): (second, 0),
        ("Sequential.2", "aten::mm"): (0, 2 * second),
    }
    calls = {(row["path"], row["operator"]): row["calls"] for row in found}
    assert calls["Sequential.2", "aten::addmm"] == STEPS
    assert calls["Sequential.2", "aten::mm"] == 2 * STEPS


def test_convolutions():
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3, stride=2, padding=1),
        nn.Conv2d(8, 8, 3, groups=4, dilation=2),
        nn.ConvTranspose2d(8, 2, 2, stride=2),
    )
    found = per_step(counted(training(model, torch.randn(3, 4, 19, 19))))
    # 19 -> 10 by stride 2, 10 -> 6 by a kernel of 5 with holes, 6 -> 12.
    first = 2 * 3 * (10 * 10) * 8 * 4 * 9
    second = 2 * 3 * (6 * 6) * 8 * (8 // 4) * 9
    third = 2 * 3 * (6 * 6) * 8 * 2 * 4
    assert found == {
        ("Sequential.0", "aten::convolution"): (first, 0),
        ("Sequential.0", "aten::convolution_backward"): (0, first),
        ("Sequential.1", "aten::convolution"): (second, 0),
        ("Sequential.1", "aten::convolution_backward"): (0, 2 * second),
        ("Sequential.2", "aten::convolution"): (third, 0),
        ("Sequential.2", "aten::convolution_backward"): (0, 2 * third),
    }


class Attention(nn.Module):
    """One block of self-attention by the fused operator."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48, bias=False), nn.Linear(16, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(2, 5, 3, 4, 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(2, 5, 16))


def test_attention():
    found = per_step(counted(training(Attention(), torch.randn(2, 5, 16))))
    rows_of_x = 2 * 5
    qkv, out = 2 * rows_of_x * 16 * 48, 2 * rows_of_x * 16 * 16
    # Of each of 2 x 4 heads: scores 5 x 5 from 4, and 5 x 4 from 5; backward makes 5 such.
    product = 2 * (2 * 4) * 5 * 5 * 4
    name = "aten::_scaled_dot_product_flash_attention_for_cpu"
    assert found == {
        ("Attention.qkv", "aten::mm"): (qkv, qkv),
        ("Attention", name): (2 * product, 0),
        ("Attention", f"{name}_backward"): (0, 5 * product),
        ("Attention.out", "aten::mm"): (out, 2 * out),
    }


# -- beside FlopCounterMode ---------------------------------------------------------------------


class Convolutions(nn.Module):
    """Convolutions of one, two and three dimensions, every option used."""

    def __init__(self) -> None:
        super().__init__()
        self.plane = nn.Sequential(
            nn.Conv2d(4, 8, (3, 1), stride=(2, 1), padding=(1, 0)),
            nn.Conv2d(8, 8, 3, groups=4, dilation=2),
            nn.Conv2d(8, 6, 3, padding="same"),
            nn.ConvTranspose2d(6, 4, 3, stride=2, output_padding=1, groups=2),
        )
        self.line, self.space = (
            nn.Conv1d(4, 4, 3, padding_mode="circular", padding=1),
            nn.Conv3d(1, 2, 3),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.plane(x)
        return self.line(y.flatten(2)).sum() + self.space(y[:, None]).sum()


class Checkpointed(nn.Module):
    """Forward work done again in the backward pass, up to the last tensor that it needs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 4)

    def _both(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self._both, x, use_reentrant=False)


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    size = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 50, "n_positions": 16}
    return GPT2LMHeadModel(GPT2Config(bos_token_id=None, eos_token_id=None, **size))


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        vocab_size=50,
        max_position_embeddings=16,
    )
    return BertModel(config)


TOKENS = torch.arange(16).reshape(2, 8)
MODELS = {
    "perceptron": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU()), torch.randn(5, 6)),
    "convolutions": (Convolutions, torch.randn(2, 4, 20, 20)),
    "attention": (Attention, torch.randn(2, 5, 16)),
    "recurrent": (lambda: nn.LSTM(4, 8, 2, bidirectional=True), torch.randn(3, 2, 4)),
    "checkpoint": (Checkpointed, torch.randn(3, 4, requires_grad=True)),
    "gpt2": (gpt2, TOKENS),
    "bert": (bert, TOKENS),
}


@pytest.mark.parametrize("name", MODELS)
def test_it_counts_what_flop_counter_mode_counts(name):
    make, x = MODELS[name]
    step = training(make(), x)
    found = per_step(counted(step))
    total = sum(forward + backward for forward, backward in found.values())
    assert total == by_flop_counter_mode(step) > 0
    assert found == by_the_layer(step)


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_train_and_eval_count_the_same_forward(name):
    make, x = MODELS[name]
    model = make()

    def evaluate() -> None:
        with torch.no_grad():
            model(x)

    trained = counted(training(model, x))
    model.eval()
    evaluated = counted(evaluate)
    assert sum(row["flop"] for row in evaluated) == STEPS * by_flop_counter_mode(evaluate) > 0
    assert by_path(trained) == by_path(evaluated)


def test_fused_layers_are_counted_as_one_operator():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()

    def step() -> None:
        with torch.no_grad():
            model(torch.randn(2, 3, 8))

    found = per_step(counted(step))
    # Queries, keys, values and output are 8 x 8 each; then 8 x 16 and 16 x 8; 6 rows.
    products = 2 * 6 * (4 * 64 + 2 * 128) + 2 * (2 * 2 * 3 * 3 * 8)
    assert found == {
        ("TransformerEncoderLayer", "aten::_transformer_encoder_layer_fwd"): (products, 0)
    }


# -- compiled code ------------------------------------------------------------------------------


@pytest.fixture
def dynamo_begins_anew() -> Iterator[None]:
    """What a test compiles is forgotten, so that the next test's process looks untouched."""
    from torch._dynamo.utils import counters

    yield
    torch._dynamo.reset()
    counters.clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "x"),
    [
        (
            lambda: nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4), nn.LayerNorm(4)),
            torch.randn(8, 16),
        ),
        (
            lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2)),
            torch.randn(2, 3, 9, 9),
        ),
    ],
    ids=["perceptron", "convolutions"],
)
def test_it_counts_compiled_code(make, x, dynamo_begins_anew):
    model = make()
    eager = by_flop_counter_mode(training(model, x))
    # Exchanging the wrappers on calls, as the start of this slice does, may compile once more.
    found = counted(training(torch.compile(model), x), after=2)
    known = [row for row in found if row["flop"] is not None]
    assert sum(row["flop"] for row in known) == STEPS * eager
    assert {row["path"] for row in known} == {type(model).__name__}
    assert {row["backward"] for row in known} == {0, 1}
    # The kernels that inductor wrote in C++ leave no event: the code that holds them is named.
    hidden = [row for row in found if row["flop"] is None]
    assert [(row["backward"], row["calls"]) for row in hidden] == [(0, STEPS), (1, STEPS)]
    assert all(row["operator"].startswith("## Call CompiledFxGraph") for row in hidden)


# -- what has no figure -------------------------------------------------------------------------


@pytest.fixture
def library() -> Iterator[Any]:
    """Operators of the script's own."""
    with torch.library._scoped_library("profstack_test", "DEF") as library:
        yield library


def test_an_operator_without_a_formula_is_named(library):
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x + x, "CPU")
    model = nn.Sequential(nn.Linear(4, 4))

    def step() -> None:
        with torch.no_grad():
            torch.ops.profstack_test.twice(model(torch.randn(2, 4)))

    found = counted(step)
    assert [(row["operator"], row["calls"]) for row in found if row["flop"] is None] == [
        ("profstack_test::twice", STEPS)
    ]


def test_one_whose_work_is_counted_inside_hides_nothing(library):
    library.define("product(Tensor x) -> Tensor")
    library.impl("product", lambda x: x @ x, "CPU")

    def step() -> None:
        with torch.no_grad():
            torch.ops.profstack_test.product(torch.randn(4, 4))
            torch.linalg.inv(torch.eye(4))

    found = counted(step)
    assert {row["operator"]: row["flop"] for row in found} == {
        "aten::mm": STEPS * 2 * 64,
        "aten::linalg_inv_ex": None,
    }


def test_what_only_moves_or_adds_is_no_miss():
    def step() -> None:
        torch.relu(torch.randn(4, 4) + 1).softmax(-1).sum().item()

    with_products = nn.Linear(4, 4)
    found = counted(lambda: (step(), with_products(torch.ones(1, 4))))
    assert [row["operator"] for row in found] == ["aten::addmm"]
    assert counted(step) == []


def test_an_input_that_is_unknown_gives_no_figure(monkeypatch):
    def unknown(name: str, shapes: Any, concrete: Any) -> int | None:
        return None if name == "aten::convolution" else 7

    monkeypatch.setattr(recorded_shapes, "flop_of", unknown)
    found = counted(training(nn.Conv1d(1, 1, 2), torch.randn(1, 1, 4)))
    assert {(row["operator"], row["flop"]) for row in found} == {
        # `_convolution` stands inside, and has a formula.
        ("aten::_convolution", STEPS * 7),
        ("aten::convolution_backward", STEPS * 7),
    }
    monkeypatch.setattr(recorded_shapes, "flop_of", lambda *args: None)
    found = counted(training(nn.Conv1d(1, 1, 2), torch.randn(1, 1, 4)))
    assert {(row["operator"], row["flop"], row["calls"]) for row in found} == {
        ("aten::convolution", None, STEPS),
        ("aten::convolution_backward", None, STEPS),
    }


# -- the slice ----------------------------------------------------------------------------------


def test_each_kind_of_call_is_worked_out_once(monkeypatch):
    asked = []
    real = recorded_shapes.flop_of

    def count(name: str, shapes: Any, concrete: Any) -> int | None:
        asked.append((name, str(shapes), str(concrete)))
        return real(name, shapes, concrete)

    monkeypatch.setattr(recorded_shapes, "flop_of", count)
    layers = [nn.Conv2d(2, 2, 3, padding=1) for _ in range(6)]
    counted(training(nn.Sequential(*layers, nn.Conv2d(2, 2, 3, stride=2)), torch.randn(1, 2, 8, 8)))
    assert len(asked) == len(set(asked))
    forwards = [values for name, _, values in asked if name == "aten::convolution"]
    # The same shapes, with and without padding and stride.
    assert len(forwards) == 2
    assert len({shapes for name, shapes, _ in asked if name == "aten::convolution"}) == 1


def test_steps_that_are_left_out_do_not_count():
    model = nn.Linear(4, 4)
    batch = iter([1, 1, 3, 5, 7])

    def step() -> None:
        model(torch.ones(next(batch), 4))

    observed = observe(step, steps=3, warm=2, left_out=(1,))
    assert [row["flop"] for row in rows(observed)] == [2 * 16 * (3 + 7)]


def test_work_outside_modules_belongs_to_the_parts_of_the_step():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step_of_optimizer = optimizer.step

    def multiplying(*args: Any) -> Any:
        torch.ones(2, 2) @ torch.ones(2, 2)
        return step_of_optimizer(*args)

    weights = torch.eye(4, requires_grad=True)

    def step() -> None:
        torch.ones(3, 3) @ torch.ones(3, 3)
        (model(torch.ones(1, 4)) @ weights).sum().backward()
        with torch.profiler.record_function("Optimizer.step#SGD.step"):
            multiplying()

    found = counted(step)
    owners = {(row["module_id"], row["backward"]): row["flop"] // STEPS for row in found}
    module = next(number for number, _ in owners if number and number > 0)
    assert owners == {
        # Loss code is told apart in the backward pass alone; see the table of operators.
        (None, 0): 2 * 27 + 2 * 16,
        (module, 0): 2 * 16,
        # Its weights alone; the input is a constant.
        (module, 1): 2 * 16,
        (LOSS, 1): 2 * 2 * 16,
        (OPTIMIZER, 0): 2 * 8,
    }


def test_rows_bear_the_names_and_owners_of_the_table_of_operators():
    observed = observe(training(Attention(), torch.randn(2, 5, 16)), steps=STEPS)
    known = {(row["name"], row["module_id"], row["backward"]) for row in observed.operators}
    found = {(row["operator"], row["module_id"], row["backward"]) for row in rows(observed)}
    assert found
    assert found <= known


def test_counts_beyond_the_digits_of_a_float_are_exact(monkeypatch):
    huge = 2**60 + 1
    monkeypatch.setattr(recorded_shapes, "flop_of", lambda *args: huge)
    [row] = counted(lambda: torch.ones(2, 2) @ torch.ones(2, 2))
    assert row["flop"] == STEPS * huge


def test_it_counts_in_every_slice_with_shapes():
    step = training(nn.Linear(4, 4), torch.randn(2, 4))
    modes = ("detail", "timed", "shared", "whole", "lines")
    counts = ["flop_counts" in observe(step, mode=mode).captured.frames for mode in modes]
    assert counts == [True, True, True, False, False]


def test_a_failure_costs_the_layer_nothing_but_the_counts(monkeypatch):
    def fail(*args: Any) -> Any:
        raise ValueError("no such formula")

    monkeypatch.setattr(slice_tables, "flop_records", fail)
    captured = observe(training(nn.Linear(4, 4), torch.randn(2, 4))).captured
    assert "flop_counts" not in captured.frames
    assert captured.frames["module_times"]
    [(slug, text)] = captured.notes
    assert slug == "flops-uncounted"
    assert "no such formula" in text


def test_a_profile_without_operators_has_no_rows():
    observed = observe(lambda: torch.ones(1).add(1))
    assert rows(observed) == []
    assert np.isfinite(observed.wall_s)
