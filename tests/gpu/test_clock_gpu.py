"""The clock on a real CUDA device: waiting, event times, and keeping a device asleep."""

import pytest
import torch

from profstack.stats.clock import Clock
from tests.support.gpu_programs import NEEDS_GPU
from tests.support.processes import run_python

pytestmark = NEEDS_GPU
_BEGIN = "import os, torch; from profstack.stats.clock import Clock; clock = Clock();"
_SLEEPS = (
    "clock.synchronize(); clock.record_event(); clock.device_memory();"
    "print(clock.has_device, torch.cuda.is_initialized(), torch._C._cuda_hasPrimaryContext(0))"
)
_FORKS = (
    "clock.synchronize(); child = os.fork()\n"
    "if child == 0:\n"
    "    torch.ones(1, device='cuda').item(); os._exit(7)\n"
    "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
)


def test_a_device_is_neither_woken_nor_spoilt_for_a_fork():
    for code, said in ((_SLEEPS, "False False False"), (_FORKS, "7")):
        assert run_python("-c", _BEGIN + code).stdout.strip() == said


def test_waits_and_times_the_device():
    clock, x = Clock(), torch.randn(4096, 4096, device="cuda")
    for _ in range(3):
        x @ x
    clock.synchronize()
    begun, first = clock.now(), clock.record_event()
    for _ in range(20):
        x @ x
    second, launched = clock.record_event(), clock.now() - begun
    clock.synchronize()
    waited, device = clock.now() - begun, clock.elapsed_s(first, second)
    assert clock.has_device
    assert launched < device, "the launches alone must not have waited"
    assert device == pytest.approx(waited, rel=0.2)
    allocated, reserved = clock.device_memory()
    assert x.numel() * 4 <= allocated <= reserved


def test_keeps_out_of_a_graph_capture():
    clock, x, graph = Clock(), torch.ones(8, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        clock.synchronize()
        assert clock.record_event() is None
    graph.replay()
    clock.synchronize()
    assert y.sum().item() == 16
