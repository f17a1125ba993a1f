"""What a step would take if its loading went on beside it.

A step that loads beside its work takes at least its work, at least its share of the loading over
the workers, and at least all CPU time over the cores that there are: a machine with one core gains
nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from profstack.findings.made import WORTH_TELLING

# What a small batch costs on its way from a worker to the step: about 0.1 to 0.3 ms on CPUs of
# the 2020s, for the queue, the shared memory and the threads that wake.
_HANDOVER_S = 0.2e-3
# Where a worker runs Python code all the time, its thread that hands a batch over gets a turn only
# when the interpreter switches threads: Python's own switch interval, 5 ms unless it was set.
_SWITCH_S = 5e-3
# Workers that are worth advising where they do nothing but wait for disks and networks.
_MOST_WAITING = 16
_IN_USE = "the cores are in use: what cheaper samples would save is not known"


@dataclass(frozen=True)
class Loading:
    """What is known of one step's loading; seconds per clean step, that of the median."""

    step_s: float
    wait_s: float
    load_s: float
    # CPU time of the process tree, and the cores it may use; None where nobody told.
    cpu_s: float | None
    cores: float
    # DataLoader workers that were alive, and whether loading is mostly no use of a CPU.
    workers: int
    is_waiting: bool
    # Whether making samples mostly is Python code, which holds the interpreter's lock.
    is_python: bool
    # Batches that a step takes: several where it gathers their gradients.
    batches: float = 1.0
    # What of the loading may be the want of a core for the step's own thread, with workers alive.
    no_core_s: float = 0.0

    @property
    def work_s(self) -> float:
        """The step without its loading: more workers give its thread no core."""
        return max(self.step_s - self.load_s + self.no_core_s, 0.0)

    def wanted(self) -> int:
        """Workers with which loading is no longer the longest part, as far as there are cores."""
        whole = self.load_s if not self.workers else self.workers * self.step_s
        most = _MOST_WAITING if self.is_waiting else max(1, int(self.cores))
        return max(1, min(math.ceil(whole / max(self.work_s, 1e-9)), most))

    def with_workers(self, count: int) -> float:
        """The step with so many workers: it cannot be shorter than any of its parts."""
        whole = self.load_s if not self.workers else self.workers * self.step_s
        cpu_s = self.cpu_s if self.cpu_s is not None else self.step_s
        # What workers that are there already cost is a part of the step.
        each = 0.0 if self.workers else _SWITCH_S if self.is_python else _HANDOVER_S
        return max(self.work_s + self.batches * each, whole / count, cpu_s / self.cores)


def gain_of(loading: Loading, count: int) -> tuple[float | None, str | None]:
    """What so many workers save of a step, and why that is not known."""
    if loading.workers and count <= loading.workers:
        return None, _IN_USE
    gain = loading.step_s - loading.with_workers(count)
    if gain >= WORTH_TELLING * loading.step_s:
        return min(gain, loading.load_s - loading.no_core_s), None
    if loading.cores < 2:
        return None, "with one core nothing can be loaded beside the step"
    if loading.workers:
        return None, _IN_USE
    return None, "handing batches over would take about as long as making them does"
