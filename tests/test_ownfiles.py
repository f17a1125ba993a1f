"""Whose file it is: the user's own, or which library's, also told on another machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from conftest import CHECKOUT, clean_environment

from profstack import code_owner
from profstack.code_owner import BUILTIN, FACT, OWN, PROFSTACK, PYTHON, Places


def test_files_and_the_packages_they_belong_to(tmp_path: Path) -> None:
    places = Places.of(str(tmp_path))
    assert places.package(str(tmp_path / "train.py")) == OWN
    assert places.package(str(tmp_path / "lib" / "data.py")) == OWN
    assert places.package(str(torch.__file__)) == "torch"
    assert places.package(str(subprocess.__file__)) == PYTHON
    assert places.package("<frozen importlib._bootstrap>") == PYTHON
    assert places.package("<eval_with_key>.0") == "(generated code)"
    assert places.package("~") == BUILTIN
    assert places.package(code_owner.__file__) == PROFSTACK
    assert places.package("/opt/tools/tricks.py") == "tools"
    assert not places.is_own(str(tmp_path) + "-other/train.py")


def test_packages_installed_below_the_script_are_not_its_own(tmp_path: Path) -> None:
    # An environment beside the script, or the user's packages where the script lies at home.
    places = Places.of(str(tmp_path))
    installed = tmp_path / ".local" / "lib" / "python3.11" / "site-packages"
    assert places.package(str(installed / "torch" / "nn" / "modules" / "linear.py")) == "torch"
    assert places.package(str(installed / "six.py")) == "six"


@pytest.mark.parametrize("file", [None, "train.py"])
def test_code_that_came_as_text_is_the_scripts_where_that_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str | None
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__file__", file, raising=False)
    places = Places.of(str(tmp_path))
    for text in ("<string>", "<stdin>"):
        # Else it is that of a named tuple or a data class.
        assert places.is_own(text) == (file is None)
        assert places.package(text) == (OWN if file is None else "(generated code)")


@pytest.mark.parametrize("marker", [".git", "pyproject.toml", "setup.py", "setup.cfg"])
def test_the_whole_project_of_a_script_is_its_own(tmp_path: Path, marker: str) -> None:
    project = tmp_path / "project"
    (project / marker).mkdir(parents=True)
    places = Places.of(str(project / "scripts" / "train"))
    assert places.is_own(str(project / "scripts" / "train" / "main.py"))
    assert places.package(str(project / "src" / "models" / "net.py")) == OWN
    installed = project / ".venv" / "lib" / "python3.11" / "site-packages" / "six.py"
    assert places.package(str(installed)) == "six"
    assert not places.is_own(str(tmp_path / "elsewhere.py"))


def test_a_home_folder_is_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".git").mkdir()
    places = Places.of(str(tmp_path / "scripts"))
    assert places.is_own(str(tmp_path / "scripts" / "train.py"))
    assert not places.is_own(str(tmp_path / "tools" / "lib.py"))


def test_a_path_that_leaves_the_folder_is_not_in_it(tmp_path: Path) -> None:
    places = Places.of(str(tmp_path / "app"))
    assert not places.is_own(str(tmp_path / "app" / ".." / "other" / "lib.py"))
    assert places.is_own(str(tmp_path / "app" / "x" / ".." / "lib.py"))


def test_a_path_without_a_root_begins_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Places.of(str(tmp_path)).is_own("model.py")
    assert not Places.of(str(tmp_path / "app")).is_own("model.py")


def test_both_names_of_a_folder_behind_a_link_are_the_scripts(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    places = Places.of(str(tmp_path / "link"))
    assert places.is_own(str(tmp_path / "link" / "train.py"))
    assert places.is_own(str(tmp_path / "real" / "model.py"))


def test_a_recording_tells_it_elsewhere() -> None:
    fact = {
        "roots": ["C:\\work\\app\\"],
        "libraries": ["C:\\Python311\\Lib\\"],
        "profstack": ["C:\\work\\app\\env\\Lib\\site-packages\\profstack\\"],
        "working": "C:\\work\\",
        "text": False,
        "sep": "\\",
    }
    places = Places.read({FACT: fact})
    assert places is not None
    assert json.loads(json.dumps(places.fact())) == fact
    assert places.package("C:\\work\\app\\train.py") == OWN
    assert places.package("app\\train.py") == OWN
    assert places.package("C:\\Python311\\Lib\\json\\decoder.py") == PYTHON
    assert places.package("C:\\work\\app\\env\\Lib\\site-packages\\torch\\nn\\x.py") == "torch"
    assert Places.read({}) is None


_SAY = "from profstack.code_owner import script_folder; print(script_folder())"


def folder_of(tmp_path: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env=clean_environment(PYTHONPATH=str(CHECKOUT)),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_the_folder_of_a_script_of_a_package_and_of_an_installed_program(tmp_path: Path) -> None:
    (tmp_path / "app" / "train").mkdir(parents=True)
    (tmp_path / "app" / "train" / "main.py").write_text(_SAY)
    (tmp_path / "app" / "train" / "__main__.py").write_text(_SAY)
    assert folder_of(tmp_path, "app/train/main.py") == str(tmp_path / "app" / "train")
    assert folder_of(tmp_path, "-m", "app.train.main") == str(tmp_path)
    assert folder_of(tmp_path, "-m", "app.train") == str(tmp_path)
    assert folder_of(tmp_path, "-c", _SAY) == str(tmp_path)


def test_an_installed_program_runs_the_users_code_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main = sys.modules["__main__"]
    for file in (os.__file__, os.path.join(sysconfig.get_paths()["scripts"], "launch")):
        monkeypatch.setattr(main, "__file__", file, raising=False)
        assert code_owner.script_folder() == str(tmp_path)
