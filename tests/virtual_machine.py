"""A host and a device of virtual time: what is measured on them is known exactly.

A stand-in for an accelerator, which no machine of the tests has: work is launched at once, done
later, and waited for by the clock alone. Its events behave as CUDA's do by their contract.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from profstack.stats.clock import Clock


class Event:
    """A mark in the device's queue: an error when read before the device has come to it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.passed_at = 0.0

    def record(self) -> None:
        self.passed_at = max(self.machine.host_s, self.machine.device_s)

    def elapsed_time(self, other: Event) -> float:
        if max(self.passed_at, other.passed_at) > self.machine.host_s:
            raise RuntimeError("CUDA error: device not ready\nCompile with ...")
        return (other.passed_at - self.passed_at) * 1e3


class Machine:
    """Virtual time; `has_device` says whether it has an accelerator beside the host."""

    def __init__(self, *, has_device: bool) -> None:
        self.has_device = has_device
        self.host_s = 1.0
        self.device_s = 0.0

    def work(self, seconds: float) -> None:
        """The host is busy."""
        self.host_s += seconds

    def launch(self, seconds: float, *, launch_s: float) -> None:
        """The device will be busy, after what it still has to do."""
        self.work(launch_s)
        self.device_s = max(self.device_s, self.host_s) + seconds

    def synchronize(self, index: int = 0) -> None:
        self.host_s = max(self.host_s, self.device_s)

    def clock(self) -> Clock:
        """A clock that reads virtual time and waits for the virtual device."""
        clock = Clock(self._torch())
        clock.now = lambda: self.host_s
        clock.cpu = lambda: self.host_s
        return clock

    def _torch(self) -> Any:
        kind = SimpleNamespace(type="cuda") if self.has_device else None
        cuda = SimpleNamespace(
            is_initialized=lambda: True,
            device_count=lambda: 1,
            current_device=lambda: 0,
            synchronize=self.synchronize,
            Event=lambda enable_timing: Event(self),
        )
        return SimpleNamespace(
            cuda=cuda,
            _C=SimpleNamespace(_cuda_hasPrimaryContext=lambda index: True),
            accelerator=SimpleNamespace(current_accelerator=lambda check_available=False: kind),
        )
