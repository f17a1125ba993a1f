"""What runs with CUDA alone, tried on things that stand for it: no device is needed here."""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from data_recording import CLEAN_S, Run
from torch import nn

from profstack.analysis.build import build_report
from profstack.capture.slices import SlicePlan, Targets
from profstack.capture.step_log import StepLog
from profstack.launch import peaks
from profstack.layer import SliceContext
from profstack.readers.memory.blocks import FOR_EVER, AllocatorEvents, blocks_of
from profstack.readers.memory.kinds import GRADIENTS, KINDS, UNOWNED, Alive, Block
from profstack.readers.memory.owners import TensorBlocks
from profstack.session import Session
from profstack.stats.clock import Clock
from profstack.storage.folder import DATABASE, Writer
from profstack.storage.reader import Recorded
from profstack.wrappers.torch_profiler import TorchProfilerWrapper

# -- a device that the script has not opened -------------------------------------------------------


def test_the_torch_layer_does_not_ask_whether_there_is_a_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """To ask initialises the driver, and what the script forks later could not use it."""

    def asked() -> bool:
        raise AssertionError("the script uses no device, and one was asked for")

    monkeypatch.setattr(torch.cuda, "is_available", asked)
    wrapper = TorchProfilerWrapper()
    wrapper.start(SliceContext(0, "timed", 1, tmp_path))
    wrapper.stop()
    wrapper.close()


# -- peaks -----------------------------------------------------------------------------------------


class SlowToOpen:
    """A GPU whose first product takes 5 s and every other one 1 ms, by a clock of its own."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self.products = 0
        self.backends, self.float32 = torch.backends, torch.float32

    def rand(self, *shape: int, device: str) -> torch.Tensor:
        return torch.rand(2, 2)

    def empty(self, *shape: int, dtype: torch.dtype, device: str) -> torch.Tensor:
        return torch.empty(2, 2, dtype=dtype)

    def get_num_threads(self) -> int:
        return 1

    def mm(self, *_: torch.Tensor, **_out: torch.Tensor) -> None:
        self.time_s += 1e-3 if self.products else 5.0
        self.products += 1


@pytest.fixture
def tf32_as_before() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.usefixtures("tf32_as_before")
def test_what_opening_a_gpu_takes_is_not_the_time_its_peak_has() -> None:
    gpu = SlowToOpen()
    clock: Any = Clock(device=False)
    clock.now = clock.cpu = lambda: gpu.time_s
    rate, _, how = peaks._product_rate(gpu, "float32", "cuda:0", clock)
    assert "8192 x 8192" in how
    assert rate == pytest.approx(2 * 8192**3 / 1e-3)


# -- memory ----------------------------------------------------------------------------------------


def test_a_block_larger_than_its_tensor_is_given_back_whole() -> None:
    """CUDA's allocator splits no block for what is left of it: the tensor needs 512 less."""
    module = nn.Linear(1, 1)
    gradient = Block(2048, GRADIENTS, False, [weakref.ref(module)])
    before = Alive({("cuda:0", 7): gradient}, totals={"cuda:0": 2560})
    column = [np.array(values, np.int64) for values in ([10], [7], [-2560], [0], [4])]
    events = AllocatorEvents(*column, ["cuda:0"], {})
    born, given_back = blocks_of(events)
    named = SimpleNamespace(alive=lambda: module)
    older, owned = TensorBlocks(events, 5, {3: named}, 0).older(before, Alive(), born, given_back)
    rows = zip(owned.kind.tolist(), older.nbytes.tolist(), older.end.tolist(), strict=True)
    assert [(KINDS[kind], nbytes, end) for kind, nbytes, end in rows] == [(GRADIENTS, 2560, 10)]
    assert FOR_EVER not in older.end
    assert UNOWNED not in {KINDS[kind] for kind in owned.kind.tolist()}


# -- steps -----------------------------------------------------------------------------------------


class Behind(Clock):
    """A device on which each step takes 10 ms, while the host launches it in no time."""

    def __init__(self) -> None:
        super().__init__(device=False)
        self.marks = 0
        self.told: list[str] = []
        self.synchronize = lambda: self.told.append("waited")  # type: ignore[method-assign]
        self.record_event = self._mark  # type: ignore[method-assign]

    @property
    def has_device(self) -> bool:
        return True

    def _mark(self) -> tuple[int, Any]:
        self.marks += 1
        return (0, self.marks)

    def elapsed_s(self, first: Any, second: Any) -> float | None:
        return 0.010 * float(second[1] - first[1])


@pytest.mark.parametrize("kind", ["torch", "clean"])
def test_a_slice_lasts_until_the_device_is_done(tmp_path: Path, kind: str) -> None:
    clock = Behind()
    (tmp_path / "logs").mkdir()
    writer = Writer(tmp_path)
    log = StepLog(writer, clock)
    log.begin_plan("step", "train")
    observers = (("torch", "timed"),) if kind == "torch" else ()
    planned = SlicePlan(kind, observers, 2, 4)
    log.begin_slice(planned)
    for _ in range(4):
        assert log.timed
        log.record_event()
        log.stamp()
    log.stop(at_boundary=True)
    assert log.last - log.start < 0.030
    log.wait_for_device(planned, complete=True)
    assert clock.told == ["waited"]
    if observers:
        assert log.last - log.start == pytest.approx(0.040)
    else:
        # Clean times are the device's own.
        assert log.last - log.start < 0.030
    log.end_slice(planned, {}, 0.0)
    writer.close()
    with closing(sqlite3.connect(tmp_path / DATABASE)) as database:
        rows = database.execute("SELECT device_s FROM steps").fetchall()
    assert [device_s for (device_s,) in rows] == pytest.approx([0.010] * 4)


def test_the_engine_waits_before_and_after_a_layers_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("profstack.capture.engine.Clock", Behind)
    targets = Targets(rounds=2, final_steps=5, final_s=0.0, slice_s=0.0)
    with Session("behind", layers=["cprofile"], targets=targets) as session:
        session.run(lambda: None)
    report = session.recording.to_dict()
    figures = report["benchmark"]
    assert figures["clock"] == "device"
    assert figures["median_s"] == figures["device_median_s"] == pytest.approx(0.010)
    assert figures["host_median_s"] < 0.005
    (effect,) = report["probe_effect"]
    assert effect["factor"] == pytest.approx(1.0, rel=0.01)
    for row in report["slices"]:
        if row["layer"] == "cprofile" and row["steps"]:
            assert row["wall_s"] == pytest.approx(0.010 * row["steps"], rel=0.05)
    # Nobody sees the wait.
    assert not [row for row in report["tables"]["functions"] if "synchronize" in row["name"]]


@pytest.mark.parametrize(
    ("device", "clock"),
    [(0.050, "device"), (0.0095, "device"), (0.001, "host"), (None, "host")],
)
def test_the_devices_times_count_where_they_cover_the_hosts(
    tmp_path: Path, device: float | None, clock: str
) -> None:
    """Events of one stream see nothing of another: then the host's times count."""
    run = Run(tmp_path / "rec")
    run.clean(10)
    run.torch([0.012] * 5)
    run.clean(10)
    run.finish()
    with closing(sqlite3.connect(run.folder / DATABASE)) as database, database:
        database.execute("UPDATE steps SET device_s = ?", (device,))
    report = build_report(Recorded(run.folder))
    figures = report["benchmark"]
    assert figures["clock"] == clock
    assert figures["median_s"] == pytest.approx(device if clock == "device" else CLEAN_S)
    assert figures["host_median_s"] == pytest.approx(CLEAN_S)
    assert figures["device_median_s"] == (None if device is None else pytest.approx(device))
    assert set(figures["samples_s"]) == {figures["median_s"]}


def test_a_slow_step_is_one_of_the_devices_where_its_times_count(tmp_path: Path) -> None:
    run = Run(tmp_path / "rec")
    run.clean(10)
    run.slice("watch", [CLEAN_S] * 10)
    run.finish()
    with closing(sqlite3.connect(run.folder / DATABASE)) as database, database:
        database.execute("UPDATE steps SET device_s = 0.050")
        database.execute("UPDATE steps SET device_s = 0.200 WHERE step = 14")
    (slow,) = build_report(Recorded(run.folder))["tables"]["outliers"]
    assert (slow["index"], slow["wall_s"]) == (14, pytest.approx(CLEAN_S))
    assert slow["factor"] == pytest.approx(4.0)
