"""Every formula of ours against a count by hand, in forward and in backward.

Each case says how its figures come about: 2 for every multiply-add of every product. A gradient of
a product is a product too: with both wanted, backward does twice what forward did. Operators that
this machine has no kernel for are asked by shapes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from flop_slice import Step, count
from torch import nn
from torch.nn import functional

from profstack.readers.flops.formulas import _ADDED, kept_pairs, left_out, operator_name, registry


def leaf(*shape: int) -> torch.Tensor:
    """A tensor whose gradient is wanted."""
    return torch.randn(*shape, requires_grad=True)


def plain(*shape: int) -> torch.Tensor:
    """A tensor without one."""
    return torch.randn(*shape)


@dataclass
class Case:
    """A step, and what its operators count by hand."""

    step: Step
    forward: dict[str, int]
    backward: dict[str, int] = field(default_factory=dict)


def trained(make: Any) -> Step:
    """A step that runs `make` and its backward."""

    def step() -> None:
        out = make()
        (out[0] if isinstance(out, tuple) else out).sum().backward()

    return step


# Products of a (3, 4) matrix: with a (4, 5) one 3 * 5 sums of 4 multiply-adds.
MATRICES = {
    "mm": Case(trained(lambda: leaf(3, 4) @ leaf(4, 5)), {"mm": 2 * 60}, {"mm": 2 * 2 * 60}),
    "one gradient": Case(trained(lambda: plain(3, 4) @ leaf(4, 5)), {"mm": 120}, {"mm": 120}),
    "linear": Case(
        trained(lambda: functional.linear(leaf(3, 4), leaf(5, 4), leaf(5))),
        {"addmm": 120},
        {"mm": 240},
    ),
    "addmm": Case(
        trained(lambda: torch.addmm(leaf(5), leaf(3, 4), leaf(4, 5))), {"addmm": 120}, {"mm": 240}
    ),
    "addmm_": Case(
        trained(lambda: torch.zeros(3, 5).addmm_(leaf(3, 4), leaf(4, 5))),
        {"addmm_": 120},
        {"mm": 240},
    ),
    "_addmm_activation": Case(
        lambda: torch._addmm_activation(plain(5), plain(3, 4), plain(4, 5)),
        {"_addmm_activation": 120},
    ),
    # Two products of the same size.
    "bmm": Case(trained(lambda: leaf(2, 3, 4) @ leaf(2, 4, 5)), {"bmm": 240}, {"bmm": 480}),
    "baddbmm": Case(
        trained(lambda: torch.baddbmm(leaf(2, 3, 5), leaf(2, 3, 4), leaf(2, 4, 5))),
        {"baddbmm": 240},
        {"bmm": 480},
    ),
    "baddbmm_": Case(
        trained(lambda: torch.zeros(2, 3, 5).baddbmm_(leaf(2, 3, 4), leaf(2, 4, 5))),
        {"baddbmm_": 240},
        {"bmm": 480},
    ),
    "addbmm": Case(
        trained(lambda: torch.addbmm(leaf(3, 5), leaf(2, 3, 4), leaf(2, 4, 5))),
        {"addbmm": 240},
        {"bmm": 480},
    ),
    "addbmm_": Case(
        lambda: torch.zeros(3, 5).addbmm_(plain(2, 3, 4), plain(2, 4, 5)), {"addbmm_": 240}
    ),
    "_weight_int8pack_mm": Case(
        lambda: torch._weight_int8pack_mm(
            plain(4, 32).bfloat16(), torch.ones(16, 32, dtype=torch.int8), plain(16).bfloat16()
        ),
        {"_weight_int8pack_mm": 2 * 4 * 16 * 32},
    ),
}

# 3 sums of 4 multiply-adds. The gradient of the vector is such a product too, that of the matrix
# is an outer product: nothing is added up, so that it counts nothing, like all element-wise work.
VECTORS = {
    "mv": Case(trained(lambda: leaf(3, 4) @ leaf(4)), {"mv": 2 * 12}, {"mv": 2 * 12}),
    "addmv": Case(
        trained(lambda: torch.addmv(leaf(3), leaf(3, 4), leaf(4))), {"addmv": 24}, {"mv": 24}
    ),
    "addmv_": Case(
        trained(lambda: torch.zeros(3).addmv_(leaf(3, 4), leaf(4))), {"addmv_": 24}, {"mv": 24}
    ),
    # As a product with a matrix of one row, whose gradients are products as any.
    "vector times matrix": Case(trained(lambda: leaf(3) @ leaf(3, 4)), {"mm": 24}, {"mm": 2 * 24}),
    # One sum of 4; its gradients are multiples of the other vector.
    "dot": Case(trained(lambda: leaf(4) @ leaf(4)), {"dot": 2 * 4}),
    "vdot": Case(trained(lambda: torch.vdot(leaf(4), leaf(4))), {"vdot": 2 * 4}),
}

# A convolution of 4 to 6 channels in 2 groups, 3 wide over 11 places: for each of 2 x 6 x 9 values
# that come out, 4 / 2 * 3 = 6 multiply-adds. Transposed, each of 2 x 4 x 11 that go in is
# multiplied by 6 / 2 * 3 = 9 weights. Each of both gradients takes as many.
CONVOLUTIONS = {
    "convolution": Case(
        trained(lambda: functional.conv1d(leaf(2, 4, 11), leaf(6, 2, 3), groups=2)),
        {"convolution": 2 * 2 * 6 * 9 * 6},
        {"convolution_backward": 2 * 2 * 2 * 6 * 9 * 6},
    ),
    "transposed": Case(
        trained(lambda: functional.conv_transpose1d(leaf(2, 4, 11), leaf(4, 3, 3), groups=2)),
        {"convolution": 2 * 2 * 4 * 11 * 9},
        {"convolution_backward": 2 * 2 * 2 * 4 * 11 * 9},
    ),
    "of the weights alone": Case(
        trained(lambda: functional.conv1d(plain(2, 4, 11), leaf(6, 2, 3), groups=2)),
        {"convolution": 2 * 2 * 6 * 9 * 6},
        {"convolution_backward": 2 * 2 * 6 * 9 * 6},
    ),
    # 5 + 2 - 3 + 1 = 5 times, of each 2 x 6 values from 3 * 4; its backward is products with what
    # the 3 weights see: 5 - 1 + 1, 5 and 5 - 1 + 1 of the times, without the padding, for both.
    "conv_tbc": Case(
        trained(lambda: torch.conv_tbc(leaf(5, 2, 4), leaf(3, 4, 6), leaf(6), 1)),
        {"conv_tbc": 2 * 5 * 2 * 6 * 3 * 4},
        {"addmm_": 2 * 2 * (4 + 5 + 4) * 2 * 6 * 4},
    ),
}

# 2 sequences, 4 heads, s = 16 queries and t = 10 keys of 8 elements. Forward: scores (s t 8) and
# their product with the values (s t 8). Backward: the scores again, and the gradients of values,
# weights, queries and keys.
PAIRS = 2 * 4 * 16 * 10 * 8
FUSED = "_scaled_dot_product_flash_attention_for_cpu"
ATTENTION = {
    "fused": Case(
        trained(
            lambda: functional.scaled_dot_product_attention(
                leaf(2, 4, 16, 8), leaf(2, 4, 10, 8), leaf(2, 4, 10, 8)
            )
        ),
        {FUSED: 2 * 2 * PAIRS},
        {f"{FUSED}_backward": 2 * 5 * PAIRS},
    ),
    # Dropout has no fused kernel: scores and their product as products one by one.
    "with dropout": Case(
        trained(
            lambda: functional.scaled_dot_product_attention(
                leaf(2, 4, 16, 8), leaf(2, 4, 10, 8), leaf(2, 4, 10, 8), dropout_p=0.5
            )
        ),
        {"bmm": 2 * 2 * PAIRS},
        {"bmm": 2 * 4 * PAIRS},
    ),
}

# One layer of 5 to 7 over 9 steps of 2: 4 gates (GRU: 3, a plain one: 1), each of (5 + 7) * 7
# weights. Where a layer is no kernel of its own, the gradient of its first state is not taken.
STEPS, WEIGHTS = 9 * 2, (5 + 7) * 7
RECURRENT = {
    "lstm": Case(
        trained(lambda: nn.LSTM(5, 7)(leaf(9, 2, 5))),
        {"mkldnn_rnn_layer": 2 * STEPS * 4 * WEIGHTS},
        {"mkldnn_rnn_layer_backward": 2 * 2 * STEPS * 4 * WEIGHTS},
    ),
    "gru": Case(
        trained(lambda: nn.GRU(5, 7)(leaf(9, 2, 5))),
        {"addmm": 2 * STEPS * 3 * WEIGHTS},
        {"mm": 2 * (2 * STEPS * 3 * WEIGHTS - 2 * 3 * 7 * 7)},
    ),
    "rnn": Case(
        trained(lambda: nn.RNN(5, 7)(leaf(9, 2, 5))),
        {"addmm": 2 * STEPS * WEIGHTS},
        {"mm": 2 * (2 * STEPS * WEIGHTS - 2 * 7 * 7)},
    ),
    "lstm cell": Case(
        trained(lambda: nn.LSTMCell(5, 7)(leaf(2, 5))),
        {"addmm": 2 * 2 * 4 * WEIGHTS},
        {"mm": 2 * (2 * 2 * 4 * WEIGHTS - 2 * 4 * 7 * 7)},
    ),
}

OTHERS = {
    # For each of 6 outputs (3, 4) by (4, 5), and that by the other input, row by row. Its backward
    # is in test_flop_formulas.py, against the products that its kernel makes.
    "bilinear": Case(
        lambda: functional.bilinear(plain(3, 4), plain(3, 5), plain(6, 4, 5)),
        {"_trilinear": 2 * 6 * (3 * 4 * 5 + 3 * 5)},
    ),
    # 30 by 40 distances in 4 dimensions, and two columns more for the squares. Backward takes both
    # gradients whatever is wanted, each a product of the 30 by 40 with the 4 dimensions.
    "distances by products": Case(
        trained(lambda: torch.cdist(leaf(2, 30, 4), plain(2, 40, 4))),
        {"_euclidean_dist": 2 * 2 * 30 * 40 * 6},
        {"bmm": 2 * 2 * 2 * 30 * 40 * 4},
    ),
    # 3 by 5 distances of 4 squares each; either gradient gets 4 multiples of every pair.
    "distances": Case(
        trained(lambda: torch.cdist(leaf(3, 4), leaf(5, 4))),
        {"_cdist_forward": 2 * 3 * 5 * 4},
        {"_cdist_backward": 2 * 2 * 3 * 5 * 4},
    ),
    # Nothing is multiplied for these.
    "distances by sums": Case(
        lambda: torch.cdist(plain(3, 4), plain(5, 4), p=1), {"_cdist_forward": 0}
    ),
    # 2 sequences of 7: four projections of 16 to 16 and attention; in the layer also 16 to 32 and
    # back. These kernels are for inference alone.
    "fused attention": Case(
        torch.no_grad()(lambda: MULTI_HEAD(*(plain(2, 7, 16),) * 3)),
        {"_native_multi_head_attention": 2 * 2 * (7 * 4 * 256 + 2 * 7 * 7 * 16)},
    ),
    "fused layer": Case(
        torch.no_grad()(lambda: ENCODER(plain(2, 7, 16))),
        {"_transformer_encoder_layer_fwd": 2 * 2 * (7 * (4 * 256 + 2 * 512) + 2 * 7 * 7 * 16)},
    ),
}
MULTI_HEAD = nn.MultiheadAttention(16, 4, batch_first=True).eval()
ENCODER = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()

CASES = MATRICES | VECTORS | CONVOLUTIONS | ATTENTION | RECURRENT | OTHERS


@pytest.mark.parametrize("name", CASES)
def test_a_formula_counts_what_is_counted_by_hand(name: str) -> None:
    case = CASES[name]
    if name == "lstm" and not torch.backends.mkldnn.is_available():
        pytest.skip("an LSTM is no kernel here")
    counted = count(case.step)
    assert counted.captured.notes == []
    for backward, expected in enumerate((case.forward, case.backward)):
        found: dict[str, int] = {}
        for row in counted.rows:
            if row["backward"] == backward:
                operator = row["operator"].removeprefix("aten::")
                found[operator] = found.get(operator, 0) + row["flop"]
        assert found == expected


def sized(*shape: int) -> torch.Tensor:
    """A tensor of which only the shape is asked."""
    return torch.empty(*shape)


_HEADS = sized(2, 4, 16, 8), sized(2, 4, 10, 8), sized(2, 4, 10, 8)
_GRADIENT = (sized(2, 4, 16, 8), *_HEADS)
_LSTM = [sized(28, 5), sized(28, 7), sized(28), sized(28)]
_STATES = (4, None, sized(1, 2, 7), sized(1, 2, 7))
_RESULTS = (sized(9, 2, 7), sized(9, 2, 7), None, None)
_MODE = (2, 7, 0, 1, False, 0.0, True, False, [], None)
# Of operators without a kernel here: what they are called with, and the same counts by hand.
SHAPES: dict[str, tuple[tuple[Any, ...], int]] = {
    "_scaled_mm_v2": ((sized(3, 4), sized(4, 5)), 120),
    "linear": ((sized(2, 3, 4), sized(5, 4)), 2 * 2 * 3 * 5 * 4),
    "mkldnn_linear": ((sized(2, 3, 4), sized(5, 4)), 2 * 2 * 3 * 5 * 4),
    # 16 weights of 32 inputs, packed; `scales` are of 2 groups.
    "_weight_int4pack_mm": ((sized(4, 32), sized(2, 2, 32, 4), 16, sized(2, 16, 2)), 4096),
    "_weight_int4pack_mm_for_cpu": ((sized(4, 32), sized(16, 16), 16, sized(2, 16, 2)), 4096),
    # 12 of 16 rows are in groups.
    "_grouped_mm": ((sized(16, 32), sized(3, 32, 24), torch.tensor([4, 8, 12])), 2 * 12 * 32 * 24),
    "_scaled_dot_product_fused_attention_overrideable": (_HEADS, 2 * 2 * PAIRS),
    "_scaled_dot_product_fused_attention_overrideable_backward": (_GRADIENT, 2 * 5 * PAIRS),
    "_scaled_dot_product_attention_math_for_mps": (_HEADS, 2 * 2 * PAIRS),
    "_cudnn_rnn": ((sized(9, 2, 5), _LSTM, *_STATES, *_MODE), 2 * STEPS * 4 * WEIGHTS),
    "_cudnn_rnn_backward": (
        (sized(9, 2, 5), _LSTM, *_STATES, *_RESULTS, *_MODE, None, [True] * 4),
        2 * 2 * STEPS * 4 * WEIGHTS,
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_formula_of_shapes_alone(name: str) -> None:
    operator = getattr(torch.ops.aten, name, None)
    if operator is None:
        pytest.skip("this torch has no such operator")
    arguments, expected = SHAPES[name]
    assert registry(torch)[operator](*arguments, out_val=sized(1)) == expected


# Of s queries and t keys a causal mask leaves 1 + 2 + ... pairs, and all t where there are more
# queries than keys.
MASKED = {
    (4, 4): 1 + 2 + 3 + 4,
    (4, 6): 1 + 2 + 3 + 4,
    (6, 4): 1 + 2 + 3 + 4 + 4 + 4,
    (1, 5): 1,
}


@pytest.mark.parametrize("lengths", MASKED)
def test_causal_attention_is_stated_both_ways(lengths: tuple[int, int]) -> None:
    queries, keys = lengths
    assert kept_pairs(queries, keys) == MASKED[lengths]
    mask = torch.ones(queries, keys, dtype=torch.bool).tril()
    assert int(mask.sum()) == MASKED[lengths]

    def attention(**options: Any) -> Step:
        return trained(
            lambda: functional.scaled_dot_product_attention(
                leaf(2, 3, queries, 8), leaf(2, 3, keys, 8), leaf(2, 3, keys, 8), **options
            )
        )

    rows = count(attention(is_causal=True)).rows
    assert [row["flop"] for row in rows] == [2 * times * 6 * queries * keys * 8 for times in (2, 5)]
    assert [row["flop"] - row["masked_flop"] for row in rows] == [
        2 * times * 6 * MASKED[lengths] * 8 for times in (2, 5)
    ]
    # A mask given as a tensor may leave out anything.
    assert {row["masked_flop"] for row in count(attention()).rows} == {0}
    assert {row["masked_flop"] for row in count(attention(attn_mask=mask)).rows} == {0}


def test_a_profile_tells_of_causal_attention_too() -> None:
    name = "aten::_scaled_dot_product_flash_attention_for_cpu"
    shapes = [[2, 3, 6, 8], [2, 3, 4, 8], [2, 3, 4, 8]]
    dense = 2 * 2 * 6 * 6 * 4 * 8
    assert left_out(name, [*shapes, 0.0, True], {}, dense) == 2 * 2 * 6 * (24 - 18) * 8
    assert left_out(name, [*shapes, 0.0, False], {}, dense) == 0
    assert left_out(name, shapes, {}, dense) == 0
    # The value was not recorded, or there is no shape.
    assert left_out(name, [*shapes, None, None], {}, dense) is None
    assert left_out(name, [None, None, None, 0.0, True], {}, dense) is None
    assert left_out("aten::mm", [[3, 4], [4, 5]], {}, 120) == 0
    # Places before heads; of packed sequences the shapes do not tell the lengths.
    packed = [[1, 6, 3, 8], [1, 6, 3, 8], [1, 6, 3, 8], None, None, 6, 6, 0.0, True, False]
    flash = "aten::_flash_attention_forward"
    assert left_out(flash, packed, {}, 36) == 36 - 21
    assert left_out(flash, [*packed[:3], [3], [3], *packed[5:]], {}, 36) is None
    assert left_out(flash, [packed[0], [1, 9, 3, 8], *packed[2:]], {}, 54) is None


def test_every_formula_of_ours_has_its_case() -> None:
    counted = {name for case in CASES.values() for name in case.forward | case.backward}
    assert _ADDED.keys() <= counted | SHAPES.keys()
    assert "aten::mm" in {operator_name(operator) for operator in registry(torch)}
