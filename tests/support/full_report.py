"""The made-up report of a run in which every layer had its turn: operations, memory, the watch."""

import copy

from tests.support.made_up import made_up
from tests.support.owners import FINDINGS, add_device, add_owners, add_regions
from tests.support.reports import FUNCTIONS, artifact, build, layer_row, records, row

MIB = 2**20
_MADE = made_up("full_report")
_FLOPS = _MADE["flops"]
_GROWN = {line: sizes for line, *sizes in _MADE["grown"]}
_UNSEEN = "the watch took no sample in it"


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
    for add in (_add_flops, _add_memory, _add_watch, add_owners, add_regions):
        add(report)
    report["findings"] = copy.deepcopy(FINDINGS)
    report["tables"]["ranges"] = records("ranges", "kind name calls emit_s", [
        ("step", "step", 1.0, 2.1e-6), ("backward", "backward", 1.0, None),
        ("module", "Digits.features.0", 1.0, 0.4e-6)])  # fmt: skip
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
    tables["flops"] = records("flops", "counter uncounted forward_flop backward_flop forward_mac", [
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
    tables["watch"] = records("watch", names, _MADE["watched"])
    tables["outliers"] = records("outliers", "index wall_s factor rss_bytes samples doing", [
        (70, 0.0168, 4.2, 64 * MIB, 1.4, "main (train.py:61) > batches (train.py:20)"),
        (88, 0.0161, 4.0, None, 0.0, None)])  # fmt: skip
    unseen = ("outliers.doing", "outliers.rss_bytes", "functions.watch_share")
    report["cells_reason"] |= dict.fromkeys(unseen, _UNSEEN)
    shares = {"main": 0.06, "engine": 0.39, "conv2d": 0.14, "addmm": 0.07, "foreach": 0.09}
    by_name = {FUNCTIONS[key][2]: share for key, share in shares.items()}
    for record in tables["functions"]:
        record["watch_share"] = by_name.get(record["name"])
    del report["columns_reason"]["functions.watch_share"]
    report["watch"] = {
        "samples": 208, "watched_s": 2.08, "interval_s": 0.01, "thinning": None, "reason": None,
        "samples_by_phase": {"startup": 190, "step": 18, "other": 0}, "rank_correlation": 0.87,
        "rank_functions": 9,
        "outlier_rule": "steps of the watch that took half as long again as the clean median",
    }  # fmt: skip


def on_a_device():
    """The full report of a run on a machine with an accelerator."""
    report = full()
    add_device(report)
    return report
