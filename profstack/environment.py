"""The machine a run took place on, and its processes and threads, without importing torch.

The only module that reads /proc. A fact that this system does not give is None. Values of
environment variables never become facts: what is gathered here is shown to other people.

The watch loads this before the script's first line: not even `__future__` may be imported.
"""

import os

from profstack.interrupts import is_scripts

# Variables that change speed; the page says which of them were set, not what to.
_SPEED_VARIABLES = (
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "KMP_AFFINITY",
    "LD_PRELOAD",
    "MALLOC_ARENA_MAX",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "OPENBLAS_NUM_THREADS",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCHDYNAMO_DISABLE",
)

_STATM = "/proc/self/statm"
_STATM_FIELDS = 7


def environment_facts(folder: str | os.PathLike[str] | None = None) -> dict[str, object]:
    """Facts for `environment{}` of the report; `folder` is where the measured script lies."""
    import platform

    from profstack.software import PACKAGES, commit_facts, package_versions

    physical, model = _processor()
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": platform.platform(),
        "cpu": model or platform.processor() or platform.machine() or None,
        "physical_cores": physical,
        "logical_cores": os.cpu_count(),
        "usable_cores": _usable_cores(),
        "cpu_limit_cores": _cpu_limit(),
        "cpu_governor": _first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "load_average": _load_average(),
        "memory_bytes": _memory_bytes(),
        "memory_limit_bytes": _memory_limit(),
        "packages": package_versions(PACKAGES),
        "variables_set": [name for name in _SPEED_VARIABLES if name in os.environ],
        **(commit_facts(folder) if folder is not None else {"commit": None, "changed": None}),
    }


def under_nsys() -> bool:
    """Whether Nsight Systems observes this process and those that it starts."""
    return bool(os.environ.get("NSYS_PROFILING_SESSION_ID"))


class _ResidentSet:
    """An open file on this process's memory counters, reopened in a forked child."""

    def __init__(self) -> None:
        self._pid = 0
        self._file = -1
        self._page_bytes = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0

    def read(self) -> int | None:
        """Bytes resident now."""
        size = self.size_in(self.text())
        if size is None and self._file >= 0:
            # The script closed the descriptor, or closed it and has another file there now.
            self._open()
            size = self.size_in(self.text())
        return size

    def text(self) -> bytes:
        """What the system says now; nothing where it does not.

        Up to here nothing is allocated that could have garbage collected, and from here on the
        interpreter is not let go of.
        """
        # The file belongs to the process that opened it: a child would read its parent's.
        if self._pid != os.getpid():
            self._open()
        if self._file < 0:
            return b""
        try:
            return os.pread(self._file, 128, 0)
        except OSError as error:
            if is_scripts(error):
                raise
            return b""

    def size_in(self, text: bytes) -> int | None:
        """Bytes resident by what the system said."""
        fields = text.split()
        try:
            return int(fields[1]) * self._page_bytes if len(fields) == _STATM_FIELDS else None
        except ValueError:
            return None

    def _open(self) -> None:
        # The old descriptor is not closed: its number may be the script's by now.
        self._pid = os.getpid()
        try:
            self._file = os.open(_STATM, os.O_RDONLY)
        except OSError as error:
            self._file = -1
            if is_scripts(error):
                raise


_resident_set = _ResidentSet()
rss_bytes = _resident_set.read
# The same in two steps, for a thread on which nothing may be allocated while others can run.
rss_text, rss_in = _resident_set.text, _resident_set.size_in


def _read(path: str) -> str | None:
    """A small system file as text."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def _first_line(path: str) -> str | None:
    text = _read(path)
    return text.splitlines()[0].strip() if text and text.strip() else None


def _processor() -> tuple[int | None, str | None]:
    """Number of physical cores and the processor's name."""
    model = None
    cores = set()
    text = _read("/proc/cpuinfo") or ""
    for block in text.split("\n\n"):
        fields = dict(_field(line) for line in block.splitlines() if ":" in line)
        model = model or fields.get("model name")
        if "core id" in fields:
            cores.add((fields.get("physical id"), fields["core id"]))
    return len(cores) or None, model


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()


def _usable_cores() -> int | None:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _cpu_limit() -> float | None:
    """Cores' worth of time a container may use, None where it is not limited."""
    quota, _, period = (_first_line("/sys/fs/cgroup/cpu.max") or "").partition(" ")
    if not (quota.isdigit() and period.isdigit()):
        return None
    return int(quota) / int(period)


def _memory_limit() -> int | None:
    """Bytes a container may use, None where it is not limited."""
    limit = _first_line("/sys/fs/cgroup/memory.max") or ""
    return int(limit) if limit.isdigit() else None


def _memory_bytes() -> int | None:
    """Main memory of the machine."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def available_memory_bytes() -> int | None:
    """Bytes that may still be taken without swapping: of the machine, or of a container's rest.

    None where neither is told.
    """
    fields = dict(_field(line) for line in (_read("/proc/meminfo") or "").splitlines())
    free = fields.get("MemAvailable", "").removesuffix(" kB")
    left = [int(free) * 1024] if free.isdigit() else []
    for line in (_read("/proc/self/cgroup") or "").splitlines():
        _, _, group = line.partition(":")
        controllers, _, path = group.partition(":")
        # Version 2 names no controllers; a limit may stand on any folder above the process's own.
        if not controllers or "memory" in controllers.split(","):
            root = "/sys/fs/cgroup/memory" if controllers else "/sys/fs/cgroup"
            above = [path.rstrip("/")]
            while above[-1]:
                above.append(above[-1].rpartition("/")[0])
            left += [rest for part in above if (rest := _cgroup_rest(root + part)) is not None]
    return max(0, min(left)) if left else None


def _cgroup_rest(folder: str) -> int | None:
    """Bytes that one control group may still take; files kept in memory can be dropped."""
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
    """Most bytes of this process that were resident at once; `reset` starts anew from here.

    `getrusage` cannot be asked: what it says begins with the parent's peak. Where the system does
    not let it be reset, the peak stays that of the whole process.
    """
    if reset:
        try:
            with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
                file.write("5")
        except OSError:
            pass
    fields = dict(_field(line) for line in (_read("/proc/self/status") or "").splitlines())
    peak = fields.get("VmHWM", "").removesuffix(" kB")
    return int(peak) * 1024 if peak.isdigit() else None


# -- threads and processes -----------------------------------------------------------------------


def thread_numbers(process: int | None = None) -> list[int] | None:
    """Native numbers of all threads of a process, by default of this one.

    None where this system does not tell, or the process is gone.
    """
    try:
        return [int(name) for name in os.listdir(f"/proc/{process or 'self'}/task")]
    except OSError as error:
        if is_scripts(error):
            raise
        return None


def thread_name(thread: int, process: int | None = None) -> str | None:
    """What the system calls a thread, at most 15 characters; None where it is gone."""
    text = _read_quickly(f"/proc/{process or 'self'}/task/{thread}/comm")
    return text.decode(errors="replace").strip() or None if text else None


def children_of(thread: int, process: int | None = None) -> list[int] | None:
    """Numbers of the processes that a thread has started and not yet waited for.

    None where the kernel does not tell, or the thread is gone.
    """
    text = _read_quickly(f"/proc/{process or 'self'}/task/{thread}/children")
    return None if text is None else [int(number) for number in text.split()]


def run_delay_s(thread: int) -> float | None:
    """Time since its start for which a thread of this process could have run but had no core."""
    fields = (_read_quickly(f"/proc/self/task/{thread}/schedstat") or b"").split()
    return int(fields[1]) * 1e-9 if len(fields) == 3 and fields[1].isdigit() else None


def _read_quickly(path: str) -> bytes | None:
    """A small system file in a third of the time; None where there is none."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if is_scripts(error):
            raise
        return None
    try:
        return os.read(file, 1 << 16)
    except OSError as error:
        # The thread has ended between the two.
        if is_scripts(error):
            raise
        return None
    finally:
        os.close(file)


def _load_average() -> list[float] | None:
    """Runnable processes over 1, 5 and 15 minutes: other work on the machine shows here."""
    try:
        return [round(value, 2) for value in os.getloadavg()]
    except (AttributeError, OSError):
        return None
