"""Rows of the report's tables of what Nsight Systems saw, per step of the capture."""

from __future__ import annotations

from typing import Annotated, TypedDict

from profstack.storage.schema.column import Column
from profstack.storage.schema.rows import NOT_SEEN_BY_TORCH


class NsysModuleRow(TypedDict):
    """A module as Nsight Systems and the torch layer measured it."""

    path: Annotated[str, Column("module path", heading="module")]
    calls: Annotated[
        float | None,
        Column(
            "calls per step that nsys saw",
            sense="counted",
            layer="nsys",
            heading="calls (nsys)",
            cell="Nsight Systems saw no range of it",
        ),
    ]
    torch_calls: Annotated[
        float | None,
        Column(
            "calls per step that the torch layer saw",
            sense="counted",
            layer="torch",
            heading="calls (torch)",
            cell=NOT_SEEN_BY_TORCH,
        ),
    ]
    host_s: Annotated[
        float | None,
        Column(
            "host time in forward by nsys, children included",
            sense="raw",
            layer="nsys",
            heading="host (nsys)",
            cell="Nsight Systems saw no range of it",
        ),
    ]
    torch_host_s: Annotated[
        float | None,
        Column(
            "host time in forward by the torch layer, children included",
            sense="raw",
            layer="torch",
            heading="host (torch)",
            cell=NOT_SEEN_BY_TORCH,
        ),
    ]
    host_ratio: Annotated[
        float | None,
        Column(
            "nsys over torch",
            sense="raw",
            layer="profstack",
            needs="torch",
            heading="host ratio",
            empty="the torch layer has no time to compare with",
            cell="one of the two did not see it run",
        ),
    ]
    device_s: Annotated[
        float | None,
        Column(
            "device time of kernels launched in forward, by nsys",
            sense="raw",
            layer="nsys",
            heading="device (nsys)",
            empty="the capture holds no work of a device",
            cell="Nsight Systems saw no range of it",
        ),
    ]
    torch_device_s: Annotated[
        float | None,
        Column(
            "the same by the torch layer",
            sense="raw",
            layer="torch",
            heading="device (torch)",
            empty="the torch layer recorded no kernel",
            cell=NOT_SEEN_BY_TORCH,
        ),
    ]
    device_ratio: Annotated[
        float | None,
        Column(
            "nsys over torch",
            sense="raw",
            layer="profstack",
            needs="torch",
            heading="device ratio",
            empty="one of the two saw no work of a device",
            cell="one of the two saw no kernel of it",
        ),
    ]
    disagreement: Annotated[
        str | None,
        Column(
            "what the two differ in, and by how much; null where they agree",
            needs="torch",
            empty="the two agree in every module",
            cell="the two agree",
        ),
    ]


class NsysStepRow(TypedDict):
    """A step of the capture."""

    step: Annotated[int | None, Column("number of the step under nsys", sense="fact", layer="nsys")]
    device: Annotated[
        str | None,
        Column(
            "device",
            empty="the capture holds no work of a device",
            cell="no device did any work in the step",
        ),
    ]
    started_s: Annotated[
        float | None, Column("since the capture began", sense="fact", layer="nsys", heading="began")
    ]
    wall_s: Annotated[
        float | None, Column("host time", sense="raw", layer="nsys", heading="host time")
    ]
    kernels: Annotated[
        float | None,
        Column(
            "kernels launched in the step",
            sense="counted",
            layer="nsys",
            empty="the capture holds no work of a device",
            cell="no device did any work in the step",
        ),
    ]
    device_s: Annotated[
        float | None,
        Column(
            "device time of these kernels, whenever they ran",
            sense="raw",
            layer="nsys",
            heading="device time",
            empty="the capture holds no work of a device",
            cell="no device did any work in the step",
        ),
    ]
    busy_s: Annotated[
        float | None,
        Column(
            "time of the step in which a kernel ran",
            sense="raw",
            layer="nsys",
            heading="device busy",
            empty="the capture holds no work of a device",
            cell="no device did any work in the step",
        ),
    ]
    idle_s: Annotated[
        float | None,
        Column(
            "time of the step in which none ran; copies alone do not count",
            sense="raw",
            layer="nsys",
            heading="device idle",
            empty="the capture holds no work of a device",
            cell="no device did any work in the step",
        ),
    ]


class NsysRangeRow(TypedDict):
    """An NVTX range, by its place among other ranges."""

    node: Annotated[int | None, Column("number of the row, from 1", sense="fact", layer="nsys")]
    parent: Annotated[
        int | None,
        Column(
            "the row of the range around it, null for the outermost",
            sense="fact",
            layer="nsys",
            empty="no range lies inside another",
            cell="it lies in no other range",
        ),
    ]
    domain: Annotated[str, Column("NVTX domain")]
    kind: Annotated[
        str, Column("step, module, forward, backward, optimizer, region, or another's category")
    ]
    name: Annotated[str, Column("text of the range; of a module its path", heading="range")]
    style: Annotated[str, Column("push_pop, or start_end of one that need not nest")]
    on_steps_thread: Annotated[
        bool | None,
        Column("whether its thread is the one that makes the steps", heading="steps' thread"),
    ]
    calls: Annotated[float | None, Column("ranges per step", sense="counted", layer="nsys")]
    wall_s: Annotated[
        float | None,
        Column(
            "host time inside, ranges within it included",
            sense="raw",
            layer="nsys",
            heading="host time",
        ),
    ]
    self_s: Annotated[
        float | None,
        Column(
            "host time inside without the rows below it", sense="raw", layer="nsys", heading="self"
        ),
    ]
    api_calls: Annotated[
        float | None,
        Column(
            "CUDA calls that began inside",
            sense="counted",
            layer="nsys",
            heading="CUDA calls",
            empty="the capture holds no CUDA call",
        ),
    ]
    api_s: Annotated[
        float | None,
        Column(
            "host time in them, also on threads without a range of their own",
            sense="raw",
            layer="nsys",
            heading="in CUDA calls",
            empty="the capture holds no CUDA call",
        ),
    ]
    kernels: Annotated[
        float | None,
        Column(
            "kernels launched inside, whenever they ran",
            sense="counted",
            layer="nsys",
            empty="the capture holds no work of a device",
        ),
    ]
    device_s: Annotated[
        float | None,
        Column(
            "device time of these kernels, added up over streams",
            sense="raw",
            layer="nsys",
            heading="device time",
            empty="the capture holds no work of a device",
        ),
    ]
    elsewhere_s: Annotated[
        float | None,
        Column(
            "the part of it that threads without a range of their own launched",
            sense="raw",
            layer="nsys",
            heading="of it by other threads",
            empty="the capture holds no work of a device",
        ),
    ]
    copies: Annotated[
        float | None,
        Column(
            "copies and fills begun inside",
            sense="counted",
            layer="nsys",
            empty="the capture holds no work of a device",
        ),
    ]
    copied_bytes: Annotated[
        float | None,
        Column(
            "bytes copied",
            sense="counted",
            layer="nsys",
            heading="copied",
            empty="the capture holds no work of a device",
        ),
    ]
    copies_s: Annotated[
        float | None,
        Column(
            "device time of the copies and fills",
            sense="raw",
            layer="nsys",
            heading="copying",
            empty="the capture holds no work of a device",
        ),
    ]


class NsysKernelRow(TypedDict):
    """A kernel, by device, stream and innermost range."""

    name: Annotated[str, Column("kernel, or a graph that was traced as a whole")]
    device: Annotated[str | None, Column("device")]
    stream: Annotated[int | None, Column("stream", sense="fact", layer="nsys")]
    range_kind: Annotated[
        str | None,
        Column(
            "kind of the innermost range it was called in, null outside all ranges",
            heading="kind of range",
            empty="nothing of it lies inside a range",
            cell="outside all ranges",
        ),
    ]
    range_name: Annotated[
        str | None,
        Column(
            "name of that range; of a module its path",
            heading="in range",
            empty="nothing of it lies inside a range",
            cell="outside all ranges",
        ),
    ]
    launched_by: Annotated[
        str | None,
        Column(
            "the CUDA call that launched it",
            heading="launched by",
            empty="the launching calls are not in the file",
            cell="the launching call is not in the file",
        ),
    ]
    in_graph: Annotated[bool | None, Column("whether it ran in a CUDA graph", heading="in a graph")]
    calls: Annotated[float | None, Column("kernels per step", sense="counted", layer="nsys")]
    device_s: Annotated[
        float | None, Column("device time", sense="raw", layer="nsys", heading="device time")
    ]
    longest_s: Annotated[float | None, Column("the longest one", sense="raw", layer="nsys")]
    delay_s: Annotated[
        float | None,
        Column(
            "mean time from the begin of the launching call to the kernel's begin",
            sense="raw",
            layer="nsys",
            heading="delay after launch",
            empty="the launching calls are not in the file",
            cell="the launching call is not in the file",
        ),
    ]


class NsysCopyRow(TypedDict):
    """Copies and fills of one kind."""

    direction: Annotated[
        str, Column("host to device, device to host, device to device, peer to peer, fill, ...")
    ]
    from_memory: Annotated[
        str | None,
        Column(
            "kind of memory read: pageable, pinned, device, managed, ...",
            heading="from",
            empty="the file does not tell kinds of memory",
            cell="a fill reads no memory, or the file does not tell",
        ),
    ]
    to_memory: Annotated[
        str | None,
        Column(
            "kind of memory written",
            heading="to",
            empty="the file does not tell kinds of memory",
            cell="the file does not tell",
        ),
    ]
    device: Annotated[str | None, Column("device")]
    range_kind: Annotated[
        str | None,
        Column(
            "kind of the innermost range it was called in, null outside all ranges",
            heading="kind of range",
            empty="nothing of it lies inside a range",
            cell="outside all ranges",
        ),
    ]
    range_name: Annotated[
        str | None,
        Column(
            "name of that range; of a module its path",
            heading="in range",
            empty="nothing of it lies inside a range",
            cell="outside all ranges",
        ),
    ]
    calls: Annotated[
        float | None, Column("copies or fills per step", sense="counted", layer="nsys")
    ]
    bytes: Annotated[float | None, Column("bytes per step", sense="counted", layer="nsys")]
    device_s: Annotated[
        float | None, Column("device time", sense="raw", layer="nsys", heading="device time")
    ]
    longest_s: Annotated[
        float | None,
        Column(
            "the longest one; of copies that the file has as one, all of them",
            sense="raw",
            layer="nsys",
        ),
    ]
    bytes_per_s: Annotated[
        float | None,
        Column(
            "bytes per second of device time",
            sense="raw",
            layer="nsys",
            heading="bytes per second",
            empty="no copy took any time",
            cell="it took no time",
        ),
    ]


class NsysApiRow(TypedDict):
    """Calls of one function of CUDA, cuDNN, cuBLAS or the system."""

    library: Annotated[str, Column("cuda, cudnn, cublas or os")]
    name: Annotated[str, Column("function")]
    range_kind: Annotated[
        str | None,
        Column(
            "kind of the innermost range it was called in, null outside all ranges",
            heading="kind of range",
            empty="nothing of it lies inside a range",
            cell="outside all ranges",
        ),
    ]
    range_name: Annotated[
        str | None,
        Column(
            "name of that range; of a module its path",
            heading="in range",
            empty="nothing of it lies inside a range",
            cell="outside all ranges",
        ),
    ]
    calls: Annotated[float | None, Column("calls per step", sense="counted", layer="nsys")]
    host_s: Annotated[
        float | None, Column("host time inside", sense="raw", layer="nsys", heading="host time")
    ]
    longest_s: Annotated[
        float | None, Column("the longest call", sense="raw", layer="nsys", heading="longest call")
    ]
    failed: Annotated[
        float | None,
        Column(
            "calls per step that returned an error",
            sense="counted",
            layer="nsys",
            empty="the file does not tell which calls failed",
            cell="it is not traced whether these calls fail",
        ),
    ]


class NsysBacktraceRow(TypedDict):
    """Calls with the stack they came from."""

    source: Annotated[
        str, Column("cuda, os or cpu: calls of the device's runtime, of the system, or CPU samples")
    ]
    name: Annotated[
        str | None,
        Column(
            "the function called; null of CPU samples",
            heading="function called",
            empty="all of them are CPU samples",
            cell="a CPU sample belongs to no call",
        ),
    ]
    stack: Annotated[
        list[str],
        Column("where from, innermost first: function and library", heading="called from"),
    ]
    calls: Annotated[
        float | None, Column("calls or samples per step", sense="counted", layer="nsys")
    ]
    host_s: Annotated[
        float | None,
        Column(
            "host time of the calls",
            sense="raw",
            layer="nsys",
            heading="host time",
            empty="all of them are CPU samples",
            cell="a CPU sample has no duration",
        ),
    ]


class NsysMemoryRow(TypedDict):
    """Memory held at one moment of the capture."""

    t_s: Annotated[
        float | None, Column("since the capture began", sense="fact", layer="nsys", heading="time")
    ]
    device: Annotated[str | None, Column("device")]
    kind: Annotated[str, Column("kind of memory")]
    bytes: Annotated[
        int | None,
        Column(
            "bytes held, of those taken since the capture began",
            sense="counted",
            layer="nsys",
            heading="held",
        ),
    ]


class NsysSampleRow(TypedDict):
    """CPU samples of one function."""

    symbol: Annotated[str, Column("function", heading="function")]
    library: Annotated[str, Column("library or program that it is in")]
    self_samples: Annotated[
        float | None,
        Column(
            "samples per step in which it was innermost",
            sense="raw",
            layer="nsys",
            heading="samples",
        ),
    ]
    total_samples: Annotated[
        float | None,
        Column(
            "samples per step in which it was on the stack",
            sense="raw",
            layer="nsys",
            heading="samples with callees",
        ),
    ]
    self_share: Annotated[
        float | None,
        Column(
            "share of all samples in which it was innermost",
            sense="raw",
            layer="nsys",
            heading="share",
        ),
    ]


class NsysGapRow(TypedDict):
    """Idle time of a device in the capture, by cause."""

    device: Annotated[str | None, Column("device that was idle")]
    cause: Annotated[
        str,
        Column(
            "host late, synchronisation, copy, data wait, start of step or queued (the next "
            "kernel was launched before the device fell idle)"
        ),
    ]
    count: Annotated[float | None, Column("gaps per step", sense="counted", layer="nsys")]
    total_s: Annotated[
        float | None, Column("time the device was idle in them", sense="raw", layer="nsys")
    ]
    longest_s: Annotated[float | None, Column("the longest one", sense="raw", layer="nsys")]
    after: Annotated[
        str | None,
        Column(
            "kernel before the longest one, and its range",
            empty="no kernel ran before",
            cell="no kernel ran before it in the capture",
        ),
    ]
    before: Annotated[
        str | None,
        Column(
            "kernel after it, and its range",
            empty="no kernel ran after",
            cell="no kernel ran after it in the capture",
        ),
    ]
