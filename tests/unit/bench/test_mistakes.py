"""Timing mistakes: each planted difference is found exactly, in virtual time, and no other is."""

import sys
import weakref
from dataclasses import replace
from itertools import count

import pytest
import torch
from torch import nn

from profstack.bench.measure import Policy
from profstack.bench.mistakes import FEWEST, mistakes, plan_for
from profstack.bench.subject import Subject, of_model
from profstack.stats.clock import Clock
from tests.support.reports import breaks_of_schema
from tests.support.tables import cases, missing, near, of
from tests.support.virtual_machine import Machine

SLUGS = ["no-warmup", "one-sample", "no-synchronisation", "host-clock", "transfer-inside"]
SLUGS += ["gradients-on", "under-cprofile", "under-torch-profiler"]
# What a warm call takes on a virtual machine, and a cold one.
STEP_S, COLD_S = 1e-3, 10e-3


def cprofile_is_on():
    if sys.version_info >= (3, 12):
        return sys.monitoring.get_tool(sys.monitoring.PROFILER_ID) is not None
    return sys.getprofile() is not None


class Virtual(nn.Module):
    """Takes more virtual time cold, with gradients, and under a profiler; waits for nothing."""

    def __init__(self, machine):
        super().__init__()
        self.weight, self.machine = nn.Parameter(torch.ones(4)), [machine]
        self.warm = weakref.WeakSet()

    def __deepcopy__(self, memo):
        return Virtual(self.machine[0])

    def forward(self, inputs):
        seconds = STEP_S if self in self.warm else COLD_S
        self.warm.add(self)
        seconds *= 3 if torch.is_grad_enabled() else 1
        seconds *= 1.5 if cprofile_is_on() else 1
        self.machine[0].work(seconds * (1.7 if torch.autograd._profiler_enabled() else 1))
        return inputs * self.weight


def rows_of(subject, clock, max_s=2.0, **more):
    rows = mistakes(subject, Policy(max_s=max_s), clock, **more)
    assert [row["slug"] for row in rows] == SLUGS
    return {row["slug"]: row for row in rows}


def warm_virtual(**changes):
    machine = Machine(has_device=False)
    subject = of_model(Virtual(machine), (torch.ones(2, 4),))
    with subject.conditions():
        subject.step()
    return replace(subject, **changes), machine.clock()


def without_figures(row):
    others = {"slug", "title", "applies", "note", "error"}
    return all(value is None for name, value in row.items() if name not in others)


@pytest.fixture(scope="module")
def virtual():
    return rows_of(*warm_virtual())


# The first of ten calls takes ten times what the others do.
FACTORS = "no-warmup 1.9; one-sample 1.; gradients-on 3.; under-cprofile 1.5; "


@cases("slug factor", FACTORS + "under-torch-profiler 1.7")
def test_on_a_cpu_exactly_what_was_planted_is_found(virtual, slug, factor):
    row = virtual[slug]
    found = of(row, "applies error factor ci95_low ci95_high right_s wrong_s")
    assert found == near(True, None, factor, factor, factor, STEP_S, factor * STEP_S)
    assert row["wrong_std_s"] == pytest.approx(0.0, abs=1e-9)
    assert min(row["n_wrong"], row["n_right"]) >= FEWEST


def test_rows_on_a_cpu_are_whole_and_leave_nothing_attached(virtual):
    for slug in ("no-synchronisation", "host-clock", "transfer-inside"):
        row = virtual[slug]
        assert (row["applies"], without_figures(row)) == (False, True)
    assert "the very first call took 10.0 ms" in virtual["no-warmup"]["note"]
    assert breaks_of_schema("mistakes", list(virtual.values())) == []
    assert not cprofile_is_on()
    assert not torch.autograd._profiler_enabled()
    assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == (True, False)
    # Gradients that were asked for are no mistake: all else is measured with them.
    rows = rows_of(*warm_virtual(gradients=True), max_s=0.1)
    assert not rows["gradients-on"]["applies"]
    assert rows["under-cprofile"]["right_s"] == pytest.approx(3 * STEP_S)


def test_single_calls_and_the_first_one_scatter(monkeypatch):
    # One call in ten takes twice the time: a median does not see it, a single call may be it.
    machine, turns = Machine(has_device=False), count()
    step = lambda: machine.work(2e-3 if next(turns) % 10 == 9 else 1e-3)  # noqa: E731
    monkeypatch.setattr("profstack.bench.mistakes.median_interval", lambda _: (0.9e-3, 1.3e-3))
    row = rows_of(Subject("step", step), machine.clock())["one-sample"]
    assert of(row, "factor ci95_low ci95_high") == near(1.0, 1.0, 2.0)
    assert (row["wrong_std_s"] > 0.2e-3, row["n_wrong"] > row["n_right"]) == (True, True)
    assert row["right_std_s"] == pytest.approx(0.0, abs=1e-9)
    words = ("95 of 100 single calls lie between 1.000 and 2.000", "is known to 30.0 %")
    assert not missing(row["note"], *words)
    machine = Machine(has_device=False)
    subject = Subject("step", lambda: machine.work(STEP_S))
    warmup_s = [19e-3, 1e-3, 1e-3, 1e-3]
    row = rows_of(subject, machine.clock(), 0.2, warmup_s=warmup_s)["no-warmup"]
    assert of(row, "factor n_wrong wrong_std_s ci95_low") == near(5.5, 1, None, None)


class OnHost(torch.Tensor):
    """A tensor in host memory that a machine without a device can move to one."""

    def to(self, *args, **keywords):
        assert args[0].type == "cuda"
        self.machine.work(2e-3)
        return on(OnDevice, self, self.machine)


class OnDevice(torch.Tensor):
    """A tensor that says it is on a device."""

    device = property(lambda self: torch.device("cuda", 0))

    def detach(self):
        return self

    def cpu(self):
        return on(OnHost, self, self.machine)


def on(kind, tensor, machine):
    made = tensor.as_subclass(kind)
    made.machine = machine
    return made


def test_on_a_device_each_wrong_way_has_its_own_time():
    # A model that launches 4 ms of device work in 1 ms of the host's time.
    machine = Machine(has_device=True)

    class Model(nn.Module):
        def forward(self, inputs):
            assert isinstance(inputs, OnDevice)
            machine.launch(4e-3, launch_s=1e-3)

    subject = of_model(Model(), (on(OnDevice, torch.ones(2, 3), machine),))
    rows = rows_of(subject, machine.clock(), 4.0)
    assert {(row["applies"], row["error"]) for row in rows.values()} == {(True, None)}
    found = {slug: of(rows[slug], "right_s wrong_s factor") for slug in SLUGS[2:5]}
    # In a pipeline the device works without a gap. The inputs take 2 ms to be brought there.
    expected = {"no-synchronisation": near(5e-3, 1e-3, 0.2), "host-clock": near(4e-3, 1e-3, 0.25)}
    assert found == expected | {"transfer-inside": near(5e-3, 7e-3, 1.4)}


def test_an_error_costs_its_row_alone():
    class WithoutGradients(nn.Module):
        def forward(self, inputs):
            if torch.is_grad_enabled():
                raise ValueError("no gradients")

    rows = rows_of(of_model(WithoutGradients(), (torch.ones(2, 3),)), Clock(), 0.05)
    failed = rows["gradients-on"]
    assert failed["error"] == "ValueError: no gradients"
    assert without_figures(failed)
    assert rows["under-torch-profiler"]["factor"] is not None


@cases("call_s settling", "1e-7 10; 3e-4 10; 1e-3 3; 5e-3 None; .3 None; .5 0; 2. 0")
def test_a_plan_keeps_to_its_time_as_far_as_an_interval_allows(call_s, settling):
    plan = plan_for(call_s, Policy(max_s=10.0))
    assert plan.rounds >= FEWEST
    spent = 2 * plan.rounds * plan.samples * plan.calls * call_s
    # A quarter of the time is one comparison's.
    assert spent <= 2.5 or (plan.rounds, plan.samples) == (FEWEST, 1)
    assert (plan.calls * call_s >= 50e-6, settling in (None, plan.settling)) == (True, True)
    # In 12.5 ms there is room for 125 pairs of samples of 5 calls.
    short = plan_for(1e-5, Policy(max_s=0.05))
    assert (short.calls, short.rounds, short.samples) == (5, 12, 10)
