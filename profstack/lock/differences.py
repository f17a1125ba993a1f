"""Compare facts with a lock: what differs, and what cannot be compared on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from profstack.lock.facts import (
    BACKWARD,
    COMPILE,
    COPIES,
    KERNEL,
    MEMORY,
    MODULE,
    OPERATOR,
    STEP,
    SYNCHRONISATIONS,
    Facts,
    Key,
    Value,
)
from profstack.lock.lockfile import Lock, Table

# Facts by what they depend on, beside the script.
ANYWHERE, ON_TORCH, ON_MACHINE = "anywhere", "torch", "machine"


@dataclass(frozen=True)
class Difference:
    """A fact that differs; 0 stands for one that is missing on a side."""

    key: Key
    locked: Value
    now: Value


@dataclass(frozen=True)
class Comparison:
    """The differences, the number of facts compared, and in sentences why others were not."""

    differences: list[Difference]
    compared: int
    notes: list[str]


def depends_on(key: Key) -> str:
    """Return what a fact depends on: nothing else, torch and the kind of device, or the machine."""
    if key.section == MEMORY or key.name.startswith("allocated_"):
        return ON_MACHINE
    if key.section == COMPILE or key.name == COPIES:
        return ON_TORCH
    if key.section == SYNCHRONISATIONS:
        # Methods that the script calls are the same everywhere.
        return ANYWHERE if key.name.endswith("()") else ON_TORCH
    if key.section in (MODULE, STEP) and key.name.startswith((OPERATOR, BACKWARD, KERNEL)):
        return ON_TORCH
    return ANYWHERE


def compare(lock: Lock, now: Facts, made: Table) -> Comparison:
    """Compare the facts of a run with a lock; `made` says with what the run was made."""
    is_compared, notes = _scope(lock.made, made)
    keys = [key for key in dict.fromkeys([*lock.facts, *now]) if key not in lock.unstable]
    chosen = [key for key in keys if is_compared(key)]
    differences = [
        Difference(key, lock.facts.get(key, 0), now.get(key, 0))
        for key in chosen
        if lock.facts.get(key, 0) != now.get(key, 0)
    ]
    if lock.unstable:
        count = len(lock.unstable)
        notes.append(f"{count} facts are not compared: they differed while locking ([unstable])")
    return Comparison(differences, len(chosen), notes)


def _scope(locked: Table, made: Table) -> tuple[Callable[[Key], bool], list[str]]:
    """Return which facts can be compared, and sentences on the others."""
    left_out: set[str] = set()
    notes = []

    def differing(name: str) -> bool:
        return locked.get(name) != made.get(name)

    def words(name: str) -> str:
        return f"the lock has {name} {locked.get(name)}, this run {made.get(name)}"

    portable = "parameters, FLOP, inputs, calls of modules and of own functions are compared"
    for name in ("torch", "device"):
        if differing(name):
            left_out |= {ON_TORCH, ON_MACHINE}
            notes.append(f"{words(name)}: {portable}; operators, memory and compilations are not")
    for name in ("threads", "cpu"):
        if differing(name) and ON_MACHINE not in left_out:
            left_out.add(ON_MACHINE)
            notes.append(f"{words(name)}: memory and allocations are not compared")
    if differing("arguments"):
        notes.append(f"{words('arguments')}: everything is compared all the same")
    return lambda key: depends_on(key) not in left_out, notes
