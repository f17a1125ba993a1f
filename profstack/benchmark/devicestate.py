"""What state the GPUs are in, asked of the driver: a GPU that throttles gives other figures.

By nvidia-ml-py (imported as `pynvml`) where it is installed. Nothing here opens a CUDA context.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

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


def device_state() -> dict[str, Any]:
    """The state of every NVIDIA GPU now: `devices` is a list, or None with a `reason`.

    Each has `name`, `persistence_mode`, `power_state` (P0 is the fastest), the clocks `sm_hz`,
    `sm_max_hz`, `memory_hz` and `memory_max_hz`, `throttle_reasons` in words, `temperature_c` and
    `power_w`; what the driver does not tell is None. GPUs that this process cannot see are told
    as well: the driver knows nothing of CUDA_VISIBLE_DEVICES.
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


def round_state(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """The report's `device_state` from the states before and after the samples."""
    reason = before["reason"] or after["reason"]
    return {
        "before": {"devices": before["devices"]} if before["devices"] else None,
        "after": {"devices": after["devices"]} if after["devices"] else None,
        "reason": reason,
    }


def slowed_by(state: dict[str, Any] | None) -> list[str]:
    """Why GPUs ran below their speed, in words; empty where they did not or nobody knows."""
    found = []
    for side in ("before", "after"):
        for device in ((state or {}).get(side) or {}).get("devices") or []:
            found += [
                f"GPU {device['index']}: {reason} ({side} the samples)"
                for reason in device["throttle_reasons"] or []
                if reason in SLOWING
            ]
    return found


def _state(library: Any, index: int) -> dict[str, Any]:
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
    return {
        "index": index,
        "name": name.decode() if isinstance(name, bytes) else name,
        "persistence_mode": None if mode is None else bool(mode),
        "power_state": None if state is None else f"P{state}",
        "sm_hz": _hertz(ask("nvmlDeviceGetClockInfo", sm)),
        "sm_max_hz": _hertz(ask("nvmlDeviceGetMaxClockInfo", sm)),
        "memory_hz": _hertz(ask("nvmlDeviceGetClockInfo", memory)),
        "memory_max_hz": _hertz(ask("nvmlDeviceGetMaxClockInfo", memory)),
        "throttle_reasons": _reasons(ask),
        "temperature_c": ask(
            "nvmlDeviceGetTemperature", getattr(library, "NVML_TEMPERATURE_GPU", 0)
        ),
        "power_w": None if milliwatts is None else milliwatts / 1e3,
    }


def _reasons(ask: Callable[..., Any]) -> list[str] | None:
    """Throttle reasons in words, under either of the names the library has for them."""
    bits = ask("nvmlDeviceGetCurrentClocksEventReasons")
    if bits is None:
        bits = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    return None if bits is None else list(_in_words(int(bits)))


def _in_words(bits: int) -> Iterator[str]:
    for bit, word in _REASONS.items():
        if bits & bit:
            yield word
    unknown = bits & ~sum(_REASONS)
    if unknown:
        yield f"a reason this profstack does not know ({unknown:#x})"


def _hertz(megahertz: int | None) -> float | None:
    return None if megahertz is None else megahertz * 1e6
