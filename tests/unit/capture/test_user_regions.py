"""`profstack.region`: paths and exact times, on threads, in generators and in coroutines."""

import asyncio
import threading
import traceback

import pytest

from profstack.capture import user_regions
from profstack.capture.user_regions import MOST_PENDING, RegionTotals, region
from profstack.storage.vocabulary import MOST_REGIONS, OTHER_REGIONS


def here():
    return user_regions.current(threading.get_ident())


def test_a_region_has_the_names_around_it_and_its_exact_time(clock):
    @region("walk")
    def walk(depth):
        clock.wait(1.0)
        if depth:
            with region("deeper"):
                walk(depth - 1)

    for _ in range(3):
        with region("load"):
            clock.wait(1.0)
            with region("decode"):
                clock.wait(0.25)
            clock.wait(0.5)
        clock.wait(10.0)
    with region("decode"):
        clock.wait(2.0)
    walk(3)
    load = {"load": (3, 5.25), "load/decode": (3, 0.75), "decode": (1, 2.0)}
    assert clock.taken() == {**load, "walk": (4, 4.0), "walk/deeper": (3, 3.0)}


def test_what_is_open_at_the_edge_of_a_slice_is_cut_there(clock):
    with region("epoch"):
        clock.wait(1.0)
        assert clock.taken() == {"epoch": (1, 1.0)}
        with region("between"):
            clock.wait(100.0)
        assert clock.taken() == {}
        user_regions.begin_slice(clock.now)
        clock.wait(2.0)
        assert clock.taken() == {"epoch": (0, 2.0)}
        user_regions.begin_slice(clock.now)
        clock.wait(4.0)
    clock.wait(8.0)
    assert clock.taken() == {"epoch": (0, 4.0)}


def test_a_slice_of_very_many_spans_is_added_up_exactly():
    totals, most = RegionTotals(), 0
    totals.begin(0.0)
    for number in range(MOST_PENDING * 2 + 10):
        totals.add((("own", "short"), threading.get_ident(), number, number + 0.5, True))
        most = max(most, len(totals.over))
    assert most == MOST_PENDING == 4096
    calls = {"calls": MOST_PENDING * 2 + 10, "wall_s": MOST_PENDING + 5}
    named = {"path": "short", "source": "own", "threads": 1, "on_steps_thread": 1}
    assert totals.take(1e9, []) == [{**calls, **named}]


@pytest.mark.parametrize("more", [0, 5])
def test_names_without_end_share_one_row(clock, more):
    for number in range(MOST_REGIONS + more):
        with region(f"step {number}"):
            clock.wait(1.0)
    rows = clock.taken()
    assert len(rows) == MOST_REGIONS + (more > 0)
    assert rows.get(OTHER_REGIONS) == ((5, 5.0) if more else None)


def test_one_object_may_be_entered_inside_itself_and_left_in_any_order(clock):
    first, second = region("first"), region("second")
    first.__enter__()
    clock.wait(1.0)
    second.__enter__()
    clock.wait(1.0)
    first.__exit__(None, None, None)
    clock.wait(1.0)
    with region("inner"):
        clock.wait(1.0)
    second.__exit__(None, None, None)
    with first, first:
        clock.wait(1.0)
    with region("alone"):
        pass
    first.__exit__(None, None, None)
    rows = {"first": (3, 3.0), "first/second": (1, 3.0), "first/second/inner": (1, 1.0)}
    assert (clock.taken(), here()) == ({**rows, "alone": (1, 0.0)}, None)


def test_an_error_passes_as_it_is(clock):
    error = ValueError("the script's own")
    with pytest.raises(ValueError, match="own") as caught, region("outer"), region("inner"):
        raise error
    files = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
    assert (caught.value, files) == (error, {__file__})
    assert set(clock.taken()) == {"outer", "outer/inner"}
    for name in (None, 3, len):
        with pytest.raises(TypeError, match=r'profstack\.region\("load"\)'):
            region(name)


def test_each_thread_has_its_own_paths(clock):
    entered, leave, shared = threading.Barrier(5), threading.Event(), region("work")

    def work():
        with shared, region("inner"):
            entered.wait(30)
            leave.wait(30)

    threads = [threading.Thread(target=work) for _ in range(4)]
    with region("main"), shared:
        for thread in threads:
            thread.start()
        entered.wait(30)
        clock.wait(2.0)
        seen = {user_regions.current(thread.ident) for thread in threads}
        assert (seen, here()) == ({"work/inner"}, "main/work")
    # One object is left by the thread that entered it.
    clock.wait(1.0)
    leave.set()
    for thread in threads:
        thread.join()
    rows = {(name, 1, 1): (1, 2.0) for name in ("main", "main/work")}
    rows |= {(name, 0, 4): (4, 12.0) for name in ("work", "work/inner")}
    assert (clock.taken("path", "on_steps_thread", "threads"), here()) == (rows, None)


def test_a_generator_that_stands_still_is_around_nothing(clock):
    def batches():
        with region("load"):
            for number in range(4):
                with region("decode"):
                    clock.wait(0.5)
                yield number

    for number in batches():
        assert here() is None
        with region("train"):
            assert here() == "train"
            clock.wait(1.0)
        if number == 1:
            break
    with region("after"):
        assert here() == "after"
    load = {"load": (1, 3.0), "load/decode": (2, 1.0)}
    assert clock.taken() == {**load, "train": (2, 2.0), "after": (1, 0.0)}


def test_tasks_keep_their_own_paths_and_know_who_started_them(clock):
    seen = set()

    async def job(name, turns):
        with region("job"):
            for _ in range(turns):
                await asyncio.sleep(0)
                clock.wait(1.0)
            with region(name):
                seen.add(here())
                await asyncio.sleep(0)

    async def main():
        with region("main"):
            await asyncio.gather(job("x", 2), job("y", 4))
        with region("alone"):
            await asyncio.sleep(0)

    asyncio.run(main())
    rows = clock.taken()
    assert (rows["main"], rows["alone"]) == ((1, 6.0), (1, 0.0))
    jobs = {"main/job": 2, "main/job/x": 1, "main/job/y": 1}
    calls = {path: calls for path, (calls, _) in rows.items()}
    assert (calls, seen) == ({**jobs, "main": 1, "alone": 1}, {"main/job/x", "main/job/y"})
