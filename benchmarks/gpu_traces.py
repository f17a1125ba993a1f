"""Draw traces as torch.profiler writes them on GPUs, for benchmarks on machines without one.

A host launches kernels, copies and fills. It is late, waits for the device, or runs ahead; work is
queued behind that of its stream, or waits for another one. All is drawn from a seed, in integer
nanoseconds, so that what a tool makes of the trace can be held against `Trace.work`.

Families: `one stream` has kernels alone, `graphs` also launches of CUDA graphs, `streams` several
streams and NCCL's kernels, `whole us` the same in whole microseconds (kernels may touch or take no
time), `copies` copies and fills. In these the steps begin and end with the device's work; in
`borders` they begin earlier, and end before the device does or after it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Span = tuple[int, int]

# The ranks of a launch of each family.
FAMILIES = {"one stream": 1, "graphs": 1, "streams": 3, "whole us": 2, "copies": 2, "borders": 1}
KERNEL, COMMUNICATION, COPY, SET = "kernel", "communication", "gpu_memcpy", "gpu_memset"
_KINDS = {
    **dict.fromkeys(("streams", "whole us"), (KERNEL,) * 6 + (COMMUNICATION,)),
    "copies": (KERNEL,) * 5 + (COPY, SET),
}
# The ranges around NCCL's kernels, by kernel.
NCCL = {
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "nccl:all_reduce",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "nccl:all_gather",
}
_NAMES = {
    KERNEL: (
        "ampere_sgemm_128x64_tn",
        "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int)",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float)",
        "void at::native::multi_tensor_apply_kernel<at::native::AdamFunctor>(float)",
        "triton_poi_fused_relu_0",
    ),
    COMMUNICATION: (*NCCL,),
    COPY: ("Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pinned)"),
    SET: ("Memset (Device)",),
}
_CALLS = {KERNEL: "cudaLaunchKernel", COMMUNICATION: "cudaLaunchKernelExC"}
_CALLS |= {COPY: "cudaMemcpyAsync", SET: "cudaMemsetAsync"}
_STREAMS = {KERNEL: (7, 20, 21), COMMUNICATION: (24,), COPY: (7, 28), SET: (7,)}
# Time between queued work of a stream.
_QUEUED = (4, 29), (30, 900), (1_000, 29_000), (31_000, 60_000)
_BASE_NS = 1_763_000_000_000_000_000
FIRST_NS = 2_100_000_000_000


@dataclass(frozen=True)
class Work:
    """A kernel, copy or fill: its time on the device, and that of the call that launched it."""

    kind: str
    name: str
    stream: int
    start: int
    end: int
    launch: int
    launched: int


@dataclass
class Trace:
    """A rank's trace: `work` of the device in the order of launches, steps, and Kineto's events."""

    chance: random.Random
    unit: int = 1
    clock: int = FIRST_NS
    number: int = 100
    work: list[Work] = field(default_factory=list)
    steps: list[Span] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    def draw(self, least: int, most: int) -> int:
        """Draw a time."""
        return self.chance.randint(least, most) // self.unit * self.unit

    def add(self, cat: str, name: str, start: int, end: int, tid: int = 1, **args: Any) -> None:
        """Add an event; Kineto writes microseconds."""
        on_device = "stream" in args or cat == "gpu_user_annotation"
        times = {"ts": start / 1000, "dur": (end - start) / 1000}
        place = {"pid": 0 if on_device else 4242, "tid": args.get("stream", tid)}
        given = {key.replace("_", " "): value for key, value in args.items()}
        self.events.append({"ph": "X", "cat": cat, "name": name, **place, **times, "args": given})

    def launch(
        self, kind: str, stream: int, lengths: Sequence[int], *, at_once: bool = False
    ) -> None:
        """Launch work by an operator: a graph if several; `at_once` it begins with its operator."""
        begin, self.number = self.clock, self.number + 1
        call = begin if at_once else begin + self.draw(600, 4_000)
        called = call + self.draw(1_500, 6_000)
        self.clock = called + self.draw(300, 2_000)
        linked = {"External_id": self.number, "correlation": self.number}
        name = self.chance.choice(_NAMES[kind])
        if kind == COMMUNICATION:
            outer = {"External_id": self.number + 1_000_000}
            self.add("user_annotation", NCCL[name], begin, self.clock, **outer)
        operator = "record_param_comms" if kind == COMMUNICATION else "aten::mm"
        self.add("cpu_op", operator, begin, self.clock, External_id=self.number)
        what = "cudaGraphLaunch" if len(lengths) > 1 else _CALLS[kind]
        self.add("cuda_runtime", what, call, called, **linked)
        for at, length in enumerate(lengths):
            start = call if at_once and not at else self._start(call, stream)
            self.work.append(Work(kind, name, stream, start, start + length, call, called))
            cat = KERNEL if kind == COMMUNICATION else kind
            self.add(cat, name, start, start + length, device=0, stream=stream, **linked)

    def _start(self, call: int, stream: int) -> int:
        """Draw when work begins: behind that of its stream, and perhaps of another one."""
        free = max((each.end for each in self.work if each.stream == stream), default=0)
        found = max(call + self.draw(1_500, 7_000), free + self.draw(*self.chance.choice(_QUEUED)))
        others = [each.end for each in self.work[-8:] if each.stream != stream]
        if others and self.chance.random() < 0.15:
            found = max(found, self.chance.choice(others) + self.draw(200, 1_500))
        return found

    def synchronise(self) -> None:
        """Let the host wait until the device has done all."""
        done = max((each.end for each in self.work), default=0)
        if done > self.clock:
            self.add("cuda_runtime", "cudaDeviceSynchronize", self.clock, done)
            self.clock = done

    def end_step(self, begin: int) -> None:
        """End a step, on the host and in the annotation of the device."""
        name = f"ProfilerStep#{len(self.steps) + 3}"
        self.add("user_annotation", name, begin, self.clock, External_id=len(self.steps) + 1)
        self.add("gpu_user_annotation", name, begin, self.clock, tid=7)
        self.steps.append((begin, self.clock))


def drawn(chance: random.Random, family: str, steps: int, kernels: int) -> Trace:
    """Draw the trace of a rank with so many launches in each step."""
    trace = Trace(chance, unit=1_000 if family == "whole us" else 1)
    has_borders = family == "borders"
    for step in range(steps):
        begin = trace.clock
        if has_borders and not step:
            trace.clock += trace.draw(20_000, 90_000)
        for _ in range(kernels):
            kind = chance.choice(_KINDS.get(family, (KERNEL,)))
            stream = chance.choice(_STREAMS[kind]) if family in _KINDS else 7
            count = chance.choice((1, 1, 4)) if family == "graphs" else 1
            more = 50_000 if kind == COMMUNICATION else 0
            times = (round(10 ** chance.uniform(2.4, 5.2)) for _ in range(count))
            lengths = [more + time // trace.unit * trace.unit for time in times]
            trace.launch(kind, stream, lengths, at_once=not trace.work and not has_borders)
            pause = chance.random()
            if pause < 0.06:
                trace.clock += trace.draw(40_000, 400_000)
            elif pause < 0.1:
                trace.synchronise()
        if step == steps - 1:
            trace.launch(KERNEL, 7, [300_000])
            if not has_borders or chance.random() < 0.5:
                trace.synchronise()
            trace.clock += trace.draw(5_000, 90_000) if has_borders else 0
        trace.end_step(begin)
    return trace


def written(traces: Sequence[Trace], folder: Path) -> dict[int, str]:
    """Write a file for each rank; return their paths by rank."""
    paths = {}
    for rank, trace in enumerate(traces):
        device = {"id": 0, "name": "NVIDIA A100-SXM4-80GB"}
        world = {"backend": "nccl", "rank": rank, "world_size": len(traces)}
        head = {"schemaVersion": 1, "deviceProperties": [device], "distributedInfo": world}
        head["baseTimeNanoseconds"] = _BASE_NS
        path = folder / f"trace_rank{rank}.json"
        path.write_text(json.dumps({**head, "traceEvents": trace.events}), encoding="utf-8")
        paths[rank] = str(path)
    return paths
