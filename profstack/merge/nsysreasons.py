"""Why a cell has no figure in the tables of what Nsight Systems saw.

What its file lacks altogether the fact `nsys` tells by the name of what is missing; the words here
are for single columns and cells of what is there.
"""

from __future__ import annotations

_NO_DEVICE_WORK = "the capture holds no work of a device"
_NO_CUDA_CALL = "the capture holds no CUDA call"
_OUTSIDE = "outside all ranges"
_NO_RANGE = "nothing of it lies inside a range"
_NO_CALL = "the launching call is not in the file"
_NO_TORCH_TIME = "the torch layer has no time to compare with"

# Columns that only the torch layer fills.
GIVEN_BY = {
    f"nsys_modules.{column}": "torch"
    for column in (
        *("torch_calls", "torch_host_s", "torch_device_s"),
        *("host_ratio", "device_ratio", "disagreement"),
    )
}
# Why a column is empty throughout.
OTHERWISE = {
    "nsys_modules.device_s": _NO_DEVICE_WORK,
    "nsys_modules.torch_device_s": "the torch layer recorded no kernel",
    "nsys_modules.device_ratio": "one of the two saw no work of a device",
    "nsys_modules.host_ratio": _NO_TORCH_TIME,
    "nsys_modules.disagreement": "the two agree in every module",
    "nsys_steps.device": _NO_DEVICE_WORK,
    "nsys_steps.kernels": _NO_DEVICE_WORK,
    "nsys_steps.device_s": _NO_DEVICE_WORK,
    "nsys_steps.busy_s": _NO_DEVICE_WORK,
    "nsys_steps.idle_s": _NO_DEVICE_WORK,
    "nsys_ranges.parent": "no range lies inside another",
    "nsys_ranges.api_calls": _NO_CUDA_CALL,
    "nsys_ranges.api_s": _NO_CUDA_CALL,
    "nsys_ranges.kernels": _NO_DEVICE_WORK,
    "nsys_ranges.device_s": _NO_DEVICE_WORK,
    "nsys_ranges.elsewhere_s": _NO_DEVICE_WORK,
    "nsys_ranges.copies": _NO_DEVICE_WORK,
    "nsys_ranges.copied_bytes": _NO_DEVICE_WORK,
    "nsys_ranges.copies_s": _NO_DEVICE_WORK,
    "nsys_kernels.range_kind": _NO_RANGE,
    "nsys_kernels.range_name": _NO_RANGE,
    "nsys_kernels.launched_by": "the launching calls are not in the file",
    "nsys_kernels.delay_s": "the launching calls are not in the file",
    "nsys_copies.from_memory": "the file does not tell kinds of memory",
    "nsys_copies.to_memory": "the file does not tell kinds of memory",
    "nsys_copies.range_kind": _NO_RANGE,
    "nsys_copies.range_name": _NO_RANGE,
    "nsys_copies.bytes_per_s": "no copy took any time",
    "nsys_api.range_kind": _NO_RANGE,
    "nsys_api.range_name": _NO_RANGE,
    "nsys_api.failed": "the file does not tell which calls failed",
    "nsys_backtraces.name": "all of them are CPU samples",
    "nsys_backtraces.host_s": "all of them are CPU samples",
    "nsys_gaps.after": "no kernel ran before",
    "nsys_gaps.before": "no kernel ran after",
}
# Why single cells are empty where others of their column are not.
CELLS = {
    "nsys_modules.calls": "Nsight Systems saw no range of it",
    "nsys_modules.host_s": "Nsight Systems saw no range of it",
    "nsys_modules.device_s": "Nsight Systems saw no range of it",
    "nsys_modules.torch_calls": "the torch layer's slices did not see it run",
    "nsys_modules.torch_host_s": "the torch layer's slices did not see it run",
    "nsys_modules.torch_device_s": "the torch layer's slices did not see it run",
    "nsys_modules.host_ratio": "one of the two did not see it run",
    "nsys_modules.device_ratio": "one of the two saw no kernel of it",
    "nsys_modules.disagreement": "the two agree",
    "nsys_steps.device": "no device did any work in the step",
    "nsys_steps.kernels": "no device did any work in the step",
    "nsys_steps.device_s": "no device did any work in the step",
    "nsys_steps.busy_s": "no device did any work in the step",
    "nsys_steps.idle_s": "no device did any work in the step",
    "nsys_ranges.parent": "it lies in no other range",
    "nsys_kernels.range_kind": _OUTSIDE,
    "nsys_kernels.range_name": _OUTSIDE,
    "nsys_kernels.launched_by": _NO_CALL,
    "nsys_kernels.delay_s": _NO_CALL,
    "nsys_copies.from_memory": "a fill reads no memory, or the file does not tell",
    "nsys_copies.to_memory": "the file does not tell",
    "nsys_copies.range_kind": _OUTSIDE,
    "nsys_copies.range_name": _OUTSIDE,
    "nsys_copies.bytes_per_s": "it took no time",
    "nsys_api.range_kind": _OUTSIDE,
    "nsys_api.range_name": _OUTSIDE,
    "nsys_api.failed": "it is not traced whether these calls fail",
    "nsys_backtraces.name": "a CPU sample belongs to no call",
    "nsys_backtraces.host_s": "a CPU sample has no duration",
    "nsys_gaps.after": "no kernel ran before it in the capture",
    "nsys_gaps.before": "no kernel ran after it in the capture",
}
