"""Recordings of known numbers in the making: what the merge is tried on.

Every report built from one is held against the schema that ships with the package.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it ships no types

from profstack.analysis.build import build_report
from profstack.report import files
from profstack.storage.folder import Writer
from profstack.storage.reader import Recorded
from profstack.storage.schema.report import REPORT

CLEAN_S = 0.010
TORCH_S = 0.012
CPROFILE_S = 0.013


class Run:
    """A recording in the making: slices of steps with given times, one after the other."""

    def __init__(self, folder: Path, rule: str = "optimizer", phase: str = "train") -> None:
        (folder / "logs").mkdir(parents=True)
        self.folder = folder
        self.writer = Writer(folder)
        self.steps = 0
        self.slices = 0
        self.now = 1.0
        self.plan = 0
        self.begin_plan(rule, phase)

    def begin_plan(self, rule: str, phase: str) -> None:
        """A new plan begins with the next slice."""
        self.plan += 1
        self.phase = phase
        self.writer.facts({f"plan_{self.plan}": {"rule": rule, "phase": phase}})

    def slice(
        self,
        kind: str,
        walls: list[float],
        *,
        layer: str | None = None,
        mode: str | None = None,
        number: int = 2,
        flags: dict[int, str] | None = None,
        batches: dict[int, int] | None = None,
        left_out: tuple[int, ...] = (),
        cpus: list[float] | None = None,
        frames: dict[str, list[dict[str, Any]]] | None = None,
    ) -> int:
        """Write a slice of steps with these times; returns its number.

        `frames` are the layer's rows, without their slice; `left_out` the steps that are not in
        them. `cpus` are the steps' readings of the CPU clock, half of their times if not given.
        """
        index = self.slices
        first, begun = self.steps, self.now
        steps = []
        for position, wall in enumerate(walls):
            words = (flags or {}).get(position, "")
            steps.append(
                {
                    "step": self.steps,
                    "plan": self.plan,
                    "phase": self.phase,
                    "slice": index,
                    "started_s": self.now,
                    "wall_s": wall,
                    "cpu_s": cpus[position] if cpus else wall / 2,
                    "batch_size": (batches or {}).get(position, 32),
                    "shape": "32x8",
                    "flags": words,
                }
            )
            self.steps += 1
            self.now += wall
        row = {
            "slice": index,
            "kind": kind,
            "layer": layer,
            "mode": mode,
            "plan": self.plan,
            "phase": self.phase,
            "round": number,
            "first_step": first,
            "steps": len(walls),
            "started_s": begun,
            "wall_s": sum(walls),
            "cpu_s": sum(cpus) if cpus else sum(walls) / 2,
            "counted_steps": len(walls) - len(left_out),
            "counted_wall_s": sum(walls) - sum(walls[position] for position in left_out),
            "settle_steps": 1,
            "stop_s": 0.5 if layer else None,
        }
        rows = {
            table: [{**record, "slice": index} for record in records]
            for table, records in (frames or {}).items()
        }
        self.slices += 1
        self.writer.write({"slices": [row], "steps": steps, **rows})
        return index

    def clean(self, count: int = 5, wall: float = CLEAN_S, **keywords: Any) -> int:
        """A clean slice."""
        return self.slice("clean", [wall] * count, **keywords)

    def torch(self, walls: list[float], mode: str = "timed", **keywords: Any) -> int:
        """A slice of the torch layer."""
        return self.slice("torch", walls, layer="torch", mode=mode, **keywords)

    def cprofile(self, walls: list[float], mode: str = "timed", **keywords: Any) -> int:
        """A slice of the cprofile layer."""
        return self.slice("cprofile", walls, layer="cprofile", mode=mode, **keywords)

    def layers(self, **statuses: str) -> None:
        """The rows of the layers, by their status."""
        records = [{"name": name, "status": status} for name, status in statuses.items()]
        self.writer.replace("layers", records)

    def finish(self, *, ended: bool = True, run: dict[str, Any] | None = None) -> dict[str, Any]:
        """Close the recording and build its report."""
        if ended:
            counts = {self.phase: self.steps}
            self.writer.facts({"counts_by_phase": counts, "recording_ended": 1.0})
        self.writer.close()
        if run is None:
            run = {
                "script": "train.py",
                "argv": ["train.py", "--size", "a b"],
                "run": {"id": "x", "exit_code": 0, "signal": None},
                "environment": {"python": "3", "torch": "2"},
            }
        (self.folder / "logs" / "run.json").write_text(json.dumps(run))
        return report_of(self.folder)


def report_of(folder: Path) -> dict[str, Any]:
    """The report, as a program reads it, valid by the schema."""
    report = json.loads(files.text(build_report(Recorded(folder))))
    jsonschema.validate(report, files.schema())
    for name, table in REPORT.items():
        for row in report["tables"][name]:
            assert set(table.names) <= set(row), name
    return report


def module_times(module: int, calls: int, total_s: float, **more: float) -> dict[str, Any]:
    """A record of `module_times`."""
    times = {"forward_s": total_s, "forward_self_s": total_s, "backward_s": 0.0}
    return {"module_id": module, "calls": calls, **times, "backward_self_s": 0.0, **more}


def module(number: int, path: str, parent: int | None = None) -> dict[str, Any]:
    """A record of `modules`."""
    return {
        "module_id": number,
        "path": path,
        "type": path.rpartition(".")[2],
        "instance": 1,
        "parent_id": parent,
        "aliases": "[]",
        "parameters": 10,
    }


def operator(name: str, calls: int, self_s: float, **more: Any) -> dict[str, Any]:
    """A record of `operators`."""
    return {"name": name, "calls": calls, "self_s": self_s, "total_s": self_s, **more}


def function(name: str, calls: int, self_s: float, **more: Any) -> dict[str, Any]:
    """A record of `functions`."""
    place = {"file": "train.py", "line": 3, "name": name}
    return {**place, "calls": calls, "primitive_calls": calls, "self_s": self_s, **more}


def by(rows: list[dict[str, Any]], key: str) -> dict[Any, dict[str, Any]]:
    """The rows by one of their columns."""
    return {row[key]: row for row in rows}
