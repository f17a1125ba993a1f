"""The clock: cheap without a device, and never the one that wakes a device."""

import sys
from types import SimpleNamespace as Made

import pytest

from profstack.stats.clock import Clock, device_state, round_state, slowed_by
from tests.support.commands import fails


def fake_cuda(devices, *opened):
    """What the clock uses of `torch.cuda`: opened by the first allocation, and never by asking."""
    cuda = Made(open=set(opened), waited=[], pending=[], capturing=False, current=0, peak=0, now=0)

    def awake(value):
        assert cuda.open, "asking this initialises CUDA"
        return value

    def synchronize(index=0):
        assert (index in cuda.open, cuda.capturing) == (True, False)
        cuda.waited.append(index)
        for event in cuda.pending:
            cuda.now += 250
            event.at = cuda.now
        cuda.pending.clear()

    def made(enable_timing):
        def elapsed(other):
            if None in (event.at, other.at):
                raise RuntimeError("device not ready")
            return other.at - event.at

        assert enable_timing
        event = Made(at=None, record=lambda: cuda.pending.append(event), elapsed_time=elapsed)
        return event

    def empty(size, device):
        assert (size, device) == (1, "cuda")
        cuda.open.add(0)
        cuda.peak = 512

    cuda.synchronize, cuda.Event, cuda.empty = synchronize, made, empty
    cuda.is_available, cuda.is_initialized = (lambda: devices > 0), (lambda: bool(cuda.open))
    cuda.is_current_stream_capturing = lambda: cuda.capturing
    cuda.device_count, cuda.current_device = (lambda: awake(devices)), (lambda: awake(cuda.current))
    cuda.memory_allocated = lambda index: 100 * (index + 1)
    cuda.memory_reserved = lambda index: 1000 * (index + 1) if index in cuda.open else 0
    cuda.reset_peak_memory_stats = lambda: setattr(cuda, "peak", 0)
    cuda.max_memory_allocated = lambda index: cuda.peak
    return cuda


def of_new_torch(kind):
    return Made(current_accelerator=lambda check_available=False: kind)


ACCELERATOR = {
    "new torch": of_new_torch(Made(type="cuda")),
    # Where no device can be used, having asked the driver.
    "torch 2.6": Made(current_accelerator=fails(RuntimeError("none is available"))),
    "torch before": None,
}


@pytest.fixture(
    params=[(has, version) for has in (True, False) for version in ACCELERATOR], ids=str
)
def clock_of(request):
    """A clock for these devices: it asks for contexts or memory, with any version of torch."""
    has_context, version = request.param

    def clock(cuda, **keywords):
        core = Made(_cuda_hasPrimaryContext=cuda.open.__contains__) if has_context else Made()
        torch = Made(cuda=cuda, _C=core, version=Made(cuda="12.8"), empty=cuda.empty)
        torch.accelerator = ACCELERATOR[version]
        return Clock(torch, **keywords)

    return clock


def test_a_call_without_a_device_is_that_of_an_empty_function():
    clock = Clock(Made(accelerator=of_new_torch(None)))
    assert clock.synchronize is clock.record_event
    assert (clock.has_device, clock.initialise(), clock.was_used()) == (False, None, False)
    assert clock.synchronize() is clock.elapsed_s(None, None) is None
    assert clock.device_memory() == (None, None)


def test_devices_are_left_asleep_and_waited_for_once_they_wake(clock_of):
    cuda = fake_cuda(2)
    clock = clock_of(cuda)
    clock.synchronize()
    assert (clock.record_event(), clock.has_device, cuda.waited) == (None, False, [])
    assert clock.device_memory() == (None, None)
    cuda.open.add(0)
    clock.synchronize()
    assert (clock.has_device, cuda.waited) == (True, [0])
    cuda.capturing = True
    clock.synchronize()
    assert (clock.record_event(), cuda.waited, cuda.pending) == (None, [0], [])
    several = fake_cuda(4, 0, 2)
    clock = clock_of(several)
    clock.synchronize()
    assert (several.waited, clock.device_memory()) == ([0, 2], (100 + 300, 1000 + 3000))


def test_times_between_events(clock_of):
    cuda = fake_cuda(2, 0, 1)
    clock = clock_of(cuda)
    first, second = clock.record_event(), clock.record_event()
    cuda.current = 1
    elsewhere = clock.record_event()
    assert clock.elapsed_s(first, second) is None, "the device has not come that far"
    clock.synchronize()
    pairs = (first, second), (first, elsewhere), (None, second)
    found = [clock.elapsed_s(*pair) for pair in pairs]
    assert found == [0.25, None, None], "two devices share no clock"


def test_it_opens_the_device_when_asked_and_only_then(clock_of):
    cuda = fake_cuda(1)
    clock = clock_of(cuda)
    assert not clock.has_device
    assert (clock.initialise() or -1.0) >= 0
    assert (clock.has_device, clock.was_used()) == (True, False), "what opened it does not count"
    assert clock.initialise() is None, "it is open already"
    cuda.peak = 4096
    assert clock.was_used()
    host, none = clock_of(cuda, device=False), clock_of(fake_cuda(0))
    assert (host.has_device, host.record_event()) == (False, None)
    assert (none.initialise(), none.has_device) == (None, False)


not_loaded = fails(RuntimeError("Driver Not Loaded"))
# Answers of nvidia-ml-py to `nvmlDeviceGet...`, as of a machine with an NVIDIA driver.
ANSWERS = {
    "Name": lambda: b"NVIDIA Test", "PersistenceMode": lambda: 1, "PerformanceState": lambda: 2,
    "ClockInfo": lambda kind: {1: 1410, 2: 1593}[kind],
    "MaxClockInfo": lambda kind: {1: 1980, 2: 2619}[kind],
    "CurrentClocksThrottleReasons": lambda: 0x4 | 0x40, "Temperature": lambda sensor: 71 + sensor,
    "PowerUsage": lambda: 250_500}  # fmt: skip


def driver_of(count=lambda: 2, **changed):
    driver = Made(open=0, NVML_CLOCK_SM=1, NVML_CLOCK_MEM=2, NVML_TEMPERATURE_GPU=0)
    driver.nvmlInit = lambda: setattr(driver, "open", driver.open + 1)
    driver.nvmlShutdown = lambda: setattr(driver, "open", driver.open - 1)
    driver.nvmlDeviceGetCount, driver.nvmlDeviceGetHandleByIndex = count, "handle {}".format

    def of_handle(call):
        return lambda handle, *asked: (
            call(*asked) if handle in ("handle 0", "handle 1") else not_loaded()
        )

    for name, call in (ANSWERS | changed).items():
        setattr(driver, f"nvmlDeviceGet{name}", of_handle(call))
    return driver


@pytest.fixture
def state_of(monkeypatch):
    def state(library):
        monkeypatch.setitem(sys.modules, "pynvml", library)
        return device_state()

    return state


def test_the_state_of_a_gpu_in_words_and_units(state_of):
    driver = driver_of()
    known = {"name": "NVIDIA Test", "persistence_mode": True, "power_state": "P2"}
    known |= {"sm_hz": 1410e6, "sm_max_hz": 1980e6, "memory_hz": 1593e6, "memory_max_hz": 2619e6}
    known |= {"throttle_reasons": ["power cap", "hardware thermal slowdown"]}
    known |= {"temperature_c": 71, "power_w": 250.5}
    devices = [{"index": index, **known} for index in (0, 1)]
    assert (state_of(driver), driver.open) == ({"devices": devices, "reason": None}, 0)
    # What a driver does not give is None.
    state = state_of(driver_of(**dict.fromkeys(ANSWERS, not_loaded)))
    assert state["devices"][1] == dict.fromkeys(devices[1]) | {"index": 1}


def test_each_reason_of_the_driver_or_why_there_is_none(state_of):
    # The driver's bits (nvml.h) with a word of each, in order.
    words = ("idle", "application", "power cap", "hardware slowdown", "other GPUs")
    words += ("software thermal", "hardware thermal", "power brake", "display")
    # With these a GPU runs below its speed.
    slowing = (0x4, 0x8, 0x20, 0x40, 0x80)
    throttled = lambda bits: state_of(driver_of(CurrentClocksThrottleReasons=lambda: bits))  # noqa: E731
    calm = throttled(0)
    for place, word in enumerate(words):
        state = throttled(1 << place)
        (reason,) = state["devices"][0]["throttle_reasons"]
        assert word in reason
        for side, states in (("after", (calm, state)), ("before", (state, calm))):
            texts = [f"GPU {index}: {reason} ({side} the samples)" for index in (0, 1)]
            assert slowed_by(round_state(*states)) == texts * (1 << place in slowing)
    state = state_of(None)
    whole = round_state(state, state)
    assert whole == {"before": None, "after": None, "reason": state["reason"]}
    assert slowed_by(whole) == slowed_by(None) == []
