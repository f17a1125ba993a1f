"""CPU time of threads and child processes: who they are, and that none of it is lost.

Only orders and amounts of work that were asked for are held to; never how fast they were done.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import clean_environment
from data_recording import Run

from profstack import guard
from profstack.analysis.threads import MOST_ROWS
from profstack.capture import threads as capture_threads
from profstack.capture.slices import SlicePlan
from profstack.capture.step_log import StepLog
from profstack.capture.threads import ThreadTimes
from profstack.readers.watch import Sampler
from profstack.stats.clock import Clock
from profstack.storage.folder import Writer, read_tables

pytestmark = pytest.mark.timed

linux_only = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="threads' clocks are told on Linux alone"
)
# How much of what was asked for a clock must show at least: they are read at other moments.
MOST_OF = 0.9


def burn(seconds: float) -> None:
    """Use so much CPU time on the calling thread."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(1000))


def rows_of(work: Callable[[], object]) -> list[dict[str, Any]]:
    """What the clocks tell of some work."""
    times = ThreadTimes()
    times.begin()
    work()
    times.end()
    assert times.reason is None
    return times.take()


def pick(rows: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    found = [row for row in rows if (row["kind"], row["name"]) == (kind, name)]
    assert len(found) == 1, rows
    return found[0]


@pytest.fixture
def busy() -> Iterator[Callable[[threading.Thread], None]]:
    """Start a thread that lives until the test is over."""
    started: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        thread.start()
        started.append(thread)

    yield start
    LET_GO.set()
    for thread in started:
        thread.join()
    LET_GO.clear()


LET_GO = threading.Event()


# -- threads ---------------------------------------------------------------------------------------


@linux_only
def test_the_steps_thread_is_main_and_what_it_used_is_its_own() -> None:
    row = pick(rows_of(lambda: burn(0.1)), "main", threading.current_thread().name)
    assert row["process"] == 0
    assert row["threads"] == 1
    assert row["cpu_s"] > 0.1 * MOST_OF
    assert row["delay_s"] is None or row["delay_s"] >= 0


@linux_only
def test_a_thread_of_the_script_has_its_name_and_its_time(busy: Any) -> None:
    done, begin = threading.Event(), threading.Event()

    def augment() -> None:
        begin.wait()
        burn(0.1)
        done.set()
        LET_GO.wait()

    busy(threading.Thread(target=augment, name="augment"))

    def work() -> None:
        begin.set()
        done.wait()

    rows = rows_of(work)
    row = pick(rows, "other", "augment")
    assert (row["process"], row["threads"]) == (0, 1)
    assert row["cpu_s"] > 0.1 * MOST_OF
    assert row["cpu_s"] > pick(rows, "main", threading.current_thread().name)["cpu_s"]


@linux_only
def test_threads_that_began_and_ended_meanwhile_are_not_lost() -> None:
    def work() -> None:
        for _ in range(3):
            thread = threading.Thread(target=burn, args=(0.1,), name="brief")
            thread.start()
            thread.join()

    rows = rows_of(work)
    assert pick(rows, "other", capture_threads.ENDED_THREADS)["threads"] is None
    # The system lets go of a thread a moment after Python: the last one may have a row yet.
    brief = (capture_threads.ENDED_THREADS, capture_threads.UNNAMED, "brief")
    assert 0.3 * MOST_OF < sum(row["cpu_s"] for row in rows if row["name"] in brief) < 0.6


@linux_only
def test_where_no_thread_ends_no_row_says_so() -> None:
    rows = rows_of(lambda: burn(0.02))
    assert not [row for row in rows if row["name"] in _ENDED]


_ENDED = (capture_threads.ENDED_THREADS, capture_threads.ENDED_PROCESSES)


@linux_only
def test_threads_of_torch_are_known_by_what_torch_calls_them(busy: Any) -> None:
    # Neither is to be had without an accelerator: they bear the names that torch gives them.
    named = threading.Event()

    def of_a_device() -> None:
        torch._C._set_thread_name("pt_autograd_0")
        burn(0.05)
        named.set()
        LET_GO.wait()

    def _pin_memory_loop() -> None:
        LET_GO.wait()

    _pin_memory_loop.__module__ = "torch.utils.data._utils.pin_memory"
    busy(threading.Thread(target=_pin_memory_loop, name="Thread-9"))

    def work() -> None:
        # No thread of `threading`'s, as torch's own are.
        import _thread

        _thread.start_new_thread(of_a_device, ())
        named.wait()

    rows = rows_of(work)
    assert pick(rows, "backward", "pt_autograd_0")["cpu_s"] > 0.05 * MOST_OF
    assert pick(rows, "DataLoader pin memory", "pt_data_pin")["threads"] == 1


@pytest.fixture
def _no_threads_of_other_tests() -> Iterator[None]:
    """Samplers that other tests of this process have left behind are not looked at."""
    left = set(guard.native_numbers)
    guard.native_numbers.clear()
    yield
    guard.native_numbers.update(left)


@linux_only
@pytest.mark.usefixtures("_no_threads_of_other_tests")
def test_profstacks_own_thread_is_told_apart() -> None:
    sampler = Sampler(time.perf_counter())
    try:
        sampler.resume()
        rows = rows_of(lambda: time.sleep(0.1))
        assert pick(rows, "profstack", "sampler of the watch")["threads"] == 1
    finally:
        sampler.close()
    assert not guard.native_numbers
    assert not [row for row in rows_of(lambda: None) if row["kind"] == "profstack"]


@linux_only
def test_a_thread_that_is_just_ending_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="loading")
    thread.start()
    # Python forgets a thread a moment before the system does: here it has forgotten it already.
    every = threading.enumerate
    rows = rows_of(
        lambda: monkeypatch.setattr(
            threading, "enumerate", lambda: [each for each in every() if each is not thread]
        )
    )
    stop.set()
    thread.join()
    assert pick(rows, "other", "loading")["threads"] == 1


# -- processes -------------------------------------------------------------------------------------

_BURN = "import time\nwhile time.process_time() < {}: pass\n"
_TALKS = (
    "import sys, time\n"
    "def burn(seconds):\n"
    "    until = time.process_time() + seconds\n"
    "    while time.process_time() < until: pass\n"
    "burn(0.4); print(flush=True); sys.stdin.readline(); burn(0.1); print(flush=True)\n"
)


def python(code: str, **keywords: Any) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        [sys.executable, "-S", "-c", code], env=clean_environment(), **(pipes | keywords)
    )


def processes_here() -> int:
    """Those that other tests have left running, as the browser of the page's tests is."""
    return max((row["process"] for row in rows_of(lambda: None) if row["process"]), default=0)


@linux_only
def test_a_process_that_was_waited_for_is_not_lost() -> None:
    def work() -> None:
        with python(_BURN.format(0.2)) as child:
            child.wait()

    row = pick(rows_of(work), "other", capture_threads.ENDED_PROCESSES)
    assert row["process"] is None
    assert row["cpu_s"] > 0.2 * MOST_OF


@linux_only
def test_of_a_process_counts_what_it_used_in_the_slice_alone() -> None:
    others = processes_here()
    with python(_TALKS) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()

        def work() -> None:
            child.stdin.write("\n")
            child.stdin.flush()
            child.stdout.readline()

        living = [row for row in rows_of(work) if (row["process"] or 0) > others]
        assert [(row["kind"], row["threads"]) for row in living] == [("other", 1)]
        assert 0.1 * MOST_OF < living[0]["cpu_s"] < 0.4
        child.wait()
    with python(_TALKS) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()

        def until_its_end() -> None:
            child.stdin.write("\n")
            child.stdin.flush()
            child.wait()

        row = pick(rows_of(until_its_end), "other", capture_threads.ENDED_PROCESSES)
        assert 0.1 * MOST_OF < row["cpu_s"] < 0.4


@linux_only
def test_processes_below_processes_are_found() -> None:
    code = (
        "import subprocess, sys\n"
        "inner = subprocess.Popen([sys.executable, '-S', '-c', 'import sys; print(flush=True);"
        "sys.stdin.readline()'], stdin=sys.stdin, stdout=sys.stdout)\n"
        "inner.wait()\n"
    )
    others = processes_here()
    with python(code) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        assert processes_here() == others + 2
        child.stdin.write("\n")
        child.stdin.flush()
        child.wait()


@linux_only
def test_what_nobody_told_is_unknown_and_not_nothing() -> None:
    before = capture_threads._Reading(1, 0.0, 1.0, {1: 1.0}, {77: 5.0}, 2.0, None, {})
    after = capture_threads._Reading(1, 0.0, 1.5, {1: 1.5}, {}, 2.0, None, {})
    times = ThreadTimes()
    times._known[77] = ("DataLoader worker", "pt_data_worker")
    row = times._ended_children(before, after)
    assert [(each.kind, each.cpu_s) for each in row] == [("DataLoader worker", None)]


# -- where it cannot be told -----------------------------------------------------------------------


def test_without_proc_there_is_a_reason_and_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_threads, "thread_numbers", lambda process=None: None)
    times = ThreadTimes()
    times.begin()
    times.end()
    assert times.take() == []
    assert times.facts() == {
        "readings": 0,
        "took_s": 0.0,
        "reason": "this system does not report the CPU time of single threads",
    }


@linux_only
def test_a_reading_that_fails_reaches_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    times = ThreadTimes()
    times.begin()
    monkeypatch.setattr(capture_threads, "thread_name", lambda *_: 1 / 0)
    times.end()
    assert times.take() == []
    assert times.reason is not None
    assert "ZeroDivisionError" in times.reason
    # It is not tried again.
    times.begin()
    assert times._before is None


def test_a_slice_that_did_not_begin_has_no_rows() -> None:
    times = ThreadTimes()
    times.end()
    assert times.take() == []


# -- the report ------------------------------------------------------------------------------------


def thread(kind: str, name: str, cpu_s: float | None, process: int | None = 0) -> dict[str, Any]:
    threads = None if "that ended" in name else 1
    return {
        "kind": kind,
        "name": name,
        "process": process,
        "threads": threads,
        "cpu_s": cpu_s,
        "delay_s": 0.005 if kind == "main" else None,
    }


def test_rows_are_per_step_and_share_the_whole_tree(tmp_path: Path) -> None:
    run = Run(tmp_path)
    main, worker = thread("main", "MainThread", 0.03), "pt_data_worker"
    first = [main, thread("DataLoader worker", worker, 0.02, 1), thread("native", "x", 0.04)]
    pool = [thread("other", f"Pool-0_{number}", 0.001) for number in range(10)]
    run.clean(5, frames={"thread_times": first})
    ended = thread("DataLoader worker", "processes that ended", 0.01, None)
    run.clean(5, frames={"thread_times": [main, *pool, ended]})
    run.layers(torch="recorded", cprofile="recorded", nvtx="empty")
    report = run.finish()
    rows = {row["name"]: row for row in report["tables"]["threads"]}
    assert set(rows) == {"MainThread", worker, "x", "Pool-#_#", "processes that ended"}
    assert [row["cpu_s"] for row in report["tables"]["threads"]] == sorted(
        (row["cpu_s"] for row in rows.values()), reverse=True
    )
    assert rows["MainThread"]["cpu_s"] == pytest.approx(0.006)
    assert rows["MainThread"]["off_cpu_s"] == pytest.approx(0.010 - 0.006)
    assert rows["MainThread"]["no_core_s"] == pytest.approx(0.001)
    assert rows["MainThread"]["layers"] == ["torch", "cprofile"]
    assert rows["Pool-#_#"]["threads"] == 10
    assert rows["Pool-#_#"]["cpu_s"] == pytest.approx(0.001)
    assert rows["x"]["layers"] == ["torch"]
    assert rows[worker]["layers"] == []
    assert "num_workers=0" in rows[worker]["note"]
    assert rows[worker]["share"] == pytest.approx(0.02 / 0.14)
    assert sum(row["share"] for row in rows.values()) == pytest.approx(1)
    told = report["processes"]
    assert told["cores"] == pytest.approx(1.4)
    assert told["unseen_share"] == pytest.approx(0.04 / 0.14)
    assert (told["workers"], told["reason"]) == (1, None)
    assert told["worker_cpu_s"] == pytest.approx(0.003)
    assert any("1 DataLoader worker uses 3.00 ms" in text for text in told["sentences"])


def test_a_part_that_is_unknown_leaves_no_share(tmp_path: Path) -> None:
    run = Run(tmp_path)
    some = [thread("main", "MainThread", 0.03), thread("other", "processes that ended", None, None)]
    run.clean(5, frames={"thread_times": some})
    report = run.finish()
    assert {row["share"] for row in report["tables"]["threads"]} == {None}
    assert report["tables"]["threads"][-1]["cpu_s"] is None
    assert report["processes"]["cpu_s"] is None
    assert report["processes"]["unseen_share"] is None
    assert "not known" in report["columns_reason"]["threads.share"]


def test_many_rows_are_few(tmp_path: Path) -> None:
    run = Run(tmp_path)
    names = [chr(97 + number // 26) + chr(97 + number % 26) for number in range(100)]
    some = [thread("other", name, 0.01, 0) for name in names]
    run.clean(5, frames={"thread_times": some})
    rows = run.finish()["tables"]["threads"]
    assert len(rows) == MOST_ROWS
    assert sum(row["cpu_s"] for row in rows) == pytest.approx(0.2)
    assert rows[-1]["threads"] == 100 - MOST_ROWS + 1


def test_without_readings_the_report_says_why(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.clean()
    fact = {"readings": 0, "took_s": 0.0, "reason": "this system tells nothing"}
    run.writer.facts({"thread_readings": fact})
    report = run.finish()
    assert report["tables"]["threads"] == []
    assert report["processes"]["reason"] == "this system tells nothing"
    assert report["processes"]["reading_s"] is None


def test_a_recording_from_before_there_were_readings_says_so(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.clean()
    assert "an earlier version made it" in run.finish()["processes"]["reason"]


@pytest.mark.parametrize(
    ("cpu_s", "off_cpu_s", "words"),
    [
        (0.015, 0.0025, "for 2.50 ms it waited"),
        (0.0201, 0.0, "the steps' thread ran all the time of a clean step"),
        # More than there was: that it never waited does not follow.
        (0.03, None, None),
    ],
)
def test_a_thread_has_no_more_time_than_its_steps(
    tmp_path: Path, cpu_s: float, off_cpu_s: float | None, words: str | None
) -> None:
    run = Run(tmp_path)
    run.clean(2, 0.010, frames={"thread_times": [thread("main", "MainThread", cpu_s)]})
    report = run.finish()
    told = report["tables"]["threads"][0]["off_cpu_s"]
    assert told == (None if off_cpu_s is None else pytest.approx(off_cpu_s))
    said = [text for text in report["processes"]["sentences"] if "the steps' thread ran" in text]
    assert len(said) == (words is not None)
    assert all(words in text for text in said if words)


# -- a real run ------------------------------------------------------------------------------------

_SCRIPT = """
import threading
import time

import torch
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(2)


class Images(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return torch.randn(64, 64).sort().values.sum() + torch.randn(512)


def augment():
    while not over:
        sum(range(20_000))
        time.sleep(0.001)


if __name__ == "__main__":
    over = False
    threading.Thread(target=augment, name="augment").start()
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, batch in enumerate(DataLoader(Images(), batch_size=16, num_workers=2)):
        optimizer.zero_grad()
        torch.ones(1_000_000).sqrt()
        model(batch).pow(2).sum().backward()
        optimizer.step()
        if step == 60:
            break
    over = True
"""


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report of a training with two workers, a thread of its own and a pool of two."""
    folder = tmp_path_factory.mktemp("threads")
    (folder / "train.py").write_text(_SCRIPT)
    layers = ["--layers", "cprofile,torch,watch", "--no-peaks", "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "profstack", "run", *layers, "-o", "out", "train.py"],
        cwd=folder,
        env=clean_environment(OMP_NUM_THREADS="2"),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads((folder / "out" / "report.json").read_text())
    return report


@linux_only
def test_every_kind_of_a_real_run_is_there_with_its_time(real: dict[str, Any]) -> None:
    rows = real["tables"]["threads"]
    kinds = {row["kind"] for row in rows}
    assert kinds == {"main", "DataLoader worker", "native", "profstack", "other"}
    main = pick(rows, "main", "MainThread")
    workers = [row for row in rows if row["name"] == "pt_data_worker"]
    assert [row["kind"] for row in workers] == ["DataLoader worker"] * 2
    assert sorted(row["process"] for row in workers) == [1, 2]
    for row in [main, *workers, pick(rows, "other", "augment")]:
        assert row["cpu_s"] > 0, row
    assert sum(row["cpu_s"] for row in rows if row["kind"] == "native") > 0
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert {"cprofile", "torch", "watch"} <= set(main["layers"])
    assert all(row["layers"] == [] for row in [*workers, pick(rows, "other", "augment")])
    assert 0 <= main["no_core_s"] <= main["off_cpu_s"]
    assert all(row["note"] for row in rows)


@linux_only
@pytest.mark.parametrize("at_boundary", [True, False])
def test_a_slice_that_is_cut_short_tells_no_cpu_time(tmp_path: Path, at_boundary: bool) -> None:
    (tmp_path / "logs").mkdir()
    writer = Writer(tmp_path)
    log = StepLog(writer, Clock())
    log.begin_plan("optimizer", "train")
    planned = SlicePlan("clean", (), 2, 3)
    start = log.begin_slice(planned)
    log.quick_ends += [start + 0.001, start + 0.002, start + 0.003]
    # What the script does after its last step, before the run ends.
    burn(0.05)
    log.stop(at_boundary=at_boundary)
    log.end_slice(planned, {}, 0.0)
    writer.close()
    tables = {
        name: [dict(zip(columns, row, strict=True)) for row in rows]
        for name, (columns, rows) in read_tables(tmp_path).items()
    }
    assert bool(tables.get("thread_times")) is at_boundary
    assert [row["cpu_s"] is not None for row in tables["slices"]] == [at_boundary]
    assert [row["steps"] for row in tables["slices"]] == [3]


@linux_only
def test_the_sampler_stands_still_in_clean_steps(real: dict[str, Any]) -> None:
    rows = real["tables"]["threads"]
    own = [row["cpu_s"] for row in rows if row["kind"] == "profstack"]
    # The way to its standing still may reach into a slice; a sample takes longer than that.
    assert len(own) == 1
    assert own[0] < pick(rows, "main", "MainThread")["cpu_s"] / 100


@linux_only
def test_the_facts_of_a_real_run_are_told(real: dict[str, Any]) -> None:
    told = real["processes"]
    assert (told["reason"], told["workers"]) == (None, 2)
    assert told["steps"] > 0
    assert told["cpu_s"] == pytest.approx(sum(row["cpu_s"] for row in real["tables"]["threads"]))
    assert 0 < told["unseen_share"] < 1
    assert told["reading_s"] > 0
    sentences = " | ".join(told["sentences"])
    assert "2 DataLoader workers use" in sentences
    assert "a step waits" in sentences
    assert "the backward pass runs on the steps' own thread" in sentences


@linux_only
def test_the_clocks_of_the_threads_are_those_of_the_process(real: dict[str, Any]) -> None:
    # The slices' own CPU time is read from another clock, right before.
    clean = [each for each in real["slices"] if each["kind"] == "clean" and each["round"] > 1]
    measured = sum(each["cpu_s"] for each in clean) / sum(each["steps"] for each in clean)
    own = sum(row["cpu_s"] for row in real["tables"]["threads"] if row["process"] == 0)
    # Not all of these slices have a share of the threads' figures: other work slows some of them.
    assert own == pytest.approx(measured, rel=0.5)


def test_steps_of_a_real_run_have_their_operators(real: dict[str, Any]) -> None:
    steps = real["tables"]["launches"]
    assert len(steps) == real["launching"]["steps"] > 0
    assert len({row["operators"] for row in steps}) == 1
    assert 0 < steps[0]["outermost_operators"] < steps[0]["operators"]
    called = sum(
        row["calls"] for row in real["tables"]["operators"] if row["name"].startswith("aten::")
    )
    assert real["launching"]["operators"] == pytest.approx(called)
    assert real["tables"]["gaps"] == []
    assert "no kernel" in real["columns_reason"]["launches.kernels"]
