"""Rows of the report's tables: figures per step, one typed dictionary per table.

A column's unit is the end of its name: `_s` seconds, `_bytes`, `_flop`, `_mac`, `_per_s`. `None`
(JSON null) means not measured; 0 is never written for it. Times are host times unless the name
says `device`.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from profstack.storage.schema.column import Column

# What a profile of Python functions is of.
Profiled = Literal["step", "startup"]
# Values of `measured_in` in the table of regions.
CLEAN_SLICES = "clean slices"
OTHER_SLICES = "slices with a layer, the start-up or the watch"

# Reasons that several columns share.
NOT_CALIBRATED = (
    "the slice had fewer than 3 steps or a probe effect above 3, or there was no clean time"
)
NO_KERNEL = "no kernel was recorded: operators computed on the host itself"
NOT_TRACED = "it did not run while lines were traced"
NOT_IN_MEMORY_SLICE = "it did not run in a slice of the memory layer"
NO_LINE_SLICE = "no slice ran with the lines traced"
NOT_SEEN_BY_TORCH = "the torch layer's slices did not see it run"
NOT_IN_MEMORY_STEP = "it was not called in the step whose memory was watched"
NO_LAUNCH = "the profiler linked none of its kernels to a launch"
NO_SAMPLE = "the watch took no sample in these steps"
NO_FUNCTION = "it is no Python function"
NO_SCRIPT_FOLDER = "the recording does not tell where the script's files lie"
STEPS_THREAD_ONLY = "only the steps' thread has it"


class UncountedOperator(TypedDict, total=False):
    """An operator without a formula."""

    operator: str
    calls: float
    time_share: float | None
    why: str


class StepRow(TypedDict):
    """A step."""

    index: Annotated[
        int | None, Column("number of the step", sense="fact", layer="profstack", heading="step")
    ]
    phase: Annotated[str, Column("train, eval or other")]
    slice: Annotated[int | None, Column("slice", sense="fact", layer="profstack")]
    wall_s: Annotated[
        float | None,
        Column(
            "host time", sense="raw", layer="step clock", cell="nothing tells when the step ended"
        ),
    ]
    cpu_s: Annotated[
        float | None,
        Column(
            "process CPU time; what ran on other cores is added at scheduler ticks, some "
            "milliseconds apart: take means over many steps",
            sense="raw",
            layer="step clock",
            empty="steps so short that reading the CPU clock would slow them",
            cell="the step is so short that reading the CPU clock would slow it",
        ),
    ]
    device_s: Annotated[
        float | None, Column("device time by events", sense="raw", layer="step clock")
    ]
    wait_s: Annotated[
        float | None,
        Column(
            "host time to the first module call or backward",
            sense="raw",
            layer="step clock",
            heading="wait",
            empty="it is not known when the first work of any step began",
            cell="it is not known when the step's first work began",
        ),
    ]
    batch_size: Annotated[
        int | None,
        Column(
            "leading dimension of the step's first input tensor",
            sense="fact",
            layer="profstack",
            empty="the inputs of the steps are no tensors",
            cell="the step's first input is no tensor, or the step was too short to ask",
        ),
    ]
    flags: Annotated[
        str | None,
        Column(
            "why the step is kept out of medians",
            empty="no step is kept out of medians",
            cell="it is not kept out of medians",
        ),
    ]


class ModuleRow(TypedDict):
    """A module, or a part of a step outside any module."""

    path: Annotated[
        str,
        Column(
            "module path; names in brackets are step parts outside any module", heading="module"
        ),
    ]
    label: Annotated[
        str | None,
        Column(
            "the script's variable",
            empty="no variable of the script holds a model",
            cell="no variable of the script holds it",
        ),
    ]
    type: Annotated[str, Column("class name")]
    instance: Annotated[
        int | None,
        Column(
            "number among live instances of the root's class",
            sense="fact",
            layer="profstack",
            empty="only parts of the step outside modules were seen",
            cell="it is no module",
        ),
    ]
    depth: Annotated[int | None, Column("0 for a root", sense="fact", layer="profstack")]
    aliases: Annotated[list[str], Column("further paths of the same module")]
    calls: Annotated[
        float | None,
        Column(
            "calls per step",
            sense="counted",
            empty="only parts of the step outside modules were seen",
            cell="it is no module, or " + NOT_SEEN_BY_TORCH,
        ),
    ]
    parameters: Annotated[
        int | None,
        Column(
            "parameters, children included",
            sense="fact",
            layer="profstack",
            empty="no module has parameters",
            cell="its parameters were not known when it was called",
        ),
    ]
    forward_s: Annotated[
        float | None,
        Column("host time in forward, children included", sense="raw", cell=NOT_SEEN_BY_TORCH),
    ]
    backward_s: Annotated[
        float | None,
        Column(
            "host time of the backward work of its forward, children included",
            sense="raw",
            cell=NOT_SEEN_BY_TORCH,
        ),
    ]
    recomputed_s: Annotated[
        float | None,
        Column(
            "forward work done again in its backward (checkpointing), inside backward_s",
            sense="raw",
            heading="recomputed",
            empty="nothing was computed again in a backward pass",
            cell="nothing of it was computed again in a backward pass",
        ),
    ]
    self_s: Annotated[
        float | None,
        Column(
            "forward and backward host time without children", sense="raw", cell=NOT_SEEN_BY_TORCH
        ),
    ]
    python_s: Annotated[
        float | None,
        Column(
            "self time outside operators: its own Python code, and the framework's",
            sense="raw",
            heading="python",
            empty="no module was seen to run",
            cell="it is no module, it was not seen to run, or its operators ran in other threads "
            "beside it",
        ),
    ]
    forward_device_s: Annotated[
        float | None, Column("device time of kernels launched in forward", sense="raw")
    ]
    backward_device_s: Annotated[
        float | None, Column("device time of kernels launched in its backward", sense="raw")
    ]
    calibrated_s: Annotated[
        float | None,
        Column(
            "forward and backward time at the speed of the clean steps",
            sense="calibrated",
            cell=NOT_CALIBRATED,
        ),
    ]
    forward_flop: Annotated[
        int | None,
        Column(
            "floating-point operations in forward",
            sense="counted",
            layer="flops",
            heading="forward FLOP",
            empty="no counted operator was called by a module",
            cell="no operator that it calls has a formula for its operations",
        ),
    ]
    backward_flop: Annotated[
        int | None,
        Column(
            "floating-point operations in backward",
            sense="counted",
            layer="flops",
            heading="backward FLOP",
            empty="no backward pass was counted",
            cell="none of its backward work has a formula for its operations",
        ),
    ]
    forward_mac: Annotated[
        int | None,
        Column(
            "multiply-adds in forward",
            sense="counted",
            layer="flops",
            heading="forward MAC",
            empty="no counted operator was called by a module",
            cell="no operator that it calls has a formula for its operations",
        ),
    ]
    flop_per_s: Annotated[
        float | None,
        Column(
            "operations per clean second",
            sense="rate",
            needs="flops",
            heading="FLOP/s",
            empty="the time of no counted module is calibrated: " + NOT_CALIBRATED,
            cell="its operations were not counted, or its time is not calibrated",
        ),
    ]
    host_net_bytes: Annotated[
        float | None,
        Column(
            "host bytes allocated less freed inside forward",
            sense="raw",
            heading="host memory kept",
            empty="no slice watched what torch's allocator gives out",
            cell=NOT_IN_MEMORY_STEP,
        ),
    ]
    host_peak_bytes: Annotated[
        float | None,
        Column(
            "most host bytes alive at once inside forward, above those before",
            sense="raw",
            heading="host peak",
            empty="no slice watched what torch's allocator gives out",
            cell=NOT_IN_MEMORY_STEP,
        ),
    ]
    device_net_bytes: Annotated[
        float | None,
        Column(
            "device bytes allocated less freed inside forward",
            sense="raw",
            heading="device memory kept",
            cell=NOT_IN_MEMORY_STEP,
        ),
    ]
    device_peak_bytes: Annotated[
        float | None, Column("the same of the device", sense="raw", cell=NOT_IN_MEMORY_STEP)
    ]


class OperatorRow(TypedDict):
    """An operator, by name, input shapes and module."""

    name: Annotated[str, Column("operator")]
    shapes: Annotated[
        str | None,
        Column(
            "input shapes", empty="the slices recorded no input shapes", cell="it takes no tensor"
        ),
    ]
    calls: Annotated[float | None, Column("calls per step", sense="counted")]
    self_s: Annotated[float | None, Column("host time without children", sense="raw")]
    total_s: Annotated[float | None, Column("host time with children", sense="raw")]
    device_s: Annotated[float | None, Column("device time", sense="raw")]
    calibrated_s: Annotated[
        float | None,
        Column(
            "self time at the speed of the clean steps", sense="calibrated", cell=NOT_CALIBRATED
        ),
    ]
    flop: Annotated[
        float | None,
        Column(
            "floating-point operations",
            sense="counted",
            layer="flops",
            heading="FLOP",
            empty="no counter knows the operations of single operators here",
            cell="it has no formula, or it ran with several shapes in this module, which its "
            "counter does not tell apart",
        ),
    ]
    moved_bytes: Annotated[
        float | None,
        Column(
            "bytes read and written, from shapes and dtypes",
            sense="counted",
            heading="moved",
            empty="the slices recorded no inputs, or no rule tells what they moved",
            cell="it only calls others, which move the bytes; or no rule tells what its outputs "
            "are, or the profiler recorded no types (of lists of tensors)",
        ),
    ]
    module: Annotated[
        str | None,
        Column(
            "module path",
            empty="no operator was called inside a module",
            cell="it was called outside every module",
        ),
    ]


class KernelRow(TypedDict):
    """A device kernel, by launching operator and module."""

    name: Annotated[str, Column("kernel")]
    calls: Annotated[float | None, Column("launches per step", sense="counted")]
    device_s: Annotated[float | None, Column("device time", sense="raw")]
    device: Annotated[str | None, Column("device")]
    stream: Annotated[int | None, Column("stream", sense="fact")]
    module: Annotated[
        str | None, Column("module path", cell="it was launched outside every module")
    ]
    operator: Annotated[
        str | None,
        Column("operator that launched it", cell="the profiler linked it to no operator"),
    ]


class FunctionRow(TypedDict):
    """A Python or built-in function."""

    phase: Annotated[Profiled, Column("step or startup")]
    file: Annotated[str, Column("source file, or ~ for built-in functions")]
    line: Annotated[int, Column("line of the function's definition", sense="fact")]
    name: Annotated[str, Column("function name")]
    own: Annotated[
        bool | None,
        Column(
            "whether the file is the user's own, no library's",
            heading="own file",
            empty=NO_SCRIPT_FOLDER,
        ),
    ]
    calls: Annotated[float | None, Column("calls per step", sense="counted")]
    primitive_calls: Annotated[
        float | None,
        Column("calls per step that were not recursive", sense="counted", heading="not recursive"),
    ]
    self_s: Annotated[float | None, Column("host time without callees", sense="raw")]
    total_s: Annotated[float | None, Column("host time with callees", sense="raw")]
    calibrated_s: Annotated[
        float | None,
        Column(
            "self time at the speed of the clean steps",
            sense="calibrated",
            cell="a start-up has no clean time; of steps, " + NOT_CALIBRATED,
        ),
    ]
    corrected_self_s: Annotated[
        float | None,
        Column(
            "self time less the profiler's own cost per call",
            sense="raw",
            heading="corrected self",
            empty="what cProfile adds to each call was not measured",
            cell="what cProfile adds to its calls is as much as its own time, within the error of"
            " that",
        ),
    ]
    watch_share: Annotated[
        float | None,
        Column(
            "share of the watch's samples of steps in which it was innermost",
            sense="raw",
            layer="watch",
            heading="watch share",
            empty="the watch took no sample in these functions",
            cell="the watch took no sample in it",
        ),
    ]
    package: Annotated[
        str | None,
        Column(
            "what it belongs to: the user's own files, a package, Python, or built-in",
            empty=NO_SCRIPT_FOLDER,
        ),
    ]


class CallRow(TypedDict):
    """Calls of one function by another."""

    phase: Annotated[Profiled, Column("what the calls are of: step or startup")]
    caller: Annotated[str, Column("file:line(name) of the caller")]
    callee: Annotated[str, Column("file:line(name) of the callee")]
    calls: Annotated[float | None, Column("calls per step", sense="counted")]
    self_s: Annotated[
        float | None, Column("time in the callee from this caller, without callees", sense="raw")
    ]
    total_s: Annotated[
        float | None, Column("time in the callee from this caller, with callees", sense="raw")
    ]


class LineRow(TypedDict):
    """A source line."""

    file: Annotated[str, Column("source file")]
    line: Annotated[int, Column("line", sense="fact", layer="profstack")]
    source: Annotated[
        str | None,
        Column(
            "text of the line",
            empty="the text of no line was recorded",
            cell="its text was not recorded with it",
        ),
    ]
    own: Annotated[
        bool | None,
        Column(
            "whether the file is the user's own, no library's",
            heading="own file",
            empty=NO_SCRIPT_FOLDER,
        ),
    ]
    calls: Annotated[
        float | None,
        Column(
            "times run per step",
            sense="counted",
            layer="torch",
            empty=NO_LINE_SLICE,
            cell="it did not run while lines were traced, or too often to be counted",
        ),
    ]
    python_s: Annotated[
        float | None,
        Column(
            "time outside operators",
            sense="raw",
            layer="torch",
            empty=NO_LINE_SLICE,
            cell=NOT_TRACED,
        ),
    ]
    operator_s: Annotated[
        float | None,
        Column(
            "time inside operators",
            sense="raw",
            layer="torch",
            empty=NO_LINE_SLICE,
            cell=NOT_TRACED,
        ),
    ]
    device_s: Annotated[
        float | None,
        Column(
            "device time of kernels launched from the line",
            sense="raw",
            layer="torch",
            cell=NOT_TRACED,
        ),
    ]
    usage_bytes: Annotated[
        int | None,
        Column(
            "resident set after the line",
            sense="raw",
            layer="memory",
            heading="RSS after",
            cell=NOT_IN_MEMORY_SLICE,
        ),
    ]
    increment_bytes: Annotated[
        int | None,
        Column(
            "growth of the resident set over the line",
            sense="raw",
            layer="memory",
            heading="RSS growth",
            cell=NOT_IN_MEMORY_SLICE,
        ),
    ]
    occurrences: Annotated[
        float | None,
        Column(
            "times the memory layer saw the line",
            sense="counted",
            layer="memory",
            heading="runs seen",
            cell=NOT_IN_MEMORY_SLICE,
        ),
    ]
    watch_share: Annotated[
        float | None,
        Column(
            "share of the watch's samples in steps",
            sense="raw",
            layer="watch",
            heading="watch share",
            empty="the watch took no sample of a step in the script's own code",
            cell="the watch took no sample of a step on it",
        ),
    ]
    watch_bytes: Annotated[
        int | None,
        Column(
            "growth of the resident set seen by the watch",
            sense="raw",
            layer="watch",
            heading="RSS growth (watch)",
            empty="the watch took no sample in the script's own code",
            cell="the watch took no sample on it",
        ),
    ]
    largest_bytes: Annotated[
        int | None,
        Column(
            "largest growth within one run of the line, by either source",
            sense="raw",
            layer="memory",
            heading="largest growth",
            cell=NOT_IN_MEMORY_SLICE,
        ),
    ]
    allocated_bytes: Annotated[
        int | None,
        Column(
            "the growth by the memory layer's second source",
            sense="raw",
            layer="memory",
            heading="second source",
            empty="the second source could not tell; see the column beside",
            cell="the second source has no figure for this line",
        ),
    ]
    memory_source: Annotated[
        str | None,
        Column(
            "what the second figure comes from, or why there is none",
            needs="memory",
            heading="what the second source is",
            cell=NOT_IN_MEMORY_SLICE,
        ),
    ]
    startup_share: Annotated[
        float | None,
        Column(
            "share of the watch's samples in the start-up",
            sense="raw",
            layer="watch",
            heading="start-up share (watch)",
            empty="the watch took no sample of the start-up in the script's own code",
            cell="the watch took no sample of the start-up on it",
        ),
    ]
    backward_s: Annotated[
        float | None,
        Column(
            "the part of the time inside operators that is backward work",
            sense="raw",
            layer="torch",
            heading="of it backward",
            empty=NO_LINE_SLICE,
            cell=NOT_TRACED,
        ),
    ]
    reason: Annotated[
        str | None,
        Column(
            "why its count and times are not whole, or null",
            heading="why not whole",
            empty="no line was given up",
            cell="its figures are whole",
        ),
    ]


class ModuleLineRow(TypedDict):
    """The part of a source line that ran inside one module."""

    module: Annotated[
        str | None,
        Column(
            "module path, or part of the step, that the time on the line was spent in",
            empty="every line ran outside every module",
            cell="outside every module, backward pass and optimizer",
        ),
    ]
    file: Annotated[str, Column("source file")]
    line: Annotated[int, Column("line", sense="fact", layer="profstack")]
    calls: Annotated[
        float | None,
        Column(
            "times run per step with the module as the innermost one",
            sense="counted",
            empty="every line ran too often to be counted",
            cell="the line ran too often to be counted",
        ),
    ]
    python_s: Annotated[float | None, Column("time outside operators", sense="raw")]
    operator_s: Annotated[float | None, Column("time inside operators", sense="raw")]
    backward_s: Annotated[
        float | None,
        Column("the part of the time inside operators that is backward work", sense="raw"),
    ]
    device_s: Annotated[
        float | None, Column("device time of kernels launched from the line", sense="raw")
    ]


class MemoryRow(TypedDict):
    """Memory in use at one moment."""

    t_s: Annotated[
        float | None,
        Column(
            "host time since the recording began", sense="fact", layer="profstack", heading="time"
        ),
    ]
    step: Annotated[
        int | None,
        Column(
            "step",
            sense="fact",
            layer="profstack",
            empty="every sample lies outside the steps",
            cell="outside every step",
        ),
    ]
    rss_bytes: Annotated[
        int | None,
        Column(
            "resident set of the process, at edges of slices and by the watch",
            sense="raw",
            layer="profstack",
            heading="resident set",
            empty="this system does not tell the resident set of a process",
            cell="it could not be read at that moment",
        ),
    ]
    device_allocated_bytes: Annotated[
        int | None, Column("bytes in live tensors on the device", sense="raw", layer="profstack")
    ]
    device_reserved_bytes: Annotated[
        int | None, Column("bytes held by the device allocator", sense="raw", layer="profstack")
    ]


class MemoryOwnerRow(TypedDict):
    """Memory of one kind over the observed step."""

    device: Annotated[str | None, Column("device that holds the bytes")]
    kind: Annotated[str, Column("what they are: parameters, gradients, activations, ...")]
    start_bytes: Annotated[
        int | None,
        Column("bytes of this kind at the start of the step", sense="raw", layer="torch"),
    ]
    peak_bytes: Annotated[
        int | None,
        Column("bytes of this kind at the moment of the step's peak", sense="raw", layer="torch"),
    ]
    largest_bytes: Annotated[
        int | None,
        Column("most bytes of this kind at any one moment of the step", sense="raw", layer="torch"),
    ]
    end_bytes: Annotated[
        int | None, Column("bytes of this kind at the end of the step", sense="raw", layer="torch")
    ]


class PeakHolderRow(TypedDict):
    """Tensors alive at the peak of the observed step, by kind and maker."""

    device: Annotated[str | None, Column("device that holds the bytes")]
    kind: Annotated[str, Column("what they are: parameters, gradients, activations, ...")]
    module: Annotated[
        str | None,
        Column(
            "module path or part of the step that made them",
            empty="nothing that is alive at the peak belongs to a module",
            cell="it belongs to no module, or another thread took it",
        ),
    ]
    operator: Annotated[
        str | None,
        Column(
            "operator that allocated them",
            empty="all that is alive at the peak was alive before the step",
            cell="it was alive before the step, or no operator took it",
        ),
    ]
    backward: Annotated[
        bool | None,
        Column(
            "whether they were made in the backward pass",
            empty="all that is alive at the peak was alive before the step",
            cell="it was alive before the step",
        ),
    ]
    tensors: Annotated[
        int | None, Column("tensors alive at the peak", sense="counted", layer="torch")
    ]
    bytes: Annotated[
        int | None,
        Column(
            "bytes of theirs alive at the peak", sense="raw", layer="torch", heading="at the peak"
        ),
    ]
    share: Annotated[
        float | None, Column("share of the bytes alive at the peak", sense="raw", layer="torch")
    ]


class CallPathRow(TypedDict):
    """A node of the tree from Python functions to operators to kernels."""

    node: Annotated[int | None, Column("number of the node, from 1", sense="fact")]
    parent: Annotated[
        int | None,
        Column(
            "the node that called it, null for the outermost",
            sense="fact",
            cell="the profile saw no caller of it",
        ),
    ]
    kind: Annotated[str, Column("function, operator or kernel")]
    name: Annotated[str, Column("function, operator or kernel")]
    file: Annotated[
        str | None,
        Column("source file of a function", empty="no Python function was seen", cell=NO_FUNCTION),
    ]
    line: Annotated[
        int | None,
        Column(
            "line of a function's definition",
            sense="fact",
            empty="no Python function was seen",
            cell=NO_FUNCTION,
        ),
    ]
    own: Annotated[
        bool | None,
        Column(
            "whether the file is the user's own, no library's", heading="own file", cell=NO_FUNCTION
        ),
    ]
    calls: Annotated[float | None, Column("calls per step on this path", sense="counted")]
    total_s: Annotated[
        float | None,
        Column("host time with callees", sense="raw", cell="a kernel runs beside the host"),
    ]
    self_s: Annotated[
        float | None,
        Column("host time without callees", sense="raw", cell="a kernel runs beside the host"),
    ]
    device_s: Annotated[
        float | None, Column("device time of kernels launched under it", sense="raw")
    ]


class ThreadRow(TypedDict):
    """Threads of one kind and name."""

    kind: Annotated[
        str,
        Column(
            "main, backward, DataLoader worker, DataLoader pin memory, profstack, native "
            "(begun by no Python code) or other"
        ),
    ]
    name: Annotated[str, Column("name of the thread, or of the process")]
    process: Annotated[
        int | None,
        Column(
            "number of its process, the script's own is 0",
            sense="fact",
            layer="profstack",
            cell="it has ended",
        ),
    ]
    threads: Annotated[
        int | None,
        Column(
            "threads of this kind and name",
            sense="counted",
            layer="profstack",
            cell="they have ended",
        ),
    ]
    cpu_s: Annotated[
        float | None,
        Column(
            "CPU time",
            sense="clean",
            layer="step clock",
            heading="CPU",
            cell="the process was never waited for, so its CPU time is not known",
        ),
    ]
    share: Annotated[
        float | None,
        Column(
            "share of the process tree's CPU time",
            sense="clean",
            layer="step clock",
            empty="the CPU time of one of the processes is not known",
        ),
    ]
    off_cpu_s: Annotated[
        float | None,
        Column(
            "time of a step in which the steps' thread did not run",
            sense="clean",
            layer="step clock",
            heading="did not run",
            empty="the CPU time of the steps' thread is not known, or not well enough",
            cell=STEPS_THREAD_ONLY,
        ),
    ]
    no_core_s: Annotated[
        float | None,
        Column(
            "part of that in which it could have run but had no core",
            sense="clean",
            layer="step clock",
            heading="had no core",
            empty="this system does not tell how long a thread waits for a core, or the CPU time "
            "of the steps' thread is not known well enough",
            cell=STEPS_THREAD_ONLY,
        ),
    ]
    layers: Annotated[list[str], Column("layers that see its work")]
    note: Annotated[str, Column("what is not covered, and what to do")]


class LaunchRow(TypedDict):
    """Operators and launches of one step of the torch layer."""

    step: Annotated[int | None, Column("number of the step", sense="fact")]
    device: Annotated[str | None, Column("device that the kernels ran on")]
    operators: Annotated[
        float | None, Column("operators called", sense="counted", heading="operators called")
    ]
    outermost_operators: Annotated[
        float | None,
        Column(
            "those of them that no other operator called",
            sense="counted",
            heading="of them outermost",
        ),
    ]
    operator_s: Annotated[
        float | None,
        Column(
            "host time per operator; without a device the computing is in it",
            sense="raw",
            heading="host time per operator",
        ),
    ]
    kernels: Annotated[
        float | None,
        Column("kernels launched", sense="counted", heading="kernels launched", empty=NO_KERNEL),
    ]
    launches: Annotated[
        float | None,
        Column(
            "launches that began them: one of a graph begins many kernels",
            sense="counted",
            empty=NO_KERNEL,
            cell=NO_LAUNCH,
        ),
    ]
    launch_s: Annotated[
        float | None,
        Column(
            "host time per launch",
            sense="raw",
            heading="host time per launch",
            empty=NO_KERNEL,
            cell=NO_LAUNCH,
        ),
    ]
    launches_total_s: Annotated[
        float | None,
        Column(
            "host time of all launches",
            sense="raw",
            heading="host time of launches",
            empty=NO_KERNEL,
            cell=NO_LAUNCH,
        ),
    ]
    launched_by: Annotated[
        str | None,
        Column(
            "what that time is of: runtime calls, or operators with kernels",
            empty=NO_KERNEL,
            cell=NO_LAUNCH,
        ),
    ]
    device_busy_s: Annotated[
        float | None, Column("time of the step in which a kernel ran", sense="raw")
    ]
    device_idle_s: Annotated[
        float | None,
        Column("time of the step in which none ran; copies alone do not count", sense="raw"),
    ]


class GapRow(TypedDict):
    """Idle time of a device, by cause."""

    device: Annotated[str | None, Column("device that was idle")]
    cause: Annotated[
        str,
        Column(
            "host late, synchronisation, copy, data wait, start of step or queued (the next "
            "kernel was launched before the device fell idle)"
        ),
    ]
    count: Annotated[float | None, Column("gaps", sense="counted")]
    total_s: Annotated[float | None, Column("time the device was idle in them", sense="raw")]
    longest_s: Annotated[float | None, Column("the longest one", sense="raw")]
    after: Annotated[
        str | None,
        Column(
            "what ran before the longest one",
            empty="no kernel ran before",
            cell="no kernel ran before it in the slice",
        ),
    ]
    before: Annotated[
        str | None,
        Column(
            "what ran after it",
            empty="no kernel ran after",
            cell="no kernel ran after it in the slice",
        ),
    ]


class RegionRow(TypedDict):
    """A named range of the script's own."""

    path: Annotated[str, Column("region path")]
    source: Annotated[
        str, Column("what named it: profstack.region, record_function, torch.cuda.nvtx, ...")
    ]
    calls: Annotated[
        float | None,
        Column(
            "calls per step", sense="mixed", layer="profstack", cell="no slice of steps entered it"
        ),
    ]
    wall_s: Annotated[
        float | None,
        Column("host time", sense="mixed", layer="profstack", cell="no slice of steps entered it"),
    ]
    operator_s: Annotated[
        float | None,
        Column(
            "host time inside operators called in it",
            sense="raw",
            layer="torch",
            heading="in operators",
            empty="the torch layer's slices entered no region on the steps' own thread",
            cell="no slice of the torch layer entered it on the steps' own thread",
        ),
    ]
    device_s: Annotated[
        float | None,
        Column(
            "device time of kernels launched in it",
            sense="raw",
            layer="torch",
            empty="the torch layer's slices entered no region on the steps' own thread",
            cell="no slice of the torch layer entered it on the steps' own thread",
        ),
    ]
    flop: Annotated[
        float | None,
        Column(
            "floating-point operations",
            sense="counted",
            layer="torch",
            heading="FLOP",
            empty="no operator with a formula was called in a region that the torch layer's "
            "slices entered",
            cell="no operator that it calls has a formula for its operations, or no slice of the "
            "torch layer entered it on the steps' own thread",
        ),
    ]
    host_net_bytes: Annotated[
        float | None,
        Column(
            "host bytes allocated less freed inside it",
            sense="raw",
            layer="torch",
            heading="host memory kept",
            empty="the slices that watched memory entered no region",
            cell="no slice that watched memory entered it on the steps' own thread",
        ),
    ]
    threads: Annotated[
        str | None,
        Column(
            "threads that entered it",
            empty="the threads in a region are not known",
            cell="its threads were not told apart",
        ),
    ]
    measured_in: Annotated[
        str, Column("the slices that the figures are from", heading="measured in")
    ]


class RangeRow(TypedDict):
    """NVTX ranges of one kind and name that profstack emitted."""

    kind: Annotated[str, Column("step, module, forward, backward, optimizer or region")]
    name: Annotated[str, Column("name of the NVTX range")]
    calls: Annotated[
        float | None,
        Column(
            "ranges per step; one that is open at a step's end is closed there and opened "
            "again, and counts in both steps",
            sense="counted",
        ),
    ]
    emit_s: Annotated[
        float | None,
        Column(
            "host time spent on emitting them, per step",
            sense="raw",
            heading="emitting",
            empty="emitting took no more than reading the clock does",
            cell="no more than reading the clock takes",
        ),
    ]


class WatchRow(TypedDict):
    """A function in the watch's samples."""

    phase: Annotated[
        str, Column("startup, step or other (between steps of a plan, and after them)")
    ]
    file: Annotated[str, Column("source file")]
    line: Annotated[int | None, Column("line of the function's definition", sense="fact")]
    name: Annotated[str, Column("function")]
    samples: Annotated[float | None, Column("samples in which it was on the stack", sense="raw")]
    self_share: Annotated[
        float | None,
        Column(
            "share of the phase's samples in which it was innermost", sense="raw", heading="share"
        ),
    ]
    total_share: Annotated[
        float | None,
        Column(
            "share of the phase's samples in which it was on the stack",
            sense="raw",
            heading="share with callees",
        ),
    ]
    rss_bytes: Annotated[
        int | None,
        Column(
            "growth of the resident set between samples that ended in it",
            sense="raw",
            heading="RSS growth",
            empty="this system does not tell the resident set of a process",
            cell="it was not the innermost function where the resident set was read",
        ),
    ]


class OutlierRow(TypedDict):
    """A step that stands out."""

    index: Annotated[
        int | None, Column("number of the step", sense="fact", layer="step clock", heading="step")
    ]
    wall_s: Annotated[float | None, Column("host time", sense="raw", layer="step clock")]
    factor: Annotated[
        float | None,
        Column(
            "that over the clean median",
            sense="raw",
            layer="step clock",
            heading="of a clean step",
            empty="there is no clean median",
        ),
    ]
    rss_bytes: Annotated[
        int | None,
        Column(
            "growth of the resident set over the step",
            sense="raw",
            layer="watch",
            heading="RSS growth",
            empty=NO_SAMPLE,
            cell="the watch took no sample in it",
        ),
    ]
    samples: Annotated[
        float | None,
        Column(
            "samples of the watch in it",
            sense="raw",
            layer="watch",
            empty="the watch took no sample in this run",
        ),
    ]
    doing: Annotated[
        str | None,
        Column(
            "what most of them were doing: function and line, outermost first",
            needs="watch",
            heading="what it was doing",
            empty=NO_SAMPLE,
            cell="the watch took no sample in it",
        ),
    ]


class CounterRow(TypedDict):
    """A counter of floating-point operations."""

    counter: Annotated[str, Column("counter")]
    forward_flop: Annotated[
        int | None,
        Column("operations in forward", sense="counted", cell="it counted nothing in forward"),
    ]
    backward_flop: Annotated[
        int | None,
        Column(
            "operations in backward",
            sense="counted",
            empty="no backward pass was counted",
            cell="it counted nothing in backward",
        ),
    ]
    causal_forward_flop: Annotated[
        int | None,
        Column(
            "the same of forward, with attention called as causal counted as its mask leaves "
            "it; null without such attention",
            sense="counted",
            empty="no attention was called as causal; of masks given as tensors, and of attention"
            " as products one by one, nothing tells what they leave out",
            cell="it does not tell which attention is causal",
        ),
    ]
    causal_backward_flop: Annotated[
        int | None,
        Column(
            "the same of backward",
            sense="counted",
            empty="no attention was called as causal, or no backward pass counted",
            cell="it does not tell which attention is causal",
        ),
    ]
    forward_mac: Annotated[
        int | None,
        Column(
            "multiply-adds in forward",
            sense="counted",
            heading="forward MAC",
            empty="the counter has formulas for more than multiply-adds",
            cell="it counted nothing in forward, or more than multiply-adds",
        ),
    ]
    difference: Annotated[
        str | None,
        Column(
            "by how much its forward and backward differ from the record's, in which "
            "operators and why",
            empty="there is one counter with figures alone",
            cell="it is the record, or has no figures",
        ),
    ]
    uncounted: Annotated[
        list[UncountedOperator] | None,
        Column(
            "operators without a formula: operator, calls, time_share", cell="it counted nothing"
        ),
    ]
    note: Annotated[
        str | None,
        Column("why it has no figures", empty="every counter has figures", cell="it has figures"),
    ]


class ArtifactRow(TypedDict):
    """A file in the recording that another tool opens."""

    layer: Annotated[str, Column("layer")]
    path: Annotated[str, Column("path inside the recording")]
    opens_in: Annotated[str, Column("tools that open it", heading="opens in")]
    bytes: Annotated[int | None, Column("size", sense="fact", layer="profstack")]
