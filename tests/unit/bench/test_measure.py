"""The loop of a benchmark on a clock of its own: time passes only where made-up work says so."""

import gc
from itertools import count

import numpy as np
import pytest

from profstack.bench.measure import Interrupted, Policy, is_known, measure
from profstack.stats.blocks import GC_OFF, GC_ON, PIPELINED, SYNCHRONISED
from tests.support.tables import cases
from tests.support.virtual_machine import Machine


def run(times, *, device_s=0.0, first_s=None, marks=None, **policies):
    """Measure a call that takes what `times` gives for its number, and a device for `device_s`."""
    machine, numbers = Machine(has_device=device_s > 0), count()
    clock, machine.host_s = machine.clock(), 0.0
    if marks:
        clock.record_event, clock.elapsed_s = (lambda: marks(machine)), (lambda one, two: two - one)
    call = lambda: machine.launch(device_s, launch_s=times(next(numbers)))  # noqa: E731
    measured = measure(call, Policy(**policies), clock, first_s=first_s)
    return measured, next(numbers), machine


def test_a_steady_call_is_measured_until_its_interval_is_narrow_the_warm_up_apart():
    measured, _, _ = run(lambda n: 0.001)
    assert (measured.stopped_by, measured.clock) == ("interval", "host")
    assert measured.series_s == pytest.approx([0.001] * len(measured.series_s))
    summary = measured.summary()
    assert summary.n >= 500, "a hundred samples of a millisecond are over too soon"
    assert summary.p99 is not None
    assert measured.samples.cpu_s == pytest.approx(measured.samples.host_s)
    measured, calls, _ = run(lambda n: 2.0 if n == 0 else 0.01 if n < 5 else 0.001)
    assert measured.first_s == measured.warmup_s[0] == 2.0
    assert measured.warmup_s[1:5] == pytest.approx([0.01] * 4)
    assert (measured.warmup.steps, max(measured.series_s)) == (5, pytest.approx(0.001))
    assert calls == len(measured.warmup_s) + len(measured.series_s)
    # Seven more calls like the first fit the time; twice as many in all are enough.
    measured, _, _ = run(lambda n: 0.001 if n else 0.28, max_warmup_s=2.0)
    assert len(measured.warmup_s) == 16
    measured, calls, _ = run(lambda n: 0.01, warmup=3, repeat=4, first_s=0.5)
    assert (measured.first_s, calls) == (0.5, 2 + 4)
    assert measured.warmup_s == pytest.approx([0.5, 0.01, 0.01])
    measured, _, _ = run(lambda n: 0.01 if n % 2 else 0.02, max_s=3.0)
    assert measured.stopped_by == "time"
    assert 3.0 <= measured.samples.total_s <= 3.0 + 1.0
    for one, other in ((0.75, 1.25), (0.875, 1.25), (0.75, 1.125)):
        series = [*[one] * 8, *[1.0] * 4, *[other] * 8]
        reach = max(1 - one, other - 1)
        assert [is_known(series, target) for target in (reach, 0.99 * reach)] == [True, False]
    assert [is_known([0.5] * 20, 0.0), is_known([0.5], 1.0)] == [True, False]


def test_the_interval_holds_as_often_as_it_says_though_it_ends_the_sampling():
    """Stopping at a narrow interval prefers those that are so by luck: it must not be by much."""
    held, looked = [], []
    for trial in range(60):
        rng, phi, state = np.random.default_rng(trial), (0.0, 0.25, 0.5)[trial % 3], [0.0]

        def time(n, rng=rng, phi=phi, state=state):
            state[0] = phi * state[0] + float(rng.standard_normal()) * (1.0 - phi**2) ** 0.5
            # Twenty milliseconds are the median of these.
            return 0.02 * float(np.exp(0.035 * state[0]))

        measured, _, _ = run(time, warmup=8, max_s=60.0, collect=True)
        summary = measured.summary()
        assert measured.stopped_by == "interval"
        held.append(summary.ci95_low <= 0.02 <= summary.ci95_high)
        looked.append(summary.n)
    # Of 60 that hold in 95 % of cases, fewer than 52 are one in 200.
    assert np.mean(held) >= 52 / 60
    assert len(set(looked)) >= 4, "most were looked at more than once"


def test_samples_of_short_calls_and_bounds_of_blocks():
    measured, _, _ = run(lambda n: 1e-6)
    assert measured.samples.calls in (100, 101), "a sample is a tenth of a millisecond"
    assert measured.summary().median == pytest.approx(1e-6)
    _, _, machine = run(lambda n: 1e-4 * 2 ** min(n // 8, 14), max_s=0.1, max_warmup_s=1.0)
    assert machine.host_s < 1.0 + 0.1 + 3 * 1.7


def on_a_device(mode, times=lambda n: 1e-4, marks=None, **limits):
    """A step takes 0.1 ms on the host and 1 ms on the device."""
    limits = limits or {"warmup": 2, "repeat": 20}
    return run(times, mode=mode, device_s=1e-3, marks=marks, **limits)[0]


def test_on_a_device_a_step_is_timed_alone_or_in_a_pipeline():
    measured = on_a_device(SYNCHRONISED)
    assert (measured.series_s, measured.clock) == (pytest.approx([1.1e-3] * 20), "host")
    measured = on_a_device(PIPELINED)
    # The host is away with a launch once, when the device has nothing to do yet.
    assert (measured.series_s, measured.clock) == (pytest.approx([1.1e-3] + [1e-3] * 19), "device")
    assert measured.samples.host_s == pytest.approx([1e-4] * 20), "the host ran ahead"
    # The interval is that of the times that count: launches scatter by half, the device does not.
    scatter = lambda n: 2e-4 if n % 2 else 1e-4  # noqa: E731
    assert on_a_device(PIPELINED, scatter, max_s=30.0).stopped_by == "interval"
    # The marks lie on a stream, or a device, that has nothing to do.
    measured = on_a_device(PIPELINED, marks=lambda machine: machine.host_s)
    assert (measured.clock, measured.summary().median) == ("host", pytest.approx(1e-3, rel=0.02))


@cases("at kind kept", (40, Interrupted, 35), (3, KeyboardInterrupt, None))
def test_ctrl_c_keeps_the_samples_so_far(at, kind, kept):
    def times(number):
        if number == at:
            raise KeyboardInterrupt
        return 0.1

    with pytest.raises(KeyboardInterrupt) as stopped:
        run(times, warmup=5, repeat=100)
    assert type(stopped.value) is kind
    if kept:
        # Calls 0 to 4 were the warm-up; a block of five samples was going on.
        measured = stopped.value.measured
        assert measured.stopped_by == "interrupt"
        assert measured.series_s == pytest.approx([0.1] * kept)


def test_collections_go_on_where_they_are_asked_for():
    for collect, setting in ((True, GC_ON), (False, GC_OFF)):
        seen = []
        run(lambda n, to=seen: to.append(gc.isenabled()) or 0.1, repeat=3, collect=collect)
        assert ({*seen}, Policy(collect=collect).garbage) == ({collect}, setting)
