"""A recording with an import of Nsight Systems, made by hand: what its report is tried on.

Twelve steps of a small model on one GPU with two streams, traced with CUDA, NVTX, OS calls, call
stacks and memory. Recorded rows are totals over all steps of the capture.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data_recording import Run, module, module_times, report_of

from profstack.storage.folder import Writer

STEPS = 12
# Of the capture and of the torch layer alike.
STEP_S = 0.014
MS = 1e-3
US = 1e-6
GPU = "NVIDIA H100 (0)"
# node, parent, kind, name, calls a step, host ms, self ms, kernels, device ms
_TREE: tuple[tuple[int, int | None, str, str, float, float, float, int, float], ...] = (
    (1, None, "step", "step", 1, 14.0, 0.4, 46, 11.2),
    (2, 1, "region", "augment", 1, 1.1, 1.1, 0, 0.0),
    (3, 1, "forward", "forward", 1, 4.6, 0.1, 18, 3.9),
    (4, 3, "module", "Net", 1, 4.5, 0.2, 18, 3.9),
    (5, 4, "module", "Net.stem", 1, 0.9, 0.3, 4, 0.8),
    (6, 5, "module", "Net.stem.conv", 1, 0.6, 0.6, 3, 0.7),
    (7, 4, "module", "Net.blocks", 1, 2.9, 0.1, 12, 2.8),
    (8, 7, "module", "Net.blocks.0", 1, 1.4, 1.4, 6, 1.4),
    (9, 7, "module", "Net.blocks.1", 1, 1.4, 1.4, 6, 1.4),
    (10, 4, "module", "Net.head", 2, 0.5, 0.5, 2, 0.3),
    (11, 1, "backward", "backward", 1, 6.2, 6.2, 24, 6.1),
    (12, 11, "module", "Net.blocks.0", 1, 1.2, 1.2, 0, 0.0),
    (13, 1, "optimizer", "optimizer Adam", 1, 1.7, 1.7, 4, 1.2),
)
# name, stream, kind, range, calls a step, device ms, delay us of one
_KERNELS: tuple[tuple[str, int, str | None, str | None, int, float, float], ...] = (
    ("sm90_xmma_fprop_implicit_gemm_bf16_nhwc", 7, "module", "Net.stem.conv", 3, 0.7, 12.0),
    ("void at::native::vectorized_elementwise_kernel<4>", 7, "module", "Net.blocks.0", 6, 1.4, 9.0),
    ("void at::native::vectorized_elementwise_kernel<4>", 7, "module", "Net.blocks.1", 6, 1.4, 9.0),
    ("ampere_sgemm_128x64_nn", 7, "module", "Net.head", 2, 0.3, 300.0),
    ("sm90_xmma_dgrad_implicit_gemm_bf16_nhwc", 7, "backward", "backward", 24, 6.1, 140.0),
    ("multi_tensor_apply_kernel<FusedAdam>", 7, "optimizer", "optimizer Adam", 4, 1.2, 20.0),
    ("ncclDevKernel_AllReduce_Sum_bf16", 22, None, None, 1, 0.9, 0.0),
)
_COPIES = (
    ("host to device", "pageable", "device", "step", "step", 1, 38_535_168, 3.1),
    ("device to host", "device", "pinned", "step", "step", 1, 4, 0.002),
    ("device to device", "device", "device", "module", "Net.stem", 2, 6_422_528, 0.02),
    ("fill", None, "device", "backward", "backward", 5, 2_048_000, 0.01),
)
_API = (
    ("cuda", "cudaLaunchKernel", "module", "Net.blocks.0", 6, 0.04, 0),
    ("cuda", "cudaLaunchKernel", "backward", "backward", 24, 0.2, 0),
    ("cuda", "cudaMemcpyAsync", "step", "step", 2, 3.2, 0),
    ("cuda", "cudaStreamSynchronize", "step", "step", 1, 2.5, 0),
    ("cuda", "cudaMalloc", "module", "Net.stem.conv", 1, 0.3, 1),
    ("cudnn", "cudnnConvolutionForward", "module", "Net.stem.conv", 1, 0.5, None),
    ("cublas", "cublasSgemm_v2", "module", "Net.head", 2, 0.1, None),
    ("os", "poll", None, None, 3, 9.0, None),
)
_GAPS = (
    ("host late", 3, 1.9, 1.2, "ampere_sgemm_128x64_nn in Net.head", "sm90_xmma_dgrad in backward"),
    ("copy", 1, 0.9, 0.95, "multi_tensor_apply_kernel<FusedAdam>", "sm90_xmma_fprop in Net.stem"),
    ("data wait", 1, 0.4, 0.5, None, "sm90_xmma_fprop in Net.stem.conv"),
)
_Frame = tuple[str | None, str | None]
_STACKS: tuple[tuple[str, str | None, tuple[_Frame, ...], float | None], ...] = (
    ("cuda", "cudaStreamSynchronize", (("at::item(int, int)", "libtorch.so"), ("main", None)), 2.5),
    ("os", "poll", (("poll", "libc.so.6"),), 9.0),
    ("cpu", None, (("PyEval_EvalFrameDefault", "python3.12"), (None, "python3.12")), None),
)
_SAMPLES = (
    ("PyEval_EvalFrameDefault", "python3.12", 60, 90),
    ("at::native::conv2d", "libtorch_cpu.so", 30, 36),
    ("memcpy", "libc.so.6", 6, 6),
)


def fact(**more: Any) -> dict[str, Any]:
    """The fact `nsys` of this import."""
    return {
        "file": "out.sqlite", "version": "2024.6.2.225", "schema": "3.16.3", "steps": STEPS,
        "first_step": 20, "last_step": 31, "per": "step", "captured_s": 0.19,
        "steps_wall_s": STEPS * STEP_S, "process": 4242, "other_processes": 2,
        "missing": {"libraries": "no calls of cuDNN or cuBLAS"}, "unlaunched": 12,
        "graphs_whole": 0, "open_ranges": 1, "left_out": {}, "notes": [], **more,
    }  # fmt: skip


def rows() -> dict[str, list[dict[str, Any]]]:
    """The recorded rows of all its tables."""
    return {
        "nsys_steps": [_step(number) for number in range(STEPS)],
        "nsys_ranges": [_range(*row) for row in _TREE],
        "nsys_kernels": [_kernel(*row) for row in _KERNELS],
        "nsys_copies": [_copy(*row) for row in _COPIES],
        "nsys_api": [_call(*row) for row in _API],
        "nsys_backtraces": [_stack(*row) for row in _STACKS],
        "nsys_memory": [
            {"t_s": at * MS, "device": GPU, "kind": kind, "bytes": size * (1 + at % 7 * (at < 90))}
            for at in range(0, 180, 2)
            for kind, size in (("device", 64 * 2**20), ("pinned", 2**20))
        ],
        "nsys_samples": [
            dict(zip(("symbol", "library", "self_samples", "total_samples"), row, strict=True))
            for row in _SAMPLES
        ],
        "nsys_gaps": [_gap(*row) for row in _GAPS],
    }


def _step(number: int) -> dict[str, Any]:
    return {
        "step": 20 + number, "device": GPU, "started_s": (2 + 15 * number) * MS,
        "wall_s": (14 + number % 3 * 0.2) * MS, "kernels": 46, "device_s": 11.2 * MS,
        "busy_s": 10.6 * MS, "idle_s": 3.4 * MS,
    }  # fmt: skip


def _range(
    node: int, parent: int | None, kind: str, name: str, calls: float,
    wall: float, own: float, kernels: int, device: float,
) -> dict[str, Any]:  # fmt: skip
    return {
        "node": node, "parent": parent, "domain": "profstack", "kind": kind, "name": name,
        "style": "push_pop", "on_steps_thread": 1, "calls": STEPS * calls,
        "wall_s": STEPS * wall * MS, "self_s": STEPS * own * MS, "api_calls": STEPS * kernels,
        "api_s": STEPS * kernels * 5 * US, "kernels": STEPS * kernels,
        "device_s": STEPS * device * MS, "elsewhere_s": STEPS * (device if node == 11 else 0) * MS,
        "copies": STEPS * (node == 1), "copied_bytes": STEPS * (node == 1) * 38_535_168,
        "copies_s": STEPS * (node == 1) * 3.1 * MS,
    }  # fmt: skip


def _kernel(
    name: str, stream: int, kind: str | None, place: str | None, calls: int,
    device: float, delay: float,
) -> dict[str, Any]:  # fmt: skip
    known = kind is not None
    return {
        "name": name, "device": GPU, "stream": stream, "range_kind": kind, "range_name": place,
        "launched_by": "cudaLaunchKernel" if known else None, "in_graph": 0,
        "calls": STEPS * calls, "device_s": STEPS * device * MS, "longest_s": device / calls * MS,
        "delay_s": STEPS * calls * delay * US if known else None,
    }  # fmt: skip


def _copy(
    direction: str, source: str | None, target: str, kind: str, place: str, calls: int,
    size: int, device: float,
) -> dict[str, Any]:  # fmt: skip
    return {
        "direction": direction, "from_memory": source, "to_memory": target, "device": GPU,
        "range_kind": kind, "range_name": place, "calls": STEPS * calls, "bytes": STEPS * size,
        "device_s": STEPS * device * MS, "longest_s": device * MS,
    }  # fmt: skip


def _call(
    library: str, name: str, kind: str | None, place: str | None, calls: int, host: float,
    failed: int | None,
) -> dict[str, Any]:  # fmt: skip
    return {
        "library": library, "name": name, "range_kind": kind, "range_name": place,
        "calls": STEPS * calls, "host_s": STEPS * host * MS, "longest_s": host * MS,
        "failed": failed,
    }  # fmt: skip


def _stack(
    source: str, name: str | None, stack: Sequence[_Frame], host: float | None
) -> dict[str, Any]:
    seconds = None if host is None else STEPS * host * MS
    stacked = json.dumps(list(stack))
    return {"source": source, "name": name, "stack": stacked, "calls": STEPS, "host_s": seconds}


def _gap(
    cause: str, count: int, total: float, longest: float, after: str | None, before: str
) -> dict[str, Any]:
    return {
        "device": GPU, "cause": cause, "count": STEPS * count, "total_s": STEPS * total * MS,
        "longest_s": longest * MS, "after": after, "before": before,
    }  # fmt: skip


def import_into(
    folder: Path,
    frames: Mapping[str, list[dict[str, Any]]] | None = None,
    **facts: Any,
) -> None:
    """Write the import into a recording, as `profstack import --into` does."""
    writer = Writer(folder)
    writer.replace_all(rows() | dict(frames or {}))
    writer.facts({"nsys": fact(**facts)})
    writer.close()


def alone(folder: Path, frames: Any = None, **facts: Any) -> dict[str, Any]:
    """The report of a recording that holds this import and nothing else."""
    (folder / "logs").mkdir(parents=True)
    content: dict[str, Any] = {
        "script": None,
        "argv": [],
        "run": {"exit_code": None},
        "environment": {},
    }
    (folder / "logs" / "run.json").write_text(json.dumps(content), encoding="utf-8")
    import_into(folder, frames, **facts)
    return report_of(folder)


# number, path, parent, calls a step, forward ms, device ms as the torch layer saw them
_TORCH = (
    (1, "Net", None, 1, 4.9, 3.9),
    (2, "Net.stem", 1, 1, 1.0, 0.8),
    (3, "Net.stem.conv", 2, 1, 0.7, 0.7),
    (4, "Net.blocks", 1, 1, 3.0, 2.8),
    (5, "Net.blocks.0", 4, 1, 1.5, 1.4),
    (6, "Net.blocks.1", 4, 1, 2.9, 1.1),
    (7, "Net.head", 1, 1, 0.5, 0.3),
    (8, "Net.dropout", 1, 1, 0.1, 0.0),
)
# As a ModuleList is, whose modules are called and which itself never is.
_CONTAINER = (9, "Net.experts", 1)
_IN_CONTAINER = (10, "Net.experts.0", 9)


def with_torch(
    folder: Path, frames: Any = None, *, container: bool = False, **facts: Any
) -> dict[str, Any]:
    """The report of a run with a torch slice of its own, and the import beside it.

    With a `container` the model has `Net.experts`, which is never called, and a module in it.
    """
    run = Run(folder)
    run.writer.write({"modules": [module(*row[:3]) for row in _TORCH]})
    ran: list[tuple[Any, ...]] = [*_TORCH]
    if container:
        run.writer.write({"modules": [module(*_CONTAINER), module(*_IN_CONTAINER)]})
        ran.append((*_IN_CONTAINER, 1, 0.2, 0.1))
    run.clean(10)
    times = [
        module_times(
            number, 4 * calls, 4 * forward * MS,
            forward_device_s=4 * device * MS, backward_device_s=0.0,
        )
        for number, _, _, calls, forward, device in ran
    ]  # fmt: skip
    run.torch([STEP_S] * 4, frames={"module_times": times})
    run.layers(torch="recorded")
    run.finish()
    import_into(folder, frames, **facts)
    return report_of(folder)
