"""The contract of design section 6, over every wrapper there is and every mode it has."""

import cProfile
import inspect
import os
import re
import sys
import threading
import time
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from profstack import layer
from profstack.capture.hooks import DISCOVER, RANGES
from profstack.readers.torchtrace import line_tracer
from profstack.storage.schema.recorded import RECORDED as RECORDED_TABLES
from tests.support.wrapped import Net, slice_of, training

KINDS = {name: layer.load(name) for name in (*layer.BUILT_IN, *layer.ON_REQUEST)}
CASES = [(name, mode.name) for name, kind in KINDS.items() for mode in kind.modes]
RECORDED = RECORDED_TABLES | {one.name: one.table for kind in KINDS.values() for one in kind.tables}
# With the tool beside profstack's own tracer, which is armed either way.
CONTEXT = partial(layer.SliceContext, memory_by=layer.MEMORY_PROFILER)


@pytest.fixture(autouse=True)
def _script_here(monkeypatch, nobody_watches):
    monkeypatch.setattr(line_tracer, "script_folder", lambda: str(Path(__file__).parent))
    # The first step of a process imports half of torch, which changes filters and environment.
    training(Net())()
    torch.manual_seed(0)


def armed():
    """Whatever a wrapper may switch on or replace in this process."""
    caller, torch_profiler = sys._getframe().f_back, torch.autograd.profiler
    names = {name: each for name, each in vars(torch_profiler).items() if inspect.isroutine(each)}
    tool = getattr(getattr(sys, "monitoring", None), "get_tool", None)
    found = {"profile": sys.getprofile(), "trace": sys.gettrace(), "thread": threading.getprofile()}
    found |= {"torch profiler": torch._C._autograd._profiler_enabled(), "profiler names": names}
    found |= {"dispatch modes": torch._C._len_torch_dispatch_stack(), "environ": dict(os.environ)}
    found |= {"monitoring": [tool(number) for number in range(6)] if tool else []}
    found |= {"cProfile": dict(vars(cProfile.Profile)), "filters": list(warnings.filters)}
    found |= {"passes": (torch.autograd.backward, torch.autograd.grad), "relu": functional.relu}
    found |= {"others": (nn.Module.__call__, torch.get_default_dtype(), torch.is_grad_enabled())}
    found |= {"threads": {thread.name for thread in threading.enumerate()}}
    return found | {"frame": (caller.f_trace, caller.f_trace_lines)}


def observe(wrapper, mode, folder, hooks, index=0):
    step = training(Net())
    step()
    step()
    # Those that stand in a slice of that mode, as far as they matter here.
    hooks.set_mode(DISCOVER if wrapper.mode(mode).calls == layer.LISTENED else RANGES)
    assert wrapper.busy_reason(mode) is None
    stamps = slice_of(hooks, wrapper, CONTEXT(index, mode, 2, folder), step, step)
    return wrapper.take(stamps, hooks.names.by_number())


def check(taken, folder, index):
    """What was handed over fits the tables, has sane figures, and its files are there."""
    for table, records in taken.frames.items():
        for row in RECORDED[table].rows(records):
            values = dict(zip(RECORDED[table].names, row, strict=True))
            # A fact is of the run, whatever slice it was seen in.
            assert table == "facts" or values["slice"] == index
            for column, value in values.items():
                where = (table, column, values)
                assert type(value) in (int, float, str, type(None)) or float(value) == value, where
                assert value is None or not column.endswith(("_s", "calls")) or value >= 0, where
    for artifact in taken.artifacts:
        assert artifact.path.is_relative_to(folder)
        assert artifact.path.stat().st_size > 0
        assert artifact.opens_in
    assert all(re.fullmatch(r"[a-z-]+", slug) and text for slug, text in taken.notes)


def results():
    """What a net computes, and the random numbers that come after."""
    torch.manual_seed(3)
    net, found = Net(), []
    found.append(net(torch.rand(2, 4)))
    found[0].sum().backward()
    found.append(net.linear.weight.grad.clone())
    step = training(net)
    for _ in range(5):
        step()
    return [each.tolist() for each in (*found, net.linear.weight, torch.random.get_rng_state())]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_slices_of_all_sorts_leave_nothing(name, mode, tmp_path, hooks):
    before, wrapper, plain = armed(), KINDS[name](), results()
    threads = set(sys._current_frames())
    # A slice that never began or has no steps is no error.
    wrapper.stop()
    wrapper.start(CONTEXT(0, mode, 1, tmp_path))
    now = time.perf_counter()
    wrapper.stop()
    wrapper.stop()
    taken = wrapper.take([now, now + 1e-6], {})
    check(taken, tmp_path, 0)
    assert any(taken.frames.values()) or taken.notes
    assert not any(wrapper.take([now, now + 1e-6], {}).frames.values())
    wrapper.close()
    assert armed() == before
    # An error of the workload is its own, and it goes on working: the counts are the same.
    wrapper, net, error, found = KINDS[name](), Net(), KeyError("the script's own"), []
    net.register_forward_pre_hook(lambda *_: {}[error])
    wrapper.start(CONTEXT(0, mode, 3, tmp_path))
    now = time.perf_counter()
    with pytest.raises(KeyError) as caught:
        net(torch.ones(2, 4))
    wrapper.stop()
    assert caught.value.args == (error,)
    check(wrapper.take([now, time.perf_counter()], hooks.names.by_number()), tmp_path, 0)
    for index in range(3):
        taken = observe(wrapper, mode, tmp_path, hooks, index)
        assert any(taken.frames.values())
        check(taken, tmp_path, index)
        # A fact is said once, caches are allocated once, and garbage is collected in one at most.
        rows = {k: v for k, v in taken.frames.items() if k != "facts" and k[:7] != "memray_"}
        found.append({k: sorted(row.get("calls") or 0 for row in v) for k, v in rows.items()})
        if found[-1] in found[:-1]:
            break
    assert found[-1] in found[:-1]
    wrapper.finish(tmp_path)
    wrapper.close()
    wrapper.close()
    hooks.set_mode(DISCOVER)
    assert armed() == before
    # One that is abandoned leaves results and random numbers untouched, and no file.
    wrapper, folder = KINDS[name](), tmp_path / "abandoned"
    folder.mkdir()
    wrapper.start(CONTEXT(0, mode, 1, folder))
    try:
        assert results() == plain
    finally:
        wrapper.abandon()
        wrapper.close()
    assert (armed(), list(folder.iterdir())) == (before, [])
    # All that run Python, also those that `threading` does not know.
    assert set(sys._current_frames()) <= threads


@pytest.mark.parametrize("name", KINDS)
def test_a_wrapper_says_what_it_is_and_occupies_what_it_uses(name, tmp_path, domain):
    kind, relu, changed = KINDS[name], functional.relu, set()
    # What observes in the background has no slices, and may be in nobody's way.
    assert (bool(kind.occupies), bool(kind.modes)) == (not kind.background,) * 2
    assert (kind.name, kind.unavailable_reason(), bool(kind.version())) == (name, None, True)
    wrapper = kind()
    assert (wrapper.step_limit() or 1) > 0
    for mode in wrapper.modes:
        wrapper.start(CONTEXT(0, mode.name, 1, tmp_path))
        told = wrapper.listener()
        if told is not None:
            told.enter("module", "Net", Net())
        during = armed()
        uses = {"nvtx domain": domain.open, "sys.settrace": during["trace"]}
        uses |= {"sys.setprofile": during["profile"] or any(during["monitoring"])}
        uses |= {"kineto": during["torch profiler"], "dispatch mode": during["dispatch modes"]}
        uses |= {"patched functionals": during["relu"] is not relu}
        changed |= {slot for slot, used in uses.items() if used}
        if told is not None:
            told.leave("module", "Net")
        wrapper.stop()
        assert domain.open == []
        wrapper.take([0.0, 1.0], {})
    wrapper.close()
    # memray's profile function is one of C, which `sys.getprofile` does not show.
    changed |= {"sys.setprofile"} if name == "memray" else set()
    assert changed <= wrapper.occupies <= changed | {"cupti"}
