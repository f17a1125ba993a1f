"""`profstack lock` around its runs: fewer steps of a short script, and whose lock it replaces."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from profstack.commands import check, main
from profstack.commands import lock as lock_command
from profstack.lock.facts import STEP, Key, TooFewStepsError
from profstack.lock.lockfile import Lock
from tests.support.commands import refused


@pytest.fixture
def tried(here, monkeypatch):
    """Warm-up, steps and runs that were tried with scripts of two steps."""
    tried = []

    def make_lock(counter, runs):
        counting = counter.counting
        tried.append((counting.warmup, counting.steps, runs))
        if counting.warmup + counting.steps > 2:
            raise TooFewStepsError("it has 2 steps")
        return Lock({"script": "train.py", "device": "cpu"}, {Key(STEP, "", "calls"): 3})

    monkeypatch.setattr(lock_command, "make_lock", make_lock)
    monkeypatch.delenv("RANK", raising=False)
    (here / "sub").mkdir()
    for name in ("train.py", "other.py"):
        (here / "sub" / name).touch()
    return tried


def test_a_short_script_is_counted_in_fewer_steps_unless_they_are_asked_for(tried, here, capsys):
    assert main(["lock", "-q", "sub/train.py"]) == 0
    assert tried == [(3, 3, 3), (3, 1, 3), (1, 1, 3)]
    assert (here / "sub" / "profstack.lock").is_file()
    tried.clear()
    assert "it has 2 steps" in refused(capsys, "lock", "-q", "--steps", "2", "sub/train.py")
    assert tried == [(3, 2, 3)]


def test_the_lock_of_another_script_is_replaced_by_force_alone(tried, capsys):
    for words in (["sub/train.py"], ["sub/train.py"], ["--force", "sub/other.py"]):
        assert main(["lock", "-q", *words]) == 0
    assert "it is the lock of train.py" in refused(capsys, "lock", "-q", "sub/other.py")


def test_facts_that_differ_from_run_to_run_do_not_count(monkeypatch):
    monkeypatch.setattr(check, "read_facts", lambda _: {"a": 1, "b": 5})
    rows = [SimpleNamespace(key=key, now=now) for key, now in (("a", 1), ("b", 2), ("c", 3))]
    first = SimpleNamespace(differences=rows, compared=9, notes=[])
    found = check._again(None, {}, SimpleNamespace(counted=nullcontext), first)
    assert (found.differences, found.notes[0][:7]) == (rows[:1], "2 facts")
