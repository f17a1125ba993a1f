"""Variants of one model, compiled too: one comparison of all four."""

import gc
import random
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from profstack.bench.measure import Policy
from profstack.bench.subject import of_model
from profstack.bench.variants import compare
from profstack.stats.clock import Clock
from tests.support.reports import breaks_of_schema


@pytest.fixture(autouse=True)
def quick_collections():
    """What has been imported by now is left out of collections: with the compiler that is a lot."""
    gc.freeze()
    yield
    gc.unfreeze()


def rows_of(model, inputs, *names):
    policy = Policy(warmup=2, repeat=20, max_s=1.0)
    rows = compare(of_model(model, (inputs,), {}), names, policy, Clock())
    return {row["variant"]: row for row in rows}


class Normalised(nn.Module):
    """In training mode each call changes its statistics; the result is a dict, as of HF models."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(16, 32), nn.BatchNorm1d(32)

    def forward(self, x):
        hidden = torch.relu(self.norm(self.first(x)))
        return {"hidden": hidden, "mean": hidden.mean(1)}


def state_of(model):
    values = {name: value.tolist() for name, value in model.state_dict().items()}
    streams = random.getstate(), torch.get_rng_state().tolist()
    return values, model.training, streams, list(warnings.filters)


@pytest.fixture(scope="module")
def all_four():
    """One comparison of all four, on a model that is in training mode; compiling takes its time."""
    from torch._dynamo.utils import counters

    torch.manual_seed(0)
    model, x = Normalised().train(), torch.randn(8, 16)
    counters["stats"]["unique_graphs"] += 7
    graphs, before = counters["stats"]["unique_graphs"], state_of(model)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        inside = list(warnings.filters)
        rows = rows_of(model, x, "compile", "trace", "script")
        assert list(warnings.filters) == inside
    said = [str(one.message) for one in warned]
    more = counters["stats"]["unique_graphs"] - graphs
    return SimpleNamespace(rows=rows, warned=said, graphs=more, states=[before, state_of(model)])


def test_all_four_are_measured_and_eager_stands_first(all_four):
    assert list(all_four.rows) == ["eager", "compile", "trace", "script"]
    eager, *others = all_four.rows.values()
    for row in (eager, *others):
        assert (row["status"], row["reason"], row["n"]) == ("measured", None, 20)
    for row in others:
        assert row["compile_s"] >= 0
        # Results are compared within a stated tolerance.
        assert row["equal"] is True
        assert 0 <= row["max_difference"] < 1e-5
        assert row["tolerance"] == "rtol 1.3e-06, atol 1e-05 (float32)"
    assert (eager["speedup"], eager["compile_s"], eager["equal"]) == (1.0, None, None)
    assert breaks_of_schema("compare", list(all_four.rows.values())) == []


def test_fusion_is_visible_and_nothing_is_left_behind(all_four):
    eager, compiled = all_four.rows["eager"], all_four.rows["compile"]
    # linear, the count of batches, batch norm, relu, mean; compiled, only the product is left.
    script = all_four.rows["script"]
    assert [row["operators"] for row in (eager, script, compiled)] == [5, 5, 1]
    assert compiled["kernels"] >= 1
    assert compiled["fused_names"]
    assert all("fused" in name for name in compiled["fused_names"])
    assert (compiled["graphs"], compiled["breaks"]) == (1, 0)
    # Eager's kernels on the CPU are seen by nobody: that is null, and said.
    assert eager["kernels"] is None
    assert "not seen" in eager["note"]
    assert all_four.states[0] == all_four.states[1]
    assert all_four.graphs >= 1
    # Importing the compiler makes torch warn of uses of its own; those are none of ours.
    ours = ("`torch.jit.trace` is deprecated", "`torch.jit.script` is deprecated")
    assert not [text for text in all_four.warned if text.startswith(ours)]
