"""The flops layer: rows over the steps that count, the check beside it, and giving way."""

from pathlib import Path
from types import SimpleNamespace

import torch
from torch.utils.flop_counter import FlopCounterMode

from profstack.layer import SliceContext
from profstack.readers.flops.counting import COMPILED, CountedStep
from profstack.readers.torchtrace.bounds import OtherProfilers
from profstack.storage.vocabulary import OPTIMIZER
from profstack.wrappers import flops as flops_layer

X = torch.randn(3, 4)
PRODUCT = 2 * 3 * 4 * 3


def begun(mode="count", steps=1, index=0):
    wrapper = flops_layer.FlopsWrapper()
    wrapper.start(SliceContext(index, mode, steps, Path()))
    return wrapper


def depth():
    return torch._C._len_torch_dispatch_stack()


def test_rows_are_sums_over_the_steps_that_count():
    owners = (("Net.a", 0), ("Net.a", 1), ("gone", 0), (None, 0))
    a, b, gone, none = ((owner, "aten::mm") for owner in owners)
    last = ((OPTIMIZER, 0), "aten::bmm")
    # Operations, those that masks leave out, calls, and calls without a figure.
    first = CountedStep({a: 10, b: 20, gone: 7}, {a: 4, b: None}, {a: 2, b: 3, gone: 1}, {a: 5})
    second = CountedStep({a: 1000}, {a: 100}, {a: 99}, {b: 99})
    calls = ({a: 4, b: 5, last: 6, none: 7}, {a: 8, none: 9})
    third = CountedStep({a: 30, b: 40, last: 50, none: 60}, {b: 6, last: 8}, *calls)
    wrapper = begun(steps=4, index=3)
    wrapper.stop()
    # What came after the last step is left out.
    wrapper.listener().steps = [first, second, third, CountedStep(calls={a: 5})]
    taken = wrapper.take([0.0] * 4, {4: SimpleNamespace(path="Net.a")}, (1,))
    expected = (
        (4, "aten::mm", 0, 6, 40, 4), (4, "aten::mm", 1, 8, 60, None),
        (4, "aten::mm", 0, 13, None, None), (OPTIMIZER, "aten::bmm", 0, 6, 50, 8),
        (None, "aten::mm", 0, 8, 67, 0), (None, "aten::mm", 0, 9, None, None),
    )  # fmt: skip
    rows = [tuple(row.values()) for row in taken.frames["flop_counts"]]
    assert sorted(rows, key=str) == sorted(((3, "FlopCounterMode", *x) for x in expected), key=str)
    assert (taken.notes, taken.holds_all) == ([], False)
    wrapper = begun()
    wrapper.stop()
    wrapper.listener().steps = [first]
    assert [slug for slug, _ in wrapper.take([0.0, 1.0], {}, (0,)).notes] == ["empty-capture"]


def test_a_dispatch_mode_of_the_script_and_compiled_code_have_precedence(monkeypatch):
    with FlopCounterMode(display=False) as stock:
        assert "dispatch mode" in str(flops_layer.FlopsWrapper().busy_reason("count"))
    wrapper, other = begun(), FlopCounterMode(display=False)
    torch.mm(X, X.T)
    # Entered inside the slice, and left after it: the mode goes from under both.
    with other, stock:
        torch.mm(X, X.T)
        wrapper.stop()
        assert depth() == 2
        torch.mm(X, X.T)
    assert (other.get_total_flops(), stock.get_total_flops(), depth()) == (*[2 * PRODUCT] * 2, 0)
    rows = wrapper.take([0.0, 1.0], {}).frames["flop_counts"]
    assert ([row["flop"] for row in rows], wrapper.busy_reason("count")) == ([2 * PRODUCT], None)
    wrapper = begun()
    torch.mm(X, X.T)
    wrapper.stop()
    monkeypatch.setattr(flops_layer, "has_compiled", lambda: True)
    assert [wrapper.busy_reason(mode) for mode in ("count", flops_layer.CHECK)] == [COMPILED] * 2
    taken = wrapper.take([0.0, 1.0], {})
    assert (taken.frames, taken.notes) == ({}, [("gave-way", COMPILED)])


def test_a_profiler_of_the_scripts_own_records_no_counting(monkeypatch):
    wrapper = begun()
    assert depth() == 1
    wrapper.give_way()
    assert depth() == 0
    torch.mm(X, X.T)
    ((slug, reason),) = wrapper.take([0.0, 1.0], {}).notes
    assert (slug, "torch.profiler" in reason, wrapper.busy_reason("count")) == (
        "gave-way", True, None,
    )  # fmt: skip
    monkeypatch.setattr(OtherProfilers, "any_active", True)
    assert wrapper.busy_reason("count") == reason
    monkeypatch.undo()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert wrapper.busy_reason("count") == reason
