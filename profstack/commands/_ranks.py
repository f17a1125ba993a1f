"""Which rank of a launch a process is, and which of them record."""

from __future__ import annotations

import os

from profstack.errors import UsageError


def own_rank() -> int | None:
    """The rank of this process; None where there is no launch of several."""
    for name in ("RANK", "SLURM_PROCID"):
        value = _int_variable(name)
        if value is not None:
            return value
    return None


def world_size() -> int | None:
    """How many processes the launch has; None where nothing says it."""
    return _int_variable("WORLD_SIZE")


def launch_key() -> str:
    """What all ranks of one launch have in common, and no other launch has."""
    for names in (("TORCHELASTIC_RUN_ID", "MASTER_PORT"), ("SLURM_JOB_ID", "SLURM_STEP_ID")):
        values = [os.environ.get(name, "") for name in names]
        if values[0] and values[0] != "none":
            return "-".join(values)
    return f"parent-{os.getppid()}"


def recording_ranks(ranks: str) -> set[int] | None:
    """The ranks that record; None for all of them."""
    if ranks == "all":
        return None
    try:
        return {int(word) for word in ranks.split(",")}
    except ValueError:
        raise UsageError(
            f"--ranks {ranks} names no ranks", next_step="give 0, 0,3 or all"
        ) from None


def missing_ranks(recorded: set[int] | None) -> str | None:
    """In words which of the ranks that are to record the launch has not; None where it has all."""
    size = world_size()
    missing = sorted(rank for rank in recorded or () if size is not None and rank >= size)
    if not missing or size is None:
        return None
    there = {1: "0", 2: "0 and 1"}.get(size, f"0 to {size - 1}")
    return f"no rank {', '.join(map(str, missing))} among {there}"


def _int_variable(name: str) -> int | None:
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else None
