"""Peaks of this machine, measured: products of matrices by type, and copies in memory.

The rates are measured in a process of its own, so that neither the measured script's process nor
the parent, which has no torch, is touched:

    python -m profstack.benchmark.peaks --dtypes float32 --threads 1

prints one line of JSON. (`measured` starts it in a way that imports nothing of the folder that the
user happens to be in: a script there called `profile.py` would run once more.) What was measured
is kept in the user's cache folder, by device, CPU, threads, version of torch and type, and is not
measured again. A rate is the best of several blocks of calls, and of several measurements, so that
other work on the machine, which only ever slows one down, is left out; a block is long enough that
it is a rate that the machine holds.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from profstack.benchmark.clock import Clock
from profstack.benchmark.peakscache import DTYPES, MEMORY, Machine, better, keep, known
from profstack.environment import environment_facts

# What `how` says of a rate that may be higher than it was measured.
OTHER_WORK = "other work took the CPU meanwhile"

_SECONDS_PER_DTYPE = 0.4
_SECONDS_FOR_COPIES = 0.3
_SIZES = {"cpu": (256, 512, 1024, 2048, 4096), "cuda": (2048, 4096, 8192)}
_BLOCK_S = {"cpu": 0.02, "cuda": 0.05}
_LEAST_BLOCKS = 3
# With less of the CPU than this in its best block, a rate is measured again, an hour later.
_BUSY = 0.8
# With more of all cores than this taken by others, too.
_CROWDED = 0.5
# Beyond the last-level cache of what is in use today, both arrays together, with room to spare.
_COPIED_BYTES = {"cpu": 256 << 20, "cuda": 512 << 20}
# Where memory is limited, a copy may take this much of it.
_SHARE_OF_LIMIT = 8
_TIMEOUT_S = 120.0
# The folder that profstack is in comes last: it may be one of many packages.
_START = (
    "import sys; sys.path[:] = [*filter(None, sys.path), {root!r}]; "
    "from profstack.benchmark.peaks import main; main()"
)
_ROOT = str(Path(__file__).resolve().parent.parent.parent)


def cached(machine: Machine, dtypes: Iterable[str]) -> dict[str, Any] | None:
    """The peaks of `machine` for all of `dtypes` and memory; None if any is lacking."""
    kept = known(machine)
    rates = [kept.get(dtype) for dtype in dtypes]
    memory = kept.get(MEMORY)
    if memory is None or None in rates:
        return None
    return _peaks_of(machine, rates, memory)


def _peaks_of(machine: Machine, rates: Sequence[Any], memory: dict[str, Any]) -> dict[str, Any]:
    lacking = [f"{rate['dtype']}: {rate['how']}" for rate in rates if rate["value"] is None]
    return {
        "device": machine.name or machine.device,
        "threads": machine.threads,
        "torch": machine.torch,
        "measured_at": memory["measured_at"],
        "flop_per_s": [
            _shown(rate, "dtype", "value", "how") for rate in rates if rate["value"] is not None
        ],
        "bytes_per_s": [_shown(memory, "value", "how")] if memory["value"] is not None else [],
        "reason": "; ".join(lacking) or None,
    }


def _shown(rate: dict[str, Any], *names: str) -> dict[str, Any]:
    return {**{name: rate[name] for name in names}, "source": "measured"}


def measured(
    machine: Machine, dtypes: Sequence[str], timeout_s: float = _TIMEOUT_S
) -> dict[str, Any]:
    """Measure what is not known in a process of its own, and keep it; like `cached`.

    Never raises: where nothing could be measured, `reason` says why and the lists are empty.
    """
    kept = known(machine)
    lacking = [dtype for dtype in dtypes if dtype not in kept]
    command = [sys.executable, "-c", _START.format(root=_ROOT)]
    command += ["--dtypes", ",".join(lacking), "--device", machine.device]
    if machine.threads is not None:
        command += ["--threads", str(machine.threads)]
    try:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
        said = answer.stdout.splitlines()[-1] if answer.stdout.strip() else "{}"
        result = json.loads(said)
        entries = result["peaks"]
    except (OSError, subprocess.SubprocessError) as error:
        return _nothing(machine, f"{type(error).__name__}: {error}")
    except (ValueError, KeyError, TypeError):
        last = answer.stderr.strip().splitlines()[-1:] or [f"exit code {answer.returncode}"]
        return _nothing(machine, last[0][:300])
    found = Machine(**result["machine"])
    if machine.name is not None and found.name != machine.name:
        return _nothing(machine, f"the device found there is {found.name}, not {machine.name}")
    if machine.torch is not None and found.torch != machine.torch:
        return _nothing(machine, f"torch is {found.torch} there, not {machine.torch}")
    entries = [better(machine, entry) for entry in entries]
    keep(machine, entries)
    by_dtype = {**kept, **{entry["dtype"]: entry for entry in entries}}
    return _peaks_of(machine, [by_dtype[dtype] for dtype in dtypes], by_dtype[MEMORY])


def _nothing(machine: Machine, why: str) -> dict[str, Any]:
    entry = {"value": None, "measured_at": None}
    peaks = _peaks_of(machine, [], entry)
    return {**peaks, "reason": f"the peaks could not be measured: {why}"}


# -- measured --------------------------------------------------------------------------------------


def peaks(dtypes: Sequence[str], device: str = "cpu", threads: int | None = None) -> dict[str, Any]:
    """Measure in this process: about 0.4 s for each of `dtypes` and 0.3 s for memory.

    Gives `machine` and `peaks`, one entry per type and one for memory: dtype, value (FLOP/s or
    bytes/s; None where it could not be measured), how, measured_at. Changes the number of
    threads and the precision of products for the whole process.
    """
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    kind = device.partition(":")[0]
    machine = this_machine(torch, kind)
    if kind == "cuda":
        # Opens the device: its clock must know of it.
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch has none there
    clock = Clock(torch)
    crowd = _crowd(torch.get_num_threads()) if kind == "cpu" else None
    entries = [
        _entry(dtype, partial(_product_rate, torch, dtype, device, clock), crowd)
        for dtype in dtypes
    ]
    entries.append(_entry(MEMORY, partial(_copy_rate, torch, device, clock), crowd))
    return {"machine": asdict(machine), "peaks": entries}


def processor_name() -> str | None:
    """The CPU's name as profstack states it everywhere."""
    name = environment_facts()["cpu"]
    return str(name) if name is not None else None


def this_machine(torch: Any, device: str) -> Machine:
    """What peaks measured in this process depend on."""
    cpu = processor_name()
    if device == "cpu":
        return Machine("cpu", cpu, cpu, torch.get_num_threads(), str(torch.__version__))
    name = torch.cuda.get_device_name()
    return Machine(device, name, cpu, None, str(torch.__version__))


@dataclass(frozen=True)
class _Timed:
    """The fastest block of a call: seconds per call, and CPU time over wall time meanwhile."""

    seconds: float
    busy: float


def _crowd(threads: int) -> str | None:
    """Whether the machine was busy of late with more than what was measured, in words.

    Work on the other half of a core, or on the memory, slows a thread that has all its time.
    """
    cores = os.cpu_count() or 1
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):
        return None
    # A run with as many threads has just ended.
    if load - threads <= _CROWDED * cores:
        return None
    return f"the load average was {load:.1f} on {cores} cores"


def _entry(
    dtype: str, measure: Callable[[], tuple[float, float, str]], crowd: str | None = None
) -> dict[str, Any]:
    """One rate; what cannot be multiplied on this device, or fits nowhere, has none."""
    value: float | None
    try:
        value, busy, how = measure()
    except Exception as error:
        first = str(error).strip().splitlines()[:1] or [""]
        value, busy, how = None, 1.0, f"{type(error).__name__}: {first[0][:200]}"
    if busy < _BUSY:
        crowd = f"this had {100 * busy:.0f} % of it"
    if crowd is not None and value is not None:
        how += f"; {OTHER_WORK} ({crowd}): it may be more"
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return {
        "dtype": dtype,
        "value": value,
        "how": how,
        "measured_at": now,
        "disturbed": crowd is not None,
    }


def _product_rate(torch: Any, dtype: str, device: str, clock: Clock) -> tuple[float, float, str]:
    """The best rate over square matrices of several sizes, the largest that the time allows."""
    kind = device.partition(":")[0]
    if dtype == "tf32" and kind != "cuda":
        raise ValueError("TF32 is a mode of CUDA's tensor cores")
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    stored = getattr(torch, "float32" if dtype == "tf32" else dtype)
    if kind == "cuda":
        # It opens the device and loads what multiplies, which takes longer than the measurement.
        small = torch.rand(64, 64, device=device).to(stored)
        torch.mm(small, small)
        clock.synchronize()
    begun = clock.now()
    best, busy, best_size = 0.0, 1.0, 0
    for size in _SIZES[kind]:
        # A product of matrices twice as large takes eight times as long.
        longest = _LEAST_BLOCKS * 2 * size**3 / best if best else 0.0
        if longest > _SECONDS_PER_DTYPE - (clock.now() - begun):
            break
        a, b = (torch.rand(size, size, device=device).to(stored) for _ in range(2))
        out = torch.empty(size, size, dtype=stored, device=device)
        timed = _fastest(partial(torch.mm, a, b, out=out), _SECONDS_PER_DTYPE / 4, kind, clock)
        if 2 * size**3 / timed.seconds > best:
            best, busy, best_size = 2 * size**3 / timed.seconds, timed.busy, size
    how = f"product of two {best_size} x {best_size} matrices, the best of several sizes"
    return best, _per_thread(torch, busy, kind), how


def _copy_rate(torch: Any, device: str, clock: Clock) -> tuple[float, float, str]:
    """Bytes read and written per second by one copy after the other."""
    kind = device.partition(":")[0]
    size = _COPIED_BYTES[kind]
    if kind == "cpu":
        limit = environment_facts()["memory_limit_bytes"]
        size = min(size, limit // _SHARE_OF_LIMIT) if isinstance(limit, int) else size
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.zeros_like(source)
    timed = _fastest(partial(target.copy_, source), _SECONDS_FOR_COPIES, kind, clock)
    how = (
        f"copy of {size >> 20} MiB, bytes read and bytes written counted once each (a line fetched "
        "only to be overwritten is not)"
    )
    return 2 * 4 * (size // 4) / timed.seconds, _per_thread(torch, timed.busy, kind), how


def _per_thread(torch: Any, busy: float, kind: str) -> float:
    """The share of its threads that a block had; a GPU does not wait for the CPU."""
    return busy / torch.get_num_threads() if kind == "cpu" else 1.0


def _fastest(call: Callable[[], object], seconds: float, kind: str, clock: Clock) -> _Timed:
    """The fastest of the blocks that fit into `seconds`, of three at least."""
    firsts = []
    for _ in range(3):
        start = clock.now()
        call()
        clock.synchronize()
        firsts.append(clock.now() - start)
    calls = max(1, round(_BLOCK_S[kind] / max(min(firsts), 1e-9)))
    begun = clock.now()
    blocks: list[_Timed] = []
    while len(blocks) < _LEAST_BLOCKS or clock.now() - begun < seconds:
        start, start_cpu = clock.now(), clock.cpu()
        for _ in range(calls):
            call()
        clock.synchronize()
        wall = clock.now() - start
        blocks.append(_Timed(wall / calls, (clock.cpu() - start_cpu) / wall))
        if clock.now() - begun > 4 * seconds:
            # It takes longer than was expected: three blocks of it would be too many.
            break
    return min(blocks, key=lambda block: block.seconds)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and write one line of JSON to standard output."""
    parser = argparse.ArgumentParser(prog="python -m profstack.benchmark.peaks")
    parser.add_argument("--dtypes", default="float32", help=f"some of {','.join(DTYPES)}")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(argv)
    dtypes = [dtype for dtype in options.dtypes.split(",") if dtype]
    result = peaks(dtypes, options.device, options.threads)
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
