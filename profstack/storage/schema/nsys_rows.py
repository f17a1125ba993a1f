"""Rows of the report's tables of what Nsight Systems saw, per step of the capture."""

from __future__ import annotations

from typing import Annotated, TypedDict

from profstack.storage.schema.column import (
    Counted,
    CountedWhole,
    Fact,
    Flag,
    Moment,
    Raw,
    Text,
    cell,
    empty,
    layer,
    needs,
)
from profstack.storage.schema.rows import NOT_SEEN_BY_TORCH, GapCause

_NO_WORK = empty("the capture holds no work of a device")
_NO_RANGE = cell("Nsight Systems saw no range of it")
_NO_CALL = empty("the capture holds no CUDA call")
_LAUNCHES_UNKNOWN = empty("the launching calls are not in the file")
_LAUNCH_UNKNOWN = cell("the launching call is not in the file")
_NO_KINDS = empty("the file does not say kinds of memory")

# What several columns have in common.
_InRange = Annotated[Text, empty("nothing of it lies inside a range"), cell("outside all ranges")]
_RangeKind = Annotated[
    _InRange,
    "kind of range | kind of the innermost range it was called in, null outside all ranges",
]
_RangeName = Annotated[_InRange, "in range | name of that range; of a module its path"]
_DeviceTime = Annotated[Raw, "device time | device time"]
_NOT_IN_STEP = cell("no device did any work in the step")
_StepWork = Annotated[Raw, _NO_WORK, _NOT_IN_STEP]
_TorchTime = Annotated[Raw, layer("torch"), cell(NOT_SEEN_BY_TORCH)]
_Compared = Annotated[Raw, "nsys over torch", layer("profstack"), needs("torch")]
_Process = Annotated[
    Fact, "number of the process", empty("the import is of an older version: of one process")
]
_Shortest = Annotated[Raw, "shortest | the shortest one"]
_Longest = Annotated[Raw, "longest | the longest one"]
_Deviation = Annotated[
    Raw, "deviation | standard deviation", empty("there is one of each"), cell("there is one")
]
_FullyIdle = Annotated[Raw, "without copies | the part of it in which no copy ran either"]
_After = Annotated[
    Text, empty("no kernel ran before"), cell("no kernel ran before it in the capture")
]
_Before = Annotated[
    Text, empty("no kernel ran after"), cell("no kernel ran after it in the capture")
]
_NO_LATER = empty("the import is of an older version")


class NsysModuleRow(TypedDict):
    """A module as Nsight Systems and the torch layer measured it."""

    path: Annotated[str, "module | module path"]
    calls: Annotated[Counted, "calls (nsys) | calls per step that nsys saw", _NO_RANGE]
    torch_calls: Annotated[
        Counted,
        "calls (torch) | calls per step that the torch layer saw",
        layer("torch"),
        cell(NOT_SEEN_BY_TORCH),
    ]
    host_s: Annotated[
        Raw, "host (nsys) | host time in forward by nsys, children included", _NO_RANGE
    ]
    host_reach_s: Annotated[
        Raw,
        "± (nsys) | half of the 95 % interval of the host time by nsys, over its steps",
        empty("the capture has fewer than two steps, or is an older import"),
        _NO_RANGE,
    ]
    torch_host_s: Annotated[
        _TorchTime, "host (torch) | host time in forward by the torch layer, children included"
    ]
    torch_host_reach_s: Annotated[
        _TorchTime,
        "± (torch) | the same by the torch layer, over its slices and steps",
        empty("the torch layer's slices have fewer than two steps"),
    ]
    host_ratio: Annotated[
        _Compared,
        empty("the torch layer has no time to compare with"),
        cell("one of the two did not see it run"),
    ]
    device_s: Annotated[
        Raw,
        "device (nsys) | device time of kernels launched in forward, by nsys",
        _NO_WORK,
        _NO_RANGE,
    ]
    torch_device_s: Annotated[
        _TorchTime,
        "device (torch) | the same by the torch layer",
        empty("the torch layer recorded no kernel"),
    ]
    device_ratio: Annotated[
        _Compared,
        empty("one of the two saw no work of a device"),
        cell("one of the two saw no kernel of it"),
    ]
    disagreement: Annotated[
        Text,
        "what the two differ in, and by how much; null where no difference is beyond chance",
        needs("torch"),
        empty("no difference is beyond chance, or the two are not of the same steps"),
        cell("no difference is beyond chance"),
    ]


class NsysProcessRow(TypedDict):
    """A process of the capture, by device."""

    process: _Process
    device: Annotated[Text, "device", _NO_WORK, cell("it worked on no device")]
    steps: Annotated[Fact, "steps that its figures are means of; 0 for the whole capture"]
    own_steps: Annotated[Flag, "own steps | whether it makes them itself"]
    wall_s: Annotated[Raw, "host time | host time of a step, or of the capture"]
    ranges: Annotated[Counted, "NVTX ranges"]
    api_calls: Annotated[
        Counted, "CUDA calls | calls of CUDA", _NO_CALL, cell("it made no CUDA call")
    ]
    kernels: Annotated[Counted, "kernels", _NO_WORK, cell("it worked on no device")]
    device_s: Annotated[
        Raw, "device time | device time of the kernels", _NO_WORK, cell("it worked on no device")
    ]
    busy_s: Annotated[
        Raw,
        "device busy | time in which one of them ran",
        _NO_WORK,
        cell("it worked on no device"),
    ]
    copies: Annotated[Counted, "copies and fills", _NO_WORK, cell("it worked on no device")]
    copies_s: Annotated[
        Raw, "copying | device time of these", _NO_WORK, cell("it worked on no device")
    ]


class NsysStepRow(TypedDict):
    """A step of the capture."""

    step: Annotated[Fact, "number of the step under nsys"]
    device: Annotated[Text, "device", _NO_WORK, _NOT_IN_STEP]
    started_s: Annotated[Moment, "began | since the capture began"]
    wall_s: Annotated[Raw, "host time | host time"]
    kernels: Annotated[Counted, "kernels launched in the step", _NO_WORK, _NOT_IN_STEP]
    device_s: Annotated[_StepWork, "device time | device time of these kernels, whenever they ran"]
    busy_s: Annotated[_StepWork, "device busy | time of the step in which a kernel or fill ran"]
    idle_s: Annotated[
        _StepWork, "device idle | time of the step in which none ran, though a copy may have"
    ]
    fully_idle_s: Annotated[
        _StepWork,
        "idle without copies | time of the step in which neither a kernel, a fill nor a copy ran",
    ]
    process: _Process


class NsysRangeRow(TypedDict):
    """An NVTX range, by its place among other ranges."""

    node: Annotated[Fact, "number of the row, from 1"]
    parent: Annotated[
        Fact,
        "the row of the range around it, null for the outermost",
        empty("no range lies inside another"),
        cell("it lies in no other range"),
    ]
    domain: Annotated[str, "NVTX domain"]
    kind: Annotated[
        str, "step, module, forward, backward, optimizer, region, or another's category"
    ]
    name: Annotated[str, "range | text of the range; of a module its path"]
    style: Annotated[str, "push_pop, or start_end of one that need not nest"]
    on_steps_thread: Annotated[
        Flag, "steps' thread | whether its thread is the one that makes the steps"
    ]
    first_number: Annotated[
        Fact,
        "first number | lowest running number that its name had",
        empty("no name has a running number"),
        cell("its name has no running number"),
    ]
    last_number: Annotated[
        Fact,
        "last number | highest running number that its name had",
        empty("no name has a running number"),
        cell("its name has no running number"),
    ]
    calls: Annotated[Counted, "ranges per step"]
    wall_s: Annotated[Raw, "host time | host time inside, ranges within it included"]
    self_s: Annotated[Raw, "host time inside without the rows below it"]
    median_s: Annotated[
        Raw, "median | median host time of one", _NO_LATER, cell("not known of rows added up")
    ]
    shortest_s: Annotated[_Shortest, _NO_LATER, cell("not known of rows added up")]
    longest_s: Annotated[_Longest, _NO_LATER, cell("not known of rows added up")]
    deviation_s: _Deviation
    step_deviation_s: Annotated[
        Raw,
        "deviation of steps | standard deviation of its host time per step",
        empty("the capture has fewer than two steps"),
        cell("not known of rows added up"),
    ]
    api_calls: Annotated[Counted, "CUDA calls | CUDA calls that began inside", _NO_CALL]
    api_s: Annotated[
        Raw,
        "in CUDA calls | host time in them, also on threads without a range of their own",
        _NO_CALL,
    ]
    kernels: Annotated[Counted, "kernels launched inside, whenever they ran", _NO_WORK]
    device_s: Annotated[
        Raw, "device time | device time of these kernels, added up over streams", _NO_WORK
    ]
    projected_s: Annotated[
        Raw,
        "on the device | from the begin of the first device work launched inside to the end of the "
        "last; of several ranges added up",
        _NO_WORK,
    ]
    elsewhere_s: Annotated[
        Raw,
        "of it by other threads | "
        "the part of it that threads without a range of their own launched",
        _NO_WORK,
    ]
    copies: Annotated[Counted, "copies and fills begun inside", _NO_WORK]
    copied_bytes: Annotated[Counted, "bytes copied", _NO_WORK]
    copies_s: Annotated[Raw, "copying | device time of the copies and fills", _NO_WORK]
    process: _Process


class NsysStatRow(TypedDict):
    """Kernels, copies or calls of one name, as `nsys stats` has them."""

    kind: Annotated[
        str, "kernel, graph, copy, fill, wait, or a library of calls: cuda, cudnn, cublas, os"
    ]
    name: Annotated[str, "kernel, kind of copy, or function"]
    device: Annotated[Text, "device", _NO_WORK, cell("a call is the host's")]
    calls: Annotated[Counted, "how many per step"]
    total_s: Annotated[
        Raw, "time | their time: of kernels and copies device time, of calls host time"
    ]
    share: Annotated[
        Raw,
        "share of the time of all of this kind",
        empty("nothing took any time"),
        cell("nothing of this kind took any time"),
    ]
    mean_s: Annotated[Raw, "mean | mean time of one"]
    median_s: Annotated[Raw, "median | median time of one"]
    shortest_s: _Shortest
    longest_s: _Longest
    deviation_s: _Deviation
    process: _Process


class NsysKernelRow(TypedDict):
    """A kernel, by device, stream and innermost range."""

    name: Annotated[str, "kernel, or a graph that was traced as a whole"]
    device: Annotated[Text, "device"]
    stream: Annotated[Fact, "stream"]
    range_kind: _RangeKind
    range_name: _RangeName
    launched_by: Annotated[
        Text, "the CUDA call that launched it", _LAUNCHES_UNKNOWN, _LAUNCH_UNKNOWN
    ]
    in_graph: Annotated[
        Flag, "in a graph | whether it ran in a CUDA graph", cell("not known of rows added up")
    ]
    grid: Annotated[
        Text,
        "blocks in x, y and z",
        empty("the file does not say how kernels were launched"),
        cell("a graph has none of its own, and rows added up have several"),
    ]
    block: Annotated[
        Text,
        "threads of a block in x, y and z",
        empty("the file does not say how kernels were launched"),
        cell("a graph has none of its own, and rows added up have several"),
    ]
    calls: Annotated[Counted, "kernels per step"]
    device_s: _DeviceTime
    longest_s: Annotated[Raw, "the longest one"]
    delay_s: Annotated[
        Raw,
        "delay after launch | mean time from the begin of the launching call to the kernel's begin",
        _LAUNCHES_UNKNOWN,
        _LAUNCH_UNKNOWN,
    ]
    process: _Process


class NsysCopyRow(TypedDict):
    """Copies and fills of one kind."""

    direction: Annotated[
        str, "host to device, device to host, device to device, peer to peer, fill, ..."
    ]
    from_memory: Annotated[
        Text,
        "from | kind of memory read: pageable, pinned, device, managed, ...",
        _NO_KINDS,
        cell("a fill reads no memory, or the file does not say"),
    ]
    to_memory: Annotated[
        Text, "to | kind of memory written", _NO_KINDS, cell("the file does not say")
    ]
    device: Annotated[Text, "device"]
    range_kind: _RangeKind
    range_name: _RangeName
    calls: Annotated[Counted, "copies or fills per step"]
    bytes: Annotated[Counted, "bytes per step"]
    device_s: _DeviceTime
    longest_s: Annotated[Raw, "the longest one; of copies that the file has as one, all of them"]
    bytes_per_s: Annotated[
        Raw,
        "bytes per second | bytes per second of device time",
        empty("no copy took any time"),
        cell("it took no time"),
    ]
    process: _Process


class NsysApiRow(TypedDict):
    """Calls of one function of CUDA, cuDNN, cuBLAS or the system."""

    library: Annotated[str, "cuda, cudnn, cublas or os"]
    name: Annotated[str, "function"]
    range_kind: _RangeKind
    range_name: _RangeName
    calls: Annotated[Counted, "calls per step"]
    host_s: Annotated[Raw, "host time | host time inside"]
    longest_s: Annotated[Raw, "longest call | the longest call"]
    failed: Annotated[
        Counted,
        "calls per step that returned an error",
        empty("the file does not say which calls failed"),
        cell("it is not traced whether these calls fail"),
    ]
    process: _Process


class NsysWaitRow(TypedDict):
    """Waits for a device, by kind and innermost range."""

    kind: Annotated[
        str,
        "event, stream or context sync: the host waits; stream wait sync: a stream waits for an "
        "event",
    ]
    device: Annotated[Text, "device"]
    stream: Annotated[
        Fact,
        "stream",
        empty("all waits are for whole contexts"),
        cell("a wait for a whole context has none"),
    ]
    called: Annotated[
        Text, "called by | the CUDA call that waited", _LAUNCHES_UNKNOWN, _LAUNCH_UNKNOWN
    ]
    range_kind: _RangeKind
    range_name: _RangeName
    calls: Annotated[Counted, "waits per step"]
    wait_s: Annotated[Raw, "time waited | time in them"]
    longest_s: _Longest
    process: _Process


class NsysCommunicationRow(TypedDict):
    """Kernels that communicate between devices, and what ran on the device meanwhile."""

    device: Annotated[Text, "device"]
    collective: Annotated[str, "AllReduce, AllGather, ...: as the kernel's name has it"]
    calls: Annotated[Counted, "kernels per step"]
    device_s: Annotated[Raw, "device time | device time, added up over streams"]
    busy_s: Annotated[Raw, "time | time in which one of them ran"]
    overlapped_s: Annotated[
        Raw, "overlapped | the part of it in which a kernel of another kind ran on the device"
    ]
    exposed_s: Annotated[Raw, "exposed | the part of it in which none did"]
    overlapped_share: Annotated[
        Raw, "overlapped share | share of the time that was overlapped", cell("it took no time")
    ]
    process: _Process


class NsysBacktraceRow(TypedDict):
    """Calls with the stack they came from."""

    source: Annotated[
        str, "cuda, os or cpu: calls of the device's runtime, of the system, or CPU samples"
    ]
    name: Annotated[
        Text,
        "function called | the function called; null of CPU samples",
        empty("all of them are CPU samples"),
        cell("a CPU sample belongs to no call"),
    ]
    stack: Annotated[list[str], "called from | where from, innermost first: function and library"]
    calls: Annotated[Counted, "calls or samples per step"]
    host_s: Annotated[
        Raw,
        "host time | host time of the calls",
        empty("all of them are CPU samples"),
        cell("a CPU sample has no duration"),
    ]
    process: _Process


class NsysMemoryRow(TypedDict):
    """Memory held at one moment of the capture."""

    t_s: Annotated[Moment, "time | since the capture began"]
    device: Annotated[Text, "device"]
    kind: Annotated[str, "kind of memory"]
    bytes: Annotated[CountedWhole, "held | bytes held, of those taken since the capture began"]
    process: _Process


class NsysSampleRow(TypedDict):
    """CPU samples of one function."""

    symbol: Annotated[str, "function | function"]
    library: Annotated[str, "library or program that it is in"]
    self_samples: Annotated[Raw, "samples | samples per step in which it was innermost"]
    total_samples: Annotated[
        Raw, "samples with callees | samples per step in which it was on the stack"
    ]
    self_share: Annotated[
        Raw, "share | share of all samples of the process in which it was innermost"
    ]
    process: _Process


class NsysGapRow(TypedDict):
    """Idle time of a device in the capture, by cause."""

    device: Annotated[Text, "device that was idle"]
    cause: GapCause
    count: Annotated[Counted, "gaps per step"]
    total_s: Annotated[Raw, "idle | time in which the device ran no kernel or fill"]
    fully_idle_s: _FullyIdle
    longest_s: Annotated[Raw, "the longest one"]
    after: Annotated[_After, "kernel or fill before the longest one, and its range"]
    before: Annotated[_Before, "kernel or fill after it, and its range"]
    process: _Process


class NsysLongestGapRow(TypedDict):
    """One of the longest times in which a device ran no kernel or fill."""

    started_s: Annotated[Moment, "began | since the capture began"]
    gap_s: Annotated[Raw, "idle | how long it lasted, between steps too"]
    fully_idle_s: _FullyIdle
    cause: GapCause
    step: Annotated[
        Fact,
        "number of the step it began in",
        empty("the capture has no steps"),
        cell("it began between steps"),
    ]
    device: Annotated[Text, "device that was idle"]
    after: Annotated[_After, "kernel or fill before it, and its range"]
    before: Annotated[_Before, "kernel or fill after it, and its range"]
    process: _Process
