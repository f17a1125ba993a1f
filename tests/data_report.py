"""A made-up report of the right shape: what the page, the text and the commands are tried on.

The figures are invented but hang together as real ones do: slices follow one another in time,
each layer's steps are slower than the clean ones, roots and step parts add up to the clean
median, and a function's callees never take longer than the function.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping
from typing import Any

from profstack.storage.schema.recorded import SCHEMA_VERSION
from profstack.storage.schema.report import REPORT, REPORT_OF_NSYS

HOSTILE = '</script><img src=x onerror="window.broken=1">'

# kind, steps, step time in ms, pause in ms after the slice
_PLAN = (
    ("warmup", 4, 9.1, 0.0),
    ("clean", 8, 4.0, 0.0),
    ("settle", 1, 4.4, 0.0),
    ("torch", 6, 5.1, 42.0),
    ("settle", 2, 4.6, 0.0),
    ("clean", 12, 4.0, 0.0),
    ("settle", 1, 4.3, 0.0),
    ("cprofile", 8, 5.4, 11.0),
    ("settle", 2, 4.5, 0.0),
    ("clean", 12, 4.0, 0.0),
    ("watch", 45, 4.0, 0.0),
)
_LAYERS = ("torch", "cprofile")

_TREE = (
    # path, type, parameters, forward ms, backward ms, self ms, calls
    ("Digits", "Digits", 117_002, 1.10, 1.45, 0.12, 1.0),
    ("Digits.features", "Sequential", 18_816, 0.70, 0.92, 0.05, 1.0),
    ("Digits.features.0", "Conv2d", 320, 0.21, 0.34, 0.55, 1.0),
    ("Digits.features.1", "ReLU", 0, 0.04, 0.05, 0.09, 1.0),
    ("Digits.features.2", "Conv2d", 18_496, 0.38, 0.46, 0.84, 1.0),
    ("Digits.features.3", "ReLU", 0, 0.04, 0.05, 0.09, 1.0),
    ("Digits.classifier", "Sequential", 98_186, 0.33, 0.48, 0.06, 1.0),
    ("Digits.classifier.0", "Linear", 97_536, 0.20, 0.31, 0.51, 1.0),
    ("Digits.classifier.1", "Dropout", 0, 0.05, 0.04, 0.09, 1.0),
    ("Digits.classifier.2", "Linear", 650, 0.06, 0.09, 0.15, 1.0),
)
_PARTS = (
    ("(wait)", 0.31, None),
    ("(loss)", 0.12, 0.09),
    ("(optimizer)", 0.62, None),
    ("(gradient accumulation)", None, 0.11),
    ("(outside modules)", 0.08, None),
    ("(not attributed)", 0.06, None),
)

_OPERATORS = (
    ("aten::addmm", "[[64, 64], [64, 1536], [1536, 64]]", "Digits.classifier.0", 1, 0.19),
    ("aten::mkldnn_convolution", "[[64, 1, 8, 8], [32, 1, 3, 3]]", "Digits.features.0", 1, 0.18),
    ("aten::mkldnn_convolution", "[[64, 32, 8, 8], [64, 32, 3, 3]]", "Digits.features.2", 1, 0.34),
    ("aten::convolution_backward", "[[64, 64, 8, 8]]", "Digits.features.2", 1, 0.41),
    ("aten::convolution_backward", "[[64, 32, 8, 8]]", "Digits.features.0", 1, 0.30),
    ("aten::mm", "[[1536, 64], [64, 64]]", "Digits.classifier.0", 2, 0.27),
    ("aten::threshold_backward", "[[64, 32, 8, 8]]", "Digits.features.1", 1, 0.05),
    ("aten::_foreach_addcmul_", "[]", "(optimizer)", 1, 0.11),
    ("aten::log_softmax", "[[64, 10]]", "(loss)", 1, 0.03),
)

# file, line, name, calls per step, self ms
FUNCTIONS = {
    "main": ("train.py", 61, "main", 1.0, 0.30),
    "loader": ("train.py", 20, "batches", 1.0, 0.28),
    "call": ("torch/nn/modules/module.py", 1779, "_call_impl", 10.0, 0.14),
    "forward": ("train.py", 44, "Digits.forward", 1.0, 0.06),
    "sequential": ("torch/nn/modules/container.py", 248, "Sequential.forward", 2.0, 0.07),
    "conv": ("torch/nn/modules/conv.py", 547, "Conv2d.forward", 2.0, 0.03),
    "conv2d": ("~", 0, "<built-in method torch.conv2d>", 2.0, 0.70),
    "linear": ("torch/nn/modules/linear.py", 124, "Linear.forward", 2.0, 0.02),
    "addmm": ("~", 0, "<built-in method torch._C._nn.linear>", 2.0, 0.31),
    "relu": ("torch/nn/functional.py", 1693, "relu", 2.0, 0.09),
    "dropout": ("torch/nn/functional.py", 1418, "dropout", 1.0, 0.06),
    "loss": ("torch/nn/functional.py", 3420, "cross_entropy", 1.0, 0.13),
    "backward": ("torch/_tensor.py", 576, "Tensor.backward", 1.0, 0.03),
    "engine": ("~", 0, "<method 'run_backward' of 'torch._C._EngineBase' objects>", 1.0, 1.92),
    "adam": ("torch/optim/adam.py", 213, "Adam.step", 1.0, 0.21),
    "foreach": ("~", 0, "<built-in method torch._foreach_addcmul_>", 4.0, 0.40),
    "walk": ("train.py", 30, "walk", 6.0, 0.11),
}
_CALLS = (
    # caller, callee, calls, ms with callees
    ("main", "call", 1.0, 1.48),
    ("main", "loader", 1.0, 0.39),
    ("main", "loss", 1.0, 0.13),
    ("main", "backward", 1.0, 1.95),
    ("main", "adam", 1.0, 0.61),
    ("call", "forward", 1.0, 1.40),
    ("forward", "call", 2.0, 1.30),
    ("call", "sequential", 2.0, 1.28),
    ("sequential", "call", 7.0, 1.20),
    ("call", "conv", 2.0, 0.73),
    ("call", "linear", 2.0, 0.33),
    ("call", "relu", 2.0, 0.09),
    ("call", "dropout", 1.0, 0.06),
    ("conv", "conv2d", 2.0, 0.70),
    ("linear", "addmm", 2.0, 0.31),
    ("backward", "engine", 1.0, 1.92),
    ("adam", "foreach", 4.0, 0.40),
    ("loader", "walk", 1.0, 0.11),
    ("walk", "walk", 5.0, 0.09),
)
_TOTALS = {
    "main": 4.86, "loader": 0.39, "call": 1.48, "forward": 1.40, "sequential": 1.28,
    "conv": 0.73, "conv2d": 0.70, "linear": 0.33, "addmm": 0.31, "relu": 0.09, "dropout": 0.06,
    "loss": 0.13, "backward": 1.95, "engine": 1.92, "adam": 0.61, "foreach": 0.40, "walk": 0.11,
}  # fmt: skip

_SOURCE = (
    ("train.py", 20, "def batches(images, labels, size):", 1.0, 0.02, 0.0),
    ("train.py", 22, "    order = torch.randperm(len(images))", 1.0, 0.01, 0.06),
    ("train.py", 24, "        yield images[chosen], labels[chosen]", 1.0, 0.03, 0.17),
    ("train.py", 44, "    def forward(self, x):", 1.0, 0.01, 0.0),
    ("train.py", 45, "        return self.classifier(self.features(x))", 1.0, 0.21, 1.18),
    ("train.py", 66, "        loss = F.cross_entropy(model(x), y)", 1.0, 0.02, 0.12),
    ("train.py", 67, "        optimizer.zero_grad()", 1.0, 0.05, 0.01),
    ("train.py", 68, "        loss.backward()", 1.0, 0.04, 1.74),
    ("train.py", 69, "        optimizer.step()", 1.0, 0.19, 0.43),
    ("augment.py", 8, "    return x + 0.01 * torch.randn_like(x)", 1.0, 0.01, 0.09),
)  # fmt: skip

_WORDS = {
    "cprofile": {
        "technique": "tracing",
        "tool": "cProfile",
        "version": "3.11",
        "measures": "every call of a Python function on the main thread: how often and how long",
        "does_not_measure": "other threads, C code inside one built-in, device work",
        "usual_slowdown": "1.01 on a 100 ms step, 1.25 on a step of 0.3 ms",
        "conflicts": "any other profiler that uses sys.setprofile, torch.profiler with stacks",
        "command": "profstack run --layers cprofile train.py",
    },
    "torch": {
        "technique": "tracing",
        "tool": "torch.profiler",
        "version": "2.13.0",
        "measures": "operators, kernels and modules with their times and shapes",
        "does_not_measure": "Python code between operators, memory held by other libraries",
        "usual_slowdown": "1.05 on a 100 ms step, 1.29 on a step of 0.3 ms",
        "conflicts": "another torch.profiler, nsys (one CUPTI client at a time)",
        "command": "profstack run --layers torch train.py",
    },
    "memory": {
        "technique": "tracing",
        "tool": "memory_profiler",
        "version": "0.61.0",
        "measures": "growth of the resident set, line by line",
        "does_not_measure": "memory that torch's allocator hands out again",
        "usual_slowdown": "1.2 on a 100 ms step, 3.6 to 5.8 on a step of 0.3 ms",
        "conflicts": "debuggers and coverage (sys.settrace)",
        "command": "profstack run --layers memory train.py",
    },
    "nvtx": {
        "technique": "tracing",
        "tool": "nvtx",
        "version": "0.2.15",
        "measures": "it emits a range for every step and module call, and counts them",
        "does_not_measure": "the time between a range's ends",
        "usual_slowdown": "1.01 on a 100 ms step, 1.04 on a step of 0.3 ms",
        "conflicts": "a script that calls cudaProfilerStart itself",
        "command": None,
    },
    "flops": {
        "technique": "counting",
        "tool": "FlopCounterMode",
        "version": "2.13.0",
        "measures": "floating-point operations by module and operator",
        "does_not_measure": "element-wise operators, what a causal mask leaves out",
        "usual_slowdown": "1.4 on a 100 ms step, 7 on a step of 0.3 ms",
        "conflicts": "torch.compile",
        "command": None,
    },
    "watch": {
        "technique": "sampling",
        "tool": "sys._current_frames",
        "version": "Python 3.11",
        "measures": "every 10 ms the stack of the thread that trains",
        "does_not_measure": "single calls, other threads",
        "usual_slowdown": "none that could be told from 1.00",
        "conflicts": "a profiler of the script's own, from Python 3.12 on",
        "command": None,
    },
}


def completed(value: Any, schema: Mapping[str, Any]) -> Any:
    """Add the required fields that a report written by hand leaves out: null, or else empty."""
    if isinstance(value, list):
        return [completed(each, schema.get("items", {})) for each in value]
    if not isinstance(value, dict):
        return value
    fields = schema.get("properties", {})
    added = {name: _empty(fields[name]) for name in schema.get("required", ()) if name in fields}
    given = {name: each for name, each in value.items() if each is not None}
    return {
        name: completed(each, fields.get(name, {}))
        for name, each in (value | added | given).items()
    }


def _empty(schema: Mapping[str, Any]) -> Any:
    kinds = schema.get("type", "null")
    if "null" in kinds:
        return None
    return completed(
        {"array": [], "object": {}, "integer": 0, "number": 0.0, "string": ""}.get(kinds), schema
    )


def row(table: str, **values: Any) -> dict[str, Any]:
    """One row of a report table with every column, null where nothing is given."""
    return {**dict.fromkeys(REPORT[table].names), **values}


def _slices_and_steps(plan: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Slices one after the other, and the steps inside them, with a little noise."""
    noise = random.Random(7)
    slices: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    clock = 1.9
    slices.append(_slice(0, "startup", 0, 0, None, 0.0, 1.9))
    for kind, count, base_ms, pause_ms in plan:
        walls = []
        for number in range(count):
            wall = base_ms / 1e3 * noise.lognormvariate(0, 0.035)
            if kind == "warmup":
                wall *= (9.0, 1.6, 1.2, 1.0)[min(number, 3)]
            flag = None
            if kind == "watch" and number in (9, 27):
                wall, flag = wall * 4.2, "eval"
            walls.append(wall)
            steps.append(
                row(
                    "steps",
                    index=len(steps),
                    phase="train",
                    slice=len(slices),
                    wall_s=wall,
                    cpu_s=wall * 1.94,
                    wait_s=0.0003 * noise.lognormvariate(0, 0.2),
                    batch_size=64,
                )
                | {"flags": flag}
            )
        first = len(steps) - count
        layer = kind if kind in _LAYERS else None
        entry = _slice(len(slices), kind, first, count, layer, clock, sum(walls))
        entry["step_median_s"] = statistics.median(walls)
        entry["stop_s"] = pause_ms / 1e3 if layer else None
        slices.append(entry)
        clock += sum(walls) + pause_ms / 1e3
    return slices, steps


def _slice(
    index: int, kind: str, first: int, steps: int, layer: str | None, start: float, wall: float
) -> dict[str, Any]:
    return {
        "index": index,
        "kind": kind,
        "layer": layer,
        "mode": "timed" if layer else None,
        "phase": "train" if steps else "other",
        "round": 0 if kind in ("startup", "warmup") else 1,
        "first_step": first,
        "steps": steps,
        "step_median_s": None,
        "started_s": start,
        "wall_s": wall,
        "cpu_s": wall * 1.9,
        "plan": 1 if steps else None,
        "counted_steps": steps if layer else None,
        "counted_wall_s": wall if layer else None,
        "settle_steps": 0,
        "stop_s": None,
    }


def _benchmark(steps: list[dict[str, Any]], slices: list[dict[str, Any]]) -> dict[str, Any]:
    clean = {entry["index"] for entry in slices if entry["kind"] == "clean"}
    counted = [step for step in steps if step["slice"] in clean and not step["flags"]]
    samples = [step["wall_s"] for step in counted]
    quarters = statistics.quantiles(samples, n=4)
    median = statistics.median(samples)
    return {
        "mode": "pipelined",
        "clock": "host",
        "n": len(samples),
        "samples_s": samples,
        "counted_steps": [step["index"] for step in counted],
        "warmup_steps": 4,
        "first_step_s": steps[0]["wall_s"],
        "first_step_layer": None,
        "median_s": median,
        "iqr_s": quarters[2] - quarters[0],
        "mean_s": statistics.fmean(samples),
        "std_s": statistics.stdev(samples),
        "min_s": min(samples),
        "p90_s": sorted(samples)[int(0.9 * len(samples))],
        "p99_s": max(samples),
        "ci95_low_s": median * 0.988,
        "ci95_high_s": median * 1.011,
        "cpu_median_s": None,
        "cpu_mean_s": median * 1.94,
        "cpu_wall_s": median,
        "cores_busy": 1.94,
        "cpu_reason": None,
        "host_median_s": median,
        "device_median_s": None,
        "autocorrelation": 0.21,
        "drift": 0.004,
        "steps_per_s": 1 / statistics.fmean(samples),
        "items_per_s": 64 / statistics.fmean(samples),
        "between_process": None,
        "mistakes": [],
        "ablation": [],
        "throughput": [],
        "warnings": ["Only 32 clean steps: the interval is wide; --clean-steps asks for more."],
    }


def _probe_effect(name: str, slices: list[dict[str, Any]], median: float) -> dict[str, Any]:
    own = next(entry for entry in slices if entry["layer"] == name)
    factor = own["step_median_s"] / median
    spread = 0.04 if name == "torch" else factor - 0.985
    return {
        "layer": name,
        "n_layer": own["steps"],
        "n_clean": 32,
        "step_median_s": own["step_median_s"],
        "clean_median_s": median,
        "factor": factor,
        "ci95_low": factor - spread,
        "ci95_high": factor + spread,
        "note": None,
    }


def layer_row(name: str, **values: Any) -> dict[str, Any]:
    return {
        "name": name,
        **_WORDS[name],
        "status": "recorded",
        "reason": None,
        "steps": 0,
        "stop_s": None,
        "memory_bytes": None,
        "artifacts": [],
        "audit": [],
        "truncated": None,
        **values,
    }


def _layers() -> list[dict[str, Any]]:
    trace = {"layer": "torch", "path": "torch/trace.json.gz", "bytes": 1_240_331}
    trace["opens_in"] = "Perfetto, chrome://tracing"
    profile = {"layer": "cprofile", "path": "cprofile/profile.prof", "bytes": 92_114}
    profile["opens_in"] = "snakeviz, pstats, gprof2dot"
    starved = "the run ended before this layer's turn: too few steps"
    return [
        layer_row("cprofile", steps=8, stop_s=0.011, memory_bytes=262_144, artifacts=[profile]),
        layer_row(
            "torch",
            steps=6,
            stop_s=0.042,
            memory_bytes=9_100_000,
            artifacts=[trace],
            audit=["6 of 6 steps hold events; 4,812 operators, 312 without a module"],
        ),
        layer_row("memory", status="empty", reason=starved),
    ]


def _modules(median: float) -> list[dict[str, Any]]:
    slow = 1.27  # the figures above are clean ones; the table holds what the slice measured
    share = median / 4.0e-3
    rows = []
    for path, kind, parameters, forward, backward, own, calls in _TREE:
        rows.append(
            row(
                "modules",
                path=path,
                label="model" if path == "Digits" else None,
                type=kind,
                instance=1,
                depth=path.count("."),
                aliases=[],
                calls=calls,
                parameters=parameters,
                forward_s=forward / 1e3 * slow,
                backward_s=backward / 1e3 * slow,
                self_s=own / 1e3 * slow,
                calibrated_s=(forward + backward) / 1e3 * share,
                host_net_bytes=float(parameters * 4),
            )
        )
    for path, forward_ms, backward_ms in _PARTS:
        both = (forward_ms or 0.0) + (backward_ms or 0.0)
        rows.append(
            row(
                "modules",
                path=path,
                depth=0,
                aliases=[],
                forward_s=None if forward_ms is None else forward_ms / 1e3 * slow,
                backward_s=None if backward_ms is None else backward_ms / 1e3 * slow,
                self_s=both / 1e3 * slow,
                calibrated_s=both / 1e3 * share,
            )
        )
    return rows


def _operators() -> list[dict[str, Any]]:
    return [
        row(
            "operators",
            name=name,
            shapes=shapes,
            module=module,
            calls=float(calls),
            self_s=ms / 1e3,
            total_s=ms * 1.08 / 1e3,
            calibrated_s=ms / 1.27e3,
        )
        for name, shapes, module, calls, ms in _OPERATORS
    ]


def _functions() -> list[dict[str, Any]]:
    rows = [
        row(
            "functions",
            phase="step",
            file=file,
            line=line,
            name=name,
            calls=calls,
            primitive_calls=1.0 if name == "walk" else calls,
            self_s=own / 1e3,
            total_s=_TOTALS[key] / 1e3,
            calibrated_s=own / 1.35e3,
        )
        for key, (file, line, name, calls, own) in FUNCTIONS.items()
    ]
    started = row("functions", phase="startup", file="~", line=0, name="<built-in exec>")
    started |= {"calls": 1.0, "primitive_calls": 1.0, "self_s": 0.2, "total_s": 1.7}
    return [*rows, started]


def label(key: str) -> str:
    """How a function of this report stands in `tables.calls`."""
    file, line, name, _, _ = FUNCTIONS[key]
    return f"{file}:{line}({name})"


def _calls() -> list[dict[str, Any]]:
    return [
        row(
            "calls",
            caller=label(caller),
            callee=label(callee),
            calls=calls,
            self_s=total / 2e3,
            total_s=total / 1e3,
        )
        | {"phase": "step"}
        for caller, callee, calls, total in _CALLS
    ]


def _lines() -> list[dict[str, Any]]:
    return [
        row(
            "lines",
            file=file,
            line=line,
            source=source,
            calls=calls,
            python_s=python / 1e3,
            operator_s=operator / 1e3,
        )
        for file, line, source, calls, python, operator in _SOURCE
    ]


def _memory(slices: list[dict[str, Any]], steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    noise = random.Random(3)
    rows, resident = [], 310 * 2**20
    end = slices[-1]["started_s"] + slices[-1]["wall_s"]
    for number in range(120):
        at = end * number / 119
        resident += noise.randrange(0, 2**20) if at < 2.1 else noise.randrange(-(2**15), 2**15)
        step = min(int((at - 1.9) / (end - 1.9) * len(steps)), len(steps) - 1) if at > 1.9 else None
        rows.append(row("memory", t_s=at, step=step, rss_bytes=resident))
    return rows


# Tables that a run without the layers that fill them has empty.
_LATER = (
    "memory_owners", "peak_holders", "call_paths", "threads", "launches", "gaps", "module_lines",
    *REPORT_OF_NSYS,
)  # fmt: skip

_REASONS = {
    "modules.recomputed_s": "nothing was computed again in the backward pass",
    "modules.host_peak_bytes": "no slice watched what torch's allocator gives out",
    "modules.python_s": "no operator of the torch layer's slice is known",
    "functions.package": "nothing tells which files are the user's own",
    "functions.own": "nothing tells which files are the user's own",
    "lines.own": "nothing tells which files are the user's own",
    "steps.device_s": "this machine has no accelerator",
    "modules.forward_device_s": "this machine has no accelerator",
    "modules.backward_device_s": "this machine has no accelerator",
    "modules.device_net_bytes": "this machine has no accelerator",
    "modules.device_peak_bytes": "this machine has no accelerator",
    "modules.forward_flop": "no layer of this run counts floating-point operations",
    "modules.backward_flop": "no layer of this run counts floating-point operations",
    "modules.forward_mac": "no layer of this run counts floating-point operations",
    "modules.flop_per_s": "no layer of this run counts floating-point operations",
    "operators.device_s": "this machine has no accelerator",
    "operators.flop": "no layer of this run counts floating-point operations",
    "operators.moved_bytes": "not computed from the shapes in this version",
    "functions.corrected_self_s": "the profiler's cost per call was not measured",
    "lines.device_s": "this machine has no accelerator",
    "lines.usage_bytes": "the memory layer did not run",
    "lines.increment_bytes": "the memory layer did not run",
    "lines.occurrences": "the memory layer did not run",
    "lines.watch_share": "the watch took no sample in the script's own code",
    "lines.watch_bytes": "the watch took no sample in the script's own code",
    "memory.device_allocated_bytes": "this machine has no accelerator",
    "memory.device_reserved_bytes": "this machine has no accelerator",
    "lines.largest_bytes": "the memory layer did not run",
    "lines.allocated_bytes": "the memory layer did not run",
    "lines.memory_source": "the memory layer did not run",
    "functions.watch_share": "the watch took no sample in these functions",
}


def build(*, watched_steps: int = 45) -> dict[str, Any]:
    """A fresh report; the caller may change it as it likes."""
    plan = (*_PLAN[:-1], ("watch", watched_steps, 4.0, 0.0))
    slices, steps = _slices_and_steps(plan)
    benchmark = _benchmark(steps, slices)
    median = benchmark["median_s"]
    layers = _layers()
    return {
        "schema_version": SCHEMA_VERSION,
        "profstack_version": "0.1.0",
        "script": "train.py",
        "argv": ["train.py", "--epochs", "3", "--lr", "0.001"],
        "status": "complete",
        "run": {
            "id": "train-0001",
            "started_at": "2025-11-20T22:31:04+00:00",
            "finished_at": "2025-11-20T22:31:09+00:00",
            "duration_s": 4.71,
            "exit_code": 0,
            "signal": None,
            "stopped_by": None,
            "rank": 0,
            "world_size": 1,
        },
        "environment": {
            "python": "3.11.2",
            "torch": "2.13.0+cpu",
            "device": "cpu",
            "cpu": "AMD EPYC 7763, 2 cores, 2 threads used by torch",
            "gpu": None,
            "memory": "23.5 GiB",
            "commit": "90fd44f",
            "platform": "Linux 6.1",
        },
        "step": {
            "rule": "Optimizer.step",
            "count": len(steps),
            "phase": "train",
            "counts_by_phase": {"train": len(steps)},
            "batch_size": 64,
            "shapes": ["[64, 1, 8, 8]"],
        },
        "slices": slices,
        "benchmark": benchmark,
        "probe_effect": [_probe_effect(name, slices, median) for name in _LAYERS],
        "layers": layers,
        "verdict": None,
        "findings": [],
        "roofline": None,
        "tables": {
            "steps": steps,
            "modules": _modules(median),
            "operators": _operators(),
            "kernels": [],
            "functions": _functions(),
            "calls": _calls(),
            "lines": _lines(),
            "memory": _memory(slices, steps),
            "regions": [],
            "ranges": [],
            "watch": [],
            "outliers": [],
            "flops": [],
            "artifacts": [artifact for layer in layers for artifact in layer["artifacts"]],
            **{name: [] for name in _LATER},
        },
        "columns_reason": dict(_REASONS),
        "cells_reason": {"modules.parameters": "no module", "modules.calls": "no module"},
        "columns_source": {},
        "watch": None,
        "attribution": None,
        "nsys": None,
        "warnings": [
            {
                "slug": "short-run",
                "text": "The run was short: the layer memory had no turn. "
                "The command in its row fills it.",
            }
        ],
    }


def hostile() -> dict[str, Any]:
    """A report whose names all try to become part of the page."""
    report = build()
    report["script"] = HOSTILE
    report["argv"] = [HOSTILE, "--name=" + HOSTILE]
    report["environment"]["cpu"] = HOSTILE
    report["warnings"].append({"slug": HOSTILE, "text": HOSTILE})
    report["layers"][2]["reason"] = HOSTILE
    report["slices"][3]["mode"] = HOSTILE
    tables = report["tables"]
    tables["modules"][2]["path"] = "Digits.features." + HOSTILE
    tables["operators"][0]["name"] = HOSTILE
    tables["operators"][1]["module"] = HOSTILE
    tables["functions"][0] |= {"file": HOSTILE, "name": HOSTILE}
    tables["lines"][0] |= {"file": HOSTILE, "source": HOSTILE}
    tables["artifacts"][0] |= {"path": "javascript:alert(1)//" + HOSTILE, "opens_in": HOSTILE}
    tables["steps"][20]["flags"] = HOSTILE
    for call in tables["calls"]:
        if call["caller"] == label("main"):
            call["caller"] = f"{HOSTILE}:61({HOSTILE})"
    return report
