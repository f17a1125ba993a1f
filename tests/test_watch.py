"""The watch's sampler: what it sees, what it costs while it pauses, and that nobody notices it."""

from __future__ import annotations

import _thread
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import CHECKOUT, RunProfstack, clean_environment

import profstack
from profstack.bench.run import record_layers
from profstack.bench.subject import Subject
from profstack.capture import user_regions
from profstack.layer import SliceData
from profstack.readers import watch
from profstack.readers import watch as readers_watch
from profstack.readers.watch import Sampler, Samples, Stacks
from profstack.session import Session
from profstack.storage.folder import Rows, read_tables
from profstack.storage.vocabulary import WATCH_INTERVAL_S
from profstack.wrappers.watch import WatchWrapper

pytestmark = pytest.mark.timed

OWN = os.path.dirname(profstack.__file__)
OWN_FILE = os.path.join(OWN, "engine", "core.py")


@pytest.fixture
def sampler() -> Iterator[Sampler]:
    made = Sampler(time.perf_counter())
    yield made
    made.close()


def busy(seconds: float, sampler: Sampler | None = None, samples: int = 1) -> None:
    """Work for so long, and on a machine under load until the sampler has seen it."""
    begun, before = time.perf_counter(), sampler.taken if sampler is not None else 0
    while time.perf_counter() < begun + seconds or (
        sampler is not None
        and sampler.taken < before + samples
        and time.perf_counter() < begun + 20.0
    ):
        sum(range(100))


def sleeping(sampler: Sampler) -> None:
    before, late = sampler.taken, time.perf_counter() + 20.0
    while sampler.taken < before + 2 and time.perf_counter() < late:
        time.sleep(0.05)


def weighed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that are samples, and not readings of the resident set alone."""
    return [row for row in rows if row["weight"]]


def rows_of(tables: Mapping[str, Rows], name: str) -> list[dict[str, Any]]:
    """A table of a recording as records."""
    columns, rows = tables[name]
    return [dict(zip(columns, row, strict=True)) for row in rows]


def names(frames: list[dict[str, Any]], number: int | None) -> list[str]:
    """The functions of a stack, innermost first."""
    by_number = {row["frame"]: row for row in frames}
    found = []
    while number is not None:
        found.append(by_number[number]["name"])
        number = by_number[number]["parent"]
    return found


# -- what it sees ----------------------------------------------------------------------------------


def test_samples_name_function_and_line_whether_the_lock_is_held_or_not(sampler: Sampler) -> None:
    sampler.resume()
    busy(0.15, sampler, 2)
    sleeping(sampler)
    sampler.pause()
    frames, rows = sampler.flush()
    leaves = {names(frames, row["frame"])[0] for row in weighed(rows)}
    assert {"busy", "sleeping"} <= leaves
    lines = {row["line"] for row in frames if row["name"] == "sleeping"}
    assert sleeping.__code__.co_firstlineno + 3 in lines
    assert all(row["rss_bytes"] > 2**20 for row in rows)
    here = [row for row in frames if row["name"] == "busy"]
    assert {row["file"] for row in here} == {__file__}
    assert {row["function_line"] for row in here} == {busy.__code__.co_firstlineno}


def test_weights_are_the_watched_time_and_nothing_of_a_pause(sampler: Sampler) -> None:
    sampler.resume()
    busy(0.06, sampler)
    sampler.pause()
    time.sleep(0.3)
    sampler.resume()
    busy(0.06, sampler)
    sampler.pause()
    _, rows = sampler.flush()
    # A sample that was due just as the watch paused has no weight either, and stands beside it.
    together: list[list[float]] = []
    for t_s in (row["t_s"] for row in rows if not row["weight"]):
        if together and t_s - together[-1][-1] < WATCH_INTERVAL_S:
            together[-1].append(t_s)
        else:
            together.append([t_s])
    assert len(together) == 4
    edges = [times[-1] if number % 2 else times[0] for number, times in enumerate(together)]
    first, second = edges[1] - edges[0], edges[3] - edges[2]
    assert edges[2] - edges[1] >= 0.3
    inside = weighed(rows)
    assert all(
        edges[0] <= row["t_s"] <= edges[1] or edges[2] <= row["t_s"] <= edges[3] for row in inside
    )
    covered = sum(row["weight"] for row in inside) * WATCH_INTERVAL_S
    # What is missing is less than a sample at the end, and one that the first pause came before.
    assert covered <= first + second + 1e-9
    last = inside[-1]["t_s"]
    assert covered >= first + second - (edges[3] - last) - max(0.0, first - WATCH_INTERVAL_S) - 1e-9
    assert covered >= last - edges[2]


def test_a_sample_overdue_at_the_pause_is_given_up(
    sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter was held all the time: nobody knows what the sample would have seen."""
    sampler.resume()
    sampler._since -= 5.0
    sampler._wanted = False
    sampler._ask(sampler._still)
    sampler._wanted = True
    sampler.pause()
    assert sampler._before <= WATCH_INTERVAL_S


def test_a_frame_is_numbered_once_over_the_whole_run(sampler: Sampler) -> None:
    sampler.resume()
    busy(0.1, sampler)
    first, rows = sampler.flush()
    busy(0.1, sampler)
    sampler.pause()
    second, more = sampler.flush()
    numbers = [row["frame"] for row in first + second]
    assert numbers == list(range(1, len(numbers) + 1))
    assert {row["frame"] for row in rows + more} - {None} <= set(numbers)
    assert all(row["parent"] is None or row["parent"] < row["frame"] for row in first + second)
    times = [row["t_s"] for row in rows + more]
    assert times == sorted(times)
    assert sampler.flush() == ([], [])


def test_it_follows_the_thread_that_resumed_it(sampler: Sampler) -> None:
    """Training may run on a thread of its own while the main one waits for it."""

    def train() -> None:
        sampler.resume()
        busy(0.15, sampler)
        sampler.pause()

    worker = threading.Thread(target=train)
    worker.start()
    worker.join()
    frames, rows = sampler.flush()
    leaves = [names(frames, row["frame"]) for row in weighed(rows)]
    assert leaves
    assert all("train" in stack for stack in leaves)
    # The thread is gone: the one that made it is there still.
    sampler.resume()
    sampler._followed = -1
    busy(0.05, sampler)
    sampler.pause()
    more, rows = sampler.flush()
    stacks = [names(frames + more, row["frame"]) for row in weighed(rows)]
    assert stacks
    assert all(stack[0] == "busy" for stack in stacks)


def test_the_users_region_stands_beside_the_stack(sampler: Sampler) -> None:
    user_regions.switch_on()
    try:
        sampler.resume()
        with user_regions.region("augment"), user_regions.region("crop"):
            busy(0.08, sampler)
        inside = sampler.taken
        busy(0.08, sampler, 2)
        sampler.pause()
    finally:
        user_regions.switch_off()
    _, rows = sampler.flush()
    regions = [row["region"] for row in weighed(rows)]
    assert regions[0] == "augment/crop"
    assert regions[-1] is None
    assert regions.count("augment/crop") in (inside, inside + 1)


def frame_in(file: str, call: Callable[[], Any]) -> Any:
    """What `call` gives, called from a function whose source is said to be `file`."""
    space: dict[str, Any] = {}
    exec(compile("def passing(call):\n    return call()", file, "exec"), space)
    return space["passing"](call)


def files_of(stacks: Stacks, number: int | None) -> list[str]:
    frames = {row["frame"]: row for row in stacks.take()}
    found = []
    while number:
        found.append(frames[number]["file"])
        number = frames[number]["parent"]
    return found


def test_profstacks_own_frames_are_cut_out_of_what_passes_through_them() -> None:
    stacks = Stacks()

    @user_regions.region("load")
    def work() -> Any:
        return frame_in("/script/train.py", lambda: stacks.place(sys._getframe(1)))

    files = files_of(stacks, work())
    assert files[:3] == ["/script/train.py", __file__, __file__]
    assert not any(file.startswith(OWN) for file in files)


def test_profstacks_own_work_is_no_sample() -> None:
    stacks = Stacks()
    place = lambda: stacks.place(sys._getframe(1))  # noqa: E731
    assert frame_in(OWN_FILE, place) is None
    # Also where it calls somebody else's code; but not where the script's own is inside again.
    assert frame_in(OWN_FILE, lambda: frame_in("/lib/json.py", place)) is None
    passing = os.path.join(OWN, "capture", "hooks.py")
    assert frame_in(passing, lambda: frame_in("/script/train.py", place))


def test_import_machinery_is_left_out_unless_it_works_itself() -> None:
    stacks = Stacks()
    place = lambda: stacks.place(sys._getframe(1))  # noqa: E731
    machinery = "<frozen importlib._bootstrap>"
    number = frame_in(machinery, lambda: frame_in("/script/part.py", place))
    assert machinery not in files_of(stacks, number)
    stacks = Stacks()
    number = frame_in("/script/part.py", lambda: frame_in(machinery, place))
    assert files_of(stacks, number)[0] == machinery


# -- bounds ----------------------------------------------------------------------------------------


def test_samples_thin_out_without_losing_weight_or_readings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(readers_watch, "MOST_HELD", 100)
    held = Samples()
    most = 0
    for number in range(10_000):
        held.add(float(number), 7, 0 if number % 500 == 0 else 3, None, number % 500 and 1.5)
        most = max(most, len(held))
    rows = held.records()
    assert most <= 100
    assert [row["t_s"] for row in rows] == sorted(row["t_s"] for row in rows)
    readings = [row["t_s"] for row in rows if not row["weight"]]
    assert readings == [float(number) for number in range(0, 10_000, 500)]
    assert sum(row["weight"] for row in rows) == pytest.approx((10_000 - len(readings)) * 1.5)
    assert all(row["frame"] == 3 for row in weighed(rows))


def test_samples_of_a_stretch_between_readings_stay_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was seen before a pause must not stand for time after it."""
    monkeypatch.setattr(readers_watch, "MOST_HELD", 8)
    held = Samples()
    for weight in (1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0):
        held.add(float(len(held)), None, 1, None, weight)
    assert [row["weight"] for row in held.records()] == [2.0, 1.0, 0.0, 0.0, 2.0, 1.0]


def test_the_tree_has_room_for_so_many_frames_and_says_when_it_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stacks = Stacks()
    base = stacks.place(sys._getframe())
    room = len(stacks.take()) + 2
    monkeypatch.setattr(readers_watch, "MOST_FRAMES", room)
    numbers = [
        frame_in(f"/script/part{number}.py", lambda: stacks.place(sys._getframe()))
        for number in range(50)
    ]
    assert len(stacks._numbers) == room
    assert stacks.cut
    assert len(stacks.take()) == 2
    # Those without room count for the frame that called them.
    assert set(numbers[3:]) == {stacks._numbers[max(stacks._numbers, key=lambda key: key[0])]} or (
        base is not None
    )
    assert all(number <= room for number in numbers)


def test_a_deep_recursion_is_cut_at_its_outer_end() -> None:
    stacks = Stacks()

    def down(depth: int) -> int | None:
        return down(depth - 1) if depth else stacks.place(sys._getframe())

    number = down(readers_watch.DEEPEST + 50)
    assert stacks.cut
    assert len(files_of(stacks, number)) == readers_watch.DEEPEST


def test_a_long_run_is_sampled_less_often_and_the_layer_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "PER_LEVEL", 3)
    wrapper = WatchWrapper()
    wrapper.resume()
    made = wrapper._sampler
    assert made is not None
    # Three samples of each interval, and some of the longest.
    busy(0.9, made, 3 * watch.MOST_LEVELS + 3)
    wrapper.pause()
    taken = wrapper.flush()
    wrapper.close()
    assert len(made.thinned) == watch.MOST_LEVELS
    assert made.interval_s == pytest.approx(WATCH_INTERVAL_S * 2**watch.MOST_LEVELS)
    rows = weighed(list(taken.frames["watch_samples"]))  # type: ignore[arg-type]
    # Later samples stand for more, and all of them for the watched time.
    assert rows[-1]["weight"] >= 2**watch.MOST_LEVELS
    assert rows[0]["weight"] < rows[-1]["weight"]
    assert taken.truncated is not None
    assert "every 160 ms" in taken.truncated


def test_the_footprint_is_told(sampler: Sampler) -> None:
    empty = sampler.memory_bytes()
    sampler.resume()
    busy(0.1, sampler)
    sampler.flush()
    assert sampler.memory_bytes() > empty
    most = sampler.memory_bytes()
    sampler.flush()
    assert sampler.memory_bytes() >= most


# -- nobody notices --------------------------------------------------------------------------------


def switches(sampler: Sampler) -> int:
    """How often the system has run the sampler's thread."""
    status = Path(f"/proc/self/task/{sampler._native}/status").read_text()
    fields = dict(line.split(":") for line in status.splitlines())
    return int(fields["voluntary_ctxt_switches"]) + int(fields["nonvoluntary_ctxt_switches"])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells it")
def test_while_it_pauses_its_thread_never_runs(sampler: Sampler) -> None:
    sampler.resume()
    busy(0.05)
    running = switches(sampler)
    sampler.pause()
    time.sleep(0.02)
    before = switches(sampler)
    assert before > running - 1
    busy(0.3)
    assert switches(sampler) == before
    sampler.resume()
    busy(0.1, sampler)
    assert switches(sampler) > before


def test_it_is_no_thread_of_the_scripts(sampler: Sampler) -> None:
    before = threading.enumerate()
    sampler.resume()
    busy(0.03)
    assert threading.enumerate() == before
    assert _thread._count() >= 1
    interval, collecting = sys.getswitchinterval(), gc.isenabled()
    busy(0.05)
    assert (sys.getswitchinterval(), gc.isenabled()) == (interval, collecting)
    assert threading.current_thread() in before


def test_what_a_function_held_dies_when_it_returns(sampler: Sampler) -> None:
    """A sampler that keeps a frame keeps all that its function had."""
    sampler.interval_s = 0.0002
    died: list[int] = []

    class Held:
        def __del__(self) -> None:
            died.append(_thread.get_ident())

    def hold() -> None:
        held = Held()
        # Without the lock, so that the sampler comes now.
        time.sleep(0)
        del held

    sampler.resume()
    late = 0
    for number in range(3000):
        hold()
        late += len(died) != number + 1
    sampler.pause()
    assert sampler.taken > 10
    assert late == 0
    assert set(died) == {_thread.get_ident()}


def test_finalizers_run_on_the_scripts_own_thread(sampler: Sampler) -> None:
    """Garbage is collected where something is allocated: that must not be the sampler's thread."""
    sampler.interval_s = 0.0002
    where: set[int] = set()

    class Circle:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            where.add(_thread.get_ident())

    sampler.resume()
    until = time.perf_counter() + 1.0
    while time.perf_counter() < until or (
        sampler.taken < 101 and time.perf_counter() < until + 20.0
    ):
        Circle()
        # Time without the lock, for the sampler to come when the counter stands anywhere.
        os.getpid()
        time.sleep(0)
    sampler.pause()
    gc.collect()
    assert sampler.taken > 100
    assert where == {_thread.get_ident()}


def test_a_failure_ends_the_watch_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = WatchWrapper()
    wrapper.resume()
    made = wrapper._sampler
    assert made is not None
    busy(0.05, made)
    monkeypatch.setattr(watch, "rss_in", lambda _: 1 // 0)
    late = time.perf_counter() + 20.0
    while made.failure is None and time.perf_counter() < late:
        time.sleep(0.01)
    monkeypatch.undo()
    wrapper.pause()
    wrapper.resume()
    wrapper.pause()
    taken = wrapper.flush()
    assert [slug for slug, _ in taken.notes] == ["watch-ended"]
    assert "ZeroDivisionError" in taken.notes[0][1]
    assert weighed(list(taken.frames["watch_samples"]))  # type: ignore[arg-type]
    wrapper.close()


def test_no_thread_to_be_had_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(watch._thread, "start_new_thread", none)
    wrapper = WatchWrapper()
    wrapper.resume()
    wrapper.pause()
    monkeypatch.undo()
    taken: SliceData = wrapper.flush()
    assert not taken.frames
    assert ("watch-ended", "the watch ended early, can't start new thread") in taken.notes
    wrapper.close()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="cProfile counts one thread alone")
def test_it_stands_back_for_a_profiler_that_counts_all_threads() -> None:
    import cProfile

    wrapper = WatchWrapper()
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        wrapper.resume()
        assert wrapper._sampler is not None
        assert not wrapper._sampler._alive
    finally:
        profiler.disable()
    wrapper.resume()
    busy(0.05)
    wrapper.pause()
    taken = wrapper.flush()
    assert "gave-way" in [slug for slug, _ in taken.notes]
    assert taken.frames["watch_samples"]
    wrapper.close()


# -- forks, signals, the end -----------------------------------------------------------------------


def run_python(code: str, *flags: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """A process with a sampler that has run from its first line."""
    begin = (
        "import time\nfrom profstack.readers.watch import Sampler\n"
        "sampler = Sampler(time.perf_counter())\nsampler.resume()\n"
    )
    return subprocess.run(
        [sys.executable, *flags, "-c", begin + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env=clean_environment(PYTHONPATH=str(CHECKOUT)),
        timeout=timeout,
        check=False,
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_finds_no_thread_and_raises_no_warning() -> None:
    done = run_python(
        """
        import _thread, os
        for number in range(20):
            time.sleep(0.011)
            pid = os.fork()
            if not pid:
                sampler.resume(); sampler.pause()
                right = _thread._count() == 0 and sampler.flush() == ([], [])
                sampler.close()
                os._exit(0 if right else 1)
            assert os.waitpid(pid, 0)[1] == 0
            garbage = [[] for _ in range(20_000)]
        before, late = sampler.taken, time.perf_counter() + 20
        while sampler.taken == before and time.perf_counter() < late:
            time.sleep(0.01)
        assert sampler.taken > before, "it goes on after the forks"
        print(len([row for row in sampler.flush()[1] if row["weight"]]) > 10)
        """,
        "-W",
        "error",
    )
    assert (done.stdout, done.stderr, done.returncode) == ("True\n", "", 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_forks_of_several_threads_at_once() -> None:
    done = run_python(
        """
        import os, threading
        def fork_often():
            for _ in range(15):
                pid = os.fork()
                if not pid:
                    os._exit(0)
                os.waitpid(pid, 0)
        threads = [threading.Thread(target=fork_often) for _ in range(4)]
        for each in threads: each.start()
        for _ in range(50):
            sampler.pause(); time.sleep(0.001); sampler.resume(); time.sleep(0.001)
        for each in threads: each.join()
        garbage = [[] for _ in range(20_000)]
        before, late = sampler.taken, time.perf_counter() + 20
        while sampler.taken == before and time.perf_counter() < late:
            time.sleep(0.01)
        sampler.pause(); sampler.close()
        import _thread
        print(sampler.taken > before, _thread._count(), sampler.forking)
        """,
        # The script's own threads are what Python warns of.
        "-W",
        "ignore::DeprecationWarning",
    )
    assert (done.stdout, done.stderr, done.returncode) == ("True 0 0\n", "", 0)


@pytest.mark.skipif(not hasattr(signal, "sigtimedwait"), reason="no signals to wait for")
def test_a_signal_that_the_script_has_blocked_waits_for_the_script() -> None:
    """A thread that does not block it would be given it, and the process would end."""
    done = run_python(
        """
        import os, signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.05)
        print(signal.sigtimedwait({signal.SIGUSR1}, 5).si_signo == signal.SIGUSR1)
        """
    )
    assert (done.stdout, done.stderr, done.returncode) == ("True\n", "", 0)


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("import os; os._exit(4)", 4),
        ("import threading; threading.Thread(target=time.sleep, args=(0.1,)).start()", 0),
        ("import atexit; atexit.register(lambda: time.sleep(0.1))", 0),
        ("sampler.pause()", 0),
        ("sampler.close()", 0),
    ],
)
def test_the_process_ends_as_it_would_without_a_word(end: str, code: int) -> None:
    done = run_python(f"time.sleep(0.05)\n{end}")
    assert (done.stdout, done.stderr, done.returncode) == ("", "", code)


def test_it_borrows_modules_and_leaves_no_trace() -> None:
    code = (
        "import sys; sys.path.insert(0, {path!r}); before = set(sys.modules)"
        "; from profstack.readers.watch import Sampler"
        "; s = Sampler(0.0); s.resume(); s.pause(); s.close()"
        "; print(sorted(m for m in set(sys.modules) - before if not m.startswith('profstack')))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code.format(path=str(CHECKOUT))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


# -- under `profstack run` -------------------------------------------------------------------------

QUIET = "profstack:"


def plain(script: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        env=clean_environment(),
        cwd=script.parent,
        check=False,
    )


def without_own_lines(text: str) -> str:
    own = (QUIET, "Wrote ")
    return "".join(line for line in text.splitlines(True) if not line.startswith(own))


def script_of(folder: Path, code: str) -> Path:
    path = folder / "script.py"
    path.write_text(textwrap.dedent(code), encoding="utf-8")
    return path


FIRST_LINE = """
    import sys
    modules = sorted(name for name in sys.modules if not name.startswith("profstack"))
    import os, _thread
    print(modules, sorted(os.environ), sys.getswitchinterval(), sys._getframe().f_back)
    print(sorted(sys.path_importer_cache), sys.path)
    import warnings
    before = list(warnings.filters)
    # Taken down after all exit callbacks, so after profstack has written its recording.
    sys.modules["builtins"].__dict__["_"] = type(
        "Parting", (), {"__del__": lambda self: print(warnings.filters == before, flush=True)}
    )()
"""


def test_the_first_line_finds_the_interpreter_as_ever(
    tmp_path: Path, run_profstack: RunProfstack
) -> None:
    script = script_of(tmp_path, FIRST_LINE)
    expected = plain(script)
    assert expected.stdout.endswith("\nTrue\n")
    done = run_profstack(["run", "-q", "-o", "recording", "script.py"])
    assert done.stdout == expected.stdout
    assert (done.returncode, without_own_lines(done.stderr)) == (0, expected.stderr)


@pytest.mark.parametrize(
    ("options", "variables", "threads"),
    [
        (["--layers", "watch"], {}, 1),
        (["--skip", "watch"], {}, 0),
        (["--layers", "cprofile"], {}, 0),
        ([], {"PROFSTACK": "0"}, 0),
    ],
)
def test_there_is_a_thread_only_where_the_watch_was_asked_for(
    options: list[str],
    variables: dict[str, str],
    threads: int,
    tmp_path: Path,
    run_profstack: RunProfstack,
) -> None:
    script_of(tmp_path, "import _thread, time\ntime.sleep(0.05)\nprint(_thread._count())")
    done = run_profstack(["run", "-q", "-o", "recording", *options, "script.py"], env=variables)
    assert done.stdout == f"{threads}\n"


CHILDREN = """
    import multiprocessing, os, subprocess, sys, threading, _thread

    def look(queue):
        queue.put((_thread._count() - (threading.active_count() - 1), threading.active_count()))

    if __name__ == "__main__":
        for way in ("fork", "spawn"):
            context = multiprocessing.get_context(way)
            queue = context.SimpleQueue()
            process = context.Process(target=look, args=(queue,))
            process.start()
            print(way, queue.get())
            process.join()
        code = (
            "import sys, _thread; "
            "print('profstack.readers.watch' in sys.modules, _thread._count())"
        )
        print(subprocess.run([sys.executable, "-c", code], capture_output=True).stdout)
        print(threading.enumerate() == [threading.main_thread()])
"""

ENDS = {
    "error": """
        def inner():
            raise ValueError("the script's own")
        def outer():
            try:
                inner()
            except ValueError as error:
                raise KeyError("again") from error
        outer()
    """,
    "interrupt": """
        import os, signal, time
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    """,
    "handler": """
        import os, signal, sys, time
        def stop(number, frame):
            print("stopped by", number, frame.f_code.co_name)
            sys.exit(7)
        signal.signal(signal.SIGINT, stop)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    """,
    "threads": """
        import asyncio, threading, time
        async def tick(number):
            await asyncio.sleep(0.02)
            return number
        async def main():
            return await asyncio.gather(*(tick(number) for number in range(5)))
        results = []
        workers = [threading.Thread(target=lambda: results.append(asyncio.run(main())))]
        workers += [threading.Thread(target=time.sleep, args=(0.05,), daemon=True)]
        for worker in workers:
            worker.start()
        print(asyncio.run(main()))
        workers[0].join()
        print(results, [thread.name for thread in threading.enumerate() if not thread.daemon])
        raise SystemExit("said at the end")
    """,
}


@pytest.mark.parametrize("name", ENDS)
def test_a_script_ends_as_ever(name: str, tmp_path: Path, run_profstack: RunProfstack) -> None:
    script = script_of(tmp_path, ENDS[name])
    expected = plain(script)
    done = run_profstack(["run", "-q", "-o", "recording", "--layers", "watch", str(script)])
    assert done.stdout == expected.stdout
    assert without_own_lines(done.stderr) == expected.stderr
    code = expected.returncode
    # It ends by an interrupt itself, as the script did: a shell's loop is to end with it.
    by_itself = code >= 0 or code == -signal.SIGINT
    assert done.returncode == (code if by_itself else 128 - code)


def test_processes_that_the_script_starts_are_not_watched(
    tmp_path: Path, run_profstack: RunProfstack
) -> None:
    script = script_of(tmp_path, CHILDREN)
    expected = plain(script)
    done = run_profstack(["run", "-q", "-o", "recording", "--layers", "watch", "script.py"])
    assert done.stdout == expected.stdout
    assert "fork (0, 1)" in done.stdout
    assert without_own_lines(done.stderr) == ""


def test_a_script_without_torch_is_watched_all_the_same(
    tmp_path: Path, run_profstack: RunProfstack
) -> None:
    script_of(
        tmp_path,
        """
        import time
        def wait():
            time.sleep(0.3)
        wait()
        """,
    )
    done = run_profstack(["run", "-q", "-o", "recording", "--layers", "nvtx,watch", "script.py"])
    assert done.returncode == 0, done.stderr
    tables = read_tables(tmp_path / "recording")
    layers = {row["name"]: row for row in rows_of(tables, "layers")}
    assert layers["watch"]["status"] == "recorded"
    assert layers["nvtx"]["status"] == "skipped"
    assert "never imported torch" in layers["nvtx"]["reason"]
    frames = rows_of(tables, "watch_frames")
    seen = weighed(rows_of(tables, "watch_samples"))
    waiting = [row for row in seen if names(frames, row["frame"])[0] == "wait"]
    assert sum(row["weight"] for row in waiting) * WATCH_INTERVAL_S > 0.2


def test_the_modules_that_calls_pass_through_are_there() -> None:
    """Their names are paths: a module that moves must be named anew."""
    assert readers_watch._PASSED_THROUGH
    assert all(os.path.isfile(path) for path in readers_watch._PASSED_THROUGH)


def thirty_ms() -> None:
    end = time.perf_counter() + 0.03
    while time.perf_counter() < end:
        pass


def _repeated(session: Session) -> None:
    session.run(thirty_ms)


def _decorated(session: Session) -> None:
    call = session(thirty_ms)
    for _ in range(12):
        call()


@pytest.mark.parametrize("way", [_repeated, _decorated])
def test_a_session_that_calls_the_function_itself_hides_nothing(
    way: Callable[[Session], None],
) -> None:
    """The calls pass through a module of ours, which is no work of ours."""
    with Session("busy", layers=["watch"]) as session:
        way(session)
    assert "thirty_ms" in set(session.recording.frames["watch"]["name"])


def test_the_layers_of_a_benchmark_have_a_watch_that_sees() -> None:
    recording = record_layers(Subject("busy", thirty_ms), "busy", ["watch"])
    assert "thirty_ms" in set(recording.frames["watch"]["name"])
