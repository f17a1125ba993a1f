"""The watch's sampler: what it sees, what it costs while it pauses, and that nobody notices it."""

import _thread
import gc
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import profstack
from profstack.capture import user_regions
from profstack.readers import watch
from profstack.storage.vocabulary import WATCH_INTERVAL_S
from tests.support.tables import cases

OWN = os.path.dirname(profstack.__file__)
OWN_FILE, PASSING = (os.path.join(OWN, name) for name in ("engine/c.py", "capture/hooks.py"))


@pytest.fixture
def sampler():
    made = watch.Sampler(time.perf_counter())
    yield made
    made.close()


def busy(seconds, sampler=None, samples=1):
    begun, before = time.perf_counter(), sampler.taken if sampler is not None else 0
    while (spent := time.perf_counter() - begun) < seconds or (
        sampler is not None and sampler.taken < before + samples and spent < 20.0
    ):
        sum(range(100))


def sleeping(sampler):
    before, late = sampler.taken, time.perf_counter() + 20.0
    while sampler.taken < before + 2 and time.perf_counter() < late:
        time.sleep(0.05)


def watched(sampler, seconds=0.05, samples=1):
    sampler.resume()
    busy(seconds, sampler, samples)
    sampler.pause()
    return sampler.flush()


def weighed(rows):
    return [row for row in rows if row["weight"]]


def frame_in(file, call):
    """What `call` gives, called from a function whose source is said to be `file`."""
    space = {}
    exec(compile("def passing(call):\n    return call()", file, "exec"), space)
    return space["passing"](call)


def stack(frames, number, column="name"):
    """The functions, or files, of a frame's stack from the innermost."""
    by_number, found = {row["frame"]: row for row in frames}, []
    while number:
        found.append(by_number[number][column])
        number = by_number[number]["parent"]
    return found


def test_samples_name_function_and_line_and_a_frame_is_numbered_once_in_a_run(sampler):
    sampler.resume()
    # With the lock held and without.
    busy(0.15, sampler, 2)
    sleeping(sampler)
    frames, rows = sampler.flush()
    leaves = {stack(frames, row["frame"])[0] for row in weighed(rows)}
    assert {"busy", "sleeping"} <= leaves
    lines = {row["line"] for row in frames if row["name"] == "sleeping"}
    assert sleeping.__code__.co_firstlineno + 3 in lines
    here = {(row["file"], row["function_line"]) for row in frames if row["name"] == "busy"}
    assert here == {(__file__, busy.__code__.co_firstlineno)}
    more, later = watched(sampler, 0.1)
    frames, rows = frames + more, rows + later
    numbers = [row["frame"] for row in frames]
    assert numbers == list(range(1, len(numbers) + 1))
    assert {row["frame"] for row in rows} - {None} <= set(numbers)
    assert all(row["parent"] is None or row["parent"] < row["frame"] for row in frames)
    times = [row["t_s"] for row in rows]
    assert (times, sampler.flush()) == (sorted(times), ([], []))
    assert all(row["rss_bytes"] > 2**20 for row in rows)


def test_weights_are_the_watched_time_and_nothing_of_a_pause(sampler):
    rows = watched(sampler, 0.06)[1]
    time.sleep(0.3)
    rows += watched(sampler, 0.06)[1]
    # A sample that was due just as the watch paused has no weight either, and stands beside it.
    together = []
    for t_s in (row["t_s"] for row in rows if not row["weight"]):
        if together and t_s - together[-1][-1] < WATCH_INTERVAL_S:
            together[-1].append(t_s)
        else:
            together.append([t_s])
    (begin, *_), (*_, pause), (resume, *_), (*_, end) = together
    assert resume - pause >= 0.3
    times = [row["t_s"] for row in weighed(rows)]
    assert all(begin <= t_s <= pause or resume <= t_s <= end for t_s in times)
    covered = sum(row["weight"] for row in rows) * WATCH_INTERVAL_S
    # What is missing is less than a sample at the end, and one that the first pause came before.
    whole, missing = pause - begin + end - resume, end - times[-1]
    missing += max(0.0, pause - begin - WATCH_INTERVAL_S)
    assert max(whole - missing - 1e-9, times[-1] - resume) <= covered <= whole + 1e-9


def test_a_pause_that_looks_out_samples_overdue_steps_alone(sampler):
    began, overdue_s = [time.perf_counter()], 0.3

    def over():
        return max(0.0, time.perf_counter() - began[0] - overdue_s)

    sampler.look_out(lambda: began[0], overdue_s)
    busy(0.5 * overdue_s)
    # Unless the machine has been busy with something else all the time.
    assert not weighed(sampler.flush()[1]) or over()
    sleeping(sampler)
    most_s = over() + 0.1
    began[0] = time.perf_counter()
    busy(0.5 * overdue_s)
    rows = weighed(sampler.flush()[1])
    assert {row["overdue"] for row in rows} == {1}
    assert 0.0 < sum(row["weight"] for row in rows) * WATCH_INTERVAL_S <= most_s + over()
    assert {row["overdue"] for row in weighed(watched(sampler)[1])} == {None}
    sampler.look_out(lambda: 0.0, overdue_s)
    sampler.pause()
    sampler.flush()
    time.sleep(0.1)
    assert not sampler.flush()[1]


def test_it_follows_the_thread_that_resumed_it(sampler):
    """Training may run on a thread of its own while the main one waits for it."""

    def train():
        return watched(sampler, 0.1)

    with ThreadPoolExecutor(1) as pool:
        frames, rows = pool.submit(train).result()
    stacks = [stack(frames, row["frame"]) for row in weighed(rows)]
    assert {"train" in each for each in stacks} == {True}


def test_the_users_region_stands_beside_the_stack(sampler):
    user_regions.switch_on()
    try:
        sampler.resume()
        with user_regions.region("augment"), user_regions.region("crop"):
            busy(0.08, sampler)
        inside = sampler.taken
        regions = [row["region"] for row in weighed(watched(sampler, 0.08, 2)[1])]
    finally:
        user_regions.switch_off()
    assert (regions[0], regions[-1]) == ("augment/crop", None)
    assert regions.count("augment/crop") in (inside, inside + 1)


def test_profstacks_own_frames_and_import_machinery_are_cut_out():
    stacks, machinery = watch.Stacks(), "<frozen importlib._bootstrap>"
    place = lambda: stacks.place(sys._getframe(1))  # noqa: E731
    number = user_regions.region("load")(lambda: frame_in("/script/train.py", place))()
    files = stack(stacks.take(), number, "file")
    assert files[:3] == ["/script/train.py", __file__, __file__]
    assert not any(file.startswith(OWN) for file in files)
    # Its own work is no sample, also where it calls somebody else's code; but it is where the
    # script's own is inside again.
    assert frame_in(OWN_FILE, place) is None
    assert frame_in(OWN_FILE, lambda: frame_in("/lib/json.py", place)) is None
    assert frame_in(PASSING, lambda: frame_in("/script/train.py", place))
    # Import machinery is left out unless it works itself.
    outer_first = [(machinery, "/script/part.py"), ("/script/part.py", machinery)]
    for (outer, inner), is_there in zip(outer_first, (False, True), strict=True):
        stacks = watch.Stacks()
        number = frame_in(outer, lambda inner=inner: frame_in(inner, place))
        files = stack(stacks.take(), number, "file")
        assert (files[0], machinery in files) == (inner, is_there)
    # Names of modules are paths: one that moves must be named anew.
    assert len([*filter(os.path.isfile, watch._PASSED_THROUGH)]) == len(watch._PASSED_THROUGH) > 0


def test_an_instruction_without_a_line_is_on_the_line_before_it():
    def spins(rows):
        found = 0
        for row in rows:
            if row:
                found += 1
        return found

    code, first = spins.__code__, spins.__code__.co_firstlineno
    lines = {line for _, _, line in code.co_lines() if line}
    told = [watch._line_before(code, at) for at in range(0, len(code.co_code), 2)]
    assert set(told) - {None} == lines
    # Where each instruction has a line it is that one.
    known = {at: line for begin, end, line in code.co_lines() for at in range(begin, end, 2)}
    assert all(watch._line_before(code, at) == line for at, line in known.items() if line)
    assert told[-1] == first + 5


def test_what_is_held_is_bounded_and_told(monkeypatch):
    # Every second sample of a stretch gives its weight to the next.
    monkeypatch.setattr(watch, "MOST_HELD", 8)
    held, one = watch.Samples(), 2 * sys.getsizeof(0.5) + sys.getsizeof(1 << 40) + 56
    for number, weight in enumerate((1.0, 2.0, 3.0, 0.0, 0.0, 1.5, 2.5, 4.0)):
        # Two floats, an integer and seven places of 8 bytes.
        assert held.memory_bytes() == number * one
        held.add(float(number), None, 1, None, weight)
    found = [(row["t_s"], row["weight"]) for row in held.records()]
    assert found == [(1.0, 3.0), (2.0, 3.0), (3.0, 0.0), (4.0, 0.0), (6.0, 4.0), (7.0, 4.0)]

    def down(depth):
        return down(depth - 1) if depth else stacks.place(sys._getframe())

    # A deep recursion is cut at its outer end.
    stacks = watch.Stacks()
    number = down(watch.DEEPEST + 50)
    assert (stacks.cut, len(stack(stacks.take(), number))) == (True, watch.DEEPEST)
    # The tree has room for so many frames and says when it is full.
    stacks = watch.Stacks()
    down(0)
    room = len(stacks.take()) + 2
    monkeypatch.setattr(watch, "MOST_FRAMES", room)
    place = lambda: stacks.place(sys._getframe())  # noqa: E731
    numbers = [frame_in(f"/script/{n}.py", place) for n in range(50)]
    assert (len(stacks._numbers), stacks.cut, len(stacks.take())) == (room, True, 2)
    assert max(numbers) <= room


def test_a_long_run_is_sampled_half_as_often_at_each_level(sampler, monkeypatch):
    monkeypatch.setattr(watch, "PER_LOOK", 1 << 30)
    for level in (1, 2, watch.MOST_LEVELS, watch.MOST_LEVELS + 1):
        sampler.taken = level * watch.PER_LEVEL
        sampler._choose_interval(1.0)
    assert [interval_s for _, interval_s in sampler.thinned] == pytest.approx([0.02, 0.04, 0.16])


# The third look is the first to act, and 4 samples later the next.
@cases(
    "costs intervals",
    # Needed are 50 ms; less than half as much more changes nothing.
    ([0.0, 0.0, 240e-6, 290e-6], [0.05]),
    ([240e-6, 240e-6, 10e-6], []),
    ([0.0, 0.0, 9e-3, 10e-6], [0.16, 0.01]),
    ([0.0, 0.0, 51e-6, 51e-6], [0.02]),
    ([0.0, 0.0, *(9e-3, 0.0) * 6], [0.16, 0.01] * 4),
)
def test_samples_come_as_often_as_their_cost_allows(sampler, monkeypatch, costs, intervals):
    monkeypatch.setattr(watch, "PER_LOOK", 4)
    sampler._full = 12
    spent = np.cumsum([4 * each for each in costs]).tolist()
    monkeypatch.setattr(watch.time, "thread_time", lambda: spent.pop(0))
    sampler._handovers = 0
    for look in range(len(costs)):
        sampler.taken = 4 * (look + 1)
        sampler._choose_interval(look)
    assert [each for _, each in sampler.thinned] == pytest.approx(intervals)
    assert sampler.interval_s == pytest.approx([0.01, *intervals][-1])


def test_a_sample_that_waits_for_the_interpreter_costs_more(sampler, monkeypatch):
    monkeypatch.setattr(watch, "PER_LOOK", 1 << 30)
    sampler.resume()
    assert sampler._handovers == 0
    # Python code lets go of the lock when it is asked to, after the switch interval.
    busy(0.1, sampler, 10)
    sampler.pause()
    assert sampler._handovers >= 3
    monkeypatch.setattr(watch, "PER_LOOK", 10)
    sampler._full = 30
    monkeypatch.setattr(watch.time, "thread_time", lambda: sampler._cpu_s)
    sampler.taken, sampler._handovers = 40, 10
    sampler._choose_interval(1.0)
    assert sampler.interval_s == pytest.approx(watch.HANDOVER_S / watch.MOST_SHARE)


def test_a_sparing_watch_looks_at_its_cost_after_three_seconds(monkeypatch):
    monkeypatch.setattr(watch.time, "thread_time", lambda: 0.0)
    usual, sparing = watch.Sampler(0.0), watch.Sampler(0.0, sparing=True)
    for sampler, taken in ((usual, 2900), (usual, 3000), (sparing, 200), (sparing, 300)):
        sampler.taken, sampler._handovers = taken, 100
        sampler._choose_interval(1.0)
    assert (len(usual.thinned), len(sparing.thinned)) == (1, 1)
    # 0.3 ms a sample for each hand-over of the interpreter's lock.
    assert [each[-1][1] for each in (usual.thinned, sparing.thinned)] == pytest.approx([0.06, 0.12])


def switches(sampler):
    status = Path(f"/proc/self/task/{sampler._native}/status").read_text()
    return sum(int(line.split()[1]) for line in status.splitlines() if "ctxt_switches" in line)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells it")
def test_while_it_pauses_its_thread_never_runs_and_it_is_none_of_the_scripts(sampler):
    facts = lambda: (threading.enumerate(), sys.getswitchinterval(), gc.isenabled())  # noqa: E731
    told = facts()
    sampler.resume()
    busy(0.05, sampler)
    running = switches(sampler)
    sampler.pause()
    time.sleep(0.02)
    before = switches(sampler)
    assert before > running - 1
    time.sleep(0.15)
    assert switches(sampler) == before
    sampler.resume()
    busy(0.05, sampler)
    assert (switches(sampler) > before, facts() == told) == (True, True)


def test_what_a_function_held_dies_when_it_returns_and_on_the_scripts_thread(sampler):
    """A sampler that keeps a frame keeps all that its function had.

    Garbage is collected where something is allocated: that must not be the sampler's thread.
    """
    sampler.interval_s, died, late = 0.0002, [], 0

    class Held:
        def __del__(self):
            died.append(_thread.get_ident())

    def hold():
        held = Held()
        # Without the lock, so that the sampler comes now.
        time.sleep(0)
        del held

    sampler.resume()
    for number in range(3000):
        hold()
        late += len(died) != number + 1
    assert (sampler.taken > 10, late) == (True, 0)
    begun, taken = time.perf_counter(), sampler.taken
    while sampler.taken < taken + 101 and time.perf_counter() < begun + 20:
        circle = Held()
        circle.itself = circle
        # Time without the lock, for the sampler to come when the counter stands anywhere.
        os.getpid()
        time.sleep(0)
    sampler.pause()
    gc.collect()
    assert (sampler.taken > taken + 100, set(died)) == (True, {_thread.get_ident()})
