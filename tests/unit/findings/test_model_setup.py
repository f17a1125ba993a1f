"""Findings on models and optimizers that are set up wrongly for their use."""

import pytest

from profstack.findings import model_setup
from profstack.findings.model_setup import can_be_fused, unfused_optimizer, zero_grad_to_zeros
from tests.support import findings as made
from tests.support.findings import MS, TRACED_S, asked, line, links
from tests.support.tables import cases, near, of, rows_of

PLACE = {"file": "train.py", "line": 7}


def operator(name, module="(optimizer)", **figures):
    """A row of the operators; a traced millisecond is 0.8 ms of a clean step."""
    known = {"shapes": "[[100]]", "calls": 1.0, "self_s": 0.1 * MS, "total_s": 0.1 * MS}
    return {"name": name, "module": module, **known, **figures}


def report_of(operators, *, optimizer_s=5 * MS, on="cpu", busy=None, phase="train", **more):
    """What the rules read of a run of three steps; its device is busy for `busy` of 10 ms."""
    tables, points = more.pop("tables", {}), more.pop("points", [])
    known = {key: more.pop(key) for key in ("trusted",) if key in more}
    gpu, nobody = on == "cuda", {"count": 0, "modules": []}
    setup = {"steps": 3, "backward_passes": 3 * (phase == "train"), "optimizers": []}
    setup |= {"training_norms": nobody, "training_dropouts": nobody}
    setup |= {"device": {"capability": [9, 0]} if gpu else None}
    setup |= {"tf32_products": False if gpu else None, "tf32_convolutions": True if gpu else None}
    calls = {"count": 4, "with_grad": 3, "nodes": 30, "module": "Net", "place": PLACE}
    rates = rows_of("dtype value", ("float32", 50e12), ("tf32", 400e12))
    peaks = {"flop_per_s": rates, "bytes_per_s": [{"value": 2e12 if gpu else 10e9}]}
    parts = {"step": {"phase": phase}, "setup": setup | {"calls": calls} | more}
    parts["roofline"] = {"peaks": peaks, "points": points}
    launches = [{"device_busy_s": busy * MS, "device_idle_s": (10 - busy) * MS}] if busy else []
    tables |= {"modules": [{"path": "(optimizer)", "self_s": optimizer_s}]}
    tables |= {"operators": operators, "launches": launches}
    return made.report_of(device=on, parts=parts, **known, **tables)


def optimizer(**changes):
    """An optimizer as the report's `setup` has it."""
    flags = ("fused", "foreach", "differentiable", "amsgrad", "momentum", "sparse_tensors")
    known = {"name": "MyAdamW", "base": "AdamW", "weight_decay": True, "has_fused": True}
    known |= {"tensors": 10, "parameter_bytes": 1_000_000, "calls": 3, "place": PLACE}
    types = {"devices": ["cpu"], "dtypes": ["float32"]}
    return {**dict.fromkeys(flags), **known, **types, **changes}


def stepping(moved=1.0, self_ms=3.75, **figures):
    """The operators of an optimizer: 3 ms of a clean step, 1000 calls."""
    known = {"calls": 1000.0, "self_s": self_ms * MS, "moved_bytes": moved, **figures}
    return [operator("aten::addcdiv_", **known), operator("aten::mm", "Net", moved_bytes=9e9)]


def unfused(*optimizers, operators=None, **more):
    operators = stepping() if operators is None else operators
    report = report_of(operators, optimizers=[*optimizers], **more)
    return asked(unfused_optimizer, None, report, "operators")


SGD = "base=SGD,weight_decay=False,parameter_bytes"


# The operators' 3 ms are calls with their Python, of which a share is left and six calls come
# anew, or passes over memory: 20 MB at 10 GB/s are 2 ms.
@cases("moved called left streamed kept changes",
       "1 4 .17 0 0 parameter_bytes=1; 1 4 .19 0 0 parameter_bytes=1,base=Adam",
       f"1 4 .31 0 0 parameter_bytes=1,base=Adagrad; 1 4 .38 0 0 {SGD}=1",
       f"1 4 .2 0 0 {SGD}=1,momentum=True; 1 4 .2 0 0 base=SGD,parameter_bytes=1",
       "20e6 1.6 .17 2 .35 -; 20e6 1.6 .17 2 .45 amsgrad=True; 20e6 1.6 .17 2 .7 calls=6",
       "20e6 1.6 .17 2 .35 calls=None; 20e6 1.6 .31 2 .25 base=Adagrad",
       f"20e6 1.6 .38 2 .15 {SGD}=1e6; 20e6 1.6 .2 2 .25 {SGD}=1e6,momentum=True",
       # Bytes that would take longer take no longer; fewer than are needed save nothing.
       "100e6 0 0 3 .35 parameter_bytes=5e6; 20e6 1.6 .17 2 1 parameter_bytes=5e6")  # fmt: skip
def test_fusing_saves_calls_and_passes_over_memory(moved, called, left, streamed, kept, changes):
    (told,) = unfused(optimizer(**changes), operators=stepping(moved))
    gain_ms = called * (1 - left - 6 / 1000) + streamed * (1 - kept)
    assert told["gain_s"] == pytest.approx(gain_ms * MS, rel=1e-3)


def test_an_optimizer_is_told_with_its_share_and_operators():
    # 42 calls take 0.2 ms of the 4 ms, and as much Python as belongs to them.
    sgd = optimizer(base="SGD", momentum=True, parameter_bytes=1)
    (told,) = unfused(sgd, operators=stepping(self_ms=0.25, calls=42.0))
    assert told["gain_s"] == pytest.approx(0.32 * MS * (1 - 0.20 - 6 / 42), rel=1e-3)
    (told,) = unfused(optimizer())
    assert of(told, "file line module") == ["train.py", 7, "(optimizer)"]
    assert of(told["evidence"][0], "optimizer_s step_share") == near(4 * MS, 0.4)
    assert of(told["evidence"][1], "optimizer tensors") == ["MyAdamW", 10]
    # Where times are of no use the share is told alone.
    (told,) = unfused(optimizer(), trusted=False)
    assert of(told, "gain_s severity") == [None, "high"]
    assert "disturbed" in told["gain_reason"]
    # On a GPU the optimizer is its kernels: 100 MB at 2 TB/s, seven times.
    rows = [operator("aten::_foreach_addcdiv_", device_s=2.5 * MS)]
    adam = optimizer(devices=["cuda"], parameter_bytes=100_000_000)
    (told,) = unfused(adam, operators=rows, on="cuda", busy=9)
    found = [told["gain_s"], told["evidence"][0]["step_share"]]
    assert found == near(2 * MS - 7 * 0.05 * MS, 0.2)


def test_an_optimizer_with_little_to_save_or_fused_already_is_left_alone():
    for share, is_found in ((0.0301, 1), (0.0299, 0), (0.05, 1), (0.018, 0)):
        assert len(unfused(optimizer(), optimizer_s=share * TRACED_S)) == is_found
    for saved_ms, is_found in ((0.102, 1), (0.098, 0)):
        # All of it streams, of which a share is saved.
        streams = optimizer(parameter_bytes=(10e6 - saved_ms * 1e7) / 7)
        rows = [operator("aten::add_", self_s=1.25 * MS, moved_bytes=10e6)]
        assert len(unfused(streams, operators=rows, optimizer_s=1.25 * MS)) == is_found
    assert unfused(optimizer(), operators=[*stepping(), operator("aten::_fused_adamw_")]) == []
    wrong = [{"has_fused": False}, {"base": None}, {"base": "RMSprop"}, {"differentiable": True}]
    wrong += [{"sparse_tensors": 1}, {"tensors": 0}, {"devices": ["cpu", "xla"]}]
    wrong += [{"dtypes": ["complex64"]}, {"base": "Adagrad", "devices": ["cuda"]}]
    assert not any(can_be_fused(optimizer(**change)) for change in wrong)
    able = {"devices": ["cuda", "mps", "xpu"], "dtypes": ["float16", "bfloat16", "float64"]}
    assert all(can_be_fused(optimizer(**change)) for change in ({}, able, {"base": "Adagrad"}))


# By cProfile steps of 30 ms; it is believed where the torch layer saw three times as much.
@cases("total_ms share", "3.9 .13; 4.1 .4")
def test_other_work_in_the_few_traced_steps_is_not_the_optimizers(total_ms, share):
    same = {"phase": "step", "file": "/lib/torch/optim/adamw.py", "line": 3}
    functions = rows_of("name total_s", ("step", total_ms * MS), ("zero_grad", 9 * MS), **same)
    report = report_of(stepping(), optimizers=[optimizer()], tables={"functions": functions})
    (told,) = unfused_optimizer(made.recorded(cprofile_timed=(4, 0.12)), report)
    assert told["evidence"][0]["step_share"] == pytest.approx(share)


@pytest.mark.parametrize("kind", ["embedding", "_embedding_bag"])
@cases("gain changes", (0.5, {}), (0.8, {"used": 40}), (0, {"used": 101}), (0, {"elements": 8100}),
       (0, {"product": "[[8, 4], [4, 1000]]"}), (0, {"on": "cuda"}))  # fmt: skip
def test_tables_that_are_updated_whole_for_a_few_rows(gain, changes, kind):
    known = {"used": 100, "product": "[[8, 4], [4, 5]]", "elements": 8000, "on": "cpu"} | changes
    rows = [operator(f"aten::{kind}", "Net.e", shapes="[[1000, 4], [500], []]")]
    dense = {"total_s": 0.2501 * MS, "shapes": f"[[1, 4], [{known.pop('used')}], []]"}
    rows += [operator(f"aten::{kind}_dense_backward", "Net.e", **dense)]
    rows += [operator("aten::mm", "Net.out", shapes=known.pop("product"))]
    steps = [optimizer(elements=known.pop("elements"))]
    report = report_of(rows, optimizer_s=2 * MS, optimizers=steps, **known)
    found = asked(model_setup.dense_embeddings, None, report, "operators")
    cost_s = 1.00008 * MS
    told = [(each["evidence"][0]["calibrated_s"], each["gain_s"]) for each in found]
    assert told == [tuple(near(cost_s, gain * cost_s))] * bool(gain)


GATHERING = "(gradient accumulation)"


def zeroing(shape="[[100]]", module="(zero_grad)", calls=4.0, of=4.0):
    """Gradients of a step that are zeroed, and those that are added to, in 0.32 ms."""
    added = {"shapes": f"[{shape[1:-1]}, {shape[1:-1]}, []]", "calls": of}
    zero = operator("aten::zero_", module, shapes=shape, calls=calls, device_s=0.125 * MS)
    add = operator("aten::add_", GATHERING, **added, total_s=0.3 * MS, device_s=0.2 * MS)
    return [zero, add, operator("torch::autograd::AccumulateGrad", GATHERING, calls=of)]


def test_zeroing_costs_itself_and_the_additions():
    lines = [line(3, "loss.backward()  # .zero_() comes later", python_s=9 * MS)]
    lines += [line(4, "optimizer.zero_grad(set_to_none=False)", python_s=2 * MS)]
    lines += [line(5, "optimizer.zero_grad()", python_s=9 * MS, own=False)]
    for module in ("(zero_grad)", None):
        report = report_of(zeroing(module=module), tables={"lines": lines})
        (told,) = zero_grad_to_zeros(None, report)
        assert of(told, "gain_s line severity") == near(0.4 * 0.8 * MS, 4, "low")
        zero, add, text = told["evidence"]
        names = "calls calibrated_s step_share"
        assert of(zero, names) == near(4.0, 0.08 * MS, 0.1 / 12.5)
        assert of(add, names) == near(4.0, 0.24 * MS, 0.3 / 12.5)
        assert text["text"] == "optimizer.zero_grad(set_to_none=False)"
        assert links(told)[:2] == ["operators/aten::zero_", f"modules/{GATHERING}"]


def test_zeros_count_by_their_passes_their_cost_and_their_size():
    # Four passes a step: of sixteen additions four follow a zero.
    rows = zeroing(of=16.0)
    (told,) = zero_grad_to_zeros(None, report_of(rows, backward_passes=12))
    assert told["gain_s"] == pytest.approx((0.1 + 0.3 / 4) * 0.8 * MS)
    assert zero_grad_to_zeros(None, report_of(rows, backward_passes=5)) == []
    zero, add, gather = zeroing()
    for zero_ms, add_ms, is_found in ((0.0251, 0.1, 1), (0.0249, 0.1, 0), (0.06, 0.01, 0)):
        rows = [zero | {"total_s": zero_ms * MS}, add | {"total_s": add_ms * MS}, gather]
        assert len(asked(zero_grad_to_zeros, None, report_of(rows), "operators")) == is_found
    # Gradients of more than 64 KiB are better kept on the host; a device's allocator keeps them.
    for shape, is_found in (("[[128, 128]]", 1), ("[[129, 128]]", 0), ("[[64, 128]]", 1)):
        rows = zeroing(shape)
        assert len(zero_grad_to_zeros(None, report_of(rows))) == is_found
        (told,) = zero_grad_to_zeros(None, report_of(rows, on="cuda", busy=9))
        assert told["gain_s"] == pytest.approx(0.325 * 0.8 * MS)


def multiplied(scale=1.0, *, moved=1e6, busy=9, **noted):
    """The findings on 4 ms of products bound by arithmetic, 1 ms by memory, and convolutions."""
    rows = [("step", "step", 10, "compute", "float32")]
    rows += [("operator", "aten::mm in Net.0", 4, "compute", "float32")]
    rows += [("operator", "aten::addmm in Net.1", 1, "memory", "float32")]
    rows += [("operator", "aten::convolution in Net.2", 2, "compute", "float32")]
    rows += [("operator", "aten::bmm in Net.3", 2, "compute", "bfloat16")]
    rows += [("module", "aten::mm", 9, "compute", "float32")]
    points = rows_of("kind name seconds bound dtype", *rows, flop=1e11, moved_bytes=moved)
    points = [each | {"seconds": each["seconds"] * MS * scale} for each in points]
    report = report_of([], on="cuda", busy=busy, points=points, **noted)
    return model_setup.float32_without_tf32(None, report)


def test_products_at_full_precision_lose_the_ratio_of_the_peaks():
    (told,) = multiplied()
    assert of(told, "gain_s severity") == near(4 * MS * (1 - 50 / 400), "high")
    assert "1.50 ms" in told["gain_reason"]
    assert of(told["evidence"][0], "calibrated_s step_share") == near(5 * MS, 0.5)
    assert links(told) == ["operators/aten::mm", "operators/aten::addmm"]
    (other,) = multiplied(tf32_products=True, tf32_convolutions=False)
    (both,) = multiplied(tf32_convolutions=False)
    gains = near(2 * MS * (1 - 50 / 400), 6 * MS * (1 - 50 / 400))
    assert [other["gain_s"], both["gain_s"]] == gains
    # Bytes bound what TF32 can save.
    for moved, gain_ms in ((4e9, 4 - 2), (0.9e9, 4 * 7 / 8), (9e9, None)):
        gains = [] if gain_ms is None else near(gain_ms * MS)
        assert [each["gain_s"] for each in multiplied(moved=moved)] == gains
    # A twentieth of the step in products; a device that can, and does not already.
    for scale, is_found in ((0.1001, 1), (0.0999, 0)):
        assert len(multiplied(scale)) == is_found
    noted = [{"device": {"capability": at}} for at in ([8, 0], [10, 0], [7, 5])]
    noted += [{"device": None}, {"tf32_products": True}, {"tf32_products": None}]
    assert [len(multiplied(**each)) for each in noted] == [1, 1, 0, 0, 0, 0]
