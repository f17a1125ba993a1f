"""Batch sizes tried in processes of their own, which may end in any way; their limit of memory."""

import subprocess
import sys

import pytest

from profstack.bench import fresh_process
from profstack.bench.batch_trial import ENDED, FAILED, REFUSED, Trial
from profstack.bench.subject import Request
from profstack.bench.target import load
from profstack.bench.throughput import ChildProber, Options, search
from profstack.errors import UsageError
from tests.support.processes import run_python

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone limits memory in earnest")
MIB = 2**20
QUICK = Trial(batches=20, measure_s=0.1, warmup_s=0.02, calls=2)
# 64 MiB per item, mapped and hardly touched. Three at once are taken in small pieces until there
# are none left, four end the process: what models do that exhaust memory.
TARGET = """
import os
import torch
class Hostile(torch.nn.Linear):
    def forward(self, x):
        print("a model that prints", flush=True)
        taken = []
        while len(x) == 3:
            taken.append(bytearray(2**20))
        if len(x) >= 4:
            os.kill(os.getpid(), 9)
        assert x.dtype == self.weight.dtype
        torch.empty(len(x), 64 * 2**20, dtype=torch.uint8)
        return super().forward(x)
def hostile():
    return Hostile(4, 4), torch.ones(2, 4)
"""


@LINUX
def test_a_model_that_exhausts_memory_does_not_take_down_the_search(tmp_path):
    (tmp_path / "hostile_model.py").write_text(TARGET)
    subject = load(Request(f"{tmp_path / 'hostile_model.py'}:hostile")).subject
    options = Options(memory_limit_bytes=160 * MIB, trial=QUICK)
    rows, (found,) = search(subject, dtypes=["bfloat16"], options=options)
    by_size = {row["batch_size"]: row for row in rows}
    statuses = ["measured", "measured", "refused", "refused"]
    assert [by_size[size]["status"] for size in (1, 2, 3, 4)] == statuses
    assert "killed by SIGKILL" in by_size[4]["reason"]
    assert by_size[3]["reason"] == "MemoryError"
    assert (found["largest_batch"], found["dtype"]) == (2, "bfloat16")
    assert found["limited_by"] == "memory: a batch of 3 was refused (MemoryError)"
    assert found["memory_limit_bytes"] == 160 * MIB
    assert by_size[2]["batches"] >= 1
    peak = by_size[2]["peak_memory_bytes"]
    # What is mapped and not touched is not resident.
    assert peak is None or 0 < peak < 64 * MIB


@pytest.fixture
def stand_in(monkeypatch):
    """A prober whose processes speak for themselves: real ones, but without torch to wait for."""

    def make(after_ready, before_ready=""):
        code = (
            "import json, os, signal, subprocess, sys, time\n"
            "asked = json.load(sys.stdin)\n"
            "def say(**answer): os.write(asked['answers'], json.dumps(answer).encode() + b'\\n')\n"
            f"{before_ready}\n"
            "say(ready=dict(allowance_bytes=7, dtype='float16'))\n"
            f"{after_ready}\n"
        )
        monkeypatch.setattr(fresh_process, "_START", code.replace("{", "{{").replace("}", "}}"))
        trial = Trial(measure_s=0.0, warmup_s=0.0)
        return ChildProber(Request("a.py:b"), None, trial, limit_bytes=None, patience_s=60.0)

    return make


@pytest.mark.parametrize(("does", "status", "says"), [
    ("os.kill(os.getpid(), 9)", REFUSED, "killed by SIGKILL"),
    ("os.abort()", REFUSED, "killed by SIGABRT"),
    ("raise MemoryError", REFUSED, "exit code 1 and without an answer: MemoryError"),
    ("sys.exit('no licence')", FAILED, "without an answer: no licence"),
    ("os._exit(0)", FAILED, "exit code 0"),
    ("os.write(asked['answers'], b'{half'); os._exit(4)", FAILED, "exit code 4"),
])  # fmt: skip
def test_the_end_of_a_process_is_the_answer(stand_in, does, status, says):
    prober = stand_in(does)
    probe = prober.attempt(3, timed=False)
    assert (probe.batch_size, probe.status) == (3, status)
    assert says in probe.reason
    assert (prober.memory_limit_bytes, prober.dtype) == (7, "float16")


def test_one_that_hangs_is_ended_with_what_it_started(stand_in, tmp_path, monkeypatch):
    note = tmp_path / "pid"
    prober = stand_in(
        "time.sleep(600)",
        "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(note)!r}, 'w').write(str(other.pid))",
    )
    # However long a busy machine takes to start it.
    answer, patience = fresh_process.FreshProcess.answer, iter((60.0, 0.3))
    monkeypatch.setattr(
        fresh_process.FreshProcess, "answer", lambda made, _: answer(made, next(patience))
    )
    prober._patience_s = 1.5
    probe = prober.attempt(2, timed=True)
    assert (probe.status, probe.reason) == (ENDED, "no answer after 1.50 s: the process was ended")
    command = ["ps", "-o", "stat=", "-p", note.read_text()]
    state = subprocess.run(command, capture_output=True, text=True, check=False)
    assert state.stdout.strip()[:1] in ("", "Z")


def test_what_happens_while_loading_blames_no_batch(stand_in):
    for does, reason in (
        ("os.kill(os.getpid(), 9)", "the target was not loaded (SIGKILL)"),
        ("say(failed='KeyError: 3'); sys.exit()", "the target was not loaded: KeyError: 3"),
    ):
        probe = stand_in("", does).attempt(3, timed=False)
        assert (probe.status, probe.reason) == (FAILED, reason)
    prober = stand_in("", "say(no_limit='there is none'); sys.exit()")
    with pytest.raises(UsageError, match=r"there is none; .*--memory-limit 4GiB"):
        prober.attempt(1, timed=False)


LIMITED = """
import resource
from profstack.bench.batch_trial import limit_memory
limit = limit_memory(96 * 2**20)
held = bytearray(64 * 2**20)
try:
    bytearray(64 * 2**20)
except MemoryError:
    print('refused')
limit.lift()
print(len(bytearray(64 * 2**20)) == len(held), limit.allowance_bytes == 96 * 2**20)
# A limit that the process has already, and that allows less, stays.
hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
resource.setrlimit(resource.RLIMIT_DATA, (512 * 2**20, hard))
print(limit_memory(2**40).allowance_bytes < 512 * 2**20)
"""


@LINUX
def test_the_limit_holds_and_comes_off_again():
    assert run_python("-c", LIMITED).stdout.split() == ["refused", "True", "True", "True"]
