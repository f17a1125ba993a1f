"""The ablation: eight cells a variant, of which each shows what its way of timing does."""

import pytest
import torch
from torch import nn

from profstack.bench.ablation import COPY_HEAVY, EVENTS, HOST, ablation
from profstack.bench.measure import Policy
from profstack.bench.subject import Subject, of_model
from profstack.stats.clock import Clock
from tests.support.reports import breaks_of_schema
from tests.support.tables import near, of
from tests.support.virtual_machine import Machine


def cells_of(subject, max_s, clock):
    """Rows by variant, warm-up, synchronising, and whose clock."""
    rows = ablation(subject, Policy(max_s=max_s), clock)
    cells = {tuple(of(row, "variant warmup synchronise timing")): row for row in rows}
    assert len(rows) == len(cells) == 16, "eight cells of two variants, each once"
    return cells


def without_figures(row):
    return of(row, "n mean_s median_s std_s") == [0, None, None, None]


def test_on_a_cpu_a_model_or_a_function_has_the_cells_that_can_differ():
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
    cells = cells_of(of_model(model, (torch.randn(8, 32),)), 0.1, Clock())
    measured = {key: row for key, row in cells.items() if not without_figures(row)}
    variants = [(name, warm) for name in ("compute", "copy-heavy") for warm in (True, False)]
    assert {*measured} == {(*one, True, HOST) for one in variants}
    for row in measured.values():
        assert (row["valid"], row["error"], row["n"] >= 6) == (True, None, True)
        assert min(row["mean_s"], row["median_s"], row["std_s"]) > 0
    with pytest.raises(RuntimeError) as raised:
        torch.Event("cpu", enable_timing=True).record()
    error = f"RuntimeError: {str(raised.value).splitlines()[0]}"
    for row in (row for key, row in cells.items() if key[3] == EVENTS):
        assert (of(row, "valid error"), without_figures(row)) == ([False, error], True)
    row = cells["compute", True, False, HOST]
    assert (row["valid"], without_figures(row)) == (True, True)
    assert breaks_of_schema("ablation", list(cells.values())) == []


class Work(nn.Module):
    """Device work, launched in 1 ms of the host's time, or in ten when it is cold."""

    def __init__(self, machine, work_s):
        super().__init__()
        self.machine, self.is_warm = [machine, work_s], False

    def __deepcopy__(self, memo):
        return Work(*self.machine)

    def forward(self, inputs):
        machine, work_s = self.machine
        machine.launch(work_s, launch_s=1e-3 if self.is_warm else 10e-3)
        self.is_warm = True


def test_with_a_device_each_cell_shows_its_own_time(monkeypatch):
    def copying(used):
        return lambda: (machine.work(2e-3), used.step())

    # The tests' machines have no tensors of a device, nor anything to copy to: that takes 2 ms.
    monkeypatch.setattr(Subject, "uses_device", lambda *_: True)
    monkeypatch.setattr(Subject, "copying_step", copying)
    found = []
    # 4 ms of work a call, so that the device is never done when the host goes on; or none.
    for work_s in (4e-3, 0.0):
        machine = Machine(has_device=True)
        subject = of_model(Work(machine, work_s), (torch.ones(2, 3),))
        subject.step()
        found.append(cells_of(subject, 2.0, machine.clock()))
    busy, done = found
    expected_ms = {(True, True, HOST): (5, 7), (True, True, EVENTS): (5, 7)}
    expected_ms |= {(True, False, HOST): (1, 3), (False, True, HOST): (14, 16)}
    expected_ms |= {(False, True, EVENTS): (14, 16), (False, False, HOST): (10, 12)}
    for way, both in expected_ms.items():
        for variant, ms in zip(("compute", COPY_HEAVY), both, strict=True):
            row, expected = busy[(variant, *way)], near(ms * 1e-3, ms * 1e-3, True, None)
            assert of(row, "median_s mean_s valid error") == expected
            assert row["std_s"] == pytest.approx(0.0, abs=1e-9)
    for variant, warmup in (("compute", True), ("compute", False), (COPY_HEAVY, True)):
        row = busy[variant, warmup, False, EVENTS]
        error = "RuntimeError: CUDA error: device not ready"
        assert (of(row, "error valid"), without_figures(row)) == ([error, False], True)
    # A device that happens to be done makes it no more valid.
    row = done["compute", True, False, EVENTS]
    assert of(row, "valid error median_s") == near(False, None, 1e-3)
