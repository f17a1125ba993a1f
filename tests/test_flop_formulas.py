"""Formulas for floating-point operations: each against a count by hand, or the kernel's products.

Expected figures are 2 for every multiply-add. What a kernel does inside is checked against the
products that torch.profiler sees it make.
"""

from __future__ import annotations

from collections import defaultdict
from math import prod
from typing import Any

import pytest
import torch
from flop_slice import Attention, Step, count, without_grad
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from profstack.readers.flops.formulas import flop_of, has_formula, is_composite, is_missed, registry

# -- formulas --------------------------------------------------------------------------------------


def products(step: Step) -> int:
    """Operations of all matrix products that torch.profiler sees, also inside other operators."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        step()
    total = 0
    for event in profiled.profiler.kineto_results.events():
        name, shapes = event.name(), event.shapes()
        if name == "aten::bmm":
            total += 2 * prod(shapes[0]) * shapes[1][2]
        elif name == "aten::mm":
            total += 2 * prod(shapes[0]) * shapes[1][1]
        elif name == "aten::addmm":
            total += 2 * prod(shapes[1]) * shapes[2][1]
    return total


X = torch.randn(3, 4)
VECTORS: dict[str, tuple[Step, int]] = {
    "aten::mv": (lambda: X @ torch.ones(4), 2 * 3 * 4),
    "aten::dot": (lambda: X[0] @ X[1], 2 * 4),
    "aten::vdot": (lambda: torch.vdot(X[0], X[1]), 2 * 4),
    "aten::addmv_": (lambda: torch.ones(3).addmv_(X, torch.ones(4)), 2 * 3 * 4),
    "aten::addmv": (lambda: torch.addmv(torch.ones(3), X, torch.ones(4)), 2 * 3 * 4),
    "aten::addmm_": (lambda: torch.ones(3, 3).addmm_(X, X.T), 2 * 3 * 4 * 3),
    "aten::addmm": (lambda: torch.addmm(torch.ones(3), X, X.T), 2 * 3 * 4 * 3),
    "aten::baddbmm": (
        lambda: torch.baddbmm(torch.ones(2, 3, 5), torch.ones(2, 3, 4), torch.ones(2, 4, 5)),
        2 * 2 * 3 * 4 * 5,
    ),
    "aten::baddbmm_": (
        lambda: torch.ones(2, 3, 5).baddbmm_(torch.ones(2, 3, 4), torch.ones(2, 4, 5)),
        2 * 2 * 3 * 4 * 5,
    ),
    "aten::addbmm": (
        lambda: torch.addbmm(torch.ones(3, 5), torch.ones(2, 3, 4), torch.ones(2, 4, 5)),
        2 * 2 * 3 * 4 * 5,
    ),
    "aten::bmm": (lambda: torch.bmm(torch.ones(2, 3, 4), torch.ones(2, 4, 5)), 2 * 2 * 3 * 4 * 5),
    "aten::mm": (lambda: torch.mm(X, X.T, out=torch.empty(3, 3)), 2 * 3 * 4 * 3),
    "aten::_euclidean_dist": (
        # Two columns are appended for the squares.
        lambda: torch.cdist(torch.ones(2, 30, 4), torch.ones(2, 40, 4)),
        2 * 2 * 30 * 40 * (4 + 2),
    ),
    "aten::_weight_int8pack_mm": (
        lambda: torch._weight_int8pack_mm(
            torch.ones(4, 32, dtype=torch.bfloat16),
            torch.ones(16, 32, dtype=torch.int8),
            torch.ones(16, dtype=torch.bfloat16),
        ),
        2 * 4 * 32 * 16,
    ),
}


@pytest.mark.parametrize("name", VECTORS)
def test_products_that_torch_does_not_count(name: str) -> None:
    step, expected = VECTORS[name]
    assert count(step).operators == {name: expected}


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has none")
def test_grouped_products_count_the_rows_in_groups() -> None:
    rows, weights = torch.ones(16, 32).bfloat16(), torch.ones(3, 32, 24).bfloat16()
    ends = torch.tensor([4, 8, 12], dtype=torch.int32)
    counted = count(lambda: torch._grouped_mm(rows, weights, offs=ends))
    assert counted.operators == {"aten::_grouped_mm": 2 * 12 * 32 * 24}


def lstm_step(lstm: nn.LSTM) -> Step:
    x = torch.randn(9, 2, 5)
    return lambda: lstm(x)[0].sum().backward()


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="LSTM is no kernel here")
def test_lstm_counts_every_weight_at_every_step() -> None:
    lstm = nn.LSTM(5, 7, num_layers=2, bidirectional=True)
    counted = count(lstm_step(lstm))
    weights = 2 * (4 * 7 * (5 + 7)) + 2 * (4 * 7 * (14 + 7))
    assert counted.of("LSTM", 0) == 2 * 9 * 2 * weights
    assert counted.of("LSTM", 1) == 2 * 2 * 9 * 2 * weights
    with torch.backends.mkldnn.flags(enabled=False):
        # The same layer as products that are called one by one.
        assert count(lstm_step(lstm)).of("LSTM", 0) == counted.of("LSTM", 0)


def test_recurrent_layers_of_cudnn_count_as_those_of_the_cpu() -> None:
    """Of packed sequences too, whose elements stand in one dimension."""
    formulas = registry(torch)
    shapes = [[28, 5], [28, 7], [28], [28], [28, 7], [28, 7], [28], [28]]
    weights = [torch.empty(shape) for shape in shapes]
    expected = 2 * 9 * 2 * (4 * 7 * (5 + 7) + 4 * 7 * (7 + 7))
    for x in (torch.empty(9, 2, 5), torch.empty(18, 5)):
        rest = (x, weights, 4, None, torch.empty(2, 2, 7), torch.empty(2, 2, 7))
        forward = formulas[torch.ops.aten._cudnn_rnn]
        assert forward(*rest, 2, 7, 0, 2, False, 0.0, True, False, [], None) == expected
        backward = formulas[torch.ops.aten._cudnn_rnn_backward]
        gradients = (x, x, None, None, 2, 7, 0, 2, False, 0.0, True, False, [], None, x)
        assert backward(*rest, *gradients, [True, True, True, True]) == 2 * expected
        assert backward(*rest, *gradients, [True, True, True, False]) == expected


def test_fused_encoder_layer_counts_what_it_replaces() -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    x = torch.randn(2, 7, 16)
    counted = count(without_grad(lambda: layer(x)))
    linear = 2 * 2 * 7 * (4 * 16 * 16 + 2 * 16 * 32)
    expected = linear + 2 * 2 * 2 * 7 * 7 * 16
    assert counted.operators == {"aten::_transformer_encoder_layer_fwd": expected}
    assert count(lambda: layer(x)).total(0) == expected


def test_fused_multi_head_attention_counts_what_it_replaces() -> None:
    attention = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = torch.randn(2, 7, 16)
    counted = count(without_grad(lambda: attention(x, x, x)))
    expected = 2 * 2 * 7 * 4 * 16 * 16 + 2 * 2 * 2 * 7 * 7 * 16
    assert counted.operators == {"aten::_native_multi_head_attention": expected}
    assert count(lambda: attention(x, x, x)).total(0) == expected


@pytest.mark.parametrize("sizes", [(3, 4, 5, 6), (2, 7, 3, 1), (1, 1, 1, 1), (5, 1, 4, 3)])
@pytest.mark.parametrize("gradients", [(False, False), (True, False), (False, True), (True, True)])
def test_bilinear_counts_the_products_its_kernel_makes(
    sizes: tuple[int, int, int, int], gradients: tuple[bool, bool]
) -> None:
    rows, left, right, out = sizes
    layer = nn.Bilinear(left, right, out)
    a = torch.randn(rows, left, requires_grad=gradients[0])
    b = torch.randn(rows, right, requires_grad=gradients[1])

    def step() -> None:
        layer(a, b).sum().backward()

    counted = count(step)
    # For every output: (rows, left) @ (left, right), and that with the other input, row by row.
    assert counted.of("Bilinear", 0) == 2 * rows * out * left * right + 2 * rows * out * right
    assert counted.total(0) + counted.total(1) == products(step)


def test_distances_by_products_count_those() -> None:
    a, b = torch.randn(2, 30, 4, requires_grad=True), torch.randn(2, 40, 4)

    def step() -> None:
        torch.cdist(a, b).sum().backward()

    counted = count(step)
    assert counted.total(0) + counted.total(1) == products(step)


MODELS: dict[str, Step] = {
    "convolutions": lambda: (
        nn.Sequential(
            nn.Conv1d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2),
            nn.ConvTranspose1d(6, 3, 4),
        )(torch.randn(2, 4, 11, requires_grad=True))
        .sum()
        .backward()
    ),
    "attention": lambda: Attention(32, 4)(torch.randn(2, 16, 32)).sum().backward(),
    "lstm": lambda: nn.LSTM(5, 7, 2)(torch.randn(9, 2, 5))[0].sum().backward(),
    "bilinear": lambda: nn.Bilinear(4, 5, 6)(torch.randn(3, 4), torch.randn(3, 5)).sum().backward(),
    "encoder": without_grad(
        lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()(
            torch.randn(2, 7, 16)
        )
    ),
    **{name: step for name, (step, _) in VECTORS.items()},
}


@pytest.mark.parametrize("name", MODELS)
def test_shapes_in_a_profile_give_the_same_figures(name: str) -> None:
    counted = {key: flop for key, flop in count(MODELS[name]).operators.items() if flop}
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        MODELS[name]()
    found: dict[str, int] = defaultdict(int)
    for event in profiled.profiler.kineto_results.events():
        if event.name() in counted:
            flop = flop_of(event.name(), event.shapes(), event.concrete_inputs())
            assert flop is not None
            found[event.name()] += flop
    inner = {"aten::addmv_", "aten::addmm", "aten::bmm"}
    assert counted
    assert {key: flop for key, flop in found.items() if key not in inner or name == key} == {
        key: flop for key, flop in counted.items() if key not in inner or name == key
    }


def test_shapes_alone_are_not_always_enough() -> None:
    assert flop_of("aten::relu", [[3, 4]]) is None
    assert flop_of("aten::convolution", [[2, 3, 9, 9], [6, 3, 3, 3], [6]]) is None
    assert flop_of("aten::mm", [[3, 4], []]) is None
    assert flop_of("aten::_cudnn_rnn", [[9, 2, 5], [], [], [], [2, 2, 7]], [None, []]) is None
    assert flop_of("aten::_grouped_mm", [[16, 32], [3, 32, 24], [3]]) is None
    assert has_formula("aten::mm")
    assert not has_formula("aten::relu")
    assert not has_formula("no::such")


def test_formulas_of_torch_itself_stay_as_they_are() -> None:
    """But for those that are wrong for some inputs, and give the same for all others."""
    from torch.utils.flop_counter import flop_registry

    ours = registry(torch)
    changed = {str(name) for name, formula in flop_registry.items() if ours[name] is not formula}
    assert changed == {
        f"aten.{name}" for name in ("addmm", "bmm", "baddbmm", "convolution_backward")
    }
    x, y, z = torch.empty(2, 3, 4), torch.empty(2, 4, 5), torch.empty(2, 3, 5)
    aten = torch.ops.aten
    assert ours[aten.bmm](x, y, out_val=z) == flop_registry[aten.bmm](x, y, out_val=z)
    image, kernel, grad = torch.empty(2, 3, 8, 8), torch.empty(6, 3, 3, 3), torch.empty(2, 6, 6, 6)
    arguments = (grad, image, kernel, [6], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True] * 3)
    result = (image, kernel, torch.empty(6))
    backward = aten.convolution_backward
    theirs = flop_registry[backward](*arguments, out_val=result)
    assert ours[backward](*arguments, out_val=result) == theirs


# -- operators without a figure --------------------------------------------------------------------


def test_operators_without_a_formula_are_listed_with_their_calls() -> None:
    square = torch.randn(6, 6)

    def step() -> None:
        torch.pdist(X)
        torch.linalg.svd(square)
        torch.linalg.solve(square, square)
        torch.fft.fft(X)
        for _ in range(2):
            torch.linalg.cholesky(square @ square.T + 9 * torch.eye(6))
        # By convention none of these counts, so none is missing.
        y = functional.layer_norm(functional.gelu(X), (4,)).softmax(1) + X.sum() * X.std()
        functional.cross_entropy(
            functional.dropout(y.cumsum(0).sort().values), torch.tensor([0, 1, 2])
        )
        functional.interpolate(
            functional.max_pool2d(X[None, None], 2), scale_factor=2.0, mode="bilinear"
        )
        functional.embedding_bag(torch.tensor([[0, 1]]), X)[:, :2].clone().view(-1)

    counted = count(step)
    without = {row["operator"]: row["calls"] for row in counted.rows if row["flop"] is None}
    assert without == {
        "aten::_pdist_forward": 1,
        "aten::_linalg_svd": 1,
        "aten::_linalg_solve_ex": 1,
        "aten::_fft_r2c": 1,
        "aten::linalg_cholesky_ex": 2,
    }
    assert counted.operators["aten::mm"] == 2 * 2 * 6 * 6 * 6


def test_what_shapes_do_not_tell_has_no_figure() -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    encoder = nn.TransformerEncoder(layer, 1)
    padding = torch.tensor([[False] * 7, [False] * 5 + [True] * 2])

    def step() -> None:
        torch.mm(X.to_sparse(), X.T)
        encoder(torch.randn(2, 7, 16), src_key_padding_mask=padding)
        torch.bmm(torch.ones(2, 3, 4, device="meta"), torch.ones(2, 4, 5, device="meta"))

    counted = count(without_grad(step))
    assert counted.operators == {
        "aten::mm": None,
        "aten::_transformer_encoder_layer_fwd": None,
        "aten::bmm": None,
    }
    assert {slug for slug, _ in counted.captured.notes} == {"flops-uncounted"}
    text = " ".join(text for _, text in counted.captured.notes)
    assert "nested" in text
    assert "no data" in text


def test_unknown_operators_are_missed_and_elementwise_ones_are_not() -> None:
    @torch.library.custom_op("profstack_test::mystery", mutates_args=())
    def mystery(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    counted = count(lambda: (mystery(X), X + X))
    assert counted.operators == {"profstack_test::mystery": None}
    assert is_missed("no::such")
    assert is_missed("torchvision::deform_conv2d")
    assert not is_missed("torchvision::roi_align")
    assert not is_missed("torchvision::_ps_roi_pool_backward")
    assert not is_missed("aten::_thnn_fused_lstm_cell")
    assert not is_missed("c10d::allreduce_")
    assert is_missed("aten::matmul")
    assert is_composite("aten::matmul")
    assert not is_composite("aten::mm")
    assert not is_composite("no::such")


def test_a_formula_that_fails_is_a_call_without_a_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> int:
        raise AssertionError("shapes of another kind")

    monkeypatch.setitem(torch.utils.flop_counter.flop_registry, torch.ops.aten.mm, fails)
    counted = count(lambda: (torch.mm(X, X.T), torch.mv(X, X[0])))
    assert counted.operators == {"aten::mm": None, "aten::mv": 2 * 3 * 4}
    ((slug, text),) = counted.captured.notes
    assert slug == "flops-uncounted"
    assert "shapes of another kind" in text
