"""CPU time of threads and child processes, from clocks that the test sets, and from real ones."""

from types import SimpleNamespace

import pytest

from profstack.capture import threads as under_test
from profstack.capture.threads import ENDED_PROCESSES, ENDED_THREADS, UNNAMED, ThreadTimes
from tests.support.tables import cases, of

WORKER = "DataLoader worker"


def taken(work):
    times = ThreadTimes()
    times.begin()
    work()
    times.end()
    assert (times.reason, times.readings) == (None, 2)
    rows = times.take()
    assert times.take() == []
    return [of(row, "kind name process threads cpu_s delay_s") for row in rows]


class System:
    """A made-up system: threads and processes by number, each with a name and a clock."""

    def __init__(self, monkeypatch):
        self.now, self.process_s, self.waited_s, self.delay_s = 0.0, 100.0, 3.0, 1.0
        self.costs = 0.0
        self.threads, self.names = {50: 10.0}, {50: "python", 1: "python"}
        self.children, self.child_s, self.python = {}, {}, {50: ("MainThread", None)}
        clock = SimpleNamespace(perf_counter=self._perf_counter, clock_gettime=self._gettime)
        clock.process_time = lambda: self.process_s
        clock.thread_time = lambda: self.threads[50]
        for name, stand_in in {
            "time": clock,
            "os": SimpleNamespace(getpid=lambda: 1),
            "threading": SimpleNamespace(get_native_id=lambda: 50, enumerate=list),
            "thread_numbers": self._numbers,
            "thread_name": lambda thread, process=None: self.names.get(thread),
            "children_of": lambda thread, process=None: self.children.get(thread, []),
            "run_delay_s": lambda thread: self.delay_s,
            "python_threads": lambda: self.python,
            "_waited_s": lambda: self.waited_s,
        }.items():
            monkeypatch.setattr(under_test, name, stand_in)

    def _perf_counter(self):
        self.now += self.costs
        return self.now

    def _numbers(self, process=None):
        return [*self.threads] if process is None else [0] * (process % 10)

    def _gettime(self, clock):
        number, which = ~(clock >> 3), clock & 7
        found = {2: self.child_s, 6: self.threads}[which].get(number)
        if found is None:
            raise OSError(number)
        return found


@pytest.fixture
def system(monkeypatch):
    return System(monkeypatch)


def test_threads_by_kind_and_name(system, monkeypatch):
    monkeypatch.setattr(under_test, "native_numbers", {60})
    named = {61: "augment", 62: "augment", 63: "pt_autograd_0", 64: "pool", 65: "python"}
    system.names |= {**named, 60: "python", 66: "pt_data_pin", 67: "x", 68: "pool"}
    pins = "torch.utils.data._utils.pin_memory"
    system.python |= {61: ("augment", None), 62: ("augment", "mine")}
    system.python |= {66: ("Thread-9", None), 67: ("Thread-8", pins)}
    system.threads |= dict.fromkeys(range(60, 68), 5.0)

    def work():
        system.process_s, system.delay_s = 104.0, 1.75
        for number, used_s in enumerate((0.5, 0.01, 0.25, 0.75, 0.125, 0.3, 0.0625, 0.2, 0.4)):
            system.threads[59 + number if number else 50] += used_s
        # One began in the slice, and one is gone by now.
        system.threads |= {68: 0.6, 69: 0.9}

    found = {
        ("main", "MainThread"): (1, 0.5, 0.75), ("other", "augment"): (2, 1.0, None),
        ("profstack", "sampler of the watch"): (1, 0.01, None),
        ("backward", "pt_autograd_0"): (1, 0.125, None), ("native", "pool"): (2, 0.3 + 0.6, None),
        ("native", UNNAMED): (1, 0.0625, None),
        ("DataLoader pin memory", "pt_data_pin"): (2, 0.6, None),
        ("other", ENDED_THREADS): (None, 4.0 - 2.5975 - 0.6, None),
    }  # fmt: skip
    rows = {(kind, name): rest for kind, name, *rest in taken(work)}
    assert rows == {key: [0, row[0], pytest.approx(row[1]), row[2]] for key, row in found.items()}


@pytest.mark.parametrize(("rest_s", "ended"), [(0.119, False), (0.121, True)])
def test_what_the_readings_take_is_no_thread_that_ended(system, rest_s, ended):
    # Each reading takes 30 ms, and two threads run meanwhile.
    system.costs, system.names[51], system.threads[51] = 0.03, "pool", 1.0

    def work():
        system.threads |= {50: 10.5, 51: 1.25}
        system.process_s += 0.75 + rest_s

    assert (ENDED_THREADS in [row[1] for row in taken(work)]) is ended


def test_processes_with_what_they_used_in_the_slice(system):
    system.children = {1: [73], 50: [72, 71], 71: [81]}
    system.child_s = {71: 2.0, 72: 3.0, 73: 4.0, 81: 5.0}
    system.names |= {71: "pt_data_worker", 72: "python", 73: "sh"}

    def work():
        system.child_s |= {71: 2.5, 72: 3.25, 73: 1.0, 81: 5.0}
        # Right after its start a child has its parent's name.
        system.names[72] = "pt_data_worker"

    expected = [
        [WORKER, "pt_data_worker", 1, 1, 0.5, None],
        [WORKER, "pt_data_worker", 2, 2, 0.25, None],
        # Another process has the number by now: all of it is new.
        ["other", "sh", 3, 3, 1.0, None],
        ["other", "process", 4, 1, 0.0, None],
    ]
    assert [row for row in taken(work) if row[2]] == expected


@cases(
    "gone waited_s expected",
    # What they had used before the slice is not its own.
    *(((71,), 3.0 + 2.75, [(WORKER, 0.75)]), ((71, 72), 3.0 + 5.75, [("other", 0.75)])),
    # One that began and ended in the slice.
    *(((), 3.5, [("other", 0.5)]), ((), 3.0, [])),
    # Not waited for: what it used is unknown, and not nothing.
    *(((71,), 3.0, [(WORKER, None)]), ((71,), None, [(WORKER, None)])),
)
def test_processes_that_ended(system, gone, waited_s, expected):
    system.children, system.child_s = {1: [71, 72]}, {71: 2.0, 72: 3.0}
    system.names |= {71: "pt_data_worker", 72: "sh"}

    def work():
        system.children = {1: [each for each in (71, 72) if each not in gone]}
        system.waited_s = waited_s

    ended = [row for row in taken(work) if row[1] == ENDED_PROCESSES]
    assert ended == [[kind, ENDED_PROCESSES, None, None, cpu_s, None] for kind, cpu_s in expected]


def test_where_it_cannot_be_told_there_is_a_reason_and_no_row(system, monkeypatch):
    times = ThreadTimes()
    system.costs = 0.25
    times.end()
    times.begin()
    times.discard()
    times.end()
    assert (times.take(), times.facts()) == ([], {"readings": 1, "took_s": 0.25, "reason": None})
    monkeypatch.setattr(under_test, "thread_name", lambda *_: 1 / 0)
    for _ in range(2):
        times.begin()
        times.end()
        assert (times.take(), "ZeroDivisionError" in times.reason) == ([], True)
    assert times.readings == 3
