"""The nvtx layer: slices of real training steps, listeners that are there or not, and CUDA."""

from functools import partial

import pytest
import torch

from profstack.layer import SliceContext
from profstack.readers import nvtx
from profstack.wrappers.nvtx import NvtxWrapper, records
from tests.support.wrapped import Net, slice_of, training


@pytest.fixture
def observed(hooks, tmp_path):
    """One slice of steps, told of as the engine does; the last one is ended."""

    def observed(*steps, left_out=()):
        wrapper = NvtxWrapper()
        context = SliceContext(3, "timed", len(steps), tmp_path, first_step=10)
        stamps = slice_of(hooks, wrapper, context, *steps)
        assert wrapper.listener() is None
        return wrapper.take(stamps, {}, left_out)

    return observed


def counted(taken):
    return {(row["kind"], row["name"]): row["calls"] for row in taken.frames["ranges"]}


def test_steps_in_ranges(observed, domain, monkeypatch):
    step = training(Net())
    told = ["forward", "  Net", "    Net.linear", "MSELoss", "backward", "optimizer SGD"]
    told, taken = [f"  {text}" for text in told], observed(step, step)
    assert domain.told == ["step 10", *told, "step 11", *told]
    assert (domain.open, domain.numbers, taken.status) == ([], [10, 11], "recorded")
    # Rows are sums over steps less the clock.
    monkeypatch.setattr(nvtx, "clock_s", lambda: 0.5)
    net, fc = (nvtx.Range("module", name, None) for name in ("Net", "fc"))
    step = nvtx.Range("step", "step", None)
    steps = [[(net, 2, 7.0), (step, 1, 2.0)], [(net, 1, 1.0), (fc, 1, 1.0), (step, 1, 1.25)]]
    expected = [("step", "step", 2, 0.25), ("module", "Net", 3, 5.0), ("module", "fc", 1, None)]
    assert [tuple(row.values()) for row in records(4, steps)] == [(4, *each) for each in expected]


def test_steps_that_are_left_out_are_in_no_row(observed):
    net = Net()
    step = training(net)
    taken = observed(step, lambda: net(torch.ones(2, 4)), step, left_out=(0,))
    calls = {("step", "step"): 2, ("forward", "forward"): 2, ("backward", "backward"): 1}
    calls |= {("module", name): n for name, n in (("MSELoss", 1), ("Net", 2), ("Net.linear", 2))}
    calls |= {("optimizer", "SGD"): 1}
    assert counted(taken) == calls
    assert {row["slice"] for row in taken.frames["ranges"]} == {3}


def test_without_a_listener_ranges_are_emitted_and_under_nsys_it_says_why(observed, monkeypatch):
    """The package as it is installed."""
    monkeypatch.delenv(nvtx.INJECTION, raising=False)
    monkeypatch.delenv("NSYS_PROFILING_SESSION_ID", raising=False)
    step = training(Net())
    taken = observed(step)
    assert (taken.status, taken.notes, counted(taken)["step", "step"]) == ("emitted", [], 1)
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    ((slug, text),) = observed(step).notes
    assert (slug, "--trace" in text) == ("no-listener", True)


@pytest.mark.parametrize("fails", ["", "start", "stop"])
def test_the_cuda_profiler_stands_round_the_slice(observed, domain, monkeypatch, fails):
    calls = []

    def call(name):
        calls.append(name)
        assert domain.open == []
        if name == fails:
            raise RuntimeError("not permitted")

    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    for name in ("profiler.start", "profiler.stop", "synchronize"):
        monkeypatch.setattr(f"torch.cuda.{name}", partial(call, name.rpartition(".")[2]))
    taken = observed(training(Net()))
    # What was launched in the slice runs after it. An error costs no range.
    assert calls == (["start"] if fails == "start" else ["start", "synchronize", "stop"])
    assert counted(taken)["step", "step"] == 1
    name = f"cudaProfiler{fails.capitalize()}"
    assert taken.notes == ([("cuda-profiler", f"{name}: not permitted")] if fails else [])
