"""The folder of a benchmark's recording, in which its processes and the command meet.

The command leaves the options there, each process its figures, the first one its layers; at the
end all of it becomes one recording.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from profstack.benchmark.processes import between, join_compared
from profstack.recording import DATABASE, Writer

OPTIONS = "logs/bench.json"
# The recording of the layers while it is made: a recording of its own.
LAYERS = "logs/layers"
# In place of a process's number: it records the layers and measures nothing.
LAYERS_ALONE = "layers"
FACT = "bench"
INTERRUPTED = 130
_PAGES = ("report.html", "report.json")


def result_path(folder: Path, process: int | str) -> Path:
    """Where the figures of one process lie."""
    return folder / "logs" / f"bench-{process}.json"


def read_results(folder: Path, processes: int) -> list[dict[str, Any] | None]:
    """What each process left; None for one that left nothing."""
    return [_read(result_path(folder, number)) for number in range(processes)]


def layers_problems(folder: Path, code: int | None) -> list[str]:
    """What went wrong in the process of the layers alone; `code` is None where there was none."""
    if code is None:
        return []
    found = _problems([_read(result_path(folder, LAYERS_ALONE))], [code])
    return [f"the process of the layers: {problem}" for problem in found]


def _read(path: Path) -> dict[str, Any] | None:
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return result


def joined(results: Sequence[Mapping[str, Any] | None], codes: Sequence[int]) -> dict[str, Any]:
    """The figures of all processes as one fact of the recording.

    The first process that gave any has the headline; `codes` are the exit codes.
    """
    figures = [result["figures"] if result else None for result in results]
    first = next((one for one in figures if one and one.get("median_s") is not None), None)
    fact: dict[str, Any] = {"figures": None, "problems": _problems(results, codes)}
    if first is None:
        return fact
    fact["figures"] = joined_figures = dict(first)
    if len(results) > 1:
        medians = [one.get("median_s") if one else None for one in figures]
        joined_figures["between_process"] = between(medians)
        compared = [one["compare"] for one in figures if one and one.get("compare")]
        if compared:
            joined_figures["compare"] = join_compared(compared)
    return fact


def _problems(results: Sequence[Mapping[str, Any] | None], codes: Sequence[int]) -> list[str]:
    """What went wrong in which process, in words."""
    problems = []
    for number, (result, code) in enumerate(zip(results, codes, strict=False)):
        which = f"process {number + 1}: " if len(results) > 1 else ""
        error = result.get("error") if result else None
        if code == -signal.SIGINT or (code == INTERRUPTED and not error):
            error = "interrupted (Ctrl-C)"
        elif code < 0:
            error = f"ended by signal {-code}"
        elif error == "KeyboardInterrupt":
            error = "interrupted (Ctrl-C)"
        elif code and not error:
            error = f"ended with exit code {code}"
        if error:
            problems.append(f"{which}{error}")
        if result and result.get("layers_problem"):
            problems.append(f"{which}the layers failed: {result['layers_problem']}")
    return problems


def take_layers(folder: Path) -> bool:
    """Make the layers' recording part of the benchmark's own; false where there is none.

    Also where its process was killed: what it had written by then is there.
    """
    made = folder / LAYERS
    if not made.is_dir():
        return False
    for entry in made.iterdir():
        if entry.name in _PAGES:
            entry.unlink()
        elif entry.name == "logs":
            for log in entry.iterdir():
                # Peaks are found for the recording as a whole.
                if log.name != "peaks.json":
                    log.replace(folder / "logs" / log.name)
        else:
            entry.replace(folder / entry.name)
    shutil.rmtree(made)
    return (folder / DATABASE).is_file()


def write_figures(folder: Path, fact: Mapping[str, Any], without_layers: Mapping[str, str]) -> None:
    """Write the figures into the recording; `without_layers` says why each layer has no slice."""
    writer = Writer(folder)
    writer.facts({FACT: fact})
    if without_layers:
        rows = [
            {"name": name, "status": "skipped", "reason": reason}
            for name, reason in without_layers.items()
        ]
        writer.write({"layers": rows})
    writer.close()
