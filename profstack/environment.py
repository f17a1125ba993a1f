"""The machine of a run, its processes and its threads, without importing torch.

The only module that reads /proc. A fact that this system does not have is None. Values of
environment variables never become facts, since these are shown to other people.

The watch loads this before the script's first line: not even `__future__` may be imported.
"""

import os

from profstack.guard import Guard, is_scripts

__version__ = "0.1.0"

# Variables that change speed; the page names those that were set, without their values.
_SPEED_VARIABLES = (
    *("CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "KMP_AFFINITY"),
    *("LD_PRELOAD", "MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"),
    *("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OMP_PROC_BIND", "OPENBLAS_NUM_THREADS"),
    *("PYTORCH_CUDA_ALLOC_CONF", "TORCHDYNAMO_DISABLE"),
)

_STATM = "/proc/self/statm"
_STATM_FIELDS = 7


def environment_facts(folder: str | os.PathLike[str] | None = None) -> dict[str, object]:
    """Return the report's `environment`; `folder` is the measured script's."""
    import platform

    import psutil

    from profstack.privacy import PACKAGES, commit_facts, package_versions

    fields = map(_field, (_read("/proc/cpuinfo") or "").splitlines())
    cpu_name = next((value for name, value in fields if name == "model name"), None)
    memory_limit = _first_line("/sys/fs/cgroup/memory.max") or ""
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": platform.platform(),
        "cpu": cpu_name or platform.processor() or platform.machine() or None,
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "cpu_limit_cores": _cpu_limit(),
        "cpu_governor": _first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "load_average": [round(value, 2) for value in psutil.getloadavg()],
        "memory_bytes": psutil.virtual_memory().total,
        "memory_limit_bytes": int(memory_limit) if memory_limit.isdigit() else None,
        "packages": package_versions(PACKAGES),
        "variables_set": [name for name in _SPEED_VARIABLES if name in os.environ],
        **(commit_facts(folder) if folder is not None else {"commit": None, "changed": None}),
    }


def usable_cores() -> int | None:
    """Return on how many cores this process may run; None where that is not known."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def is_mapped(library: str) -> bool:
    """Return whether a library of this name is loaded in the process; True where nobody knows."""
    maps = _read("/proc/self/maps")
    return maps is None or f"lib{library}" in maps


def huge_page_mode() -> str | None:
    """Return who gets transparent huge pages: always, madvise or never; None where not known."""
    modes = _first_line("/sys/kernel/mm/transparent_hugepage/enabled") or ""
    return next((word.strip("[]") for word in modes.split() if word.startswith("[")), None)


def under_nsys() -> bool:
    """Return whether Nsight Systems observes this process and those that it starts."""
    return bool(os.environ.get("NSYS_PROFILING_SESSION_ID"))


class _ResidentSet:
    """An open file on this process's memory counters, reopened in a forked child."""

    def __init__(self) -> None:
        self._pid = 0
        self._file = -1
        self._page_bytes = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0

    def read(self) -> int | None:
        """Return the bytes resident now."""
        size = self.size_in(self.text())
        if size is None and self._file >= 0:
            # The script closed the descriptor, and may have opened another file there.
            self._open()
            size = self.size_in(self.text())
        return size

    def text(self) -> bytes:
        """Return the system's text on this process's memory; empty where there is none.

        Before the reading nothing is allocated that could start the garbage collector; after it
        the interpreter's lock is held.
        """
        # The file belongs to the process that opened it: a child would read its parent's.
        if self._pid != os.getpid():
            self._open()
        if self._file < 0:
            return b""
        # No `Guard`: nothing may be allocated here.
        try:
            return os.pread(self._file, 128, 0)
        except OSError as error:
            if is_scripts(error):
                raise
            return b""

    def size_in(self, text: bytes) -> int | None:
        """Return the bytes resident from the system's text."""
        fields = text.split()
        try:
            return int(fields[1]) * self._page_bytes if len(fields) == _STATM_FIELDS else None
        except ValueError:
            return None

    def _open(self) -> None:
        # Do not close the old descriptor: its number may be the script's by now.
        self._pid = os.getpid()
        self._file = -1
        with Guard(OSError):
            self._file = os.open(_STATM, os.O_RDONLY)


_resident_set = _ResidentSet()
rss_bytes = _resident_set.read
# The same in two steps, for a thread that must not allocate while others can run.
rss_text, rss_in = _resident_set.text, _resident_set.size_in


def _read(path: str) -> str | None:
    """Read a small system file as text."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def _first_line(path: str) -> str | None:
    text = _read(path)
    return text.splitlines()[0].strip() if text and text.strip() else None


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()


def _cpu_limit() -> float | None:
    """Return the cores' worth of time that a container may use, None without a limit."""
    quota, _, period = (_first_line("/sys/fs/cgroup/cpu.max") or "").partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def available_memory_bytes() -> int | None:
    """Return the bytes still free without swapping, of the machine or within a container's limit.

    None where neither is known.
    """
    fields = dict(_field(line) for line in (_read("/proc/meminfo") or "").splitlines())
    free = fields.get("MemAvailable", "").removesuffix(" kB")
    left = [int(free) * 1024] if free.isdigit() else []
    for line in (_read("/proc/self/cgroup") or "").splitlines():
        _, _, group = line.partition(":")
        controllers, _, path = group.partition(":")
        # Version 2 names no controllers; any folder above the process's own may have a limit.
        if not controllers or "memory" in controllers.split(","):
            root = "/sys/fs/cgroup/memory" if controllers else "/sys/fs/cgroup"
            above = [path.rstrip("/")]
            while above[-1]:
                above.append(above[-1].rpartition("/")[0])
            left += [rest for part in above if (rest := _cgroup_rest(root + part)) is not None]
    return max(0, min(left)) if left else None


def _cgroup_rest(folder: str) -> int | None:
    """Return the bytes that one control group may still take; cached files do not count."""
    for limit, usage, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        most, used = (_first_line(f"{folder}/{name}") or "" for name in (limit, usage))
        if most.isdigit() and used.isdigit():
            lines = (_read(f"{folder}/memory.stat") or "").splitlines()
            kept = dict(line.split()[:2] for line in lines if len(line.split()) >= 2)
            return int(most) - int(used) + int(kept.get(cache, 0))
    return None


def peak_rss_bytes(*, reset: bool = False) -> int | None:
    """Return the most bytes of this process resident at once; `reset` starts a new peak first.

    Not by `getrusage`, which begins with the parent's peak. Where the system does not allow a
    reset, the peak is that of the whole process.
    """
    if reset:
        with Guard(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    fields = dict(_field(line) for line in (_read("/proc/self/status") or "").splitlines())
    peak = fields.get("VmHWM", "").removesuffix(" kB")
    return int(peak) * 1024 if peak.isdigit() else None


# -- threads and processes ---------------------------------------------------


def thread_numbers(process: int | None = None) -> list[int] | None:
    """Return the native numbers of all threads of a process, by default of this one.

    None where the system does not list them, or the process has ended.
    """
    with Guard(OSError):
        return [int(name) for name in os.listdir(f"/proc/{process or 'self'}/task")]
    return None


def thread_name(thread: int, process: int | None = None) -> str | None:
    """Return the system's name of a thread, at most 15 characters; None if it has ended."""
    text = _read_quickly(f"/proc/{process or 'self'}/task/{thread}/comm")
    return text.decode(errors="replace").strip() or None if text else None


def children_of(thread: int, process: int | None = None) -> list[int] | None:
    """Return the numbers of processes that a thread has started and not yet waited for.

    None where the kernel does not list them, or the thread has ended.
    """
    text = _read_quickly(f"/proc/{process or 'self'}/task/{thread}/children")
    return None if text is None else [int(number) for number in text.split()]


def run_delay_s(thread: int) -> float | None:
    """Return the time for which a thread of this process was runnable but had no core."""
    fields = (_read_quickly(f"/proc/self/task/{thread}/schedstat") or b"").split()
    return int(fields[1]) * 1e-9 if len(fields) == 3 and fields[1].isdigit() else None


def run_delays_s() -> dict[int, float]:
    """Return the same of every thread of this process, by its number; empty where not known."""
    try:
        threads = [int(each) for each in os.listdir("/proc/self/task")]
    except (OSError, ValueError):
        return {}
    known = {thread: run_delay_s(thread) for thread in threads}
    return {thread: delay for thread, delay in known.items() if delay is not None}


def others_cpu_s() -> float:
    """Return the CPU time that other programs have used on this machine, seconds of all cores.

    What other virtual machines took from it counts, this process and its children do not.
    """
    import psutil

    times = psutil.cpu_times()
    names = ("user", "nice", "system", "irq", "softirq", "steal")
    busy = sum(float(getattr(times, name, 0.0)) for name in names)
    own = sum(os.times()[:4])
    for child in psutil.Process().children(recursive=True):
        with Guard(psutil.Error):
            own += sum(child.cpu_times()[:2])
    return busy - own


def _read_quickly(path: str) -> bytes | None:
    """Read a small system file, three times as fast as `_read`; None where there is none."""
    # The thread may end between the two calls.
    with Guard(OSError):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(file, 1 << 16)
        finally:
            os.close(file)
    return None
