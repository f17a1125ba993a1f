"""Peak rates of this machine: measured, cached, and stated by makers.

The rates are measured in a process of its own, so that neither the script's process nor the parent,
which has no torch, is affected:

    python -m profstack.launch.peaks --dtypes float32 --threads 1

prints one line of JSON. (`measured` starts it so that nothing of the working folder is imported: a
script there called `profile.py` would run.) Rates are kept in the user's cache folder, by device,
CPU, threads, version of torch and type, and are not measured again. A rate is the best of several
blocks of calls, and of several measurements, since other work on the machine only slows it down; a
block is long enough that the machine can sustain the rate.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from profstack.cache import keep_cached, read_cached
from profstack.environment import environment_facts
from profstack.errors import RecordingError
from profstack.launch.other_runs import GaveWayError
from profstack.stats.clock import Clock
from profstack.storage.folder import PEAKS, facts_of, read_tables
from profstack.storage.schema.report import MemoryPeak, Peaks
from profstack.storage.untrusted import read_json
from profstack.storage.vocabulary import OTHER_WORK

# TF32 is how tensor cores multiply numbers that are stored as float32.
DTYPES = ("float32", "tf32", "bfloat16", "float16", "float64")
MEMORY = "memory"


@dataclass(frozen=True)
class Machine:
    """The facts that peaks depend on. `device` is cpu or cuda; `threads` is None on a GPU."""

    device: str
    name: str | None
    cpu: str | None
    threads: int | None
    torch: str | None

    def key(self, dtype: str) -> str:
        """Return the key of one rate in the cache."""
        parts = (self.device, self.name, self.cpu, self.threads, self.torch, dtype)
        return " | ".join("" if part is None else str(part) for part in parts)


class Rate(TypedDict):
    """A measured rate of one type, or of the memory; `value` is None where there is none."""

    dtype: str
    value: float | None
    how: str
    measured_at: str
    disturbed: bool


class CachedRate(Rate, total=False):
    """A rate in the cache; `tried_at` is the time of a later, lower measurement."""

    tried_at: str


# -- the cache: one file in the user's cache folder --------------------------
# Damaged parts of it are ignored. Where there is no such folder nothing is kept, which only costs
# time.

_CACHE = "peaks.json"
_VERSION = 1
_RETRIED_S = 3600.0


def known(machine: Machine, *, also_old: bool = False) -> dict[str, CachedRate]:
    """Return the cached rates of `machine` by type; those to be measured again with `also_old`."""
    kept = _read_cache()
    rates = {dtype: kept.get(machine.key(dtype)) for dtype in (*DTYPES, MEMORY)}
    return {
        dtype: rate
        for dtype, rate in rates.items()
        if rate is not None and (also_old or not _is_old(rate))
    }


def _is_old(rate: CachedRate) -> bool:
    """Return whether a disturbed or missing rate was measured some time ago.

    It may be better now: memory that was full is free again.
    """
    if not rate["disturbed"] and rate["value"] is not None:
        return False
    try:
        tried_at = datetime.datetime.fromisoformat(rate.get("tried_at") or rate["measured_at"])
        age = datetime.datetime.now(datetime.timezone.utc) - tried_at
    except (TypeError, ValueError):
        return True
    return age.total_seconds() > _RETRIED_S


def _read_cache() -> dict[str, CachedRate]:
    """Read the cache without damaged entries; nothing of a file of another version."""
    try:
        content = json.loads(read_cached(_CACHE) or "{}")
        if content.get("version") != _VERSION:
            return {}
        return {str(key): entry for key, entry in content["peaks"].items() if _is_whole(entry)}
    except (ValueError, AttributeError, KeyError, TypeError):
        return {}


def _is_whole(entry: Mapping[str, object]) -> bool:
    if not {"dtype", "value", "how", "measured_at", "disturbed"} <= entry.keys():
        return False
    value = entry["value"]
    return value is None or (isinstance(value, float) and math.isfinite(value) and value > 0)


def keep(machine: Machine, entries: Iterable[CachedRate]) -> None:
    """Add rates to the cache; ignore errors of the file system."""
    kept = {**_read_cache(), **{machine.key(entry["dtype"]): entry for entry in entries}}
    keep_cached(_CACHE, json.dumps({"version": _VERSION, "peaks": kept}, indent=1))


def better(machine: Machine, entry: CachedRate) -> CachedRate:
    """Return the higher of a rate and the cached one: the machine did reach it."""
    before = _read_cache().get(machine.key(entry["dtype"]))
    if before is None or (before["value"] or 0) <= (entry["value"] or 0):
        return entry
    return {**before, "tried_at": entry["measured_at"]}


# -- peaks of a machine, measured in a process of its own --------------------

_TIMEOUT_S = 120.0
Runner = Callable[..., "subprocess.CompletedProcess[str]"]
_ROOT = str(Path(__file__).resolve().parent.parent.parent)


def program(module: str) -> list[str]:
    """Return the command that calls `main` of one of our modules, and nothing of this folder."""
    # The folder that profstack is in comes last: it may be one of many packages.
    path = f"import sys; sys.path[:] = [*filter(None, sys.path), {_ROOT!r}]"
    return [sys.executable, "-c", f"{path}; from {module} import main; main()"]


def cached(machine: Machine, dtypes: Iterable[str], *, also_old: bool = False) -> Peaks | None:
    """Return the peaks of `machine` for all of `dtypes` and memory; None if any is missing.

    With `also_old` they may be rates that are to be measured again.
    """
    kept = known(machine, also_old=also_old)
    wanted = [*dtypes, MEMORY]
    if not kept.keys() >= set(wanted):
        return None
    return _peaks_of(machine, [kept[dtype] for dtype in wanted])


def _peaks_of(machine: Machine, rates: Sequence[CachedRate]) -> Peaks:
    """Return peaks from the rates of types and, the last of `rates`, of memory."""
    *products, memory = rates
    missing = [f"{rate['dtype']}: {rate['how']}" for rate in products if rate["value"] is None]
    found = no_peaks(machine, "; ".join(missing) or None)
    found["measured_at"] = memory["measured_at"]
    found["flop_per_s"] = [
        {"dtype": rate["dtype"], "value": value, "how": rate["how"], "source": "measured"}
        for rate in products
        if (value := rate["value"]) is not None
    ]
    if (value := memory["value"]) is not None:
        found["bytes_per_s"] = [{"value": value, "how": memory["how"], "source": "measured"}]
    return found


def no_peaks(machine: Machine | None, reason: str | None) -> Peaks:
    """Return peaks without rates, and the reason."""
    return {
        "device": (machine.name or machine.device) if machine else None,
        "threads": machine.threads if machine else None,
        "torch": machine.torch if machine else None,
        "measured_at": None,
        "flop_per_s": [],
        "bytes_per_s": [],
        "reason": reason,
    }


def measured(machine: Machine, dtypes: Sequence[str], run: Runner | None = None) -> Peaks:
    """Measure rates that are not cached in a process of its own, and keep them; like `cached`.

    Where nothing could be measured, `reason` says why and the lists are empty. Raises only the
    `GaveWayError` of `run`, which starts the process (default: `subprocess.run`).
    """
    kept = known(machine)
    command = [*program("profstack.launch.peaks"), "--device", machine.device]
    command += ["--dtypes", ",".join(dtype for dtype in dtypes if dtype not in kept)]
    if machine.threads is not None:
        command += ["--threads", str(machine.threads)]
    try:
        answer = (run or subprocess.run)(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
        result = json.loads(answer.stdout.splitlines()[-1] if answer.stdout.strip() else "{}")
        entries: list[CachedRate] = result["peaks"]
    except (OSError, subprocess.SubprocessError) as error:
        return not_measured(machine, f"{type(error).__name__}: {error}")
    except (ValueError, KeyError, TypeError):
        last = answer.stderr.strip().splitlines()[-1:] or [f"exit code {answer.returncode}"]
        return not_measured(machine, last[0][:300])
    found = Machine(**result["machine"])
    if machine.name is not None and found.name != machine.name:
        return not_measured(machine, f"the device found there is {found.name}, not {machine.name}")
    if machine.torch is not None and found.torch != machine.torch:
        return not_measured(machine, f"torch is {found.torch} there, not {machine.torch}")
    entries = [better(machine, entry) for entry in entries]
    keep(machine, entries)
    by_dtype = {**kept, **{entry["dtype"]: entry for entry in entries}}
    return _peaks_of(machine, [by_dtype[dtype] for dtype in (*dtypes, MEMORY)])


def not_measured(machine: Machine, why: str) -> Peaks:
    """Return peaks without rates where measuring failed."""
    return no_peaks(machine, f"the peaks could not be measured: {why}")


# -- the measurement ---------------------------------------------------------

_SECONDS_PER_DTYPE = 0.4
_SECONDS_FOR_COPIES = 0.3
_SIZES = {"cpu": (256, 512, 1024, 2048, 4096), "cuda": (2048, 4096, 8192)}
_BLOCK_S = {"cpu": 0.02, "cuda": 0.05}
_LEAST_BLOCKS = 3
# With less of the CPU than this in its best block, a rate is measured again, an hour later.
_BUSY = 0.8
# The same where other programs use more of all cores than this.
_CROWDED = 0.5
# Beyond the last-level cache of today's processors, both arrays together.
_COPIED_BYTES = {"cpu": 256 << 20, "cuda": 512 << 20}
# Where memory is limited, a copy may take this part of it.
_SHARE_OF_LIMIT = 8


def peaks(dtypes: Sequence[str], device: str = "cpu", threads: int | None = None) -> dict[str, Any]:
    """Measure in this process: about 0.4 s for each of `dtypes` and 0.3 s for memory.

    Returns the `machine` and the list of its `peaks`. Rates are in FLOP/s, that of memory in
    bytes/s. The number of threads and the precision of
    products change for the whole process.
    """
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    kind = device.partition(":")[0]
    gpu = None
    if kind == "cuda":
        gpu = torch.cuda.get_device_name()
        # The clock needs an open device.
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch has none there
    machine = _machine(kind, gpu, torch.get_num_threads(), str(torch.__version__))
    clock = Clock(torch)
    crowd = _crowd(torch.get_num_threads()) if kind == "cpu" else None
    entries = [
        _entry(dtype, partial(_product_rate, torch, dtype, device, clock), crowd)
        for dtype in dtypes
    ]
    entries.append(_entry(MEMORY, partial(_copy_rate, torch, device, clock), crowd))
    return {"machine": asdict(machine), "peaks": entries}


def processor_name() -> str | None:
    """Return the CPU's name as in the report's environment."""
    name = environment_facts()["cpu"]
    return str(name) if name is not None else None


def _machine(device: str, gpu: str | None, threads: int | None, torch: str | None) -> Machine:
    """Return the machine of a process that uses the CPU or a GPU."""
    cpu = processor_name()
    name, threads = (cpu, threads) if device == "cpu" else (gpu, None)
    return Machine(device, name, cpu, threads, torch)


class _Block(NamedTuple):
    """The fastest block of a call: seconds per call, and CPU time over wall time meanwhile."""

    seconds: float
    busy: float


def _crowd(threads: int) -> str | None:
    """Return in words whether other work kept the machine busy, by its load average.

    Work on the other half of a core, or on the memory, slows a thread even on a core of its own.
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
) -> Rate:
    """Measure one rate; its value is None where the device cannot do it."""
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
    return Rate(dtype=dtype, value=value, how=how, measured_at=now, disturbed=crowd is not None)


def _product_rate(torch: Any, dtype: str, device: str, clock: Clock) -> tuple[float, float, str]:
    """Return the best rate over square matrices of several sizes, as the time allows."""
    kind = device.partition(":")[0]
    if dtype == "tf32" and kind != "cuda":
        raise ValueError("TF32 is a mode of CUDA's tensor cores")
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    stored = getattr(torch, "float32" if dtype == "tf32" else dtype)
    if kind == "cuda":
        # Opening the device and loading its libraries takes longer than the measurement.
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
    """Return the bytes read and written per second by repeated copies."""
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
    """Return the CPU time of a block per thread; a GPU does not wait for the CPU."""
    return busy / torch.get_num_threads() if kind == "cpu" else 1.0


def _fastest(call: Callable[[], object], seconds: float, kind: str, clock: Clock) -> _Block:
    """Return the fastest of at least three blocks, within `seconds`."""

    def block(calls: int) -> _Block:
        start, start_cpu = clock.now(), clock.cpu()
        for _ in range(calls):
            call()
        clock.synchronize()
        wall = clock.now() - start
        return _Block(wall / calls, (clock.cpu() - start_cpu) / wall)

    first = min(block(1).seconds for _ in range(3))
    calls = max(1, round(_BLOCK_S[kind] / max(first, 1e-9)))
    begun = clock.now()
    blocks: list[_Block] = []
    while len(blocks) < _LEAST_BLOCKS or clock.now() - begun < seconds:
        blocks.append(block(calls))
        if clock.now() - begun > 4 * seconds:
            # Three blocks of such slow calls would be too many.
            break
    return min(blocks)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and write one line of JSON to standard output."""
    parser = argparse.ArgumentParser(prog="python -m profstack.launch.peaks")
    parser.add_argument("--dtypes", default="float32", help=f"some of {','.join(DTYPES)}")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(argv)
    dtypes = [dtype for dtype in options.dtypes.split(",") if dtype]
    sys.stdout.write(json.dumps(peaks(dtypes, options.device, options.threads)) + "\n")


# -- peak rates that makers state for GPUs, by torch's name of the GPU --------
# All rates are dense: those "with sparsity" are twice what a product of full matrices can reach.
# Rates of 16-bit types are of tensor cores that add up in float32, as torch does; float64 is of
# tensor cores that support it. There is no figure for a GPU with another name: variants of one chip
# differ in clocks, power and memory. (The B200 is not here: several rates of float64, float32 and
# the memory are stated under that one name.)

_T = 1e12
_G = 1e9


class Sheet(NamedTuple):
    """Operations per second by type, bytes per second of the memory, and their source."""

    flop_per_s: Mapping[str, float]
    bytes_per_s: float
    source: str


def _rates(
    float64: float | None, float32: float, tf32: float | None, half: float
) -> dict[str, float]:
    """Return rates given in TFLOP/s; `half` is float16, and bfloat16 where there is TF32."""
    rates = {"float32": float32, "float16": half, "float64": float64, "tf32": tf32}
    if tf32 is not None:
        rates["bfloat16"] = half
    return {dtype: rate * _T for dtype, rate in rates.items() if rate is not None}


_V100 = _rates(7.8, 15.7, None, 125.0)
_A100 = _rates(19.5, 19.5, 156.0, 312.0)
_H100 = _rates(67.0, 67.0, 494.7, 989.4)
_RTX_3090 = _rates(None, 35.6, 35.6, 71.0)
_RTX_4090 = _rates(None, 82.6, 82.6, 165.2)
_H100_PCIE = _rates(51.2, 51.2, 378.0, 756.0)
_V100_SHEET = "NVIDIA V100 datasheet, January 2020"
_A100_SHEET = "NVIDIA A100 datasheet, June 2021"

_SHEETS = {
    "Tesla V100-SXM2-16GB": Sheet(_V100, 900 * _G, _V100_SHEET),
    "Tesla V100-SXM2-32GB": Sheet(_V100, 900 * _G, _V100_SHEET),
    "Tesla T4": Sheet(_rates(None, 8.1, None, 65.0), 320 * _G, "NVIDIA T4 product page"),
    "NVIDIA A100-SXM4-40GB": Sheet(_A100, 1555 * _G, _A100_SHEET),
    "NVIDIA A100-PCIE-40GB": Sheet(_A100, 1555 * _G, _A100_SHEET),
    "NVIDIA A100-SXM4-80GB": Sheet(_A100, 2039 * _G, _A100_SHEET),
    "NVIDIA A100 80GB PCIe": Sheet(_A100, 1935 * _G, _A100_SHEET),
    "NVIDIA A10": Sheet(_rates(None, 31.2, 62.5, 125.0), 600 * _G, "NVIDIA A10 datasheet"),
    "NVIDIA L4": Sheet(_rates(None, 30.3, 60.0, 121.0), 300 * _G, "NVIDIA L4 datasheet, halved"),
    "NVIDIA L40S": Sheet(_rates(None, 91.6, 183.0, 362.05), 864 * _G, "NVIDIA L40S datasheet"),
    "NVIDIA H100 80GB HBM3": Sheet(_H100, 3350 * _G, "NVIDIA H100 whitepaper and datasheet, SXM5"),
    "NVIDIA H100 PCIe": Sheet(_H100_PCIE, 2000 * _G, "NVIDIA H100 whitepaper, PCIe"),
    "NVIDIA H200": Sheet(_H100, 4800 * _G, "NVIDIA H200 datasheet, halved where with sparsity"),
    "NVIDIA GeForce RTX 3090": Sheet(_RTX_3090, 936 * _G, "NVIDIA Ampere GA102 whitepaper"),
    "NVIDIA GeForce RTX 4090": Sheet(_RTX_4090, 1008 * _G, "NVIDIA Ada whitepaper"),
}


def sheet(name: str | None) -> Sheet | None:
    """Return the maker's rates for the GPU of exactly that name; None for any other."""
    return _SHEETS.get(name or "")


# -- the peaks in a recording ------------------------------------------------
# They are written into its `logs/peaks.json` once the script has ended: a report made later or
# elsewhere is about the machine of the run.

_ABOUT_S = 2
# Types with less of the operators' time than this are not measured.
_LEAST_SHARE = 0.01
NO_TORCH = "the run has no torch in it"


def keep_peaks(
    folder: Path,
    *,
    measure: bool = True,
    later: bool = False,
    tell: Callable[[str], None] | None = None,
    run: Runner | None = None,
) -> bool:
    """Write the peaks into a complete recording that has none yet; never raises.

    Peaks that are not cached are measured if `measure` is true and PROFSTACK_PEAKS is not 0, after
    a line to `tell`. With `later` they are not measured now: what is known is written for the time
    being. `run` starts the measuring process and may give way: then nothing is written. Return
    whether they are still to be measured.
    """
    if (folder / PEAKS).exists() and not are_pending(folder):
        return False
    measure = measure and os.environ.get("PROFSTACK_PEAKS") != "0"
    pending = False
    try:
        content, pending = _find(folder, measure=measure, later=later, tell=tell, run=run)
    except GaveWayError:
        return True
    except Exception as error:
        content = no_peaks(None, f"the peaks could not be found: {type(error).__name__}: {error}")
    # Not where the recording was deleted meanwhile.
    with contextlib.suppress(OSError):
        unfinished = folder / f"{PEAKS}~"
        unfinished.write_text(json.dumps({**content, _PENDING: pending}), encoding="utf-8")
        unfinished.replace(folder / PEAKS)
    return pending


_PENDING = "pending"
_LATER = (
    "the peaks of this machine were not known yet: they are measured once, after a run; "
    "next, some seconds later: profstack report"
)


def are_pending(folder: Path) -> bool:
    """Return whether a recording's peaks were to be measured after its run."""
    try:
        return bool(read_json(folder / PEAKS, _KeptPeaks, inside=folder).get(_PENDING))
    except (OSError, RecordingError):
        return False


class _KeptPeaks(TypedDict, total=False):
    pending: bool


def _find(
    folder: Path,
    *,
    measure: bool,
    later: bool,
    tell: Callable[[str], None] | None,
    run: Runner | None,
) -> tuple[Peaks, bool]:
    """Return the peaks of a recording's machine: cached, measured, and stated by the maker.

    Also return whether they are to be measured later.
    """
    environment, types = _read_facts(folder)
    device, gpu, torch = (environment.get(key) for key in ("device", "gpu", "torch"))
    if device is None:
        return no_peaks(None, NO_TORCH), False
    if device not in ("cpu", "cuda"):
        unknown = Machine(device, None, None, None, None)
        return no_peaks(unknown, "peaks are measured on CPUs and on CUDA devices alone"), False
    machine = _machine(device, gpu, environment.get("torch_threads"), torch)
    wanted = _wanted(types, device)
    found = cached(machine, wanted)
    pending = found is None and measure and later
    if pending:
        # Rates that may be better by now are better than none.
        found = cached(machine, wanted, also_old=True) or no_peaks(machine, _LATER)
    elif found is None and measure:
        if tell is not None:
            tell(f"profstack: measuring this machine's peaks, once (about {_ABOUT_S} s)")
        found = measured(machine, wanted, run)
    if found is None:
        why = "the peaks of this machine are not known, and were not to be measured"
        without = "profstack run without --no-peaks and without PROFSTACK_PEAKS=0"
        found = no_peaks(machine, f"{why}; next: {without}")
    stated = sheet(gpu)
    if stated is not None:
        how = stated.source
        found["flop_per_s"] += [
            {"dtype": dtype, "value": value, "source": "datasheet", "how": f"{how}, dense"}
            for dtype, value in stated.flop_per_s.items()
        ]
        memory: MemoryPeak = {"value": stated.bytes_per_s, "source": "datasheet", "how": how}
        found["bytes_per_s"].append(memory)
    return found, pending


def _read_facts(folder: Path) -> tuple[Mapping[str, Any], dict[str, float]]:
    """Read the environment of the measured process, and the operators' time by type."""
    tables = read_tables(folder, ("moved_bytes",))
    names, rows = tables["moved_bytes"]
    type_at, time_at = names.index("dtype"), names.index("total_s")
    times: dict[str, float] = {}
    for row in rows:
        if row[type_at] is not None:
            times[row[type_at]] = times.get(row[type_at], 0.0) + (row[time_at] or 0.0)
    return facts_of(tables).get("environment", {}), times


def _wanted(types: Mapping[str, float], device: str) -> list[str]:
    """Return the types to measure, in the order of `DTYPES`; float32 by default."""
    whole = sum(types.values())
    used = {name for name, time in types.items() if time >= _LEAST_SHARE * whole}
    if device == "cuda" and "float32" in used:
        # Convolutions use it unless the script forbids it, products if the script allows it.
        used.add("tf32")
    return [name for name in DTYPES if name in used] or ["float32"]


if __name__ == "__main__":
    main()
