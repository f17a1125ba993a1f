"""A run under the real Nsight Systems, and the run that `--nsys` adds: what each records.

Where the tool, or an nvtx that it takes, cannot be had, the tests are skipped with the reason; with
PROFSTACK_NEEDS_NSYS=1 in the environment, as continuous integration sets it, they fail instead.
"""

import fcntl
import os
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from profstack.readers import nvtx
from profstack.readers.nsys import tool
from tests.support.processes import clean_environment
from tests.support.recorded_runs import SGD, report_of, rows_of

STEPS = 60
# The value of a variable: nsys writes all of them into its report.
CANARY = "canary-3f9a17c2"
# It says how often and how far it has run. With `tasks` there is in every step a thread with a
# region in a region, and two tasks that take turns.
SCRIPT = f"""
import asyncio, sys, threading, time
import nvtx
import torch
import profstack
{SGD}"""
SCRIPT += """\
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
    def forward(self, x):
        return self.inner(self.inner(x))
net = torch.nn.Sequential(Block(), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = SGD(net.parameters(), lr=0.1)
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
print("begun")
steps = 0
try:
    with profstack.region("whole"):
        for number in range(int(sys.argv[1])):
            with nvtx.annotate(f"batch {number}", domain="mine", category="load", payload=number):
                time.sleep(0.002)
            with profstack.region("update"):
                loss = net(torch.ones(4, 8)).sum()
            optimizer.zero_grad()
            loss.backward()
            if "tasks" in sys.argv:
                thread = threading.Thread(target=helper)
                thread.start()
                thread.join()
                asyncio.run(jobs())
            optimizer.step()
            steps += 1
finally:
    with open("runs.txt", "a") as file:
        print(steps, file=file)
print(f"steps: {steps}")
"""
# What lies in what, by kind and name, in each step; times a step.
TREE = {
    ("step", "step", None, "push_pop"): 1,
    ("region", "whole", "step", "push_pop"): 1,
    ("region", "whole/update", "whole", "push_pop"): 1,
    ("forward", "forward", "whole/update", "push_pop"): 1,
    ("module", "Sequential", "forward", "push_pop"): 1,
    ("module", "Sequential.0", "Sequential", "push_pop"): 1,
    ("module", "Sequential.0.inner", "Sequential.0", "push_pop"): 2,
    ("module", "Sequential.1", "Sequential", "push_pop"): 1,
    ("module", "Sequential.2", "Sequential", "push_pop"): 1,
    ("backward", "backward", "whole", "push_pop"): 1,
    ("optimizer", "optimizer SGD", "whole", "push_pop"): 1,
}
# What takes turns, or is of another thread, has its own begin and end, and need not nest.
APART = ("helper", "helper/inner", "whole/first", "whole/second")
TASKS = {
    **{("region", f"whole/{name}/compute", "whole", "push_pop"): 2 for name in ("first", "second")},
    **{("region", name, None, "start_end"): 1 for name in APART},
}
IN_TREE = """SELECT inner.kind, inner.name, outer.name, inner.style, inner.calls
    FROM nsys_ranges AS inner LEFT JOIN nsys_ranges AS outer ON inner.parent = outer.node
    WHERE inner.domain = 'profstack' AND inner.kind != 'cut'"""


class Ran(SimpleNamespace):
    """What a run left behind: the `folder` of its recording, and how the process was `done`."""

    def rows(self, query):
        return rows_of(self.folder, query)

    def steps(self):
        """The numbers of the steps in slices of ranges, and of those that nsys has seen."""
        slices = self.rows("SELECT first_step, steps FROM slices WHERE layer = 'nvtx'")
        numbers = [first + n for first, steps in slices for n in range(steps)]
        return numbers, [number for (number,) in self.rows("SELECT step FROM nsys_steps")]

    def tree(self):
        return {row[:4]: row[4] for row in self.rows(IN_TREE)}

    def texts(self):
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        return b"".join(path.read_bytes() for path in files)


def absent(reason):
    """Skip the test, or fail it where nsys has to be there."""
    (pytest.fail if os.environ.get("PROFSTACK_NEEDS_NSYS") == "1" else pytest.skip)(reason)


@contextmanager
def alone():
    """While this holds no other test runs nsys: two that start together may fail one another."""
    with open(Path(tempfile.gettempdir()) / "profstack-tests-nsys.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def nsys():
    try:
        return tool.find_nsys()
    except tool.NsysError as error:
        absent(str(error))


@pytest.fixture(scope="module")
def is_old(nsys):
    """Whether it takes the ranges of older versions of nvtx alone."""
    return nvtx.takes_ranges(nsys.version, "9.9") is False


@pytest.fixture(scope="module")
def nvtx_path(is_old, tmp_path_factory):
    """A folder with an nvtx that this nsys takes; None where the installed one will do."""
    if not is_old:
        return None
    folder = str(tmp_path_factory.mktemp("nvtx"))
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder]
    wheel = ["--only-binary", ":all:", f"nvtx=={nvtx.NEWEST_FOR_OLD_NSYS}"]
    done = subprocess.run([*pip, *wheel], capture_output=True, text=True, check=False)
    if done.returncode:
        absent(f"no nvtx that nsys takes can be installed here: {done.stderr.strip()[-200:]}")
    return folder


def execute(folder, path, *command):
    """Run a command in a clean environment with one thread per process, and `path` put first."""
    environment = clean_environment(OMP_NUM_THREADS="1", TMPDIR=str(folder), A_TOKEN=CANARY)
    paths = filter(None, [path, environment.get("PYTHONPATH")])
    environment |= {"PYTHONPATH": os.pathsep.join(paths)}
    how = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 300}
    with alone():
        done = subprocess.run([*map(str, command)], cwd=folder, env=environment, check=False, **how)
    return Ran(folder=folder / "recording", done=done)


def run_under_nsys(nsys, folder, path, script, *words):
    """A script under profstack, or on its own, under nsys; the run, and its report before it has
    been told what nsys recorded."""
    (folder / "script.py").write_text(script, encoding="utf-8")
    # An nsys of 2022 that samples may never come to an end on a newer kernel.
    options = ["-t", "nvtx", "-s", "none", "--cpuctxsw", "none", "-o", folder / "out"]
    ran = execute(folder, path, nsys.path, "profile", *options, sys.executable, *words)
    assert f"steps: {STEPS}" in ran.done.stdout, ran.done.stderr
    before = report_of(ran.folder)
    # The report, or what nsys leaves where it has no importer.
    made = [path for path in folder.glob("out.*") if path.suffix in (".nsys-rep", ".qdstrm")]
    words = ("import", min(made), "--into", ran.folder)
    done = execute(folder, None, sys.executable, "-m", "profstack", *words).done
    if "is not installed" in done.stderr:
        absent(done.stderr)
    assert done.returncode == 0, done.stderr
    return before, ran


@pytest.fixture(scope="module")
def observed(nsys, nvtx_path, tmp_path_factory):
    """The report of a run, and the run after its import."""
    run = ("-m", "profstack", "run", "--slice-steps", "5", "-o", "recording")
    folder = tmp_path_factory.mktemp("nsys")
    return run_under_nsys(nsys, folder, nvtx_path, SCRIPT, *run, "script.py", STEPS, "tasks")


def test_every_step_and_range_of_the_slices_is_in_the_import(observed):
    _, ran = observed
    numbers, seen = ran.steps()
    # One that was cut off when its slice ended is none of the slice's.
    assert seen == numbers
    assert len(numbers) >= 6
    counts = {key: len(numbers) * count for key, count in {**TREE, **TASKS}.items()}
    assert ran.tree() == counts
    query = "FROM nsys_ranges WHERE domain = 'profstack' AND on_steps_thread = 0"
    assert {name for (name,) in ran.rows(f"SELECT name {query}")} == {"helper", "helper/inner"}
    # A step's own time is all of its range's, and lies in the run's clean times' order.
    [(wall_s,)] = ran.rows("SELECT wall_s FROM nsys_ranges WHERE kind = 'step'")
    assert ran.rows("SELECT SUM(wall_s) FROM nsys_steps") == [(pytest.approx(wall_s),)]
    own = ran.rows("""SELECT name, kind, style, SUM(calls) FROM nsys_ranges
        WHERE domain = 'mine' GROUP BY name""")
    assert own == [("batch", "load", "push_pop", len(numbers))]


def test_the_recording_counts_the_same_and_says_that_nsys_observed_it(observed):
    before, ran = observed
    counted = Counter()
    for (kind, name, _, _), calls in ran.tree().items():
        counted[kind, name.removeprefix("optimizer ")] += calls
    ranges = ran.rows("SELECT kind, name, SUM(calls) FROM ranges GROUP BY kind, name")
    assert counted == {(kind, name): calls for kind, name, calls in ranges}
    layers = {row[0]: row[1:] for row in ran.rows("SELECT name, status, reason FROM layers")}
    assert layers["nvtx"] == ("recorded", None)
    assert {"cprofile", "torch"} <= set(layers)
    for name in set(layers) - {"nvtx", "watch"}:
        assert layers[name][0] == "skipped"
        assert "Nsight Systems" in layers[name][1]
    # What asked for the import asks no more.
    for report, asks in ((before, True), (report_of(ran.folder), False)):
        (text,) = (row["text"] for row in report["warnings"] if row["slug"] == "under-nsys")
        assert ("profstack import" in text) is asks
    assert CANARY.encode() not in ran.texts()


@pytest.fixture(scope="module")
def again(nsys, nvtx_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("driven")
    (folder / "script.py").write_text(SCRIPT, encoding="utf-8")
    words = ("run", "--nsys", "-o", "recording", "script.py", 80)
    ran = execute(folder, nvtx_path, sys.executable, "-m", "profstack", *words)
    assert ran.done.returncode == 0, ran.done.stderr
    return ran


def test_every_step_and_every_range_of_the_second_run_is_in_the_recording(again):
    _, numbers = again.steps()
    report = report_of(again.folder)
    assert len(numbers) == report["nsys"]["steps"] >= 10
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert numbers[0] >= 10
    assert again.tree() == {key: len(numbers) * count for key, count in TREE.items()}
    tables = report["tables"]
    modules = {row["path"]: row for row in tables["nsys_modules"]}
    paths = [row["path"] for row in tables["modules"]]
    assert set(modules) == {path for path in paths if not path.startswith("(")}
    for path, calls in (("Sequential", 1), ("Sequential.0.inner", 2)):
        assert modules[path]["calls"] == modules[path]["torch_calls"] == calls
        assert modules[path]["host_s"] > 0


def test_the_first_run_is_whole_and_the_second_ends_unseen_after_its_steps(again):
    runs = (again.folder.parent / "runs.txt").read_text().split()
    [(last,)] = again.rows("SELECT max(step) FROM nsys_steps")
    # `finally` of a script that was ended at the boundary has run.
    assert [int(steps) for steps in runs] in ([80, last], [80, last + 1])
    assert last + 1 < 80
    status = dict(again.rows("SELECT name, status FROM layers"))
    assert status["cprofile"] == status["torch"] == "recorded"
    assert again.rows("SELECT count(*) FROM steps WHERE slice >= 0") == [(80,)]
    assert again.rows("SELECT * FROM notes WHERE slug = 'nsys-run'") == []
    assert again.done.stdout == "begun\nsteps: 80\n"
    assert again.done.stderr.count("running again under Nsight Systems") == 1
    assert "Generating" not in again.done.stderr
    # The report lies beside the recording, and nothing of the environment in it.
    assert again.folder.with_name("recording.nsys-rep").stat().st_size > 10_000
    assert "recording.nsys-rep; it holds the environment" in again.done.stderr
    assert {path.name for path in again.folder.parent.rglob("*.sqlite*")} == {"recording.sqlite"}
    assert CANARY.encode() not in again.texts()
