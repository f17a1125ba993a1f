"""A few runs of `profstack run` that many tests only read: each is made once for all workers."""

import fcntl
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import cache, cached_property
from types import SimpleNamespace

from tests.support.processes import run_python

# An optimizer of the script's own: one of torch's imports its compiler, for two seconds.
SGD = """\
class SGD(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})
    def add_param_group(self, group):
        self.param_groups.append(group | self.defaults)
    def zero_grad(self):
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None
    def step(self):
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter -= self.defaults["lr"] * parameter.grad
"""
# Steps wanted (-1: endless), what happens at the step of a number, and seconds to sleep in each.
TRAIN = f"""\
import atexit, os, sys, time
import torch
{SGD}
def work(count):
    return [number * number for number in range(count)]
def main(wanted, at=-1, what="", pause=0.0):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = SGD(model.parameters(), lr=0.01)
    done = 0
    try:
        while done != wanted:
            optimizer.zero_grad()
            model(torch.randn(4, 8)).pow(2).mean().backward()
            optimizer.step()
            done += 1
            work(1000)
            print("step", done, flush=True)
            if done == at:
                exec(what)
            time.sleep(pause)
    finally:
        print("finally", done, flush=True)
if __name__ == "__main__":
    atexit.register(print, "atexit", flush=True)
    wanted, at, what, pause, *_ = (*sys.argv[1:], *("-1", "-1", "", "0")[len(sys.argv) - 1 :])
    main(int(wanted), int(at), what, float(pause))
"""
WHOLE = """\
import torch
def work(count):
    return sum(float((torch.ones(32, 32) @ torch.ones(32, 32)).sum()) for _ in range(count))
if __name__ == "__main__":
    print(work(50))
"""
# Two workers, a thread of its own, regions of all sorts, and a wait at the end.
LOADING = f"""\
import threading
import time
import nvtx
import torch
from torch.utils.data import DataLoader, Dataset
import profstack
{SGD}torch.set_num_threads(2)
class Images(Dataset):
    __len__ = lambda self: 100_000
    def __getitem__(self, index):
        return torch.randn(64, 64).sort().values.sum() + torch.randn(512)
def augment():
    while not over:
        sum(range(20_000))
        time.sleep(0.001)
def save():
    time.sleep(0.4)
if __name__ == "__main__":
    over = False
    threading.Thread(target=augment, name="augment").start()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU())
    optimizer = SGD(model.parameters(), lr=0.01)
    loader = iter(DataLoader(Images(), batch_size=16, num_workers=2))
    with profstack.region("whole"):
        for step in range(120):
            with profstack.region("load"):
                batch = next(loader) + torch.randn(16, 512)
            with nvtx.annotate("batch"), torch.profiler.record_function("update"):
                with profstack.region("update"):
                    optimizer.zero_grad()
                    torch.ones(1_000_000).sqrt()
                    model(batch).pow(2).sum().backward()
                    optimizer.step()
    over = True
    save()
    print("trained", step + 1)
"""
SCRIPTS = {"train.py": TRAIN, "whole.py": WHOLE, "loading.py": LOADING}
SHORT_PLAN = ("--rounds", "2", "--final-steps", "10")
# The words after `profstack run -o rec`, by the run's name.
RUNS = {
    # All layers, enough steps for each.
    "train": ("train.py", "40", "-1", "", "0", "--token", "hunter2"),
    "whole": ("--layers", "cprofile,torch,watch", "whole.py"),
    # An error of the script's after 20 steps, and no text of its files kept.
    "error": ("--no-source", "-q", "train.py", "100", "20", "1 / 0"),
    "max_steps": ("--layers", "cprofile,torch", "--max-steps", "12", "train.py", "-1"),
    "killed": ("--layers", "cprofile,torch", "train.py", "-1", "40", "os.kill(os.getpid(), 9)"),
    # All slices are over before it saves.
    "loading": (*SHORT_PLAN, "--final-s", ".2", "--layers", "cprofile,torch,watch", "loading.py"),
}


class RecordedRun(SimpleNamespace):
    """What one run left: the `folder` it was started in, code, stdout, stderr; to be read alone."""

    @cached_property
    def recording(self):
        return self.folder / "rec"

    @cached_property
    def report(self):
        return report_of(self.recording)


RecordedRuns = Callable[[str], RecordedRun]


def report_of(recording):
    return json.loads((recording / "report.json").read_text(encoding="utf-8"))


def rows_of(recording, query):
    with closing(sqlite3.connect(recording / "recording.sqlite")) as database:
        return database.execute(query).fetchall()


def steps_in(report):
    return sum((report["step"]["counts_by_phase"] or {}).values())


def recorded_runs(base):
    """A function that gives the run of a name, made in `base` by whoever asks first."""
    return cache(lambda name: _made_once(base / name, RUNS[name]))


def _made_once(folder, words):
    """Make the run, or wait for the process that makes it; a test that is killed frees the lock."""
    folder.mkdir(parents=True, exist_ok=True)
    outcome = folder / "outcome.json"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not outcome.exists():
            shutil.rmtree(folder / "rec", ignore_errors=True)
            for script, text in SCRIPTS.items():
                (folder / script).write_text(text, encoding="utf-8")
            words = ("-m", "profstack", "run", "-o", "rec", *words)
            done = run_python(*words, code=None, cwd=folder)
            facts = {"code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
            unfinished = folder / f"outcome.{os.getpid()}"
            unfinished.write_text(json.dumps(facts), encoding="utf-8")
            os.replace(unfinished, outcome)
    return RecordedRun(folder=folder, **json.loads(outcome.read_text(encoding="utf-8")))
