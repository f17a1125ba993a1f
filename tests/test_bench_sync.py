"""`profstack run --sync`, and what the clean steps of a run say by mode, shape and machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from data_recording import Run

from profstack.analysis.build import build_report
from profstack.capture.slices import SlicePlan, Targets, watch
from profstack.capture.step_log import StepLog
from profstack.commands.run import parser
from profstack.stats.clock import Clock
from profstack.storage.folder import Writer
from profstack.storage.reader import Recorded


class SlowDevice(Clock):
    """A device that is 2 ms behind the host whenever it is asked; there is none here."""

    def __init__(self) -> None:
        super().__init__(device=False)
        self.waits = 0
        self.synchronize = self._wait  # type: ignore[method-assign]
        self.record_event = lambda: (0, None)  # type: ignore[method-assign]

    @property
    def has_device(self) -> bool:
        return True

    def _wait(self) -> None:
        self.waits += 1
        time.sleep(0.002)

    def elapsed_s(self, first: Any, second: Any) -> float | None:
        return 0.25


@pytest.mark.parametrize(
    ("synchronised", "planned", "waits"),
    [
        (True, SlicePlan("clean", (), 2, 3), 3),
        (True, watch(1), 0),
        (False, SlicePlan("clean", (), 2, 3), 0),
    ],
)
def test_clean_steps_end_when_the_device_has(
    tmp_path: Path, synchronised: bool, planned: SlicePlan, waits: int
) -> None:
    clock = SlowDevice()
    (tmp_path / "logs").mkdir()
    writer = Writer(tmp_path)
    log = StepLog(writer, clock)
    log.synchronised = synchronised
    log.begin_plan("step", "train")
    log.begin_slice(planned)
    for _ in range(3):
        # As the engine does it at a boundary.
        assert log.timed
        log.record_event()
        log.stamp()
    assert clock.waits == waits
    walls = [after - before for before, after in zip(log.stamps(), log.stamps()[1:], strict=False)]
    if waits:
        assert min(walls) >= 0.002, "the wait belongs to the step"
    log.stop(at_boundary=True)
    log.end_slice(planned, {}, 0.0)
    writer.close()


def test_the_engine_waits_before_it_stamps(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from profstack.session import Session

    monkeypatch.setattr("profstack.capture.engine.Clock", SlowDevice)
    targets = Targets(rounds=2, final_steps=5, final_s=0.0, slice_s=0.0)
    with Session("sync", layers=["cprofile"], targets=targets) as session:
        session._own.engine.log.synchronised = True
        session.run(time.sleep, 0)
    report = session.recording.to_dict()
    clean = {row["index"] for row in report["slices"] if row["kind"] == "clean"}
    walls = [row["wall_s"] for row in report["tables"]["steps"] if row["slice"] in clean]
    assert len(walls) >= 5
    assert min(walls) >= 0.002


def test_the_option_stands_before_the_script() -> None:
    assert parser().parse_args(["--sync"]).sync
    assert not parser().parse_args([]).sync


@pytest.mark.parametrize("mode", ["synchronised", "pipelined"])
def test_the_report_says_how_its_clean_steps_were_timed(tmp_path: Path, mode: str) -> None:
    run = Run(tmp_path / "rec")
    run.writer.facts({"synchronised": mode == "synchronised"})
    run.clean(20)
    figures = build_report(Recorded(run.folder))["benchmark"]
    other = {"synchronised": "pipelined", "pipelined": "synchronised"}[mode]
    assert figures["mode"] == mode
    assert figures[f"{mode}_median_s"] == figures["median_s"] == pytest.approx(0.010)
    assert figures[f"{other}_median_s"] is None
    (shape,) = figures["by_shape"]
    assert (shape["shape"], shape["n"]) == ("32x8", figures["n"])
    assert figures["batch_size"] == 32
    assert figures["outliers"] == 0
