"""Ranges that a script marks for NVTX: kept among its regions, and nothing else changed."""

import contextlib
import traceback
import types
from functools import partial

import nvtx
import pytest
import torch

from profstack.capture import script_ranges, user_regions
from tests.support.engine import elsewhere

# What `from nvtx import push_range` binds before anything is observed.
BOUND = vars(nvtx).copy()


def everything():
    names = ("push_range", "pop_range", "start_range", "end_range")
    own = [vars(nvtx)[name] for name in names]
    own += [(each.__code__, each.__kwdefaults__, vars(each).copy()) for each in own]
    return own, nvtx.annotate.__enter__, nvtx.annotate.__exit__, dict(vars(torch.cuda.nvtx))


@pytest.fixture
def called(monkeypatch):
    """Calls of what stands for the C functions of a CUDA build, which this torch has not."""
    made, called = types.ModuleType("torch._C._nvtx"), []
    results = {"rangePushA": 4, "rangePop": 6, "rangeStartA": 17, "rangeEnd": None, "markA": None}

    def call(name, *given):
        called.append((name, *given))
        return results[name]

    for name in results:
        setattr(made, name, partial(call, name))
    monkeypatch.setattr(torch.cuda.nvtx, "_nvtx", made)
    return called


@pytest.fixture
def observed(called, clock):
    before = everything()
    for _ in range(2):
        script_ranges.install()
    yield clock
    user_regions.switch_off()
    script_ranges.remove()
    assert everything() == before


def taken(observed):
    rows = observed.taken("source", "path")
    return {f"{source} {path}": row for (source, path), row in rows.items()}


def test_ranges_of_torch_are_regions_and_reach_the_device_as_before(called, observed):
    functions = {name: value for name, value in vars(torch.cuda.nvtx).items() if name != "_nvtx"}
    assert torch.cuda.nvtx.range_push("outer") == 4
    observed.wait(1.0)
    with torch.cuda.nvtx.range("inner {}", 3):
        torch.cuda.nvtx.mark("a moment")
        observed.wait(0.5)
    handle = torch.cuda.nvtx.range_start("process")
    assert (handle, torch.cuda.nvtx.range_pop()) == (17, 6)
    observed.wait(2.0)
    torch.cuda.nvtx.range_end(handle)
    # One more than were pushed, as a script may do.
    torch.cuda.nvtx.range_pop()
    rows = {"outer": (1, 1.5), "inner 3": (1, 0.5), "process": (1, 2.0)}
    assert taken(observed) == {f"torch.cuda.nvtx {name}": row for name, row in rows.items()}
    # What scripts call is what it was, and so is what dynamo knows.
    assert functions == {name: vars(torch.cuda.nvtx)[name] for name in functions}
    assert called == [
        *(("rangePushA", "outer"), ("rangePushA", "inner 3"), ("markA", "a moment")),
        *(("rangePop",), ("rangeStartA", "process"), ("rangePop",)),
        *(("rangeEnd", 17), ("rangePop",)),
    ]


def test_ranges_of_the_package_are_regions(observed, monkeypatch):
    for _ in range(3):
        nvtx.push_range("step", domain="mine")
        observed.wait(0.5)
        with nvtx.annotate("forward"), nvtx.annotate("forward", color="red", domain="mine"):
            observed.wait(0.25)
        nvtx.pop_range("mine")
        observed.wait(9.0)
    nvtx.pop_range()
    with nvtx.annotate("again"), nvtx.annotate("again"):
        observed.wait(1.0)
    elsewhere(contextlib.ExitStack().enter_context, nvtx.annotate("thread"))
    with nvtx.annotate("ours", domain="profstack"):
        pass
    assert nvtx.push_range.__name__ == "push_range"
    with monkeypatch.context() as patch:
        patch.setattr(user_regions, "is_compiling", lambda: True)
        nvtx.push_range("unseen")
        nvtx.pop_range()
    assert BOUND["push_range"]("by its name", domain="own") is None
    observed.wait(1.0)
    BOUND["pop_range"]("own")
    error = ValueError("the script's own")
    with pytest.raises(ValueError, match="own") as caught, nvtx.annotate("fails"):
        raise error
    assert caught.value is error
    with pytest.raises(TypeError) as wrong:
        nvtx.push_range(nothing="of the kind")
    files = {frame.filename for frame in traceback.extract_tb(wrong.value.__traceback__)}
    assert files == {__file__}
    observed.wait(1.0)
    # Its time counts once inside itself, and in each domain.
    rows = {"step": (3, 2.25), "forward": (6, 1.5), "again": (2, 1.0)}
    rows |= {"thread": (1, 2.0), "fails": (1, 0.0), "by its name": (1, 1.0)}
    assert taken(observed) == {f"nvtx {name}": row for name, row in rows.items()}


def test_started_ranges_without_a_handle_are_timed_one_at_a_time(observed):
    start = BOUND["start_range"]
    nvtx.end_range(start("one"))
    assert script_ranges.missing() is None
    for _ in range(2):
        assert start("overlaps") is None
        observed.wait(1.0)
    for _ in range(3):
        nvtx.end_range(None)
    start("two")
    observed.wait(1.0)
    nvtx.end_range(None)
    assert taken(observed) == {"nvtx one": (1, 0.0), "nvtx two": (1, 1.0)}
    assert "nvtx.push_range" in script_ranges.missing()


def test_after_a_compilation_nothing_is_put_on(monkeypatch):
    before = everything()
    with monkeypatch.context() as patch:
        patch.setattr(script_ranges, "has_compiled", lambda: True)
        script_ranges.install()
        assert everything() == before
    script_ranges.remove()
    assert everything() == before
