"""Why a column has no figure: every cell of the report that is empty is accounted for here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from profstack.merge import nsysreasons
from profstack.schema import REPORT

Rows = Sequence[Mapping[str, Any]]

_NO_DEVICE = "no accelerator was in use"
_NO_KERNEL = "no kernel was recorded: operators computed on the host itself"
_CALIBRATED = (
    "the slice had fewer than 3 steps or a probe effect above 3, or there was no clean time"
)
# The layer a column comes from; of a whole table where only the table is named.
_GIVEN_BY = {
    "modules": "torch",
    "modules.forward_flop": "flops",
    "modules.backward_flop": "flops",
    "modules.forward_mac": "flops",
    "modules.flop_per_s": "flops",
    "operators": "torch",
    "operators.flop": "flops",
    "kernels": "torch",
    "regions.operator_s": "torch",
    "regions.device_s": "torch",
    "regions.flop": "torch",
    "regions.host_net_bytes": "torch",
    "functions": "cprofile",
    "functions.watch_share": "watch",
    "calls": "cprofile",
    "call_paths": "torch",
    "lines.calls": "torch",
    "lines.python_s": "torch",
    "lines.operator_s": "torch",
    "lines.backward_s": "torch",
    "lines.usage_bytes": "memory",
    "lines.increment_bytes": "memory",
    "lines.largest_bytes": "memory",
    "lines.allocated_bytes": "memory",
    "lines.memory_source": "memory",
    "lines.occurrences": "memory",
    "lines.watch_share": "watch",
    "lines.watch_bytes": "watch",
    "lines.startup_share": "watch",
    "module_lines": "torch",
    "launches": "torch",
    "gaps": "torch",
    "ranges": "nvtx",
    "watch": "watch",
    "outliers.rss_bytes": "watch",
    "outliers.samples": "watch",
    "outliers.doing": "watch",
    "flops": "flops",
    **nsysreasons.GIVEN_BY,
}
# Why a column is empty although its layer has data, or where no layer gives it.
_OTHERWISE = {
    "steps.cpu_s": "steps so short that reading the CPU clock would slow them",
    "steps.wait_s": "no step told when its first work began",
    "steps.batch_size": "the inputs of the steps are no tensors",
    "modules.label": "no variable of the script holds a model",
    "modules.parameters": "no module has parameters",
    "modules.calls": "only parts of the step outside modules were seen",
    "modules.python_s": "no module was seen to run",
    "modules.recomputed_s": "nothing was computed again in a backward pass",
    "modules.instance": "only parts of the step outside modules were seen",
    "modules.host_net_bytes": "no slice watched what torch's allocator gives out",
    "modules.host_peak_bytes": "no slice watched what torch's allocator gives out",
    "peak_holders.module": "nothing that is alive at the peak belongs to a module",
    "peak_holders.operator": "all that is alive at the peak was alive before the step",
    "peak_holders.backward": "all that is alive at the peak was alive before the step",
    "modules.forward_flop": "no counted operator was called by a module",
    "modules.backward_flop": "no backward pass was counted",
    "modules.forward_mac": "no counted operator was called by a module",
    "modules.flop_per_s": "the time of no counted module is calibrated: " + _CALIBRATED,
    "operators.shapes": "the slices recorded no input shapes",
    "operators.flop": "no counter knows the operations of single operators here",
    "operators.moved_bytes": "the slices recorded no inputs, or no rule tells what they moved",
    "operators.module": "no operator was called inside a module",
    "functions.corrected_self_s": "what cProfile adds to each call was not measured",
    "functions.watch_share": "the watch took no sample in these functions",
    "call_paths.file": "no Python function was seen",
    "call_paths.line": "no Python function was seen",
    "lines.source": "the text of no line was recorded",
    "lines.calls": "no slice ran with the lines traced",
    "lines.python_s": "no slice ran with the lines traced",
    "lines.operator_s": "no slice ran with the lines traced",
    "lines.backward_s": "no slice ran with the lines traced",
    "lines.own": "the recording does not tell where the script's files lie",
    "lines.reason": "no line was given up",
    "functions.own": "the recording does not tell where the script's files lie",
    "functions.package": "the recording does not tell where the script's files lie",
    "lines.allocated_bytes": "the second source could not tell; see the column beside",
    "lines.watch_share": "the watch took no sample of a step in the script's own code",
    "lines.startup_share": "the watch took no sample of the start-up in the script's own code",
    "lines.watch_bytes": "the watch took no sample in the script's own code",
    "module_lines.module": "every line ran outside every module",
    "module_lines.calls": "every line ran too often to be counted",
    "memory.rss_bytes": "this system does not tell the resident set of a process",
    "memory.step": "every sample lies outside the steps",
    "regions.operator_s": "the torch layer's slices entered no region on the steps' own thread",
    "regions.flop": "no operator with a formula was called in a region that the torch layer's "
    "slices entered",
    "regions.device_s": "the torch layer's slices entered no region on the steps' own thread",
    "regions.host_net_bytes": "the slices that watched memory entered no region",
    "regions.threads": "nothing told which threads were in a region",
    "threads.share": "the CPU time of one of the processes is not known",
    "threads.off_cpu_s": "the CPU time of the steps' thread is not known, or not well enough",
    "threads.no_core_s": "this system does not tell how long a thread waits for a core, or the CPU "
    "time of the steps' thread is not known well enough",
    "launches.kernels": _NO_KERNEL,
    "launches.launches": _NO_KERNEL,
    "launches.launch_s": _NO_KERNEL,
    "launches.launches_total_s": _NO_KERNEL,
    "launches.launched_by": _NO_KERNEL,
    "gaps.after": "no kernel ran before",
    "gaps.before": "no kernel ran after",
    "ranges.emit_s": "emitting took no more than reading the clock does",
    "watch.rss_bytes": "this system does not tell the resident set of a process",
    "outliers.factor": "there is no clean median",
    "outliers.rss_bytes": "the watch took no sample in these steps",
    "outliers.samples": "the watch took no sample in this run",
    "outliers.doing": "the watch took no sample in these steps",
    "flops.backward_flop": "no backward pass was counted",
    "flops.forward_mac": "the counter has formulas for more than multiply-adds",
    "flops.causal_forward_flop": "no attention was called as causal; of masks given as tensors, "
    "and of attention as products one by one, nothing tells what they leave out",
    "flops.causal_backward_flop": "no attention was called as causal, or no backward pass counted",
    "flops.difference": "there is one counter with figures alone",
    "flops.note": "every counter has figures",
    **nsysreasons.OTHERWISE,
}
# Why single cells of a column are empty where others are not.
_CELLS = {
    "steps.wall_s": "nothing tells when the step ended",
    "steps.cpu_s": "the step is so short that reading the CPU clock would slow it",
    "steps.wait_s": "nothing told when the step's first work began",
    "steps.batch_size": "the step's first input is no tensor, or the step was too short to ask",
    "modules.forward_s": "the torch layer's slices did not see it run",
    "modules.backward_s": "the torch layer's slices did not see it run",
    "modules.self_s": "the torch layer's slices did not see it run",
    "modules.recomputed_s": "nothing of it was computed again in a backward pass",
    "modules.python_s": "it is no module, it was not seen to run, or its operators ran in other "
    "threads beside it",
    "modules.calls": "it is no module, or the torch layer's slices did not see it run",
    "modules.calibrated_s": _CALIBRATED,
    "modules.parameters": "its parameters were not known when it was called",
    "modules.label": "no variable of the script holds it",
    "modules.instance": "it is no module",
    "functions.corrected_self_s": (
        "what cProfile adds to its calls is as much as its own time, within the error of that"
    ),
    "modules.forward_flop": "no operator that it calls has a formula for its operations",
    "modules.backward_flop": "none of its backward work has a formula for its operations",
    "modules.forward_mac": "no operator that it calls has a formula for its operations",
    "modules.flop_per_s": "its operations were not counted, or its time is not calibrated",
    "modules.host_net_bytes": "it was not called in the step whose memory was watched",
    "modules.host_peak_bytes": "it was not called in the step whose memory was watched",
    "modules.device_net_bytes": "it was not called in the step whose memory was watched",
    "modules.device_peak_bytes": "it was not called in the step whose memory was watched",
    "operators.shapes": "it takes no tensor",
    "operators.module": "it was called outside every module",
    "operators.calibrated_s": _CALIBRATED,
    "operators.flop": "it has no formula, or it ran with several shapes in this module, which "
    "its counter does not tell apart",
    "operators.moved_bytes": "it only calls others, which move the bytes; or no rule tells what "
    "its outputs are, or the profiler recorded no types (of lists of tensors)",
    "kernels.module": "it was launched outside every module",
    "kernels.operator": "the profiler linked it to no operator",
    "functions.calibrated_s": "a start-up has no clean time; of steps, " + _CALIBRATED,
    "functions.watch_share": "the watch took no sample in it",
    "call_paths.parent": "the profile saw nobody call it",
    "call_paths.file": "it is no Python function",
    "call_paths.line": "it is no Python function",
    "call_paths.own": "it is no Python function",
    "call_paths.total_s": "a kernel runs beside the host",
    "call_paths.self_s": "a kernel runs beside the host",
    "lines.source": "its text was not recorded with it",
    "lines.calls": "it did not run while lines were traced, or too often to be counted",
    "lines.python_s": "it did not run while lines were traced",
    "lines.operator_s": "it did not run while lines were traced",
    "lines.backward_s": "it did not run while lines were traced",
    "lines.reason": "its figures are whole",
    "lines.device_s": "it did not run while lines were traced",
    "lines.usage_bytes": "it did not run in a slice of the memory layer",
    "lines.increment_bytes": "it did not run in a slice of the memory layer",
    "lines.largest_bytes": "it did not run in a slice of the memory layer",
    "lines.occurrences": "it did not run in a slice of the memory layer",
    "lines.allocated_bytes": "the second source has no figure for this line",
    "lines.memory_source": "it did not run in a slice of the memory layer",
    "lines.watch_share": "the watch took no sample of a step on it",
    "lines.startup_share": "the watch took no sample of the start-up on it",
    "lines.watch_bytes": "the watch took no sample on it",
    "module_lines.module": "outside every module, backward pass and optimizer",
    "module_lines.calls": "the line ran too often to be counted",
    "memory.step": "outside every step",
    "peak_holders.module": "it belongs to no module, or another thread took it",
    "peak_holders.operator": "it was alive before the step, or no operator took it",
    "peak_holders.backward": "it was alive before the step",
    "memory.rss_bytes": "it could not be read at that moment",
    "threads.process": "it has ended",
    "threads.threads": "they have ended",
    "threads.cpu_s": "nobody waited for the process, and so the system told nobody what it used",
    "threads.off_cpu_s": "told of the steps' thread alone",
    "threads.no_core_s": "told of the steps' thread alone",
    "launches.launch_s": "the profiler linked none of its kernels to a launch",
    "launches.launches": "the profiler linked none of its kernels to a launch",
    "launches.launches_total_s": "the profiler linked none of its kernels to a launch",
    "launches.launched_by": "the profiler linked none of its kernels to a launch",
    "gaps.after": "no kernel ran before it in the slice",
    "gaps.before": "no kernel ran after it in the slice",
    "ranges.emit_s": "no more than reading the clock takes",
    "regions.calls": "no slice of steps entered it",
    "regions.wall_s": "no slice of steps entered it",
    "regions.operator_s": "no slice of the torch layer entered it on the steps' own thread",
    "regions.device_s": "no slice of the torch layer entered it on the steps' own thread",
    "regions.flop": "no operator that it calls has a formula for its operations, or no slice of "
    "the torch layer entered it on the steps' own thread",
    "regions.host_net_bytes": "no slice that watched memory entered it on the steps' own thread",
    "regions.threads": "its threads were not told apart",
    "outliers.doing": "the watch took no sample in it",
    "outliers.rss_bytes": "the watch took no sample in it",
    "watch.rss_bytes": "it was not the innermost function where the resident set was read",
    "flops.forward_flop": "it counted nothing in forward",
    "flops.backward_flop": "it counted nothing in backward",
    "flops.forward_mac": "it counted nothing in forward, or more than multiply-adds",
    "flops.causal_forward_flop": "it does not tell which attention is causal",
    "flops.causal_backward_flop": "it does not tell which attention is causal",
    "flops.difference": "it is the record, or has no figures",
    "flops.uncounted": "it counted nothing",
    "flops.note": "it has figures",
    **nsysreasons.CELLS,
}


def table_reason(name: str, layers: Iterable[Mapping[str, Any]], *, has_device: bool) -> str:
    """Why a table has no rows, and what to do where something gives it some."""
    if name.startswith("nsys_"):
        return "Nsight Systems saw none of it: profstack run --nsys script.py"
    known = {layer["name"]: layer for layer in layers}
    layer = _GIVEN_BY.get(name)
    lacking = _why_lacking(layer, known) if layer is not None else None
    if lacking is not None:
        command = known.get(str(layer), {}).get("command")
        return f"{lacking}; next: {command}" if command else lacking
    if name in ("kernels", "gaps") and not has_device:
        return _NO_DEVICE
    return "nothing was seen of it in this run"


def columns_reason(
    tables: Mapping[str, Rows],
    layers: Iterable[Mapping[str, Any]],
    *,
    has_device: bool,
    few_samples: str | None = None,
) -> dict[str, str]:
    """Why a column is null in every row of a table that has rows, by `table.column`.

    `few_samples` says that the watch has too few of steps to tell shares of them.
    """
    known = {layer["name"]: layer for layer in layers}
    found = {
        key: _reason(name, column, known, has_device)
        for name, rows in tables.items()
        for column in (REPORT[name].names if rows else ())
        if all(row[column] is None for row in rows)
        for key in (f"{name}.{column}",)
    }
    for key in ("functions.watch_share", "lines.watch_share"):
        if few_samples is not None and key in found:
            found[key] = few_samples
    return found


def cells_reason(tables: Mapping[str, Rows]) -> dict[str, str]:
    """Why single cells are null in a column that has figures elsewhere, by `table.column`."""
    return {
        key: _CELLS.get(key, "not seen there")
        for name, rows in tables.items()
        for column in REPORT[name].names
        for key in (f"{name}.{column}",)
        if _is_partial(rows, column)
    }


def _is_partial(rows: Rows, column: str) -> bool:
    empty = sum(row[column] is None for row in rows)
    return 0 < empty < len(rows)


def _reason(
    table: str, column: str, layers: Mapping[str, Mapping[str, Any]], has_device: bool
) -> str:
    key = f"{table}.{column}"
    # An import may be of another machine than the one that the layers ran on.
    if "device" in column and not has_device and not table.startswith("nsys_"):
        return _NO_DEVICE
    if column == "calibrated_s":
        return _CALIBRATED
    layer = _GIVEN_BY.get(key) or _GIVEN_BY.get(table)
    lacking = _why_lacking(layer, layers) if layer is not None else None
    if lacking is not None:
        return lacking
    return _OTHERWISE.get(key, "nothing was seen of it in this run")


def _why_lacking(layer: str, layers: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Why a layer gave nothing; None where it has data."""
    if layer not in layers:
        return f"the layer {layer} was not asked for"
    row = layers[layer]
    if row["status"] in ("recorded", "emitted"):
        return None
    because = f": {row['reason']}" if row["reason"] else ""
    return f"the layer {layer} is {row['status']}{because}"
