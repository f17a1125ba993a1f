"""The made-up report of a run in which every layer had its turn: operations, memory, the watch."""

from __future__ import annotations

import copy
from typing import Any

from data_owners import FINDINGS, add_device, add_owners, add_regions, make_hostile
from data_report import FUNCTIONS, HOSTILE, build, layer_row, row

_FLOPS = {
    # path: forward, backward; a root holds what is inside it
    "Digits": (2_764_800, 5_160_960),
    "Digits.features": (2_396_160, 4_423_680),
    "Digits.features.0": (36_864, 36_864),
    "Digits.features.2": (2_359_296, 4_386_816),
    "Digits.classifier": (368_640, 737_280),
    "Digits.classifier.0": (327_680, 655_360),
    "Digits.classifier.2": (40_960, 81_920),
}

# line of train.py: RSS after, growth, largest growth, second source, runs; in MiB
_GROWN = {
    22: (402.0, 0.1, 0.1, 0.0, 11),
    45: (407.5, 5.2, 5.1, 4.9, 11),
    66: (407.5, 0.0, 0.0, 0.1, 11),
    68: (471.9, 64.1, 64.0, 64.0, 11),
    69: (472.4, 0.9, 0.9, 0.9, 11),
}

_STARTUP = (
    # file, line, name, samples, own share, share with callees, MiB
    ("train.py", 1, "<module>", 190.0, 0.01, 1.0, 0.5),
    ("torch/__init__.py", 1, "<module>", 118.0, 0.04, 0.62, 118.0),
    ("sklearn/datasets/_base.py", 880, "load_digits", 38.0, 0.02, 0.20, 21.0),
    ("<frozen importlib._bootstrap_external>", 934, "exec_module", 30.0, 0.16, 0.70, 2.0),
)


def _later_layers() -> list[dict[str, Any]]:
    """The layers beside cprofile and torch, as a run with all of them has them."""
    plot = {"layer": "memory", "path": "memory/mprofile.dat", "bytes": 21_345}
    plot["opens_in"] = "mprof plot"
    return [
        layer_row("nvtx", status="emitted", steps=6, stop_s=0.0004, memory_bytes=0),
        layer_row("memory", steps=11, stop_s=0.02, memory_bytes=2**20, artifacts=[plot]),
        layer_row("flops", steps=2, stop_s=0.004, memory_bytes=300_000, audit=["1 more in check"]),
        layer_row("watch", steps=None, memory_bytes=1_400_000),
    ]


def full() -> dict[str, Any]:
    """The same report of a run in which every layer had its turn."""
    report = build()
    report["layers"] = [*report["layers"][:2], *_later_layers()]
    report["probe_effect"] += [
        _effect("nvtx", 1.03, "", 6),
        _effect("memory", 1.9, "", 10),
        _effect("flops", 4.1, "its steps lay in the warm-up, which was slow by itself", 1),
        _effect("watch", None, "it watches what no slice has", 0),
    ]
    tables = report["tables"]
    _add_flops(report)
    _add_memory(report)
    _add_watch(report)
    add_owners(report)
    add_regions(report)
    report["findings"] = copy.deepcopy(list(FINDINGS))
    tables["ranges"] = [
        row("ranges", kind="step", name="step", calls=1.0, emit_s=2.1e-6),
        row("ranges", kind="backward", name="backward", calls=1.0, emit_s=None),
        row("ranges", kind="module", name="Digits.features.0", calls=1.0, emit_s=0.4e-6),
    ]
    report["columns_reason"] |= {
        "regions.device_s": "this machine has no accelerator",
        "regions.flop": "operations are counted by module and operator, not by region",
    }
    report["cells_reason"] |= {"ranges.emit_s": "no more than reading the clock takes"}
    return report


def _effect(layer: str, factor: float | None, note: str, steps: int) -> dict[str, Any]:
    known = factor is not None and steps > 2
    return {
        "layer": layer,
        "n_layer": steps,
        "n_clean": 32 if steps else 0,
        "step_median_s": 0.004 * factor if factor else None,
        "clean_median_s": 0.004 if steps else None,
        "factor": factor,
        "ci95_low": factor - 0.05 if factor and known else None,
        "ci95_high": factor + 0.05 if factor and known else None,
        "note": note or None,
    }


def _add_flops(report: dict[str, Any]) -> None:
    tables, reasons = report["tables"], report["columns_reason"]
    for record in tables["modules"]:
        if record["path"] in _FLOPS:
            forward, backward = _FLOPS[record["path"]]
            record |= {"forward_flop": forward, "backward_flop": backward}
            record["forward_mac"] = forward // 2
            record["flop_per_s"] = (forward + backward) / record["calibrated_s"]
    for column in ("forward_flop", "backward_flop", "forward_mac", "flop_per_s"):
        del reasons[f"modules.{column}"]
        source = "FlopCounterMode, 1 step"
        report["columns_source"][f"modules.{column}"] = source
        report["cells_reason"][f"modules.{column}"] = "nothing in it has a formula"
    cos = {"operator": "aten::fft_fft", "calls": 2.0, "time_share": 0.031}
    mul = {"operator": "aten::mul", "calls": 3.0, "time_share": 0.002}
    forward, backward = _FLOPS["Digits"]
    both = {"forward_flop": forward, "backward_flop": backward, "forward_mac": forward // 2}
    tables["flops"] = [
        row("flops", counter="FlopCounterMode", uncounted=[cos], **both),
        row("flops", counter="recorded_shapes", uncounted=[cos], **both),
        row("flops", counter="flops-profiler", forward_flop=forward + 90_000,
            uncounted=[mul | {"why": "as the operator * counted as 0"}]),
    ]  # fmt: skip


def _add_memory(report: dict[str, Any]) -> None:
    mib = 2**20
    for record in report["tables"]["lines"]:
        grown = _GROWN.get(record["line"])
        if record["file"] == "train.py" and grown is not None:
            names = ("usage_bytes", "increment_bytes", "largest_bytes", "allocated_bytes")
            record |= {name: round(size * mib) for name, size in zip(names, grown, strict=False)}
            record |= {"occurrences": float(grown[4]), "memory_source": "bytes malloc has in use"}
    startup = row("lines", file="train.py", line=1, source="import torch", startup_share=0.62)
    report["tables"]["lines"].append(startup | {"watch_bytes": 118 * mib})
    del report["columns_reason"]["lines.watch_bytes"]
    for column in ("usage", "increment", "largest", "allocated"):
        del report["columns_reason"][f"lines.{column}_bytes"]
        reason = "it did not run in a slice of the memory layer"
        report["cells_reason"][f"lines.{column}_bytes"] = reason
    for column in ("occurrences", "memory_source"):
        del report["columns_reason"][f"lines.{column}"]


def _add_watch(report: dict[str, Any]) -> None:
    tables = report["tables"]
    tables["watch"] = [
        row("watch", phase="startup", file=file, line=line, name=name, samples=samples,
            self_share=own, total_share=total, rss_bytes=round(mib * 2**20))
        for file, line, name, samples, own, total, mib in _STARTUP
    ] + [
        row("watch", phase="step", file="train.py", line=61, name="main", samples=18.0,
            self_share=0.1, total_share=1.0, rss_bytes=0)
    ]  # fmt: skip
    tables["outliers"] = [
        row("outliers", index=70, wall_s=0.0168, factor=4.2, rss_bytes=64 * 2**20, samples=1.4,
            doing="main (train.py:61) > batches (train.py:20)"),
        row("outliers", index=88, wall_s=0.0161, factor=4.0, samples=0.0),
    ]  # fmt: skip
    report["cells_reason"] |= {
        "outliers.doing": "the watch took no sample in it",
        "outliers.rss_bytes": "the watch took no sample in it",
        "functions.watch_share": "the watch took no sample in it",
    }
    shares = {"main": 0.06, "engine": 0.39, "conv2d": 0.14, "addmm": 0.07, "foreach": 0.09}
    for key, share in shares.items():
        name = FUNCTIONS[key][2]
        next(one for one in tables["functions"] if one["name"] == name)["watch_share"] = share
    del report["columns_reason"]["functions.watch_share"]
    report["watch"] = {
        "samples": 208,
        "watched_s": 2.08,
        "samples_by_phase": {"startup": 190, "step": 18, "other": 0},
        "interval_s": 0.01,
        "thinning": None,
        "rank_correlation": 0.87,
        "rank_functions": 9,
        "reason": None,
        "outlier_rule": "steps of the watch that took half as long again as the clean median",
    }


def on_a_device() -> dict[str, Any]:
    """The full report of a run on a machine with an accelerator."""
    report = full()
    add_device(report)
    return report


def full_of_hostile_names() -> dict[str, Any]:
    """The full report, in which what the later layers name tries to become part of the page."""
    report = on_a_device()
    tables = report["tables"]
    make_hostile(report)
    tables["ranges"][2]["name"] = HOSTILE
    tables["watch"][0] |= {"file": HOSTILE, "name": HOSTILE}
    tables["outliers"][0]["doing"] = HOSTILE
    tables["flops"][0]["uncounted"][0]["operator"] = HOSTILE
    tables["flops"][2]["uncounted"][0]["why"] = HOSTILE
    tables["flops"][1]["note"] = HOSTILE
    for line in tables["lines"]:
        if line["largest_bytes"] is not None:
            line |= {"file": HOSTILE, "source": HOSTILE, "memory_source": HOSTILE}
    report["columns_source"]["modules.flop_per_s"] = HOSTILE
    report["cells_reason"]["modules.flop_per_s"] = HOSTILE
    report["probe_effect"][2]["note"] = HOSTILE
    report["watch"]["reason"] = HOSTILE
    return report
