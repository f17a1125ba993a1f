"""Second runs of a script: under Nsight Systems, or to fill layers that stayed empty.

The engine ends the script after the wanted steps; where there are none, or the script does not end,
nsys ends it at its time limit. The output of the script is discarded: it was printed in the run
before.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from profstack.capture.loops import BeginAt
from profstack.launch.process import end_session, interrupted_by_signals
from profstack.readers.nsys import tool
from profstack.readers.nsys.tool import Nsys, NsysError
from profstack.storage.folder import DATABASE, declared_tables
from profstack.storage.schema.recorded import RECORDED

if TYPE_CHECKING:
    from profstack.capture.run import RunOptions

# Safe in containers, which lack the rights for sampling and context switches.
_SAFE = ("--sample=none", "--cpuctxsw=none")
_ON_THE_HOST = ("--trace=nvtx,osrt",)
# nsys records the calls that allocate device memory; PyTorch makes few of them.
_ON_A_DEVICE = ("--trace=cuda,nvtx,osrt,cudnn,cublas", "--cuda-memory-usage=true")
_OF_NSYS = re.compile(r"^Importer error|QDSTRM")
# Time for nsys to write its files once the script has ended.
_WRITING_S = 600
# Nsys takes them to end the script and itself.
_ENDING = (signal.SIGINT, signal.SIGTERM)
# Time for nsys to end after a signal.
_GRACE_S = 30


@dataclass(frozen=True)
class NsysRun:
    """A run under nsys: its report, and whether the time limit ended the script.

    `exit_code` is the script's, 128 + n for signal n; `said` the last line on its standard error.
    """

    report: Path
    exit_code: int
    timed_out: bool
    said: str


def capture(
    nsys: Nsys,
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    *,
    on_device: bool,
    limit_s: int,
) -> NsysRun:
    """Run `command` under nsys for at most `limit_s` seconds; its report is written to `folder`.

    CUDA calls are traced only `on_device`. Raises NsysError where nsys writes no report, and
    KeyboardInterrupt, once nsys has ended, on SIGINT or SIGTERM.
    """
    output = folder / "capture"
    words = [nsys.path, "profile", *(_ON_A_DEVICE if on_device else _ON_THE_HOST), *_SAFE]
    words += [f"--duration={limit_s}", "--kill=sigterm", "--wait=primary"]
    words += [f"--output={output}", "--force-overwrite=true", *command]
    begun = time.monotonic()
    with tempfile.TemporaryFile() as errors:
        code = _run(words, environment, errors, limit_s + _WRITING_S)
        lasted_s = time.monotonic() - begun
        errors.seek(0)
        # Leave out lines of nsys on an importer that it lacks.
        lines = re.split(r"[\r\n]+", errors.read().decode(errors="replace"))
        said = tool.last_line("\n".join(line for line in lines if not _OF_NSYS.search(line)))
    suffixes = (".nsys-rep", ".qdrep", ".qdstrm")
    written = (output.with_name(output.name + suffix) for suffix in suffixes)
    report = next((file for file in written if file.is_file()), None)
    if report is None:
        raise NsysError(f"nsys {nsys.version} left no report (code {code}): {said}")
    if report.suffix == ".qdstrm" and nsys.importer is not None:
        report = tool.report_of(report, folder, nsys)
    return NsysRun(report, code, lasted_s >= limit_s and code == 128 + signal.SIGTERM, said)


def keep(report: Path, folder: Path, *, force: bool) -> Path:
    """Move a report beside the recording in `folder`, under its name; return the new path.

    It is not put inside: it holds environment variables and the script's output. An existing file
    is kept, unless `force` is given.
    """
    number = 1
    place = folder.resolve()
    kept = place.with_name(f"{place.name}{report.suffix}")
    while kept.exists() and not force:
        number += 1
        kept = place.with_name(f"{place.name}-{number}{report.suffix}")
    shutil.move(report, kept)
    return kept


def _run(
    words: Sequence[str], environment: Mapping[str, str], errors: IO[bytes], limit_s: int
) -> int:
    """Start nsys in a session of its own and wait; return its exit code, -n for signal n."""
    with interrupted_by_signals():
        process = subprocess.Popen(
            words,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return end_session(process, _ENDING, _GRACE_S, alone=True)
        except BaseException:
            end_session(process, _ENDING, _GRACE_S, alone=True)
            raise


# -----------------------------------------------------------------------------
# What the second run under nsys is to do: it has the layer nvtx alone, and ends after its slice.
# -----------------------------------------------------------------------------

# Steps before the capture and in it, where the script has so many.
_WARMUP, _STEPS = 10, 10
# Steps that the engine needs to find out how steps end.
_FOUND_OUT = 2


@dataclass(frozen=True)
class FirstRun:
    """Facts of the first run that the second one needs: its steps, and what they use."""

    steps: int
    on_device: bool
    has_ranges: bool
    nvtx_reason: str
    # The first step of the loop that the report is of.
    begin: int = 0

    @classmethod
    def read(cls, folder: Path) -> FirstRun:
        """Read the facts of the first run from its recording."""
        with closing(sqlite3.connect(folder / DATABASE, timeout=60)) as database:
            last = dict(database.execute("SELECT plan, max(step) FROM steps GROUP BY plan"))
            facts = dict(database.execute("SELECT key, value FROM facts"))
            rows = database.execute("SELECT status, reason FROM layers WHERE name = 'nvtx'")
            status, reason = next(iter(rows), ("skipped", None))
        environment = json.loads(facts.get("environment", "{}"))
        # A script measured as a whole has one row, which is no step of it.
        rules = {plan: json.loads(facts.get(f"plan_{plan}", "{}")).get("rule") for plan in last}
        steps = max((last[plan] + 1 for plan in last if rules[plan] != "whole"), default=0)
        has_ranges = status in ("recorded", "emitted")
        on_device = environment.get("device") == "cuda"
        return cls(steps, on_device, has_ranges, reason or "", _reported_begin(folder))


def _reported_begin(folder: Path) -> int:
    """Return the first step of the loop that the first run's page is of."""
    try:
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        plans = {row["plan"] for row in report["step"]["loops"] if row["reported"]}
        firsts = [row["first_step"] for row in report["slices"] if row["plan"] in plans]
    except (OSError, ValueError, KeyError):
        return 0
    return min((first for first in firsts if first is not None), default=0)


def options(child_options: RunOptions, first: FirstRun) -> RunOptions:
    """Return the child's options for the second run: layer nvtx alone, ended after its slice."""
    targets = child_options["targets"]
    left = max(first.steps - first.begin - _FOUND_OUT, 2)
    warmup = min(_WARMUP, max(1, left // 3))
    steps = max(1, min(max(_STEPS, int(targets["slice_steps"])), left - warmup))
    result: RunOptions = {
        **child_options,
        "layers": ["nvtx"],
        "left_out": {},
        "capture": {"warmup": warmup, "steps": steps},
        "startup": None,
        "whole": False,
        "sync": False,
        # No page is written of it, so the child must not wait for one.
        "lockstep": True,
    }
    if first.begin and "begin_at" not in child_options:
        # Another loop may come first.
        result["begin_at"] = asdict(BeginAt(str(first.begin), step=first.begin))
    return result


# -----------------------------------------------------------------------------
# Fill empty layers from a second run, which only `--rerun` allows.
#
# A layer is empty when the script had too few steps for it. The second run is measured as a whole;
# the rows of these layers are copied into the first recording, under the same module paths.
# -----------------------------------------------------------------------------

FOLDER = "rerun"
# Tables whose rows belong to a slice, besides those that the slices themselves make.
_BY_SLICE = tuple(
    name
    for name, table in RECORDED.items()
    if "slice" in table.names and name not in ("slices", "steps")
)


def empty_layers(folder: Path) -> list[str]:
    """Return the names of the layers that had too few steps in a recording."""
    path = folder / DATABASE
    if not path.is_file():
        return []
    with contextlib.closing(sqlite3.connect(path, timeout=60)) as database:
        rows = database.execute("SELECT name FROM layers WHERE status = 'empty'").fetchall()
    return [name for (name,) in rows]


def copy_layers(folder: Path, again: Path, layers: Sequence[str]) -> list[str]:
    """Copy `layers` of the recording `again` into the one in `folder`; return those copied."""
    if not (again / DATABASE).is_file():
        return []
    path, marks = folder / DATABASE, ", ".join("?" * len(layers))
    with contextlib.closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as database:
        database.execute("ATTACH ? AS again", (str(again / DATABASE),))
        rows = database.execute(
            "SELECT name FROM again.layers WHERE status IN ('recorded', 'emitted') "
            f"AND name IN ({marks})",
            tuple(layers),
        )
        filled = [name for (name,) in rows.fetchall()]
        database.execute("BEGIN")
        for name in filled:
            _copy_layer(database, name)
        database.execute("COMMIT")
    for name in filled:
        if (again / name).is_dir():
            shutil.copytree(again / name, folder / name, dirs_exist_ok=True)
    return filled


def _copy_layer(database: sqlite3.Connection, name: str) -> None:
    _copy_modules(database)
    after = database.execute("SELECT coalesce(max(slice), -1) + 1 FROM main.slices").fetchone()[0]
    plan = database.execute("SELECT coalesce(min(plan), 1) FROM main.slices").fetchone()[0]
    slices = database.execute("SELECT slice FROM again.slices WHERE layer = ?", (name,)).fetchall()
    copied = {number: after + place for place, (number,) in enumerate(slices)}
    database.create_function("new_slice", 1, copied.get)
    _copy(database, "slices", "layer = ?", name)
    database.execute("UPDATE main.slices SET plan = ? WHERE slice >= ?", (plan, after))
    facts = database.execute("SELECT key, value FROM again.facts").fetchall()
    there = {key: json.loads(value) for key, value in facts}
    own = [each for layer, each in declared_tables(there).values() if layer == name]
    for each in own:
        columns = ", ".join(f'"{column.name}" {column.type}' for column in each.table.columns)
        database.execute(f'CREATE TABLE IF NOT EXISTS main."{each.name}" ({columns})')
    for table in (*_BY_SLICE, *(each.name for each in own)):
        _copy(database, table, "new_slice(slice) IS NOT NULL")
    database.execute("DELETE FROM main.layers WHERE name = ?", (name,))
    _copy(database, "layers", "name = ?", name)
    _copy(database, "artifacts", "layer = ?", name)
    # Names of a layer's facts begin with its own: they belong to its rows.
    for key in there:
        if key.startswith(f"{name}_"):
            database.execute("DELETE FROM main.facts WHERE key = ?", (key,))
            _copy(database, "facts", "key = ?", key)
    text = f"the layer {name} was filled by a second run, measured as a whole (--rerun)"
    note = ("rerun", name, text)
    database.execute("INSERT INTO main.notes (slug, layer, text) VALUES (?, ?, ?)", note)


def _copy_modules(database: sqlite3.Connection) -> None:
    """Copy the modules that are new here, and map the other recording's numbers to ours by path."""
    here = dict(database.execute("SELECT path, module_id FROM main.modules").fetchall())
    free = itertools.count(max(here.values(), default=0) + 1)
    there = database.execute("SELECT path, module_id FROM again.modules ORDER BY module_id")
    numbers = {old: here[path] if path in here else next(free) for path, old in there.fetchall()}
    database.create_function("new_module", 1, lambda number: numbers.get(number, number))
    _copy(database, "modules", "path NOT IN (SELECT path FROM main.modules)")


def _copy(database: sqlite3.Connection, table: str, where: str, *values: str) -> None:
    """Copy rows of the other recording into ours, with our numbers of modules and slices."""
    columns = [row[1] for row in database.execute(f'PRAGMA again.table_info("{table}")')]
    names = ", ".join(f'"{column}"' for column in columns)
    ours = ", ".join(_renumbered(table, column) for column in columns)
    database.execute(
        f'INSERT INTO main."{table}" ({names}) SELECT {ours} FROM again."{table}" WHERE {where}',
        values,
    )


def _renumbered(table: str, column: str) -> str:
    if column == "slice":
        return "new_slice(slice)"
    is_module = column.endswith("module_id") or (table, column) == ("modules", "parent_id")
    return f'new_module("{column}")' if is_module else f'"{column}"'
