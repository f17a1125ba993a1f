"""Ranges that a script marks for NVTX: kept among its regions, and nothing else changed."""

from __future__ import annotations

import sys
import threading
import traceback
import types
from collections.abc import Iterator
from typing import Any

import nvtx
import pytest
import torch

from profstack.capture import script_ranges, user_regions


@pytest.fixture
def observed() -> Iterator[None]:
    """Regions are observed, in a slice that has just begun."""
    user_regions.switch_on()
    script_ranges.install()
    user_regions.begin_slice(user_regions.perf_counter())
    yield
    user_regions.switch_off()
    script_ranges.remove()


def taken() -> dict[tuple[str, str], int]:
    """How often each range was entered, by source and name; every one took some time."""
    rows = user_regions.take(user_regions.perf_counter() + 1.0)
    assert all(row["wall_s"] > 0 for row in rows)
    return {(row["source"], row["path"]): row["calls"] for row in rows}


class CudaNvtx(types.ModuleType):
    """Stands for the C functions of a CUDA build, which this machine's torch has not."""

    def __init__(self) -> None:
        super().__init__("torch._C._nvtx")
        self.called: list[Any] = []
        self.rangePushA = lambda message: self.called.append(("push", message)) or 0
        self.rangePop = lambda: self.called.append("pop") or 0
        self.rangeStartA = lambda message: self.called.append(("start", message)) or 17
        self.rangeEnd = lambda handle: self.called.append(("end", handle))
        self.markA = lambda message: self.called.append(("mark", message))


def test_ranges_of_torch_are_regions_and_reach_the_device_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    behind = CudaNvtx()
    monkeypatch.setattr(torch.cuda.nvtx, "_nvtx", behind)
    functions = dict(vars(torch.cuda.nvtx))
    user_regions.switch_on()
    script_ranges.install()
    script_ranges.install()
    user_regions.begin_slice(user_regions.perf_counter())
    torch.cuda.nvtx.range_push("outer")
    with torch.cuda.nvtx.range("inner {}", 3):
        torch.cuda.nvtx.mark("a moment")
    handle = torch.cuda.nvtx.range_start("process")
    torch.cuda.nvtx.range_pop()
    torch.cuda.nvtx.range_end(handle)
    # One more than were pushed, as a script may do.
    torch.cuda.nvtx.range_pop()
    source = "torch.cuda.nvtx"
    assert taken() == {(source, "outer"): 1, (source, "inner 3"): 1, (source, "process"): 1}
    # What scripts call is what it was, and so is what dynamo knows.
    changed = {
        name for name, value in vars(torch.cuda.nvtx).items() if functions[name] is not value
    }
    assert changed == {"_nvtx"}
    user_regions.switch_off()
    script_ranges.remove()
    assert dict(vars(torch.cuda.nvtx)) == functions
    assert behind.called == [
        *(("push", "outer"), ("push", "inner 3"), ("mark", "a moment"), "pop"),
        *(("start", "process"), "pop", ("end", 17), "pop"),
    ]


@pytest.mark.skipif(hasattr(torch._C, "_nvtx"), reason="this torch is a CUDA build")
def test_a_build_without_cuda_goes_on_raising_the_same(observed: None) -> None:
    with pytest.raises(RuntimeError, match="Are you sure you have a CUDA build") as caught:
        torch.cuda.nvtx.range_push("outer")
    files = {frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)}
    assert files == {__file__, torch.cuda.nvtx.__file__}
    assert taken() == {}


def test_ranges_of_the_package_are_regions(observed: None) -> None:
    def elsewhere() -> None:
        with nvtx.annotate("thread"):
            pass

    for _ in range(3):
        nvtx.push_range("step", domain="mine")
        with nvtx.annotate("forward"), nvtx.annotate("forward", color="red", domain="mine"):
            pass
        nvtx.pop_range("mine")
    nvtx.pop_range()
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    with nvtx.annotate("ours", domain="profstack"):
        pass
    assert taken() == {("nvtx", "step"): 3, ("nvtx", "forward"): 6, ("nvtx", "thread"): 1}


def test_an_error_inside_passes_and_ends_the_range(observed: None) -> None:
    error = ValueError("the script's own")
    with pytest.raises(ValueError, match="own") as caught, nvtx.annotate("fails"):
        raise error
    assert caught.value is error
    with pytest.raises(TypeError) as wrong:
        nvtx.push_range(nothing="of the kind")
    files = {frame.filename for frame in traceback.extract_tb(wrong.value.__traceback__)}
    assert files == {__file__}
    assert taken() == {("nvtx", "fails"): 1}
    assert not user_regions._open


def test_what_it_stands_on_is_as_it_was_found_afterwards() -> None:
    names = ("push_range", "pop_range", "start_range", "end_range")
    before = [vars(nvtx)[name] for name in names], nvtx.annotate.__enter__, nvtx.annotate.__exit__
    user_regions.switch_on()
    script_ranges.install()
    assert nvtx.push_range is not before[0][0]
    assert nvtx.push_range.__name__ == "push_range"
    user_regions.switch_off()
    script_ranges.remove()
    after = [vars(nvtx)[name] for name in names], nvtx.annotate.__enter__, nvtx.annotate.__exit__
    assert after == before


def test_a_range_in_itself_counts_its_time_once(
    observed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter(range(100, 200, 10))
    monkeypatch.setattr(user_regions, "perf_counter", lambda: float(next(times)))
    user_regions.begin_slice(90.0)
    with nvtx.annotate("again"), nvtx.annotate("again"):
        pass
    [row] = user_regions.take(1000.0)
    assert (row["calls"], row["wall_s"]) == (2, 30.0)


def test_without_the_package_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "nvtx")
    script_ranges.install()
    assert "nvtx" not in sys.modules
    script_ranges.remove()
