"""Formulas of floating-point operations against direct counts of multiply-adds."""

from itertools import product
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import flop_registry

from profstack.readers.flops import formulas
from profstack.readers.flops.formulas import flop_of, left_out, operator_name, registry
from tests.support.flop_slices import count

aten = torch.ops.aten
FORMULAS = registry(torch)
# Operators, their first arguments (a tensor by its letters, a list of them in brackets), others by
# name, and the products. Every letter is a dimension of a size of its own. Q is 3 d, the
# projections of queries, keys and values; G is 4 h, the gates of an LSTM; K is k + 2, since
# distances by a product append two columns for the squares.
# Attention: scores of queries and keys, and their product with the values; backward takes the
# scores again, and two products for the gradients of each of both. Whole layers: projections,
# scores, their product with the values, the output, and what feeds forward.
FLASH = "_scaled_dot_product_flash_attention_for_cpu"
FUSED = "_scaled_dot_product_fused_attention_overrideable"
ENCODER = "qkv_weight=Qd qkv_bias=Q proj_weight=dd proj_bias=d"
FEED_FORWARD = "ffn_weight_1=fd ffn_bias_1=f ffn_weight_2=dg ffn_bias_2=d"
TABLE = f"""
mm _scaled_mm_v2 | mk kn | mkn
addmm addmm_ _addmm_activation | cn mk kn | mkn
bmm | bmk bkn | bmkn
baddbmm baddbmm_ | bcn bmk bkn | bmkn
addbmm addbmm_ | cn bmk bkn | bmkn
mv | mk k | mk
dot vdot | k k | k
addmv addmv_ | c mk k | mk
linear mkldnn_linear | bmk nk n | bmkn
_weight_int8pack_mm | mk nk n | mkn
_weight_int4pack_mm | mk cdef 32 gn2 | mkn
_weight_int4pack_mm_for_cpu | mk cd 32 gn2 | mkn
{FLASH} {FUSED} | bhse bhte bhtf | bhste bhstf
_scaled_dot_product_attention_math_for_mps | bhse bhte bhtf | bhste bhstf
{FLASH}_backward {FUSED}_backward | bhsf bhse bhte bhtf | bhste bhste bhste bhstf bhstf
_native_multi_head_attention | bsd btd btd {ENCODER} | bsdd btdd btdd bstd bstd bsdd
_transformer_encoder_layer_fwd | bsd {ENCODER} {FEED_FORWARD} | bsQd bsdd bssd bssd bsfd bsdg
mkldnn_rnn_layer | tbi Gi Gh | tbGi tbGh
mkldnn_rnn_layer_backward | tbi Gi Gh | tbGi tbGh tbGi tbGh
_cudnn_rnn | tbi [Gi,Gh,G,G] | tbGi tbGh
_cudnn_rnn | pi [Gi,Gh,G,G] | pGi pGh
_cudnn_rnn_backward | tbi [Gi,Gh,G,G] output_mask=1,1,1,1 | tbGi tbGh tbGi tbGh
_cudnn_rnn_backward | tbi [Gi,Gh,G,G] output_mask=1,1,1,0 | tbGi tbGh
_euclidean_dist | bmk bnk | bmnK
_euclidean_dist | 1mk bnk | bmnK
_cdist_forward | bmk 1nk 2.0 None | bmnk
_cdist_forward | bmk bnk 1.0 None |
_cdist_forward | bmk bnk 3.0 None |
_cdist_backward | bmn bmk bnk 1.0 bmn | bmnk
"""
LINES = [line.split("|") for line in TABLE.strip().splitlines()]
EACH = [(name, *(part.split() for part in rest)) for many, *rest in LINES for name in many.split()]
LETTERS = "bcdefghiklmnopst"


@pytest.mark.parametrize(("name", "inputs", "products"), EACH)
@settings(max_examples=10)
@given(order=st.permutations(range(2, 2 + len(LETTERS))))
def test_a_formula_counts_every_multiply_add(name, inputs, products, order):
    sizes = dict(zip(LETTERS, order, strict=True)) | {"1": 1, "2": 2}
    sizes |= {"Q": 3 * sizes["d"], "G": 4 * sizes["h"], "K": sizes["k"] + 2}

    def sized(text):
        if text[0] == "[":
            return [sized(each) for each in text[1:-1].split(",")]
        if text in ("None", "32") or "." in text or "," in text:
            return [bool(int(one)) for one in text.split(",")] if "," in text else eval(text)
        return torch.empty([sizes[letter] for letter in text], device="meta")

    first = [sized(text) for text in inputs if "=" not in text]
    named = dict(text.split("=") for text in inputs if "=" in text)
    schema = getattr(aten, name).default._schema.arguments[len(first) :]
    rest = [sized(named.get(each.name, "None")) for each in schema if not each.kwarg_only]
    arguments = [*first, *rest]
    expected = 2 * sum(prod(sizes[letter] for letter in letters) for letters in products)
    assert FORMULAS[getattr(aten, name)](*arguments, out_val=torch.empty(1)) == expected
    # The same from the shapes in a profile, which has none of lists.
    if not any(isinstance(value, list) for value in first):
        shapes = [list(each.shape) if isinstance(each, torch.Tensor) else [] for each in arguments]
        concrete = [None if isinstance(each, torch.Tensor) else each for each in arguments]
        assert flop_of(f"aten::{name}", shapes, concrete) == expected


def test_every_formula_has_its_case_and_torchs_own_stay_but_for_those_that_fail():
    # The last ones have tests of their own below.
    known = {case[0] for case in EACH} | {"convolution_backward", "_grouped_mm"}
    added = {operator_name(each) for each in formulas.custom_mapping(torch)}
    assert added <= {f"aten::{name}" for name in (*known, "_trilinear", "conv_tbc")}
    changed = {str(name) for name, own in flop_registry.items() if FORMULAS[name] is not own}
    names = ("addmm", "bmm", "baddbmm", "convolution_backward")
    assert changed == {f"aten.{name}" for name in names}
    # 13 of the rows, columns or inner places are in groups; without ends all of them.
    for a, b, expected in (
        ((16, 5), (3, 5, 7), 13 * 5 * 7), ((3, 4, 5), (5, 16), 13 * 4 * 5),
        ((4, 16), (16, 7), 4 * 13 * 7), ((3, 4, 5), (3, 5, 7), 3 * 4 * 5 * 7),
    ):  # fmt: skip
        ends = torch.tensor([4, 9, 13]) if len(a) + len(b) < 6 else None
        assert formulas.grouped_mm(torch.empty(a), torch.empty(b), ends) == 2 * expected
        # A profile has shapes alone, and not where the groups end.
        assert ends is None or flop_of("aten::_grouped_mm", [a, b, [3]]) is None


def places(size, width, step, pad, gap):
    """Begins of a kernel that lies within the padded input."""
    return [at for at in range(0, size + 2 * pad, step) if at + gap * (width - 1) < size + 2 * pad]


def multiply_adds(x, weight, stride, padding, gaps, transposed, _, groups):
    """Count by going over the images, places, groups, channels and weights."""
    columns = zip(x[2:], weight[2:], stride, padding, gaps, strict=True)
    # Transposed, every place of the input is spread out by the whole kernel.
    around = [range(each[0]) if transposed else places(*each) for each in columns]
    outputs = weight[1] if transposed else weight[0] // groups
    ranges = map(range, (x[0], groups, x[1] // groups, outputs, *weight[2:]))
    return sum(1 for _ in product(*around, *ranges))


# Shapes of the input and the weight; stride, padding, dilation, transposed, and groups.
CONVOLUTIONS = (
    ([2, 4, 9], [6, 2, 3], [2], [1], [2], False, [0], 2),
    ([3, 2, 3, 2], [2, 3, 2, 3], [1, 2], [0, 0], [2, 1], True, [0, 0], 1),
)


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_a_convolution_counts_every_multiply_add(case):
    of_x, of_weight, *options = case
    x, weight = (torch.empty(shape, device="meta") for shape in case[:2])
    inputs, expected = (x, weight, None, *options), 2 * multiply_adds(*case)
    out = aten.convolution(*inputs)
    assert FORMULAS[aten.convolution](*inputs, out_val=out) == expected
    shapes, concrete = [*case[:2], [], *[[]] * 6], [None, None, None, *options]
    for name in ("aten::convolution", "aten::_convolution"):
        assert flop_of(name, shapes, concrete) == expected
    # Each of both gradients takes as much.
    for wanted in product((False, True), repeat=2):
        made = (x if wanted[0] else None, weight if wanted[1] else None, None)
        found = FORMULAS[aten.convolution_backward](out, *inputs, [*wanted, True], out_val=made)
        assert found == sum(wanted) * expected
    if not options[3]:
        assert formulas.convolved(of_x[2:], of_weight[2:], *options[:3]) == list(out.shape[2:])


def test_a_convolution_over_times_counts_every_multiply_add():
    for width, batch, inputs, outputs, times, pad in ((2, 3, 4, 5, 9, 0), (3, 5, 2, 7, 10, 2)):
        x, weight = torch.empty(times, batch, inputs), torch.empty(width, inputs, outputs)
        expected = 2 * len(places(times, width, 1, pad, 1)) * batch * width * inputs * outputs
        arguments = (x, weight, torch.empty(outputs), *[pad] * bool(pad))
        assert FORMULAS[aten.conv_tbc](*arguments, out_val=x) == expected


def test_bilinear_counts_the_products_its_kernel_makes():
    left, right = torch.randn(3, 4, requires_grad=True), torch.randn(3, 5, requires_grad=True)
    layer = nn.Bilinear(4, 5, 6)
    step = lambda: layer(left, right).sum().backward()  # noqa: E731
    counted = count(step).by_module
    # For every output: (rows, left) @ (left, right), and that with the other input by row.
    assert counted["Bilinear"][0] == 2 * 3 * 6 * 4 * 5 + 2 * 3 * 6 * 5
    # Of all matrix products that torch.profiler sees, also inside other operators.
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        step()
    events = profiled.profiler.kineto_results.events()
    made = [e for e in events if e.name() in ("aten::bmm", "aten::mm", "aten::addmm")]
    shapes = [event.shapes()[event.name() == "aten::addmm" :] for event in made]
    assert sum(map(sum, counted.values())) == sum(2 * prod(a) * b[-1] for a, b, *_ in shapes)


def test_what_a_mask_leaves_out_is_known_from_shapes_alone():
    row, more, flash = [1, 6, 3, 8], [1, 9, 3, 8], "aten::_flash_attention_forward"
    same, efficient = [row] * 3, "aten::_efficient_attention_forward"
    packed = [None, [3], [3]]
    for name, arguments, expected in (
        # Places come before heads: 1 + ... + 6 of 36 pairs are kept.
        (flash, [*same, None, None, 6, 6, 0.0, True, False], 15),
        (efficient, [*same, None, None, None, 6, 6, 0.0, 1], 15),
        (efficient, [*same, None, None, None, 6, 6, 0.0, 0], 0),
        # Of packed sequences, and where the lengths differ, the shapes do not show it.
        (efficient, [*same, *packed, 6, 6, 0.0, 1], None),
        (flash, [row, more, more, None, None, 6, 9, 0.0, True, False], None),
        (flash, [None, None, None, None, None, 6, 6, 0.0, True], None),
        ("aten::mm", [[6, 6], [6, 6]], 0),
    ):
        assert left_out(name, arguments, {}, 36) == expected, (name, arguments)
    for queries, keys in ((1, 1), (4, 4), (3, 7), (7, 3)):
        kept = sum(key <= query for query in range(queries) for key in range(keys))
        assert formulas.kept_pairs(queries, keys) == kept
        shapes = [[2, 3, queries, 8], [2, 3, keys, 8], [2, 3, keys, 8]]
        tensors, dense = [torch.empty(shape) for shape in shapes], 7 * 6 * queries * keys
        calls = [([*shapes, 0.0, True], {}), ([*tensors, 0.0, True], {})]
        calls += [(shapes, {"is_causal": True}), ([*shapes, 0.0, False], {}), (shapes, {})]
        found = [left_out(f"aten::{FLASH}", *call, dense) for call in calls]
        assert found == [dense - 7 * 6 * kept] * 3 + [0, 0]
    # Shapes alone are not always enough for a figure: values that were not kept, for one.
    for name, shapes, concrete in (
        ("aten::relu", [[3, 4]], []), ("no::such", [[3, 4]], []), ("aten::mm", [[3, 4], []], []),
        ("aten::_cudnn_rnn", [[9, 2, 5], [], [], [], [2, 2, 7]], [None, []]),
    ):  # fmt: skip
        assert flop_of(name, shapes, concrete) is None
        assert formulas.has_formula(name) is (name not in ("aten::relu", "no::such"))


MISSED = """matmul einsum cdist _trilinear bilinear conv2d mv lstm_cell gru _pdist_forward geqrf
    _linalg_svd _linalg_solve_ex linalg_cholesky_ex _fft_r2c deform_conv2d _sparse_mm linalg_inv_ex
    triangular_solve no::such torchvision::deform_conv2d profstack_formulas::mystery"""
NOT_MISSED = """relu add sum native_layer_norm embedding_bag _nested_from_padded commit lu_unpack
    _thnn_fused_lstm_cell linalg_vector_norm linalg_cross fft_fftshift upsample_bilinear2d
    linalg_diagonal mkldnn_reorder_conv2d_weight torchvision::roi_align torchvision::nms
    torchvision::_ps_roi_pool_backward c10d::allreduce_ prim::device profstack_formulas::each"""


def test_operators_that_do_arithmetic_are_missed_unless_they_are_elementwise():
    with torch.library._scoped_library("profstack_formulas", "DEF") as library:
        library.define("mystery(Tensor x) -> Tensor")
        library.define("each(Tensor x) -> Tensor", tags=(torch.Tag.pointwise,))
        for names, missed in ((MISSED, True), (NOT_MISSED, False)):
            full = [name if "::" in name else f"aten::{name}" for name in names.split()]
            assert [name for name in full if formulas.is_missed(name) is not missed] == []
        # Of a name without a namespace nothing is known.
        assert formulas.is_missed("mm")
