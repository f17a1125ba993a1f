"""Made-up launches of several ranks: own times with noise, and the waits that follow from them."""

from types import SimpleNamespace

import numpy as np

from profstack.ranks.rank import Rank
from tests.support.reports import build
from tests.support.tables import rows_of

# Steps of a launch whose waits are known; in the others a layer measures.
CLEAN = [at for at in range(12, 120) if at % 12 < 7]


def launch(count=2, *, late=None, kind="wait", noise=0.05, seed=3, traced=None, nodes=None):
    """Ranks whose own work takes 8 ms of a step, and `late[rank](step)` seconds more.

    In a collective all wait for the last, so that a rank's wait is what it lacks to that, and 1 ms
    of transfer. Lateness is a wait before the model ("wait"), CPU time ("cpu") or neither
    ("sleep"). `traced` is by how much the torch layer's few steps saw each rank late; by default it
    is the mean.
    """
    random = np.random.default_rng(seed)
    late = {**{rank: lambda step: 0.0 for rank in range(count)}, **(late or {})}
    own = {
        rank: {step: 0.008 * random.lognormal(0.0, noise) + late[rank](step) for step in range(120)}
        for rank in range(count)
    }
    means = {rank: float(np.mean([times[step] for step in CLEAN])) for rank, times in own.items()}
    if traced is not None:
        means = {rank: 0.008 + traced.get(rank, 0.0) for rank in own}
    step_s = float(np.median([max(own[rank][step] for rank in own) for step in CLEAN])) + 0.001
    reports = [
        _report(rank, own[rank], late[rank], kind, step_s,
            max(means.values()) - means[rank] + 0.001, count, (nodes or {}).get(rank))
        for rank in range(count)
    ]  # fmt: skip
    return [
        _Launched(number=rank, folder=f"rank-{rank:05d}", report=report)
        for rank, report in enumerate(reports)
    ]


class _Launched(SimpleNamespace):
    """A rank with its report, which a test may change."""

    @property
    def rank(self):
        return Rank.of(self.number, self.folder, self.report)


def _report(rank, own, late, kind, step_s, waits_s, count, node):
    part = {"wait": "data wait", "cpu": "forward", "sleep": "Python"}[kind]
    more = float(np.mean([late(step) for step in CLEAN]))
    parts = {"data wait": 0.001, "forward": 0.003, "Python": 0.001, "backward": 0.003}
    parts[part] += more
    parts["idle"] = step_s - sum(parts.values())
    bar = [(name, seconds, seconds / step_s) for name, seconds in parts.items()]
    bar = rows_of("name seconds share", *bar, link=None, **{"is": "calibrated"})
    waits = {at: 0.001 + late(at) * (kind == "wait") for at in CLEAN}
    cpus = {at: own[at] - 0.001 - late(at) * (kind != "cpu") for at in own}
    steps = [(at, int(at not in CLEAN), waits.get(at), cpus[at]) for at in own]
    same = {"phase": "train", "flags": None, "wall_s": step_s}
    evidence = {"test": "communication-bound", "share": waits_s / step_s}
    verdict = {"slug": "balanced", "sentence": f"Of {rank}.", "evidence": [evidence]}
    whole = build() | {"status_reason": None, "setup": {}, "sources": [], "run_bar": []}
    whole["run"] |= {"rank": rank, "world_size": count, "node": node, "ended_at": None}
    whole["benchmark"]["median_s"] = step_s
    whole["step"] |= {"count": 120, "batch_size": 16}
    whole["tables"]["steps"] = rows_of("index slice wait_s cpu_s", *steps, **same)
    return whole | {
        "verdict": verdict | {"sureness": "certain", "action": "Load less."},
        "step_bar": {"median_s": step_s, "reason": None, "parts": bar},
        "slices": rows_of(
            "index kind first_step steps wall_s",
            *((0, "clean", 0, len(CLEAN), len(CLEAN) * step_s), (1, "torch", 99, 1, step_s)),
            plan=1,
        ),
    }
