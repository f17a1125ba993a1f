"""Rows of the report's tables: figures per step, one typed dictionary per table.

A column's unit is the end of its name: `_s` seconds, `_bytes`, `_flop`, `_mac`, `_per_s`. `None`
(JSON null) means not measured; 0 is never written for it. Times are host times unless the name
says `device`. A field gives its type or sense, then its meaning (after its heading, where the name
is not enough), then notes: another layer than the table's, and why the column or a cell is null.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from profstack.storage.schema.column import (
    Calibrated,
    Clean,
    Counted,
    CountedWhole,
    Fact,
    Figure,
    Flag,
    Line,
    Moment,
    OwnFact,
    Raw,
    RawWhole,
    Text,
    cell,
    empty,
    layer,
    needs,
    sense,
)

# What a profile of Python functions is of.
Profiled = Literal["step", "startup", "program"]
# Values of `measured_in` in the table of regions.
CLEAN_SLICES = "clean slices"
OTHER_SLICES = "slices with a layer, the start-up or the watch"

# Reasons that several columns share.
NOT_CALIBRATED = (
    "the slice had fewer than 3 steps, a probe effect above 3 or a rare pause, or there was no "
    "clean time"
)
NO_KERNEL = "no kernel was recorded: operators computed on the host itself"
NOT_TRACED = "it did not run while lines were traced"
NOT_IN_MEMORY_SLICE = "it did not run in a slice of the memory layer"
NO_LINE_SLICE = "no slice ran with the lines traced"
NOT_SEEN_BY_TORCH = "the torch layer's slices did not see it run"
NO_LAUNCH = "the profiler linked none of its kernels to a launch"
NO_SAMPLE = "the watch took no sample in these steps"
NO_FUNCTION = "it is no Python function"
NO_SCRIPT_FOLDER = "the recording does not say where the script's files lie"

# What several columns have in common.
_NO_FUNCTION = empty("no Python function was seen")
_NO_MODULE = empty("only parts of the step outside modules were seen")
_NO_SAMPLE = cell("the watch took no sample in it")
_ALIVE_BEFORE = empty("all that is alive at the peak was alive before the step")
_NO_RSS = empty("this system does not report the resident set of a process")
_NOT_CAUSAL = cell("it does not say which attention is causal")
GapCause = Annotated[
    str,
    "host late, synchronisation, copy, data wait, start of step, queued (the next kernel was "
    "launched before the device fell idle) or unknown (its launch was not seen)",
]
_OwnFile = Annotated[Flag, "own file | whether the file is the user's own, no library's"]
_Comparable = Annotated[Calibrated, cell(NOT_CALIBRATED)]
_Seen = Annotated[Raw, cell(NOT_SEEN_BY_TORCH)]
_ModuleMemory = Annotated[Raw, cell("it was not called in the step whose memory was watched")]
_HostMemory = Annotated[_ModuleMemory, empty("no slice watched what torch's allocator gives out")]
_ForwardWork = Annotated[
    CountedWhole,
    layer("flops"),
    empty("no counted operator was called by a module"),
    cell("no operator that it calls has a formula for its operations"),
]
_Watched = Annotated[Raw, layer("watch")]
_Grown = Annotated[RawWhole, layer("watch")]
_Traced = Annotated[Raw, layer("torch"), empty(NO_LINE_SLICE), cell(NOT_TRACED)]
_LineMemory = Annotated[RawWhole, layer("memory"), cell(NOT_IN_MEMORY_SLICE)]
_ByMemoryProfiler = Annotated[
    RawWhole,
    layer("memory"),
    empty("memory_profiler was not asked to measure: profstack run --memory-by memory_profiler"),
    cell("see why it differs, in the column of that name"),
]
_Holder = Annotated[Text, "device that holds the bytes"]
_HeldKind = Annotated[str, "what they are: parameters, gradients, activations, ..."]
_HostOnly = Annotated[Raw, cell("a kernel runs beside the host")]
_StepsThread = Annotated[Clean, cell("only the steps' thread has it")]
_Launches = Annotated[Counted, empty(NO_KERNEL), cell(NO_LAUNCH)]
_LaunchTime = Annotated[Raw, empty(NO_KERNEL), cell(NO_LAUNCH)]
_Entered = Annotated[
    Figure, sense("mixed"), layer("profstack"), cell("no slice of steps entered it")
]
_InRegion = Annotated[
    Raw,
    empty("the torch layer's slices entered no region on the steps' own thread"),
    cell("no slice of the torch layer entered it on the steps' own thread"),
]


class UncountedOperator(TypedDict, total=False):
    """An operator without a formula."""

    operator: str
    calls: float
    time_share: float | None
    why: str


class StepRow(TypedDict):
    """A step."""

    index: Annotated[OwnFact, "step | number of the step"]
    phase: Annotated[str, "train, eval or other"]
    slice: Annotated[OwnFact, "slice"]
    wall_s: Annotated[Raw, "host time", cell("nothing tells when the step ended")]
    cpu_s: Annotated[
        Raw,
        "process CPU time; what ran on other cores is added at scheduler ticks, some "
        "milliseconds apart: take means over many steps",
        empty("steps so short that reading the CPU clock would slow them"),
        cell("the step is so short that reading the CPU clock would slow it"),
    ]
    device_s: Annotated[Raw, "device time by events"]
    wait_s: Annotated[
        Raw,
        "host time to the first module call or backward",
        empty("it is not known when the first work of any step began"),
        cell("it is not known when the step's first work began"),
    ]
    before_loader_s: Annotated[
        Raw,
        "host time in the wait until torch's DataLoader is asked for a batch",
        empty("no step was seen to ask a DataLoader in its wait"),
        cell("the step was not seen to ask a DataLoader in its wait"),
    ]
    loader_s: Annotated[
        Raw,
        "host time in the wait for which torch's DataLoader is asked for batches",
        empty("no step was seen to ask a DataLoader in its wait"),
        cell("the step was not seen to ask a DataLoader in its wait"),
    ]
    batch_size: Annotated[
        OwnFact,
        "leading dimension of the step's first input tensor",
        empty("the inputs of the steps are no tensors"),
        cell("the step's first input is no tensor, or the step was too short to ask"),
    ]
    flags: Annotated[
        Text,
        "why the step is kept out of medians",
        empty("no step is kept out of medians"),
        cell("it is not kept out of medians"),
    ]


class ModuleRow(TypedDict):
    """A module, or a part of a step outside any module."""

    path: Annotated[
        str, "module | module path; names in brackets are step parts outside any module"
    ]
    label: Annotated[
        Text,
        "the script's variable",
        empty("no variable of the script holds a model"),
        cell("no variable of the script holds it"),
    ]
    type: Annotated[str, "class name"]
    instance: Annotated[
        OwnFact,
        "number among live instances of the root's class",
        _NO_MODULE,
        cell("it is no module"),
    ]
    depth: Annotated[OwnFact, "0 for a root"]
    aliases: Annotated[list[str], "further paths of the same module"]
    calls: Annotated[
        Counted, "calls per step", _NO_MODULE, cell("it is no module, or " + NOT_SEEN_BY_TORCH)
    ]
    parameters: Annotated[
        OwnFact,
        "parameters, children included",
        empty("no module has parameters"),
        cell("its parameters were not known when it was called"),
    ]
    forward_s: Annotated[_Seen, "host time in forward, children included"]
    backward_s: Annotated[_Seen, "host time of the backward work of its forward, children included"]
    recomputed_s: Annotated[
        Raw,
        "forward work done again in its backward (checkpointing), inside backward_s",
        empty("nothing was computed again in a backward pass"),
        cell("nothing of it was computed again in a backward pass"),
    ]
    self_s: Annotated[_Seen, "forward and backward host time without children"]
    python_s: Annotated[
        Raw,
        "self time outside operators: its own Python code, and the framework's",
        empty("no module was seen to run"),
        cell(
            "it is no module, it was not seen to run, or its operators ran in other threads "
            "beside it"
        ),
    ]
    forward_device_s: Annotated[Raw, "device time of kernels launched in forward"]
    backward_device_s: Annotated[Raw, "device time of kernels launched in its backward"]
    calibrated_s: Annotated[
        _Comparable, "forward and backward time at the speed of the clean steps"
    ]
    forward_flop: Annotated[_ForwardWork, "forward FLOP | floating-point operations in forward"]
    backward_flop: Annotated[
        CountedWhole,
        "backward FLOP | floating-point operations in backward",
        layer("flops"),
        empty("no backward pass was counted"),
        cell("none of its backward work has a formula for its operations"),
    ]
    forward_mac: Annotated[_ForwardWork, "forward MAC | multiply-adds in forward"]
    flop_per_s: Annotated[
        Figure,
        sense("rate"),
        "FLOP/s | operations per clean second",
        needs("flops"),
        empty("the time of no counted module is calibrated: " + NOT_CALIBRATED),
        cell("its operations were not counted, or its time is not calibrated"),
    ]
    host_net_bytes: Annotated[
        _HostMemory, "host memory kept | host bytes allocated less freed inside forward"
    ]
    host_peak_bytes: Annotated[
        _HostMemory, "most host bytes alive at once inside forward, above those before"
    ]
    device_net_bytes: Annotated[
        _ModuleMemory, "device memory kept | device bytes allocated less freed inside forward"
    ]
    device_peak_bytes: Annotated[_ModuleMemory, "the same of the device"]


class OperatorRow(TypedDict):
    """An operator, by name, input shapes and module."""

    name: Annotated[str, "operator"]
    shapes: Annotated[
        Text,
        "input shapes",
        empty("the slices recorded no input shapes"),
        cell("it takes no tensor"),
    ]
    calls: Annotated[Counted, "calls per step"]
    self_s: Annotated[Raw, "host time without children"]
    total_s: Annotated[Raw, "host time with children"]
    device_s: Annotated[Raw, "device time"]
    calibrated_s: Annotated[_Comparable, "self time at the speed of the clean steps"]
    flop: Annotated[
        Counted,
        "FLOP | floating-point operations",
        layer("flops"),
        empty("no counter knows the operations of single operators here"),
        cell(
            "it has no formula, or it ran with several shapes in this module, which its "
            "counter does not separate"
        ),
    ]
    moved_bytes: Annotated[
        Counted,
        "bytes read and written, from shapes and dtypes",
        empty("the slices recorded no inputs, or no rule tells what they moved"),
        cell(
            "it only calls others, which move the bytes; or no rule tells what its outputs "
            "are, or the profiler recorded no types (of lists of tensors)"
        ),
    ]
    module: Annotated[
        Text,
        "module path",
        empty("no operator was called inside a module"),
        cell("it was called outside every module"),
    ]


class KernelRow(TypedDict):
    """A device kernel, by launching operator and module."""

    name: Annotated[str, "kernel"]
    calls: Annotated[Counted, "launches per step"]
    device_s: Annotated[Raw, "device time"]
    device: Annotated[Text, "device"]
    stream: Annotated[Fact, "stream"]
    module: Annotated[Text, "module path", cell("it was launched outside every module")]
    operator: Annotated[
        Text, "operator that launched it", cell("the profiler linked it to no operator")
    ]


class FunctionRow(TypedDict):
    """A Python or built-in function."""

    phase: Annotated[Profiled, "step, startup or program: the whole of it, imported beside steps"]
    file: Annotated[str, "source file, or ~ for built-in functions"]
    line: Annotated[Line, "line of the function's definition"]
    name: Annotated[str, "function name"]
    own: Annotated[_OwnFile, empty(NO_SCRIPT_FOLDER)]
    calls: Annotated[Counted, "calls per step"]
    primitive_calls: Annotated[Counted, "not recursive | calls per step that were not recursive"]
    self_s: Annotated[Raw, "host time without callees"]
    total_s: Annotated[Raw, "host time with callees"]
    calibrated_s: Annotated[
        Calibrated,
        "self time at the speed of the clean steps",
        cell("a start-up has no clean time; of steps, " + NOT_CALIBRATED),
    ]
    corrected_self_s: Annotated[
        Raw,
        "self time less the profiler's own cost per call",
        empty("what cProfile adds to each call was not measured"),
        cell(
            "what cProfile adds to its calls is as much as its own time, within the error of that"
        ),
    ]
    watch_share: Annotated[
        _Watched,
        "share of the watch's samples of steps in which it was innermost",
        empty("the watch took no sample in these functions"),
        _NO_SAMPLE,
    ]
    package: Annotated[
        Text,
        "what it belongs to: the user's own files, a package, Python, or built-in",
        empty(NO_SCRIPT_FOLDER),
    ]
    preempted_s: Annotated[
        Raw,
        "taken off | time of calls that took many times as long as in another slice while the "
        "thread waited for a core: self and total time are without it",
        empty("no function with few calls took much longer in one slice than in another"),
        cell("its calls took about as long in each slice, or were too many to say"),
    ]


class CallRow(TypedDict):
    """Calls of one function by another."""

    phase: Annotated[Profiled, "what the calls are of: step, startup or program"]
    caller: Annotated[str, "file:line(name) of the caller"]
    callee: Annotated[str, "file:line(name) of the callee"]
    calls: Annotated[Counted, "calls per step"]
    self_s: Annotated[Raw, "time in the callee from this caller, without callees"]
    total_s: Annotated[Raw, "time in the callee from this caller, with callees"]


class LineRow(TypedDict):
    """A source line."""

    file: Annotated[str, "source file"]
    line: Annotated[Line, "line"]
    source: Annotated[
        Text,
        "text of the line",
        empty("the text of no line was recorded"),
        cell("its text was not recorded with it"),
    ]
    own: Annotated[_OwnFile, empty(NO_SCRIPT_FOLDER)]
    calls: Annotated[
        Counted,
        "times run per step",
        layer("torch"),
        empty(NO_LINE_SLICE),
        cell("it did not run while lines were traced, or too often to be counted"),
    ]
    python_s: Annotated[_Traced, "time outside operators"]
    operator_s: Annotated[_Traced, "time inside operators"]
    device_s: Annotated[
        Raw, "device time of kernels launched from the line", layer("torch"), cell(NOT_TRACED)
    ]
    usage_bytes: Annotated[_LineMemory, "RSS after | resident set after the line"]
    increment_bytes: Annotated[_LineMemory, "RSS growth | growth of the resident set over the line"]
    occurrences: Annotated[
        Counted,
        "runs seen | times the memory layer saw the line",
        layer("memory"),
        cell(NOT_IN_MEMORY_SLICE),
    ]
    watch_share: Annotated[
        _Watched,
        "share of the watch's samples in steps",
        empty("the watch took no sample of a step in the script's own code"),
        cell("the watch took no sample of a step on it"),
    ]
    watch_bytes: Annotated[
        _Grown,
        "RSS growth (watch) | growth of the resident set seen by the watch",
        empty("the watch took no sample in the script's own code"),
        cell("the watch took no sample on it"),
    ]
    largest_bytes: Annotated[
        _LineMemory, "largest growth | largest growth within one run of the line, by either source"
    ]
    allocated_bytes: Annotated[
        RawWhole,
        "second source | the growth by the memory layer's second source",
        layer("memory"),
        empty("the second source could not tell; see the column beside"),
        cell("the second source has no figure for this line"),
    ]
    memory_source: Annotated[
        Text,
        "what the second source is | what the second figure comes from, or why there is none",
        needs("memory"),
        cell(NOT_IN_MEMORY_SLICE),
    ]
    memory_profiler_increment_bytes: Annotated[
        _ByMemoryProfiler,
        "RSS growth (memory_profiler) | memory_profiler's increment of the same runs of the line",
    ]
    memory_profiler_difference_bytes: Annotated[
        _ByMemoryProfiler,
        "memory_profiler's less ours | memory_profiler's increment less increment_bytes",
    ]
    memory_profiler_reason: Annotated[
        Text,
        "why it differs | why memory_profiler's increment is not profstack's, or why there is none",
        needs("memory"),
        empty("memory_profiler did not measure, or both agree on every line"),
        cell("both agree, or the line did not run in a slice of the memory layer"),
    ]
    memory_profiler_usage_bytes: Annotated[
        _ByMemoryProfiler,
        "RSS after (memory_profiler) | memory_profiler's usage of the line, the largest",
    ]
    memory_profiler_occurrences: Annotated[
        _ByMemoryProfiler, "runs seen (memory_profiler) | memory_profiler's occurrences of the line"
    ]
    startup_share: Annotated[
        _Watched,
        "start-up share (watch) | share of the watch's samples in the start-up",
        empty("the watch took no sample of the start-up in the script's own code"),
        cell("the watch took no sample of the start-up on it"),
    ]
    backward_s: Annotated[
        _Traced, "of it backward | the part of the time inside operators that is backward work"
    ]
    reason: Annotated[
        Text,
        "why not whole | why its count and times are not whole, or null",
        empty("no line was given up"),
        cell("its figures are whole"),
    ]
    samples: Annotated[
        CountedWhole,
        "by samples | runs that were timed, where the line ran too often to time each: its time is "
        "an estimate from them",
        layer("torch"),
        empty("every line was timed each time it ran"),
        cell("it was timed each time it ran, or not at all"),
    ]


class ModuleLineRow(TypedDict):
    """The part of a source line that ran inside one module."""

    module: Annotated[
        Text,
        "module path, or part of the step, that the time on the line was spent in",
        empty("every line ran outside every module"),
        cell("outside every module, backward pass and optimizer"),
    ]
    file: Annotated[str, "source file"]
    line: Annotated[Line, "line", layer("profstack")]
    calls: Annotated[
        Counted,
        "times run per step with the module as the innermost one",
        empty("every line ran too often to be counted"),
        cell("the line ran too often to be counted"),
    ]
    python_s: Annotated[Raw, "time outside operators"]
    operator_s: Annotated[Raw, "time inside operators"]
    backward_s: Annotated[Raw, "the part of the time inside operators that is backward work"]
    device_s: Annotated[Raw, "device time of kernels launched from the line"]


class MemoryRow(TypedDict):
    """Memory in use at one moment."""

    t_s: Annotated[Moment, "time | host time since the recording began"]
    step: Annotated[
        Fact, "step", empty("every sample lies outside the steps"), cell("outside every step")
    ]
    rss_bytes: Annotated[
        RawWhole,
        "resident set | resident set of the process, at edges of slices and by the watch",
        _NO_RSS,
        cell("it could not be read at that moment"),
    ]
    device_allocated_bytes: Annotated[RawWhole, "bytes in live tensors on the device"]
    device_reserved_bytes: Annotated[RawWhole, "bytes held by the device allocator"]


class MemoryOwnerRow(TypedDict):
    """Memory of one kind over the observed step."""

    device: _Holder
    kind: _HeldKind
    start_bytes: Annotated[RawWhole, "bytes of this kind at the start of the step"]
    peak_bytes: Annotated[RawWhole, "bytes of this kind at the moment of the step's peak"]
    largest_bytes: Annotated[RawWhole, "most bytes of this kind at any one moment of the step"]
    end_bytes: Annotated[RawWhole, "bytes of this kind at the end of the step"]


class PeakHolderRow(TypedDict):
    """Tensors alive at the peak of the observed step, by kind and maker."""

    device: _Holder
    kind: _HeldKind
    module: Annotated[
        Text,
        "module path or part of the step that made them",
        empty("nothing that is alive at the peak belongs to a module"),
        cell("it belongs to no module, or another thread took it"),
    ]
    operator: Annotated[
        Text,
        "operator that allocated them",
        _ALIVE_BEFORE,
        cell("it was alive before the step, or no operator took it"),
    ]
    backward: Annotated[
        Flag,
        "whether they were made in the backward pass",
        _ALIVE_BEFORE,
        cell("it was alive before the step"),
    ]
    tensors: Annotated[CountedWhole, "tensors alive at the peak"]
    bytes: Annotated[RawWhole, "at the peak | bytes of theirs alive at the peak"]
    share: Annotated[Raw, "share of the bytes alive at the peak"]


class CallPathRow(TypedDict):
    """A node of the tree from Python functions to operators to kernels."""

    node: Annotated[Fact, "number of the node, from 1"]
    parent: Annotated[
        Fact,
        "the node that called it, null for the outermost",
        cell("the profile saw no caller of it"),
    ]
    kind: Annotated[str, "function, operator or kernel"]
    name: Annotated[str, "function, operator or kernel"]
    file: Annotated[Text, "source file of a function", _NO_FUNCTION, cell(NO_FUNCTION)]
    line: Annotated[Fact, "line of a function's definition", _NO_FUNCTION, cell(NO_FUNCTION)]
    own: Annotated[_OwnFile, cell(NO_FUNCTION)]
    calls: Annotated[Counted, "calls per step on this path"]
    total_s: Annotated[_HostOnly, "host time with callees"]
    self_s: Annotated[_HostOnly, "host time without callees"]
    device_s: Annotated[Raw, "device time of kernels launched under it"]


class ThreadRow(TypedDict):
    """Threads of one kind and name."""

    kind: Annotated[
        str,
        "main, backward, DataLoader worker, DataLoader pin memory, profstack, native "
        "(begun by no Python code) or other",
    ]
    name: Annotated[str, "name of the thread, or of the process"]
    process: Annotated[
        OwnFact, "number of its process, the script's own is 0", cell("it has ended")
    ]
    threads: Annotated[
        CountedWhole, "threads of this kind and name", layer("profstack"), cell("they have ended")
    ]
    cpu_s: Annotated[
        Clean,
        "CPU | CPU time",
        cell("the process was never waited for, so its CPU time is not known"),
    ]
    share: Annotated[
        Clean,
        "share of the process tree's CPU time",
        empty("the CPU time of one of the processes is not known"),
    ]
    off_cpu_s: Annotated[
        _StepsThread,
        "did not run | time of a step in which the steps' thread did not run",
        empty("the CPU time of the steps' thread is not known, or not well enough"),
    ]
    no_core_s: Annotated[
        _StepsThread,
        "had no core | part of that in which it could have run but had no core",
        empty(
            "this system does not report how long a thread waits for a core, or the CPU time "
            "of the steps' thread is not known well enough"
        ),
    ]
    layers: Annotated[list[str], "layers that see its work"]
    note: Annotated[str, "what is not covered, and what to do"]


class LaunchRow(TypedDict):
    """Operators and launches of one step of the torch layer."""

    step: Annotated[Fact, "number of the step"]
    device: Annotated[Text, "device that the kernels ran on"]
    operators: Annotated[Counted, "operators called | operators called"]
    outermost_operators: Annotated[
        Counted, "of them outermost | those of them that no other operator called"
    ]
    operator_s: Annotated[
        Raw,
        "host time per operator | host time per operator; without a device the computing is in it",
    ]
    kernels: Annotated[Counted, "kernels launched | kernels launched", empty(NO_KERNEL)]
    launches: Annotated[_Launches, "launches that began them: one of a graph begins many kernels"]
    launch_s: Annotated[_LaunchTime, "host time per launch | host time per launch"]
    launches_total_s: Annotated[_LaunchTime, "host time of launches | host time of all launches"]
    launched_by: Annotated[
        Text,
        "what that time is of: runtime calls, or operators with kernels",
        empty(NO_KERNEL),
        cell(NO_LAUNCH),
    ]
    device_busy_s: Annotated[Raw, "time of the step in which a kernel ran"]
    device_idle_s: Annotated[Raw, "time of the step in which none ran; copies alone do not count"]


class GapRow(TypedDict):
    """Idle time of a device, by cause."""

    device: Annotated[Text, "device that was idle"]
    cause: GapCause
    count: Annotated[Counted, "gaps"]
    total_s: Annotated[Raw, "time the device was idle in them"]
    longest_s: Annotated[Raw, "the longest one"]
    after: Annotated[
        Text,
        "what ran before the longest one",
        empty("no kernel ran before"),
        cell("no kernel ran before it in the slice"),
    ]
    before: Annotated[
        Text,
        "what ran after it",
        empty("no kernel ran after"),
        cell("no kernel ran after it in the slice"),
    ]


# Why a rank's own page lacks them.
ALONE = "the recordings of the other ranks tell: profstack merge DIR"
_ALONE = empty(ALONE)
_NOT_MATCHED = cell("no step that all ranks recorded has it on all of them")
_Matched = Annotated[Raw, _ALONE, _NOT_MATCHED]


class CollectiveRow(TypedDict):
    """Collectives of one name and size; times are of a step."""

    name: Annotated[str, "collective, with the backend that does it"]
    bytes: Annotated[
        CountedWhole,
        "size | bytes of its tensors on this rank",
        empty("the profile has no inputs of it"),
        cell("the profile has no inputs of it"),
    ]
    calls: Annotated[Counted, "calls"]
    wall_s: Annotated[Raw, "time | time of its work, the wait for other ranks with it"]
    hidden_s: Annotated[
        Raw,
        "overlapped | time of that in which operators ran beside it; of work on a device, in "
        "which kernels that compute ran there",
        empty("this recording is older: of work on a device it did not say what ran beside it"),
        cell("this recording is older: of work on a device it did not say what ran beside it"),
    ]
    skew_s: Annotated[_Matched, "wait for the last | until the last rank came, mean of all"]
    transfer_s: Annotated[_Matched, "transfer | from then to the end on most ranks"]
    bytes_per_s: Annotated[_Matched, "bytes/s | its bytes over the transfer"]
    last_rank: Annotated[Fact, "comes last | rank that came last most often", _ALONE, _NOT_MATCHED]
    last_share: Annotated[_Matched, "of calls | share of its calls in which that one came last"]


class RegionRow(TypedDict):
    """A named range of the script's own."""

    path: Annotated[str, "region path"]
    source: Annotated[str, "what named it: profstack.region, record_function, torch.cuda.nvtx, ..."]
    calls: Annotated[_Entered, "calls per step"]
    wall_s: Annotated[_Entered, "host time"]
    operator_s: Annotated[_InRegion, "in operators | host time inside operators called in it"]
    device_s: Annotated[_InRegion, "device time of kernels launched in it"]
    flop: Annotated[
        Counted,
        "FLOP | floating-point operations",
        empty(
            "no operator with a formula was called in a region that the torch layer's "
            "slices entered"
        ),
        cell(
            "no operator that it calls has a formula for its operations, or no slice of the "
            "torch layer entered it on the steps' own thread"
        ),
    ]
    host_net_bytes: Annotated[
        Raw,
        "host memory kept | host bytes allocated less freed inside it",
        empty("the slices that watched memory entered no region"),
        cell("no slice that watched memory entered it on the steps' own thread"),
    ]
    threads: Annotated[
        Text,
        "threads that entered it",
        empty("the threads in a region are not known"),
        cell("its threads were not recorded separately"),
    ]
    measured_in: Annotated[str, "the slices that the figures are from"]


class RangeRow(TypedDict):
    """NVTX ranges of one kind and name that profstack emitted."""

    kind: Annotated[str, "step, module, forward, backward, optimizer or region"]
    name: Annotated[str, "name of the NVTX range"]
    calls: Annotated[
        Counted,
        "ranges per step; one that is open at a step's end is closed there and opened "
        "again, and counts in both steps",
    ]
    emit_s: Annotated[
        Raw,
        "emitting | host time spent on emitting them, per step",
        empty("emitting took no more than reading the clock does"),
        cell("no more than reading the clock takes"),
    ]


class WatchRow(TypedDict):
    """A function in the watch's samples."""

    phase: Annotated[
        str, "startup, step, other (between steps of a plan, and after them) or program"
    ]
    file: Annotated[str, "source file"]
    line: Annotated[Fact, "line of the function's definition"]
    name: Annotated[str, "function"]
    samples: Annotated[Raw, "samples in which it was on the stack"]
    self_share: Annotated[Raw, "share | share of the phase's samples in which it was innermost"]
    total_share: Annotated[
        Raw, "share with callees | share of the phase's samples in which it was on the stack"
    ]
    rss_bytes: Annotated[
        RawWhole,
        "RSS growth | growth of the resident set between samples that ended in it",
        _NO_RSS,
        cell("it was not the innermost function where the resident set was read"),
    ]


class OutlierRow(TypedDict):
    """A step that stands out."""

    index: Annotated[Fact, "step | number of the step"]
    wall_s: Annotated[Raw, "host time"]
    factor: Annotated[
        Raw, "of a clean step | that over the clean median", empty("there is no clean median")
    ]
    rss_bytes: Annotated[
        _Grown,
        "RSS growth | growth of the resident set over the step",
        empty(NO_SAMPLE),
        _NO_SAMPLE,
    ]
    samples: Annotated[_Watched, "samples of the watch in it", empty("the watch did not run then")]
    doing: Annotated[
        Text,
        "what it was doing | what most of them were doing: function and line, outermost first",
        needs("watch"),
        empty(NO_SAMPLE),
        _NO_SAMPLE,
    ]


class CounterRow(TypedDict):
    """A counter of floating-point operations."""

    counter: Annotated[str, "counter"]
    forward_flop: Annotated[
        CountedWhole, "operations in forward", cell("it counted nothing in forward")
    ]
    backward_flop: Annotated[
        CountedWhole,
        "operations in backward",
        empty("no backward pass was counted"),
        cell("it counted nothing in backward"),
    ]
    causal_forward_flop: Annotated[
        CountedWhole,
        "the same of forward, with attention called as causal counted as its mask leaves "
        "it; null without such attention",
        empty(
            "no attention was called as causal; of masks given as tensors, and of attention"
            " as products one by one, nothing tells what they leave out"
        ),
        _NOT_CAUSAL,
    ]
    causal_backward_flop: Annotated[
        CountedWhole,
        "the same of backward",
        empty("no attention was called as causal, or no backward pass counted"),
        _NOT_CAUSAL,
    ]
    forward_mac: Annotated[
        CountedWhole,
        "forward MAC | multiply-adds in forward; of flops-profiler, thop and fvcore the total that "
        "the tool itself gives, in which thop and fvcore have element-wise work too",
        empty("no counter gave multiply-adds in forward"),
        cell("it counted nothing in forward, or gives operations alone"),
    ]
    difference: Annotated[
        Text,
        "by how much its forward and backward differ from the record's, in which operators and why",
        empty("there is one counter with figures alone"),
        cell("it is the record, or has no figures"),
    ]
    uncounted: Annotated[
        list[UncountedOperator] | None,
        "operators without a formula: operator, calls, time_share",
        cell("it counted nothing"),
    ]
    note: Annotated[
        Text, "why it has no figures", empty("every counter has figures"), cell("it has figures")
    ]


class ArtifactRow(TypedDict):
    """A file in the recording that another tool opens."""

    layer: Annotated[str, "layer"]
    path: Annotated[str, "path inside the recording"]
    opens_in: Annotated[str, "tools that open it"]
    bytes: Annotated[Fact, "size"]
