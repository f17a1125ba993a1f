"""What kind of activity an event of torch.profiler is, also where torch does not say so.

Events tell their kind themselves from torch 2.13 on. Before that it follows from what they do tell:
whether they ran on a device, whether the program named them, and their names, which Kineto and the
tracer of Python functions make by fixed rules.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from profstack.torchtrace.columns import column

HOST_KINDS = ("cpu_op", "user_annotation")
DEVICE_KINDS = ("kernel", "gpu_memcpy", "gpu_memset", "privateuse1_runtime_kernel")
# Calls of a device's runtime on the host.
RUNTIME_KINDS = ("cuda_runtime", "cuda_driver", "privateuse1_runtime", "xpu_runtime")
MEMORY_KIND, MEMORY_NAME = "cpu_instant_event", "[memory]"
PYTHON_KIND, OPERATOR_KIND = "python_function", "cpu_op"
COPY_KIND, SET_KIND = "gpu_memcpy", "gpu_memset"

# "file.py(12): name", a module's or an optimizer's call, and the repr of what is built in.
_PYTHON = re.compile(r".*\(\d+\): .|nn\.Module: |Optimizer: |<", re.DOTALL)
# cudaLaunchKernel, cuLaunchKernelEx, hipLaunchKernel; no operator of torch is named like them.
_RUNTIME = re.compile(r"(?:cuda|cu|hip|ur|ze)[A-Z]\w*(?:@\w+)?")
# What CUPTI and Kineto themselves took, and waits between streams, which occupy none.
_OVERHEAD = frozenset(
    {
        "Activity Buffer Request",
        "Buffer Flush",
        "Command Buffer Full",
        "Instrumentation",
        "Lazy Function Loading",
        "Resource",
        "Runtime Triggered Module Loading",
        "Unrecognized",
    }
)
_WAITS = frozenset({"Context Sync", "Stream Sync", "Event Sync", "Stream Wait Event"})


def kinds_of(events: Sequence[Any]) -> list[str]:
    """The kind of every event, in Kineto's words ("cpu_op", "kernel", "cuda_runtime", ...)."""
    if not len(events):
        return []
    if hasattr(type(events[0]), "activity_type"):
        return list(column(events, "activity_type"))
    return list(map(inferred_kind, events))


def has_python_calls() -> bool:
    """Whether this torch lists calls of Python functions among its events: from 2.13 on."""
    from torch._C._autograd import _KinetoEvent

    return hasattr(_KinetoEvent, "activity_type")


def inferred_kind(event: Any) -> str:
    """The kind of an event that does not tell it itself."""
    name = event.name()
    if event.device_type().name != "CPU":
        return _device_kind(event, name)
    if event.is_user_annotation():
        return "user_annotation"
    if name == MEMORY_NAME:
        return MEMORY_KIND
    if _RUNTIME.fullmatch(name):
        return "cuda_runtime"
    if name in _OVERHEAD:
        return "overhead"
    return PYTHON_KIND if _PYTHON.match(name) else OPERATOR_KIND


def _device_kind(event: Any, name: str) -> str:
    if name == MEMORY_NAME:
        return MEMORY_KIND
    if event.is_user_annotation():
        return "gpu_user_annotation"
    if name.startswith("Memcpy"):
        return COPY_KIND
    if name.startswith("Memset"):
        return SET_KIND
    return "cuda_sync" if name in _WAITS else "kernel"
