"""The made-up report of a benchmark with every part asked for, and of one with none.

The figures are invented but hang together: rates are batches over time, the knee lies on the
curve, modules and operators lie under the roof that holds them, what was refused or cannot
differ says why.
"""

import copy
import itertools
import random
import statistics

from tests.support.made_up import made_up
from tests.support.reports import build, headline, row
from tests.support.tables import rows_of

_MADE = made_up("bench_reports")
_TEXTS = _MADE["texts"]
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 192)
# dtype: seconds that one call costs and seconds that each item adds
_COSTS = {"float32": (0.0011, 0.00021), "bfloat16": (0.0016, 0.00034)}
PEAK, SHEET, MEMORY = 210e9, 268e9, 21.5e9
_STEP = 0.0128


def samples(count=420, *, median=_STEP):
    """Autocorrelated samples leaning to the right, a few of them far out."""
    noise, level, found = random.Random(11), 0.0, []
    for number in range(count):
        level = 0.3 * level + noise.gauss(0.0, 0.012)
        slow = 2.6 if number in (60, 199, 377) else 1.0
        found.append(median * slow * (1 + level + abs(noise.gauss(0.0, 0.006))))
    return found


def _headline(taken):
    """The figures of the samples, as a benchmark of the report holds them."""
    low, high = 0.9968, 1.0035
    figures = headline(taken, batch=32, warmup=6, cores=1.96, low=low, high=high)
    for mode, factor in (("synchronised", 1.0), ("pipelined", 0.9991)):
        median = figures["median_s"] * factor
        keys = (f"{mode}_median_s", f"{mode}_ci95_low_s", f"{mode}_ci95_high_s")
        figures |= dict(zip(keys, (median, median * low, median * high), strict=True))
    falling = [0.312, 0.0262, 0.0187, 0.0151, 0.0139, 0.0133]
    figures["warmup_s"] = falling + samples(26, median=_STEP * 1.002)
    return figures | copy.deepcopy(_MADE["headline"])


def _between(median):
    medians = [median * factor for factor in (1.0, 1.041, 0.987, 1.012, 1.066)]
    return {
        "processes": 5, "medians_s": medians, "median_s": statistics.median(medians),
        "low_s": min(medians), "high_s": max(medians), "spread": max(medians) / min(medians) - 1,
        "std_s": statistics.stdev(medians), "note": _TEXTS["between"],
    }  # fmt: skip


def _throughput():
    rows = []
    for dtype, (fixed, each) in _COSTS.items():
        for size in BATCHES if dtype == "float32" else BATCHES[:-1]:
            latency = fixed + each * size * (1.0 if size < 128 else 1.0 + (size - 64) / 640)
            rows.append({"dtype": dtype, "batch_size": size, "batches": 100,
                "total_s": latency * 101.2, "items_per_s": size * 100 / (latency * 101.2),
                "latency_s": latency, "latency_p90_s": latency * 1.06, "status": "measured",
                "reason": None, "peak_memory_bytes": (240 + 9.1 * size) * 2**20})  # fmt: skip
    for size, dtype, status in ((256, "float32", "refused"), (192, "bfloat16", "failed")):
        told = {"dtype": dtype, "batch_size": size, "status": status, "reason": _TEXTS[status]}
        rows.append(dict.fromkeys(rows[0]) | told)
    return rows


def _throughput_limits(rows):
    limits = []
    ends = "an error of the model at a batch of 192"
    for dtype, knee, limited_by in (("float32", 16, _TEXTS["limited"]), ("bfloat16", 32, ends)):
        own = {one["batch_size"]: one["items_per_s"] for one in rows
               if one["dtype"] == dtype and one["status"] == "measured"}  # fmt: skip
        best = max(own, key=own.get)
        limits.append({"dtype": dtype, "search": "binary", "largest_batch": max(own), "note": None,
            "limited_by": limited_by, "memory_limit_bytes": 2 * 2**30, "knee_batch": knee,
            "knee_items_per_s": own[knee], "max_items_per_s": own[best], "max_batch": best
            })  # fmt: skip
    return limits


def _mistakes(median):
    return [{"slug": slug, "title": title, "wrong_s": wrong, "wrong_std_s": deviation,
        "n_wrong": count, "right_s": median if wrong else None, "right_std_s": median * 0.014
        if wrong else None, "n_right": 200 if wrong else None, "factor": wrong / median
        if wrong else None, "ci95_low": (interval or [None])[0], "ci95_high": (interval or [None])[
        -1], "applies": wrong is not None, "note": note, "error": None} for slug, title, wrong,
        deviation, count, interval, note in _MADE["mistakes"]]  # fmt: skip


def _ablation(median):
    rows, both = [], (True, False)
    works = {"compute": 1.0, "copy-heavy": 1.7}
    for variant, warm, waits, timing in itertools.product(works, both, both, ("host", "events")):
        valid = waits or timing == "host"
        mean = median * works[variant] * (1.0 if warm else 1.55)
        times = {"mean_s": mean, "median_s": mean * 0.99, "std_s": mean * (0.014 if warm else 0.9)}
        same = None if waits or not valid else "cannot differ here: a CPU has nothing to wait for"
        rows.append({"variant": variant, "warmup": warm, "synchronise": waits, "timing": timing, **(
            times if valid else dict.fromkeys(times)), "n": 50 if valid else 0, "valid": valid,
            "error": None if valid else _TEXTS["events"], "note": same})  # fmt: skip
    return rows


_KEYS = ("variant status reason compile_s median_s ci95_low_s ci95_high_s n speedup speedup_low "
    "speedup_high equal max_difference tolerance operators kernels graphs breaks fused_names "
    "between_process note")  # fmt: skip


def _variant(variant, **values):
    return {**dict.fromkeys(_KEYS.split()), "variant": variant, "fused_names": [], **values}


def _compare(median):
    fused = [f"graph_0_cpp_fused_{name}" for name in ("_native_batch_norm_legit_no_training_relu_0",
        "convolution_max_pool2d_with_indices_relu_1", "addmm_log_softmax_2")]  # fmt: skip

    def timed(variant, own, operators, compile_s, equal, **values):
        faster = median / own
        return _variant(variant, status="measured", median_s=own, ci95_low_s=own * 0.991, n=180,
            ci95_high_s=own * 1.012, speedup=faster, operators=operators, compile_s=compile_s,
            equal=equal, tolerance="rtol 1e-4, atol 1e-5", **{"speedup_low": faster * 0.985,
            "speedup_high": faster * 1.016} | values)  # fmt: skip

    return [timed("eager", median, 64, None, None, speedup_low=None, speedup_high=None,
        note="what the others stand beside"), timed("compile", median * 0.71, 23, 18.4, True,
        graphs=1, max_difference=2.1e-6, breaks=0, fused_names=fused, between_process=[
        median * 0.71, median * 0.733, median * 0.705]), timed("trace", median * 1.02, 58, 0.41,
        False, max_difference=0.0132, note="the trace keeps the branch it was traced with"),
        _variant("script", status="failed", reason=_TEXTS["script"])]  # fmt: skip


def _point(kind, name, flop, moved, seconds, bound):
    rate = flop / seconds if flop else None
    intensity = flop / moved if flop else None
    return {
        "kind": kind, "name": name, "dtype": "float32", "flop": flop, "moved_bytes": moved,
        "seconds": seconds, "seconds_is": "clean" if kind == "step" else "calibrated",
        "intensity": intensity, "flop_per_s": rate, "bound": bound,
        "share_of_peak": rate / min(PEAK, intensity * MEMORY) if flop else None,
        "reason": None if flop else "there is no formula for its operations",
    }  # fmt: skip


def _roofline():
    flop = 1.21e9
    product = "matmul of 2048"
    rates = [("float32", PEAK, "measured", product), ("float32", SHEET, "datasheet", "dense")]
    rates = rows_of("dtype value source how", *rates, ("bfloat16", 96e9, "measured", product))
    shares = [("measured", flop / _STEP / PEAK), ("datasheet", flop / _STEP / SHEET)]
    work = {"dtype": "float32", "flop": flop, "seconds": _STEP, "warning": None}
    return {"peaks": {"device": "AMD EPYC 7763, cpu", "threads": 2, "torch": "2.13.0+cpu",
        "reason": None, "measured_at": "2025-11-20T22:30:41+00:00", "flop_per_s": rates,
        "bytes_per_s": [{"value": MEMORY, "source": "measured", "how": "copy of 256 MiB"}]},
        "mfu": rows_of("source value", *shares, **work),
        "points": [_point(*one) for one in (("step", "step", flop, 96e6, _STEP, "compute"),
        *_MADE["points"])]}  # fmt: skip


def bare(count=420):
    """The report of a benchmark alone: no further part, no layer."""
    report = build()
    report |= {"script": "models/digits.py:make", "argv": ["bench", "models/digits.py:make"],
        "benchmark": _headline(samples(count)), "slices": [], "layers": [], "probe_effect": [],
        "warnings": [], "roofline": {"peaks": {}, "points": []}, "tables": {name: []
        for name in report["tables"]}}  # fmt: skip
    report["step"] |= {"count": 0, "rule": None, "counts_by_phase": {}}
    return report


def bench():
    """The report of a benchmark with every part asked for and the layers after it."""
    report, figures, rows = build(), _headline(samples()), _throughput()
    median = figures["median_s"]
    shapes = (("[32, 1, 8, 8]", 310, 1, 0.996, 1.004), ("[32, 1, 16, 16]", 110, 2.9, 2.87, 2.96))
    by_shape = [{"shape": shape, "n": count, "median_s": median * middle,
        "ci95_low_s": median * low, "ci95_high_s": median * high} for shape, count, middle, low,
        high in shapes]  # fmt: skip
    few = {"shape": "[7, 1, 8, 8]", "n": 2, "median_s": median * 0.4}
    few |= {"ci95_low_s": None, "ci95_high_s": None}
    figures |= {"between_process": _between(median), "warnings": [*_MADE["warnings"]],
        "device_state": copy.deepcopy(_MADE["device_state"]), "throughput": rows,
        "by_shape": [*by_shape, few], "throughput_limits": _throughput_limits(rows),
        "mistakes": _mistakes(median), "ablation": _ablation(median),
        "compare": _compare(median)}  # fmt: skip
    report |= {"script": "models/digits.py:make", "benchmark": figures, "roofline": _roofline(),
        "argv": ["bench", "models/digits.py:make", "--throughput", "--compare", "eager,compile"],
        "warnings": []}  # fmt: skip
    # The tables of a step that takes so much longer.
    report["step"] |= {"batch_size": 32, "shapes": ["[32, 1, 8, 8]"]}
    for record in report["tables"]["modules"] + report["tables"]["operators"]:
        times = {name: value for name, value in record.items() if name.endswith("_s") and value}
        record |= {name: value * (median / 4.0e-3) for name, value in times.items()}
    counted = {"forward_flop": 1_210_000_000, "forward_mac": 605_000_000, "uncounted": []}
    report["tables"]["flops"] = [row("flops", counter="FlopCounterMode", **counted)]
    return report
