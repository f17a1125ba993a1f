"""What the words of a command line stand for, and which are refused before anything starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from profstack.errors import TargetError, UsageError
from profstack.launch.target import Target, parse, split
from profstack.storage.vocabulary import launcher_warning

VALUED = frozenset({"-o", "--output", "--layers", "--max-steps"})


@pytest.mark.parametrize(
    ("words", "own", "target"),
    [
        ("train.py", "", "train.py"),
        ("train.py -o mine --force -m x", "", "train.py -o mine --force -m x"),
        ("-o out train.py -o mine", "-o out", "train.py -o mine"),
        ("--output=out train.py", "--output=out", "train.py"),
        ("--force -q train.py", "--force -q", "train.py"),
        ("-o train.py other.py", "-o train.py", "other.py"),
        ("-q -- train.py --layers x", "-q", "train.py --layers x"),
        ("-- -m pkg", "", "-m pkg"),
        ("-m pkg.mod -- -o x", "", "-m pkg.mod -- -o x"),
        ("--max-steps 3 -c code -c", "--max-steps 3", "-c code -c"),
        ("-q -", "-q", "-"),
        ("- --layers x", "", "- --layers x"),
        ("-q", "-q", ""),
        ("--layers", "--layers", ""),
        ("train.py -- more", "", "train.py -- more"),
    ],
)
def test_own_options_end_where_the_target_begins(words: str, own: str, target: str) -> None:
    assert split(words.split(), VALUED) == (own.split(), target.split())


def test_no_target_is_told_with_the_usage() -> None:
    with pytest.raises(UsageError, match=r"no script to run.*profstack run"):
        parse([])


@pytest.mark.parametrize("word", ["-m", "-c"])
def test_a_module_or_code_must_be_given(word: str) -> None:
    with pytest.raises(UsageError, match=f"{word} needs a value"):
        parse([word])


@pytest.mark.parametrize(
    ("words", "kind", "name"),
    [
        (["nowhere/my model.py", "x"], "script", "my-model.py"),
        (["-m", "pkg.train", "x"], "module", "pkg.train"),
        (["-c", "print()"], "code", "code"),
        (["-"], "stdin", "stdin"),
        (["..."], "script", "run"),
    ],
)
def test_kind_and_name(words: list[str], kind: str, name: str) -> None:
    target = parse(words)
    assert target.kind == kind
    assert target.name == name


def test_the_name_of_a_script_that_exists_is_without_its_ending(tmp_path: Path) -> None:
    script = tmp_path / "my model.v2.py"
    script.touch()
    assert Target((str(script),)).name == "my-model.v2"


def test_a_folder_goes_by_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    assert Target((".",)).name == "project"


def test_targets_python_could_not_open_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="no such script") as caught:
        Target((str(tmp_path / "nowhere.py"),)).check()
    assert str(tmp_path / "nowhere.py") in str(caught.value)
    with pytest.raises(TargetError, match="folder without __main__"):
        Target((str(tmp_path),)).check()
    (tmp_path / "__main__.py").touch()
    Target((str(tmp_path),)).check()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_script_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "secret.py"
    script.touch(mode=0)
    with pytest.raises(TargetError, match="cannot be read"):
        Target((str(script),)).check()


@pytest.mark.parametrize("words", [("-m", "no.such"), ("-c", "1/0"), ("-",)])
def test_other_targets_are_for_python_to_judge(words: tuple[str, ...]) -> None:
    Target(words).check()


@pytest.mark.parametrize(
    ("text", "none"),
    [
        ("import torch\nprint(torch.ones(3) @ torch.ones(3))\n", True),
        ("import torch\nx.backward()\n", False),
        ("from torch import nn\n", False),
        ("import numpy, my_own_module\nmy_own_module.go()\n", False),
        ("from my.own import go\ngo()\n", False),
        ("__import__('train')\n", False),
        ("import numpy as np, os.path\nfrom torch import ones\n", True),
        ("print('torch'\n", True),
        ("from transformers import pipeline\n", False),
        ("backwards = stepping = 1\n", True),
    ],
)
def test_a_source_that_cannot_step(tmp_path: Path, text: str, none: bool) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    assert Target((str(script),)).has_no_step() is none
    assert Target(("-c", text)).has_no_step() is none


def test_modules_beside_the_script_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from helper import go\ngo()\n")
    (tmp_path / "helper.py").write_text("import train\nfrom deeper import *\n")
    (tmp_path / "deeper.py").write_text("loss.backward()\n")
    assert not Target((str(tmp_path / "train.py"),)).has_no_step()
    (tmp_path / "deeper.py").write_text("pass\n")
    assert Target((str(tmp_path / "train.py"),)).has_no_step()


def test_packages_beside_the_script_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from project.loop import go\ngo()\n")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "__init__.py").touch()
    (tmp_path / "project" / "loop.py").write_text("from .deep import go\nfrom . import deep\n")
    (tmp_path / "project" / "deep.py").write_text("loss.backward()\n")
    assert not Target((str(tmp_path / "train.py"),)).has_no_step()
    (tmp_path / "project" / "deep.py").write_text("print()\n")
    assert Target((str(tmp_path / "train.py"),)).has_no_step()


def test_a_program_of_very_many_files_is_not_read_to_the_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import project\n")
    (tmp_path / "project").mkdir()
    for number in range(60):
        (tmp_path / "project" / f"part{number}.py").touch()
    assert not Target((str(tmp_path / "train.py"),)).has_no_step()


def test_reading_a_source_warns_of_nothing(recwarn: pytest.WarningsRecorder) -> None:
    assert Target(("-c", r"print('\d' is '')")).has_no_step()
    assert not recwarn.list


def test_a_folder_is_read_from_its_main_module(tmp_path: Path) -> None:
    (tmp_path / "__main__.py").write_text("import torch\n")
    assert Target((str(tmp_path),)).has_no_step()
    (tmp_path / "__main__.py").write_text("import loop\n")
    (tmp_path / "loop.py").write_text("loss.backward()\n")
    assert not Target((str(tmp_path),)).has_no_step()


@pytest.mark.parametrize("words", [("-m", "pkg"), ("-",)])
def test_what_cannot_be_read_without_running_it_may_step(words: tuple[str, ...]) -> None:
    assert not Target(words).has_no_step()


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"], "torchrun"),
        (["-m", "torch.distributed.launch", "train.py"], "torchrun"),
        (["/opt/bin/torchrun", "train.py"], "torchrun"),
        (["-m", "accelerate.commands.launch", "train.py"], "accelerate launch"),
        (["/opt/bin/accelerate", "launch", "train.py"], "accelerate launch"),
        (["-m", "deepspeed.launcher.runner", "train.py"], "deepspeed"),
        (["train.py", "-m", "torch.distributed.run"], None),
        (["-c", "import torchrun"], None),
    ],
)
def test_a_launcher_is_told_from_a_script(words: list[str], command: str | None) -> None:
    said = launcher_warning(parse(words).program)
    if command is None:
        assert said is None
    else:
        assert f"write {command} --no" in str(said).replace("--nproc-per-node N ", "")
        assert str(said).endswith("profstack run --ranks all script.py")
