"""The made-up report of a benchmark with every part asked for, and of one with none.

The figures are invented but hang together: rates are batches over time, the knee lies on the
curve, modules and operators lie under the roof that holds them, what was refused or cannot
differ says why.
"""

from __future__ import annotations

import random
import statistics
from typing import Any

from data_report import HOSTILE, build, row

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 192)
# dtype: seconds that one call costs and seconds that each item adds
_COSTS = {"float32": (0.0011, 0.00021), "bfloat16": (0.0016, 0.00034)}
PEAK, SHEET, MEMORY = 210e9, 268e9, 21.5e9

_STEP = 0.0128


def samples(count: int = 420, *, median: float = _STEP) -> list[float]:
    """Autocorrelated samples leaning to the right, a few of them far out."""
    noise, level, found = random.Random(11), 0.0, []
    for number in range(count):
        level = 0.3 * level + noise.gauss(0.0, 0.012)
        slow = 2.6 if number in (60, 199, 377) else 1.0
        found.append(median * slow * (1 + level + abs(noise.gauss(0.0, 0.006))))
    return found


def _warmup() -> list[float]:
    falling = [0.312, 0.0262, 0.0187, 0.0151, 0.0139, 0.0133]
    return falling + samples(26, median=_STEP * 1.002)


def _headline(taken: list[float]) -> dict[str, Any]:
    """The figures of the samples, as a benchmark of the report holds them."""
    ordered = sorted(taken)
    quarters = statistics.quantiles(taken, n=4)
    median = statistics.median(taken)
    return {
        "mode": "synchronised",
        "clock": "host",
        "n": len(taken),
        "samples_s": taken,
        "counted_steps": [],
        "warmup_steps": 6,
        "first_step_s": 0.312,
        "first_step_layer": None,
        "median_s": median,
        "iqr_s": quarters[2] - quarters[0],
        "mean_s": statistics.fmean(taken),
        "std_s": statistics.stdev(taken),
        "min_s": ordered[0],
        "p90_s": ordered[int(0.9 * len(taken))],
        "p99_s": ordered[int(0.99 * len(taken))],
        "ci95_low_s": median * 0.9968,
        "ci95_high_s": median * 1.0035,
        "cpu_median_s": None,
        "cpu_mean_s": median * 1.96,
        "cpu_wall_s": median,
        "cores_busy": 1.96,
        "cpu_reason": None,
        "host_median_s": median,
        "device_median_s": None,
        "autocorrelation": 0.28,
        "drift": -0.006,
        "steps_per_s": 1 / statistics.fmean(taken),
        "items_per_s": 32 / statistics.fmean(taken),
        "warmup_s": _warmup(),
        "warmup_reason": "times stopped falling after 6 calls",
        "initialisation_s": None,
        "outliers": 3,
        "stopped_by": "interval",
        "calls_per_sample": 1,
        "garbage": "off while timing, collected between blocks",
        "batch_size": 32,
        "batch_size_is": "read from the inputs",
        "gradients": False,
        "training": False,
        "target": "models/digits.py:make",
        "between_process": None,
        "by_shape": [],
        "device_state": None,
        "mistakes": [],
        "ablation": [],
        "compare": [],
        "throughput": [],
        "throughput_limits": [],
        "warnings": [],
        **_modes(median),
    }


def _modes(median: float) -> dict[str, Any]:
    figures = {}
    for mode, factor in (("synchronised", 1.0), ("pipelined", 0.9991)):
        figures[f"{mode}_median_s"] = median * factor
        figures[f"{mode}_ci95_low_s"] = median * factor * 0.9968
        figures[f"{mode}_ci95_high_s"] = median * factor * 1.0035
    return figures


def _between(median: float) -> dict[str, Any]:
    medians = [median * factor for factor in (1.0, 1.041, 0.987, 1.012, 1.066)]
    return {
        "processes": 5,
        "medians_s": medians,
        "median_s": statistics.median(medians),
        "low_s": min(medians),
        "high_s": max(medians),
        "spread": max(medians) / min(medians) - 1,
        "std_s": statistics.stdev(medians),
        "note": "fresh processes that took turns: their spread is the error bar of a comparison",
    }


def _device_state() -> dict[str, Any]:
    before = {
        "name": "NVIDIA A100-SXM4-40GB",
        "persistence_mode": True,
        "power_state": "P0",
        "sm_clock_mhz": 1410,
        "temperature_c": 41,
        "throttle_reasons": [],
    }
    after = before | {"sm_clock_mhz": 1275, "temperature_c": 67}
    return {
        "before": before,
        "after": after | {"throttle_reasons": ["software power cap"]},
        "reason": None,
    }


def _throughput() -> list[dict[str, Any]]:
    rows = []
    for dtype, (fixed, each) in _COSTS.items():
        for size in BATCHES if dtype == "float32" else BATCHES[:-1]:
            latency = fixed + each * size * (1.0 if size < 128 else 1.0 + (size - 64) / 640)
            rows.append(
                {
                    "dtype": dtype,
                    "batch_size": size,
                    "batches": 100,
                    "total_s": latency * 101.2,
                    "items_per_s": size * 100 / (latency * 101.2),
                    "latency_s": latency,
                    "latency_p90_s": latency * 1.06,
                    "peak_memory_bytes": (240 + 9.1 * size) * 2**20,
                    "status": "measured",
                    "reason": None,
                }
            )
    refused = dict.fromkeys(rows[0])
    why = "not enough memory: 2.10 GiB asked for, the limit is 2.00 GiB"
    rows.append(
        refused | {"dtype": "float32", "batch_size": 256, "status": "refused", "reason": why}
    )
    why = "RuntimeError: mixed dtype (CPU): expect parameter to have scalar type of Float"
    rows.append(
        refused | {"dtype": "bfloat16", "batch_size": 192, "status": "failed", "reason": why}
    )
    return rows


def _throughput_limits(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    limits = []
    for dtype, knee in (("float32", 16), ("bfloat16", 32)):
        own = [one for one in rows if one["dtype"] == dtype and one["status"] == "measured"]
        best = max(own, key=lambda one: one["items_per_s"])
        limits.append(
            {
                "dtype": dtype,
                "search": "binary",
                "largest_batch": own[-1]["batch_size"],
                "limited_by": (
                    "memory: the limit of 2.00 GiB refuses a batch of 256"
                    if dtype == "float32"
                    else "an error of the model at a batch of 192"
                ),
                "memory_limit_bytes": 2 * 2**30,
                "knee_batch": knee,
                "knee_items_per_s": next(
                    one["items_per_s"] for one in own if one["batch_size"] == knee
                ),
                "max_items_per_s": best["items_per_s"],
                "max_batch": best["batch_size"],
                "note": None,
            }
        )
    return limits


_MISTAKES: tuple[tuple[Any, ...], ...] = (
    # slug, title, wrong, deviation, n, interval, applies, note
    ("no-warmup", "no warm-up", 0.0205, 0.0601, 26, (1.31, 2.20), True,
     "the mean holds the first call, which is 24 times the rest"),
    ("one-sample", "one sample", 0.0139, None, 1, None, True, "one sample tells no deviation"),
    ("no-sync", "no synchronisation", None, None, None, None, False,
     "a CPU has done its work when the call returns: there is nothing to wait for"),
    ("transfer", "input transfer inside", None, None, None, None, False,
     "the inputs are already where the model is: nothing is transferred"),
    ("gradients", "gradients on", 0.01455, 0.0004, 120, (1.125, 1.149), True,
     "inference does not need the graph that autograd keeps"),
    ("profiler", "profiler attached", 0.0171, 0.0009, 60, (1.30, 1.37), True,
     "the profiler's own time is in every call"),
)  # fmt: skip


def _mistakes(median: float) -> list[dict[str, Any]]:
    rows = []
    for slug, title, wrong, deviation, count, interval, applies, note in _MISTAKES:
        low, high = interval or (None, None)
        rows.append(
            {
                "slug": slug,
                "title": title,
                "wrong_s": wrong,
                "wrong_std_s": deviation,
                "n_wrong": count,
                "right_s": median if applies else None,
                "right_std_s": median * 0.014 if applies else None,
                "n_right": 200 if applies else None,
                "factor": wrong / median if wrong else None,
                "ci95_low": low,
                "ci95_high": high,
                "applies": applies,
                "note": note,
                "error": None,
            }
        )
    return rows


def _ablation(median: float) -> list[dict[str, Any]]:
    rows = []
    for variant, work in (("compute", 1.0), ("copy-heavy", 1.7)):
        for warmup in (True, False):
            for synchronise in (True, False):
                for timing in ("host", "events"):
                    factor = work * (1.0 if warmup else 1.55)
                    valid = synchronise or timing == "host"
                    mean = median * factor if valid else None
                    rows.append(
                        {
                            "variant": variant,
                            "warmup": warmup,
                            "synchronise": synchronise,
                            "timing": timing,
                            "mean_s": mean,
                            "median_s": mean * 0.99 if mean else None,
                            "std_s": mean * (0.014 if warmup else 0.9) if mean else None,
                            "n": 50 if valid else 0,
                            "valid": valid,
                            "error": None
                            if valid
                            else "RuntimeError: Both events must be completed before calculating "
                            "elapsed time.",
                            "note": None
                            if synchronise or not valid
                            else "cannot differ here: a CPU has nothing to wait for",
                        }
                    )
    return rows


def _variant(variant: str, **values: Any) -> dict[str, Any]:
    keys = (
        "variant status reason compile_s median_s ci95_low_s ci95_high_s n speedup speedup_low "
        "speedup_high equal max_difference tolerance operators kernels graphs breaks fused_names "
        "between_process note"
    )
    return {**dict.fromkeys(keys.split()), "variant": variant, "fused_names": [], **values}


def _timed(median: float, against: float, **values: Any) -> dict[str, Any]:
    speedup = against / median
    return {
        "status": "measured",
        "median_s": median,
        "ci95_low_s": median * 0.991,
        "ci95_high_s": median * 1.012,
        "n": 180,
        "speedup": speedup,
        "speedup_low": speedup * 0.985,
        "speedup_high": speedup * 1.016,
        "tolerance": "rtol 1e-4, atol 1e-5",
        **values,
    }


def _compare(median: float) -> list[dict[str, Any]]:
    fused = [
        "graph_0_cpp_fused__native_batch_norm_legit_no_training_relu_0",
        "graph_0_cpp_fused_convolution_max_pool2d_with_indices_relu_1",
        "graph_0_cpp_fused_addmm_log_softmax_2",
    ]
    eager = _timed(median, median, operators=64, compile_s=None, equal=None)
    eager |= {"speedup_low": None, "speedup_high": None, "note": "what the others stand beside"}
    compiled = _timed(median * 0.71, median, operators=23, compile_s=18.4, equal=True, graphs=1)
    compiled |= {"max_difference": 2.1e-6, "breaks": 0, "fused_names": fused}
    compiled["between_process"] = [median * 0.71, median * 0.733, median * 0.705]
    traced = _timed(median * 1.02, median, operators=58, compile_s=0.41, equal=False)
    traced |= {"max_difference": 0.0132, "note": "the trace keeps the branch it was traced with"}
    why = "NotSupportedError: Compiled functions can't take variable number of arguments"
    return [
        _variant("eager", **eager),
        _variant("compile", **compiled),
        _variant("trace", **traced),
        _variant("script", status="failed", reason=why),
    ]


def _point(kind: str, name: str, flop: float | None, moved: float | None, seconds: float,
           bound: str | None, reason: str | None = None) -> dict[str, Any]:  # fmt: skip
    rate = flop / seconds if flop else None
    intensity = flop / moved if flop and moved else None
    roof = min(PEAK, intensity * MEMORY) if intensity else None
    return {
        "kind": kind,
        "name": name,
        "dtype": "float32",
        "flop": flop,
        "moved_bytes": moved,
        "seconds": seconds,
        "seconds_is": "clean" if kind == "step" else "calibrated",
        "intensity": intensity,
        "flop_per_s": rate,
        "share_of_peak": rate / roof if rate and roof else None,
        "bound": bound,
        "reason": reason,
    }


_NO_FORMULA = "there is no formula for its operations"


def _roofline() -> dict[str, Any]:
    flop = 1.21e9
    value = flop / _STEP / PEAK
    return {
        "peaks": {
            "device": "AMD EPYC 7763, cpu",
            "threads": 2,
            "torch": "2.13.0+cpu",
            "measured_at": "2025-11-20T22:30:41+00:00",
            "flop_per_s": [
                {"dtype": "float32", "value": PEAK, "source": "measured", "how": "matmul of 2048"},
                {"dtype": "float32", "value": SHEET, "source": "datasheet", "how": "dense"},
                {"dtype": "bfloat16", "value": 96e9, "source": "measured", "how": "matmul of 2048"},
            ],
            "bytes_per_s": [{"value": MEMORY, "source": "measured", "how": "copy of 256 MiB"}],
            "reason": None,
        },
        "mfu": [
            {"source": "measured", "dtype": "float32", "value": value, "flop": flop,
             "seconds": _STEP, "warning": None},
            {"source": "datasheet", "dtype": "float32", "value": value * PEAK / SHEET,
             "flop": flop, "seconds": _STEP, "warning": None},
        ],
        "points": [
            _point("step", "step", flop, 96e6, _STEP, "compute"),
            _point("module", "Digits.features.0", 36e6, 17e6, 0.0016, "memory"),
            _point("module", "Digits.features.2", 0.86e9, 38e6, 0.0049, "compute"),
            _point("module", "Digits.classifier.0", 0.30e9, 9.4e6, 0.0021, "compute"),
            _point("module", "Digits.classifier.2", 1.9e6, 0.3e6, 0.0009, "overhead"),
            _point("module", "Digits.features.1", None, 33e6, 0.0011, None, _NO_FORMULA),
            _point("operator", "aten::mkldnn_convolution", 0.9e9, 54e6, 0.0062, "compute"),
            _point("operator", "aten::addmm in Digits.features", 0.3e9, 9.7e6, 0.0022, "compute"),
            _point("operator", "aten::mm", 2.1e6, 1.1e6, 0.0003, "memory"),
            _point("operator", "aten::native_layer_norm", 8.1e6, 13e6, 0.0008, "memory"),
            _point("operator", "aten::bmm", 0.9e6, 0.12e6, 0.0004, "overhead"),
            _point("operator", "aten::relu", None, 33e6, 0.0011, None, _NO_FORMULA),
            _point("operator", "aten::fft_fft", None, 4.2e6, 0.0002, None, _NO_FORMULA),
        ],
    }  # fmt: skip


def bare(count: int = 420) -> dict[str, Any]:
    """The report of a benchmark alone: no further part, no layer."""
    report = build()
    taken = samples(count)
    report |= {
        "script": "models/digits.py:make",
        "argv": ["bench", "models/digits.py:make"],
        "benchmark": _headline(taken),
        "slices": [],
        "layers": [],
        "probe_effect": [],
        "warnings": [],
        "roofline": {"peaks": {}, "points": []},
    }
    report["tables"] = {name: [] for name in report["tables"]}
    report["step"] |= {"count": 0, "rule": None, "counts_by_phase": {}}
    return report


def bench() -> dict[str, Any]:
    """The report of a benchmark with every part asked for and the layers after it."""
    report = build()
    headline = _headline(samples())
    median = headline["median_s"]
    rows = _throughput()
    headline |= {
        "between_process": _between(median),
        "device_state": _device_state(),
        "by_shape": [
            {"shape": "[32, 1, 8, 8]", "n": 310, "median_s": median, "ci95_low_s": median * 0.996,
             "ci95_high_s": median * 1.004},
            {"shape": "[32, 1, 16, 16]", "n": 110, "median_s": median * 2.9,
             "ci95_low_s": median * 2.87, "ci95_high_s": median * 2.96},
            {"shape": "[7, 1, 8, 8]", "n": 2, "median_s": median * 0.4, "ci95_low_s": None,
             "ci95_high_s": None},
        ],
        "throughput": rows,
        "throughput_limits": _throughput_limits(rows),
        "mistakes": _mistakes(median),
        "ablation": _ablation(median),
        "compare": _compare(median),
        "warnings": [
            "the medians of 5 fresh processes differ by 8.0 %: ask for more, `--processes 10`",
            "drift -0.6 %: the clocks fell; `profstack bench models/digits.py:make --repeat 900`",
        ],
    }  # fmt: skip
    report |= {
        "script": "models/digits.py:make",
        "argv": ["bench", "models/digits.py:make", "--throughput", "--compare", "eager,compile"],
        "benchmark": headline,
        "roofline": _roofline(),
        "warnings": [],
    }
    _stretch(report, median / 4.0e-3)
    record = row("flops", counter="FlopCounterMode", forward_flop=1_210_000_000)
    report["tables"]["flops"] = [record | {"forward_mac": 605_000_000, "uncounted": []}]
    return report


def _stretch(report: dict[str, Any], factor: float) -> None:
    """The tables of a step that takes so much longer."""
    report["step"] |= {"batch_size": 32, "shapes": ["[32, 1, 8, 8]"]}
    for table in ("modules", "operators"):
        for record in report["tables"][table]:
            for column, value in record.items():
                if column.endswith("_s") and value is not None:
                    record[column] = value * factor


def bench_of_hostile_names() -> dict[str, Any]:
    """The benchmark's report, in which every text tries to become part of the page."""
    report = bench()
    report["benchmark"] = _with_hostile_texts(report["benchmark"])
    report["roofline"] = _with_hostile_texts(report["roofline"])
    report["script"] = HOSTILE
    return report


# What is one of few words by the schema.
_WORDS = {"mode", "clock", "status", "search", "timing", "kind", "seconds_is", "bound", "source"}


def _with_hostile_texts(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _with_hostile_texts(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_hostile_texts(item, key) for item in value]
    return HOSTILE + value if isinstance(value, str) and key not in _WORDS else value
