"""Kinds of events, where torch does not tell them: against what it tells, and by their names."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from profstack.readers.torchtrace.events import (
    DEVICE_KINDS,
    OPERATOR_KIND,
    PYTHON_KIND,
    RUNTIME_KINDS,
    inferred_kind,
    kinds_of,
)


def events_of_a_step() -> list[Any]:
    """Raw events with Python's calls, memory, a range of the program's and an optimizer's step."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(5))
    model(torch.randn(2, 3, 9, 9))
    optimizer = torch.optim.SGD(model.parameters())
    options = {"with_stack": True, "profile_memory": True, "record_shapes": True}
    with profile(activities=[ProfilerActivity.CPU], **options) as profiler:  # type: ignore[arg-type]
        with record_function("cudaLooksLikeIt"), record_function("a(1): range"):
            model(torch.randn(2, 3, 9, 9)).sum().backward()
        optimizer.step()
        torch._C._profiler._RecordFunctionFast("profstack::slice").__enter__()
    assert profiler.profiler is not None
    return list(profiler.profiler.kineto_results.events())


@pytest.mark.skipif(
    not hasattr(torch._C._autograd._KinetoEvent, "activity_type"),
    reason="this torch does not tell its events' kinds",
)
def test_the_kinds_of_a_real_profile_are_those_that_torch_tells() -> None:
    events = events_of_a_step()
    told = kinds_of(events)
    assert set(told) >= {OPERATOR_KIND, PYTHON_KIND, "user_annotation", "cpu_instant_event"}
    differing = Counter(
        (event.name(), kind, inferred_kind(event))
        for event, kind in zip(events, told, strict=True)
        if inferred_kind(event) != kind
    )
    assert not differing


def made(name: str, device: str = "CPU", *, named: bool = False) -> Any:
    """An event of torch before 2.13: no `activity_type`."""
    return SimpleNamespace(
        name=lambda: name,
        device_type=lambda: SimpleNamespace(name=device),
        is_user_annotation=lambda: named,
    )


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (made("void cutlass::Kernel2<cutlass_80_tensorop>(Params)", "CUDA"), "kernel"),
        (made("Memcpy HtoD (Pageable -> Device)", "CUDA"), "gpu_memcpy"),
        (made("Memset (Device)", "CUDA"), "gpu_memset"),
        (made("Optimizer.step#Adam.step", "CUDA", named=True), "gpu_user_annotation"),
        (made("[memory]", "CUDA"), "cpu_instant_event"),
        (made("Stream Wait Event", "CUDA"), "cuda_sync"),
        (made("[memory]"), "cpu_instant_event"),
        (made("cudaLaunchKernel"), "cuda_runtime"),
        (made("cuLaunchKernelEx"), "cuda_runtime"),
        (made("hipLaunchKernel"), "cuda_runtime"),
        (made("cudaLaunchKernel", named=True), "user_annotation"),
        (made("Lazy Function Loading"), "overhead"),
        (made("aten::cumsum"), "cpu_op"),
        (made("cuda_kernel_wrapper"), "cpu_op"),
        (made("AddmmBackward0"), "cpu_op"),
        (made("train.py(12): step"), "python_function"),
        (made("<built-in method relu of type object at 0x7f>"), "python_function"),
        (made("nn.Module: Linear_0"), "python_function"),
    ],
)
def test_a_kind_follows_from_where_it_ran_and_its_name(event: Any, kind: str) -> None:
    assert kinds_of([event]) == [kind]
    assert kind not in DEVICE_KINDS or event.device_type().name != "CPU"
    assert kind not in RUNTIME_KINDS or event.device_type().name == "CPU"


def test_no_events_have_no_kinds() -> None:
    assert kinds_of([]) == []
