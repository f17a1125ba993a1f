"""The ablation: eight cells a variant, of which each shows what its way of timing does.

On the CPU with a real model and torch's own errors; with a device in virtual time, where all times
are known beforehand.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import torch
from conftest import CHECKOUT
from torch import nn
from virtual_machine import Machine

from profstack.bench.ablation import COPY_HEAVY, EVENTS, HOST, ablation
from profstack.bench.measure import Policy
from profstack.bench.subject import Subject, of_model
from profstack.stats.clock import Clock

pytestmark = pytest.mark.timed

# Variant, warm-up, synchronising, whose clock.
Key = tuple[str, bool, bool, str]
Cells = dict[Key, dict[str, Any]]


def by_cell(rows: list[dict[str, Any]]) -> Cells:
    names = ("variant", "warmup", "synchronise", "timing")
    cells = {tuple(row[name] for name in names): row for row in rows}
    assert len(rows) == len(cells) == 16, "eight cells of two variants, each once"
    return cells


def without_figures(row: dict[str, Any]) -> bool:
    return row["n"] == 0 and row["mean_s"] is row["median_s"] is row["std_s"] is None


@pytest.fixture(scope="module")
def on_cpu() -> Cells:
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
    subject = of_model(model, (torch.randn(8, 32),))
    return by_cell(ablation(subject, Policy(max_s=0.1), Clock()))


class TestOnACpu:
    def test_the_hosts_clock_measures_all_that_can_differ(self, on_cpu: Cells) -> None:
        measured = {key for key, row in on_cpu.items() if not without_figures(row)}
        assert measured == {
            (variant, warmup, True, HOST)
            for variant in ("compute", "copy-heavy")
            for warmup in (True, False)
        }
        for key in measured:
            row = on_cpu[key]
            assert row["valid"]
            assert row["error"] is None
            assert row["n"] >= 6
            assert row["mean_s"] > 0
            assert row["median_s"] > 0
            assert row["std_s"] > 0

    def test_events_show_the_error_that_torch_raises(self, on_cpu: Cells) -> None:
        with pytest.raises(RuntimeError) as raised:
            torch.Event("cpu", enable_timing=True).record()
        for key, row in on_cpu.items():
            if key[3] == EVENTS:
                assert not row["valid"]
                assert row["error"] == f"RuntimeError: {str(raised.value).splitlines()[0]}"
                assert without_figures(row)
                assert "a CPU has no queue" in row["note"]

    def test_not_synchronising_is_said_to_make_no_difference(self, on_cpu: Cells) -> None:
        row = on_cpu["compute", True, False, HOST]
        assert without_figures(row)
        assert row["valid"]
        assert "cannot differ on a CPU" in row["note"]

    def test_says_what_the_copy_stands_for(self, on_cpu: Cells) -> None:
        assert "1.00 KiB" in on_cpu["copy-heavy", True, True, HOST]["note"]
        assert "nothing is transferred" in on_cpu["copy-heavy", True, True, HOST]["note"]
        assert on_cpu["compute", True, True, HOST]["note"] is None

    def test_says_how_cold_a_cold_call_is(self, on_cpu: Cells) -> None:
        assert "fresh copy of the model" in on_cpu["compute", False, True, HOST]["note"]

    def test_rows_are_what_the_schema_says(self, on_cpu: Cells) -> None:
        schema = json.loads((CHECKOUT / "profstack/report/report.schema.json").read_text())
        wanted = schema["properties"]["benchmark"]["properties"]["ablation"]
        jsonschema.validate(list(on_cpu.values()), wanted)


def test_a_function_has_warm_cells_alone() -> None:
    cells = by_cell(ablation(Subject("step", lambda: None), Policy(max_s=0.01), Clock()))
    assert cells["compute", True, True, HOST]["median_s"] > 0
    assert without_figures(cells["compute", False, True, HOST])
    assert "cannot be made cold" in cells["compute", False, True, HOST]["note"]
    assert without_figures(cells["copy-heavy", True, True, HOST])
    assert "what it copies, it copies itself" in cells["copy-heavy", True, True, HOST]["note"]


class Work(nn.Module):
    """Device work, launched in 1 ms of the host's time, or in ten when it is cold."""

    def __init__(self, machine: Machine, work_s: float = 4e-3) -> None:
        super().__init__()
        self.machine = [machine, work_s]
        self.is_warm = False

    def __deepcopy__(self, memo: Any) -> Work:
        return Work(*self.machine)

    def forward(self, inputs: torch.Tensor) -> None:
        machine, work_s = self.machine
        machine.launch(work_s, launch_s=1e-3 if self.is_warm else 10e-3)
        self.is_warm = True


def on_a_device(work_s: float) -> Cells:
    """The cells of a model of a virtual device, whose inputs take 2 ms to be brought there."""
    machine = Machine(has_device=True)
    subject = of_model(Work(machine, work_s), (torch.ones(2, 3),))

    def copying(used: Subject) -> Any:
        def step() -> None:
            machine.work(2e-3)
            used.step()

        return step

    subject.step()
    with pytest.MonkeyPatch.context() as patch:
        # The tests' machines have no tensors of a device, nor anything to copy to.
        patch.setattr(Subject, "uses_device", lambda *_: True)
        patch.setattr(Subject, "copying_step", copying)
        return by_cell(ablation(subject, Policy(max_s=2.0), machine.clock()))


@pytest.fixture(scope="module")
def busy() -> Cells:
    """4 ms of work a call, so that the device is never done when the host goes on."""
    return on_a_device(4e-3)


class TestOnADevice:
    """With a device of virtual time: the machines of the tests have none."""

    @pytest.mark.parametrize(
        ("cell", "expected_s"),
        [
            (("compute", True, True, HOST), 5e-3),
            (("compute", True, True, EVENTS), 5e-3),
            (("compute", True, False, HOST), 1e-3),
            (("compute", False, True, HOST), 14e-3),
            (("compute", False, True, EVENTS), 14e-3),
            (("compute", False, False, HOST), 10e-3),
            ((COPY_HEAVY, True, True, HOST), 7e-3),
            ((COPY_HEAVY, True, False, HOST), 3e-3),
            ((COPY_HEAVY, False, True, HOST), 16e-3),
        ],
    )
    def test_each_cell_shows_its_own_time(self, busy: Cells, cell: Key, expected_s: float) -> None:
        row = busy[cell]
        assert row["median_s"] == pytest.approx(expected_s)
        assert row["mean_s"] == pytest.approx(expected_s)
        assert row["std_s"] == pytest.approx(0.0, abs=1e-9)
        assert row["valid"]
        assert row["error"] is None

    @pytest.mark.parametrize("variant", ["compute", COPY_HEAVY])
    @pytest.mark.parametrize("warmup", [True, False])
    def test_events_read_without_waiting_show_the_error(
        self, busy: Cells, variant: str, warmup: bool
    ) -> None:
        row = busy[variant, warmup, False, EVENTS]
        assert row["error"] == "RuntimeError: CUDA error: device not ready"
        assert not row["valid"]
        assert without_figures(row)
        assert "readings were refused" in row["note"]

    def test_a_device_that_happens_to_be_done_makes_it_no_more_valid(self) -> None:
        row = on_a_device(0.0)["compute", True, False, EVENTS]
        assert not row["valid"]
        assert row["error"] is None
        assert row["median_s"] == pytest.approx(1e-3)
        assert "by chance" in row["note"]


def test_an_error_ends_its_cell_alone() -> None:
    class OnlyItself(nn.Module):
        """Works for none but the object it was made as, which a copy is not."""

        def __init__(self) -> None:
            super().__init__()
            self.owner = [id(self)]

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            if self.owner != [id(self)]:
                raise ValueError("used by another\nthan its owner")
            return inputs

    subject = of_model(OnlyItself(), (torch.ones(1),))
    cells = by_cell(ablation(subject, Policy(max_s=0.01), Clock()))
    cold = cells["compute", False, True, HOST]
    assert cold["error"] == "ValueError: used by another"
    assert without_figures(cold)
    assert cells["compute", True, True, HOST]["error"] is None
