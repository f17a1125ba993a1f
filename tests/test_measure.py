"""The loop of a benchmark on a clock of its own: time passes only where made-up work says so."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from profstack.bench.measure import Interrupted, Policy, measure
from profstack.stats.blocks import GC_OFF, GC_ON, PIPELINED, SYNCHRONISED, Samples, timed_block
from profstack.stats.clock import Clock

pytestmark = pytest.mark.timed


class Machine(Clock):
    """A host and a device that runs behind it, by the rules of CUDA: launches return at once."""

    def __init__(self, *, device: bool = False) -> None:
        self.host_s = 0.0
        self.busy_s = 0.0
        self.free_at = 0.0
        self.current = 0
        self.waits = 0
        self.on = device
        self.synchronize = self._synchronize  # type: ignore[method-assign]
        self.record_event = self._record_event  # type: ignore[method-assign]
        self.now = lambda: self.host_s  # type: ignore[misc,method-assign]
        self.cpu = lambda: self.busy_s  # type: ignore[misc,method-assign]

    @property
    def has_device(self) -> bool:
        return self.on

    def work(self, host_s: float, device_s: float = 0.0) -> None:
        self.host_s += host_s
        self.busy_s += host_s
        if device_s:
            self.free_at = max(self.free_at, self.host_s) + device_s

    def _synchronize(self) -> None:
        self.waits += 1
        self.host_s = max(self.host_s, self.free_at)

    def _record_event(self) -> Any:
        return (self.current, max(self.free_at, self.host_s)) if self.on else None

    def elapsed_s(self, first: Any, second: Any) -> float | None:
        if first is None or second is None or first[0] != second[0]:
            return None
        return float(second[1] - first[1])


def counted(action: Callable[[int], None]) -> tuple[Callable[[], None], list[int]]:
    """A callable that is told its number, and the list of numbers it was called with."""
    calls: list[int] = []

    def call() -> None:
        calls.append(len(calls))
        action(calls[-1])

    return call, calls


def test_a_steady_call_is_measured_until_its_interval_is_narrow() -> None:
    machine = Machine()
    measured = measure(lambda: machine.work(0.001), Policy(), machine)
    assert measured.stopped_by == "interval"
    assert measured.series_s == pytest.approx([0.001] * len(measured.series_s))
    assert measured.clock == "host"
    summary = measured.summary()
    assert summary.n >= 500, "a hundred samples of a millisecond are over too soon"
    assert summary.p99 is not None
    assert measured.samples.cpu_s == pytest.approx(measured.samples.host_s)


def test_the_first_call_and_the_warm_up_are_apart() -> None:
    machine = Machine()
    call, calls = counted(lambda n: machine.work(2.0 if n == 0 else 0.01 if n < 5 else 0.001))
    measured = measure(call, Policy(), machine)
    assert measured.first_s == measured.warmup_s[0] == 2.0
    assert measured.warmup_s[1:5] == pytest.approx([0.01] * 4)
    assert measured.warmup.steps == 5
    assert max(measured.series_s) == pytest.approx(0.001)
    assert len(calls) == len(measured.warmup_s) + len(measured.series_s)


def test_a_first_call_that_was_made_already_is_not_made_again() -> None:
    machine = Machine()
    call, calls = counted(lambda n: machine.work(0.01))
    measured = measure(call, Policy(warmup=3, repeat=4), machine, first_s=0.5)
    assert measured.first_s == 0.5
    assert measured.warmup_s == pytest.approx([0.5, 0.01, 0.01])
    assert len(calls) == 2 + 4


def test_a_call_of_a_minute_is_made_a_few_times_only() -> None:
    machine = Machine()
    call, calls = counted(lambda n: machine.work(60.0))
    measured = measure(call, Policy(), machine)
    assert len(calls) <= 3
    assert measured.stopped_by == "time"
    assert not measured.warmup.settled
    assert measured.series_s == [60.0]


def test_fixed_counts_are_kept_to() -> None:
    machine = Machine()
    call, calls = counted(lambda n: machine.work(0.05))
    measured = measure(call, Policy(warmup=10, repeat=300), machine)
    assert (len(calls), len(measured.series_s), measured.stopped_by) == (310, 300, "repeat")
    assert measured.warmup.reason == "fixed at 10 calls"


def test_what_does_not_become_narrow_ends_with_its_time() -> None:
    machine = Machine()
    call, _ = counted(lambda n: machine.work(0.01 if n % 2 else 0.02))
    measured = measure(call, Policy(max_s=3.0), machine)
    assert measured.stopped_by == "time"
    assert 3.0 <= measured.samples.total_s <= 3.0 + 1.0


@pytest.mark.slow
def test_the_interval_holds_as_often_as_it_says_though_it_ends_the_sampling() -> None:
    """Stopping at a narrow interval prefers those that are so by luck: it must not be by much."""
    held: list[bool] = []
    looked: list[int] = []
    for trial in range(240):
        rng, phi = np.random.default_rng(trial), (0.0, 0.25, 0.5)[trial % 3]
        machine, state = Machine(), [0.0]

        def call(
            rng: Any = rng, phi: float = phi, machine: Any = machine, state: Any = state
        ) -> None:
            state[0] = phi * state[0] + float(rng.standard_normal()) * (1.0 - phi**2) ** 0.5
            # Twenty milliseconds are the median of these.
            machine.work(0.02 * float(np.exp(0.035 * state[0])))

        measured = measure(call, Policy(warmup=8, max_s=60.0, collect=True), machine)
        assert measured.stopped_by == "interval"
        summary = measured.summary()
        assert summary.ci95_low is not None
        assert summary.ci95_high is not None
        held.append(summary.ci95_low <= 0.02 <= summary.ci95_high)
        looked.append(summary.n)
    assert 0.93 <= np.mean(held) <= 0.97
    assert len(set(looked)) >= 4, "most were looked at more than once"


def test_samples_of_a_short_call_are_many_calls() -> None:
    machine = Machine()
    measured = measure(lambda: machine.work(1e-6), Policy(), machine)
    assert measured.samples.calls in (100, 101), "a sample is a tenth of a millisecond"
    assert measured.summary().median == pytest.approx(1e-6)


def test_a_sample_of_very_short_calls_is_as_long_as_it_is_said_to_be() -> None:
    machine = Machine()
    machine.now = lambda: machine.work(2e-7) or machine.host_s  # type: ignore[misc,method-assign,func-returns-value]
    measured = measure(lambda: machine.work(2e-8), Policy(), machine)
    # Reading the clock takes ten times what a call does, and must not be what is measured.
    assert measured.samples.calls > 3000
    assert measured.summary().median == pytest.approx(2e-8, rel=0.01)


@pytest.mark.parametrize("mode", [SYNCHRONISED, PIPELINED])
def test_calls_that_become_slow_end_with_their_time(mode: str) -> None:
    machine = Machine()
    call, calls = counted(lambda n: machine.work(1e-6 if n < 1000 else 0.01))
    measured = measure(call, Policy(mode=mode, max_s=2.0, max_warmup_s=1.0), machine)
    assert measured.stopped_by == "time"
    longest_s = 0.01 * measured.samples.calls
    assert machine.host_s < 1.0 + 2.0 + 8 * longest_s, f"{len(calls)} calls"
    assert sum(measured.samples.blocks) == len(measured.samples.host_s)


def test_a_warm_up_whose_calls_become_slow_is_bounded() -> None:
    machine = Machine()
    call, _ = counted(lambda n: machine.work(1e-4 * 2 ** min(n // 8, 14)))
    measure(call, Policy(max_s=0.1, max_warmup_s=1.0), machine)
    assert machine.host_s < 1.0 + 0.1 + 3 * 1.7


def test_a_block_has_no_more_samples_than_its_time_has_room_for() -> None:
    machine = Machine()
    block = timed_block(lambda: machine.work(0.1), 100, 2, machine, longest_s=1.0)
    # That which was going on then is the last.
    assert len(block.host_s) in (5, 6)
    assert block.blocks == [len(block.host_s)]
    assert block.block_s == pytest.approx([0.1])


class TestOnADevice:
    """A step takes 0.1 ms on the host and 1 ms on the device."""

    def test_synchronised_is_the_time_of_one_step_alone(self) -> None:
        machine = Machine(device=True)
        policy = Policy(mode=SYNCHRONISED, warmup=2, repeat=20)
        measured = measure(lambda: machine.work(1e-4, 1e-3), policy, machine)
        assert measured.series_s == pytest.approx([1.1e-3] * 20)
        assert measured.clock == "host"

    def test_pipelined_is_the_time_between_steps(self) -> None:
        machine = Machine(device=True)
        policy = Policy(mode=PIPELINED, warmup=2, repeat=20)
        measured = measure(lambda: machine.work(1e-4, 1e-3), policy, machine)
        assert measured.clock == "device"
        # The host is away with a launch once, when the device has nothing to do yet.
        assert measured.series_s == pytest.approx([1.1e-3] + [1e-3] * 19)
        assert measured.samples.host_s == pytest.approx([1e-4] * 20), "the host ran ahead"

    def test_a_pipeline_waits_only_round_its_blocks(self) -> None:
        machine = Machine(device=True)
        timed_block(lambda: machine.work(1e-4, 1e-3), 20, 1, machine, synchronised=False)
        assert machine.waits == 2
        timed_block(lambda: machine.work(1e-4, 1e-3), 20, 1, machine, synchronised=True)
        assert machine.waits == 2 + 2 + 20

    def test_where_events_lie_on_two_devices_whole_blocks_are_timed(self) -> None:
        machine = Machine(device=True)

        def step() -> None:
            machine.work(1e-4, 1e-3)
            machine.current = 1 - machine.current

        block = timed_block(step, 20, 1, machine, synchronised=False)
        assert block.device_s == [None] * 20
        series, whose = block.series(PIPELINED)
        assert whose == "host"
        assert series == pytest.approx([(1e-4 + 20 * 1e-3) / 20]), "the wait belongs to it"
        assert block.series(SYNCHRONISED)[0] == block.host_s

    def test_work_that_the_marks_do_not_see_is_timed_by_whole_blocks(self) -> None:
        machine = Machine(device=True)
        # The marks lie on a stream, or a device, that has nothing to do.
        machine.record_event = lambda: (0, machine.host_s)  # type: ignore[method-assign]
        policy = Policy(mode=PIPELINED, warmup=2, repeat=20)
        measured = measure(lambda: machine.work(1e-4, 1e-3), policy, machine)
        assert measured.clock == "host"
        assert measured.summary().median == pytest.approx(1e-3, rel=0.02)

    def test_the_interval_is_that_of_the_times_that_count(self) -> None:
        machine = Machine(device=True)
        # The launches scatter by half, and the device does not.
        call, _ = counted(lambda n: machine.work(2e-4 if n % 2 else 1e-4, 1e-3))
        measured = measure(call, Policy(mode=PIPELINED, max_s=30.0), machine)
        assert measured.stopped_by == "interval"


def test_ctrl_c_keeps_the_samples_so_far() -> None:
    machine = Machine()

    def action(number: int) -> None:
        machine.work(0.1)
        if number == 40:
            raise KeyboardInterrupt

    call, _ = counted(action)
    with pytest.raises(Interrupted) as stopped:
        measure(call, Policy(warmup=5, repeat=100), machine)
    kept = stopped.value.measured
    assert kept.stopped_by == "interrupt"
    # Calls 0 to 4 were the warm-up; a block of five samples was going on.
    assert kept.series_s == pytest.approx([0.1] * 35)


def test_ctrl_c_before_any_sample_has_nothing_to_keep() -> None:
    machine = Machine()

    def action(number: int) -> None:
        machine.work(0.1)
        if number == 3:
            raise KeyboardInterrupt

    call, _ = counted(action)
    with pytest.raises(KeyboardInterrupt) as stopped:
        measure(call, Policy(warmup=5, repeat=100), machine)
    assert not isinstance(stopped.value, Interrupted)


@pytest.mark.parametrize("fails", [False, True])
def test_trace_functions_and_collections_are_put_aside_and_back(fails: bool) -> None:
    machine = Machine()
    seen: list[tuple[Any, Any, bool]] = []

    def call() -> None:
        seen.append((sys.gettrace(), sys.getprofile(), gc.isenabled()))
        machine.work(0.1)
        if fails and len(seen) > 5:
            raise ValueError("the work's own")

    def tracer(frame: Any, event: str, arg: Any) -> None:
        return None

    def profiler(frame: Any, event: str, arg: Any) -> None:
        return None

    before = sys.gettrace(), sys.getprofile()
    sys.settrace(tracer)
    sys.setprofile(profiler)
    try:
        if fails:
            with pytest.raises(ValueError, match="own"):
                measure(call, Policy(warmup=2, repeat=10), machine)
        else:
            measure(call, Policy(warmup=2, repeat=10), machine)
        after = sys.gettrace(), sys.getprofile()
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
    assert set(seen) == {(None, None, False)}
    assert after == (tracer, profiler)
    assert gc.isenabled()


def test_between_blocks_only_what_the_calls_left_is_collected() -> None:
    generations: list[int] = []

    def collected(phase: str, facts: dict[str, int]) -> None:
        if phase == "start":
            generations.append(facts["generation"])

    machine = Machine()
    gc.callbacks.append(collected)
    try:
        measure(lambda: machine.work(0.1), Policy(warmup=2, repeat=20), machine)
    finally:
        gc.callbacks.remove(collected)
    # All of the heap once, before the series: with torch's compiler loaded that takes 0.3 s.
    assert generations[0] == 2
    assert generations.count(2) == 1
    assert generations.count(1) >= 1


def test_cpu_time_stands_beside_the_wall_time_of_the_same_calls() -> None:
    of_samples = Samples(1, [0.1, 0.3, 0.2], [0.1, 0.2, 0.6], [], [2, 1], [0.25, 0.2])
    # The mean of a block counts as often as it has samples.
    of_blocks = Samples(1, [0.1, 0.3, 0.2], [0.2, 0.5], [], [2, 1], [0.25, 0.4])
    assert of_samples.cpu_and_wall_s() == pytest.approx((0.3, 0.2))
    assert of_blocks.cpu_and_wall_s() == pytest.approx((0.3, 0.3))
    assert Samples().cpu_and_wall_s() == (None, None)


def test_the_collector_may_stay_on_and_is_named() -> None:
    machine = Machine()
    seen: list[bool] = []

    def call() -> None:
        seen.append(gc.isenabled())
        machine.work(0.1)

    measure(call, Policy(warmup=2, repeat=3, collect=True), machine)
    assert all(seen)
    assert (Policy(collect=True).garbage, Policy().garbage) == (GC_ON, GC_OFF)
