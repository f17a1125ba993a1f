"""The clock on a real CUDA device: waiting, event times, and keeping a device asleep."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from profstack.stats.clock import Clock  # noqa: E402 - after the skip

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def in_fresh_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_does_not_wake_the_device() -> None:
    code = (
        "import torch; from profstack.stats.clock import Clock; clock = Clock();"
        "clock.synchronize(); clock.record_event(); clock.device_memory();"
        "print(clock.has_device, torch.cuda.is_initialized(), torch._C._cuda_hasPrimaryContext(0))"
    )
    assert in_fresh_process(code) == "False False False"


def test_does_not_spoil_a_fork() -> None:
    code = (
        "import os, torch; from profstack.stats.clock import Clock; clock = Clock();"
        "clock.synchronize(); child = os.fork()\n"
        "if child == 0:\n"
        "    torch.ones(1, device='cuda').item(); os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    assert in_fresh_process(code) == "7"


def test_waits_and_times_the_device() -> None:
    clock = Clock()
    x = torch.randn(4096, 4096, device="cuda")
    for _ in range(3):
        x @ x
    clock.synchronize()
    begun = clock.now()
    first = clock.record_event()
    for _ in range(20):
        x @ x
    second = clock.record_event()
    launched = clock.now() - begun
    clock.synchronize()
    waited = clock.now() - begun
    device = clock.elapsed_s(first, second)
    assert clock.has_device
    assert device is not None
    assert launched < device, "the launches alone must not have waited"
    assert device == pytest.approx(waited, rel=0.2)
    allocated, reserved = clock.device_memory()
    assert allocated is not None
    assert reserved is not None
    assert x.numel() * 4 <= allocated <= reserved


def test_keeps_out_of_a_graph_capture() -> None:
    clock = Clock()
    x = torch.ones(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        clock.synchronize()
        assert clock.record_event() is None
    graph.replay()
    clock.synchronize()
    assert y.sum().item() == 16
