"""Timing mistakes: each planted difference is found exactly, in virtual time, and nothing else is.

The subjects take virtual time, so that each row's figures are known beforehand; one test runs on a
real model, one in real processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from conftest import CHECKOUT, clean_environment
from torch import nn
from virtual_machine import Machine

from profstack.bench import cold_start
from profstack.bench.measure import Policy
from profstack.bench.mistakes import FEWEST, mistakes, plan_for
from profstack.bench.subject import CallUnavailableError, Request, Subject, in_a_line, of_model
from profstack.stats.clock import Clock

pytestmark = pytest.mark.timed

SLUGS = [
    "no-warmup",
    "one-sample",
    "no-synchronisation",
    "host-clock",
    "transfer-inside",
    "gradients-on",
    "under-cprofile",
    "under-torch-profiler",
]
# What a warm call takes on a virtual machine, and a cold one.
STEP_S, COLD_S = 1e-3, 10e-3
Rows = dict[str, dict[str, Any]]


def cprofile_is_on() -> bool:
    if sys.version_info >= (3, 12):
        return sys.monitoring.get_tool(sys.monitoring.PROFILER_ID) is not None
    return sys.getprofile() is not None


def torch_profiler_is_on() -> bool:
    return bool(torch.autograd._profiler_enabled())


class Virtual(nn.Module):
    """Takes more virtual time cold, with gradients, and under a profiler; waits for nothing."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.machine = [machine]
        self.warm: weakref.WeakSet[Virtual] = weakref.WeakSet()

    def __deepcopy__(self, memo: Any) -> Virtual:
        return Virtual(self.machine[0])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        seconds = STEP_S if self in self.warm else COLD_S
        self.warm.add(self)
        if torch.is_grad_enabled():
            seconds *= 3
        if cprofile_is_on():
            seconds *= 1.5
        if torch_profiler_is_on():
            seconds *= 1.7
        self.machine[0].work(seconds)
        return inputs * self.weight


def warm_virtual(**machine: bool) -> tuple[Subject, Clock]:
    device = Machine(has_device=machine.get("has_device", False))
    subject = of_model(Virtual(device), (torch.ones(2, 4),))
    with subject.conditions():
        subject.step()
    return subject, device.clock()


def by_slug(rows: list[dict[str, Any]]) -> Rows:
    assert [row["slug"] for row in rows] == SLUGS
    return {row["slug"]: row for row in rows}


def without_figures(row: dict[str, Any]) -> bool:
    others = {"slug", "title", "applies", "note", "error"}
    return all(value is None for name, value in row.items() if name not in others)


@pytest.fixture(scope="module")
def virtual() -> Rows:
    subject, clock = warm_virtual()
    return by_slug(mistakes(subject, Policy(max_s=2.0), clock))


class TestOnACpu:
    @pytest.mark.parametrize(
        ("slug", "factor"),
        [
            # Ten calls, the first of which takes ten times what the others do.
            ("no-warmup", 1.9),
            ("one-sample", 1.0),
            ("gradients-on", 3.0),
            ("under-cprofile", 1.5),
            ("under-torch-profiler", 1.7),
        ],
    )
    def test_finds_exactly_what_was_planted(self, virtual: Rows, slug: str, factor: float) -> None:
        row = virtual[slug]
        assert row["applies"]
        assert row["error"] is None
        assert row["factor"] == pytest.approx(factor)
        assert row["ci95_low"] == pytest.approx(factor)
        assert row["ci95_high"] == pytest.approx(factor)
        assert row["right_s"] == pytest.approx(STEP_S)
        assert row["wrong_s"] == pytest.approx(factor * STEP_S)
        assert row["wrong_std_s"] == pytest.approx(0.0, abs=1e-9)
        assert row["n_wrong"] >= FEWEST
        assert row["n_right"] >= FEWEST

    @pytest.mark.parametrize("slug", ["no-synchronisation", "host-clock", "transfer-inside"])
    def test_says_what_cannot_differ(self, virtual: Rows, slug: str) -> None:
        row = virtual[slug]
        assert not row["applies"]
        assert without_figures(row)
        assert "cannot differ on a CPU" in row["note"]

    def test_says_how_cold_its_cold_calls_were(self, virtual: Rows) -> None:
        note = virtual["no-warmup"]["note"]
        assert "first 10 calls of a fresh copy of the model" in note
        assert "the very first call took 10.0 ms" in note
        assert "cannot be loaded by another process" in note

    def test_rows_are_what_the_schema_says(self, virtual: Rows) -> None:
        schema = json.loads((CHECKOUT / "profstack/report/report.schema.json").read_text())
        wanted = schema["properties"]["benchmark"]["properties"]["mistakes"]
        jsonschema.validate(list(virtual.values()), wanted)

    def test_leaves_nothing_attached(self, virtual: Rows) -> None:
        assert not cprofile_is_on()
        assert not torch_profiler_is_on()
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()

    def test_gradients_that_were_asked_for_are_no_mistake(self) -> None:
        subject, clock = warm_virtual()
        rows = by_slug(mistakes(replace(subject, gradients=True), Policy(max_s=0.1), clock))
        assert not rows["gradients-on"]["applies"]
        assert "asked for" in rows["gradients-on"]["note"]
        # All else is measured with them.
        assert rows["under-cprofile"]["right_s"] == pytest.approx(3 * STEP_S)


def test_one_sample_shows_how_far_single_calls_lie() -> None:
    machine = Machine(has_device=False)
    turns = iter(range(10**9))

    def step() -> None:
        # One call in ten takes twice the time: a median does not see it, a single call may be it.
        machine.work(2e-3 if next(turns) % 10 == 9 else 1e-3)

    row = by_slug(mistakes(Subject("step", step), Policy(max_s=2.0), machine.clock()))["one-sample"]
    assert row["factor"] == pytest.approx(1.0)
    assert (row["ci95_low"], row["ci95_high"]) == pytest.approx((1.0, 2.0))
    assert row["wrong_std_s"] > 0.2e-3
    assert row["right_std_s"] == pytest.approx(0.0, abs=1e-9)
    assert row["n_wrong"] > row["n_right"]
    assert "95 of 100 single calls lie between 1.000 and 2.000" in row["note"]


class TestOfAFunction:
    def test_what_it_does_itself_is_no_mistake_of_the_timing(self) -> None:
        machine = Machine(has_device=False)
        subject = Subject("step", lambda: machine.work(STEP_S))
        rows = by_slug(mistakes(subject, Policy(max_s=0.2), machine.clock()))
        assert not rows["gradients-on"]["applies"]
        assert not rows["transfer-inside"]["applies"]
        assert not rows["no-warmup"]["applies"]
        assert "its first call is past" in rows["no-warmup"]["note"]
        assert rows["under-cprofile"]["factor"] == pytest.approx(1.0)

    def test_the_recorded_first_calls_stand_in(self) -> None:
        machine = Machine(has_device=False)
        subject = Subject("step", lambda: machine.work(STEP_S))
        warmup_s = [19e-3, 1e-3, 1e-3, 1e-3]
        found = mistakes(subject, Policy(max_s=0.2), machine.clock(), warmup_s=warmup_s)
        row = by_slug(found)["no-warmup"]
        assert row["factor"] == pytest.approx(5.5)
        assert (row["n_wrong"], row["wrong_std_s"], row["ci95_low"]) == (1, None, None)
        assert "started once, which gives no interval" in row["note"]


class OnHost(torch.Tensor):
    """A tensor in host memory that a machine without a device can move to one."""

    machine: Machine

    def to(self, *args: Any, **keywords: Any) -> Any:
        assert args[0].type == "cuda"
        self.machine.work(2e-3)
        return on_device(self, self.machine)


class OnDevice(torch.Tensor):
    """A tensor that says it is on a device."""

    machine: Machine

    @property
    def device(self) -> Any:  # type: ignore[override]
        return torch.device("cuda", 0)

    def detach(self) -> Any:
        return self

    def cpu(self) -> Any:  # type: ignore[override]
        host = self.as_subclass(OnHost)
        host.machine = self.machine
        return host


def on_device(tensor: torch.Tensor, machine: Machine) -> OnDevice:
    made = tensor.as_subclass(OnDevice)
    made.machine = machine
    return made


@pytest.fixture(scope="module")
def accelerated() -> Rows:
    """A model that launches 4 ms of device work in 1 ms of the host's time."""
    machine = Machine(has_device=True)

    class Model(nn.Module):
        def forward(self, inputs: torch.Tensor) -> None:
            assert isinstance(inputs, OnDevice)
            machine.launch(4e-3, launch_s=1e-3)

    subject = of_model(Model(), (on_device(torch.ones(2, 3), machine),))
    return by_slug(mistakes(subject, Policy(max_s=4.0), machine.clock()))


class TestOnADevice:
    """With a device of virtual time: the machines of the tests have none."""

    def test_without_synchronising_only_the_launch_is_timed(self, accelerated: Rows) -> None:
        row = accelerated["no-synchronisation"]
        assert row["applies"]
        assert row["right_s"] == pytest.approx(5e-3)
        assert row["wrong_s"] == pytest.approx(1e-3)
        assert row["factor"] == pytest.approx(0.2)

    def test_the_hosts_clock_does_not_see_the_devices_time(self, accelerated: Rows) -> None:
        row = accelerated["host-clock"]
        assert row["wrong_s"] == pytest.approx(1e-3)
        # In a pipeline the device works without a gap.
        assert row["right_s"] == pytest.approx(4e-3)
        assert row["factor"] == pytest.approx(0.25)

    def test_a_transfer_inside_the_region_is_timed_with_the_call(self, accelerated: Rows) -> None:
        row = accelerated["transfer-inside"]
        assert row["right_s"] == pytest.approx(5e-3)
        assert row["wrong_s"] == pytest.approx(7e-3)
        assert "24 B, pageable" in row["note"]

    def test_all_rows_apply(self, accelerated: Rows) -> None:
        assert all(row["applies"] for row in accelerated.values())
        assert all(row["error"] is None for row in accelerated.values())

    def test_a_model_left_on_the_host_is_timed_as_one_of_a_cpu(self) -> None:
        subject, clock = warm_virtual(has_device=True)
        assert clock.has_device
        rows = by_slug(mistakes(subject, Policy(max_s=0.1), clock))
        assert not rows["no-synchronisation"]["applies"]


def test_an_error_costs_its_row_alone() -> None:
    class Cached(nn.Module):
        """Keeps an inference tensor, which autograd then refuses: a mistake of real models."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.scale: torch.Tensor | None = None

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            if self.scale is None:
                self.scale = torch.ones(3)
            return inputs * self.weight * self.scale

    subject = of_model(Cached(), (torch.ones(2, 3),))
    with subject.conditions():
        subject.step()
    rows = by_slug(mistakes(subject, Policy(max_s=0.05), Clock()))
    assert "RuntimeError: Inference tensors cannot be saved" in rows["gradients-on"]["error"]
    assert without_figures(rows["gradients-on"])
    assert rows["under-torch-profiler"]["factor"] is not None


def test_the_first_profiler_of_a_process_prints_nothing() -> None:
    code = (
        "import os\n"
        "import torch\n"
        "from profstack.stats.clock import Clock\n"
        "from profstack.bench.measure import Policy\n"
        "from profstack.bench.mistakes import mistakes\n"
        "from profstack.bench.subject import Subject\n"
        "one, levels = torch.ones(4), set()\n"
        "def step():\n"
        "    levels.add(os.environ.get('KINETO_LOG_LEVEL'))\n"
        "    one.add(1)\n"
        "mistakes(Subject('step', step), Policy(max_s=0.05), Clock())\n"
        "assert levels == {None}, levels\n"
    )
    environment = {**clean_environment(), "OMP_NUM_THREADS": "1"}
    environment.pop("KINETO_LOG_LEVEL", None)
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=environment, cwd=CHECKOUT
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_measures_a_real_model() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    subject = of_model(model, (torch.randn(16, 64),))
    rows = by_slug(mistakes(subject, Policy(max_s=0.2), Clock()))
    for row in rows.values():
        assert row["error"] is None, row
        assert row["applies"] != without_figures(row)
        if row["applies"]:
            assert row["ci95_low"] <= row["factor"] <= row["ci95_high"]
    assert all(parameter.grad is None for parameter in model.parameters())


TARGET = """
import time
import torch
calls = 0

def step():
    global calls
    calls += 1
    print("to standard output")
    time.sleep(0.05 if calls == 1 else 0.002)

def fails():
    raise ValueError("on purpose")
"""


class TestFreshProcesses:
    def test_time_the_first_calls_of_a_process(self, tmp_path: Path, capfd: Any) -> None:
        (tmp_path / "target.py").write_text(TARGET)
        request = Request(f"{tmp_path}/target.py:step")
        subject = Subject("step", lambda: None, request=request)
        starts, why = cold_start.fresh_processes(subject, 4, 2e-3, 0.0)
        assert why is None
        assert len(starts) == 1, "after the time is up none is begun, but one is"
        (start,) = starts
        assert len(start.cold_s) == len(start.warm_s) == 4
        # Sleeps last at least what they are asked for; the first call is the process's own.
        assert start.cold_s[0] >= 0.05
        assert min(*start.cold_s[1:], *start.warm_s) < 0.05
        assert start.reports[0] == pytest.approx(sum(start.cold_s) / 4)
        assert capfd.readouterr().out == ""

    def test_say_why_there_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "target.py").write_text(TARGET)
        request = Request(f"{tmp_path}/target.py:fails")
        subject = Subject("fails", lambda: None, request=request)
        starts, why = cold_start.fresh_processes(subject, 4, 2e-3, 60.0)
        assert starts == []
        assert why == "a fresh process failed (ValueError: on purpose)"

    def test_none_for_what_only_this_process_holds(self) -> None:
        starts, why = cold_start.fresh_processes(Subject("here", time.sleep), 4, 1e-3, 60.0)
        assert starts == []
        assert why is not None


class TestPlan:
    @pytest.mark.parametrize("call_s", [1e-7, 3e-4, 5e-3, 0.05, 0.3, 2.0])
    def test_keeps_to_its_time_as_far_as_an_interval_allows(self, call_s: float) -> None:
        plan = plan_for(call_s, Policy(max_s=10.0))
        assert plan.rounds >= FEWEST
        spent = 2 * plan.rounds * plan.samples * plan.calls * call_s
        assert spent <= plan.seconds or (plan.rounds, plan.samples) == (FEWEST, 1)
        assert plan.calls * call_s >= 50e-6

    def test_long_calls_need_no_settling(self) -> None:
        assert plan_for(1e-3, Policy()).settling == 3
        assert plan_for(1e-5, Policy()).settling == 10
        assert plan_for(0.5, Policy()).settling == 0


class TestOtherCalls:
    def test_a_fresh_copy_is_called_in_place_of_the_model(self) -> None:
        subject = of_model(nn.Linear(3, 2), (torch.ones(1, 3),))
        copied = subject.fresh_copy()
        assert copied.function is copied.model is not subject.model
        assert torch.equal(copied.step(), subject.step())

    def test_a_method_of_the_model_becomes_the_copys(self) -> None:
        model = nn.Linear(3, 2)
        subject = replace(of_model(model, (torch.ones(1, 3),)), function=model.forward)
        assert subject.fresh_copy().function.__self__ is not model

    @pytest.mark.parametrize("wrong", ["no model", "another function", "not to be copied"])
    def test_says_what_cannot_be_copied(self, wrong: str) -> None:
        model = nn.Linear(3, 2)
        subject = of_model(model, (torch.ones(1, 3),))
        if wrong == "no model":
            subject = Subject("step", time.sleep)
        elif wrong == "another function":
            subject = replace(subject, function=nn.Linear(3, 2))
        else:
            model.lock = (i for i in ())  # type: ignore[assignment]  # any object can be one
        with pytest.raises(CallUnavailableError):
            subject.fresh_copy()

    def test_copies_tensors_wherever_they_stand(self) -> None:
        seen: list[Any] = []
        inputs = (torch.ones(2), [torch.zeros(3), "text"], {"key": torch.ones(4)})
        subject = Subject("model", lambda *a, **k: seen.append((a, k)), nn.Identity(), inputs)
        subject.copying_step()()
        ((first, (second, text), mapping), named) = seen[0]
        assert text == "text"
        assert named == {}
        for copied, original in (
            (first, inputs[0]),
            (second, inputs[1][0]),
            (mapping["key"], inputs[2]["key"]),
        ):
            assert torch.equal(copied, original)
            assert copied.data_ptr() != original.data_ptr()
        assert subject.input_bytes() == 4 * (2 + 3 + 4)

    def test_an_error_in_a_line(self) -> None:
        assert in_a_line(RuntimeError("first\nsecond")) == "RuntimeError: first"
        assert in_a_line(KeyError()) == "KeyError"
