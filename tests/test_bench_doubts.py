"""What a benchmark says against its own figures, and what it asks the driver of a GPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from profstack.analysis import benchmark as doubts
from profstack.stats import clock
from profstack.stats.summary import by_shape

CALM: dict[str, Any] = {
    "n": 500,
    "samples_s": [0.01] * 500,
    "stopped_by": "interval",
    "target_interval": 0.01,
    "calls_per_sample": 1,
    "median_s": 0.01,
    "mean_s": 0.01,
    "ci95_low_s": 0.00995,
    "ci95_high_s": 0.01005,
    "drift": 0.0,
    "autocorrelation": 0.1,
    "outliers": 2,
    "host_median_s": 0.01,
    "cpu_mean_s": 0.01,
    "cpu_wall_s": 0.01,
    "device_median_s": None,
    "gradients": False,
    "between_process": {"processes": 5, "spread": 0.005},
}
QUIET = {"load_average": [0.1, 0.1, 0.1], "usable_cores": 8, "cpu_governor": "performance"}


def found(environment: dict[str, Any] | None = None, **changed: Any) -> list[str]:
    return doubts.of_bench({**CALM, **changed}, environment or QUIET)


@pytest.mark.parametrize(
    ("median_s", "watched", "looks"),
    [(0.05, False, True), (0.05, True, False), (0.002, False, False)],
)
def test_the_watch_is_advised_where_it_could_see_more(
    median_s: float, watched: bool, looks: bool
) -> None:
    slow = {"median_s": median_s, "host_median_s": median_s, "cpu_wall_s": median_s}
    figures = {**CALM, **slow, "cpu_mean_s": median_s / 5, "outliers": 80}
    said = doubts.of_bench(figures, QUIET, watched=watched)
    about = [text for text in said if "outliers" in text or "CPU time" in text]
    assert len(about) == 2
    assert ["--layers watch" in text for text in about] == [looks, looks]
    assert all("idle machine" in text for text in about)


def test_a_calm_benchmark_has_none() -> None:
    assert found() == []


# Each names the number, the reason and what to try.
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"ci95_high_s": 0.0103}, ["0.03 of the median", "0.01 was asked", "--max-seconds 60"]),
        ({"ci95_high_s": 0.02}, ["that would take", "repeat with --target 1"]),
        ({"n": 20, "ci95_low_s": None}, ["20 samples are too few", "--max-seconds 20"]),
        ({"n": 40}, ["only 40 samples", "no p99", "--max-seconds 20"]),
        ({"drift": -0.2}, ["drifted by -20.0 %", "--max-seconds 60"]),
        ({"autocorrelation": 0.6}, ["correlated by 0.60", "what 125 independent", "--processes 5"]),
        ({"outliers": 80}, ["80 of 500", "slowest 10.0 ms", "idle machine"]),
        ({"cpu_mean_s": 0.002}, ["10.0 ms of wall", "2.00 ms of CPU", "ratio 0.20", "watch"]),
        ({"training_layers": ["Dropout"]}, ["training mode (Dropout)", "model.eval()"]),
        (
            {"warmup_settled": False, "warmup_reason": "still falling"},
            ["still falling", "--warmup"],
        ),
        ({"between_process": None}, ["0.50 % to either side", "one process", "--processes 5"]),
        (
            {"between_process": {"processes": 3, "spread": 0.08}},
            ["differ by 8.0 %", "reaches 0.5 %", "--processes 6"],
        ),
    ],
)
def test_each_names_the_number_the_reason_and_the_next_step(
    changed: dict[str, Any], said: list[str]
) -> None:
    only = found(**changed)
    assert len(only) == 1
    for part in said:
        assert part in only[0]


def test_fixed_samples_are_asked_for_by_their_count() -> None:
    (only,) = found(target_interval=None, n=40, stopped_by="repeat")
    assert "repeat with --repeat 100" in only


def test_counts_that_long_calls_would_take_for_ever_are_not_advised() -> None:
    unsettled = {"warmup_settled": False, "warmup_reason": "too few"}
    assert found(**unsettled)[0].endswith("repeat with --warmup 200 --repeat 300")
    assert found(**unsettled, mean_s=2.0)[0].endswith("repeat with --max-seconds 100")
    assert found(**unsettled, mean_s=60.0)[0].endswith("repeat with --warmup 5 --repeat 10")


def test_long_calls_are_asked_for_as_many_as_an_interval_needs() -> None:
    (only,) = found(n=4, mean_s=2.6, ci95_low_s=None)
    assert only.endswith("4 samples are too few; repeat with --max-seconds 70")


def test_means_are_not_compared_with_medians() -> None:
    # Interrupted for half of the time: the mean of the same calls shows it, the median does not.
    (only,) = found(cpu_mean_s=0.01, cpu_wall_s=0.02)
    assert (
        "on average a step takes 20.0 ms of wall time and 10.0 ms of CPU time (ratio 0.50)" in only
    )


def test_what_waits_for_a_device_is_no_doubt() -> None:
    assert found(cpu_mean_s=0.002, device_median_s=0.009) == []


def test_an_interrupted_one_is_told_no_more_than_that() -> None:
    assert found(stopped_by="interrupt", n=3, ci95_low_s=None) == [
        "interrupted after 3 samples: the figures are of those alone"
    ]


def test_the_machine() -> None:
    (busy,) = found({**QUIET, "load_average": [6.0, 1.0, 1.0]})
    assert "load average was 6 on 8 usable cores" in busy
    assert "--processes" in busy
    (slow,) = found({**QUIET, "cpu_governor": "powersave"})
    assert "powersave" in slow
    assert "cpupower frequency-set" in slow
    assert found({"load_average": None, "usable_cores": None, "cpu_governor": None}) == []


def test_a_run_has_the_same_machine_and_other_advice() -> None:
    few = doubts.of_run({**CALM, "n": 5, "drift": 0.3}, QUIET)
    assert "only 5 clean steps" in few[0]
    assert "let the script run more steps" in few[1]
    assert doubts.of_run(CALM, QUIET) == []
    (busy,) = doubts.of_run(CALM, {**QUIET, "load_average": [6.0, 1.0, 1.0]})
    assert busy.endswith("repeat when it is idle")


def test_the_layers_own_clean_steps() -> None:
    assert doubts.of_layers(0.01, None) == []
    assert doubts.of_layers(0.01, 0.0102) == []
    assert doubts.of_layers(16e-6, 20e-6) == [], "marking a step takes some microseconds"
    assert "1.3 times" in doubts.of_layers(0.01, 0.013)[0]


def test_step_times_by_shape() -> None:
    rows = by_shape({"1x3": [1.0] * 3, "8x3": [2.0] * 20})
    assert [(row["shape"], row["n"], row["median_s"]) for row in rows] == [
        ("8x3", 20, 2.0),
        ("1x3", 3, 1.0),
    ]
    assert rows[0]["ci95_low_s"] == 2.0
    assert rows[1]["ci95_low_s"] is None, "three samples have no interval"


class FakeDriver(SimpleNamespace):
    """nvidia-ml-py by its contract, for machines without an NVIDIA driver."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, **changed: Any) -> None:
        super().__init__(open=0, bits=0x4 | 0x40, **changed)

    def nvmlInit(self) -> None:  # noqa: N802 - the library's own names, here and below
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return f"handle {index}"

    def nvmlDeviceGetName(self, handle: str) -> bytes:  # noqa: N802
        return b"NVIDIA Test"

    def nvmlDeviceGetPersistenceMode(self, handle: str) -> int:  # noqa: N802
        return 1

    def nvmlDeviceGetPerformanceState(self, handle: str) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:  # noqa: N802
        return {1: 1410, 2: 1593}[kind]

    def nvmlDeviceGetMaxClockInfo(self, handle: str, kind: int) -> int:  # noqa: N802
        return {1: 1980, 2: 2619}[kind]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:  # noqa: N802
        return int(self.bits)

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:  # noqa: N802
        return 71

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:  # noqa: N802
        raise RuntimeError("not supported")


def test_the_state_of_a_gpu_in_words_and_units(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    state = clock.device_state()
    assert state["reason"] is None
    assert driver.open == 0, "what was opened is closed"
    (gpu,) = state["devices"]
    assert gpu == {
        "index": 0,
        "name": "NVIDIA Test",
        "persistence_mode": True,
        "power_state": "P2",
        "sm_hz": 1410e6,
        "sm_max_hz": 1980e6,
        "memory_hz": 1593e6,
        "memory_max_hz": 2619e6,
        "throttle_reasons": ["power cap", "hardware thermal slowdown"],
        "temperature_c": 71,
        "power_w": None,
    }
    calm = {"devices": [{**gpu, "throttle_reasons": ["idle"]}], "reason": None}
    whole = clock.round_state(calm, state)
    assert clock.slowed_by(whole) == [
        "GPU 0: power cap (after the samples)",
        "GPU 0: hardware thermal slowdown (after the samples)",
    ]
    throttled = found(device_state=whole)
    assert len(throttled) == 2
    assert "nvidia-smi -q -d PERFORMANCE" in throttled[0]


def test_without_a_driver_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    state = clock.device_state()
    assert state["devices"] is None
    assert "pip install nvidia-ml-py" in state["reason"]
    whole = clock.round_state(state, state)
    assert (whole["before"], whole["after"]) == (None, None)
    assert clock.slowed_by(whole) == []

    def fails() -> None:
        raise RuntimeError("Driver Not Loaded")

    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(nvmlInit=fails))
    assert "Driver Not Loaded" in clock.device_state()["reason"]
