"""What the words of a command line stand for, and which are refused before anything starts."""

import os

import pytest

from profstack.errors import UsageError
from profstack.launch import target as targets
from profstack.launch.target import Target, parse, split

# The words, and where a target begins among them.
SPLIT = """
| train.py // | train.py -o mine --force -m x // -o out | train.py -o mine
--output=out | train.py // --force -q | train.py // -o train.py | other.py
-q -- | train.py --layers x // -- | -m pkg // | -m pkg.mod -- -o x // --max-steps 3 | -c code -c
-q | - // | - --layers x // -q | // --layers | // | train.py -- more
"""


def test_own_options_end_where_the_target_begins():
    valued = frozenset({"-o", "--output", "--layers", "--max-steps"})
    for row in SPLIT.strip().replace("\n", " // ").split(" // "):
        own, target = (half.split() for half in row.split("|"))
        expected = ([word for word in own if word != "--"], target)
        assert split([*own, *target], valued) == expected
    for words, said in (([], "no script to run"), (["-m"], "-m needs"), (["-c"], "-c needs")):
        with pytest.raises(UsageError, match=f"{said}.*profstack run"):
            parse(words)


def test_kind_name_and_program(tmp_path, monkeypatch):
    (tmp_path / "project" / "here").mkdir(parents=True)
    (tmp_path / "project" / "here" / "my model.v2.py").touch()
    monkeypatch.chdir(tmp_path / "project")
    for words, *expected in (
        (["nowhere/my model.py", "x"], "script", "my-model.py", "nowhere/my model.py"),
        (["here/my model.v2.py"], "script", "my-model.v2", "here/my model.v2.py"),
        (["here"], "script", "here", "here"), (["."], "script", "project", "."),
        (["-m", "pkg.train", "x"], "module", "pkg.train", "pkg.train"),
        (["-c", "print()"], "code", "code", "-c"), (["-"], "stdin", "stdin", "-"),
    ):  # fmt: skip
        target = parse(words)
        assert [target.kind, target.name, target.program] == expected


def write(folder, **texts):
    for name, text in texts.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return Target((str(folder / "train.py"), "x"))


CANNOT_STEP = r"""
import torch; print(torch.ones(3) @ torch.ones(3)) // print('torch' // print('\d' is '')
import numpy as np, os.path; from torch import ones // backwards = stepping = 1 // from . import x
"""
MAY_STEP = """
import torch; x.backward() // from torch import nn // import numpy, my_own_module
from my.own import go; go() // __import__('train') // from transformers import pipeline
"""


def test_modules_and_packages_beside_the_script_are_read_too(tmp_path):
    for number, files in enumerate((
        {"train": "from helper import go", "helper": "import train, deeper", "deeper": "{}"},
        {"train": "import project.loop", "project/loop": "from .x import y", "project/x": "{}"},
        {"train": "import torch, last", "last": "{}"},
        {"__main__": "import last", "last": "{}"},
    )):  # fmt: skip
        folder = tmp_path / str(number)
        folder.mkdir()
        for call in ("loss.backward()", "print()"):
            filled = {name: text.replace("{}", call) for name, text in files.items()}
            target = write(folder, **filled)
            target = target if "train" in files else Target((str(folder),))
            assert target.has_no_step() is (call == "print()")
    for more, none in ((-2, True), (-1, True), (0, False), (1, False)):
        folder = tmp_path / f"many{more}"
        folder.mkdir()
        parts = {f"project/part{number}": "" for number in range(targets._MOST_FILES + more)}
        assert write(folder, train="import project\n", **parts).has_no_step() is none


def test_a_source_that_cannot_step_or_ends_its_own_steps(tmp_path, recwarn):
    for table, none in ((CANNOT_STEP, True), (MAY_STEP, False)):
        for text in table.strip().replace("\n", " // ").split(" // "):
            assert write(tmp_path, train=text).has_no_step() is none
            assert Target(("-c", text)).has_no_step() is none
    # Python will warn itself.
    assert not recwarn.list
    for text, calls in {
        "import profstack\nprofstack.step()\n": True,
        "from profstack import region, step\nstep()\n": True,
        "import profstack\nprofstack.step\n": False,
        "optimizer.step()\n": False,
    }.items():
        assert write(tmp_path, train="import helper\n", helper=text).calls_step() is calls
    for words in (("-m", "pkg"), ("-",), ("gone.py",)):
        target = Target(words)
        assert (target.has_no_step(), target.calls_step()) == (False, False)


def test_rank_size_and_key_come_from_the_launcher(monkeypatch):
    # There is no launch but that of the test.
    for name in list(os.environ):
        if name.startswith(("SLURM_", "TORCHELASTIC_", "MASTER_", "WORLD_SIZE")) or "RANK" in name:
            monkeypatch.delenv(name)
    for words, *known in (
        ("", None, None, f"parent-{os.getppid()}"),
        ("SLURM_PROCID=5 WORLD_SIZE=x SLURM_JOB_ID=77", 5, None, "77-"),
        ("RANK=0 WORLD_SIZE=8 TORCHELASTIC_RUN_ID=none SLURM_STEP_ID=3", 0, 8, "77-3"),
        ("TORCHELASTIC_RUN_ID=ab MASTER_PORT=29", 0, 8, "ab-29"),
    ):
        for word in words.split():
            monkeypatch.setenv(*word.split("="))
        assert [targets.own_rank(), targets.world_size(), targets.launch_key()] == known
