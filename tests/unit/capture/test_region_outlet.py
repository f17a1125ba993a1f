"""Regions passed on to profilers and listeners, and functions inside regions."""

import asyncio
import inspect
import threading

import pytest
import torch

from profstack.capture.user_regions import forward_to, region
from tests.support.engine import elsewhere

pytestmark = pytest.mark.usefixtures("clock")


class Hooked:
    torch, ranging = torch, None

    def __init__(self, *, apart=False):
        self.takes_apart, self.listener = apart, self
        self.told, self.apart, self.open = [], [], {}
        self.thread = threading.get_ident()

    def active_listener(self):
        return self if threading.get_ident() == self.thread else None

    def enter(self, kind, name, module=None):
        self.told.append(f"+{name}" if kind == "region" else kind)

    def leave(self, kind, name):
        self.told.append(f"-{name}" if kind == "region" else kind)

    def enter_apart(self, key, name):
        assert key not in self.open
        self.open[key] = name
        self.apart.append(f"+{name}")

    def leave_apart(self, key):
        self.apart.append(f"-{self.open.pop(key)}")


def test_a_listener_is_told_in_pairs_also_of_what_is_open_at_the_edges():
    hooked = Hooked()
    with region("epoch"):
        forward_to(hooked)
        with region("step"):
            pass
        elsewhere(region("other thread")(list.copy), [])
        with region("cut"):
            forward_to(None)
        with region("unheard"):
            pass
    told = "+epoch +epoch/step -epoch/step +epoch/cut -epoch/cut -epoch"
    assert hooked.told == told.split()


def test_tasks_that_take_turns_are_told_of_one_by_one():
    hooked = Hooked(apart=True)

    async def job(name, turns):
        with region(name):
            for _ in range(turns):
                await asyncio.sleep(0)
                with region("inner"):
                    plain()

    @region("plain")
    def plain():
        pass

    async def main():
        await asyncio.gather(job("x", 1), job("y", 2))

    forward_to(hooked)
    asyncio.run(main())
    forward_to(None)
    # Each has one range from its begin to its end; what cannot be interrupted nests.
    inner = [f"{sign}{name}/inner" for name in "xyy" for sign in "+-"]
    assert hooked.apart == ["+x", "+y", *inner[:2], "-x", *inner[2:], "-y"]
    assert hooked.told == [f"{sign}{name}/inner/plain" for name in "xyy" for sign in "+-"]
    assert not hooked.open


def test_other_threads_and_generators_are_told_of_one_by_one():
    hooked, entered, leave = Hooked(apart=True), threading.Event(), threading.Event()

    def elsewhere():
        with region("thread"), region("inner"):
            entered.set()
            leave.wait(30)

    def batches():
        with region("load"):
            yield from range(2)

    forward_to(hooked)
    thread = threading.Thread(target=elsewhere)
    thread.start()
    entered.wait(30)
    for _ in batches():
        with region("train"):
            pass
    # What is still open at the slice's end, on any thread, ends there.
    forward_to(None)
    leave.set()
    thread.join()
    told = "+thread +thread/inner +load -load -thread -thread/inner"
    assert (hooked.apart, hooked.told) == (told.split(), ["+train", "-train"] * 2)
    # And what was open before the next slice begins with it.
    with region("before"):
        iterator = batches()
        next(iterator)
        forward_to(hooked)
        assert (hooked.apart[-1], hooked.told[-1]) == ("+before/load", "+before")
        del iterator
        assert hooked.apart[-1] == "-before/load"


def test_a_region_is_a_range_in_a_profile_of_this_thread():
    hooked = Hooked()
    hooked.ranging = hooked.thread
    with region("before"), torch.profiler.profile(acc_events=True) as profiler:
        forward_to(hooked)
        with region("inside"), region("inside"):
            torch.ones(3) + 1
        elsewhere(region("elsewhere")(list.copy), [])
        forward_to(None)
    spans = {
        event.name().removeprefix("profstack::region "): (event.start_ns(), event.end_ns())
        for event in profiler.profiler.kineto_results.events()
    }
    names = ("before", "before/inside", "before/inside (inside itself)", "aten::add")
    times = [spans[name] for name in names]
    edges = [start for start, _ in times] + [end for _, end in reversed(times)]
    assert (edges, "elsewhere" in spans) == (sorted(edges), False)


def test_decorated_functions_stay_of_their_kind(clock):
    class Data:
        @region("method")
        def double(self, number, *, plus=0):
            """Twice the number."""
            clock.wait(1.0)
            return 2 * number + plus

        three = region("static")(staticmethod(lambda: 3))
        name = region("class")(classmethod(lambda cls: cls.__name__))

    @region("job")
    async def job(number):
        clock.wait(2.0)
        await asyncio.sleep(0)
        return number

    assert (Data().double(2, plus=1), Data.three(), Data().three()) == (5, 3, 3)
    assert (Data.name(), Data.double.__doc__) == ("Data", "Twice the number.")
    assert (inspect.iscoroutinefunction(job), asyncio.run(job(4))) == (True, 4)
    calls = {"method": (1, 1.0), "static": (2, 0.0), "class": (1, 0.0), "job": (1, 2.0)}
    assert clock.taken() == calls
    for wrong in (dict, 3):
        with pytest.raises(TypeError, match="functions and methods"):
            region("data")(wrong)


def test_a_decorated_generator_is_inside_only_while_it_runs(clock):
    log = []

    @region("items")
    def items():
        try:
            for number in range(2):
                clock.wait(1.0)
                log.append((yield number))
        finally:
            clock.wait(0.25)
            log.append("closed")
        return "result"

    assert inspect.isgeneratorfunction(items)
    iterator = items()
    next(iterator)
    with region("consumer"):
        clock.wait(5.0)
    assert iterator.send("given") == 1
    with pytest.raises(StopIteration) as stopped:
        next(iterator)
    assert (stopped.value.value, log) == ("result", ["given", None, "closed"])
    assert clock.taken() == {"items": (3, 2.25), "consumer": (1, 5.0)}


def test_a_decorated_asynchronous_generator_gives_the_same_items(clock):
    found = []

    @region("items")
    async def items():
        for number in range(3):
            clock.wait(1.0)
            await asyncio.sleep(0)
            yield number

    async def main():
        async for number in items():
            with region("body"):
                clock.wait(5.0)
            found.append(number)

    assert inspect.isasyncgenfunction(items)
    asyncio.run(main())
    rows = clock.taken()
    assert (found, rows["body"], rows["items"][1]) == ([0, 1, 2], (3, 15.0), 3.0)
