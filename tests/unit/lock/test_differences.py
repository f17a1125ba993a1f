"""What differs from a lock, in both directions, and what is not compared on another machine."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from profstack.commands import check as check_command
from profstack.commands import lock as lock_command
from profstack.commands import main
from profstack.lock.differences import Difference, compare
from profstack.lock.facts import COMPILE, FUNCTIONS, MEMORY, MODULE, STEP, SYNCHRONISATIONS, Key
from profstack.lock.lockfile import Lock
from tests.support.tables import cases

MADE = {"torch": "2.13.0", "device": "cpu", "threads": 2, "cpu": "AVX2", "arguments": []}
PORTABLE = [Key(STEP, "", "forward_flop"), Key(STEP, "", "inputs")]
PORTABLE += [Key(FUNCTIONS, "", "train.py::augment"), Key(SYNCHRONISATIONS, "", ".item()")]
PORTABLE += [Key(MODULE, "Net.last", "parameters"), Key(MODULE, "Net.last", "calls")]
OF_TORCH = [Key(STEP, "", "copies"), Key(STEP, "", "kernel launches")]
OF_TORCH += [Key(MODULE, "Net.last", "operator aten::linear")]
OF_TORCH += [Key(MODULE, "Net.last", "backward AddmmBackward0")]
OF_TORCH += [Key(SYNCHRONISATIONS, "", "values read by the host")]
OF_TORCH += [Key(COMPILE, "train.py::step", "graphs")]
OF_MACHINE = [Key(MEMORY, "cpu", "peak_bytes"), Key(MODULE, "Net.last", "allocated_blocks")]
# What is compared although another one of these is said of the lock.
COMPARED = {"torch": PORTABLE, "device": PORTABLE, "threads": PORTABLE + OF_TORCH}
COMPARED |= {"cpu": PORTABLE + OF_TORCH, "arguments": PORTABLE + OF_TORCH + OF_MACHINE}


@pytest.mark.parametrize("key", PORTABLE + OF_TORCH + OF_MACHINE)
def test_a_fact_may_be_new_gone_or_other(key):
    for locked, now in ((3, 4), (4, 3), (0, 2), (2, 0), ("1 in 3 steps", 1), (5, "32x16")):
        lock = Lock(MADE, {key: locked} if locked else {})
        found = compare(lock, {key: now} if now else {}, MADE)
        assert found.differences == [Difference(key, locked, now)]
        assert (found.compared, found.notes) == (1, [])
    assert compare(Lock(MADE, {key: 3}), {key: 3}, MADE).differences == []


@cases("name compared", *COMPARED.items())
def test_another_machine_is_said_and_only_what_must_be_equal_is_compared(name, compared):
    every = PORTABLE + OF_TORCH + OF_MACHINE
    lock = Lock({**MADE, name: "other"}, dict.fromkeys(every, 3))
    found = compare(lock, {}, MADE)
    assert [row.key for row in found.differences] == compared
    assert len(found.notes) == 1
    assert f"{name} other" in found.notes[0]


def test_what_differed_while_locking_is_not_compared():
    first, second = PORTABLE[:2]
    found = compare(Lock(MADE, {first: 3}, {second: "1, 2"}), {first: 3, second: 9}, MADE)
    assert (found.differences, found.compared) == ([], 1)
    assert "1 fact" in found.notes[0]


def test_what_a_name_or_a_lock_holds_is_on_one_line(tmp_path, monkeypatch, capsys):
    hostile = "a\n::stop-commands::\x1b[2J"
    made = {**MADE, "warmup": 1, "steps": 1}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").touch()
    unstable = {PORTABLE[0]._replace(name=hostile): "1, 2"}
    monkeypatch.setattr(lock_command, "_shortest", lambda *_: Lock(made, {}, unstable))
    assert main(["lock", "x.py"]) == 0
    counter = SimpleNamespace(counted=lambda _: nullcontext(), made=lambda _: made)
    monkeypatch.setattr(check_command, "Counter", lambda *_: counter)
    monkeypatch.setattr(check_command, "read_facts", lambda _: {})
    monkeypatch.setattr(check_command, "_read", lambda *_: Lock({**made, "torch": hostile}, {}))
    assert main(["check", "x.py"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert sum("a ::stop-commands::?[2J" in line for line in lines) == 2
    assert all(line.startswith("profstack: ") for line in lines)
