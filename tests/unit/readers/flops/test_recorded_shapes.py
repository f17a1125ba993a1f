"""Operations from the shapes in a profile: by hand, and beside FlopCounterMode.

What the layer that drives FlopCounterMode says of a module, forward and backward, the profile
must say too.
"""

from collections import defaultdict

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from profstack.storage.vocabulary import LOSS, OPTIMIZER
from tests.support.flop_slices import count
from tests.support.torch_slices import observe

STEPS = 2


def counted(step, after=0):
    """Rows over `STEPS` steps of `step`, with the paths of the modules; `after` others."""
    observed = observe(step, steps=after + STEPS, left_out=tuple(range(after)))
    rows = [*observed.captured.frames["flop_counts"]]
    assert {(row["counter"], row["slice"]) for row in rows} <= {("recorded_shapes", 0)}
    return [row | {"path": observed.path(row["module_id"])} for row in rows]


def per_step(rows):
    """Operations of one step, and those of them that a mask leaves out, by path and operator."""
    sums = defaultdict(lambda: [0, 0])
    for row in rows:
        both = sums[row["path"], row["operator"], row["backward"]]
        both[:] = both[0] + row["flop"] / STEPS, both[1] + row["masked_flop"] / STEPS
    return sums


def training(model, *inputs):
    def step():
        output = model(*inputs)
        output = output if isinstance(output, torch.Tensor) else output[0]
        output.float().square().mean().backward()

    return step


def convolutions():
    last = nn.ConvTranspose2d(8, 4, 3, stride=2, output_padding=1, groups=2)
    return nn.Sequential(nn.Conv2d(4, 8, 3, groups=4, dilation=2, padding="same"), last)


class Attention(nn.Linear):
    def forward(self, x):
        x = super().forward(x)
        return functional.scaled_dot_product_attention(x, x, x, is_causal=True)


class Checkpointed(nn.Sequential):
    """Forward work done again in the backward pass, up to the last tensor that it needs."""

    def forward(self, x):
        return checkpoint(super().forward, x.requires_grad_(), use_reentrant=False)


MODELS = {
    "convolutions": (convolutions, (2, 4, 9, 9)),
    "attention": (lambda: Attention(4, 4), (2, 4, 5, 4)),
    "recurrent": (lambda: nn.LSTM(4, 8, 2, bidirectional=True), (3, 2, 4)),
    "checkpoint": (lambda: Checkpointed(nn.Linear(4, 6), nn.Linear(6, 4)), (3, 4)),
}


@pytest.mark.parametrize("name", MODELS)
def test_it_counts_what_flop_counter_mode_counts(name):
    make, shape = MODELS[name]
    step = training(make(), torch.randn(shape))
    found = per_step(counted(step))
    assert found == per_step(count(step, steps=STEPS).rows)
    # Of each of 2 x 4 heads: scores 5 x 5 from 4, and 5 x 4 from 5; backward makes 5 such. Of 25
    # pairs the mask keeps 15.
    once = 2 * (2 * 4) * 5 * 5 * 4
    fused = {key[-1]: both for key, both in found.items() if "dot_product_flash" in key[1]}
    masked = {at: [times * once, times * once * 10 / 25] for at, times in enumerate((2, 5))}
    assert fused == (masked if name == "attention" else {})


def test_what_is_computed_again_has_its_time():
    made = Checkpointed(nn.Linear(4, 6), nn.Linear(6, 4))
    seen = observe(training(made, torch.randn(3, 4)), 1)
    assert seen.rows["Checkpointed.0"]["recomputed_s"] > 0


def test_it_counts_compiled_code():
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4), nn.LayerNorm(4))
    try:
        # Exchanging the wrappers on calls, as the start of this slice does, may compile once more.
        rows = counted(training(torch.compile(model), torch.randn(8, 16)), after=2)
    finally:
        # The next test's process looks untouched.
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
    known = [row for row in rows if row["flop"] is not None]
    first, second = 2 * 8 * 16 * 32, 2 * 8 * 32 * 4
    assert sum(row["flop"] for row in known) == STEPS * (2 * first + 3 * second)
    owners = {(row["path"], row["backward"]) for row in known}
    assert owners == {("Sequential", 0), ("Sequential", 1)}
    # The kernels that inductor wrote in C++ leave no event: the code that holds them is named.
    hidden = [row for row in rows if row["flop"] is None]
    assert [(row["backward"], row["calls"]) for row in hidden] == [(0, STEPS), (1, STEPS)]
    assert all(row["operator"].startswith("## Call CompiledFxGraph") for row in hidden)


def test_operators_without_a_formula_are_named_unless_their_work_is_counted_inside():
    with torch.library._scoped_library("profstack_shapes", "DEF") as library:
        for name, call in (("twice", lambda x: x + x), ("product", lambda x: x @ x)):
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, call, "CPU")
        own = torch.ops.profstack_shapes

        @torch.no_grad()
        def step():
            own.product(own.twice(torch.randn(4, 4)))
            torch.linalg.inv(torch.eye(4))
            # What only moves or adds is no miss.
            torch.relu(torch.randn(4, 4) + 1).softmax(-1).sum().item()

        rows = counted(step)
    assert {row["operator"]: (row["calls"], row["flop"], row["masked_flop"]) for row in rows} == {
        "aten::mm": (STEPS, STEPS * 2 * 64, 0),
        "aten::linalg_inv_ex": (STEPS, None, None),
        "profstack_shapes::twice": (STEPS, None, None),
    }


def test_work_of_the_steps_that_count_by_the_parts_of_the_step():
    model, weights, batch = nn.Linear(4, 4), torch.eye(4, requires_grad=True), iter([1, 1, 3, 5, 7])

    def step():
        torch.ones(3, 3) @ torch.ones(3, 3)
        (model(torch.ones(next(batch), 4)) @ weights).sum().backward()
        with torch.profiler.record_function("Optimizer.step#SGD.step"):
            torch.ones(2, 2) @ torch.ones(2, 2)

    observed = observe(step, steps=3, left_out=(1,))
    rows, each = observed.captured.frames["flop_counts"], 2 * 16 * (3 + 7)
    (module,) = {row["module_id"] for row in rows if (row["module_id"] or 0) > 0}
    # Loss code is told apart in the backward pass alone; see the table of operators. The layer
    # computes the gradient of its weights alone; the input is a constant.
    work = {(None, 0): 2 * 2 * 27 + each, (module, 0): each, (module, 1): each, (LOSS, 1): 2 * each}
    work |= {(OPTIMIZER, 0): 2 * 2 * 8}
    assert {(row["module_id"], row["backward"]): row["flop"] for row in rows} == work
    # They have the names and owners of the table of operators.
    known = {(row["name"], row["module_id"], row["backward"]) for row in observed.operators}
    assert {(row["operator"], row["module_id"], row["backward"]) for row in rows} <= known
