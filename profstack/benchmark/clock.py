"""Time, on the host and on the device: the only place in profstack that synchronises.

Nothing here wakes a device that the script has not used: opening a CUDA context costs memory and
makes a later fork fail, and even asking CUDA whether a device exists can do the latter. So a device
counts from the moment at which the script itself has initialised it.

This module imports neither torch nor anything else heavy; where torch is to be heeded it must be
imported by the time a `Clock` is made.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from time import perf_counter, process_time
from typing import Any


def _nothing() -> None:
    """Stand in for every device call where there can be no device."""


class Clock:
    """Reads time and waits for devices; one per process, made once torch is there.

    `now()` is host time and `cpu()` the processor time of all the process's threads, in seconds
    from an arbitrary start. `synchronize()` returns when all devices in use have finished what was
    launched. `record_event()` marks the current stream without waiting; once a later
    `synchronize()` has passed, `elapsed_s` gives the device time between two marks. Both do
    nothing while the script captures a CUDA graph, which either would break.
    """

    now: Callable[[], float] = staticmethod(perf_counter)
    cpu: Callable[[], float] = staticmethod(process_time)
    synchronize: Callable[[], None]
    record_event: Callable[[], Any]

    def __init__(self, torch: Any = None, *, device: bool = True) -> None:
        """`device` is False where what is timed uses none, although this process has opened one."""
        torch = torch or sys.modules.get("torch")
        kind = _accelerator(torch) if device and torch is not None else None
        self._device = _Device(torch, kind) if kind else None
        # Bound per object, so that without a device a call costs what an empty function does.
        self.synchronize = self._device.synchronize if self._device else _nothing
        self.record_event = self._device.record_event if self._device else _nothing

    @property
    def has_device(self) -> bool:
        """Whether the script has initialised an accelerator by now."""
        return self._device is not None and self._device.in_use()

    def initialise(self) -> float | None:
        """Open the accelerator that torch was built for, which a benchmark may do beforehand.

        Returns the seconds it took; None where there is none that works, or where it is open
        already.
        """
        if self._device is None or self._device.in_use() or not self._device.is_available():
            return None
        began = self.now()
        self._device.open()
        return self.now() - began

    def was_used(self) -> bool:
        """Whether anything but `initialise` has taken memory on a device."""
        return self.has_device and self._device is not None and self._device.was_used()

    def elapsed_s(self, first: Any, second: Any) -> float | None:
        """Device time between two events of one device, None where it cannot be told.

        That is: without an event, between events of two devices, or before both have passed.
        """
        if first is None or second is None:
            return None
        (first_index, start), (second_index, end) = first, second
        if first_index != second_index:
            return None
        try:
            return float(start.elapsed_time(end)) / 1e3
        except (RuntimeError, ValueError):  # not yet passed; which of the two depends on the kind
            return None

    def device_memory(self) -> tuple[int | None, int | None]:
        """Bytes in live tensors and bytes held by the allocator, over all devices in use."""
        if self._device is None or not self._device.in_use():
            return None, None
        return self._device.memory()


def _accelerator(torch: Any) -> str | None:
    """Kind of accelerator torch was built for, read without touching a device."""
    accelerator = getattr(torch, "accelerator", None)
    # Without an argument it is torch 2.6's: that asks the driver, and raises without a device.
    if accelerator is not None and accelerator.current_accelerator.__code__.co_argcount:
        device = accelerator.current_accelerator()
        return str(device.type) if device is not None else None
    if torch.version.cuda or getattr(torch.version, "hip", None):
        return "cuda"
    mps = getattr(torch.backends, "mps", None)
    return "mps" if mps is not None and mps.is_available() else None


class _Device:
    """All devices of the one kind that this torch was built for, through torch's own module."""

    def __init__(self, torch: Any, kind: str) -> None:
        module: Any = getattr(torch, kind)
        self._module, self._torch, self._kind = module, torch, kind
        self._has_context = getattr(torch._C, f"_{kind}_hasPrimaryContext", None)
        # MPS has a single device and no such question: there what torch has allocated tells.
        self._single = not hasattr(module, "is_initialized")
        self._capturing = getattr(module, "is_current_stream_capturing", None)

    def is_available(self) -> bool:
        """Whether there is a device that can be opened; asking does not open it."""
        asked = getattr(self._module, "is_available", None)
        return asked is None or bool(asked())

    def open(self) -> None:
        """Open the current device by a first allocation, which is given back."""
        self._torch.empty(1, device=self._kind)
        # MPS counts what is allocated as its being in use: the wait must not depend on that.
        self._module.synchronize()
        if hasattr(self._module, "reset_peak_memory_stats"):
            self._module.reset_peak_memory_stats()

    def was_used(self) -> bool:
        """Whether memory was ever taken since; a kind that cannot tell counts as used."""
        asked = getattr(self._module, "max_memory_allocated", None)
        if asked is None:
            return self.in_use()
        return any(asked(index) for index in range(self._module.device_count()))

    def in_use(self) -> bool:
        """Whether the script has initialised this kind of device."""
        if self._single:
            return bool(self._module.current_allocated_memory())
        return bool(self._module.is_initialized())

    def _is_off_limits(self) -> bool:
        return not self.in_use() or bool(self._capturing and self._capturing())

    def synchronize(self) -> None:
        """Wait for every device in use; at once when there is none."""
        if self._is_off_limits():
            return
        if self._single:
            self._module.synchronize()
        else:
            for index in self._open_devices():
                self._module.synchronize(index)

    def _open_devices(self) -> Iterator[int]:
        """Devices with a context; to synchronise another one would open it."""
        for index in range(self._module.device_count()):
            if self._has_context is not None:
                is_open = self._has_context(index)
            else:
                current = self._module.current_device()
                is_open = index == current or self._module.memory_reserved(index)
            if is_open:
                yield index

    def record_event(self) -> tuple[int, Any] | None:
        """Mark the current stream of the current device; None while no device is in use."""
        if self._is_off_limits():
            return None
        event = self._module.Event(enable_timing=True)
        event.record()
        return (0 if self._single else self._module.current_device(), event)

    def memory(self) -> tuple[int, int]:
        """Bytes in live tensors and bytes held by the allocator."""
        module = self._module
        if self._single:
            return module.current_allocated_memory(), module.driver_allocated_memory()
        open_devices = list(self._open_devices())
        return (
            sum(module.memory_allocated(index) for index in open_devices),
            sum(module.memory_reserved(index) for index in open_devices),
        )
