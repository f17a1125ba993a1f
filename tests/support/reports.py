"""A made-up report of the right shape: what the page, the text and the commands are tried on.

The figures are invented but hang together as real ones do: slices follow one another in time,
each layer's steps are slower than the clean ones, roots and step parts add up to the clean
median, and a function's callees never take longer than the function.
"""

import copy
import random
import statistics
from functools import cache
from statistics import fmean, median

from jsonschema import Draft202012Validator

from profstack.report import files
from profstack.storage.schema.recorded import SCHEMA_VERSION
from profstack.storage.schema.report import REPORT
from tests.support.made_up import made_up

HOSTILE = '</script><img src=x onerror="window.broken=1">'
_LAYERS = ("torch", "cprofile")
_MADE = made_up("reports")
FUNCTIONS = _MADE["functions"]


@cache
def _validator():
    # Whether the schema itself is one is tested once: that takes longer than a report.
    return Draft202012Validator(files.schema())


def validate(report):
    """Hold a report against the schema that ships with the package."""
    _validator().validate(report)


def breaks_of_schema(part, rows):
    """What the report's schema says against rows of a part of the benchmark."""
    schema = files.schema()["properties"]["benchmark"]["properties"][part]
    return [error.message for error in Draft202012Validator(schema).iter_errors(rows)]


def completed(value, schema):
    """Add the required fields that a report written by hand leaves out: null, or else empty."""
    if isinstance(value, list):
        return [completed(each, schema.get("items", {})) for each in value]
    if not isinstance(value, dict):
        return value
    fields = schema.get("properties", {})
    added = {name: _empty(fields[name]) for name in schema.get("required", ()) if name in fields}
    both = value | added | {name: each for name, each in value.items() if each is not None}
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


def rows(table, names, *figures, **same):
    """Rows with these figures, in the order of the names; null for those at the end left out."""
    names = names.split()
    return [row(table, **same, **dict(zip(names, each, strict=False))) for each in figures]


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
            steps += rows("steps", "index phase slice wall_s cpu_s wait_s batch_size", values)
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
    rest = dict.fromkeys(("reason", "stop_s", "memory_bytes", "truncated"))
    return {"name": name, **_MADE["layers"][name], "status": "recorded", "steps": 0,
        "artifacts": [], "audit": [], **rest, **values}  # fmt: skip


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
    for path, kind, parameters, forward, backward, own in _MADE["tree"]:
        rows.append(row("modules", path=path, label="model" if path == "Digits" else None,
            type=kind, instance=1, depth=path.count("."), aliases=[], calls=1.0,
            parameters=parameters, forward_s=forward / 1e3 * slow, backward_s=backward / 1e3 * slow,
            self_s=own / 1e3 * slow, calibrated_s=(forward + backward) / 1e3 * share,
            host_net_bytes=float(parameters * 4)))  # fmt: skip
    for path, *times in _MADE["parts"]:
        both = sum(one or 0.0 for one in times)
        forward, backward = (None if ms is None else ms / 1e3 * slow for ms in times)
        rows.append(row("modules", path=path, type="part of the step", depth=0, aliases=[],
                        forward_s=forward, backward_s=backward, self_s=both / 1e3 * slow,
                        calibrated_s=both / 1e3 * share))  # fmt: skip
    return rows


def _functions():
    keys = "phase file line name calls primitive_calls self_s total_s calibrated_s"
    own = [("step", file, line, name, calls, 1.0 if name == "walk" else calls, own / 1e3, ms / 1e3,
        own / 1.35e3) for file, line, name, calls, own, ms in FUNCTIONS.values()]  # fmt: skip
    started = ("startup", "~", 0, "<built-in exec>", 1.0, 1.0, 0.2, 1.7, None)
    return rows("functions", keys, *own, started)


def label(key):
    """How a function of this report stands in `tables.calls`."""
    return "{}:{}({})".format(*FUNCTIONS[key])


def _memory(slices, steps):
    noise, found, resident = random.Random(3), [], 310 * 2**20
    end = slices[-1]["started_s"] + slices[-1]["wall_s"]
    for number in range(120):
        at = end * number / 119
        resident += noise.randrange(0, 2**20) if at < 2.1 else noise.randrange(-(2**15), 2**15)
        step = min(int((at - 1.9) / (end - 1.9) * len(steps)), len(steps) - 1) if at > 1.9 else None
        found.append((at, step, resident))
    return rows("memory", "t_s step rss_bytes", *found)


def build(*, watched_steps=45):
    """A fresh report; the caller may change it as it likes."""
    slices, steps = _slices_and_steps((*_MADE["plan"], ("watch", watched_steps, 4.0, 0.0)))
    benchmark, layers = _benchmark(steps, slices), _layers()
    clean = benchmark["median_s"]
    operators = [(f"aten::{name}", shapes, module, float(calls), ms / 1e3, ms * 1.08 / 1e3,
        ms / 1.27e3) for name, shapes, module, calls, ms in _MADE["operators"]]  # fmt: skip
    lines = [("augment.py" if line == 8 else "train.py", line, text, 1.0, python / 1e3, ms / 1e3)
        for line, text, python, ms in _MADE["source"]]  # fmt: skip
    calls = [(label(caller), label(callee), calls, ms / 2e3, ms / 1e3, "step")
        for caller, callee, calls, ms in _MADE["calls"]]  # fmt: skip
    names = "name shapes module calls self_s total_s calibrated_s"
    whole = copy.deepcopy(_MADE["whole"])
    whole["step"] |= {"count": len(steps), "counts_by_phase": {"train": len(steps)}}
    return whole | {
        "schema_version": SCHEMA_VERSION,
        "slices": slices,
        "benchmark": benchmark,
        "probe_effect": [_probe_effect(name, slices, clean) for name in _LAYERS],
        "layers": layers,
        # Those of layers that had no turn are empty.
        "tables": {**{name: [] for name in REPORT}, "steps": steps, "modules": _modules(clean),
            "operators": rows("operators", names, *operators), "functions": _functions(),
            "calls": rows("calls", "caller callee calls self_s total_s phase", *calls),
            "memory": _memory(slices, steps),
            "lines": rows("lines", "file line source calls python_s operator_s", *lines),
            "artifacts": [one for layer in layers for one in layer["artifacts"]]},
        "columns_reason":
            {name: reason for reason, names in _MADE["reasons"].items() for name in names.split()},
    }  # fmt: skip


# Words of profstack's own that the schema does not list.
_WORDS = {"slug", "layer", "link", "phase", "mode", "started_at", "finished_at", "measured_at"}


def hostile(value, schema=None, key=""):
    """The report with texts that try to become part of the page, but for words of profstack's."""
    schema = files.schema() if schema is None else schema
    if isinstance(value, dict):
        fields = schema.get("properties", {})
        return {name: hostile(each, fields.get(name, {}), name) for name, each in value.items()}
    if isinstance(value, list):
        return [hostile(each, schema.get("items", {}), key) for each in value]
    is_own = key in _WORDS or "enum" in schema or not isinstance(value, str)
    return value if is_own else HOSTILE + value
