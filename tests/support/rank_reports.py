"""A made-up report of several ranks, as `profstack merge` makes it."""

from tests.support.full_report import whole
from tests.support.reports import row

# Seconds of a step, what it waits for others, and its parts, of the straggler and of the others.
_STEP_S, _LATE_OWN_S, _OWN_S = 0.05, 0.044, 0.011
_MET = {"skew_s": 0.0165, "transfer_s": 0.002, "bytes_per_s": 3e8, "last_rank": 1}
_MET["last_share"] = 0.75


def of_ranks(count, *, straggler=1, steps=9, missing=()):
    """A report of `count` ranks; the straggler is late by more in each column of two steps."""
    report = whole()
    tables = report["tables"]
    there = [rank for rank in range(count) if rank not in missing]
    own = {rank: _OWN_S + rank * 1e-5 for rank in there} | {straggler: _LATE_OWN_S}
    report["ranks"] = {
        "kind": "rank", "count": len(there), "world_size": count, "missing": [*missing],
        "shown": straggler,
        "straggler": {"rank": straggler, "late_s": own[straggler] - _OWN_S, "since_step": None,
            "rare": None, "whole_node": False},
        "spread_s": max(own.values()) - min(own.values()),
        "collectives": _MET | {"clock_error_s": 4e-5},
        "steps": None,
    }  # fmt: skip
    report["run"] |= {"rank": straggler, "world_size": count, "recorded_ranks": count}
    tables["ranks"] = [_rank(rank, own, straggler) for rank in range(count)]
    tables["rank_parts"] = [
        row("rank_parts", rank=rank, part=part, time_s=seconds)
        for rank in there
        for part, seconds in (("data wait", own[rank] - 0.01), ("backward", _STEP_S - own[rank]),
            ("forward", 0.01))
    ]  # fmt: skip
    tables["rank_steps"] = [
        row("rank_steps", rank=rank, first_step=20 + 2 * at, last_step=21 + 2 * at,
            wall_s=_STEP_S + at * 1e-4, wait_s=own[rank] / 2, cpu_s=None,
            late_s=0.003 * (at + 1) ** 2 if rank == straggler else 0.0)
        for rank in there for at in range(steps)
    ]  # fmt: skip
    work = [("module", "Net.body", 0.010, 0.016), ("operator", "aten::mm", 0.004, 0.013)]
    tables["rank_work"] = [
        row("rank_work", kind=kind, name=name, ranks=len(there), mean_s=middle * 1.1,
            middle_s=middle, most_s=most, most_rank=straggler, more_s=most - middle)
        for kind, name, middle, most in work
    ]  # fmt: skip
    called = {"name": "gloo:all_reduce", "bytes": 600_000, "calls": 1.0, "wall_s": 0.03}
    tables["collectives"] = [row("collectives", hidden_s=0.004, **called, **_MET)]
    report["columns_reason"] |= {"rank_steps.cpu_s": "too short to read", "ranks.ended": "none did"}
    report["cells_reason"] |= {"ranks.step_s": "no report"}
    return report


def _rank(rank, own, straggler):
    folder = f"rank-{rank:05d}"
    if rank not in own:
        return row("ranks", rank=rank, folder=folder, status="missing", ended="it left no report")
    made = row(
        "ranks", rank=rank, node=rank // 8, folder=folder, status="complete", steps=100 + rank,
        step_s=_STEP_S, own_s=own[rank], waits_s=_STEP_S - own[rank], late_s=own[rank] - _OWN_S,
        cause="communication-bound",
    )  # fmt: skip
    late = {"part": "data wait", "part_s": 0.031, "file": "train.py", "line": 61}
    return made | late | {"cause": "input-bound"} if rank == straggler else made
