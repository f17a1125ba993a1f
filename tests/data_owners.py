"""What tells the owner of every nanosecond and byte, made up: sums, memory by owner, call paths,
regions, threads, launches, gaps and findings."""

from __future__ import annotations

from typing import Any

from data_report import HOSTILE, row

MIB = 2**20

# kind: at the start, at the peak, most at once, at the end; in MiB
_OWNERS = {
    "parameters": (44.0, 44.0, 44.0, 44.0),
    "gradients": (0.0, 21.5, 44.0, 44.0),
    "optimizer state": (88.0, 88.0, 88.0, 88.0),
    "activations": (0.0, 181.0, 181.0, 0.0),
    "temporaries": (0.0, 36.0, 52.0, 0.0),
    "inputs": (6.0, 6.0, 6.0, 6.0),
    "buffers": (1.5, 1.5, 1.5, 1.5),
    "held by the script": (3.0, 3.0, 3.0, 3.0),
    "not attributed": (2.0, 4.0, 4.0, 2.0),
}
_HOLDERS = (
    ("activations", "Digits.features.2", "aten::mkldnn_convolution", False, 2, 96.0),
    ("optimizer state", "(optimizer)", "aten::zeros_like", False, 12, 88.0),
    ("activations", "Digits.features.1", "aten::relu", False, 1, 64.0),
    ("parameters", "Digits.classifier.0", None, False, 2, 37.0),
    ("temporaries", "Digits.features.2", "aten::convolution_backward", True, 3, 36.0),
    ("gradients", "Digits.classifier.0", "aten::mm", True, 1, 18.6),
    ("not attributed", None, "aten::empty", None, 4, 4.0),
)
_PATHS = (
    # node, parent, kind, name, file, line, own, calls, total ms, self ms
    (1, None, "function", "main", "train.py", 61, True, 1.0, 9.00, 0.40),
    (2, 1, "function", "Digits.forward", "train.py", 44, True, 1.0, 3.00, 0.20),
    (3, 2, "function", "_call_impl", "torch/nn/modules/module.py", 1779, False, 2.0, 2.80, 0.30),
    (4, 3, "function", "Conv2d.forward", "torch/nn/modules/conv.py", 547, False, 2.0, 2.5, 0.1),
    (5, 4, "operator", "aten::conv2d", None, None, None, 2.0, 2.40, 0.40),
    (6, 5, "operator", "aten::cudnn_convolution", None, None, None, 2.0, 2.00, 2.00),
    (7, 6, "kernel", "implicit_gemm_f32", None, None, None, 2.0, None, None),
    (8, 1, "function", "Tensor.backward", "torch/_tensor.py", 576, False, 1.0, 4.60, 0.10),
    (9, 8, "operator", "ConvolutionBackward0", None, None, None, 2.0, 4.50, 4.50),
    (10, 1, "function", "Adam.step", "torch/optim/adam.py", 213, False, 1.0, 1.00, 1.00),
)
_THREADS = (
    # kind, name, process, threads, CPU ms, share, layers, note
    ("main", "MainThread", 0, 1, 4.1, 0.52, ["cprofile", "torch", "watch"], None),
    ("backward", "pt_autograd_0", 0, 1, 2.2, 0.28, ["torch"],
     "cprofile sees no Python of it; there is none but custom autograd functions"),
    ("DataLoader worker", "pt_data_worker", 1, 2, 1.5, 0.19, None,
     "no layer looks into other processes: run once with num_workers=0 to see their work"),
    ("profstack", "profstack-watch", 0, 1, 0.08, 0.01, ["watch"], None),
)  # fmt: skip


def attribution(median: float) -> dict[str, Any]:
    """The sums under the module tree, as far as the made-up modules go."""
    step = 5.08e-3
    return {
        "step_s": step, "rows_s": step, "owned_s": 0.9724 * step, "owned_share": 0.9724,
        "calibrated_owned_s": 0.9724 * median, "clean_median_s": median,
        "backward_s": 2.1e-3, "backward_attributed_share": 0.9912,
        "memory_peak_bytes": 385 * MIB, "memory_attributed_share": 0.9896, "negative_rows": 0,
        "unowned": [
            {"path": "(outside modules)", "self_s": 0.08e-3, "share": 0.0157},
            {"path": "(not attributed)", "self_s": 0.06e-3, "share": 0.0119},
        ],
        "reason": None,
    }  # fmt: skip


FINDINGS = (
    {
        "slug": "sync", "title": "A copy to the host waits for the device", "severity": "high",
        "gain_s": 0.0004, "gain_is": "estimated", "file": "train.py", "line": 66, "module": None,
        "layers": ["torch"], "advice": "Take the loss once every hundred steps.",
        "evidence": [{"operator": "aten::item", "calls": 3.0, "total_s": 0.0004}],
    },
    {
        "slug": "memory-growth", "title": "Memory grows by 64.0 MiB a step", "severity": "medium",
        "gain_s": None, "gain_is": None, "file": "train.py", "line": 68, "module": None,
        "layers": ["memory"], "advice": "Keep loss.item() in the list, not the tensor.",
        "evidence": [{"file": "train.py", "line": 68, "growth_bytes": 64 * MIB, "steps": 11}],
    },
)  # fmt: skip


def processes() -> dict[str, Any]:
    """What the threads come to."""
    return {
        "steps": 420, "step_s": 4.9e-3, "cpu_s": 7.88e-3, "cores": 1.61, "off_cpu_s": 0.8e-3,
        "no_core_s": 0.1e-3, "unseen_share": 0.19, "workers": 1, "worker_cpu_s": 1.5e-3,
        "wait_s": 0.3e-3, "reading_s": 0.1e-3, "reason": None,
        "sentences": [
            "the steps' thread ran for 4.10 ms of a clean step",
            "19 % of the CPU time is used in threads and processes that no layer looks into",
            "1 DataLoader worker uses 1.50 ms of CPU time per step",
        ],
    }  # fmt: skip


def memory_owners(device: str = "cpu") -> list[dict[str, Any]]:
    """Rows of `memory_owners` for one device."""
    names = ("start_bytes", "peak_bytes", "largest_bytes", "end_bytes")
    return [
        row("memory_owners", device=device, kind=kind)
        | {name: round(size * MIB) for name, size in zip(names, sizes, strict=True)}
        for kind, sizes in _OWNERS.items()
    ]


def add_owners(report: dict[str, Any]) -> None:
    """Fill the tables of a report on a CPU; the figures on kernels stay with `add_device`."""
    tables = report["tables"]
    report["attribution"] = attribution(report["benchmark"]["median_s"])
    report["processes"] = processes()
    tables["memory_owners"] = memory_owners()
    whole = sum(sizes[1] for sizes in _OWNERS.values())
    tables["peak_holders"] = [
        row("peak_holders", device="cpu", kind=kind, module=module, operator=operator,
            backward=backward, tensors=tensors, bytes=round(size * MIB), share=size / whole)
        for kind, module, operator, backward, tensors, size in _HOLDERS
    ]  # fmt: skip
    keys = ("node", "parent", "kind", "name", "file", "line", "own", "calls")
    tables["call_paths"] = [
        row("call_paths", **dict(zip(keys, record[:8], strict=True)))
        | {name: None if ms is None else ms / 1e3
           for name, ms in zip(("total_s", "self_s"), record[8:], strict=True)}
        for record in _PATHS
    ]  # fmt: skip
    tables["threads"] = [
        row("threads", kind=kind, name=name, process=process, threads=threads, cpu_s=cpu / 1e3,
            share=share, layers=layers, note=note)
        for kind, name, process, threads, cpu, share, layers, note in _THREADS
    ]  # fmt: skip
    tables["launches"] = [
        row("launches", step=12 + number, operators=61.0 + number % 2) for number in range(6)
    ]
    for record in tables["functions"]:
        record["own"] = record["file"].endswith(("train.py", "augment.py"))
        record["package"] = _package(record)
    for record in tables["lines"]:
        record["own"] = True
    _add_modules(tables["modules"])
    _add_reasons(report)


def _package(record: dict[str, Any]) -> str:
    if record["own"]:
        return "(own files)"
    return "(built-in)" if record["file"] == "~" else "torch"


def _add_modules(modules: list[dict[str, Any]]) -> None:
    """The columns that memory and checkpointing give, and what modules take of Python."""
    for record in modules:
        if not record["path"].startswith("("):
            record["recomputed_s"] = 0.1e-3 if record["path"] == "Digits.features" else 0.0
            record["python_s"] = record["self_s"] * 0.2
            record["host_peak_bytes"] = 2.0 * (record["host_net_bytes"] or 0) + 4096


def _add_reasons(report: dict[str, Any]) -> None:
    outside = "it is a part of the step outside modules"
    for name in ("recomputed_s", "python_s", "host_peak_bytes"):
        report["columns_reason"].pop(f"modules.{name}", None)
        report["cells_reason"][f"modules.{name}"] = outside
    for name in ("functions.own", "functions.package", "lines.own"):
        report["columns_reason"].pop(name, None)
    report["columns_reason"] |= {
        f"launches.{name}": "no accelerator was in use"
        for name in ("kernels", "launch_s", "launches_total_s", "device_busy_s", "device_idle_s")
    } | {"call_paths.device_s": "no accelerator was in use"}
    report["cells_reason"] |= {
        "peak_holders.module": "it was made outside every module",
        "peak_holders.operator": "it was there before the step that was observed",
        "peak_holders.backward": "nothing tells in which pass it was made",
        "call_paths.parent": "it is the outermost",
        "call_paths.file": "an operator or a kernel has no source line here",
        "call_paths.line": "an operator or a kernel has no source line here",
        "call_paths.own": "an operator or a kernel has no source line here",
        "call_paths.total_s": "a kernel runs on the device: it has no host time",
        "call_paths.self_s": "a kernel runs on the device: it has no host time",
        "threads.layers": "no layer looks into it",
        "threads.note": "there is nothing to add",
    }


def add_device(report: dict[str, Any]) -> None:
    """Launches, kernels and gaps as a GPU gives them, and a second place for memory."""
    tables, reasons = report["tables"], report["columns_reason"]
    report["environment"] |= {"device": "cuda", "gpu": "A GPU that is made up"}
    for record in tables["launches"]:
        record |= {"kernels": 42.0, "launch_s": 5.2e-6, "launches_total_s": 0.22e-3,
                   "device_busy_s": 3.1e-3, "device_idle_s": 0.9e-3}  # fmt: skip
    tables["gaps"] = [
        row("gaps", device="cuda:0", cause=cause, count=count, total_s=total / 1e3,
            longest_s=longest / 1e3, after=after, before=before)
        for cause, count, total, longest, after, before in (
            ("host late", 31.0, 0.52, 0.04, "aten::mm in Digits.classifier.0", "aten::add"),
            ("synchronisation", 1.0, 0.21, 0.21, "aten::item in (loss)", "aten::mul"),
            ("data wait", 1.0, 0.17, 0.17, "(optimizer)", "Digits.features.0"),
        )
    ]  # fmt: skip
    tables["memory_owners"] += memory_owners("cuda:0")
    for record in tables["call_paths"]:
        record["device_s"] = 1.9e-3 if record["node"] in (1, 2, 3, 4, 5, 6, 7) else 0.0
    for record in tables["lines"]:
        if record["operator_s"] is not None:
            record["device_s"] = 0.8 * record["operator_s"]
    for name in [key for key in reasons if "device" in key or key.startswith("launches.")]:
        if name != "steps.device_s":
            reasons[name] = "made up: not filled here"
    for name in ("launches.kernels", "launches.launch_s", "launches.launches_total_s",
                 "launches.device_busy_s", "launches.device_idle_s", "call_paths.device_s",
                 "lines.device_s"):  # fmt: skip
        reasons.pop(name, None)


def add_regions(report: dict[str, Any]) -> None:
    """Regions of several sources, one inside the other."""
    tables = report["tables"]
    tables["regions"] = [
        row("regions", path="augment", source="profstack.region", calls=1.0, wall_s=0.0004,
            operator_s=0.0003, host_net_bytes=4096.0, threads="MainThread",
            measured_in="clean slices"),
        row("regions", path="augment/crop", source="profstack.region", calls=2.0, wall_s=0.0001,
            operator_s=0.00004, host_net_bytes=0.0, threads="MainThread",
            measured_in="clean slices"),
        row("regions", path="loss part", source="record_function", calls=1.0, wall_s=0.0002,
            operator_s=0.0002, threads="MainThread", measured_in="torch slices"),
    ]  # fmt: skip
    report["cells_reason"]["regions.host_net_bytes"] = "it was not entered in the step observed"


def make_hostile(report: dict[str, Any]) -> None:
    """Names in these tables that try to become part of the page."""
    tables = report["tables"]
    tables["memory_owners"][0]["kind"] = HOSTILE
    tables["peak_holders"][0] |= {"kind": HOSTILE, "module": HOSTILE, "operator": HOSTILE}
    tables["call_paths"][1] |= {"name": HOSTILE, "file": HOSTILE}
    tables["threads"][1] |= {"kind": HOSTILE, "name": HOSTILE, "note": HOSTILE}
    tables["threads"][1]["layers"] = [HOSTILE]
    tables["gaps"][0] |= {"cause": HOSTILE, "after": HOSTILE, "before": HOSTILE}
    tables["regions"][1] |= {"path": HOSTILE, "source": HOSTILE, "threads": HOSTILE}
    tables["functions"][1] |= {"package": HOSTILE, "own": False}
    report["attribution"]["unowned"][0]["path"] = HOSTILE
    report["processes"]["sentences"].append(HOSTILE)
    finding = report["findings"][0]
    finding |= {"title": HOSTILE, "advice": HOSTILE, "file": HOSTILE, "module": HOSTILE}
    finding["evidence"] = [{HOSTILE: HOSTILE}, {"name": HOSTILE}]
