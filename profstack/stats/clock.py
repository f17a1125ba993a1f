"""Time on the host and on the device, and the state of devices: the only place that synchronises.

No device is opened that the script has not used: a CUDA context costs memory and makes a later
fork fail, and even asking CUDA whether a device exists can do the latter. So a device counts from
the moment at which the script itself has initialised it.

This module imports neither torch nor anything else heavy; a `Clock` uses torch where it has been
imported before.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter, process_time
from typing import Any


def _nothing() -> None:
    """Do nothing: replaces every device call where there can be no device."""


class Clock:
    """Reads time and waits for devices; one per process, made once torch is imported.

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
        """Make a clock; `device` is False where the timed code uses no device."""
        torch = torch or sys.modules.get("torch")
        kind = _accelerator(torch) if device and torch is not None else None
        self._device = _Device(torch, kind) if kind else None
        # Bound per object, so that without a device a call costs what an empty function does.
        self.synchronize = self._device.synchronize if self._device else _nothing
        self.record_event = self._device.record_event if self._device else _nothing

    @property
    def has_device(self) -> bool:
        """Whether the script has initialised an accelerator."""
        return self._device is not None and self._device.in_use()

    def initialise(self) -> float | None:
        """Open the accelerator that torch was built for, before a benchmark.

        Returns the seconds it took; None where there is none that works, or it is open already.
        """
        if self._device is None or self._device.in_use() or not self._device.is_available():
            return None
        began = self.now()
        self._device.open()
        return self.now() - began

    def was_used(self) -> bool:
        """Return whether anything but `initialise` has taken memory on a device."""
        return self.has_device and self._device is not None and self._device.was_used()

    def elapsed_s(self, first: Any, second: Any) -> float | None:
        """Return device time between two events of one device; None where it is not known.

        It is not known without an event, between events of two devices, or before both have passed.
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
        """Return bytes in live tensors and bytes held by the allocator, over all devices in use."""
        if self._device is None or not self._device.in_use():
            return None, None
        return self._device.memory()


def _accelerator(torch: Any) -> str | None:
    """Return the kind of accelerator torch was built for, without touching a device."""
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
        # MPS has a single device and no such function: allocated memory shows whether it is in use.
        self._single = not hasattr(module, "is_initialized")
        self._capturing = getattr(module, "is_current_stream_capturing", None)

    def is_available(self) -> bool:
        """Return whether there is a device that can be opened, without opening it."""
        asked = getattr(self._module, "is_available", None)
        return asked is None or bool(asked())

    def open(self) -> None:
        """Open the current device by a first allocation, which is freed."""
        self._torch.empty(1, device=self._kind)
        # MPS counts as in use while memory is allocated: the wait must not depend on that.
        self._module.synchronize()
        if hasattr(self._module, "reset_peak_memory_stats"):
            self._module.reset_peak_memory_stats()

    def was_used(self) -> bool:
        """Return whether memory was ever taken since; a kind without that figure counts as used."""
        asked = getattr(self._module, "max_memory_allocated", None)
        if asked is None:
            return self.in_use()
        return any(asked(index) for index in range(self._module.device_count()))

    def in_use(self) -> bool:
        """Return whether the script has initialised this kind of device."""
        if self._single:
            return bool(self._module.current_allocated_memory())
        return bool(self._module.is_initialized())

    def _is_off_limits(self) -> bool:
        return not self.in_use() or bool(self._capturing and self._capturing())

    def synchronize(self) -> None:
        """Wait for every device in use; return at once when there is none."""
        if self._is_off_limits():
            return
        if self._single:
            self._module.synchronize()
        else:
            for index in self._open_devices():
                self._module.synchronize(index)

    def _open_devices(self) -> Iterator[int]:
        """Yield the devices with a context; synchronising another one would open it."""
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
        """Return bytes in live tensors and bytes held by the allocator."""
        module = self._module
        if self._single:
            return module.current_allocated_memory(), module.driver_allocated_memory()
        open_devices = list(self._open_devices())
        return (
            sum(module.memory_allocated(index) for index in open_devices),
            sum(module.memory_reserved(index) for index in open_devices),
        )


# -----------------------------------------------------------------------------
# State of the GPUs by the driver: a GPU that throttles gives other figures.
#
# Read with nvidia-ml-py (imported as `pynvml`) where it is installed. No CUDA context is opened.
# -----------------------------------------------------------------------------

INSTALL = "nvidia-ml-py is not installed (pip install nvidia-ml-py)"

# Bits of the driver's throttle reasons; the names in the library changed, the bits never did.
_REASONS = {
    0x1: "idle",
    0x2: "clocks set by an application",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "held in step with other GPUs",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
}
# Those with which a GPU runs below what it could.
SLOWING = tuple(_REASONS[bit] for bit in (0x4, 0x8, 0x20, 0x40, 0x80))


def device_state() -> dict[str, object]:
    """Read the state of every NVIDIA GPU now: `devices`, or None with a `reason`.

    GPUs that this process cannot see are listed as well: the driver does not know
    CUDA_VISIBLE_DEVICES.
    """
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        return {"devices": None, "reason": INSTALL}
    try:
        library.nvmlInit()
    except Exception as error:
        return {"devices": None, "reason": f"the NVIDIA driver cannot be asked: {error}"}
    try:
        count = library.nvmlDeviceGetCount()
        devices = [_state(library, index) for index in range(count)]
    except Exception as error:
        return {"devices": None, "reason": f"the NVIDIA driver gave no state: {error}"}
    finally:
        with contextlib.suppress(Exception):
            library.nvmlShutdown()
    return {"devices": devices, "reason": None if devices else "there is no NVIDIA GPU"}


def round_state(before: Mapping[str, object], after: Mapping[str, object]) -> dict[str, object]:
    """Return the report's `device_state` from the states before and after the samples."""
    return {
        "before": {"devices": before["devices"]} if before["devices"] else None,
        "after": {"devices": after["devices"]} if after["devices"] else None,
        "reason": before["reason"] or after["reason"],
    }


def slowed_by(states: Mapping[str, Any] | None) -> list[str]:
    """List in words why GPUs ran below their speed; empty where none did or it is not known."""
    sides = {side: states[side] for side in ("before", "after")} if states else {}
    return [
        f"GPU {device['index']}: {reason} ({side} the samples)"
        for side, found in sides.items()
        if found is not None
        for device in found["devices"]
        for reason in device["throttle_reasons"] or []
        if reason in SLOWING
    ]


def _state(library: Any, index: int) -> dict[str, Any]:
    """Return the state of one GPU; None where the driver does not give a value.

    `power_state` is P0 for the fastest; `throttle_reasons` are in words.
    """
    handle = library.nvmlDeviceGetHandleByIndex(index)

    def ask(name: str, *arguments: Any) -> Any:
        # Each question may be unknown to a card, to its driver or to this library.
        try:
            return getattr(library, name)(handle, *arguments)
        except Exception:
            return None

    sm, memory = (getattr(library, f"NVML_CLOCK_{kind}", None) for kind in ("SM", "MEM"))
    name, mode, state = (
        ask(f"nvmlDeviceGet{what}") for what in ("Name", "PersistenceMode", "PerformanceState")
    )
    milliwatts = ask("nvmlDeviceGetPowerUsage")
    # The library has had two names for the throttle reasons.
    bits = ask("nvmlDeviceGetCurrentClocksEventReasons")
    if bits is None:
        bits = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    reasons = None
    if bits is not None:
        reasons = [word for bit, word in _REASONS.items() if bits & bit]
        if unknown := bits & ~sum(_REASONS):
            reasons.append(f"a reason this profstack does not know ({unknown:#x})")
    return {
        "index": index,
        "name": name.decode() if isinstance(name, bytes) else name,
        "persistence_mode": None if mode is None else bool(mode),
        "power_state": None if state is None else f"P{state}",
        "sm_hz": _hertz(ask("nvmlDeviceGetClockInfo", sm)),
        "sm_max_hz": _hertz(ask("nvmlDeviceGetMaxClockInfo", sm)),
        "memory_hz": _hertz(ask("nvmlDeviceGetClockInfo", memory)),
        "memory_max_hz": _hertz(ask("nvmlDeviceGetMaxClockInfo", memory)),
        "throttle_reasons": reasons,
        "temperature_c": ask(
            "nvmlDeviceGetTemperature", getattr(library, "NVML_TEMPERATURE_GPU", 0)
        ),
        "power_w": None if milliwatts is None else milliwatts / 1e3,
    }


def _hertz(megahertz: int | None) -> float | None:
    return None if megahertz is None else megahertz * 1e6
