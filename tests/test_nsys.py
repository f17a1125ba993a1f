"""What Nsight Systems records of a run: the real one, read from the file it exports.

An nsys of 2022 takes the ranges of nvtx up to 0.2.11 alone, so that version is put first on the
path for it. Where its own importer is not found (Debian's), it is called by hand.
"""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import CHECKOUT
from nsys_runs import alone, environment_with, find_importer, is_old, nsys, nvtx_path

pytestmark = pytest.mark.slow
__all__ = ["is_old", "nsys", "nvtx_path"]

STEPS = 60
EXAMPLE = CHECKOUT / "examples" / "nvtx_markers.py"
PUSH_POP, START_END, CATEGORY, DOMAIN = 59, 60, 33, 75
# In every step: a region in a region, a thread with the same, and two tasks that take turns.
REGIONS = """
import asyncio
import sys
import threading
import torch
import profstack

net = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

def helper():
    with profstack.region("helper"), profstack.region("inner"):
        torch.ones(4).sum()

async def job(name):
    with profstack.region(name):
        for _ in range(2):
            await asyncio.sleep(0)
            compute()

@profstack.region("compute")
def compute():
    torch.ones(4).sum()

async def jobs():
    await asyncio.gather(job("first"), job("second"))

steps = int(sys.argv[2])
with profstack.region("whole"):
    for _ in range(steps):
        with profstack.region("update"), profstack.region("forward"):
            loss = net(torch.ones(2, 4)).sum()
        loss.backward()
        thread = threading.Thread(target=helper)
        thread.start()
        thread.join()
        asyncio.run(jobs())
        optimizer.step()
print(f"steps: {steps}")
"""

SESSION = """
import sys
import torch
from profstack import Session

net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
steps = int(sys.argv[2])
with Session("session", output="recording") as session:
    for _ in session.steps(range(steps)):
        net(torch.ones(2, 4)).sum().backward()
print(f"steps: {steps}")
"""
PROGRAM = (sys.executable, "-m", "profstack", "run", "--slice-steps", "5", "-o", "recording")
# The value of a variable: nsys writes all of them into its report.
CANARY = "canary-3f9a17c2"


@dataclass(frozen=True)
class Range:
    """One push and pop, or a start and an end; times in nanoseconds."""

    kind: int
    domain: str
    category: str | None
    text: str
    number: int | None
    thread: int
    start: int
    end: int

    def holds(self, other: Range) -> bool:
        same = self.thread == other.thread
        return same and self.start <= other.start and other.end <= self.end


@dataclass(frozen=True)
class Observed:
    """A run under nsys: what nsys exported and what profstack recorded."""

    ranges: list[Range]
    folder: Path
    output: str

    def of(self, domain: str) -> list[Range]:
        return [each for each in self.ranges if each.domain == domain]

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / "recording.sqlite")) as database:
            return database.execute(query).fetchall()


def run_under_nsys(
    nsys: str,
    folder: Path,
    python_path: str | None,
    script: Path = EXAMPLE,
    program: Sequence[str] = PROGRAM,
) -> Observed:
    """A script, the example by default, under profstack under nsys, and its export."""
    options = ["-t", "nvtx", "-s", "none", "--cpuctxsw", "none", "-o", str(folder / "out")]
    with alone():
        done = subprocess.run(
            [nsys, "profile", *options, *program, str(script), "--steps", str(STEPS)],
            cwd=folder,
            env=environment_with(python_path, TMPDIR=str(folder), A_TOKEN=CANARY),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert f"steps: {STEPS}" in done.stdout, done.stderr
    ranges = list(read_ranges(export(nsys, folder)))
    return Observed(ranges, folder / "recording", done.stdout + done.stderr)


def export(nsys: str, folder: Path) -> Path:
    """The recorded events as SQLite."""
    report, database = folder / "out.nsys-rep", folder / "out.sqlite"
    if not report.exists():
        importer = find_importer(nsys)
        subprocess.run(
            [importer, "-i", folder / "out.qdstrm", "-o", report], capture_output=True, check=True
        )
    subprocess.run(
        [nsys, "export", "--type", "sqlite", "--force-overwrite", "true", "-o", database, report],
        capture_output=True,
        check=True,
    )
    return database


def read_ranges(path: Path) -> Iterator[Range]:
    """All ranges of an export, in the order in which they began."""
    with closing(sqlite3.connect(path)) as database:
        query = """SELECT eventType, start, end, domainId, category, int64Value, globalTid,
            coalesce(text, (SELECT value FROM StringIds WHERE id = textId))
            FROM NVTX_EVENTS ORDER BY start, end DESC"""
        rows = database.execute(query).fetchall()
    domains = {row[3]: row[7] for row in rows if row[0] == DOMAIN}
    categories = {(row[3], row[4]): row[7] for row in rows if row[0] == CATEGORY}
    for kind, start, end, domain, category, number, thread, text in rows:
        if kind in (PUSH_POP, START_END):
            named = categories.get((domain, category))
            yield Range(kind, domains.get(domain, ""), named, text, number, thread, start, end)


@pytest.fixture(scope="module")
def observed(nsys: str, nvtx_path: str | None, tmp_path_factory: Any) -> Observed:
    """The run that the tests below look at."""
    return run_under_nsys(nsys, tmp_path_factory.mktemp("nsys"), nvtx_path)


def test_every_step_of_the_slices_has_a_range_with_its_number(observed: Observed) -> None:
    slices = observed.rows("SELECT first_step, steps FROM slices WHERE layer = 'nvtx'")
    numbers = [first + n for first, steps in slices for n in range(steps)]
    assert len(numbers) >= 6
    steps = [each for each in observed.of("profstack") if each.category == "step"]
    assert [(each.number, each.text) for each in steps] == [(n, f"step {n}") for n in numbers]
    assert len({each.thread for each in observed.of("profstack")}) == 1
    for one, next_one in pairwise(steps):
        assert one.end <= next_one.start


def test_ranges_are_nested(observed: Observed) -> None:
    ranges = observed.of("profstack")
    # What lies around what, directly or not, by category and text.
    around = {
        ("forward", "forward"): ("step", None),
        ("module", "Adder"): ("forward", "forward"),
        ("module", "Adder.recurrent"): ("module", "Adder"),
        ("module", "Adder.read_out"): ("module", "Adder"),
        ("module", "MSELoss"): ("step", None),
        ("backward", "backward"): ("step", None),
        ("optimizer", "optimizer Adam"): ("step", None),
    }
    steps = [each for each in ranges if each.category == "step"]
    for (category, text), (outer, outer_text) in around.items():
        found = [each for each in ranges if (each.category, each.text) == (category, text)]
        assert len(found) == len(steps), text
        for each in found:
            assert sum(step.holds(each) for step in steps) == 1
            outers = [o for o in ranges if o.category == outer and outer_text in (None, o.text)]
            assert sum(o.holds(each) for o in outers) == 1, text
    assert {(each.category, each.text) for each in ranges if each.category != "step"} == set(around)


def test_counts_are_those_in_the_recording(observed: Observed) -> None:
    counted = Counter((each.category, each.text) for each in observed.of("profstack"))
    steps = sum(count for (category, _), count in counted.items() if category == "step")
    query = "SELECT kind, name, SUM(calls) FROM ranges GROUP BY kind, name"
    told = {(kind, name): calls for kind, name, calls in observed.rows(query)}
    assert told.pop(("step", "step")) == steps
    assert told.pop(("optimizer", "Adam")) == counted["optimizer", "optimizer Adam"]
    assert told == {
        key: count for key, count in counted.items() if key[0] not in ("step", "optimizer")
    }


def test_the_scripts_own_ranges_are_all_there(observed: Observed) -> None:
    own = observed.of("nvtx_markers")
    parts = ("load", "forward", "backward", "optimizer")
    counted = Counter(each.text for each in own)
    assert counted == {**{f"step {n}": 1 for n in range(STEPS)}, **dict.fromkeys(parts, STEPS)}
    outer = [each for each in own if each.number is not None]
    assert [each.number for each in outer] == list(range(STEPS))
    for each in own:
        if each.text in parts:
            assert sum(step.holds(each) for step in outer) == 1
    noted = observed.rows("SELECT DISTINCT path FROM region_times WHERE source = 'nvtx'")
    assert {path for (path,) in noted} >= set(parts)


def test_regions_of_threads_and_tasks_arrive_with_their_own_begins_and_ends(
    nsys: str, nvtx_path: str | None, tmp_path: Path
) -> None:
    script = tmp_path / "regions.py"
    script.write_text(REGIONS, encoding="utf-8")
    observed = run_under_nsys(nsys, tmp_path, nvtx_path, script)
    ours = observed.of("profstack")
    # A step that the script's end has cut off has a range, but is in no slice.
    slices = observed.rows("SELECT first_step, steps FROM slices WHERE layer = 'nvtx'")
    numbers = {first + n for first, count in slices for n in range(count)}
    steps = [each for each in ours if each.category == "step" and each.number in numbers]
    assert len(steps) == len(numbers) >= 6
    regions = [
        each
        for each in ours
        if each.category == "region"
        and any(step.start <= each.start and each.end <= step.end for step in steps)
    ]
    nested = ("whole", "whole/update", "whole/update/forward")
    tasks = [f"whole/{name}{part}" for name in ("first", "second") for part in ("", "/compute")]
    kinds = {(each.text, each.kind) for each in regions}
    assert kinds == {
        *((name, PUSH_POP) for name in (*nested, tasks[1], tasks[3])),
        *((name, START_END) for name in ("helper", "helper/inner", tasks[0], tasks[2])),
    }
    for step in steps:
        inside = [each for each in regions if step.start <= each.start and each.end <= step.end]
        of = {text: [each for each in inside if each.text == text] for text, _ in kinds}
        assert {text: len(found) for text, found in of.items()} == {
            **dict.fromkeys((*nested, "helper", "helper/inner", tasks[0], tasks[2]), 1),
            **dict.fromkeys((tasks[1], tasks[3]), 2),
        }
        [whole], [update], [forward] = (of[name] for name in nested)
        assert step.holds(whole)
        assert whole.holds(update)
        assert update.holds(forward)
        [helper], [inner] = of["helper"], of["helper/inner"]
        assert helper.holds(inner)
        assert helper.thread != step.thread
        [first], [second] = of[tasks[0]], of[tasks[2]]
        # They take turns: each has its own begin and end, and its own work in between.
        assert first.start < second.start < first.end < second.end
        for task, text in ((first, tasks[1]), (second, tasks[3])):
            assert task.thread == step.thread
            assert all(task.holds(each) for each in of[text])
    query = "SELECT name, SUM(calls) FROM ranges WHERE kind = 'region' GROUP BY name"
    assert dict(observed.rows(query)) == Counter(each.text for each in regions)


@pytest.fixture(scope="module")
def imported(observed: Observed) -> Observed:
    """The same, once what nsys recorded is in the recording."""
    [report] = [*observed.folder.parent.glob("out.nsys-rep")]
    done = profstack(["import", report, "--into", observed.folder])
    assert done.returncode == 0, done.stderr
    return observed


def profstack(arguments: list[Any]) -> subprocess.CompletedProcess[str]:
    """Run a command of profstack."""
    return subprocess.run(
        [sys.executable, "-m", "profstack", *map(str, arguments)],
        env=environment_with(None),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_an_import_holds_every_step_and_every_modules_ranges(imported: Observed) -> None:
    steps = [each for each in imported.of("profstack") if each.category == "step"]
    rows = imported.rows("SELECT step, wall_s FROM nsys_steps ORDER BY step")
    assert [number for number, _ in rows] == [each.number for each in steps]
    for (_, wall_s), each in zip(rows, steps, strict=True):
        assert wall_s == pytest.approx((each.end - each.start) * 1e-9, abs=1e-9)
    counted = Counter((each.category, each.text) for each in imported.of("profstack"))
    query = """SELECT kind, name, SUM(calls) FROM nsys_ranges
        WHERE domain = 'profstack' GROUP BY kind, name"""
    told = {(kind, name): calls for kind, name, calls in imported.rows(query)}
    assert told.pop(("step", "step")) == len(steps)
    assert told == {key: count for key, count in counted.items() if key[0] != "step"}


def test_an_import_nests_ranges_as_they_were(imported: Observed) -> None:
    rows = imported.rows(
        """SELECT inner.kind, inner.name, outer.kind, outer.name, inner.wall_s, outer.wall_s
        FROM nsys_ranges AS inner LEFT JOIN nsys_ranges AS outer ON inner.parent = outer.node
        WHERE inner.domain = 'profstack'"""
    )
    assert {row[:2]: row[2:4] for row in rows} == {
        ("step", "step"): (None, None),
        ("forward", "forward"): ("step", "step"),
        ("module", "Adder"): ("forward", "forward"),
        ("module", "Adder.recurrent"): ("module", "Adder"),
        ("module", "Adder.read_out"): ("module", "Adder"),
        ("module", "MSELoss"): ("step", "step"),
        ("backward", "backward"): ("step", "step"),
        ("optimizer", "optimizer Adam"): ("step", "step"),
    }
    for *_, inner_s, outer_s in rows:
        assert outer_s is None or inner_s <= outer_s


def test_the_page_of_an_import_has_no_word_of_the_environment(imported: Observed) -> None:
    for path in imported.folder.rglob("*"):
        if path.is_file():
            assert CANARY.encode() not in path.read_bytes(), path


def test_a_recording_says_that_nsys_observed_it(observed: Observed) -> None:
    ((text,),) = observed.rows("SELECT text FROM notes WHERE slug = 'under-nsys'")
    assert "profstack import" in text
    # The number of nsys's session is nobody's business.
    assert re.search(r"\d{3}", text) is None


def test_a_session_in_a_script_under_nsys_makes_ranges_alone(
    nsys: str, nvtx_path: str | None, tmp_path: Path
) -> None:
    script = tmp_path / "session.py"
    script.write_text(SESSION, encoding="utf-8")
    observed = run_under_nsys(nsys, tmp_path, nvtx_path, script, program=[sys.executable])
    slices = observed.rows("SELECT first_step, steps FROM slices WHERE layer = 'nvtx'")
    numbers = [first + n for first, steps in slices for n in range(steps)]
    ours = observed.of("profstack")
    steps = [each for each in ours if each.category == "step"]
    # The last slice may still be on when the loop is over: the step after that never comes.
    cut = [each for each in ours if each.category == "cut"]
    whole = [each for each in steps if not any(each.holds(one) for one in cut)]
    assert [each.number for each in whole] == numbers
    assert len(numbers) >= 6
    status = dict(observed.rows("SELECT name, status FROM layers"))
    assert status["nvtx"] == "recorded"
    assert {status[name] for name in set(status) - {"nvtx", "watch"}} == {"skipped"}
    assert observed.rows("SELECT slug FROM notes WHERE slug = 'under-nsys'")


def test_nvtx_is_recorded_and_the_other_profilers_say_why_they_are_not(observed: Observed) -> None:
    layers = {
        name: rest for name, *rest in observed.rows("SELECT name, status, reason FROM layers")
    }
    assert layers["nvtx"] == ["recorded", None]
    for name in set(layers) - {"nvtx", "watch"}:
        status, reason = layers[name]
        assert status == "skipped"
        assert "Nsight Systems" in reason
    assert {"cprofile", "torch"} <= set(layers)
    assert re.search(r"^layers: .*nvtx", observed.output, flags=re.MULTILINE)
    assert "layers without data: " in observed.output


def test_an_nsys_that_takes_no_range_of_a_newer_nvtx_is_told(
    nsys: str, is_old: bool, tmp_path: Path
) -> None:
    if not is_old:
        pytest.skip("this nsys takes the ranges of every nvtx")
    observed = run_under_nsys(nsys, tmp_path, None)
    assert observed.ranges == []
    assert observed.rows("SELECT status FROM layers WHERE name = 'nvtx'") == [("emitted",)]
    ((text,),) = observed.rows("SELECT text FROM notes WHERE slug = 'no-listener'")
    assert "0.2.11" in text
