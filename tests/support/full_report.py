"""The made-up report of a run in which every layer had its turn: operations, memory, the watch,
and what tells the owner of every nanosecond and byte."""

import copy

from tests.support.made_up import made_up
from tests.support.overview import add_sources, add_verdict
from tests.support.reports import FUNCTIONS, artifact, build, layer_row, row, rows

MIB = 2**20
_MADE, _OWNERS = made_up("full_report"), made_up("owners")
_FLOPS = _MADE["flops"]
_GROWN = {line: sizes for line, *sizes in _MADE["grown"]}
_ON_DEVICE = ["kernels", "launch_s", "launches_total_s", "device_busy_s", "device_idle_s"]
# Operators that memory and gaps name, but that no row of the made-up operators has.
_OTHERS = ("aten::zeros_like", "aten::relu", "aten::empty", "aten::mm", "aten::item", "aten::add")


def full():
    """The same report of a run in which every layer had its turn."""
    report = build()
    plot = artifact("memory", "mprofile.dat", 21_345, "mprof plot")
    report["layers"] = [
        *report["layers"][:2],
        layer_row("nvtx", status="emitted", steps=6, stop_s=0.0004, memory_bytes=0),
        layer_row("memory", steps=11, stop_s=0.02, memory_bytes=MIB, artifacts=[plot]),
        layer_row("flops", steps=2, stop_s=0.004, memory_bytes=300_000, audit=["1 more in check"]),
        layer_row("watch", steps=None, memory_bytes=1_400_000),
    ]  # fmt: skip
    slow = "its steps lay in the warm-up, which was slow by itself"
    report["probe_effect"] += [_effect("nvtx", 1.03, None, 6), _effect("memory", 1.9, None, 10),
        _effect("flops", 4.1, slow, 1), _effect("watch", None, "it watches what no slice has", 0)
        ]  # fmt: skip
    for add in (_add_flops, _add_memory, _add_watch, add_owners):
        add(report)
    names = "path source calls wall_s operator_s host_net_bytes threads measured_in"
    report["tables"]["regions"] = rows("regions", names, *_OWNERS["regions"])
    report["cells_reason"]["regions.host_net_bytes"] = "it was not entered in the step observed"
    report["findings"] = copy.deepcopy(_OWNERS["findings"])
    report["tables"]["ranges"] = rows("ranges", "kind name calls emit_s", *_MADE["ranges"])
    report["columns_reason"] |= {"regions.device_s": "this machine has no accelerator",
        "regions.flop": "operations are counted by module and operator, not by region"
        }  # fmt: skip
    report["cells_reason"] |= {"ranges.emit_s": "no more than reading the clock takes"}
    return report


def _effect(layer, factor, note, steps):
    known = factor is not None and steps > 2
    return {
        "layer": layer, "n_layer": steps, "n_clean": 32 if steps else 0, "factor": factor,
        "step_median_s": 0.004 * factor if factor else None,
        "clean_median_s": 0.004 if steps else None, "note": note,
        "ci95_low": factor - 0.05 if known else None, "ci95_high": factor + 0.05 if known else None,
    }  # fmt: skip


def _add_flops(report):
    tables = report["tables"]
    for record in tables["modules"]:
        if record["path"] in _FLOPS:
            forward, backward = _FLOPS[record["path"]]
            record |= {"forward_flop": forward, "backward_flop": backward}
            record["forward_mac"] = forward // 2
            record["flop_per_s"] = (forward + backward) / record["calibrated_s"]
    for column in ("forward_flop", "backward_flop", "forward_mac", "flop_per_s"):
        del report["columns_reason"][f"modules.{column}"]
        report["columns_source"][f"modules.{column}"] = "FlopCounterMode, 1 step"
        report["cells_reason"][f"modules.{column}"] = "nothing in it has a formula"
    cos = {"operator": "aten::fft_fft", "calls": 2.0, "time_share": 0.031}
    mul = {"operator": "aten::mul", "calls": 3.0, "time_share": 0.002}
    mul["why"] = "as the operator * counted as 0"
    forward, backward = _FLOPS["Digits"]
    tables["flops"] = rows("flops", "counter uncounted forward_flop backward_flop forward_mac", *[
        ("FlopCounterMode", [cos], forward, backward, forward // 2), ("recorded_shapes", [cos],
        forward, backward, forward // 2), ("flops-profiler", [mul], forward + 90_000, None,
        None)])  # fmt: skip


def _add_memory(report):
    lines, reasons = report["tables"]["lines"], report["columns_reason"]
    names = ("usage_bytes", "increment_bytes", "largest_bytes", "allocated_bytes")
    for record in lines:
        if record["file"] == "train.py" and record["line"] in _GROWN:
            sizes = (round(size * MIB) for size in _GROWN[record["line"]])
            record |= dict(zip(names, sizes, strict=True))
            record |= {"occurrences": 11.0, "memory_source": "bytes malloc has in use"}
    lines.append(row("lines", file="train.py", line=1, source="import torch", startup_share=0.62,
                     watch_bytes=118 * MIB))  # fmt: skip
    for column in (*names, "occurrences", "memory_source", "watch_bytes"):
        del reasons[f"lines.{column}"]
    unseen = "it did not run in a slice of the memory layer"
    report["cells_reason"] |= {f"lines.{column}": unseen for column in names}


def _add_watch(report):
    tables = report["tables"]
    names = "phase file line name samples self_share total_share rss_bytes"
    tables["watch"] = rows("watch", names, *_MADE["watched"])
    names = "index wall_s factor rss_bytes samples doing"
    tables["outliers"] = rows("outliers", names, *_MADE["outliers"])
    unseen = ("outliers.doing", "outliers.rss_bytes", "functions.watch_share")
    report["cells_reason"] |= dict.fromkeys(unseen, "the watch took no sample in it")
    shares = {"main": 0.06, "engine": 0.39, "conv2d": 0.14, "addmm": 0.07, "foreach": 0.09}
    by_name = {FUNCTIONS[key][2]: share for key, share in shares.items()}
    for record in tables["functions"]:
        record["watch_share"] = by_name.get(record["name"])
    del report["columns_reason"]["functions.watch_share"]
    report["watch"] = copy.deepcopy(_MADE["watch"])


def on_a_device():
    """The full report of a run on a machine with an accelerator."""
    report = full()
    add_device(report)
    return report


def attribution(median):
    """The sums under the module tree, as far as the made-up modules go."""
    step = 5.08e-3
    found = {"step_s": step, "rows_s": step, "owned_s": 0.9724 * step, "owned_share": 0.9724}
    found |= {"calibrated_owned_s": 0.9724 * median, "clean_median_s": median}
    found |= {"backward_s": 2.1e-3, "backward_attributed_share": 0.9912, "negative_rows": 0}
    found |= {"memory_peak_bytes": 385 * MIB, "memory_attributed_share": 0.9896, "reason": None}
    rest = (("(outside modules)", 0.08e-3, 0.0157), ("(not attributed)", 0.06e-3, 0.0119))
    rows = [dict(zip(("path", "self_s", "share"), each, strict=True)) for each in rest]
    return found | {"unowned": rows}


def memory_owners(device="cpu"):
    """Rows of `memory_owners` for one device."""
    names = "device kind start_bytes peak_bytes largest_bytes end_bytes"
    each = _OWNERS["memory"]
    sizes = ((device, kind, *(round(n * MIB) for n in sizes)) for kind, *sizes in each)
    return rows("memory_owners", names, *sizes)


def add_owners(report):
    """Fill the tables of a report on a CPU; the figures on kernels stay with `add_device`."""
    tables, columns, cells = report["tables"], report["columns_reason"], report["cells_reason"]
    report["attribution"] = attribution(report["benchmark"]["median_s"])
    report["processes"] = copy.deepcopy(_MADE["processes"])
    tables["memory_owners"] = memory_owners()
    whole = sum(each["peak_bytes"] for each in tables["memory_owners"]) / MIB
    names = "device kind module operator backward tensors bytes share"
    held = (("cpu", *rest, round(size * MIB), size / whole) for *rest, size in _OWNERS["holders"])
    tables["peak_holders"] = rows("peak_holders", names, *held)
    names = "node parent kind name file line own calls total_s self_s"
    paths = ((*rest, ms and ms / 1e3, own and own / 1e3) for *rest, ms, own in _OWNERS["paths"])
    tables["call_paths"] = rows("call_paths", names, *paths)
    names = "kind name process threads cpu_s share layers note"
    tables["threads"] = rows("threads", names, *_OWNERS["threads"])
    launches = ((12 + number, 61.0 + number % 2) for number in range(6))
    tables["launches"] = rows("launches", "step operators", *launches)
    for record in tables["functions"]:
        record["own"] = record["file"].endswith(("train.py", "augment.py"))
        others = "(built-in)" if record["file"] == "~" else "torch"
        record["package"] = "(own files)" if record["own"] else others
    for record in tables["lines"]:
        record["own"] = True
    # What memory and checkpointing give, and what modules take of Python.
    for record in tables["modules"]:
        if not record["path"].startswith("("):
            record["recomputed_s"] = 0.1e-3 if record["path"] == "Digits.features" else 0.0
            record["python_s"] = record["self_s"] * 0.2
            record["host_peak_bytes"] = 2.0 * (record["host_net_bytes"] or 0) + 4096
    for name in ("recomputed_s", "python_s", "host_peak_bytes"):
        columns.pop(f"modules.{name}", None)
        cells[f"modules.{name}"] = "it is a part of the step outside modules"
    for name in ("functions.own", "functions.package", "lines.own"):
        columns.pop(name, None)
    names = [*(f"launches.{name}" for name in _ON_DEVICE), "call_paths.device_s"]
    columns |= dict.fromkeys(names, "no accelerator was in use")
    names = [f"call_paths.{name}" for name in ("file", "line", "own")]
    cells |= dict.fromkeys(names, "an operator or a kernel has no source line here")
    names = [f"call_paths.{name}" for name in ("total_s", "self_s")]
    cells |= dict.fromkeys(names, "a kernel runs on the device: it has no host time")
    cells |= _MADE["cells_reason"]


def add_device(report):
    """Launches, kernels and gaps as a GPU gives them, and a second place for memory."""
    tables, reasons = report["tables"], report["columns_reason"]
    report["environment"] |= {"device": "cuda", "gpu": "A GPU that is made up"}
    for record in tables["launches"]:
        record |= dict(zip(_ON_DEVICE, (42.0, 5.2e-6, 0.22e-3, 3.1e-3, 0.9e-3), strict=True))
    names = "device cause count total_s longest_s after before"
    tables["gaps"] = rows("gaps", names, *_OWNERS["gaps"])
    tables["memory_owners"] += memory_owners("cuda:0")
    for record in tables["call_paths"]:
        record["device_s"] = 1.9e-3 if record["node"] <= 7 else 0.0
    for record in tables["lines"]:
        if record["operator_s"] is not None:
            record["device_s"] = 0.8 * record["operator_s"]
    for name in [key for key in reasons if "device" in key or key.startswith("launches.")]:
        if name != "steps.device_s":
            reasons[name] = "made up: not filled here"
    for name in (*(f"launches.{each}" for each in _ON_DEVICE), "call_paths.device_s"):
        reasons.pop(name, None)
    reasons.pop("lines.device_s", None)


def whole():
    """The report of a run on a device with a verdict, findings, sources and kernels."""
    report = add_sources(add_verdict(on_a_device()))
    tables = report["tables"]
    tables["kernels"] = [row("kernels", name="gemm", calls=1.0, device_s=1e-4, device="cuda:0",
        module=module, operator="aten::mm") for module in ("Digits.features.0",
        "Digits.classifier.0")]  # fmt: skip
    known = {record["name"] for record in tables["operators"]}
    tables["operators"] += [row("operators", name=name, shapes="[]", calls=1.0, self_s=1e-6,
        total_s=1e-6) for name in (*_OTHERS, "implicit_gemm") if name not in known]  # fmt: skip
    tables["gaps"][-1] |= {"after": "aten::add in (optimizer)", "before": "aten::mm"}
    tables["gaps"][0]["before"] = tables["gaps"][1]["before"] = "aten::add"
    for record in tables["watch"]:
        if record["file"] != "train.py" and not record["file"].startswith("<"):
            record["file"] = "/usr/lib/python3.11/site-packages/" + record["file"]
    slugs = ("data-starved", "forced-synchronisation", "memory-growth")
    for finding, slug in zip(report["findings"], slugs, strict=True):
        finding["slug"] = slug
    report["step_bar"]["parts"][1]["link"] = "python/train.py:61:main"
    return report
