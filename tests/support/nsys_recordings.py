"""A recording with an import of Nsight Systems, made by hand: what its report is tried on.

Twelve steps of a small model on one GPU with two streams, traced with CUDA, NVTX, OS calls, call
stacks and memory. Recorded rows are totals over all steps of the capture.
"""

import json

from profstack.storage.folder import Writer
from tests.support.made_up import made_up
from tests.support.recordings import Run, module, module_times, report_of
from tests.support.tables import rows_of

STEPS = 12
# Of the capture and of the torch layer alike.
STEP_S = 0.014
MS, US = 1e-3, 1e-6
GPU = "NVIDIA H100 (0)"
_MADE = made_up("nsys_recordings")
TORCH = _MADE["torch"]


def fact(**more):
    """The fact `nsys` of this import."""
    return _MADE["fact"] | {"steps": STEPS, "steps_wall_s": STEPS * STEP_S} | more


def rows():
    """The recorded rows of all its tables."""
    n, held, on_device = STEPS, (("device", 64), ("pinned", 1)), (11.2 * MS, 10.6 * MS, 3.4 * MS)
    tables = {
        "steps step device started_s wall_s kernels device_s busy_s idle_s": [
            (20 + at, GPU, (2 + 15 * at) * MS, (14 + at % 3 * 0.2) * MS, 46, *on_device)
            for at in range(STEPS)
        ],
        "ranges node parent kind name calls wall_s self_s api_calls api_s kernels device_s "
        "elsewhere_s copies copied_bytes copies_s domain style on_steps_thread step_deviation_s "
        "projected_s": [
            (
                *(node, parent, kind, name, n * calls, n * wall * MS, n * own * MS, n * kernels),
                *(n * kernels * 5 * US, n * kernels, n * device * MS),
                *(n * (device if node == 11 else 0) * MS, n * (node == 1)),
                *(n * (node == 1) * 38_535_168, n * (node == 1) * 3.1 * MS),
                *("profstack", "push_pop", 1, 0.02 * wall * MS, n * device * MS * 1.5),
            )
            for node, parent, kind, name, calls, wall, own, kernels, device in _MADE["tree"]
        ],
        "kernels name device stream range_kind range_name launched_by in_graph calls device_s "
        "longest_s delay_s": [
            (
                *(name, GPU, stream, kind, place, kind and "cudaLaunchKernel", 0, n * calls),
                *(n * device * MS, device / calls * MS, kind and n * calls * delay * US),
            )
            for name, stream, kind, place, calls, device, delay in _MADE["kernels"]
        ],
        "copies direction from_memory to_memory device range_kind range_name calls bytes device_s "
        "longest_s": [
            (*path, GPU, *place, n * calls, n * size, n * device * MS, device * MS)
            for *path, calls, size, device in _MADE["copies"]
            for path, place in [(path[:3], path[3:])]
        ],
        "api library name range_kind range_name calls host_s longest_s failed": [
            (*place, n * calls, n * host * MS, host * MS, failed)
            for *place, calls, host, failed in _MADE["api"]
        ],
        "backtraces source name stack calls host_s": [
            (source, name, json.dumps(stack), n, None if host is None else n * host * MS)
            for source, name, stack, host in _MADE["stacks"]
        ],
        "memory t_s device kind bytes": [
            (at * MS, GPU, kind, size * 2**20 * (1 + at % 7 * (at < 90)))
            for at in range(0, 180, 2)
            for kind, size in held
        ],
        "samples symbol library self_samples total_samples": _MADE["samples"],
        "gaps device cause count total_s longest_s after before": [
            (GPU, cause, n * count, n * total * MS, longest * MS, *around)
            for cause, count, total, longest, *around in _MADE["gaps"]
        ],
    }
    made = zip((name.partition(" ") for name in tables), tables.values(), strict=True)
    return {f"nsys_{name}": rows_of(columns, *some) for (name, _, columns), some in made}


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


def with_torch(folder, frames=None, **facts):
    """The report of a run with a torch slice of its own, and the import beside it."""
    run = Run(folder)
    run.writer.write({"modules": [module(*row[:3]) for row in TORCH]})
    run.clean(10)
    none = {"backward_device_s": 0.0}
    times = [
        module_times(n, 4 * calls, 4 * forward * MS, forward_device_s=4 * device * MS, **none)
        for n, _, _, calls, forward, device in TORCH
    ]
    run.torch([STEP_S] * 4, frames={"module_times": times})
    run.layers(torch="recorded")
    run.close()
    import_into(folder, frames, **facts)
    return report_of(folder)
