"""Bytes moved by operators: every family of rules against what the operator really took and gave.

Each operator is run under the profiler. What it must have moved is counted from the tensors that
went in and came out, or by hand where it does not read or write all of them.
"""

import ast
from functools import partial

import pytest
import torch

from profstack.readers.torchtrace.moved_bytes import moved_bytes

F4, I8 = 4, 8
# Calls are written as the operator's name and its arguments: tensors by the letter of their type
# and their shape, as "f46" or "f4,16", "-" for what is not recorded, and values as in Python.
NAMES = {"h": "c10::Half", "f": "float", "d": "double", "i": "int", "b": "bool"}
NAMES["c"] = "c10::complex<float>"
TYPES = {"h": "float16", "e": "bfloat16", "f": "float32", "d": "float64", "b": "bool"}
TYPES |= {"s": "int16", "i": "int32", "l": "int64", "c": "complex64", "z": "complex128"}


def is_tensor(text):
    return text[0] in TYPES and set(text[1:]) <= set("0123456789,")


def shape(text):
    return [int(n) for n in (text[1:].split(",") if "," in text else text[1:]) if n]


def argument(text):
    if is_tensor(text):
        return torch.zeros(shape(text), dtype=getattr(torch, TYPES[text[0]]))
    return getattr(torch, text) if text.startswith("float") else ast.literal_eval(text)


def recorded(profile, name):
    """The rule's figure of the first call of an operator in a profile."""
    event = next(each for each in profile.kineto_results.events() if each.name() == name)
    return moved_bytes(name, event.shapes(), event.dtypes(), event.concrete_inputs())


profiled = partial(torch.autograd.profiler.profile, record_shapes=True, use_kineto=True)


def ran(call):
    """The rule's figure of one call, and the bytes of the tensors that went in and came out."""
    name, *texts = call.split()
    named = {key: argument(text) for key, text in (t.split("=") for t in texts if "=" in t)}
    arguments = [argument(text) for text in texts if "=" not in text]
    with torch.no_grad():
        sizes = [each.nbytes for each in filter(torch.is_tensor, arguments)]
        with profiled() as profile:
            output = getattr(torch.ops.aten, name)(*arguments, **named)
    outputs = output if isinstance(output, (tuple, list)) else (output,)
    sizes += [each.nbytes for each in filter(torch.is_tensor, outputs)]
    return recorded(profile, f"aten::{name}"), sum(sizes)


# Stride, padding, dilation and so on; forward, one layer of 5 with biases, in inference.
STRIDES, RECURRENT = "(1,1) (0,0) (1,1) False (0,0) 1", "False [] 2 5 1 True False False False"
ALL, POOL = "(True,True,True)", "(2,2) (2,2) (0,0) (1,1)"
FLASH = "_scaled_dot_product_flash_attention_for_cpu"
# Operators that read all of their inputs and write all of their outputs.
WHOLE = """
mm f34 f45; addmm f5 f34 f45; addmm_ f35 f34 f45; bmm f234 f245; mv f34 f4; dot f4 f4
addmv f7 f72 f2; convolution f4699 f8633 f8 (2,2) (1,1) (1,1) False (0,0) 1
convolution f4699 f6433 f8 (2,2) (1,1) (1,1) True (1,1) 2
convolution f239 f433 None (1,) (0,) (1,) False (0,) 1
mkldnn_convolution f4699 f8633 f8 (1,1) (2,2) (1,1) 1
_scaled_dot_product_flash_attention_for_cpu f2384 f2354 f2354
native_layer_norm f468 (8,) f8 f8 1e-5; native_layer_norm e468 (6,8) None None 1e-5
native_group_norm f4688 f6 f6 4 6 64 3 1e-5; _softmax d46 0 False
_softmax_backward_data f46 f46 -1 float32; add f46 f6; add f416 f51; add f46 e46; add h4 e4
mul l4 f4; sub c4 z4; gt f46 f6; where b41 f46 f46; masked_fill f46 b41 0.0; addcdiv f46 f46 f46
hardswish_backward f46 f46; _to_copy f46; _to_copy f46 dtype=float64; native_dropout f46 0.5 True
glu f46; triu f46; cumsum i46 0; sum f46; sum b46; sum f462 (0,-1); sum f46 dtype=float64
sum f46 (0,) False dtype=float64; amax f46 (1,); max f46; max f46 1; argmax f46 1; any f46 1
var_mean f46 (0,); var f463 (0,2); var f46 True; linalg_vector_norm f46 2 (1,); sort f46
topk f46 3 0; max_pool2d_with_indices f4699 (3,3) (2,2) (1,1) (1,1) True; repeat f46 (2,1,3)
max_pool2d_with_indices f4699 (2,2); _adaptive_avg_pool2d f4699 (3,2); constant_pad_nd f35 (2,-1)
upsample_bilinear2d f4688 (16,24) False; constant_pad_nd f4688 (1,2,3,0)
upsample_bilinear2d_backward f4,6,16,24 (16,24) (4,6,8,8) False; nll_loss_forward f11 l1 f1 2 -100
mse_loss f46 f46; mse_loss f46 f46 0; mse_loss_backward f f46 f46 1
binary_cross_entropy f46 f46 f46 1; embedding_dense_backward f35 l3 20 -1 False
"""


@pytest.mark.parametrize("call", WHOLE.strip().replace("\n", "; ").split("; "))
def test_inputs_are_read_and_outputs_are_written(call):
    figure, expected = ran(call)
    assert figure == expected


BY_HAND = f"""
# A view moves nothing, and neither does memory that is only taken.
view f46 (24,) = 0; t f46 = 0; expand f16 (4,6) = 0; select f46 0 1 = 0; unsqueeze_ f46 0 = 0
empty (4,6) = 0; detach f46 = 0
# What is overwritten is not read.
fill_ f46 1.0 = 24 * F4; zero_ f46 = 24 * F4; normal_ f46 = 24 * F4; bernoulli_ f46 0.5 = 24 * F4
copy_ e46 f6 = 24 * 2 + 6 * F4
# In place: one tensor is read and written. A number of Python's goes in as a float64.
add_ f46 f6 = (24 + 6 + 24) * F4; relu_ f46 = 2 * 24 * F4; mul_ f46 2.0 = 2 * 24 * F4 + 8
addcmul_ f46 f46 f46 = 4 * 24 * F4
# 3 of 20 rows of 5: read and written, and the three indices.
embedding f20,5 l3 = 2 * 15 * F4 + 3 * I8; index_select f20,5 0 l3 = 2 * 15 * F4 + 3 * I8
gather f46 1 l42 = 8 * (2 * F4 + I8)
# One of 10 elements of each of 4 rows; a loss and a sum of weights.
nll_loss_forward f4,10 l4 None 1 -100 = 4 * (F4 + I8) + 2 * F4
nll_loss_backward f f4,10 l4 None 1 -100 f = 4 * I8 + 2 * F4 + 40 * F4
# The images in and out, weight and bias, both running figures in and out, two figures saved.
native_batch_norm f4688 f6 f6 f6 f6 True 0.1 1e-5 = (2 * 1536 + 2 * 6 + 4 * 6 + 2 * 6) * F4
native_batch_norm f4688 f6 f6 f6 f6 False 0.1 1e-5 = (2 * 1536 + 4 * 6) * F4
# Gradient, input, weight, saved mean and deviation in; three gradients out.
native_batch_norm_backward f4688 f4688 f6 f6 f6 f6 f6 True 1e-5 {ALL} = (3 * 1536 + 5 * 6) * F4
native_batch_norm_backward f4688 f4688 f6 f6 f6 f1 f1 False 1e-5 {ALL} = (3 * 1536 + 5 * 6) * F4
native_layer_norm_backward f48 f48 (8,) f41 f41 f8 f8 {ALL} = (3 * 32 + 2 * 4 + 3 * 8) * F4
native_group_norm_backward f4688 f4688 f43 f43 f6 4 6 64 3 {ALL} = (3 * 1536 + 2 * 12 + 3 * 6) * F4
# Gradient and image in, gradients of weight and bias out: the weight is not needed.
convolution_backward f4877 f4699 f8633 (8,) {STRIDES} (False,True,True) = (1568 + 1944 + 440) * F4
convolution_backward f4877 f4699 f8633 None {STRIDES} (True,True,False) = (1568 + 2 * 2376) * F4
# Gradient and places in, a gradient like the input out.
max_pool2d_with_indices_backward f2344 f2388 {POOL} False l2344 = 96 * (F4 + I8) + 384 * F4
# Gradient, queries, keys, values, output and sums in; three gradients out.
{FLASH}_backward f2384 f2384 f2354 f2354 f2384 f238 0.0 False = (4 * 192 + 2 * 120 + 48 + 240) * F4
# Input, weights, biases and states in; the state of every element and both last ones out.
mkldnn_rnn_layer f324 f20,4 f20,5 f20, f20, f25 f25 {RECURRENT} = (264 + 3 * 2 * 5 + 20) * F4
upsample_nearest2d f4688 None (2.0,1.5) = (1536 + 3 * 1536) * F4; _local_scalar_dense f = F4
"""


def cases(text):
    """Calls and the bytes that they move, which follow `=`."""
    lines = (line for line in text.strip().splitlines() if not line.startswith("#"))
    pairs = (case.split(" = ") for line in lines for case in line.split("; "))
    return [(call, eval(figure)) for call, figure in pairs]


@pytest.mark.parametrize(("call", "expected"), cases(BY_HAND))
def test_what_is_left_alone_is_not_counted(call, expected):
    assert ran(call)[0] == expected


def test_an_output_that_is_given_is_written_and_not_read():
    with profiled() as profile:
        torch.sum(torch.ones(4, 6), 1, out=torch.ones(4))
    assert recorded(profile, "aten::sum") == (24 + 4) * F4


RECORDED = """
# 48 rows of queries; beside the output of halves a float32 for each row, where it is kept.
_scaled_dot_product_efficient_attention h2384 h2354 h2356 - True = (492 + 48 * 6) * 2 + 48 * 4
_scaled_dot_product_cudnn_attention h2384 h2354 h2356 h85 False = (492 + 48 * 6 + 40) * 2
# 4 images of 6 channels and 9 * 7 places to 4 * 8 * 5 * 3, by two steps with a border.
cudnn_convolution f4697 f8635 [1,1] [2,2] [1,1] 1 = (4 * 6 * 63 + 48 * 15 + 4 * 8 * 5 * 3) * F4
# Halves, whose mean and deviation are float32, as are the running figures.
cudnn_batch_norm h465 f6 f6 f6 f6 True = 2 * 120 * 2 + (2 + 4 + 2) * 6 * F4
native_layer_norm h46 [6] f6 f6 - = 2 * 24 * 2 + 2 * 6 * F4 + 2 * 4 * F4
native_layer_norm_backward f46 f46 [6] f41 f41 f6 f6 [0,1,0] = (2 * 24 + 2 * 4 + 6 + 6) * F4
# Halves to float32; and the gradient of that, which is of halves (type 5) again.
_softmax h46 1 True = 24 * (2 + 4); _log_softmax_backward_data f46 f46 1 5 = 24 * (4 + 4 + 2)
mkldnn_linear f234 f54 f5 = (24 + 20 + 5 + 30) * F4; max f46 f46 = None
_addmm_activation f5 f34 f45 - - - = (5 + 12 + 20 + 15) * F4
avg_pool2d_backward f2344 f2388 = (96 + 384) * F4; glu_backward f43 f46 - = (12 + 48) * F4
# Whole numbers stay whole with a whole number; truth values do not.
mul i4 3 = 2 * 4 * 4; mul i4 0.5 = None; add b4 b4 = None; sqrt i4 = None; sqrt f4 = 2 * 4 * F4
sqrt c4 = None; abs c4 = None; neg c4 = 2 * 4 * 8
# True division of whole numbers gives the default type, which may be set.
div i4 i4 = None
# A tensor without dimensions changes the type only by its kind.
add i4 d = 4 * 4 + 8 + 4 * 8; where b4 d f4 = 4 + 8 + 2 * 4 * F4
# What only calls others has no rule, nor has what torch does not know; nor a type given.
linear f23 f43 f4 = None; reshape f23 [6] = None; mm f23 = None; mm f23 f34 - = None
"""


# Operators of devices that this machine may not have, and rarer inputs.
@pytest.mark.parametrize(("call", "expected"), cases(RECORDED))
def test_recorded_calls(call, expected):
    name, *inputs = call.split()
    tensors = [is_tensor(text) for text in inputs]
    pairs = list(zip(inputs, tensors, strict=True))
    shapes = [shape(text) if tensor else [] for text, tensor in pairs]
    types = [NAMES[text[0]] if tensor else "Scalar" for text, tensor in pairs]
    values = [None if text == "-" or of else ast.literal_eval(text) for text, of in pairs]
    assert moved_bytes(f"aten::{name}", shapes, types, values) == expected
