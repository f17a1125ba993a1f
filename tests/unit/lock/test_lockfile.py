"""The file of a lock: read again as written, also with hostile names; damaged files are refused."""

import os
import sys

import pytest

from profstack.errors import RecordingError
from profstack.lock import lockfile
from profstack.lock.facts import FUNCTIONS, MEMORY, MODULE, STEP, Key
from profstack.lock.lockfile import Lock, merged, text_of
from tests.support.tables import cases

HOSTILE = ['a "quoted" name', "back\\slash \\u0041", "line\nbreak\ttab\x7f\x00", "[module.x]"]
HOSTILE += ["a = 1 # no comment", "é 漢 😀", "GPT.h.[0-3].mlp", "\ud800", "", f"a.{'7' * 5000}"]


def made_lock():
    facts = {
        Key(STEP, "", "forward_flop"): 2**63 + 1,
        Key(STEP, "", "inputs"): "32x16, 7x16",
        Key(MEMORY, "cuda:0", "peak_bytes"): 7,
        Key(FUNCTIONS, "", "train.py::Net.forward"): "1 in 3 steps",
    }
    for number in (0, 1, 2, 10, 12):
        facts[Key(MODULE, f"GPT.h.{number}.mlp", "calls")] = 3
    facts[Key(MODULE, "GPT.h.11.mlp", "calls")] = 4
    made = {"script": "train.py", "arguments": ["--width", "64"], "steps": 3}
    return Lock(made, facts, {Key(MODULE, "GPT", "calls"): "1, 2, 1"})


def written(tmp_path, text):
    path = tmp_path / "profstack.lock"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_lock_is_read_as_it_was_written_in_whatever_order(tmp_path):
    lock = made_lock()
    text = text_of(lock)
    assert lockfile.read(written(tmp_path, text)) == lock
    turned = Lock(lock.made, dict(reversed(lock.facts.items())), lock.unstable)
    assert text_of(turned) == text
    notes = ["Not compared" in text_of(each) for each in (lock, Lock(lock.made, lock.facts))]
    assert notes == [True, False]
    # Equal modules stand together, in the order of their numbers; the other one is apart.
    heads = [line for line in text.splitlines() if line.startswith("[module")]
    assert heads == ['[modules."GPT.h.[0-2,10,12].mlp"]', '[module."GPT.h.11.mlp"]']


@pytest.mark.parametrize("name", HOSTILE)
def test_names_may_hold_anything_and_a_lock_is_toml(tmp_path, name):
    plain = name.encode("utf-8", "replace").decode()
    lock, expected = made_lock(), made_lock()
    for each, text in ((lock, name), (expected, plain)):
        each.made["script"] = text
        each.facts |= {Key(MODULE, text, text): text, Key(FUNCTIONS, "", text): 5}
        each.unstable[Key(MODULE, text, "calls")] = "1, 2"
    text = text_of(lock)
    assert lockfile.read(written(tmp_path, text)) == expected
    if sys.version_info >= (3, 11):
        import tomllib

        read = tomllib.loads(text)
        assert (read["module"][plain], read["functions"][plain]) == ({plain: plain}, 5)
        assert read["step"] == {"forward_flop": 2**63 + 1, "inputs": "32x16, 7x16"}
        assert read["modules"]["GPT.h.[0-2,10,12].mlp"] == {"calls": 3}
        assert read["made"]["arguments"] == ["--width", "64"]
        assert read["unstable"]["module"]["GPT"] == {"calls": "1, 2, 1"}


@cases(
    "text words",
    ("", "no version"),
    ("version = 2\n", "version 2"),
    ("version = 1\n[step]\n<<<<<<< HEAD\n", "line 3"),
    ("version = 1\n[step]\ncalls = one\n", "line 3"),
    ("version = 1\n[other]\n", "line 2"),
    ('version = 1\n[modules."GPT.h.[0-99999999]"]\n', "line 2"),
    ("version = 1\n" + '[modules."a.[0-99999]"]\n' * 11, "line 12"),
    (f"version = 1\n[made]\nsteps = {'9' * 5000}\n", "line 3"),
    (f"version = 1\n[made]\nsteps = 1{' ' * 200_000}x\n", "line 3"),
    (f"version = 1\n[made]\narguments = [{'[' * 100_000}\n", "line 3"),
    ("version = 1\n[made]\narguments = [" + '"\\"' * 60_000 + "]\n", "line 3"),
    ("version = 1\n[unstable.made]\nx = 1\n", "line 2"),
)
def test_a_damaged_lock_is_named_with_its_line(tmp_path, text, words):
    with pytest.raises(RecordingError, match=words):
        lockfile.read(written(tmp_path, text))


def test_a_missing_lock_says_how_to_make_one_and_a_pipe_is_refused(tmp_path):
    with pytest.raises(RecordingError, match="profstack lock"):
        lockfile.read(tmp_path / "profstack.lock")
    os.mkfifo(tmp_path / "profstack.lock")
    with pytest.raises(RecordingError, match="no regular file"):
        lockfile.read(tmp_path / "profstack.lock")


def test_what_differs_between_runs_is_kept_apart_with_its_values():
    same, other = Key(STEP, "", "copies"), Key(STEP, "", "parameters")
    facts, unstable = merged([{same: 4, other: 1}, {same: 4}, {same: 4, other: 2}])
    assert (facts, unstable) == ({same: 4}, {other: "1, 0, 2"})
