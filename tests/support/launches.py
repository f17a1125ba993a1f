"""Made-up launches of several ranks: own times with noise, and the waits that follow from them."""

import numpy as np

from profstack.ranks.straggler import Rank
from tests.support.reports import build

# Steps of a launch whose waits are known; in the others a layer measures.
CLEAN = [at for at in range(12, 120) if at % 12 < 7]
STEP_S = 0.02


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
    return [
        Rank(rank, f"rank-{rank:05d}", _report(rank, own[rank], late[rank], kind, step_s,
             max(means.values()) - means[rank] + 0.001, count, (nodes or {}).get(rank)))
        for rank in range(count)
    ]  # fmt: skip


def _report(rank, own, late, kind, step_s, waits_s, count, node):
    part = {"wait": "data wait", "cpu": "forward", "sleep": "Python"}[kind]
    more = float(np.mean([late(step) for step in CLEAN]))
    parts = {"data wait": 0.001, "forward": 0.003, "Python": 0.001, "backward": 0.003}
    parts[part] += more
    steps = [
        {
            "index": step, "phase": "train", "slice": int(step not in CLEAN), "flags": None,
            "wall_s": step_s,
            "wait_s": 0.001 + late(step) * (kind == "wait") if step in CLEAN else None,
            "cpu_s": own[step] - 0.001 - late(step) * (kind != "cpu"),
        }
        for step in own
    ]  # fmt: skip
    whole = build()
    evidence = {"test": "communication-bound", "share": waits_s / step_s}
    return {
        **whole,
        "run": {**whole["run"], "rank": rank, "world_size": count, "node": node, "ended_at": None},
        "status_reason": None,
        "benchmark": {**whole["benchmark"], "median_s": step_s},
        "setup": {}, "sources": [], "run_bar": [],
        "verdict": {"slug": "balanced", "sentence": f"Of {rank}.", "evidence": [evidence],
                    "sureness": "certain", "action": "Load less."},
        "step_bar": {"median_s": step_s, "reason": None, "parts": [
            {"name": name, "seconds": seconds, "share": seconds / step_s, "link": None,
             "is": "calibrated"}
            for name, seconds in {**parts, "idle": step_s - sum(parts.values())}.items()]},
        "slices": [{"index": 0, "kind": "clean"}, {"index": 1, "kind": "torch"}],
        "step": {**whole["step"], "count": 120, "batch_size": 16},
        "tables": {**whole["tables"], "steps": steps},
    }  # fmt: skip
