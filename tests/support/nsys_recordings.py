"""A recording with an import of Nsight Systems, made by hand: what its report is tried on.

Twelve steps of a small model on one GPU with two streams, traced with CUDA, NVTX, OS calls, call
stacks and memory. Recorded rows are totals over all steps of the capture.
"""

import json

from profstack.storage.folder import Writer
from tests.support.recordings import Run, module, module_times, report_of

STEPS = 12
# Of the capture and of the torch layer alike.
STEP_S = 0.014
MS, US = 1e-3, 1e-6
GPU = "NVIDIA H100 (0)"
# node, parent, kind, name, calls a step, host ms, self ms, kernels, device ms
_TREE = (
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
_KERNELS = (
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
_STACKS = (
    ("cuda", "cudaStreamSynchronize", (("at::item(int, int)", "libtorch.so"), ("main", None)), 2.5),
    ("os", "poll", (("poll", "libc.so.6"),), 9.0),
    ("cpu", None, (("PyEval_EvalFrameDefault", "python3.12"), (None, "python3.12")), None),
)
_SAMPLES = (
    ("PyEval_EvalFrameDefault", "python3.12", 60, 90),
    *(("at::native::conv2d", "libtorch_cpu.so", 30, 36), ("memcpy", "libc.so.6", 6, 6)),
)


def fact(**more):
    """The fact `nsys` of this import."""
    told = {"file": "out.sqlite", "version": "2024.6.2.225", "schema": "3.16.3", "steps": STEPS}
    told |= {"first_step": 20, "last_step": 31, "per": "step", "captured_s": 0.19, "notes": []}
    told |= {"steps_wall_s": STEPS * STEP_S, "process": 4242, "other_processes": 2, "left_out": {}}
    told |= {"missing": {"libraries": "no calls of cuDNN or cuBLAS"}, "unlaunched": 12}
    return told | {"graphs_whole": 0, "open_ranges": 1} | more


def _named(names, rows):
    return [dict(zip(names.split(), row, strict=True)) for row in rows]


def rows():
    """The recorded rows of all its tables."""
    n, held, on_device = STEPS, (("device", 64), ("pinned", 1)), (11.2 * MS, 10.6 * MS, 3.4 * MS)
    tables = {
        "steps step device started_s wall_s kernels device_s busy_s idle_s": [
            (20 + at, GPU, (2 + 15 * at) * MS, (14 + at % 3 * 0.2) * MS, 46, *on_device)
            for at in range(STEPS)
        ],
        "ranges node parent kind name calls wall_s self_s api_calls api_s kernels device_s "
        "elsewhere_s copies copied_bytes copies_s domain style on_steps_thread": [
            (
                *(node, parent, kind, name, n * calls, n * wall * MS, n * own * MS, n * kernels),
                *(n * kernels * 5 * US, n * kernels, n * device * MS),
                *(n * (device if node == 11 else 0) * MS, n * (node == 1)),
                *(n * (node == 1) * 38_535_168, n * (node == 1) * 3.1 * MS),
                *("profstack", "push_pop", 1),
            )
            for node, parent, kind, name, calls, wall, own, kernels, device in _TREE
        ],
        "kernels name device stream range_kind range_name launched_by in_graph calls device_s "
        "longest_s delay_s": [
            (
                *(name, GPU, stream, kind, place, kind and "cudaLaunchKernel", 0, n * calls),
                *(n * device * MS, device / calls * MS, kind and n * calls * delay * US),
            )
            for name, stream, kind, place, calls, device, delay in _KERNELS
        ],
        "copies direction from_memory to_memory device range_kind range_name calls bytes device_s "
        "longest_s": [
            (*path, GPU, *place, n * calls, n * size, n * device * MS, device * MS)
            for *path, calls, size, device in _COPIES
            for path, place in [(path[:3], path[3:])]
        ],
        "api library name range_kind range_name calls host_s longest_s failed": [
            (*place, n * calls, n * host * MS, host * MS, failed)
            for *place, calls, host, failed in _API
        ],
        "backtraces source name stack calls host_s": [
            (source, name, json.dumps(stack), n, None if host is None else n * host * MS)
            for source, name, stack, host in _STACKS
        ],
        "memory t_s device kind bytes": [
            (at * MS, GPU, kind, size * 2**20 * (1 + at % 7 * (at < 90)))
            for at in range(0, 180, 2)
            for kind, size in held
        ],
        "samples symbol library self_samples total_samples": _SAMPLES,
        "gaps device cause count total_s longest_s after before": [
            (GPU, cause, n * count, n * total * MS, longest * MS, *around)
            for cause, count, total, longest, *around in _GAPS
        ],
    }
    named = (name.partition(" ") for name in tables)
    made = zip(named, tables.values(), strict=True)
    return {f"nsys_{name}": _named(columns, some) for (name, _, columns), some in made}


def import_into(folder, frames=None, **facts):
    """Write the import into a recording, as `profstack import --into` does."""
    writer = Writer(folder)
    writer.replace_all(rows() | dict(frames or {}))
    writer.facts({"nsys": fact(**facts)})
    writer.close()


def alone(folder, frames=None, **facts):
    """The report of a recording that holds this import and nothing else."""
    (folder / "logs").mkdir(parents=True)
    content = {"script": None, "argv": [], "run": {"exit_code": None}, "environment": {}}
    (folder / "logs" / "run.json").write_text(json.dumps(content), encoding="utf-8")
    import_into(folder, frames, **facts)
    return report_of(folder)


# number, path, parent, calls a step, forward ms, device ms as the torch layer saw them
TORCH = (
    (1, "Net", None, 1, 4.9, 3.9),
    (2, "Net.stem", 1, 1, 1.0, 0.8),
    (3, "Net.stem.conv", 2, 1, 0.7, 0.7),
    (4, "Net.blocks", 1, 1, 3.0, 2.8),
    (5, "Net.blocks.0", 4, 1, 1.5, 1.4),
    (6, "Net.blocks.1", 4, 1, 2.9, 1.1),
    (7, "Net.head", 1, 1, 0.5, 0.3),
    (8, "Net.dropout", 1, 1, 0.1, 0.0),
)


def with_torch(folder, frames=None, *, container=False, **facts):
    """The report of a run with a torch slice of its own, and the import beside it.

    With a `container`, as a ModuleList is, the model has `Net.experts`, which is never called, and
    a module in it.
    """
    run, inner = Run(folder), (10, "Net.experts.0", 9, 1, 0.2, 0.1)
    ran = [*TORCH, *[inner] * container]
    made = [module(*row[:3]) for row in [*TORCH, *[(9, "Net.experts", 1), inner] * container]]
    run.writer.write({"modules": made})
    run.clean(10)
    none = {"backward_device_s": 0.0}
    times = [
        module_times(n, 4 * calls, 4 * forward * MS, forward_device_s=4 * device * MS, **none)
        for n, _, _, calls, forward, device in ran
    ]
    run.torch([STEP_S] * 4, frames={"module_times": times})
    run.layers(torch="recorded")
    run.finish()
    import_into(folder, frames, **facts)
    return report_of(folder)
