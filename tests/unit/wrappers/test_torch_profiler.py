"""The torch layer: its profile in each mode, its bounds, and other users of the profiler."""

import sys
from itertools import product
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch

from profstack.capture.hooks import RANGES
from profstack.layer import SliceContext
from profstack.readers.torchtrace import bounds, line_tracer
from profstack.wrappers import torch_profiler
from tests.support.commands import fails
from tests.support.wrapped import Net, slice_of, training

pytestmark = pytest.mark.usefixtures("nobody_watches")
MODES = [mode.name for mode in torch_profiler.TorchProfilerWrapper.modes]


@pytest.fixture
def wrapper(monkeypatch, nobody_watches):
    monkeypatch.setattr(line_tracer, "script_folder", lambda: str(Path(__file__).parent))
    made = torch_profiler.TorchProfilerWrapper()
    yield made
    made.close()


@pytest.fixture
def observe(wrapper, hooks, tmp_path):
    """Slices of training steps, as the engine makes them."""

    def observe(mode, steps=2, left_out=(), index=0):
        trained = training(Net())

        def step():
            trained()  # a line of this file: that is whose lines are recorded

        step()
        hooks.set_mode(RANGES)
        context = SliceContext(index, mode, steps, tmp_path)
        stamps = slice_of(hooks, wrapper, context, *[step] * steps)
        return wrapper.take(stamps, hooks.names.by_number(), left_out)

    return observe


def test_rows_are_of_the_steps_that_count(observe, hooks):
    taken = observe("timed", steps=5, left_out=(1, 3), index=6)
    paths = {number: each.path for number, each in hooks.names.by_number().items()}
    rows = taken.frames["module_times"]
    called = {paths[row["module_id"]]: row["calls"] for row in rows if row["module_id"] in paths}
    assert called == {"Net": 3, "Net.linear": 3, "MSELoss": 3}
    calls = {row["name"]: row["calls"] for row in taken.frames["operators"]}
    assert (calls["aten::addmm"], calls["aten::relu"]) == (3, 3)
    assert {row["slice"] for row in taken.frames["operators"]} == {6}
    # Shapes are recorded, and what follows from them; no memory in this mode.
    assert (bool(taken.frames["moved_bytes"]), bool(taken.frames["flop_counts"])) == (True, True)
    # Detail has memory and its owners, lines have tables of their own, and others stay as they are.
    added = {"memory_owners", "module_peaks", "peak_holders", "allocations"}
    detail = observe("detail")
    assert set(detail.frames) == set(taken.frames) | added
    assert detail.frames["memory_owners"]
    lines = observe("lines")
    assert any(row["file"] == __file__ for row in lines.frames["lines"])
    assert ("operators" in lines.frames, lines.artifacts) == (False, [])
    assert set(observe("timed").frames) == set(taken.frames)


def test_the_longest_trace_is_kept_and_slices_bounded(wrapper, observe, tmp_path):
    assert wrapper.step_limit() is None
    slices = [observe("timed", steps=steps) for steps in (2, 2)]
    # One step of this tiny training makes some dozens of events.
    assert bounds.MOST_EVENTS / 300 < wrapper.step_limit() < bounds.MOST_EVENTS / 30
    sizes = [[each.path.stat().st_size for each in taken.artifacts] for taken in slices]
    for steps in (1, 3):
        artifacts = observe("timed", steps=steps).artifacts
        sizes.append([each.path.stat().st_size for each in artifacts])
    assert [len(each) for each in sizes] == [1, 0, 0, 1]
    assert sizes[3] > sizes[0] > [1000]
    assert [each.name for each in tmp_path.iterdir()] == ["trace.json"]


def test_the_events_of_a_step_are_learnt_from_one_as_from_several(wrapper, observe):
    observe("timed", steps=1)
    one = wrapper.step_limit()
    observe("timed", steps=3)
    assert wrapper.step_limit() == pytest.approx(one, rel=0.3)


@pytest.mark.parametrize("case", list(product([False, True], [True, False], MODES)), ids=str)
def test_what_each_mode_asks_of_the_profiler(wrapper, tmp_path, monkeypatch, case):
    (on_device, on_main, mode), profile = case, MagicMock()
    monkeypatch.setattr("torch.autograd.profiler.profile", profile)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: on_device)
    # To ask for it initialises the driver, and what the script forks later could not use it.
    monkeypatch.setattr("torch.cuda.is_available", fails(AssertionError("asked")))
    monkeypatch.setattr(torch_profiler, "_on_main_thread", lambda: on_main)
    wrapper._bound = MagicMock()
    wrapper.start(SliceContext(0, mode, 1, tmp_path))
    wrapper.stop()
    [(_, options)] = profile.call_args_list
    assert (options["experimental_config"] is None) is on_main
    wanted = {"use_device": "cuda" if on_device else None, "use_kineto": True}
    wanted |= {"record_shapes": mode in ("detail", "timed", "shared")}
    wanted |= {"profile_memory": mode == "detail", "with_stack": mode == "stacks"}
    assert options.items() >= wanted.items()


@pytest.mark.parametrize("mode", ["timed", "detail", "lines"])
def test_it_gives_way_for_the_whole_slice(wrapper, observe, mode, tmp_path):
    told = []
    wrapper.on_give_way = lambda: told.append("gave way")
    wrapper.start(SliceContext(0, mode, 3, tmp_path))
    # Of two profiles in one slice: what was seen before the first is no slice.
    for _ in range(2):
        torch.ones(3).sum()
        with torch.profiler.profile() as own:
            torch.ones(3).sum()
            assert "torch.profiler itself" in str(wrapper.busy_reason("timed"))
    wrapper.stop()
    taken = wrapper.take([0.0, 1.0], {})
    assert (told, any(taken.frames.values())) == (["gave way"] * 2, False)
    assert [slug for slug, _ in taken.notes] == ["gave-way"]
    assert {row.key: row.count for row in own.key_averages()}["aten::ones"] == 1
    assert (wrapper.busy_reason(mode), sys.gettrace()) == (None, None)
    # The next slice is whole.
    assert any(observe(mode).frames.values())
