"""The clock: cheap without a device, and never the one that wakes a device."""

from __future__ import annotations

import subprocess
import sys
import time
import timeit
from types import SimpleNamespace
from typing import Any

import pytest

from profstack.stats.clock import Clock


class FakeEvent:
    """A CUDA event by its contract: a time when recorded, an error when asked too early."""

    def __init__(self, device: FakeCuda, enable_timing: bool) -> None:
        assert enable_timing
        self.device = device
        self.passed_at: float | None = None

    def record(self) -> None:
        self.device.pending.append(self)

    def elapsed_time(self, other: FakeEvent) -> float:
        if self.passed_at is None or other.passed_at is None:
            raise RuntimeError("device not ready")
        return (other.passed_at - self.passed_at) * 1e3


class FakeCuda:
    """What the clock uses of `torch.cuda`, for machines that have none."""

    def __init__(self, devices: int, open_devices: set[int]) -> None:
        self.devices = devices
        self.open_devices = open_devices
        self.synchronized: list[int] = []
        self.pending: list[FakeEvent] = []
        self.capturing = False
        self.seconds = 0.0
        self.current = 0

    def is_initialized(self) -> bool:
        return bool(self.open_devices)

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def device_count(self) -> int:
        assert self.is_initialized(), "counting devices can spoil a later fork"
        return self.devices

    def current_device(self) -> int:
        assert self.is_initialized(), "asking for the current device initialises CUDA"
        return self.current

    def synchronize(self, index: int) -> None:
        assert index in self.open_devices, "synchronising opens a context"
        assert not self.capturing, "synchronising breaks a capture"
        self.synchronized.append(index)
        for event in self.pending:
            self.seconds += 0.25
            event.passed_at = self.seconds
        self.pending.clear()

    def Event(self, *, enable_timing: bool) -> FakeEvent:  # noqa: N802 - torch's own name
        return FakeEvent(self, enable_timing)

    def memory_allocated(self, index: int) -> int:
        return 100 * (index + 1)

    def memory_reserved(self, index: int) -> int:
        return 1000 * (index + 1) if index in self.open_devices else 0


class OpeningCuda(FakeCuda):
    """One that is opened by the first allocation, and knows the most it has allocated."""

    def __init__(self, devices: int, open_devices: set[int]) -> None:
        super().__init__(devices, open_devices)
        self.peak = 0

    def is_available(self) -> bool:
        return self.devices > 0

    def empty(self, size: int, *, device: str) -> None:
        assert (size, device) == (1, "cuda")
        self.open_devices.add(0)
        self.peak = 512

    def synchronize(self, index: int = 0) -> None:
        super().synchronize(index)

    def reset_peak_memory_stats(self) -> None:
        self.peak = 0

    def max_memory_allocated(self, index: int) -> int:
        return self.peak


NEW, OF_2_6, BEFORE = "new torch", "torch 2.6", "torch before 2.6"


def without_a_device() -> None:
    """What torch 2.6 does where no device can be used, having asked the driver."""
    raise RuntimeError("Cannot access accelerator device when none is available.")


def fake_torch(cuda: FakeCuda, *, has_context: bool = True, accelerator: str = NEW) -> Any:
    core = SimpleNamespace()
    if has_context:
        core._cuda_hasPrimaryContext = cuda.open_devices.__contains__
    torch = SimpleNamespace(cuda=cuda, _C=core, version=SimpleNamespace(cuda="12.8"))
    if accelerator == NEW:
        kind = SimpleNamespace(type="cuda")
        asked = SimpleNamespace(current_accelerator=lambda check_available=False: kind)
        torch.accelerator = asked
    elif accelerator == OF_2_6:
        torch.accelerator = SimpleNamespace(current_accelerator=without_a_device)
    return torch


class TestWithoutADevice:
    def test_is_told_so(self) -> None:
        pytest.importorskip("torch")
        clock = Clock()
        if clock.has_device:
            pytest.skip("this process uses a device")
        clock.synchronize()
        assert clock.record_event() is None
        assert clock.elapsed_s(None, None) is None
        assert clock.device_memory() == (None, None)

    def test_costs_next_to_nothing(self) -> None:
        asked = SimpleNamespace(current_accelerator=lambda check_available=False: None)
        cpu_only = SimpleNamespace(accelerator=asked)
        clock = Clock(cpu_only)
        for call in (clock.synchronize, clock.record_event):
            per_call = min(timeit.repeat(call, number=20_000, repeat=7)) / 20_000
            assert per_call < 0.2e-6

    def test_does_without_torch(self) -> None:
        code = (
            "from profstack.stats.clock import Clock; import sys; clock = Clock();"
            "clock.synchronize(); assert not clock.has_device;"
            "print(sorted({'torch', 'numpy'} & set(sys.modules)))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout == "[]\n"

    def test_host_and_processor_time_are_two_things(self) -> None:
        clock = Clock()
        begun, begun_cpu = clock.now(), clock.cpu()
        time.sleep(0.05)
        wall, cpu = clock.now() - begun, clock.cpu() - begun_cpu
        assert wall >= 0.05
        assert cpu < wall / 2


@pytest.mark.parametrize("accelerator", [NEW, OF_2_6, BEFORE])
@pytest.mark.parametrize("has_context", [True, False], ids=["asks contexts", "asks memory"])
class TestWithCuda:
    def test_leaves_an_unused_device_asleep(self, accelerator: str, has_context: bool) -> None:
        cuda = FakeCuda(2, set())
        clock = Clock(fake_torch(cuda, has_context=has_context, accelerator=accelerator))
        clock.synchronize()
        assert clock.record_event() is None
        assert not clock.has_device
        assert clock.device_memory() == (None, None)
        assert cuda.synchronized == []

    def test_notices_a_device_that_wakes_later(self, accelerator: str, has_context: bool) -> None:
        cuda = FakeCuda(1, set())
        clock = Clock(fake_torch(cuda, has_context=has_context, accelerator=accelerator))
        clock.synchronize()
        cuda.open_devices.add(0)
        clock.synchronize()
        assert clock.has_device
        assert cuda.synchronized == [0]

    def test_waits_for_all_used_devices(self, accelerator: str, has_context: bool) -> None:
        cuda = FakeCuda(4, {0, 2})
        clock = Clock(fake_torch(cuda, has_context=has_context, accelerator=accelerator))
        clock.synchronize()
        assert cuda.synchronized == [0, 2]
        assert clock.device_memory() == (100 + 300, 1000 + 3000)

    def test_times_between_events(self, accelerator: str, has_context: bool) -> None:
        cuda = FakeCuda(2, {0, 1})
        clock = Clock(fake_torch(cuda, has_context=has_context, accelerator=accelerator))
        first, second = clock.record_event(), clock.record_event()
        cuda.current = 1
        elsewhere = clock.record_event()
        assert clock.elapsed_s(first, second) is None, "the device has not come that far"
        clock.synchronize()
        assert clock.elapsed_s(first, second) == pytest.approx(0.25)
        assert clock.elapsed_s(first, elsewhere) is None, "two devices share no clock"
        assert clock.elapsed_s(None, second) is None

    def test_opens_the_device_when_asked_and_only_then(
        self, accelerator: str, has_context: bool
    ) -> None:
        cuda = OpeningCuda(1, set())
        torch = fake_torch(cuda, has_context=has_context, accelerator=accelerator)
        torch.empty = cuda.empty
        clock = Clock(torch)
        assert not clock.has_device
        seconds = clock.initialise()
        assert seconds is not None
        assert seconds >= 0
        assert clock.has_device
        assert not clock.was_used(), "what opened it does not count"
        assert clock.initialise() is None, "it is open already"
        cuda.peak = 4096
        assert clock.was_used()
        host = Clock(torch, device=False)
        assert not host.has_device
        assert host.record_event() is None

    def test_opens_nothing_where_no_device_works(self, accelerator: str, has_context: bool) -> None:
        cuda = OpeningCuda(0, set())
        clock = Clock(fake_torch(cuda, has_context=has_context, accelerator=accelerator))
        assert clock.initialise() is None
        assert not clock.has_device

    def test_keeps_out_of_a_graph_capture(self, accelerator: str, has_context: bool) -> None:
        cuda = FakeCuda(1, {0})
        cuda.capturing = True
        clock = Clock(fake_torch(cuda, has_context=has_context, accelerator=accelerator))
        clock.synchronize()
        assert clock.record_event() is None
        assert cuda.synchronized == []
        assert cuda.pending == []


def test_a_single_device_kind_is_in_use_once_it_holds_memory() -> None:
    calls: list[str] = []
    held = [0]
    mps = SimpleNamespace(
        current_allocated_memory=lambda: held[0],
        driver_allocated_memory=lambda: 4096,
        synchronize=lambda: calls.append("synchronize"),
    )
    torch = SimpleNamespace(
        mps=mps,
        _C=SimpleNamespace(),
        version=SimpleNamespace(cuda=None),
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: True)),
    )
    clock = Clock(torch)
    clock.synchronize()
    assert calls == []
    held[0] = 512
    clock.synchronize()
    assert calls == ["synchronize"]
    assert clock.device_memory() == (512, 4096)
