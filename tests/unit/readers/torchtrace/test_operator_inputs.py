"""Recorded inputs of operators: types and schemas are those of torch itself."""

import pytest
import torch

from profstack.readers.torchtrace import operator_inputs as module
from profstack.readers.torchtrace.operator_inputs import BOOL, COMPLEX, FLOATING, INTEGER

TYPES = "uint8 int8 int16 int32 int64 bool float16 bfloat16 float32 float64 float8_e4m3fn "
TYPES += "float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz complex64 complex128"
TYPES = [getattr(torch, name) for name in TYPES.split()]


def test_types_have_the_names_sizes_and_kinds_of_torch():
    with torch.autograd.profiler.profile(record_shapes=True, use_kineto=True) as profile:
        for dtype in TYPES:
            source = torch.int8 if dtype == torch.bool else torch.bool
            torch.empty((2, 3), dtype=source).to(dtype).clone()
    events = profile.kineto_results.events()
    # A conversion has torch's number of the type as a value, a copy its name.
    conversions = [e for e in events if e.name() == "aten::_to_copy"]
    copies = [e for e in events if e.name() == "aten::clone"]
    for dtype, conversion, copy in zip(TYPES, conversions, copies, strict=True):
        [given, _] = module.arguments_of(copy.shapes(), copy.dtypes(), [])
        number = FLOATING if dtype.is_floating_point else INTEGER
        kind = COMPLEX if dtype.is_complex else BOOL if dtype == torch.bool else number
        found = (given.dtype.name, given.dtype.kind, given.shape, given.numel, given.nbytes)
        name = str(dtype).removeprefix("torch.")
        assert found == (name, kind, (2, 3), 6, 6 * dtype.itemsize)
        assert module.itemsize(conversion.concrete_inputs()[1]) == dtype.itemsize, dtype
    assert BOOL < INTEGER < FLOATING < COMPLEX
    with pytest.raises(KeyError):
        module.itemsize(99)


def test_arguments_are_tensors_values_or_not_recorded():
    shapes, types = [[2, 5], [], [], [], []], ["double", "Scalar", "", "TensorList", "ScalarList"]
    given = module.arguments_of(shapes, types, [None, 0.5, "text", [1]])
    assert [type(given[0]), type(given[3])] == [module.Tensor, module.Unknown]
    assert (given[1], given[2], given[4]) == (0.5, "text", None)
    short = module.arguments_of([[3]], ["short int"], [])
    assert module.tensor_bytes([*given, *short]) == 10 * 8 + 3 * 2
    # The type of an operator is that of its first floating-point input.
    cases = ["long int,c10::BFloat16,float", "bool,c10::complex<float>", "long int,Scalar,"]
    found = [module.floating_name(case.split(",")) for case in cases]
    assert found == ["bfloat16", "complex64", None]
