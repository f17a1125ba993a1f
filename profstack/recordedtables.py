"""The tables of a recording: of the run itself, and of every layer's own but the torch slices'.

Rows of a slice are totals over it, as they were measured.
"""

from __future__ import annotations

from profstack.tabletypes import FUNCTION_COLUMNS, Table, table

RECORDED_OF_RUN: dict[str, Table] = {
    each.name: each
    for each in (
        table(
            "facts",
            "key TEXT name of the fact",
            "value TEXT its value as JSON",
        ),
        table(
            "slices",
            "slice INTEGER number of the slice, from 0, in order of time",
            "kind TEXT startup, warmup, settle, clean, watch or the name of a layer",
            "layer TEXT name of the layer that observed, null when none did",
            "mode TEXT the layer's way of observing in this slice: timed, detail, lines, shared "
            "(with another layer) or whole (a workload without steps)",
            "plan INTEGER number of the plan, from 1: a new optimizer or model starts a new one",
            "phase TEXT train, eval or other",
            "round INTEGER number of the round, from 1; 0 before the first",
            "first_step INTEGER first step of the slice",
            "steps INTEGER steps in the slice",
            "started_s REAL host time since the recording began",
            "wall_s REAL host time over the slice's steps",
            "cpu_s REAL process CPU time over the slice's steps",
            "counted_steps INTEGER steps whose sum the layer's rows hold: those with evaluation "
            "are left out where the tool can tell steps apart",
            "counted_wall_s REAL host time over the counted steps",
            "settle_steps INTEGER steps let go by after the switch, before the slice",
            "stop_s REAL host time to stop the tool and take in its data; the script stood still",
        ),
        table(
            "steps",
            "step INTEGER number of the step, from 0, over all phases",
            "plan INTEGER number of the plan it belongs to",
            "phase TEXT train, eval or other",
            "slice INTEGER the slice it belongs to",
            "started_s REAL host time since the recording began",
            "wall_s REAL host time",
            "cpu_s REAL process CPU time, all threads; those on other cores at scheduler ticks",
            "device_s REAL device time by events, null where there is no device",
            "wait_s REAL host time to the first module call or backward",
            "batch_size INTEGER leading dimension of the step's first input tensor",
            "shape TEXT shapes of the tensors the step's model was called with",
            "flags TEXT reasons that keep the step out of medians, separated by spaces: "
            "eval, checkpoint, switch, partial",
        ),
        table(
            "modules",
            "module_id INTEGER number of the module object, from 1",
            "path TEXT module path; names in brackets are step parts outside any module",
            "label TEXT the script's variable that holds it, if there is one",
            "type TEXT class name",
            "instance INTEGER 1 for the first live instance of a root class, 2 for the second",
            "parent_id INTEGER enclosing module, null for a root",
            "aliases TEXT further paths of the same module, as a JSON list",
            "parameters INTEGER parameters of the module and its children",
        ),
        table(
            "functions",
            "slice INTEGER slice; null for the profile of the start-up",
            *FUNCTION_COLUMNS,
            "calls INTEGER calls, recursive ones included",
            "primitive_calls INTEGER calls that were not recursive",
            "self_s REAL time without callees",
            "total_s REAL time with callees",
        ),
        table(
            "calls",
            "slice INTEGER slice; null for the profile of the start-up",
            *(f"caller_{column}" for column in FUNCTION_COLUMNS),
            *(f"callee_{column}" for column in FUNCTION_COLUMNS),
            "calls INTEGER calls from this caller",
            "primitive_calls INTEGER those that were not recursive",
            "self_s REAL time in the callee without its own callees",
            "total_s REAL time in the callee with its own callees",
        ),
        table(
            "memory",
            "t_s REAL host time since the recording began",
            "step INTEGER step",
            "rss_bytes INTEGER resident set of the process",
            "device_allocated_bytes INTEGER bytes in live tensors on the device",
            "device_reserved_bytes INTEGER bytes held by the device allocator",
        ),
        table(
            "memory_lines",
            "slice INTEGER slice",
            "file TEXT source file",
            "line INTEGER line",
            "source TEXT text of the line",
            "usage_bytes INTEGER largest resident set after the line",
            "increment_bytes INTEGER growth of the resident set over the line, all runs together; "
            "functions of the user's that it calls have their own",
            "largest_bytes INTEGER the largest growth within one run of the line, by either "
            "source, also of what the line gave back before its end",
            "allocated_bytes INTEGER the same growth by the second source, null where it has none",
            "second_source TEXT what the second figure comes from, or why there is none",
            "occurrences INTEGER runs of the line that were seen",
        ),
        table(
            "module_memory",
            "slice INTEGER slice",
            "module_id INTEGER module",
            "calls INTEGER calls seen",
            "host_net_bytes INTEGER growth of malloc's bytes in use over its calls, children "
            "included; of the resident set where those cannot be read",
            "device_net_bytes INTEGER growth of live device bytes over its calls",
            "device_peak_bytes INTEGER most live device bytes inside one call, above those when it "
            "began; null where no call reached a new peak of the process",
        ),
        table(
            "flop_counts",
            "slice INTEGER slice",
            "counter TEXT FlopCounterMode, recorded_shapes, flops-profiler, thop or fvcore",
            "module_id INTEGER module, null outside every module",
            "operator TEXT operator, null where the counter knows modules alone",
            "backward INTEGER 1 for backward work",
            "calls INTEGER calls",
            "flop INTEGER floating-point operations, a multiply-add is 2; null without a formula",
            "masked_flop INTEGER those of them that masks of attention called as causal leave out; "
            "null where that is not known",
        ),
        table(
            "ranges",
            "slice INTEGER slice",
            "kind TEXT step, module, forward, backward, optimizer or region",
            "name TEXT name of the range",
            "calls INTEGER ranges emitted",
            "emit_s REAL host time spent on emitting them, null if not above the clock's own",
        ),
        table(
            "region_times",
            "slice INTEGER slice",
            "path TEXT names of the regions around it and its own, with slashes between",
            "source TEXT what named it: profstack.region, torch.cuda.nvtx or nvtx",
            "calls INTEGER times it was entered",
            "wall_s REAL host time inside, regions within it included",
            "threads INTEGER threads that were in it",
            "on_steps_thread INTEGER 1 where the thread that makes the steps was one of them",
        ),
        table(
            "thread_times",
            "slice INTEGER slice",
            "kind TEXT main, backward, DataLoader worker, DataLoader pin memory, profstack, native "
            "(begun by no Python code) or other",
            "name TEXT name of the threads, or of the process",
            "process INTEGER 0 for the script's own, others in the order of their numbers; null "
            "for those that ended",
            "threads INTEGER threads, null where they have ended",
            "cpu_s REAL CPU time over the slice's steps, null where nobody told it",
            "delay_s REAL time in which the steps' thread could have run but had no core",
        ),
        table(
            "watch_frames",
            "frame INTEGER number of the frame, from 1",
            "parent INTEGER the frame that called it, null for the outermost",
            "file TEXT source file",
            "line INTEGER line being run",
            "name TEXT function",
            "function_line INTEGER line of the function's definition",
            "source TEXT text of the line, of the script's own code",
        ),
        table(
            "watch_samples",
            "t_s REAL host time since the recording began",
            "frame INTEGER innermost frame of the thread that trains, null where it ran no Python",
            "region TEXT region of the script's own that it was in, or null",
            "rss_bytes INTEGER resident set of the process",
            "weight REAL watched time before it, in units of 10 ms; 0 for memory alone",
        ),
        table(
            "compilations",
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
        table(
            "graph_breaks",
            "reason TEXT why dynamo ended a graph",
            "stack TEXT frames of the program there as JSON, innermost last: file, line, function; "
            "the outermost is of the code that was compiled",
        ),
        table(
            "layers",
            "name TEXT layer",
            "technique TEXT counting, sampling or tracing",
            "tool TEXT what does the observing",
            "version TEXT its version",
            "status TEXT recorded, emitted, empty, unavailable, skipped or failed",
            "reason TEXT why, where the status is not recorded",
            "memory_bytes INTEGER growth of the resident set over the layer's slices",
            "truncated TEXT what was left out and why, or null",
        ),
        table(
            "artifacts",
            "layer TEXT layer",
            "path TEXT path inside the recording",
            "opens_in TEXT tools that open it",
            "bytes INTEGER size",
        ),
        table(
            "notes",
            "slug TEXT short name",
            "layer TEXT layer it concerns, or null",
            "text TEXT what happened and what follows",
        ),
    )
}
