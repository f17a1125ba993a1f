"""A host and a device of virtual time: what is measured on them is known exactly.

A stand-in for an accelerator, which no machine of the tests has: work is launched at once, done
later, and waited for by the clock alone. Its events behave as CUDA's do by their contract.
"""

from types import SimpleNamespace

from profstack.stats.clock import Clock


class Event:
    """A mark in the device's queue: an error when read before the device has come to it."""

    def __init__(self, machine):
        self.machine, self.passed_at = machine, 0.0

    def record(self):
        self.passed_at = max(self.machine.host_s, self.machine.device_s)

    def elapsed_time(self, other):
        if max(self.passed_at, other.passed_at) > self.machine.host_s:
            raise RuntimeError("CUDA error: device not ready\nCompile with ...")
        return (other.passed_at - self.passed_at) * 1e3


class Machine:
    """Virtual time; `has_device` says whether it has an accelerator beside the host."""

    def __init__(self, *, has_device):
        self.has_device, self.host_s, self.device_s = has_device, 1.0, 0.0

    def work(self, seconds):
        self.host_s += seconds

    def launch(self, seconds, *, launch_s):
        """The device will be busy, after what it still has to do."""
        self.work(launch_s)
        self.device_s = max(self.device_s, self.host_s) + seconds

    def synchronize(self, index=0):
        self.host_s = max(self.host_s, self.device_s)

    def clock(self):
        """A clock that reads virtual time and waits for the virtual device."""
        cuda = SimpleNamespace(is_initialized=lambda: True, synchronize=self.synchronize)
        cuda.device_count, cuda.current_device = lambda: 1, lambda: 0
        cuda.Event = lambda enable_timing: Event(self)
        kind = SimpleNamespace(type="cuda") if self.has_device else None
        found = SimpleNamespace(current_accelerator=lambda check_available=False: kind)
        context = SimpleNamespace(_cuda_hasPrimaryContext=lambda index: True)
        clock = Clock(SimpleNamespace(cuda=cuda, accelerator=found, _C=context))
        clock.now = clock.cpu = lambda: self.host_s
        return clock


class FakeDevice:
    """What is used of `torch.cuda`, for machines that have none: an allocator of 800 bytes."""

    def __init__(self):
        self.fraction, self.seen = 1.0, []
        self.empty_cache = lambda: self.seen.append("empty_cache")
        self.reset_peak_memory_stats = lambda: self.seen.append("reset")
        self.max_memory_allocated, self.memory_reserved = lambda: 500, lambda: 200
        self.mem_get_info = lambda: (600, 800)
        self.get_per_process_memory_fraction = lambda: self.fraction

    def set_per_process_memory_fraction(self, fraction):
        self.seen.append(f"fraction {fraction}")
        self.fraction = fraction
