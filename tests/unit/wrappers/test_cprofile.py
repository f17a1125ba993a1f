"""The cProfile layer against cProfile itself: same counts, same sums, and nobody is harmed."""

import cProfile
import gc
import json
import pstats
import random
import sys
import threading
from _lsprof import Profiler
from collections import defaultdict

import numpy as np
import pytest
import torch
from torch import nn

from profstack.capture.hooks import DISCOVER, RANGES, ROOT
from profstack.layer import SliceContext, calls_per_step
from profstack.readers import cprofile as reader
from profstack.wrappers.cprofile import CProfileWrapper

pytestmark = pytest.mark.usefixtures("nobody_watches")
# The workload, and a function at line 1 of two files: of these only the files' names differ.
HERE, TWICE = "/a/script.py", ("/a/twice.py", "/b/twice.py")
SCRIPT = """
import contextlib
def leaf(number):
    return abs(number)
def fibonacci(number):
    return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)
def numbers(count):
    yield from range(count)
def fails():
    for _ in range(3):
        with contextlib.suppress(IndexError):
            [].pop()
def work():
    list(numbers(3)), list(numbers(4))
    for same in (first, second, second):
        same(3)
    fails()
    fibonacci(10)
    sorted([3, 1, 2], key=leaf)
"""
OWN = {}
for file, name in zip(TWICE, ("first", "second"), strict=True):
    exec(compile("def same(number):\n    return abs(number)\n", file, "exec"), OWN)
    OWN[name] = OWN.pop("same")
exec(compile(SCRIPT, HERE, "exec"), OWN)
leaf, fibonacci, work = OWN["leaf"], OWN["fibonacci"], OWN["work"]


def captured(folder, work, wrapper=None, index=0):
    wrapper = wrapper or CProfileWrapper()
    # Of every collection hypothesis is told, in a call of its own.
    gc.disable()
    wrapper.start(SliceContext(index, "timed", 1, folder / "cprofile"))
    try:
        work()
    finally:
        wrapper.stop()
        gc.enable()
    return wrapper.take([0.0, 1.0, 2.0], {})


def counts(taken):
    names = ("file", "name", "primitive_calls", "calls")
    rows = [[row[name] for name in names] for row in taken.frames["functions"]]
    return {(file, name): tuple(calls) for file, name, *calls in rows}


def edges(taken):
    return {(row["caller_name"], row["callee_name"]): row["calls"] for row in taken.frames["calls"]}


def stats_of(profile):
    """Figures of pstats, without the profiler's own."""
    stats = pstats.Stats(profile).stats
    return {function: row for function, row in stats.items() if "_lsprof" not in function[2]}


def calls_of(profile, name):
    return {function[2]: row[1] for function, row in stats_of(profile).items()}[name]


def test_counts_and_callers_are_those_of_plain_cprofile(tmp_path):
    plain = cProfile.Profile()
    plain.enable()
    work()
    plain.disable()
    wanted, taken = stats_of(plain), captured(tmp_path, work)
    found, by_edge = counts(taken), edges(taken)
    assert found == {(file, name): row[:2] for (file, _, name), row in wanted.items()}
    # A generator is entered for each value and once more to end; of calls inside themselves the
    # outermost alone is none.
    known = {(HERE, "fibonacci"): (1, 177), (HERE, "numbers"): (9, 9)}
    known |= {("/b/twice.py", "same"): (2, 2)}
    known |= {("~", "<method 'pop' of 'list' objects>"): (3, 3)}
    assert found.items() >= known.items()
    known = {("fibonacci", "fibonacci"): 176, ("<built-in method builtins.sorted>", "leaf"): 3}
    assert by_edge.items() >= known.items()
    assert taken.holds_all
    # What was counted in these two steps, with the end of it, bounds later traces of stacks.
    every = sum(row[1] for row in wanted.values())
    assert every < 2 * (calls_per_step(tmp_path) or 0) < every + 7


def test_the_file_holds_the_sums_of_all_slices_and_a_slice_its_own(tmp_path, monkeypatch):
    wrapper, sums, answers = CProfileWrapper(), defaultdict(int), [None, reader.measure()]
    monkeypatch.setattr(reader, "measure", lambda: answers.pop(0))
    before, runs = random.getstate(), {3: work, 8: lambda: leaf(1), 9: lambda: leaf(1)}
    slices = {index: captured(tmp_path, run, wrapper, index) for index, run in runs.items()}
    assert [counts(taken)[HERE, "leaf"] for taken in slices.values()] == [(3, 3), (1, 1), (1, 1)]
    assert (HERE, "fibonacci") not in counts(slices[8])
    columns = ("primitive_calls", "calls", "self_s", "total_s")
    for index, taken in slices.items():
        for row in taken.frames["functions"]:
            assert row["slice"] == index
            sums[row["file"], row["line"], row["name"]] += np.array([row[at] for at in columns])
    written = stats_of(str(slices[9].artifacts[0].path))
    figures = {function: pytest.approx(tuple(row), abs=1e-12) for function, row in sums.items()}
    assert {function: row[:4] for function, row in written.items()} == figures
    # The cost of a call is measured once and leaves nothing; where it cannot be, it is tried again.
    assert ["facts" in taken.frames for taken in slices.values()] == [False, True, False]
    (fact,) = slices[8].frames["facts"]
    cost = json.loads(fact["value"])
    assert (fact["key"], random.getstate()) == ("cprofile_cost", before)
    for kind in ("python", "builtin"):
        assert 0 < cost[kind]["inner_s"] < 1e-4
        assert 0 <= cost[kind]["outer_s"] < 1e-4


def test_gives_way_to_the_scripts_own_profiler_and_leaves_it_whole(tmp_path):
    wrapper, own = CProfileWrapper(), cProfile.Profile()
    wrapper.start(SliceContext(0, "timed", 3, tmp_path / "cprofile"))
    leaf(1)
    own.enable()
    list(map(leaf, range(5)))
    wrapper.stop()
    wrapper.stop()
    taken = wrapper.take([0.0, 1.0], {})
    del wrapper
    gc.collect()
    list(map(leaf, range(5)))
    own.disable()
    assert (calls_of(own, "leaf"), any(taken.frames.values())) == (10, False)
    assert [slug for slug, _ in taken.notes] == ["gave-way"]
    assert not (tmp_path / "cprofile").exists()


def test_other_profilers_are_a_reason_but_for_one_from_the_start(tmp_path):
    wrapper, profiler = CProfileWrapper(), Profiler()
    assert wrapper.busy_reason("timed") is None
    sys.setprofile(lambda *_: None)
    assert "sys.setprofile itself (function)" in str(wrapper.busy_reason("timed"))
    sys.setprofile(None)
    # It is taken over once.
    profiler.enable()
    leaf(1)
    wrapper.hand_over(profiler)
    assert wrapper.busy_reason("whole") is None
    slices = [captured(tmp_path, lambda: leaf(2), wrapper) for _ in range(2)]
    assert [counts(taken)[HERE, "leaf"] for taken in slices] == [(2, 2), (1, 1)]
    # The start-up alone is in rows without a slice.
    profiler = Profiler()
    profiler.enable()
    work()
    taken, file = CProfileWrapper().take_startup(profiler, tmp_path), tmp_path / "startup.prof"
    assert {row["slice"] for name in ("functions", "calls") for row in taken.frames[name]} == {None}
    assert (counts(taken)[HERE, "fibonacci"], calls_of(str(file), "fibonacci")) == ((1, 177), 177)
    assert [artifact.path for artifact in taken.artifacts] == [file]


@pytest.mark.parametrize("mode", [DISCOVER, RANGES, ROOT])
def test_profstacks_own_functions_and_other_threads_never_appear(mode, tmp_path, hooks):
    net = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    optimizer, x = torch.optim.SGD(net.parameters(), lr=0.1), torch.ones(2, 4, requires_grad=True)

    def step():
        optimizer.zero_grad()
        net(x).sum().backward()
        torch.autograd.grad(net(x).sum(), x)
        optimizer.step()

    hooks.set_mode(mode, net)
    step()
    taken = captured(tmp_path, step)
    hooks.remove()
    step()
    plain = captured(tmp_path, step)
    # The same functions with the same counts and callers as without profstack.
    assert (counts(taken), edges(taken)) == (counts(plain), edges(plain))
    for row in taken.frames["functions"]:
        assert not reader.is_own(row["file"])
        assert min(row["self_s"], row["total_s"]) >= 0
    # From Python 3.12 on sys.monitoring sees every thread.
    thread = threading.Thread(target=fibonacci, args=(5,))
    taken = captured(tmp_path, lambda: (thread.start(), thread.join()))
    assert ((HERE, "fibonacci") in counts(taken)) <= (sys.version_info >= (3, 12))
