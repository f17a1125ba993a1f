"""A made-up report of the right shape: what the page, the text and the commands are tried on.

The figures are invented but hang together as real ones do: slices follow one another in time,
each layer's steps are slower than the clean ones, roots and step parts add up to the clean
median, and a function's callees never take longer than the function.
"""

import random
import statistics
from statistics import fmean, median

from profstack.storage.schema.recorded import SCHEMA_VERSION
from profstack.storage.schema.report import REPORT, REPORT_OF_NSYS

HOSTILE = '</script><img src=x onerror="window.broken=1">'

# kind, steps, step time in ms, pause in ms after the slice
_PLAN = (
    ("warmup", 4, 9.1, 0.0), ("clean", 8, 4.0, 0.0), ("settle", 1, 4.4, 0.0),
    ("torch", 6, 5.1, 42.0), ("settle", 2, 4.6, 0.0), ("clean", 12, 4.0, 0.0),
    ("settle", 1, 4.3, 0.0), ("cprofile", 8, 5.4, 11.0), ("settle", 2, 4.5, 0.0),
    ("clean", 12, 4.0, 0.0),
)  # fmt: skip
_LAYERS = ("torch", "cprofile")
# path, type, parameters, forward ms, backward ms, self ms
_TREE = (
    ("Digits", "Digits", 117_002, 1.10, 1.45, 0.12),
    ("Digits.features", "Sequential", 18_816, 0.70, 0.92, 0.05),
    ("Digits.features.0", "Conv2d", 320, 0.21, 0.34, 0.55),
    ("Digits.features.1", "ReLU", 0, 0.04, 0.05, 0.09),
    ("Digits.features.2", "Conv2d", 18_496, 0.38, 0.46, 0.84),
    ("Digits.features.3", "ReLU", 0, 0.04, 0.05, 0.09),
    ("Digits.classifier", "Sequential", 98_186, 0.33, 0.48, 0.06),
    ("Digits.classifier.0", "Linear", 97_536, 0.20, 0.31, 0.51),
    ("Digits.classifier.1", "Dropout", 0, 0.05, 0.04, 0.09),
    ("Digits.classifier.2", "Linear", 650, 0.06, 0.09, 0.15),
)  # fmt: skip
_PARTS = (
    ("(wait)", 0.31, None), ("(loss)", 0.12, 0.09), ("(optimizer)", 0.62, None),
    ("(gradient accumulation)", None, 0.11), ("(outside modules)", 0.08, None),
    ("(not attributed)", 0.06, None),
)  # fmt: skip
# name, shapes, module, calls, self ms
_OPERATORS = (
    ("addmm", "[[64, 64], [64, 1536], [1536, 64]]", "Digits.classifier.0", 1, 0.19),
    ("mkldnn_convolution", "[[64, 1, 8, 8], [32, 1, 3, 3]]", "Digits.features.0", 1, 0.18),
    ("mkldnn_convolution", "[[64, 32, 8, 8], [64, 32, 3, 3]]", "Digits.features.2", 1, 0.34),
    ("convolution_backward", "[[64, 64, 8, 8]]", "Digits.features.2", 1, 0.41),
    ("convolution_backward", "[[64, 32, 8, 8]]", "Digits.features.0", 1, 0.30),
    ("mm", "[[1536, 64], [64, 64]]", "Digits.classifier.0", 2, 0.27),
    ("threshold_backward", "[[64, 32, 8, 8]]", "Digits.features.1", 1, 0.05),
    ("_foreach_addcmul_", "[]", "(optimizer)", 1, 0.11),
    ("log_softmax", "[[64, 10]]", "(loss)", 1, 0.03),
)  # fmt: skip
# file, line, name, calls per step, self ms, ms with callees
FUNCTIONS = {
    "main": ("train.py", 61, "main", 1.0, 0.30, 4.86),
    "loader": ("train.py", 20, "batches", 1.0, 0.28, 0.39),
    "call": ("torch/nn/modules/module.py", 1779, "_call_impl", 10.0, 0.14, 1.48),
    "forward": ("train.py", 44, "Digits.forward", 1.0, 0.06, 1.40),
    "sequential": ("torch/nn/modules/container.py", 248, "Sequential.forward", 2.0, 0.07, 1.28),
    "conv": ("torch/nn/modules/conv.py", 547, "Conv2d.forward", 2.0, 0.03, 0.73),
    "conv2d": ("~", 0, "<built-in method torch.conv2d>", 2.0, 0.70, 0.70),
    "linear": ("torch/nn/modules/linear.py", 124, "Linear.forward", 2.0, 0.02, 0.33),
    "addmm": ("~", 0, "<built-in method torch._C._nn.linear>", 2.0, 0.31, 0.31),
    "relu": ("torch/nn/functional.py", 1693, "relu", 2.0, 0.09, 0.09),
    "dropout": ("torch/nn/functional.py", 1418, "dropout", 1.0, 0.06, 0.06),
    "loss": ("torch/nn/functional.py", 3420, "cross_entropy", 1.0, 0.13, 0.13),
    "backward": ("torch/_tensor.py", 576, "Tensor.backward", 1.0, 0.03, 1.95),
    "engine": ("~", 0, "<method 'run_backward' of 'torch._C._EngineBase' objects>", 1.0, 1.92,
        1.92),
    "adam": ("torch/optim/adam.py", 213, "Adam.step", 1.0, 0.21, 0.61),
    "foreach": ("~", 0, "<built-in method torch._foreach_addcmul_>", 4.0, 0.40, 0.40),
    "walk": ("train.py", 30, "walk", 6.0, 0.11, 0.11),
}  # fmt: skip
# caller, callee, calls, ms with callees
_CALLS = """
main call 1 1.48, main loader 1 0.39, main loss 1 0.13, main backward 1 1.95, main adam 1 0.61,
call forward 1 1.40, forward call 2 1.30, call sequential 2 1.28, sequential call 7 1.20,
call conv 2 0.73, call linear 2 0.33, call relu 2 0.09, call dropout 1 0.06, conv conv2d 2 0.70,
linear addmm 2 0.31, backward engine 1 1.92, adam foreach 4 0.40, loader walk 1 0.11,
walk walk 5 0.09"""
# line of train.py, its text, ms in Python and in operators
_SOURCE = (
    (20, "def batches(images, labels, size):", 0.02, 0.0),
    (22, "    order = torch.randperm(len(images))", 0.01, 0.06),
    (24, "        yield images[chosen], labels[chosen]", 0.03, 0.17),
    (44, "    def forward(self, x):", 0.01, 0.0),
    (45, "        return self.classifier(self.features(x))", 0.21, 1.18),
    (66, "        loss = F.cross_entropy(model(x), y)", 0.02, 0.12),
    (67, "        optimizer.zero_grad()", 0.05, 0.01),
    (68, "        loss.backward()", 0.04, 1.74),
    (69, "        optimizer.step()", 0.19, 0.43),
    (8, "    return x + 0.01 * torch.randn_like(x)", 0.01, 0.09),
)  # fmt: skip
_TOLD = "technique tool version measures does_not_measure usual_slowdown conflicts command"
_WORDS = {
    "cprofile": ("tracing", "cProfile", "3.11",
        "every call of a Python function on the main thread: how often and how long",
        "other threads, C code inside one built-in, device work",
        "1.01 on a 100 ms step, 1.25 on a step of 0.3 ms",
        "any other profiler that uses sys.setprofile, torch.profiler with stacks",
        "profstack run --layers cprofile train.py"),
    "torch": ("tracing", "torch.profiler", "2.13.0",
        "operators, kernels and modules with their times and shapes",
        "Python code between operators, memory held by other libraries",
        "1.05 on a 100 ms step, 1.29 on a step of 0.3 ms",
        "another torch.profiler, nsys (one CUPTI client at a time)",
        "profstack run --layers torch train.py"),
    "memory": ("tracing", "memory_profiler", "0.61.0", "growth of the resident set, line by line",
        "memory that torch's allocator hands out again",
        "1.2 on a 100 ms step, 3.6 to 5.8 on a step of 0.3 ms",
        "debuggers and coverage (sys.settrace)", "profstack run --layers memory train.py"),
    "nvtx": ("tracing", "nvtx", "0.2.15",
        "it emits a range for every step and module call, and counts them",
        "the time between a range's ends", "1.01 on a 100 ms step, 1.04 on a step of 0.3 ms",
        "a script that calls cudaProfilerStart itself", None),
    "flops": ("counting", "FlopCounterMode", "2.13.0",
        "floating-point operations by module and operator",
        "element-wise operators, what a causal mask leaves out",
        "1.4 on a 100 ms step, 7 on a step of 0.3 ms", "torch.compile", None),
    "watch": ("sampling", "sys._current_frames", "Python 3.11",
        "every 10 ms the stack of the thread that trains", "single calls, other threads",
        "none that could be told from 1.00", "a profiler of the script's own, from Python 3.12 on",
        None),
}  # fmt: skip


def completed(value, schema):
    """Add the required fields that a report written by hand leaves out: null, or else empty."""
    if isinstance(value, list):
        return [completed(each, schema.get("items", {})) for each in value]
    if not isinstance(value, dict):
        return value
    fields = schema.get("properties", {})
    added = {name: _empty(fields[name]) for name in schema.get("required", ()) if name in fields}
    given = {name: each for name, each in value.items() if each is not None}
    both = value | added | given
    return {name: completed(each, fields.get(name, {})) for name, each in both.items()}


def _empty(schema):
    kinds = schema.get("type", "null")
    if "null" in kinds:
        return None
    empty = {"array": [], "object": {}, "integer": 0, "number": 0.0, "string": ""}
    return completed(empty.get(kinds), schema)


def row(table, **values):
    """One row of a report table with every column, null where nothing is given."""
    return {**dict.fromkeys(REPORT[table].names), **values}


def records(table, names, rows, **same):
    """Rows of a table from tuples of values; `names` are their columns, with spaces between."""
    pairs = (zip(names.split(), values, strict=True) for values in rows)
    return [row(table, **same, **dict(each)) for each in pairs]


def _slices_and_steps(plan):
    """Slices one after the other, and the steps inside them, with a little noise."""
    noise, steps, clock = random.Random(7), [], 1.9
    slices = [_slice(0, "startup", 0, 0, None, 0.0, 1.9)]
    for kind, count, base_ms, pause_ms in plan:
        walls = []
        for number in range(count):
            wall = base_ms / 1e3 * noise.lognormvariate(0, 0.035)
            if kind == "warmup":
                wall *= (9.0, 1.6, 1.2, 1.0)[min(number, 3)]
            is_long = kind == "watch" and number in (9, 27)
            walls.append(wall * 4.2 if is_long else wall)
            values = (
                len(steps), "train", len(slices), walls[-1], walls[-1] * 1.94,
                0.0003 * noise.lognormvariate(0, 0.2), 64,
            )  # fmt: skip
            steps += records("steps", "index phase slice wall_s cpu_s wait_s batch_size", [values])
            steps[-1]["flags"] = "eval" if is_long else None
        layer = kind if kind in _LAYERS else None
        first = len(steps) - count
        slices.append(_slice(len(slices), kind, first, count, layer, clock, sum(walls)))
        slices[-1]["step_median_s"] = median(walls)
        slices[-1]["stop_s"] = pause_ms / 1e3 if layer else None
        clock += sum(walls) + pause_ms / 1e3
    return slices, steps


def _slice(index, kind, first, steps, layer, start, wall):
    return {
        "index": index, "kind": kind, "layer": layer, "mode": "timed" if layer else None,
        "phase": "train" if steps else "other", "round": int(kind not in ("startup", "warmup")),
        "first_step": first, "steps": steps, "step_median_s": None, "started_s": start,
        "wall_s": wall, "cpu_s": wall * 1.9, "plan": 1 if steps else None, "settle_steps": 0,
        "counted_steps": steps if layer else None, "counted_wall_s": wall if layer else None,
        "stop_s": None,
    }  # fmt: skip


def headline(samples, *, batch, warmup, cores, low, high):
    """The figures of the samples of a benchmark that are reckoned from them, and some constants."""
    quarters, middle = statistics.quantiles(samples, n=4), median(samples)
    ordered, count = sorted(samples), len(samples)
    return {
        "clock": "host", "n": count, "samples_s": samples, "warmup_steps": warmup,
        "first_step_layer": None, "median_s": middle, "iqr_s": quarters[2] - quarters[0],
        "mean_s": fmean(samples), "std_s": statistics.stdev(samples), "min_s": ordered[0],
        "p90_s": ordered[int(0.9 * count)], "p99_s": ordered[int(0.99 * count)],
        "ci95_low_s": middle * low, "ci95_high_s": middle * high, "cpu_median_s": None,
        "cpu_mean_s": middle * cores, "cpu_wall_s": middle, "cores_busy": cores, "cpu_reason": None,
        "host_median_s": middle, "device_median_s": None, "steps_per_s": 1 / fmean(samples),
        "items_per_s": batch / fmean(samples), "between_process": None, "mistakes": [],
        "ablation": [], "throughput": [], "warnings": [],
    }  # fmt: skip


def _benchmark(steps, slices):
    clean = {entry["index"] for entry in slices if entry["kind"] == "clean"}
    counted = [step for step in steps if step["slice"] in clean and not step["flags"]]
    samples = [step["wall_s"] for step in counted]
    figures = headline(samples, batch=64, warmup=4, cores=1.94, low=0.988, high=1.011)
    warning = "Only 32 clean steps: the interval is wide; --clean-steps asks for more."
    return figures | {"mode": "pipelined", "counted_steps": [step["index"] for step in counted],
        "first_step_s": steps[0]["wall_s"], "p99_s": max(samples), "autocorrelation": 0.21,
        "drift": 0.004, "warnings": [warning]}  # fmt: skip


def _probe_effect(name, slices, clean):
    own = next(entry for entry in slices if entry["layer"] == name)
    factor = own["step_median_s"] / clean
    spread = 0.04 if name == "torch" else factor - 0.985
    return {
        "layer": name, "n_layer": own["steps"], "n_clean": 32, "clean_median_s": clean,
        "step_median_s": own["step_median_s"], "factor": factor, "ci95_low": factor - spread,
        "ci95_high": factor + spread, "note": None,
    }  # fmt: skip


def layer_row(name, **values):
    own = dict(zip(_TOLD.split(), _WORDS[name], strict=True))
    rest = dict.fromkeys(("reason", "stop_s", "memory_bytes", "truncated"))
    return {
        "name": name, **own, "status": "recorded", "steps": 0, "artifacts": [], "audit": [], **rest,
        **values,
    }  # fmt: skip


def artifact(layer, path, size, opens_in):
    return {"layer": layer, "path": f"{layer}/{path}", "bytes": size, "opens_in": opens_in}


def _layers():
    trace = artifact("torch", "trace.json.gz", 1_240_331, "Perfetto, chrome://tracing")
    profile = artifact("cprofile", "profile.prof", 92_114, "snakeviz, pstats, gprof2dot")
    audit = ["6 of 6 steps hold events; 4,812 operators, 312 without a module"]
    starved = "the run ended before this layer's turn: too few steps"
    return [
        layer_row("cprofile", steps=8, stop_s=0.011, memory_bytes=262_144, artifacts=[profile]),
        layer_row("torch", steps=6, stop_s=0.042, memory_bytes=9_100_000, artifacts=[trace],
            audit=audit),
        layer_row("memory", status="empty", reason=starved),
    ]  # fmt: skip


def _modules(clean):
    # The figures above are clean ones; the table holds what the slice measured.
    slow, share, rows = 1.27, clean / 4.0e-3, []
    for path, kind, parameters, forward, backward, own in _TREE:
        rows.append(row("modules", path=path, label="model" if path == "Digits" else None,
            type=kind, instance=1, depth=path.count("."), aliases=[], calls=1.0,
            parameters=parameters, forward_s=forward / 1e3 * slow, backward_s=backward / 1e3 * slow,
            self_s=own / 1e3 * slow, calibrated_s=(forward + backward) / 1e3 * share,
            host_net_bytes=float(parameters * 4)))  # fmt: skip
    for path, *times in _PARTS:
        both = sum(one or 0.0 for one in times)
        forward, backward = (None if ms is None else ms / 1e3 * slow for ms in times)
        rows.append(row("modules", path=path, depth=0, aliases=[], forward_s=forward,
                        backward_s=backward, self_s=both / 1e3 * slow,
                        calibrated_s=both / 1e3 * share))  # fmt: skip
    return rows


def _functions():
    keys = "phase file line name calls primitive_calls self_s total_s calibrated_s"
    rows = [("step", file, line, name, calls, 1.0 if name == "walk" else calls, own / 1e3, ms / 1e3,
        own / 1.35e3) for file, line, name, calls, own, ms in FUNCTIONS.values()]  # fmt: skip
    started = ("startup", "~", 0, "<built-in exec>", 1.0, 1.0, 0.2, 1.7, None)
    return records("functions", keys, [*rows, started])


def label(key):
    """How a function of this report stands in `tables.calls`."""
    return "{}:{}({})".format(*FUNCTIONS[key])


def _calls():
    some = (one.split() for one in _CALLS.split(","))
    rows = [(label(caller), label(callee), float(calls), float(ms) / 2e3, float(ms) / 1e3, "step")
        for caller, callee, calls, ms in some]  # fmt: skip
    return records("calls", "caller callee calls self_s total_s phase", rows)


def _memory(slices, steps):
    noise, rows, resident = random.Random(3), [], 310 * 2**20
    end = slices[-1]["started_s"] + slices[-1]["wall_s"]
    for number in range(120):
        at = end * number / 119
        resident += noise.randrange(0, 2**20) if at < 2.1 else noise.randrange(-(2**15), 2**15)
        step = min(int((at - 1.9) / (end - 1.9) * len(steps)), len(steps) - 1) if at > 1.9 else None
        rows.append((at, step, resident))
    return records("memory", "t_s step rss_bytes", rows)


# Tables that a run without the layers that fill them has empty.
_LATER = (
    "kernels", "regions", "ranges", "watch", "outliers", "flops", "memory_owners", "peak_holders",
    "call_paths", "threads", "launches", "gaps", "module_lines", *REPORT_OF_NSYS,
)  # fmt: skip
_REASONS = {
    "nothing was computed again in the backward pass": "modules.recomputed_s",
    "no slice watched what torch's allocator gives out": "modules.host_peak_bytes",
    "no operator of the torch layer's slice is known": "modules.python_s",
    "nothing tells which files are the user's own": "functions.package functions.own lines.own",
    "this machine has no accelerator":
        "steps.device_s modules.forward_device_s modules.backward_device_s operators.device_s "
        "modules.device_net_bytes modules.device_peak_bytes lines.device_s "
        "memory.device_allocated_bytes memory.device_reserved_bytes",
    "no layer of this run counts floating-point operations":
        "modules.forward_flop modules.backward_flop modules.forward_mac modules.flop_per_s "
        "operators.flop",
    "not computed from the shapes in this version": "operators.moved_bytes",
    "the profiler's cost per call was not measured": "functions.corrected_self_s",
    "the memory layer did not run":
        "lines.usage_bytes lines.increment_bytes lines.occurrences lines.largest_bytes "
        "lines.allocated_bytes lines.memory_source",
    "the watch took no sample in the script's own code": "lines.watch_share lines.watch_bytes",
    "the watch took no sample in these functions": "functions.watch_share",
}  # fmt: skip


def build(*, watched_steps=45):
    """A fresh report; the caller may change it as it likes."""
    slices, steps = _slices_and_steps((*_PLAN, ("watch", watched_steps, 4.0, 0.0)))
    benchmark, layers = _benchmark(steps, slices), _layers()
    clean = benchmark["median_s"]
    operators = [(f"aten::{name}", shapes, module, float(calls), ms / 1e3, ms * 1.08 / 1e3,
        ms / 1.27e3) for name, shapes, module, calls, ms in _OPERATORS]  # fmt: skip
    lines = [("augment.py" if line == 8 else "train.py", line, text, 1.0, python / 1e3, ms / 1e3)
        for line, text, python, ms in _SOURCE]  # fmt: skip
    names = "name shapes module calls self_s total_s calibrated_s"
    text = "The run was short: the layer memory had no turn. The command in its row fills it."
    return {
        "schema_version": SCHEMA_VERSION,
        "profstack_version": "0.1.0",
        "script": "train.py",
        "argv": ["train.py", "--epochs", "3", "--lr", "0.001"],
        "status": "complete",
        "run": {"id": "train-0001", "started_at": "2025-11-20T22:31:04+00:00",
            "finished_at": "2025-11-20T22:31:09+00:00", "duration_s": 4.71, "exit_code": 0,
            "signal": None, "stopped_by": None, "rank": 0, "world_size": 1},
        "environment": {"python": "3.11.2", "torch": "2.13.0+cpu", "device": "cpu", "gpu": None,
            "cpu": "AMD EPYC 7763, 2 cores, 2 threads used by torch", "memory": "23.5 GiB",
            "commit": "90fd44f", "platform": "Linux 6.1"},
        "step": {"rule": "Optimizer.step", "count": len(steps), "phase": "train", "batch_size": 64,
            "counts_by_phase": {"train": len(steps)}, "shapes": ["[64, 1, 8, 8]"]},
        "slices": slices,
        "benchmark": benchmark,
        "probe_effect": [_probe_effect(name, slices, clean) for name in _LAYERS],
        "layers": layers,
        "verdict": None,
        "findings": [],
        "roofline": None,
        "tables": {"steps": steps, "modules": _modules(clean),
            "operators": records("operators", names, operators), "functions": _functions(),
            "calls": _calls(), "memory": _memory(slices, steps),
            "lines": records("lines", "file line source calls python_s operator_s", lines),
            "artifacts": [one for layer in layers for one in layer["artifacts"]],
            **{name: [] for name in _LATER}},
        "columns_reason":
            {name: reason for reason, names in _REASONS.items() for name in names.split()},
        "cells_reason": {"modules.parameters": "no module", "modules.calls": "no module"},
        "columns_source": {},
        "watch": None,
        "attribution": None,
        "nsys": None,
        "warnings": [{"slug": "short-run", "text": text}],
    }  # fmt: skip


def hostile():
    """A report whose names all try to become part of the page."""
    report = build()
    report |= {"script": HOSTILE, "argv": [HOSTILE, "--name=" + HOSTILE]}
    report["environment"]["cpu"] = HOSTILE
    report["warnings"].append({"slug": HOSTILE, "text": HOSTILE})
    report["layers"][2]["reason"] = report["slices"][3]["mode"] = HOSTILE
    tables = report["tables"]
    tables["modules"][2]["path"] = "Digits.features." + HOSTILE
    tables["operators"][0]["name"] = tables["operators"][1]["module"] = HOSTILE
    tables["functions"][0] |= {"file": HOSTILE, "name": HOSTILE}
    tables["lines"][0] |= {"file": HOSTILE, "source": HOSTILE}
    tables["artifacts"][0] |= {"path": "javascript:alert(1)//" + HOSTILE, "opens_in": HOSTILE}
    tables["steps"][20]["flags"] = HOSTILE
    for call in tables["calls"]:
        if call["caller"] == label("main"):
            call["caller"] = f"{HOSTILE}:61({HOSTILE})"
    return report
