"""What tells the owner of every nanosecond and byte, made up: sums, memory by owner, call paths,
regions, threads, launches, gaps and findings."""

from tests.support.made_up import made_up
from tests.support.reports import row

MIB = 2**20
_MADE = made_up("owners")
FINDINGS = _MADE["findings"]
_ON_DEVICE = ["kernels", "launch_s", "launches_total_s", "device_busy_s", "device_idle_s"]


def _rows(table, names, records):
    return [row(table, **dict(zip(names.split(), each, strict=True))) for each in records]


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


def processes():
    """What the threads come to."""
    found = {"steps": 420, "step_s": 4.9e-3, "cpu_s": 7.88e-3, "cores": 1.61, "off_cpu_s": 0.8e-3}
    found |= {"no_core_s": 0.1e-3, "unseen_share": 0.19, "workers": 1, "worker_cpu_s": 1.5e-3}
    sentences = [
        "the steps' thread ran for 4.10 ms of a clean step",
        "19 % of the CPU time is used in threads and processes that no layer looks into",
        "1 DataLoader worker uses 1.50 ms of CPU time per step",
    ]
    return found | {"wait_s": 3e-4, "reading_s": 1e-4, "reason": None, "sentences": sentences}


def memory_owners(device="cpu"):
    """Rows of `memory_owners` for one device."""
    names = "device kind start_bytes peak_bytes largest_bytes end_bytes"
    each = _MADE["memory"]
    records = ((device, kind, *(round(n * MIB) for n in sizes)) for kind, *sizes in each)
    return _rows("memory_owners", names, records)


def add_owners(report):
    """Fill the tables of a report on a CPU; the figures on kernels stay with `add_device`."""
    tables, columns, cells = report["tables"], report["columns_reason"], report["cells_reason"]
    report["attribution"] = attribution(report["benchmark"]["median_s"])
    report["processes"], tables["memory_owners"] = processes(), memory_owners()
    whole = sum(each["peak_bytes"] for each in tables["memory_owners"]) / MIB
    names = "device kind module operator backward tensors bytes share"
    held = (("cpu", *rest, round(size * MIB), size / whole) for *rest, size in _MADE["holders"])
    tables["peak_holders"] = _rows("peak_holders", names, held)
    names = "node parent kind name file line own calls total_s self_s"
    paths = ((*rest, ms and ms / 1e3, own and own / 1e3) for *rest, ms, own in _MADE["paths"])
    tables["call_paths"] = _rows("call_paths", names, paths)
    names = "kind name process threads cpu_s share layers note"
    tables["threads"] = _rows("threads", names, _MADE["threads"])
    launches = ((12 + number, 61.0 + number % 2) for number in range(6))
    tables["launches"] = _rows("launches", "step operators", launches)
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
    cells |= {
        "peak_holders.module": "it was made outside every module",
        "peak_holders.operator": "it was there before the step that was observed",
        "peak_holders.backward": "nothing tells in which pass it was made",
        "call_paths.parent": "it is the outermost",
        "threads.layers": "no layer looks into it",
        "threads.note": "there is nothing to add",
    }


def add_device(report):
    """Launches, kernels and gaps as a GPU gives them, and a second place for memory."""
    tables, reasons = report["tables"], report["columns_reason"]
    report["environment"] |= {"device": "cuda", "gpu": "A GPU that is made up"}
    for record in tables["launches"]:
        record |= dict(zip(_ON_DEVICE, (42.0, 5.2e-6, 0.22e-3, 3.1e-3, 0.9e-3), strict=True))
    names = "device cause count total_s longest_s after before"
    tables["gaps"] = _rows("gaps", names, _MADE["gaps"])
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


def add_regions(report):
    """Regions of several sources, one inside the other."""
    names = "path source calls wall_s operator_s host_net_bytes threads measured_in"
    report["tables"]["regions"] = _rows("regions", names, _MADE["regions"])
    report["cells_reason"]["regions.host_net_bytes"] = "it was not entered in the step observed"
