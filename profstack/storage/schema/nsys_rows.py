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
    heading,
    layer,
    needs,
)
from profstack.storage.schema.rows import NOT_SEEN_BY_TORCH, GapCause

_NO_WORK = empty("the capture holds no work of a device")
_NO_RANGE = cell("Nsight Systems saw no range of it")
_IN_NO_RANGE = empty("nothing of it lies inside a range")
_NO_KINDS = empty("the file does not tell kinds of memory")

# Columns that several tables have, or several columns of one table are like.
_RangeKind = Annotated[
    Text,
    "kind of the innermost range it was called in, null outside all ranges",
    heading("kind of range"),
    _IN_NO_RANGE,
    cell("outside all ranges"),
]
_RangeName = Annotated[
    Text,
    "name of that range; of a module its path",
    heading("in range"),
    _IN_NO_RANGE,
    cell("outside all ranges"),
]
_DeviceTime = Annotated[Raw, "device time", heading("device time")]
_StepWork = Annotated[Raw, _NO_WORK, cell("no device did any work in the step")]
_TorchTime = Annotated[Raw, layer("torch"), cell(NOT_SEEN_BY_TORCH)]
_Compared = Annotated[Raw, "nsys over torch", layer("profstack"), needs("torch")]


class NsysModuleRow(TypedDict):
    """A module as Nsight Systems and the torch layer measured it."""

    path: Annotated[str, "module path", heading("module")]
    calls: Annotated[Counted, "calls per step that nsys saw", heading("calls (nsys)"), _NO_RANGE]
    torch_calls: Annotated[
        Counted,
        "calls per step that the torch layer saw",
        layer("torch"),
        heading("calls (torch)"),
        cell(NOT_SEEN_BY_TORCH),
    ]
    host_s: Annotated[
        Raw, "host time in forward by nsys, children included", heading("host (nsys)"), _NO_RANGE
    ]
    torch_host_s: Annotated[
        _TorchTime,
        "host time in forward by the torch layer, children included",
        heading("host (torch)"),
    ]
    host_ratio: Annotated[
        _Compared,
        empty("the torch layer has no time to compare with"),
        cell("one of the two did not see it run"),
    ]
    device_s: Annotated[
        Raw,
        "device time of kernels launched in forward, by nsys",
        heading("device (nsys)"),
        _NO_WORK,
        _NO_RANGE,
    ]
    torch_device_s: Annotated[
        _TorchTime,
        "the same by the torch layer",
        heading("device (torch)"),
        empty("the torch layer recorded no kernel"),
    ]
    device_ratio: Annotated[
        _Compared,
        empty("one of the two saw no work of a device"),
        cell("one of the two saw no kernel of it"),
    ]
    disagreement: Annotated[
        Text,
        "what the two differ in, and by how much; null where they agree",
        needs("torch"),
        empty("the two agree in every module"),
        cell("the two agree"),
    ]


class NsysStepRow(TypedDict):
    """A step of the capture."""

    step: Annotated[Fact, "number of the step under nsys"]
    device: Annotated[Text, "device", _NO_WORK, cell("no device did any work in the step")]
    started_s: Annotated[Moment, "since the capture began", heading("began")]
    wall_s: Annotated[Raw, "host time", heading("host time")]
    kernels: Annotated[
        Counted,
        "kernels launched in the step",
        _NO_WORK,
        cell("no device did any work in the step"),
    ]
    device_s: Annotated[
        _StepWork, "device time of these kernels, whenever they ran", heading("device time")
    ]
    busy_s: Annotated[_StepWork, "time of the step in which a kernel ran", heading("device busy")]
    idle_s: Annotated[
        _StepWork,
        "time of the step in which none ran; copies alone do not count",
        heading("device idle"),
    ]


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
    name: Annotated[str, "text of the range; of a module its path", heading("range")]
    style: Annotated[str, "push_pop, or start_end of one that need not nest"]
    on_steps_thread: Annotated[
        Flag, "whether its thread is the one that makes the steps", heading("steps' thread")
    ]
    calls: Annotated[Counted, "ranges per step"]
    wall_s: Annotated[Raw, "host time inside, ranges within it included", heading("host time")]
    self_s: Annotated[Raw, "host time inside without the rows below it"]
    api_calls: Annotated[
        Counted,
        "CUDA calls that began inside",
        heading("CUDA calls"),
        empty("the capture holds no CUDA call"),
    ]
    api_s: Annotated[
        Raw,
        "host time in them, also on threads without a range of their own",
        heading("in CUDA calls"),
        empty("the capture holds no CUDA call"),
    ]
    kernels: Annotated[Counted, "kernels launched inside, whenever they ran", _NO_WORK]
    device_s: Annotated[
        Raw, "device time of these kernels, added up over streams", heading("device time"), _NO_WORK
    ]
    elsewhere_s: Annotated[
        Raw,
        "the part of it that threads without a range of their own launched",
        heading("of it by other threads"),
        _NO_WORK,
    ]
    copies: Annotated[Counted, "copies and fills begun inside", _NO_WORK]
    copied_bytes: Annotated[Counted, "bytes copied", _NO_WORK]
    copies_s: Annotated[Raw, "device time of the copies and fills", heading("copying"), _NO_WORK]


class NsysKernelRow(TypedDict):
    """A kernel, by device, stream and innermost range."""

    name: Annotated[str, "kernel, or a graph that was traced as a whole"]
    device: Annotated[Text, "device"]
    stream: Annotated[Fact, "stream"]
    range_kind: _RangeKind
    range_name: _RangeName
    launched_by: Annotated[
        Text,
        "the CUDA call that launched it",
        empty("the launching calls are not in the file"),
        cell("the launching call is not in the file"),
    ]
    in_graph: Annotated[Flag, "whether it ran in a CUDA graph", heading("in a graph")]
    calls: Annotated[Counted, "kernels per step"]
    device_s: _DeviceTime
    longest_s: Annotated[Raw, "the longest one"]
    delay_s: Annotated[
        Raw,
        "mean time from the begin of the launching call to the kernel's begin",
        heading("delay after launch"),
        empty("the launching calls are not in the file"),
        cell("the launching call is not in the file"),
    ]


class NsysCopyRow(TypedDict):
    """Copies and fills of one kind."""

    direction: Annotated[
        str, "host to device, device to host, device to device, peer to peer, fill, ..."
    ]
    from_memory: Annotated[
        Text,
        "kind of memory read: pageable, pinned, device, managed, ...",
        heading("from"),
        _NO_KINDS,
        cell("a fill reads no memory, or the file does not tell"),
    ]
    to_memory: Annotated[
        Text, "kind of memory written", heading("to"), _NO_KINDS, cell("the file does not tell")
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
        "bytes per second of device time",
        heading("bytes per second"),
        empty("no copy took any time"),
        cell("it took no time"),
    ]


class NsysApiRow(TypedDict):
    """Calls of one function of CUDA, cuDNN, cuBLAS or the system."""

    library: Annotated[str, "cuda, cudnn, cublas or os"]
    name: Annotated[str, "function"]
    range_kind: _RangeKind
    range_name: _RangeName
    calls: Annotated[Counted, "calls per step"]
    host_s: Annotated[Raw, "host time inside", heading("host time")]
    longest_s: Annotated[Raw, "the longest call", heading("longest call")]
    failed: Annotated[
        Counted,
        "calls per step that returned an error",
        empty("the file does not tell which calls failed"),
        cell("it is not traced whether these calls fail"),
    ]


class NsysBacktraceRow(TypedDict):
    """Calls with the stack they came from."""

    source: Annotated[
        str, "cuda, os or cpu: calls of the device's runtime, of the system, or CPU samples"
    ]
    name: Annotated[
        Text,
        "the function called; null of CPU samples",
        heading("function called"),
        empty("all of them are CPU samples"),
        cell("a CPU sample belongs to no call"),
    ]
    stack: Annotated[
        list[str], "where from, innermost first: function and library", heading("called from")
    ]
    calls: Annotated[Counted, "calls or samples per step"]
    host_s: Annotated[
        Raw,
        "host time of the calls",
        heading("host time"),
        empty("all of them are CPU samples"),
        cell("a CPU sample has no duration"),
    ]


class NsysMemoryRow(TypedDict):
    """Memory held at one moment of the capture."""

    t_s: Annotated[Moment, "since the capture began", heading("time")]
    device: Annotated[Text, "device"]
    kind: Annotated[str, "kind of memory"]
    bytes: Annotated[
        CountedWhole, "bytes held, of those taken since the capture began", heading("held")
    ]


class NsysSampleRow(TypedDict):
    """CPU samples of one function."""

    symbol: Annotated[str, "function", heading("function")]
    library: Annotated[str, "library or program that it is in"]
    self_samples: Annotated[Raw, "samples per step in which it was innermost", heading("samples")]
    total_samples: Annotated[
        Raw, "samples per step in which it was on the stack", heading("samples with callees")
    ]
    self_share: Annotated[Raw, "share of all samples in which it was innermost", heading("share")]


class NsysGapRow(TypedDict):
    """Idle time of a device in the capture, by cause."""

    device: Annotated[Text, "device that was idle"]
    cause: GapCause
    count: Annotated[Counted, "gaps per step"]
    total_s: Annotated[Raw, "time the device was idle in them"]
    longest_s: Annotated[Raw, "the longest one"]
    after: Annotated[
        Text,
        "kernel before the longest one, and its range",
        empty("no kernel ran before"),
        cell("no kernel ran before it in the capture"),
    ]
    before: Annotated[
        Text,
        "kernel after it, and its range",
        empty("no kernel ran after"),
        cell("no kernel ran after it in the capture"),
    ]
