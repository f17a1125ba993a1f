"""Building variants of one model, and comparing their results."""

import random
import warnings

import pytest
import torch
from torch import nn

from profstack.bench.subject import of_model
from profstack.bench.variant_build import compare_results, copy_result, kept, why_failed


def states():
    return random.getstate(), torch.get_rng_state().tolist(), list(warnings.filters)


def test_reasons_hold_no_data_of_the_users():
    text = "Tracer cannot infer type of {'a': tensor([[ 1.76,\n  2.5]])}\n:Dictionary inputs differ"
    status, reason = why_failed(RuntimeError(text))
    assert (status, "1.76" in reason) == ("failed", False)
    assert "Dictionary inputs differ" in reason
    assert why_failed(OSError("no source of <f at 0x7f12>"))[1] == "OSError: no source of <f>"
    assert why_failed(ValueError("first\nsecond")) == ("failed", "ValueError: first")
    long, longer = (why_failed(ValueError("x" * count))[1] for count in (2_000, 3_000))
    assert (long, long[-5:], len(long) < 1_000) == (longer, "xx...", True)


def test_comparison_of_results():
    nan, one = torch.tensor([float("nan"), 1.0]), torch.tensor([1.0, 1.0])
    inf, half, number = torch.tensor([float("inf"), 1.0]), one.bfloat16(), torch.tensor([1, 2])
    near_ = half * 1.01
    several, same = {"a": one, "b": [nan]}, (one, float("nan"))
    for equal, difference, result, reference in (
        *((True, 0.0, nan, nan.clone()), (False, None, one, nan), (True, 0.0, inf, inf.clone())),
        *((False, None, one, inf), (False, None, (one,), (one, one)), (True, 0.0, *[several] * 2)),
        *((False, None, one.double(), one), (False, None, one[:1], one), (None, None, None, None)),
        *((False, 0.0, (one, 3), (one, 4)), (True, 0.0, same, same), (True, 2**-7, near_, half)),
        *((True, 0.0, number, number.clone()), (False, 1.0, number, torch.tensor([1, 3]))),
        (False, 0.01, 1.01 * one, one),
    ):
        found = compare_results(result, copy_result(reference))
        assert found.equal is equal
        assert found.max_difference == (difference and pytest.approx(difference, rel=1e-4))


def test_buffers_modes_and_random_streams_are_put_back():
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(4))
    model[0].eval()
    norm = model[1]
    mean, before, x = norm.running_mean, states(), torch.zeros(2)
    with kept(of_model(model, (x,))) as put_back:
        x += 1
        model(torch.randn(8, 4))
        norm.running_var = torch.full((4,), 9.0)
        put_back()
        assert (x.tolist(), norm.running_var.tolist()) == ([0, 0], [1.0] * 4)
        assert (norm.running_mean is mean, int(norm.num_batches_tracked)) == (True, 0)
        model.eval()
        random.random()
    assert (model.training, model[0].training, states()) == (True, False, before)
