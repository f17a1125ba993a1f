"""The tables of recording.sqlite.

Rows of a slice are totals over it, as they were measured.
"""

from __future__ import annotations

from typing import Final

from profstack.storage.schema.column import SLICE, Column, Table, columns

SCHEMA_VERSION: Final = 1

# A function, in every table that names one.
_FUNCTION = (
    "file TEXT source file, or ~ for built-in functions",
    "line INTEGER line of the function's definition",
    "name TEXT function name",
)

_OF_RUN: dict[str, tuple[Column, ...]] = {
    "facts": columns("key TEXT name of the fact", "value TEXT its value as JSON"),
    "slices": columns(
        "slice INTEGER number of the slice, from 0, in order of time",
        "kind TEXT startup, settle, clean, watch or the name of a layer",
        "layer TEXT name of the layer that observed, null when none did",
        "mode TEXT the layer's way of observing in this slice: timed, detail, lines, shared (with "
        "another layer), whole (a workload without steps) or program (an imported file)",
        "plan INTEGER number of the plan, from 1: a new optimizer, model or loop starts a new one",
        "phase TEXT train, eval or other",
        "round INTEGER number of the round, from 1; 0 before the first",
        "first_step INTEGER first step of the slice",
        "steps INTEGER steps in the slice",
        "started_s REAL host time since the recording began",
        "wall_s REAL host time over the slice's steps",
        "cpu_s REAL process CPU time over the slice's steps",
        "counted_steps INTEGER steps whose sum the layer's rows hold: those with evaluation are "
        "left out where the tool can tell steps apart",
        "counted_wall_s REAL host time over the counted steps",
        "settle_steps INTEGER steps let go by after the switch, before the slice",
        "stop_s REAL host time to stop the tool and take in its data; the script stood still",
        "switch_s REAL host time before the slice in which the script stood still for the switch",
        "delay_s REAL time in which the steps' thread could have run but had no core; of slices "
        "that a tool observed",
    ),
    "steps": columns(
        "step INTEGER number of the step, from 0, over all phases",
        "plan INTEGER number of the plan it belongs to",
        "phase TEXT train, eval or other",
        "slice INTEGER the slice it belongs to",
        "started_s REAL host time since the recording began",
        "wall_s REAL host time",
        "cpu_s REAL process CPU time, all threads; those on other cores at scheduler ticks",
        "device_s REAL device time by events, null where there is no device",
        "wait_s REAL host time to the first module call or backward",
        "before_loader_s REAL host time until torch's DataLoader was first asked for a batch in "
        "the wait; null where it was not, or calls are not seen",
        "loader_s REAL host time in the DataLoader's asks in the wait; null as before_loader_s",
        "batch_size INTEGER leading dimension of the step's first input tensor",
        "shape TEXT shapes of the tensors the step's model was called with",
        "flags TEXT reasons that keep the step out of medians, separated by spaces: eval, "
        "checkpoint, switch, partial, loop (of another one)",
    ),
    "generations": columns(
        "step INTEGER step in which it was",
        "wall_s REAL host time of the outermost call of `generate`",
        "first_token_s REAL host time from its begin to the second call of the model, by which the "
        "first token is known; null where calls were not seen, or there was one",
        "sequences INTEGER sequences that it returned",
        "prompt_tokens INTEGER tokens of a prompt, padding included; null where it takes none",
        "new_tokens INTEGER tokens that it added to each sequence, padding included",
        "cached INTEGER 1 where keys and values are kept from token to token, 0 where they are not",
        "can_end INTEGER 1 where an end token, a stop string or a criterion may end it before its "
        "limit of new tokens, 0 where nothing can",
    ),
    "modules": columns(
        "module_id INTEGER number of the module object, from 1",
        "path TEXT module path; names in brackets are step parts outside any module",
        "label TEXT the script's variable that holds it, if there is one",
        "type TEXT class name",
        "instance INTEGER 1 for the first live instance of a root class, 2 for the second",
        "parent_id INTEGER enclosing module, null for a root",
        "aliases TEXT further paths of the same module, as a JSON list",
        "parameters INTEGER parameters of the module and its children",
        "own_parameters INTEGER parameters of the module itself, without its children; null while "
        "a lazy one has no shape",
        "own_bytes INTEGER their bytes",
        "own_trainable INTEGER those of them that ask for a gradient",
    ),
    "functions": columns(
        "slice INTEGER slice; null for the profile of the start-up",
        *_FUNCTION,
        "calls INTEGER calls, recursive ones included",
        "primitive_calls INTEGER calls that were not recursive",
        "self_s REAL time without callees",
        "total_s REAL time with callees",
    ),
    "calls": columns(
        "slice INTEGER slice; null for the profile of the start-up",
        *(f"caller_{column}" for column in _FUNCTION),
        *(f"callee_{column}" for column in _FUNCTION),
        "calls INTEGER calls from this caller",
        "primitive_calls INTEGER those that were not recursive",
        "self_s REAL time in the callee without its own callees",
        "total_s REAL time in the callee with its own callees",
    ),
    "memory": columns(
        "t_s REAL host time since the recording began",
        "step INTEGER step",
        "rss_bytes INTEGER resident set of the process",
        "device_allocated_bytes INTEGER bytes in live tensors on the device",
        "device_reserved_bytes INTEGER bytes held by the device allocator",
    ),
    "watch_frames": columns(
        "frame INTEGER number of the frame, from 1",
        "parent INTEGER the frame that called it, null for the outermost",
        "file TEXT source file",
        "line INTEGER line being run",
        "name TEXT function",
        "function_line INTEGER line of the function's definition",
    ),
    "watch_samples": columns(
        "t_s REAL host time since the recording began",
        "frame INTEGER innermost frame of the thread that trains, null where it ran no Python",
        "region TEXT region of the script's own that it was in, or null",
        "rss_bytes INTEGER resident set of the process",
        "weight REAL watched time before it, in units of 10 ms; 0 for memory alone",
        "evaluating INTEGER 1 while the model that trains was in evaluation, else null",
        "overdue INTEGER 1 in a step far longer than usual of a slice without the watch, else null",
    ),
    "compilations": columns(
        "t_s REAL host time since the recording began at which torch.compile began with it",
        "wall_s REAL host time that it took",
        "compile_id TEXT number of the code and of its version, as dynamo gives them",
        "name TEXT function that was compiled; null for a backward graph",
        "file TEXT its source file",
        "line INTEGER line of its definition",
        "backward INTEGER 1 for the backward graph of a version, null where nothing was made",
        "versions INTEGER versions of the same code that were compiled before",
        "operators INTEGER operators in the graph",
        "reason TEXT guard that failed, of a version that is not the first",
        "failure TEXT why nothing was compiled",
    ),
    "graph_breaks": columns(
        "reason TEXT why dynamo ended a graph",
        "stack TEXT frames of the program there as JSON, innermost last: file, line, function; the "
        "outermost is of the code that was compiled",
    ),
    "layers": columns(
        "name TEXT layer",
        "technique TEXT counting, sampling or tracing",
        "tool TEXT what does the observing",
        "version TEXT its version",
        "status TEXT recorded, emitted, empty, unavailable, skipped or failed",
        "reason TEXT why, where the status is not recorded",
        "memory_bytes INTEGER growth of the resident set over the layer's slices",
        "truncated TEXT what was left out and why, or null",
    ),
    "artifacts": columns(
        "layer TEXT layer",
        "path TEXT path inside the recording",
        "opens_in TEXT tools that open it",
        "bytes INTEGER size",
    ),
    "notes": columns(
        "slug TEXT short name",
        "layer TEXT layer it concerns, or null",
        "text TEXT what happened and what follows",
    ),
}

# Tables whose rows form trees: the column with the number of a row, and that with the number of the
# row above it, null for a root. The numbers of call paths are those of their slice.
TREES = {
    "modules": ("module_id", "parent_id"),
    "watch_frames": ("frame", "parent"),
    "call_paths": ("node", "parent"),
    "nsys_ranges": ("node", "parent"),
}

# Tables of totals over a slice, which is their first column.
_OF_SLICES: dict[str, tuple[Column, ...]] = {
    "memory_lines": columns(
        "file TEXT source file",
        "line INTEGER line",
        "source TEXT text of the line",
        "usage_bytes INTEGER largest resident set after the line",
        "increment_bytes INTEGER growth of the resident set over the line, all runs together; "
        "functions of the user's that it calls have their own",
        "largest_bytes INTEGER the largest growth within one run of the line, by either source, "
        "also of what the line gave back before its end",
        "allocated_bytes INTEGER the same growth by the second source, null where it has none",
        "second_source TEXT what the second figure comes from, or why there is none",
        "occurrences INTEGER runs of the line that were seen",
        "memory_profiler_usage_bytes INTEGER memory_profiler's usage of the line, null where it "
        "did not measure, as in the columns behind it",
        "memory_profiler_increment_bytes INTEGER memory_profiler's increment of the line",
        "memory_profiler_occurrences INTEGER memory_profiler's occurrences of the line",
        "memory_profiler_reason TEXT why its increment is not increment_bytes, or why there is "
        "none; null where both agree, and where it did not measure",
    ),
    "module_memory": columns(
        "module_id INTEGER module",
        "calls INTEGER calls seen",
        "host_net_bytes INTEGER growth of malloc's bytes in use over its calls, children included; "
        "of the resident set where those cannot be read",
        "device_net_bytes INTEGER growth of live device bytes over its calls",
        "device_peak_bytes INTEGER most live device bytes inside one call, above those when it "
        "began; null where no call reached a new peak of the process",
    ),
    "flop_counts": columns(
        "counter TEXT FlopCounterMode, recorded_shapes, flops-profiler, thop or fvcore",
        "module_id INTEGER module, null outside every module",
        "operator TEXT operator, null where the counter knows modules alone",
        "backward INTEGER 1 for backward work",
        "calls INTEGER calls",
        "flop INTEGER floating-point operations, a multiply-add is 2; null without a formula",
        "masked_flop INTEGER those of them that masks of attention called as causal leave out; "
        "null where that is not known",
        "mac INTEGER multiply-adds as flops-profiler, thop or fvcore give them; null for others",
    ),
    "loss_targets": columns(
        "classes INTEGER classes that the loss has a probability of, for each target",
        "targets INTEGER targets of one call",
        "ignored_index INTEGER target that the loss ignores",
        "calls INTEGER calls of the loss",
        "ignored INTEGER targets of all calls that it ignores",
    ),
    "ranges": columns(
        "kind TEXT step, module, forward, backward, optimizer or region",
        "name TEXT name of the range",
        "calls INTEGER ranges emitted",
        "emit_s REAL host time spent on emitting them, null if not above the clock's own",
    ),
    "region_times": columns(
        "path TEXT names of the regions around it and its own, with slashes between",
        "source TEXT what named it: profstack.region, torch.cuda.nvtx or nvtx",
        "calls INTEGER times it was entered",
        "wall_s REAL host time inside, regions within it included",
        "threads INTEGER threads that were in it",
        "on_steps_thread INTEGER 1 where the thread that makes the steps was one of them",
    ),
    "thread_times": columns(
        "kind TEXT main, backward, DataLoader worker, DataLoader pin memory, profstack, native "
        "(begun by no Python code) or other",
        "name TEXT name of the threads, or of the process",
        "process INTEGER 0 for the script's own, others in the order of their numbers; null for "
        "those that ended",
        "threads INTEGER threads, null where they have ended",
        "cpu_s REAL CPU time over the slice's steps, null where the system does not give it",
        "delay_s REAL time in which the steps' thread could have run but had no core",
    ),
    "module_times": columns(
        "module_id INTEGER module",
        "calls INTEGER calls",
        "forward_s REAL time inside its forward calls, children included",
        "forward_self_s REAL the same without children",
        "backward_s REAL backward work of its forward, children included",
        "backward_self_s REAL the same without children",
        "recomputed_s REAL forward work done again in its backward, children included; null where "
        "none was",
        "forward_device_s REAL device time of kernels launched in forward",
        "backward_device_s REAL device time of kernels launched in its backward",
        "host_net_bytes INTEGER host bytes allocated less freed inside forward",
        "device_net_bytes INTEGER device bytes allocated less freed inside forward",
    ),
    "operators": columns(
        "name TEXT operator",
        "shapes TEXT input shapes",
        "dtype TEXT type of its first floating-point input, as torch names it",
        "module_id INTEGER module whose forward called it or made its backward, or null",
        "backward INTEGER 1 for backward work",
        "calls INTEGER calls",
        "outermost INTEGER those of them inside no other operator, but for those that take batches "
        "from a DataLoader's workers: these come in any step",
        "self_s REAL time without children",
        "total_s REAL time with children",
        "device_s REAL device time of the kernels it launched",
        "moved_bytes INTEGER bytes of its inputs read and its outputs written, null where no rule "
        "tells",
    ),
    "moved_bytes": columns(
        "module_id INTEGER module whose forward called it or made its backward, or null",
        "operator TEXT operator; of those inside one another the outermost one with a rule",
        "backward INTEGER 1 for backward work",
        "dtype TEXT type of its first floating-point input, as torch names it",
        "calls INTEGER calls",
        "total_s REAL time with what it calls; of one that no rule covers its own time",
        "device_s REAL device time of the kernels launched in that time",
        "moved_bytes INTEGER bytes read and written, null where no rule tells",
    ),
    "kernels": columns(
        "name TEXT kernel",
        "device TEXT device",
        "stream INTEGER stream",
        "module_id INTEGER module, or null",
        "operator TEXT operator that launched it, or null",
        "calls INTEGER launches",
        "device_s REAL device time",
    ),
    "call_paths": columns(
        "node INTEGER number of the node, from 1; callers before what they call",
        "parent INTEGER the node that called it, null for the outermost",
        "kind TEXT function, operator or kernel",
        "name TEXT function, operator or kernel",
        "file TEXT source file of a function, or ~ for built-in ones",
        "line INTEGER line of a function's definition",
        "calls INTEGER calls on this path; 0 for what was running when the step began",
        "total_s REAL host time with callees, the tracing of calls included; null for a kernel",
        "self_s REAL host time without callees",
        "device_s REAL device time of the kernels launched under it, null without a device",
    ),
    "lines": columns(
        "file TEXT source file",
        "line INTEGER line",
        "source TEXT text of the line",
        "calls INTEGER times the line was run",
        "python_s REAL time on the line outside operators and outside user functions it calls",
        "operator_s REAL time on the line inside operators",
        "device_s REAL device time of kernels launched from the line",
        "backward_s REAL the part of the time inside operators that is work of a backward pass",
        "reason TEXT why its count and times are not whole, or null",
        "samples INTEGER runs that were timed, where the others were only counted; or null",
    ),
    "module_lines": columns(
        "file TEXT source file",
        "line INTEGER line",
        "module_id INTEGER module that the time was spent in, or step part; null for neither",
        "calls INTEGER times the line was run there",
        "python_s REAL time on the line there, outside operators",
        "operator_s REAL time on the line there, inside operators",
        "device_s REAL device time of kernels launched from the line there",
        "backward_s REAL the part of the time inside operators that is work of a backward pass",
    ),
    "line_operators": columns(
        "file TEXT source file",
        "line INTEGER line of the script's own that called it",
        "operator TEXT operator inside no other one; none of a backward pass",
        "module_id INTEGER module that it belongs to, or step part; null for neither",
        "calls INTEGER calls",
    ),
    "source_files": columns(
        "file TEXT source file of the user's own in which lines were seen",
        "text TEXT its whole text, or null",
        "bytes INTEGER size of the text",
        "reason TEXT why there is no text, or null",
    ),
    "memory_owners": columns(
        "device TEXT cpu, or the device as torch names it",
        "kind TEXT what the memory was for: parameters, gradients, optimizer state, activations, "
        "temporaries, inputs, buffers, held by the script or not attributed",
        "start_bytes INTEGER bytes alive when the slice began",
        "peak_bytes INTEGER bytes of this kind at the moment at which most of all was alive",
        "largest_bytes INTEGER the most that was alive of this kind, at whatever moment",
        "end_bytes INTEGER bytes alive when the slice ended",
    ),
    "peak_holders": columns(
        "device TEXT device",
        "kind TEXT what the memory was for",
        "module_id INTEGER module or step part that took it or that it belongs to, null where "
        "nothing tells",
        "operator TEXT operator that took it, null for what was alive before the slice",
        "backward INTEGER 1 for what a backward pass took, null for what was alive before",
        "tensors INTEGER blocks of memory; tensors that share one count once",
        "bytes INTEGER bytes alive at the moment at which most was",
    ),
    "allocations": columns(
        "device TEXT device",
        "module_id INTEGER module or step part that took the memory; null where nothing tells",
        "blocks INTEGER blocks of memory that the allocator gave out, but for batches taken from a "
        "DataLoader's workers: these come in any step",
        "bytes INTEGER their bytes",
    ),
    "module_peaks": columns(
        "module_id INTEGER module",
        "host_peak_bytes INTEGER most host bytes alive during one forward call, above those alive "
        "when it began",
        "device_peak_bytes INTEGER the same of the device; null where none was seen",
    ),
    "region_work": columns(
        "source TEXT what named the range: profstack.region, record_function or torch",
        "path TEXT the region's path; the name of a range that is none of profstack's",
        "calls INTEGER times it was entered",
        "wall_s REAL host time in which it was open",
        "operator_s REAL host time inside operators called in it",
        "device_s REAL device time of kernels launched in it",
        "flop INTEGER floating-point operations, null where no operator in it has a formula",
        "host_net_bytes INTEGER host bytes allocated less freed in it",
        "threads INTEGER threads that were in it",
    ),
    "launches": columns(
        "step INTEGER number of the step in its slice, from 0",
        "device TEXT device whose kernels are counted, null where there is none",
        "operators INTEGER operators called, also those inside others",
        "outermost INTEGER operators called by no other",
        "operators_s REAL host time inside the outermost operators",
        "kernels INTEGER kernels launched in the step, null without a device",
        "launches INTEGER launches that began them: one of a graph begins many kernels",
        "launches_s REAL host time of these launches, null without a device",
        "launched_by TEXT what that time is: calls of the device's runtime, or operators",
        "busy_s REAL time of the step in which a kernel ran on the device",
        "idle_s REAL time of the step in which none ran",
    ),
    "gaps": columns(
        "device TEXT device that was idle",
        "cause TEXT host late, synchronisation, copy, data wait, start of step, queued or unknown",
        "count INTEGER gaps",
        "total_s REAL time the device was idle in them",
        "longest_s REAL the longest one",
        "after_operator TEXT operator whose kernel ended before the longest one",
        "after_module_id INTEGER module of that operator, or null",
        "before_operator TEXT operator whose kernel began after it",
        "before_module_id INTEGER module of that operator, or null",
    ),
    "collectives": columns(
        "step INTEGER number of the step in its slice, from 0",
        "name TEXT collective, with the backend that does it",
        "bytes INTEGER bytes of its tensors on this rank; null where inputs were not recorded",
        "started_s REAL when its work began, in Unix time: exact to a quarter of a microsecond",
        "ended_s REAL when it had ended, in Unix time",
        "wall_s REAL time between the two, exact; null in older recordings",
        "hidden_s REAL time in it in which operators, or on a device kernels, ran beside it",
    ),
}

# --- Tables of Nsight Systems ---------------------------------------------------------------------
#
# Totals over the steps of the imported capture, or over all of it where no range marks steps. Of
# rows that are too many those with the least time are one row, named `(rest)`.

# The innermost range that was open.
_INNERMOST = (
    "range_kind TEXT kind of the innermost range it was called in, null outside all ranges",
    "range_name TEXT name of that range; of a module its path",
)
_PROCESS = "process INTEGER number of the process"
# Of single times.
_SPREAD = (
    "median_s REAL median of them",
    "shortest_s REAL the shortest one",
    "longest_s REAL the longest one",
    "deviation_s REAL their standard deviation, null of one alone",
)

_OF_NSYS: dict[str, tuple[Column, ...]] = {
    "nsys_processes": columns(
        _PROCESS,
        "device TEXT device it worked on, or null",
        "steps INTEGER steps that its figures are totals of; 0 for the whole capture",
        "own_steps INTEGER 1 where these are its own steps, 0 where another process makes them",
        "wall_s REAL host time that its figures are totals of",
        "ranges INTEGER its NVTX ranges",
        "api_calls INTEGER its calls of CUDA",
        "kernels INTEGER kernels on the device",
        "device_s REAL their device time",
        "busy_s REAL time in which one of them ran",
        "copies INTEGER copies and fills",
        "copies_s REAL their device time",
    ),
    "nsys_steps": columns(
        "step INTEGER number of the step",
        "device TEXT device, null where none did any work",
        "started_s REAL since the capture began",
        "wall_s REAL host time from the begin of its range to the end",
        "kernels INTEGER kernels launched in the step, null without a device",
        "device_s REAL device time of these kernels, whenever they ran",
        "busy_s REAL time of the step in which a kernel or a fill ran on the device",
        "idle_s REAL time of the step in which none ran",
        "fully_idle_s REAL time of the step in which no kernel, fill or copy ran",
        _PROCESS,
    ),
    "nsys_ranges": columns(
        "node INTEGER number of the row, from 1; a range inside others has one for each place",
        "parent INTEGER the row of the range around it in the same domain and thread, or null",
        "domain TEXT NVTX domain, empty for the default one",
        "kind TEXT of domain profstack step, module, forward, backward, optimizer or region; of "
        "others the category, or range",
        "name TEXT text of the range without its running number; of a module its path, of all "
        "steps together step",
        "style TEXT push_pop, or start_end of one that need not nest",
        "on_steps_thread INTEGER 1 where the thread is the one that makes the steps",
        "first_number INTEGER lowest running number that was taken from the name, or null",
        "last_number INTEGER highest of them",
        "calls INTEGER ranges",
        "wall_s REAL host time inside, ranges within it included",
        "self_s REAL host time inside without the rows below it",
        *_SPREAD,
        "step_deviation_s REAL standard deviation of its host time per step, null without steps",
        "api_calls INTEGER CUDA calls that began inside",
        "api_s REAL host time in them, also on threads without a range of their own",
        "kernels INTEGER kernels launched inside, whenever they ran",
        "device_s REAL device time of these kernels, added up over streams",
        "projected_s REAL from the begin of the first device work launched inside to the end of "
        "the last, added up over the ranges",
        "elsewhere_s REAL the part of device_s that threads without a range of their own launched",
        "copies INTEGER copies and fills begun inside",
        "copied_bytes INTEGER bytes copied, fills not included",
        "copies_s REAL device time of the copies and fills",
        _PROCESS,
    ),
    "nsys_stats": columns(
        "kind TEXT kernel, graph, copy, fill, wait, or a library of calls: cuda, cudnn, cublas, os",
        "name TEXT kernel, kind of copy, or function",
        "device TEXT device, null of calls",
        "calls INTEGER how many there were",
        "total_s REAL their time: of kernels and copies device time, of calls host time",
        *_SPREAD,
        _PROCESS,
    ),
    "nsys_kernels": columns(
        "name TEXT kernel, or a graph that was traced as a whole",
        "device TEXT device",
        "stream INTEGER stream",
        *_INNERMOST,
        "launched_by TEXT the CUDA call that launched it, null where the file does not say",
        "in_graph INTEGER 1 where it is a node of a CUDA graph, or the graph itself",
        "grid TEXT blocks in x, y and z",
        "block TEXT threads of a block in x, y and z",
        "calls INTEGER kernels",
        "device_s REAL device time",
        "longest_s REAL the longest one",
        "delay_s REAL from the begin of the launching call to the begin of the kernel, added up; "
        "null where no call is known",
        _PROCESS,
    ),
    "nsys_copies": columns(
        "direction TEXT host to device, device to host, device to device, peer to peer, fill, ...",
        "from_memory TEXT kind of memory read: pageable, pinned, device, managed, ...",
        "to_memory TEXT kind of memory written",
        "device TEXT device",
        *_INNERMOST,
        "calls INTEGER copies or fills",
        "bytes INTEGER bytes",
        "device_s REAL device time",
        "longest_s REAL the longest one; of copies that the file has as one, all of them",
        _PROCESS,
    ),
    "nsys_api": columns(
        "library TEXT cuda, cudnn, cublas or os",
        "name TEXT function",
        *_INNERMOST,
        "calls INTEGER calls",
        "host_s REAL host time inside",
        "longest_s REAL the longest call",
        "failed INTEGER calls that returned an error, null where that is not traced",
        _PROCESS,
    ),
    "nsys_waits": columns(
        "kind TEXT event, stream or context sync: the host waits; stream wait sync: a stream does",
        "device TEXT device",
        "stream INTEGER stream, null of a whole context",
        "called TEXT the CUDA call that waited, null where the file does not say",
        *_INNERMOST,
        "calls INTEGER waits",
        "wait_s REAL time in them",
        "longest_s REAL the longest one",
        _PROCESS,
    ),
    "nsys_communication": columns(
        "device TEXT device",
        "collective TEXT AllReduce, AllGather, ...: as the kernel's name has it, or its name",
        "calls INTEGER kernels",
        "device_s REAL device time, added up over streams",
        "busy_s REAL time in which one of them ran",
        "overlapped_s REAL the part of it in which a kernel of another kind ran on the device",
        "exposed_s REAL the part of it in which none did",
        _PROCESS,
    ),
    "nsys_backtraces": columns(
        "source TEXT cuda, os or cpu: calls of the device's runtime, of the system, or CPU samples",
        "name TEXT the function called; null of CPU samples",
        "stack JSON where from, innermost first: pairs of function and library",
        "calls INTEGER calls or samples",
        "host_s REAL host time of the calls, null of samples",
        _PROCESS,
    ),
    "nsys_memory": columns(
        "t_s REAL since the capture began",
        "device TEXT device",
        "kind TEXT kind of memory",
        "bytes INTEGER bytes held after the event, of those taken since the capture began",
        _PROCESS,
    ),
    "nsys_samples": columns(
        "symbol TEXT function",
        "library TEXT library or program that it is in",
        "self_samples INTEGER CPU samples in which it was innermost",
        "total_samples INTEGER CPU samples in which it was on the stack",
        _PROCESS,
    ),
    "nsys_gaps": columns(
        "device TEXT device that was idle",
        "cause TEXT host late, synchronisation, copy, data wait, start of step, queued or unknown",
        "count INTEGER gaps",
        "total_s REAL time in which no kernel or fill ran in them",
        "fully_idle_s REAL the part of it in which no copy ran either",
        "longest_s REAL the longest one",
        "after TEXT kernel before the longest one, and its range",
        "before TEXT kernel after it, and its range",
        _PROCESS,
    ),
    "nsys_longest_gaps": columns(
        "device TEXT device that was idle",
        "started_s REAL since the capture began",
        "step INTEGER number of the step it began in, or null",
        "gap_s REAL time in which no kernel or fill ran, between steps too",
        "fully_idle_s REAL the part of it in which no copy ran either",
        "cause TEXT as in nsys_gaps",
        "after TEXT kernel before it, and its range",
        "before TEXT kernel after it, and its range",
        _PROCESS,
    ),
}

RECORDED_OF_NSYS = {name: Table(name, each) for name, each in _OF_NSYS.items()}
RECORDED = {
    **{name: Table(name, each) for name, each in _OF_RUN.items()},
    **{name: Table(name, (SLICE, *each)) for name, each in _OF_SLICES.items()},
    **RECORDED_OF_NSYS,
}
