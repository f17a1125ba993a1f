"""Ways of running one model: results compared, operators counted, failures told, nothing left."""

from __future__ import annotations

import dataclasses
import gc
import json
import random
import sys
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from jsonschema import Draft202012Validator
from torch import nn

from profstack.bench.measure import Policy
from profstack.bench.subject import Subject, of_model
from profstack.bench.variant_build import (
    EAGER,
    Comparison,
    build,
    compare_results,
    copy_result,
    kept,
    why_failed,
)
from profstack.bench.variants import Graphs, Variant, compare, counted, graphs, measure_in_turn
from profstack.errors import UsageError
from profstack.stats.clock import Clock

SHORT = Policy(warmup=2, repeat=20, max_s=1.0)
SCHEMA = Path(sys.modules["profstack"].__path__[0]) / "report" / "report.schema.json"


@pytest.fixture(autouse=True)
def _quick_collections() -> Iterator[None]:
    """What has been imported by now is left out of collections: with the compiler that is a lot."""
    gc.freeze()
    yield
    gc.unfreeze()


def rows_of(subject: Subject, *names: str, policy: Policy = SHORT) -> dict[str, dict[str, Any]]:
    return {row["variant"]: row for row in compare(subject, names, policy, Clock())}


def model_subject(model: nn.Module, *inputs: Any, **named: Any) -> Subject:
    return of_model(model, inputs, named)


class Normalised(nn.Module):
    """In training mode each call changes its statistics; the result is a dict, as of HF models."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(16, 32), nn.BatchNorm1d(32)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = torch.relu(self.norm(self.first(x)))
        return {"hidden": hidden, "mean": hidden.mean(1)}


def states() -> tuple[Any, ...]:
    return random.getstate(), torch.get_rng_state().tolist(), list(warnings.filters)


# -- all four ------------------------------------------------------------------------------------


@dataclasses.dataclass
class Ran:
    rows: dict[str, dict[str, Any]]
    warned: list[str]
    model_before: dict[str, torch.Tensor]
    model: nn.Module
    states: tuple[Any, Any]
    counters: tuple[dict[str, int], dict[str, int]]


@pytest.fixture(scope="module")
def all_four() -> Ran:
    """One comparison of all four, on a model that is in training mode; compiling takes its time."""
    from torch._dynamo.utils import counters

    torch.manual_seed(0)
    model, x = Normalised().train(), torch.randn(8, 16)
    held = {name: value.clone() for name, value in model.state_dict().items()}
    counters["stats"]["unique_graphs"] += 7
    count, before = dict(counters["stats"]), states()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        inside = list(warnings.filters)
        rows = rows_of(model_subject(model, x), "compile", "trace", "script")
        assert list(warnings.filters) == inside
    said = [str(one.message) for one in warned]
    return Ran(rows, said, held, model, (before, states()), (count, dict(counters["stats"])))


@pytest.mark.slow
def test_all_four_are_measured_and_eager_stands_first(all_four: Ran) -> None:
    assert list(all_four.rows) == ["eager", "compile", "trace", "script"]
    for row in all_four.rows.values():
        assert (row["status"], row["reason"], row["n"]) == ("measured", None, 20)
        assert row["ci95_low_s"] <= row["median_s"] <= row["ci95_high_s"]
        if row["variant"] != "eager":
            assert row["speedup_low"] <= row["speedup"] <= row["speedup_high"]
            assert row["compile_s"] >= 0
    eager = all_four.rows["eager"]
    assert (eager["speedup"], eager["compile_s"], eager["equal"]) == (1.0, None, None)
    # gcc alone takes longer than a second, a trace of two layers does not.
    assert all_four.rows["compile"]["compile_s"] > all_four.rows["trace"]["compile_s"]


@pytest.mark.slow
def test_results_are_compared_within_a_stated_tolerance(all_four: Ran) -> None:
    for name in ("compile", "trace", "script"):
        row = all_four.rows[name]
        assert row["equal"] is True
        assert 0 <= row["max_difference"] < 1e-5
        assert row["tolerance"] == "rtol 1.3e-06, atol 1e-05 (float32)"


@pytest.mark.slow
def test_fusion_is_visible(all_four: Ran) -> None:
    eager, compiled = all_four.rows["eager"], all_four.rows["compile"]
    # linear, the count of batches, batch norm, relu, mean.
    assert eager["operators"] == 5
    assert all_four.rows["script"]["operators"] == 5
    # Only the matrix product is left; all the rest is generated code.
    assert compiled["operators"] == 1
    assert compiled["kernels"] >= 1
    assert compiled["fused_names"]
    assert all("fused" in name for name in compiled["fused_names"])
    assert (compiled["graphs"], compiled["breaks"]) == (1, 0)
    # Eager's kernels on the CPU are seen by nobody: that is null, and said.
    assert eager["kernels"] is None
    assert "not seen" in eager["note"]


@pytest.mark.slow
def test_nothing_is_left_behind(all_four: Ran) -> None:
    for name, value in all_four.model.state_dict().items():
        assert torch.equal(value, all_four.model_before[name]), name
    assert all_four.model.training
    assert all_four.states[0] == all_four.states[1]
    before, after = all_four.counters
    assert after["unique_graphs"] >= before["unique_graphs"] + 1
    # Importing the compiler makes torch warn of uses of its own; those are none of ours.
    ours = ("`torch.jit.trace` is deprecated", "`torch.jit.script` is deprecated")
    assert not [text for text in all_four.warned if text.startswith(ours)]


@pytest.mark.slow
def test_rows_are_as_the_schema_has_them(all_four: Ran) -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    benchmark = schema["properties"]["benchmark"]["properties"]["compare"]
    Draft202012Validator(benchmark).validate(list(all_four.rows.values()))


def test_graphs_and_breaks_are_counted() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(x @ x)
        torch._dynamo.graph_break()
        return hidden + 1

    before = graphs()
    # The counters are dynamo's: generating code adds nothing to them.
    torch.compile(step, backend="eager")(torch.ones(2, 2))
    added = graphs().since(before)
    assert (added.graphs, added.breaks, len(added.reasons)) == (2, 1, 1)


@pytest.mark.slow
def test_a_function_can_be_compiled() -> None:
    weight = torch.randn(8, 8)
    step = Subject("step", lambda: torch.tanh(weight) + 1)
    assert torch.allclose(build("compile", step).step(), step.step())


def test_no_compiler_is_unavailable_with_what_to_install() -> None:
    from torch._inductor import config

    subject = model_subject(nn.Sequential(nn.Linear(3, 5), nn.Tanh()), torch.randn(2, 3))
    # Its own patch: pytest's would take the entry away for good when it undoes this.
    with config.patch({"cpp.cxx": (None, "no-such-compiler")}):
        rows = rows_of(subject, "compile", "script")
    assert rows["compile"]["status"] == "unavailable"
    assert "install g++" in rows["compile"]["reason"]
    assert rows["compile"]["median_s"] is None
    assert rows["script"]["status"] == "measured"


# -- variants that fail --------------------------------------------------------------------------


class Unscriptable(nn.Module):
    def forward(self, x: torch.Tensor, **options: Any) -> torch.Tensor:
        return x * len(options)


def test_a_variant_that_fails_says_why_and_the_others_go_on() -> None:
    rows = rows_of(model_subject(Unscriptable(), torch.ones(3), a=1), "eager", "script", "trace")
    script = rows["script"]
    assert script["status"] == "failed"
    assert "NotSupportedError" in script["reason"]
    assert "\n" not in script["reason"]
    assert script["median_s"] is script["speedup"] is script["equal"] is script["operators"] is None
    assert rows["trace"]["status"] == "measured"
    assert rows["trace"]["equal"] is True


class Exhausted(nn.Module):
    """Runs twice and no more once it is a script: what fails in the midst of being measured."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.left = calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("out of calls")
        return x + 1


def test_a_variant_that_fails_in_the_midst_is_out() -> None:
    fails, holds = Variant("script", build(EAGER, model_subject(Exhausted(9), torch.ones(2)))), []
    whole = Variant(EAGER, build(EAGER, model_subject(nn.Identity(), torch.ones(2))))
    policy = Policy(warmup=2, repeat=20)
    measure_in_turn([whole, fails], policy, Clock(), 0)
    assert fails.failure == ("failed", "RuntimeError: out of calls")
    assert fails.measured is None
    assert whole.measured is not None
    holds = whole.blocks
    assert [len(block) for block in holds] == [2] * 10
    with pytest.raises(RuntimeError, match="out of calls"):
        compare(model_subject(Exhausted(9), torch.ones(2)), ["eager"], policy, Clock())


def test_functions_have_no_trace_and_no_script() -> None:
    rows = rows_of(Subject("step", lambda: torch.ones(2)), "trace", "script")
    for name in ("trace", "script"):
        assert rows[name]["status"] == "unavailable"
        assert "function" in rows[name]["reason"]


def test_an_unknown_variant_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="eager, compile, trace, script"):
        compare(Subject("step", lambda: None), ["onnx"], SHORT, Clock())


def test_reasons_hold_no_data_of_the_users() -> None:
    text = "Tracer cannot infer type of {'a': tensor([[ 1.76,\n  2.5]])}\n:Dictionary inputs differ"
    status, reason = why_failed(RuntimeError(text))
    assert status == "failed"
    assert "1.76" not in reason
    assert "Dictionary inputs differ" in reason
    assert len(why_failed(RuntimeError("x" * 5000))[1]) <= 240
    assert why_failed(RuntimeError())[1] == "RuntimeError"
    assert why_failed(OSError("no source of <f at 0x7f12>"))[1] == "OSError: no source of <f>"


# -- results -------------------------------------------------------------------------------------


def test_dropout_in_training_mode_is_not_comparable() -> None:
    subject = model_subject(nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5)).train(), torch.ones(8))
    before = states()
    row = rows_of(subject, "trace")["trace"]
    assert (row["status"], row["equal"], row["max_difference"]) == ("measured", None, None)
    assert "dropout in training mode" in row["note"]
    assert states() == before


class Branches(nn.Module):
    """A trace keeps the branch that it was recorded on; its count of calls decides here."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if not torch.jit.is_tracing() else x + 2


def test_a_different_result_is_told_with_its_size() -> None:
    row = rows_of(model_subject(Branches(), torch.zeros(3)), "trace")["trace"]
    assert row["equal"] is False
    assert row["max_difference"] == 1.0
    assert "more than the tolerance" in row["note"]


def test_inputs_that_a_model_changes_are_copied_for_the_comparison() -> None:
    class Adds(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1)

    row = rows_of(model_subject(Adds(), torch.zeros(2)), "trace")["trace"]
    assert row["equal"] is True


class Reuses(nn.Module):
    """Gives the same tensor in each call, filled anew; a trace of it gives something else."""

    def __init__(self) -> None:
        super().__init__()
        self.out = torch.zeros(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out.copy_(x + 1.0 if torch.jit.is_tracing() else x)


def test_a_result_that_the_next_call_overwrites_is_compared_as_it_was() -> None:
    rows = rows_of(model_subject(Reuses(), torch.ones(3)), "trace")
    assert rows["trace"]["equal"] is False
    assert rows["trace"]["max_difference"] == 1.0


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...]
    loss: torch.Tensor | None = None


class Structured(nn.Module):
    def forward(self, ids: torch.Tensor, *, scale: float, mask: torch.Tensor) -> Output:
        return Output(ids * scale, (mask + 1, OrderedDict(a=ids - 1)))  # type: ignore[arg-type]


def test_a_trace_takes_and_gives_structures_that_torch_does_not_trace() -> None:
    subject = model_subject(Structured(), torch.ones(2), scale=3.0, mask=torch.zeros(2))
    row = rows_of(subject, "trace")["trace"]
    assert (row["status"], row["equal"], row["max_difference"]) == ("measured", True, 0.0)


def compared(result: Any, reference: Any) -> Comparison:
    return compare_results(result, copy_result(reference))


def test_comparison_of_results() -> None:
    nan, one = torch.tensor([float("nan"), 1.0]), torch.tensor([1.0, 1.0])
    inf = torch.tensor([float("inf"), 1.0])
    assert compared(nan, nan.clone()).equal is True
    assert compared(nan, nan.clone()).max_difference == 0.0
    assert compared(one, nan).equal is False
    assert compared(one, nan).max_difference is None
    assert compared(inf, inf.clone()).equal is True
    assert compared(one, inf).equal is False
    assert compared({"a": one, "b": [nan]}, {"a": one, "b": [nan]}).equal is True
    assert compared((one,), (one, one)).equal is False
    assert compared(one.double(), one).equal is False
    assert compared(one[:1], one).equal is False
    assert compared((one, 3), (one, 4)).equal is False
    assert compared((one, float("nan")), (one, float("nan"))).equal is True
    assert compared(None, None).equal is None
    assert (
        compared(object(), object()).note == "the results hold nothing that could be compared "
        "(object)"
    )
    half = one.bfloat16()
    assert compared(half * 1.01, half).equal is True
    assert "bfloat16" in str(compared(half, half).tolerance)
    assert compared(one * 1.01, one).equal is False
    assert compared(one * 1.01, one).max_difference == pytest.approx(0.01, rel=1e-4)
    assert compared(torch.tensor([1, 2]), torch.tensor([1, 2])).tolerance == "exact (int64)"
    assert compared(torch.tensor([1, 2]), torch.tensor([1, 3])).max_difference == 1.0


def test_a_function_whose_results_change_is_not_comparable() -> None:
    calls: list[int] = []

    def step() -> torch.Tensor:
        calls.append(1)
        return torch.tensor(float(len(calls)))

    row = rows_of(Subject("step", step), "eager")["eager"]
    assert row["equal"] is None
    assert "different results" in row["note"]


# -- measuring -----------------------------------------------------------------------------------


def in_turn(ran: list[str]) -> list[str]:
    """The names without repetitions: one for each stretch of calls."""
    return [name for place, name in enumerate(ran) if not place or ran[place - 1] != name]


def order_of_blocks(rotate: int) -> list[str]:
    ran: list[str] = []
    variants = [
        Variant(name, build(EAGER, Subject(name, partial(ran.append, name))))
        for name in ("eager", "trace", "script")
    ]
    measure_in_turn(variants, Policy(warmup=2, repeat=4), Clock(), rotate)
    return in_turn(ran)


def test_blocks_take_turns_and_the_order_rotates() -> None:
    # Warm-up one by one, then four rounds that each begin one further on. Where a round begins
    # with the variant that the last one ended with, the two blocks run together.
    names = ["eager", "trace", "script"]
    rounds = [name for k in range(4) for name in names[k % 3 :] + names[: k % 3]]
    assert order_of_blocks(0) == in_turn([*names, *rounds])
    assert order_of_blocks(1)[3] == "trace"


def test_it_ends_by_time_where_the_interval_stays_wide() -> None:
    ticks = iter(range(10**9))

    class Slow(Clock):
        """A clock that passes a second between any two readings."""

        now = staticmethod(lambda: float(next(ticks)))

    step = Variant(EAGER, build(EAGER, Subject("step", lambda: None)))
    measure_in_turn([step], Policy(warmup=2, target=1e-9, max_s=100), Slow(), 0)
    assert step.measured is not None
    assert 10 <= len(step.measured.samples.host_s) < 200


# -- state and counts ----------------------------------------------------------------------------


def test_buffers_modes_and_random_streams_are_put_back() -> None:
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(4))
    model[0].eval()
    norm: Any = model[1]
    mean, before, x = norm.running_mean, states(), torch.zeros(2)
    with kept(of_model(model, (x,))) as put_back:
        x += 1
        model(torch.randn(8, 4))
        norm.running_var = torch.full((4,), 9.0)
        put_back()
        assert x.tolist() == [0, 0]
        assert norm.running_mean is mean
        assert norm.running_var.tolist() == [1.0] * 4
        assert int(norm.num_batches_tracked) == 0
        model.eval()
        random.random()
    assert model.training
    assert not model[0].training
    assert states() == before


def test_an_optimized_module_is_compared_from_its_original() -> None:
    model = nn.Linear(3, 3)
    rows = rows_of(model_subject(torch.compile(model), torch.ones(3)), "trace")  # type: ignore[arg-type]
    assert "before torch.compile" in rows["eager"]["note"]
    assert rows["trace"]["equal"] is True


def test_operators_are_counted_where_they_are_called() -> None:
    x = torch.randn(4, 4)
    counts = counted(lambda: torch.softmax(x @ x, 0).sum(), Clock())
    assert (counts.operators, counts.kernels, counts.fused_names) == (3, None, None)


def test_nothing_is_counted_under_another_profiler() -> None:
    with torch.profiler.profile() as session:
        counts = counted(lambda: torch.ones(2), Clock())
        torch.ones(3)
    assert counts.operators is None
    assert "another" in str(counts.note)
    assert [event for event in session.events() if event.name == "aten::ones"]


class FakeEvent:
    """An event of a device, which this machine has not."""

    def __init__(self, name: str, device: Any, annotation: bool = False) -> None:
        self._name, self._device, self._annotation = name, device, annotation

    def name(self) -> str:
        return self._name

    def device_type(self) -> Any:
        return self._device

    def is_user_annotation(self) -> bool:
        return self._annotation

    def start_ns(self) -> int:
        return 0

    def duration_ns(self) -> int:
        return 10

    def start_thread_id(self) -> int:
        return 1


def test_kernels_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    from profstack.bench import variants as bench_variants

    kinds: Any = torch.autograd
    host, device = kinds.DeviceType.CPU, kinds.DeviceType.CUDA
    events = [
        FakeEvent("aten::linear", host),
        FakeEvent("cudaLaunchKernel", host),
        FakeEvent("triton_poi_fused_relu_0", device),
        FakeEvent("sm90_gemm", device),
        FakeEvent("sm90_gemm", device),
        FakeEvent("Memcpy HtoD (Pageable -> Device)", device),
        FakeEvent("augment", device, annotation=True),
    ]
    monkeypatch.setattr(bench_variants, "_events", lambda step, clock, on_device: events)

    counts = counted(lambda: None, Clock(), on_device=True)
    assert (counts.operators, counts.kernels) == (1, 3)
    assert counts.fused_names == ["triton_poi_fused_relu_0"]
    assert counts.note is None


def test_graphs_are_what_was_added() -> None:
    before, after = Graphs(3, 2, 1, {"a": 2}), Graphs(5, 4, 1, {"a": 3, "b": 1})
    assert after.since(before) == Graphs(2, 2, 0, {"a": 1, "b": 1})
