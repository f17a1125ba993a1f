"""Rows of operators, moved bytes and kernels: on events written by hand."""

import numpy as np
import pytest

from profstack.readers.torchtrace import operators as module
from profstack.readers.torchtrace.attribution import attribute, module_records
from profstack.readers.torchtrace.events import read_host
from profstack.storage.vocabulary import LOSS
from tests.support.events import events, instant
from tests.support.tables import in_ns

SMALL, LARGE = [[2, 3], [3, 4]], [[5, 3], [3, 4]]
# Bytes of the products of these: both factors and the result, of float32.
MOVED, MOVED_LARGE = 4 * (6 + 12 + 8), 4 * (15 + 12 + 20)


def operators(text, shapes, *types):
    return events(text, shapes=shapes, dtypes=[*(types or ("float", "float"))])


EVENTS = [
    # `linear` only calls others; `addmm` around `mm` has its bytes counted, `mm` inside it not.
    *events("module:3 0-400; module:5 20-300; aten::sgn_of_nothing 265-272; pass 500-900"),
    *operators("aten::linear 30-130 number=1; aten::mm 40-110 sequence=4 number=2", SMALL),
    *operators("aten::mul 50-73 number=3", [[2, 3], []], "float", "Scalar"),
    *operators("aten::mm 140-151; aten::mm 310-321; aten::mm 520-597 number=6", SMALL),
    *operators("aten::mm 160-177", LARGE),
    *operators("aten::mm 180-199", SMALL, "double", "double"),
    *operators("mine::special 200-260 number=4", [[7]], "float"),
    *operators("aten::add 210-223", [[7], [7]]),
    *(instant(225, 64), *events("aten::mse_loss_backward 700-705 number=7")),
    *events("function:MmBackward0 510-610 sequence=4 forward=1 number=5"),
]


@pytest.fixture
def owned():
    return attribute(read_host(EVENTS, None, inputs=True), [0, 1000], bool)


def columns(rows, key, names):
    made = dict(zip(in_ns(rows, key), in_ns(rows, names), strict=True))
    assert len(made) == len(rows)
    assert {row["slice"] for row in rows} == {6}
    return made


def test_operators_are_kept_apart_by_name_inputs_owner_and_direction(owned):
    inputs = module.read_inputs(owned)
    kernels = events("k 0-31 linked=2; k 0-31 linked=3; k 0-31 linked=4", kind="kernel")
    _, device_ns = module.kernel_records(owned, kernels[:1], 6)
    rows = module.operator_records(owned, 6, device_ns, inputs)
    names, small, large = "calls self_s total_s device_s moved_bytes", str(SMALL), str(LARGE)
    found = columns(rows, "name module_id backward shapes dtype", names)
    assert {key[1:]: values for key, values in found.items() if key[0] == "aten::mm"} == {
        (5, 0, small, "float32"): (2, 70 - 23 + 11, 70 + 11, 31, 2 * MOVED),
        (5, 0, large, "float32"): (1, 17, 17, 0, MOVED_LARGE),
        (5, 0, small, "float64"): (1, 19, 19, 0, 2 * MOVED),
        (3, 0, small, "float32"): (1, 11, 11, 0, MOVED),
        (5, 1, small, "float32"): (1, 77, 77, 0, MOVED),
    }
    assert len(found) == 13 - 1
    other = [row for row in rows if row["name"][:2] == "mi" or "nothing" in row["name"]]
    assert columns(other, "name", "shapes dtype moved_bytes") == {
        ("mine::special",): ("[[7]]", "float32", None),
        ("aten::sgn_of_nothing",): (None, None, None),
    }
    # Without inputs and kernels: fewer rows, and neither shapes nor bytes.
    rows = module.operator_records(owned, 6, 0 * device_ns)
    mm = [row for row in rows if row["name"] == "aten::mm"]
    wanted = {(5, 0): (4,), (3, 0): (1,), (5, 1): (1,)}
    assert columns(mm, "module_id backward", "calls") == wanted
    unknown = ("shapes", "dtype", "device_s", "moved_bytes")
    assert {row[name] for row in rows for name in unknown} == {None}
    # Bytes count once, and what no rule covers has its own time.
    _, device_ns = module.kernel_records(owned, kernels, 6)
    rows = module.moved_records(owned, 6, inputs, device_ns)
    names = "calls total_s device_s moved_bytes"
    assert columns(rows, "operator module_id backward dtype", names) == {
        # With the operator inside it, whose own bytes are not counted again.
        ("aten::mm", 5, 0, "float32"): (3, 70 + 11 + 17, 62, 2 * MOVED + MOVED_LARGE),
        ("aten::mm", 5, 0, "float64"): (1, 19, 0, 2 * MOVED),
        ("aten::mm", 3, 0, "float32"): (1, 11, 0, MOVED),
        ("aten::mm", 5, 1, "float32"): (1, 77, 0, MOVED),
        ("aten::add", 5, 0, "float32"): (1, 13, 0, 3 * 7 * 4),
        ("mine::special", 5, 0, "float32"): (1, 60 - 13, 31, None),
        ("aten::sgn_of_nothing", 5, 0, None): (1, 7, 0, None),
        ("aten::mse_loss_backward", LOSS, 1, None): (1, 5, 0, None),
    }
    rows = module.moved_records(owned, 6, inputs, 0 * device_ns)
    assert {row["device_s"] for row in rows} == {None}


def test_kernels_belong_to_the_operators_that_launched_them(owned):
    kernels = events("gemm 600-611 linked=2; gemm 620-637 linked=2", kind="kernel", device=0)
    kernels += events("gemm 740-763 linked=6; loss 830-867 linked=7", kind="kernel", device=0)
    kernels += events("gemm 700-719 linked=2 stream=9", kind="kernel", device=1)
    kernels += events("copy 800-829 linked=99", kind="gpu_memcpy", device=0)
    rows, device_ns = module.kernel_records(owned, kernels, 6)
    names = "module_id operator calls device_s"
    assert columns(rows, "name device stream", names) == {
        ("gemm", "cuda:0", 7): (5, "aten::mm", 3, 11 + 17 + 23),
        ("gemm", "cuda:1", 9): (5, "aten::mm", 1, 19),
        ("copy", "cuda:0", 7): (None, None, 1, 29),
        ("loss", "cuda:0", 7): (LOSS, "aten::mse_loss_backward", 1, 37),
    }
    assert (device_ns.sum(), len(device_ns)) == (11 + 17 + 19 + 23 + 37, len(EVENTS))
    modules = module_records(owned, 6, memory=False)
    times = columns(modules, "module_id", "forward_device_s backward_device_s")
    assert times.items() >= {(3,): (47, 23), (5,): (47, 23), (LOSS,): (0, 37)}.items()


def test_outermost_operators_are_inside_no_other_and_take_no_batch_of_a_worker():
    text = "module:3 0-400; aten::linear 30-130; aten::mm 40-110; aten::relu 140-150;"
    text += "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__ 500-600;"
    text += "aten::set_ 510-520; enumerate(DataLoader)#_SingleProcess 700-800; aten::stack 710-720"
    made = attribute(read_host(events(text), None), [0, 1000], bool)
    rows = module.operator_records(made, 6, np.zeros(len(made.events), np.int64))
    found = {row["name"]: (row["calls"], row["outermost"]) for row in rows}
    wanted = {"linear": 1, "mm": 0, "relu": 1, "set_": 0, "stack": 1}
    kept = {f"aten::{name}": (1, count) for name, count in wanted.items()}
    assert {name: found[name] for name in kept} == kept
