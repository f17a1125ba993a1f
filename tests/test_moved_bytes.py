"""Bytes moved by operators: every family of rules against what the operator really took and gave.

Each operator is run under the profiler. What it must have moved is counted from the tensors that
went in and came out, or by hand where it does not read or write all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from profstack.readers.torchtrace.moved_bytes import moved_bytes
from profstack.readers.torchtrace.operator_inputs import arguments_of, floating_name

aten = torch.ops.aten
F4, I8 = 4, 8


def nbytes(*tensors: Any) -> int:
    """Bytes of all tensors, at their full size."""
    return sum(each.numel() * each.element_size() for each in tensors if torch.is_tensor(each))


def ran(operator: Callable[..., Any], *arguments: Any) -> tuple[int | None, int]:
    """The rule's figure of one call, and the bytes of the tensors that went in and came out."""
    with torch.no_grad():
        # A clone: an in-place operator and the profile come after what is counted here.
        inputs = nbytes(*arguments)
        with torch.autograd.profiler.profile(record_shapes=True, use_kineto=True) as profile:
            output = operator(*arguments)
    outputs = output if isinstance(output, (tuple, list)) else (output,)
    name = operator._qualified_op_name
    events = profile.kineto_results.events()
    event = next(each for each in events if each.name() == name)
    figure = moved_bytes(name, event.shapes(), event.dtypes(), event.concrete_inputs())
    return figure, inputs + nbytes(*outputs)


def t(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


def indices(*values: int) -> torch.Tensor:
    return torch.tensor(values)


X = (4, 6, 8, 8)
IMAGE, KERNEL = t(4, 6, 9, 9), t(8, 6, 3, 3)
MASK = t(4, 1, dtype=torch.bool)
Q, K, V = t(2, 3, 8, 4), t(2, 3, 5, 4), t(2, 3, 5, 4)
HALF = torch.bfloat16
# Forward, one LSTM layer of 5 with biases, in inference.
RECURRENT = (False, [], 2, 5, 1, True, False, False, False)
# Stride, padding, dilation, no transposing, output padding and groups.
PLACED = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)
MASKS = (False, True, True), (True, True, False)
PLACES = torch.zeros(2, 3, 4, 4, dtype=torch.int64)

# Operators that read all of their inputs and write all of their outputs.
WHOLE = [
    (aten.mm, (t(3, 4), t(4, 5))),
    (aten.mm, (t(3, 4, dtype=HALF), t(4, 5, dtype=HALF))),
    (aten.addmm, (t(5), t(3, 4), t(4, 5))),
    (aten.addmm_, (t(3, 5), t(3, 4), t(4, 5))),
    (aten.bmm, (t(2, 3, 4), t(2, 4, 5))),
    (aten.baddbmm, (t(2, 3, 5), t(2, 3, 4), t(2, 4, 5))),
    (aten.mv, (t(3, 4), t(4))),
    (aten.dot, (t(4), t(4))),
    (aten.addmv, (t(3), t(3, 4), t(4))),
    (aten.convolution, (IMAGE, KERNEL, t(8), (2, 2), (1, 1), (1, 1), False, (0, 0), 1)),
    (aten.convolution, (IMAGE, KERNEL, None, (1, 1), (2, 2), (2, 2), False, (0, 0), 1)),
    (
        aten.convolution,
        (IMAGE, t(6, 4, 3, 3), t(8), (2,) * 2, (1,) * 2, (1,) * 2, True, (1,) * 2, 2),
    ),
    (aten.convolution, (t(2, 3, 9), t(4, 3, 3), None, (1,), (0,), (1,), False, (0,), 1)),
    (aten.mkldnn_convolution, (IMAGE, KERNEL, t(8), (1, 1), (2, 2), (1, 1), 1)),
    (aten._scaled_dot_product_flash_attention_for_cpu, (Q, K, V)),
    (aten.native_layer_norm, (t(4, 6, 8), (8,), t(8), t(8), 1e-5)),
    (aten.native_layer_norm, (t(4, 6, 8, dtype=HALF), (6, 8), None, None, 1e-5)),
    (aten.native_group_norm, (t(*X), t(6), t(6), 4, 6, 64, 3, 1e-5)),
    (aten._softmax, (t(4, 6), -1, False)),
    (aten._log_softmax, (t(4, 6), -1, False)),
    (aten._softmax_backward_data, (t(4, 6), t(4, 6), -1, torch.float32)),
    (aten.gelu, (t(4, 6),)),
    (aten.relu, (t(4, 6, dtype=torch.int32),)),
    (aten.add, (t(4, 6), t(6))),
    (aten.add, (t(4, 1, 6), t(5, 1))),
    (aten.add, (t(4, 6), t(4, 6, dtype=HALF))),
    (aten.add, (t(4, dtype=torch.float16), t(4, dtype=HALF))),
    (aten.add, (t(4, dtype=HALF), torch.tensor(1.0))),
    (aten.mul, (t(4, dtype=torch.int64), t(4, dtype=torch.int32))),
    (aten.mul, (t(4, dtype=torch.int64), t(4))),
    (aten.mul, (t(4, dtype=torch.complex64), t(4))),
    (aten.gt, (t(4, 6), t(6))),
    (aten.logical_not, (t(4, 6),)),
    (aten.where, (MASK, t(4, 6), t(4, 6))),
    (aten.masked_fill, (t(4, 6), MASK, 0.0)),
    (aten.threshold_backward, (t(4, 6), t(4, 6), 0)),
    (aten.gelu_backward, (t(4, 6), t(4, 6))),
    (aten.hardswish_backward, (t(4, 6), t(4, 6))),
    (aten.lerp, (t(4, 6), t(4, 6), 0.5)),
    (aten.addcdiv, (t(4, 6), t(4, 6), t(4, 6))),
    (aten.clone, (t(4, 6),)),
    (aten._to_copy, (t(4, 6),)),
    (aten.native_dropout, (t(4, 6), 0.5, True)),
    (aten.glu, (t(4, 6),)),
    (aten.cumsum, (t(4, 6), 0)),
    (aten.cumsum, (t(4, 6, dtype=torch.int32), 0)),
    (aten.sum, (t(4, 6),)),
    (aten.sum, (t(4, 6, dtype=torch.bool),)),
    (aten.sum, (t(4, 6, 2), (0, -1))),
    (aten.mean, (t(4, 6), (1,), True)),
    (aten.amax, (t(4, 6), (1,))),
    (aten.max, (t(4, 6),)),
    (aten.max, (t(4, 6), 1)),
    (aten.argmax, (t(4, 6), 1)),
    (aten.argmax, (t(4, 6),)),
    (aten.any, (t(4, 6), 1)),
    (aten.var_mean, (t(4, 6), (0,))),
    (aten.linalg_vector_norm, (t(4, 6),)),
    (aten.sort, (t(4, 6),)),
    (aten.topk, (t(4, 6), 2)),
    (aten.max_pool2d_with_indices, (t(4, 6, 9, 9), (2, 2))),
    (aten.max_pool2d_with_indices, (t(4, 6, 9, 9), (3, 3), (2, 2), (1, 1), (1, 1), True)),
    (aten.avg_pool2d, (t(4, 6, 9, 9), (2, 2))),
    (aten._adaptive_avg_pool2d, (t(4, 6, 9, 9), (3, 2))),
    (aten.upsample_nearest2d, (t(*X), (16, 24))),
    (aten.upsample_bilinear2d, (t(*X), (16, 24), False)),
    (aten.upsample_bilinear2d_backward, (t(4, 6, 16, 24), (16, 24), X, False)),
    (aten.constant_pad_nd, (t(*X), (1, 2, 3, 0))),
    (aten.repeat, (t(4, 6), (2, 1, 3))),
    (aten.mse_loss, (t(4, 6), t(4, 6))),
    (aten.mse_loss, (t(4, 6), t(4, 6), 0)),
    (aten.mse_loss_backward, (torch.tensor(1.0), t(4, 6), t(4, 6), 1)),
    (aten.binary_cross_entropy, (t(4, 6), t(4, 6), t(4, 6), 1)),
    (aten.embedding_dense_backward, (t(3, 5), indices(0, 1, 1), 20, -1, False)),
    (aten.triu, (t(4, 6),)),
]


@pytest.mark.parametrize(
    ("operator", "arguments"), WHOLE, ids=[f"{o.__name__}-{n}" for n, (o, _) in enumerate(WHOLE)]
)
def test_inputs_are_read_and_outputs_are_written(operator, arguments):
    figure, expected = ran(operator, *arguments)
    assert figure == expected


# Operators that leave a part of what they are given alone, or give what they were given: by hand.
BY_HAND = [
    # A view moves nothing, and neither does memory that is only taken.
    (aten.view, (t(4, 6), (24,)), 0),
    (aten.t, (t(4, 6),), 0),
    (aten.expand, (t(1, 6), (4, 6)), 0),
    (aten.select, (t(4, 6), 0, 1), 0),
    (aten.unsqueeze_, (t(4, 6), 0), 0),
    (aten.empty, ((4, 6),), 0),
    (aten.detach, (t(4, 6),), 0),
    # What is overwritten is not read.
    (aten.fill_, (t(4, 6), 1.0), 24 * F4),
    (aten.zero_, (t(4, 6),), 24 * F4),
    (aten.normal_, (t(4, 6),), 24 * F4),
    (aten.bernoulli_, (t(4, 6), 0.5), 24 * F4),
    (aten.copy_, (t(4, 6, dtype=HALF), t(6)), 24 * 2 + 6 * F4),
    # In place: one tensor is read and written.
    (aten.add_, (t(4, 6), t(6)), (24 + 6 + 24) * F4),
    (aten.relu_, (t(4, 6),), 2 * 24 * F4),
    # A number of Python's goes in as a float64.
    (aten.mul_, (t(4, 6), 2.0), 2 * 24 * F4 + 8),
    (aten.addcmul_, (t(4, 6), t(4, 6), t(4, 6)), 4 * 24 * F4),
    # 3 of 20 rows of 5: read and written, and the three indices.
    (aten.embedding, (t(20, 5), indices(0, 1, 1)), 2 * 15 * F4 + 3 * I8),
    (aten.index_select, (t(20, 5), 0, indices(0, 1, 1)), 2 * 15 * F4 + 3 * I8),
    (aten.gather, (t(4, 6), 1, torch.zeros(4, 2, dtype=torch.int64)), 8 * (2 * F4 + I8)),
    # One of 10 elements of each of 4 rows; a loss and a sum of weights.
    (aten.nll_loss_forward, (t(4, 10), indices(1, 2, 3, 4), None, 1, -100), 4 * (F4 + I8) + 2 * F4),
    (
        aten.nll_loss_backward,
        (torch.tensor(1.0), t(4, 10), indices(1, 2, 3, 4), None, 1, -100, torch.tensor(4.0)),
        4 * I8 + 2 * F4 + 40 * F4,
    ),
    # The images in and out, weight and bias, both running figures in and out, two figures saved.
    (
        aten.native_batch_norm,
        (t(*X), t(6), t(6), t(6), t(6), True, 0.1, 1e-5),
        (2 * 1536 + 2 * 6 + 4 * 6 + 2 * 6) * F4,
    ),
    (
        aten.native_batch_norm,
        (t(*X), t(6), t(6), t(6), t(6), False, 0.1, 1e-5),
        (2 * 1536 + 4 * 6) * F4,
    ),
    # Gradient, input, weight, saved mean and deviation in; three gradients out.
    (
        aten.native_batch_norm_backward,
        (t(*X), t(*X), t(6), t(6), t(6), t(6), t(6), True, 1e-5, (True, True, True)),
        (3 * 1536 + 5 * 6) * F4,
    ),
    (
        aten.native_layer_norm_backward,
        (t(4, 8), t(4, 8), (8,), t(4, 1), t(4, 1), t(8), t(8), (True, True, True)),
        (3 * 32 + 2 * 4 + 3 * 8) * F4,
    ),
    (
        aten.native_group_norm_backward,
        (t(*X), t(*X), t(4, 3), t(4, 3), t(6), 4, 6, 64, 3, (True, True, True)),
        (3 * 1536 + 2 * 12 + 3 * 6) * F4,
    ),
    # Gradient and image in, gradients of weight and bias out: the weight is not needed.
    (
        aten.convolution_backward,
        (
            t(4, 8, 7, 7),
            IMAGE,
            KERNEL,
            (8,),
            *((n, n) for n in (1, 0, 1)),
            False,
            (0, 0),
            1,
            MASKS[0],
        ),
        nbytes(t(4, 8, 7, 7), IMAGE, KERNEL) + 8 * F4,
    ),
    (
        aten.convolution_backward,
        (
            t(4, 8, 7, 7),
            IMAGE,
            KERNEL,
            None,
            *((n, n) for n in (1, 0, 1)),
            False,
            (0, 0),
            1,
            MASKS[1],
        ),
        nbytes(t(4, 8, 7, 7)) + 2 * nbytes(IMAGE, KERNEL),
    ),
    # Gradient and places in, a gradient like the input out.
    (
        aten.max_pool2d_with_indices_backward,
        (t(2, 3, 4, 4), t(2, 3, 8, 8), (2, 2), (2, 2), (0, 0), (1, 1), False, PLACES),
        96 * (F4 + I8) + 384 * F4,
    ),
    (
        aten._adaptive_avg_pool2d_backward,
        (t(2, 3, 4, 2), t(2, 3, 8, 8)),
        (48 + 384) * F4,
    ),
    # Gradient, queries, keys, values, output and sums in; three gradients out.
    (
        aten._scaled_dot_product_flash_attention_for_cpu_backward,
        (t(2, 3, 8, 4), Q, K, V, t(2, 3, 8, 4), t(2, 3, 8), 0.0, False),
        (3 * 192 + 2 * 120 + 48 + 192 + 2 * 120) * F4,
    ),
    # Input, weights, biases and states in; the state of every element and both last ones out.
    (
        aten.mkldnn_rnn_layer,
        (t(3, 2, 4), t(20, 4), t(20, 5), t(20), t(20), t(2, 5), t(2, 5), *RECURRENT),
        (24 + 80 + 100 + 40 + 20 + 3 * 2 * 5 + 20) * F4,
    ),
    (aten.upsample_nearest2d, (t(*X), None, (2.0, 1.5)), (1536 + 3 * 1536) * F4),
    (aten._local_scalar_dense, (torch.tensor(1.0),), F4),
]


@pytest.mark.parametrize(
    ("operator", "arguments", "expected"),
    BY_HAND,
    ids=[f"{each[0].__name__}-{n}" for n, each in enumerate(BY_HAND)],
)
def test_what_is_left_alone_is_not_counted(operator, arguments, expected):
    assert ran(operator, *arguments)[0] == expected


def test_the_backward_pass_of_a_recurrent_layer():
    layer = torch.nn.LSTM(4, 5)
    x = t(3, 2, 4).requires_grad_()
    with torch.autograd.profiler.profile(record_shapes=True, use_kineto=True) as profile:
        layer(x)[0].sum().backward()
    name = "aten::mkldnn_rnn_layer_backward"
    event = next(e for e in profile.kineto_results.events() if e.name() == name)
    figure = moved_bytes(name, event.shapes(), event.dtypes(), event.concrete_inputs())
    given = 24 + 80 + 100 + 40 + 20
    # The outputs of the forward, and the gradient of the first of them.
    outputs = 30 + 20
    assert figure == (given + outputs + 30 + given) * F4


def test_an_output_that_is_given_is_written_and_not_read():
    output = t(4)
    with torch.autograd.profiler.profile(record_shapes=True, use_kineto=True) as profile:
        torch.sum(t(4, 6), 1, out=output)
    event = next(e for e in profile.kineto_results.events() if e.name() == "aten::sum")
    figure = moved_bytes("aten::sum", event.shapes(), event.dtypes(), event.concrete_inputs())
    assert figure == (24 + 4) * F4


@pytest.mark.parametrize(
    ("name", "shapes", "dtypes", "values"),
    [
        # A list of tensors: the profiler records no types of them.
        ("aten::cat", [[], []], ["TensorList", "Scalar"], [None, 0]),
        ("aten::_foreach_add_", [[], []], ["TensorList", "Scalar"], [None, 1]),
        # What is looked up by lists of indices has a size that no shape tells.
        ("aten::index", [[4, 6], []], ["float", ""], [None, None]),
        # True division of whole numbers gives the default type, which may be set.
        ("aten::div", [[4], [4]], ["int", "int"], [None, None]),
        ("aten::mul", [[4], []], ["int", "Scalar"], [None, 0.5]),
        # Real numbers come out of complex ones.
        ("aten::abs", [[4]], ["c10::complex<float>"], [None]),
        # Inputs that were not recorded.
        ("aten::convolution", [[1, 2, 3, 3], [2, 2, 3, 3], []], ["float", "float", ""], []),
        ("aten::mm", [[2, 3]], ["float"], []),
        # The type of the output is given, and not what it is.
        ("aten::mm", [[2, 3], [3, 4], []], ["float", "float", "Scalar"], []),
        ("aten::mm", [[2, 3], [3, 4]], ["quantized", "quantized"], []),
        # What only calls others: those move the bytes, if any does.
        ("aten::linear", [[2, 3], [4, 3], []], ["float", "float", ""], []),
        ("aten::reshape", [[2, 3], []], ["float", "ScalarList"], [None, [6]]),
        ("mine::special", [[2, 3]], ["float"], []),
        ("aten::there_is_no_such_thing", [[2, 3]], ["float"], []),
    ],
)
def test_what_no_rule_tells_has_no_figure(name, shapes, dtypes, values):
    assert moved_bytes(name, shapes, dtypes, values) is None


def test_types_have_the_names_of_torch():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64):
        with torch.autograd.profiler.profile(record_shapes=True, use_kineto=True) as profile:
            t(2, dtype=dtype).clone()
        (named,) = {
            e.dtypes()[0] for e in profile.kineto_results.events() if e.name() == "aten::clone"
        }
        [given] = arguments_of([[2]], [named], [])
        assert given.dtype.name == str(dtype).removeprefix("torch.")
    assert floating_name(["long int", "c10::BFloat16", "float"]) == "bfloat16"
    assert floating_name(["long int", "Scalar", ""]) is None
