"""Ways of running one model: results compared, operators counted, failures told, nothing left."""

from functools import partial
from itertools import count, groupby
from types import SimpleNamespace
from unittest.mock import Mock

import torch
from torch import nn

from profstack.bench import variants as module
from profstack.bench.measure import Policy
from profstack.bench.subject import Subject, of_model
from profstack.bench.variant_build import EAGER, build
from profstack.bench.variants import Variant, compare, counted, graphs, measure_in_turn
from profstack.stats.clock import Clock
from tests.support.tables import cases, missing, of

SHORT = Policy(warmup=2, repeat=20, max_s=1.0)
TRACE = "trace"


def rows_of(subject, *names):
    return {row["variant"]: row for row in compare(subject, names, SHORT, Clock())}


def traced(forward, *inputs, **named):
    """The row of a trace of a model; its `forward` is given the model, too."""
    model = type("Model", (nn.Module,), {"forward": forward})()
    return rows_of(of_model(model, inputs, named), TRACE)[TRACE]


def variant(function, name=EAGER):
    return Variant(name, build(EAGER, Subject(name, function)))


def test_graphs_and_breaks_are_counted_as_what_was_added():
    def step(x):
        hidden = torch.relu(x @ x)
        torch._dynamo.graph_break()
        return hidden + 1

    before = graphs()
    # The counters are dynamo's: generating code adds nothing to them.
    torch.compile(step, backend="eager")(torch.ones(2, 2))
    added = graphs().since(before)
    assert (added.graphs, added.breaks, len(added.reasons)) == (2, 1, 1)


def test_a_variant_that_fails_says_why_and_the_others_go_on():
    class Unscriptable(nn.Module):
        def forward(self, x, **options):
            return x * len(options)

    rows = rows_of(of_model(Unscriptable(), (torch.ones(3),), {"a": 1}), "eager", "script", TRACE)
    script, names = rows["script"], "status median_s speedup equal operators"
    assert of(script, names) == ["failed", None, None, None, None]
    assert "NotSupportedError" in script["reason"]
    assert of(rows[TRACE], "status equal") == ["measured", True]
    function = rows_of(Subject("step", lambda: torch.ones(2)), TRACE, "script")
    for name in (TRACE, "script"):
        assert function[name]["status"] == "unavailable"


def test_a_variant_that_fails_in_the_midst_is_out():
    exhausted = Mock(side_effect=[*range(9), RuntimeError("out of calls")])
    fails, whole = variant(exhausted, "script"), variant(lambda: None)
    policy = Policy(warmup=2, repeat=20)
    measure_in_turn([whole, fails], policy, Clock(), 0)
    assert (fails.failure, fails.measured) == (("failed", "RuntimeError: out of calls"), None)
    assert [len(block) for block in whole.blocks] == [2] * 10


def test_what_is_random_or_counts_its_calls_is_not_comparable():
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5)).train()
    row = rows_of(of_model(model, (torch.ones(8),)), TRACE)[TRACE]
    assert of(row, "status equal max_difference") == ["measured", None, None]
    assert "dropout in training mode" in row["note"]
    numbers = count()
    row = rows_of(Subject("step", lambda: torch.tensor(float(next(numbers)))), "eager")["eager"]
    assert (row["equal"], missing(row["note"], "different results")) == (None, [])


def test_results_are_compared_with_copies_and_blocks_take_turns():
    tracing = torch.jit.is_tracing
    row = traced(lambda self, x: x + 2 if tracing() else x + 1, torch.zeros(3))
    assert of(row, "equal max_difference") == [False, 1.0]
    assert traced(lambda self, x: x.add_(1), torch.zeros(2))["equal"] is True

    def ran(rotate):
        calls = []
        several = [variant(partial(calls.append, name), name) for name in names]
        measure_in_turn(several, Policy(warmup=2, repeat=4), Clock(), rotate)
        return [name for name, _ in groupby(calls)]

    # Warm-up one by one, then four rounds that each begin one further on. Where a round begins
    # with the variant that the last one ended with, the two blocks run together.
    names = ["eager", TRACE, "script"]
    rounds = [name for k in range(4) for name in names[k % 3 :] + names[: k % 3]]
    assert (ran(0), ran(1)[3]) == ([name for name, _ in groupby([*names, *rounds])], TRACE)


@cases("samples policy", "100 -; 100 max_samples=100; 130 max_samples=101; 10 target=1e-9,max_s=99")
def test_it_ends_by_interval_number_or_time(samples, policy):
    # A second passes between any two readings; or a call takes one or three milliseconds.
    ticks, calls, clock, time = count(), count(), Clock(), SimpleNamespace(s=0.0)
    clock.now = (lambda: float(next(ticks))) if "target" in policy else (lambda: time.s)

    def work():
        time.s += 1e-3 + 2e-3 * ("max_samples" in policy and next(calls) % 7 > 3)

    step = variant(work)
    measure_in_turn([step], Policy(**{"warmup": 2, "min_samples": 50, **policy}), clock, 0)
    found = len(step.measured.samples.host_s)
    assert found == samples or (samples == 10 and 10 <= found < 200)


def test_operators_and_kernels_are_counted_where_they_are_called(monkeypatch):
    x = torch.randn(4, 4)
    counts = counted(lambda: torch.softmax(x @ x, 0).sum(), Clock())
    assert (counts.operators, counts.kernels, counts.fused_names) == (3, None, None)
    with torch.profiler.profile():
        counts = counted(lambda: torch.ones(2), Clock())
    assert (counts.operators, "another" in counts.note) == (None, True)

    def event(name, kind, annotation=False):
        known = {"name": name, "device_type": kind, "is_user_annotation": annotation}
        known |= {"start_ns": 0, "duration_ns": 10, "start_thread_id": 1}
        return SimpleNamespace(**{key: lambda value=value: value for key, value in known.items()})

    kinds = torch.autograd.DeviceType
    events = [event(name, kinds.CPU) for name in ("aten::linear", "cudaLaunchKernel")]
    names = ["triton_poi_fused_relu_0", *["sm90_gemm"] * 2, "Memcpy HtoD (Pageable -> Device)"]
    events += [event(name, kinds.CUDA) for name in names]
    events.append(event("augment", kinds.CUDA, annotation=True))
    monkeypatch.setattr(module, "_events", lambda step, clock, on_device: events)
    counts = counted(lambda: None, Clock(), on_device=True)
    assert (counts.operators, counts.kernels, counts.note) == (1, 3, None)
    assert counts.fused_names == ["triton_poi_fused_relu_0"]
