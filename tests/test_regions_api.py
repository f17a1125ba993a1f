"""`profstack.region`: paths and exact times, on threads, in generators and in coroutines.

Times are those of a clock that the tests set themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import sqlite3
import subprocess
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import RunProfstack, clean_environment

import profstack
from profstack.capture import user_regions
from profstack.capture.user_regions import region
from profstack.storage.vocabulary import MOST_REGIONS, OTHER_REGIONS


class Clock:
    """Stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """Regions are observed, in a slice that has just begun, by this clock."""
    made = Clock()
    monkeypatch.setattr(user_regions, "perf_counter", made)
    user_regions.switch_on()
    user_regions.begin_slice(made.now)
    yield made
    user_regions.switch_off()


def taken(clock: Clock) -> dict[str, tuple[int, float]]:
    """Calls and time of each path since the slice began, which ends now."""
    # A moment later, so that what took no time by this clock lies before the end.
    rows = user_regions.take(clock.now + 1e-12)
    assert len({row["path"] for row in rows}) == len(rows)
    return {row["path"]: (row["calls"], round(row["wall_s"], 9)) for row in rows}


# -- paths and times ---------------------------------------------------------------------------


def test_a_region_has_the_names_around_it_and_its_exact_time(clock: Clock) -> None:
    for _ in range(3):
        with region("load"):
            clock.wait(1.0)
            with region("decode"):
                clock.wait(0.25)
            clock.wait(0.5)
        clock.wait(10.0)
    with region("decode"):
        clock.wait(2.0)
    assert taken(clock) == {"load": (3, 5.25), "load/decode": (3, 0.75), "decode": (1, 2.0)}


def test_what_is_open_at_the_edge_of_a_slice_is_cut_there(clock: Clock) -> None:
    with region("epoch"):
        clock.wait(1.0)
        assert taken(clock) == {"epoch": (1, 1.0)}
        clock.wait(100.0)
        user_regions.begin_slice(clock.now)
        clock.wait(2.0)
        assert taken(clock) == {"epoch": (0, 2.0)}
        clock.wait(100.0)
        user_regions.begin_slice(clock.now)
        clock.wait(4.0)
    clock.wait(8.0)
    assert taken(clock) == {"epoch": (0, 4.0)}


def test_a_slice_may_end_before_now(clock: Clock) -> None:
    with region("step"):
        clock.wait(1.0)
    end = clock.now
    with region("step"):
        clock.wait(1.0)
    with region("after"):
        clock.wait(1.0)
    assert user_regions.take(end) == [
        {
            "path": "step",
            "source": "profstack.region",
            "calls": 1,
            "wall_s": 1.0,
            "threads": 1,
            "on_steps_thread": 1,
        }
    ]


def test_nothing_is_counted_between_slices(clock: Clock) -> None:
    assert taken(clock) == {}
    with region("between"):
        clock.wait(1.0)
    assert taken(clock) == {}
    user_regions.begin_slice(clock.now)
    assert taken(clock) == {}


def test_a_region_inside_itself_counts_its_time_once(clock: Clock) -> None:
    @region("walk")
    def walk(depth: int) -> None:
        clock.wait(1.0)
        if depth:
            with region("deeper"):
                walk(depth - 1)

    walk(3)
    assert taken(clock) == {"walk": (4, 4.0), "walk/deeper": (3, 3.0)}


def test_a_slice_of_very_many_stays_is_added_up_exactly(clock: Clock) -> None:
    count = user_regions.MOST_PENDING * 2 + 10
    for _ in range(count):
        with region("short"):
            clock.wait(0.5)
    assert len(user_regions._totals.over) < count
    assert taken(clock) == {"short": (count, count / 2)}


def test_names_without_end_share_one_row(clock: Clock) -> None:
    for number in range(MOST_REGIONS + 5):
        with region(f"step {number}"):
            clock.wait(1.0)
    rows = taken(clock)
    assert len(rows) == MOST_REGIONS + 1
    assert rows[OTHER_REGIONS] == (5, 5.0)


def test_one_object_may_be_entered_inside_itself_and_left_in_any_order(clock: Clock) -> None:
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
    assert taken(clock) == {
        "first": (3, 3.0),
        "first/second": (1, 3.0),
        "first/second/inner": (1, 1.0),
        "alone": (1, 0.0),
    }
    assert not user_regions._open


def test_an_error_passes_as_it_is(clock: Clock) -> None:
    error = ValueError("the script's own")

    def fail() -> None:
        with region("outer"), region("inner"):
            clock.wait(1.0)
            raise error

    with pytest.raises(ValueError, match="own") as caught:
        fail()
    assert caught.value is error
    files = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
    assert files == {__file__}
    assert taken(clock) == {"outer": (1, 1.0), "outer/inner": (1, 1.0)}


@pytest.mark.parametrize("name", [None, 3, lambda: None], ids=["none", "number", "function"])
def test_a_name_is_text(name: Any) -> None:
    with pytest.raises(TypeError, match=r'profstack\.region\("load"\)'):
        region(name)


# -- threads, generators, coroutines -----------------------------------------------------------


def test_each_thread_has_its_own_paths(clock: Clock) -> None:
    entered = threading.Barrier(5)
    leave = threading.Event()
    shared = region("work")

    def work() -> None:
        with shared, region("inner"):
            entered.wait(30)
            leave.wait(30)

    threads = [threading.Thread(target=work) for _ in range(4)]
    with region("main"):
        for thread in threads:
            thread.start()
        entered.wait(30)
        clock.wait(2.0)
        seen = {user_regions.current(thread.ident or 0) for thread in threads}
        here = user_regions.current(threading.get_ident())
        leave.set()
        for thread in threads:
            thread.join()
    assert seen == {"work/inner"}
    assert here == "main"
    assert user_regions.current(threading.get_ident()) is None
    assert taken(clock) == {"main": (1, 2.0), "work": (4, 8.0), "work/inner": (4, 8.0)}


def test_a_generator_that_stands_still_is_around_nothing(clock: Clock) -> None:
    def batches() -> Iterator[int]:
        with region("load"):
            for number in range(2):
                with region("decode"):
                    clock.wait(0.5)
                yield number

    for _ in batches():
        assert user_regions.current(threading.get_ident()) is None
        with region("train"):
            assert user_regions.current(threading.get_ident()) == "train"
            clock.wait(1.0)
    assert taken(clock) == {"load": (1, 3.0), "load/decode": (2, 1.0), "train": (2, 2.0)}
    with region("after"):
        assert user_regions.current(threading.get_ident()) == "after"


def test_a_generator_left_in_the_middle_leaves_its_region(clock: Clock) -> None:
    def batches() -> Iterator[int]:
        with region("load"):
            yield from range(10)

    for number in batches():
        clock.wait(1.0)
        if number == 2:
            break
    assert not user_regions._open
    assert taken(clock) == {"load": (1, 3.0)}


def test_a_generator_made_into_a_context_manager_is_around_its_body(clock: Clock) -> None:
    @contextlib.contextmanager
    def phase(name: str) -> Iterator[None]:
        with region(name):
            yield

    @contextlib.asynccontextmanager
    async def async_phase(name: str) -> AsyncIterator[None]:
        with region(name):
            yield

    async def body() -> None:
        async with async_phase("d"):
            with region("e"):
                await asyncio.sleep(0)

    with phase("a"), phase("b"), region("c"):
        clock.wait(1.0)
    asyncio.run(body())
    assert set(taken(clock)) == {"a", "a/b", "a/b/c", "d", "d/e"}


def test_tasks_keep_their_own_paths_and_know_who_started_them(clock: Clock) -> None:
    seen = []

    async def job(name: str, turns: int) -> None:
        with region("job"):
            for _ in range(turns):
                await asyncio.sleep(0)
                clock.wait(1.0)
            with region(name):
                seen.append(user_regions.current(threading.get_ident()))
                await asyncio.sleep(0)

    async def main() -> None:
        with region("main"):
            await asyncio.gather(job("x", 2), job("y", 4))
        with region("alone"):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert sorted(map(str, seen)) == ["main/job/x", "main/job/y"]
    rows = taken(clock)
    assert {path: calls for path, (calls, _) in rows.items()} == {
        "main": 1,
        "main/job": 2,
        "main/job/x": 1,
        "main/job/y": 1,
        "alone": 1,
    }
    assert rows["main"] == (1, 6.0)
    assert rows["alone"] == (1, 0.0)


# -- as a decorator ----------------------------------------------------------------------------


def test_decorated_functions_stay_of_their_kind(clock: Clock) -> None:
    class Data:
        @region("method")
        def double(self, number: int, *, plus: int = 0) -> int:
            """Twice the number."""
            clock.wait(1.0)
            return 2 * number + plus

        @region("static")
        @staticmethod
        def three() -> int:
            return 3

        @region("class")
        @classmethod
        def name(cls) -> str:
            return cls.__name__

    @region("job")
    async def job(number: int) -> int:
        await asyncio.sleep(0)
        return number

    assert (Data().double(2, plus=1), Data.three(), Data().three(), Data.name()) == (
        5,
        3,
        3,
        "Data",
    )
    assert Data.double.__doc__ == "Twice the number."
    assert inspect.iscoroutinefunction(job)
    assert asyncio.run(job(4)) == 4
    assert {path: calls for path, (calls, _) in taken(clock).items()} == {
        "method": 1,
        "static": 2,
        "class": 1,
        "job": 1,
    }


def test_a_decorated_generator_is_inside_only_while_it_runs(clock: Clock) -> None:
    log: list[Any] = []

    @region("items")
    def items() -> Iterator[Any]:
        try:
            for number in range(2):
                clock.wait(1.0)
                log.append((yield number))
        except KeyError as error:
            log.append(error)
            clock.wait(1.0)
            yield "mended"
        finally:
            clock.wait(1.0)
            log.append("closed")
        return "result"

    assert inspect.isgeneratorfunction(items)
    iterator: Any = items()
    assert next(iterator) == 0
    with region("consumer"):
        clock.wait(5.0)
    assert iterator.send("given") == 1
    with pytest.raises(StopIteration) as stopped:
        next(iterator)
    assert stopped.value.value == "result"
    assert log == ["given", None, "closed"]
    assert taken(clock) == {"items": (3, 3.0), "consumer": (1, 5.0)}

    log.clear()
    iterator = items()
    next(iterator)
    error = KeyError("thrown")
    assert iterator.throw(error) == "mended"
    iterator.close()
    assert log == [error, "closed"]


def test_a_decorated_asynchronous_generator_gives_the_same_items(clock: Clock) -> None:
    log: list[Any] = []

    @region("items")
    async def items() -> AsyncIterator[int]:
        try:
            for number in range(5):
                clock.wait(1.0)
                await asyncio.sleep(0)
                yield number
        finally:
            log.append("closed")

    async def main() -> None:
        async for number in items():
            with region("body"):
                clock.wait(5.0)
            log.append(number)
        iterator: Any = items()
        assert await iterator.asend(None) == 0
        await iterator.aclose()

    assert inspect.isasyncgenfunction(items)
    asyncio.run(main())
    assert log == [0, 1, 2, 3, 4, "closed", "closed"]
    rows = taken(clock)
    assert rows["body"] == (5, 25.0)
    assert rows["items"][1] == 6.0


def test_a_class_is_not_decorated() -> None:
    with pytest.raises(TypeError, match="functions and methods"):
        region("data")(dict)


# -- where nobody observes ---------------------------------------------------------------------


def test_where_nobody_observes_nothing_is_kept() -> None:
    assert not user_regions._on
    entered = region("idle").__enter__()
    assert entered._spans == []
    # Observed from here on: what was entered before is not left by mistake.
    user_regions.switch_on()
    with region("outer"):
        entered.__exit__(None, None, None)
        assert user_regions.current(threading.get_ident()) == "outer"
    user_regions.switch_off()


def test_what_was_entered_while_observed_is_left_quietly_afterwards(clock: Clock) -> None:
    with region("outer"), region("inner"):
        user_regions.switch_off()
    user_regions.switch_on()
    user_regions.begin_slice(clock.now)
    with region("later"):
        clock.wait(1.0)
    assert taken(clock) == {"later": (1, 1.0)}


def test_importing_profstack_loads_nothing_and_a_region_no_torch() -> None:
    code = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "import profstack\n"
        "assert set(sys.modules) - before == {'profstack'}, set(sys.modules) - before\n"
        "assert {'Session', 'Recording', 'region', 'step'} <= set(dir(profstack))\n"
        "with profstack.region('idle'):\n"
        "    pass\n"
        "loaded = set(sys.modules) - before\n"
        "own = {name for name in loaded if name.startswith('profstack')}\n"
        "print(sorted(loaded - own))\n"
        "try:\n"
        "    profstack.nothing\n"
        "except AttributeError as error:\n"
        "    print(error)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=clean_environment(),
        check=False,
    )
    assert answer.stderr == ""
    assert answer.stdout.splitlines() == [
        "['_contextvars', 'contextvars']",
        "module 'profstack' has no attribute 'nothing'",
    ]


# -- passed on to profilers and listeners ------------------------------------------------------


class Hooked:
    """A state of the hooks with a listener that writes down what it is told."""

    torch: Any = None
    ranging: int | None = None
    takes_apart = False

    def __init__(self) -> None:
        self.told_of: list[str] = []
        self.thread = threading.get_ident()
        self.listener = self

    def active_listener(self) -> Any:
        return self if threading.get_ident() == self.thread else None

    def enter(self, kind: str, name: str, module: Any = None) -> None:
        self.told_of.append(f"+{kind} {name}")

    def leave(self, kind: str, name: str) -> None:
        self.told_of.append(f"-{kind} {name}")


def test_a_listener_is_told_in_pairs_also_of_what_is_open_at_the_edges(clock: Clock) -> None:
    hooked = Hooked()

    def elsewhere() -> None:
        with region("other thread"):
            pass

    with region("epoch"):
        user_regions.forward_to(hooked)
        with region("step"):
            pass
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        with region("cut"):
            user_regions.forward_to(None)
        with region("unheard"):
            pass
    assert hooked.told_of == [
        "+region epoch",
        "+region epoch/step",
        "-region epoch/step",
        "+region epoch/cut",
        "-region epoch/cut",
        "-region epoch",
    ]


def test_regions_left_in_another_order_are_still_told_well_nested(clock: Clock) -> None:
    hooked = Hooked()
    user_regions.forward_to(hooked)
    first, second = region("first"), region("second")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    user_regions.forward_to(None)
    assert hooked.told_of == [
        "+region first",
        "+region first/second",
        "-region first/second",
        "-region first",
        "+region first/second",
        "-region first/second",
    ]


class Apart(Hooked):
    """One that takes regions one by one, as the NVTX layer's does."""

    takes_apart = True

    def __init__(self) -> None:
        super().__init__()
        self.open: dict[int, str] = {}
        self.apart: list[str] = []

    def enter_apart(self, key: int, name: str) -> None:
        assert key not in self.open
        self.open[key] = name
        self.apart.append(f"+{name}")

    def leave_apart(self, key: int) -> None:
        self.apart.append(f"-{self.open.pop(key)}")


def test_tasks_that_take_turns_are_told_of_one_by_one(clock: Clock) -> None:
    hooked = Apart()

    async def job(name: str, turns: int) -> None:
        with region(name):
            for _ in range(turns):
                await asyncio.sleep(0)
                sync()

    def sync() -> None:
        with region("inner"):
            pass

    async def main() -> None:
        await asyncio.gather(job("x", 1), job("y", 2))

    user_regions.forward_to(hooked)
    asyncio.run(main())
    user_regions.forward_to(None)
    # Each has one range from its begin to its end; what cannot be interrupted nests.
    assert hooked.apart == ["+x", "+y", "-x", "-y"]
    assert hooked.told_of == [
        *("+region x/inner", "-region x/inner"),
        *(2 * ("+region y/inner", "-region y/inner")),
    ]
    assert not hooked.open


def test_other_threads_and_generators_are_told_of_one_by_one(clock: Clock) -> None:
    hooked = Apart()
    entered, leave = threading.Event(), threading.Event()

    def elsewhere() -> None:
        with region("thread"), region("inner"):
            entered.set()
            leave.wait(30)

    def batches() -> Iterator[int]:
        with region("load"):
            yield from range(2)

    user_regions.forward_to(hooked)
    thread = threading.Thread(target=elsewhere)
    thread.start()
    entered.wait(30)
    for _ in batches():
        with region("train"):
            pass
    # What is still open at the slice's end, on any thread, ends there.
    user_regions.forward_to(None)
    assert not hooked.open
    leave.set()
    thread.join()
    assert hooked.apart == [
        *("+thread", "+thread/inner", "+load", "-load"),
        *("-thread", "-thread/inner"),
    ]
    assert hooked.told_of == ["+region train", "-region train"] * 2
    # And what was open before the next slice begins with it.
    with region("before"):
        iterator = batches()
        next(iterator)
        user_regions.forward_to(hooked)
        assert hooked.apart[-1] == "+before/load"
        assert hooked.told_of[-1] == "+region before"
        del iterator
        assert hooked.apart[-1] == "-before/load"
        user_regions.forward_to(None)


def test_rows_tell_how_many_threads_were_in_a_region(clock: Clock) -> None:
    def work() -> None:
        with region("both"), region("elsewhere"):
            pass

    # All alive together, or one might get the number of another that has ended.
    barrier = threading.Barrier(3)
    threads = [threading.Thread(target=lambda: (work(), barrier.wait(30))) for _ in range(2)]
    for thread in threads:
        thread.start()
    with region("both"), region("here"):
        clock.wait(1.0)
    barrier.wait(30)
    for thread in threads:
        thread.join()
    rows = user_regions.take(clock.now + 1e-12)
    assert {row["path"]: (row["threads"], row["on_steps_thread"]) for row in rows} == {
        "both": (3, 1),
        "both/elsewhere": (2, 0),
        "both/here": (1, 1),
    }


def test_a_region_is_a_range_in_a_profile_of_this_thread(clock: Clock) -> None:
    torch = pytest.importorskip("torch")
    hooked = Hooked()
    hooked.torch, hooked.ranging = torch, hooked.thread
    with region("before"), torch.profiler.profile(acc_events=True) as profiler:
        user_regions.forward_to(hooked)
        with region("inside"):
            torch.ones(3) + 1
        user_regions.forward_to(None)
    spans = {
        event.name(): (event.start_ns(), event.end_ns())
        for event in profiler.profiler.kineto_results.events()
    }
    add, inside = spans["aten::add"], spans["profstack::region before/inside"]
    before = spans["profstack::region before"]
    assert before[0] <= inside[0] <= add[0] <= add[1] <= inside[1] <= before[1]


# -- compiled code and whole runs --------------------------------------------------------------

COMPILED = """
import sys
import torch
import profstack
from torch._dynamo.utils import counters

@profstack.region("decorated")
def inner(x):
    return x.relu()

def plain(x):
    with profstack.region("outer"):
        y = x.sin()
        with profstack.region("inner"):
            y = y + 1
    return inner(y).cos()

compiled = torch.compile(plain, backend="eager")
x = torch.arange(4.0)
expected = compiled(x)
with profstack.Session("compiled", layers=["cprofile"]) as session:
    for _ in session.steps(range(12)):
        with profstack.region("step"):
            assert torch.equal(compiled(x), expected)
assert not profstack.capture.user_regions._open
print(dict(counters["stats"]), dict(counters["frames"]), dict(counters["graph_break"]))
print(sorted(set(session.recording.frames["regions"]["path"])))
"""


@pytest.mark.slow
def test_compiled_code_does_not_see_regions() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", COMPILED],
        capture_output=True,
        text=True,
        timeout=300,
        env=clean_environment(OMP_NUM_THREADS="1"),
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    counts, paths = answer.stdout.splitlines()
    assert counts.startswith("{'calls_captured': 4, 'unique_graphs': 1} {'total': 1, 'ok': 1} {}")
    assert paths == "['step']"


SCRIPT = """
import profstack

with profstack.region("whole"):
    import nvtx
    import torch
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(40):
        with profstack.region("load"):
            x = torch.randn(16, 8)
        with nvtx.annotate("batch"), torch.profiler.record_function("update"), profstack.region(
            "update"
        ):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
print(loss.item())
"""


@pytest.mark.slow
def test_a_run_records_the_regions_of_its_script(
    run_profstack: RunProfstack, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    plain = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=clean_environment(OMP_NUM_THREADS="1"),
        check=False,
    )
    done = run_profstack(
        ["run", "-o", "rec", "--layers", "cprofile,torch", "script.py"],
        env={"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain.stdout
    database = sqlite3.connect(tmp_path / "rec" / "recording.sqlite")
    rows = database.execute(
        "SELECT kind, steps, slices.wall_s, path, calls, region_times.wall_s "
        "FROM region_times JOIN slices USING (slice) WHERE source = 'profstack.region'"
    ).fetchall()
    database.close()
    whole = [row for row in rows if row[3] == "whole"]
    assert {row[0] for row in whole} >= {"clean", "torch", "cprofile"}
    for _, _, slice_s, _, calls, inside_s in whole:
        # It is open all the time, and was entered before the first slice.
        assert calls == 0
        assert inside_s == pytest.approx(slice_s)
    for _, steps, slice_s, path, calls, inside_s in rows:
        if path != "whole":
            assert path in ("whole/load", "whole/update")
            assert calls == steps
            assert 0 < inside_s < slice_s
    names = trace_names(tmp_path / "rec")
    assert {"profstack::region whole/load", "profstack::region whole/update"} <= names
    report = json.loads((tmp_path / "rec" / "report.json").read_text(encoding="utf-8"))
    table = {(row["source"], row["path"]): row for row in report["tables"]["regions"]}
    own = "profstack.region"
    assert {key: row["calls"] for key, row in table.items()} == {
        (own, "whole"): 0.0,
        (own, "whole/load"): 1.0,
        (own, "whole/update"): 1.0,
        ("record_function", "update"): 1.0,
        ("nvtx", "batch"): 1.0,
    }
    # The products of forward and of the weights' gradient.
    products = 2 * 2 * 16 * 8 * 4
    flop = {key: row["flop"] for key, row in table.items() if row["flop"] is not None}
    updates = ((own, "whole"), (own, "whole/update"), ("record_function", "update"))
    assert flop == dict.fromkeys(updates, products)
    inside = {path: table[own, path]["operator_s"] for path in ("whole", "whole/load")}
    assert 0 < inside["whole/load"] < inside["whole"]
    assert table["nvtx", "batch"]["operator_s"] is None
    assert "entered it" in report["cells_reason"]["regions.operator_s"]
    assert {row["threads"] for row in table.values()} == {"the steps' own"}


def trace_names(recording: Path) -> set[str]:
    """Names of all events in the trace of a recording."""
    import gzip

    [path] = (recording / "torch").glob("*.json.gz")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return {event.get("name", "") for event in json.load(file)["traceEvents"]}


def test_region_is_the_public_name() -> None:
    assert profstack.region is region
    decorate: Callable[..., Any] = profstack.region("name")
    assert repr(decorate) == "region('name')"
