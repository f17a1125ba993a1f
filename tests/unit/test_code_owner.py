"""Whose file it is: the user's own, or which library's, also told on another machine."""

import json
import os
import subprocess
import sys
import sysconfig
from importlib.machinery import ModuleSpec
from types import SimpleNamespace

import pytest
import torch

from profstack import code_owner
from profstack.code_owner import BUILTIN, CELLS, FACT, OWN, PYTHON, Places, cell_names
from tests.support.tables import entries

SITE = "lib/python3.11/site-packages"
GENERATED = "(generated code)"


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    """Above it no project is looked for, whatever lies in the folder of temporary files."""
    monkeypatch.setenv("HOME", str(tmp_path.parent))


# With an environment beside the script, or the user's packages where the script lies at home.
OWNERS_HERE = f"""
HERE/train.py | {OWN} // HERE/lib/data.py | {OWN} // HERE/.venv/{SITE}/torch/nn/linear.py | torch
HERE/.venv/{SITE}/six.py | six // HERE/.venv/{SITE}/mine/{SITE}/inner/x.py | inner // ~ | {BUILTIN}
<eval_with_key>.0 | {GENERATED} // <ipython-input-3-ab> | {OWN} // /tmp/ipykernel_123/42.py | {OWN}
HERE/../lib/x.py | lib // HERE/app/../x.py | {OWN} // cell 12 | {OWN}
"""


def test_files_and_the_packages_they_belong_to(tmp_path):
    places = Places.of(str(tmp_path))
    owners = dict(entries(OWNERS_HERE.replace("HERE", str(tmp_path))))
    owners |= {f"{tmp_path}-other/train.py": f"{tmp_path.name}-other", "/x.py": os.sep}
    owners |= {str(torch.__file__): "torch", str(subprocess.__file__): PYTHON}
    owners[str(code_owner.__file__)] = code_owner.PROFSTACK
    assert {file: places.package(file) for file in owners} == owners
    own = [file for file, owner in owners.items() if owner == OWN]
    assert [file for file in owners if places.is_own(file)] == own


def test_text_and_the_whole_project_of_a_script_are_its_own(tmp_path, monkeypatch):
    for file, own in ((None, True), ("train.py", False)):
        monkeypatch.setattr(sys.modules["__main__"], "__file__", file, raising=False)
        places = Places.of(str(tmp_path))
        for text in ("<string>", "<stdin>"):
            # Else it is that of a named tuple or a data class.
            found = (places.is_own(text), places.package(text))
            assert found == (own, OWN if own else GENERATED)
    files = {"scripts/train/main.py": OWN, "src/models/net.py": OWN, f".venv/{SITE}/six.py": "six"}
    files["../elsewhere.py"] = tmp_path.name
    for marker in (".git", "pyproject.toml", "setup.py", "setup.cfg"):
        project = tmp_path / f"of-{marker}"
        (project / marker).mkdir(parents=True)
        places = Places.of(str(project / "scripts" / "train"))
        assert {file: places.package(str(project / file)) for file in files} == files


def test_a_recording_tells_it_elsewhere():
    fact = {"roots": ["C:\\work\\app\\"], "libraries": ["C:\\Python311\\Lib\\"]}
    fact |= {"profstack": ["C:\\work\\app\\env\\profstack\\"], "working": "C:\\work\\"}
    fact |= {"text": True, "sep": "\\"}
    places = Places.read({FACT: fact})
    assert json.loads(json.dumps(places.fact())) == fact
    owners = {"app\\train.py": OWN, "..\\app\\train.py": "app", "<stdin>": OWN}
    owners["C:\\work\\app\\env\\profstack\\x.py"] = code_owner.PROFSTACK
    assert {file: places.package(file) for file in owners} == owners
    assert Places.read({}) is Places.read({FACT: None}) is None


def test_the_folder_of_the_scripts_own_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main = sys.modules["__main__"]
    for file, package, folder in (
        ("app/train/main.py", None, "app/train"),
        ("app/train/main.py", "app.train", "."),
        ("app/train/main.py", "train", "app"),
        # Code that came as text, and an installed program that runs the user's code.
        *((None, None, "."), (os.__file__, None, ".")),
        (os.path.join(sysconfig.get_paths()["scripts"], "launch"), None, "."),
        (f"app/{SITE}/launch.py", None, "."),
    ):
        spec = None if package is None else ModuleSpec(f"{package}.main", None)
        monkeypatch.setattr(main, "__file__", file, raising=False)
        monkeypatch.setattr(main, "__spec__", spec)
        assert code_owner.script_folder() == os.path.normpath(tmp_path / folder)


# Each file with what the report says of it: own, not own, or nothing.
OWNERS = f"""
/home/a/train.py | True | {OWN} // /home/a/train.py | None | {OWN} // /home/a/train.py | False | a
/venv/{SITE}/mine/train.py | True | {OWN} // /venv/{SITE}/torch/nn/modules/conv.py | None | torch
C:\\venv\\Lib\\site-packages\\numpy\\core.py | False | numpy // helper.py | False | helper
~/.pyenv/versions/3.11.7/lib/python3.11/contextlib.py | None | {PYTHON}
<frozen importlib._bootstrap> | False | {PYTHON} // ./torch/nn.py | False | torch
"""


def test_a_file_belongs_to_a_library_or_to_the_user():
    for file, own, package in entries(OWNERS):
        assert code_owner.package_of(file, own={"True": True, "False": False}.get(own)) == package
    file = {"file": "lib/a.py"}
    records = [{**file, "own": False}, {**file, "own": True, "package": None}]
    records.append({**file, "own": False, "package": "known"})
    packages = [record["package"] for record in code_owner.with_package(records)]
    assert packages == ["lib", OWN, "known"]


def test_files_of_cells_have_the_numbers_that_the_notebook_shows(monkeypatch):
    kernel, prompt, again = "/tmp/ipykernel_7/29.py", "<ipython-input-5-9f3a>", "/tmp/k_7/291.py"
    shell = SimpleNamespace(compile=SimpleNamespace(_filename_map={kernel: 2, again: 5, prompt: 5}))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    numbers = code_owner.cell_numbers()
    assert numbers == {kernel: 2, again: 5, prompt: 5}
    named = cell_names({CELLS: numbers})
    # Of two with one number the last one is beside it: the first was run without a number.
    texts = {kernel: "cell 2", prompt: "cell 5", again: again, "/app/29.py": "/app/29.py"}
    texts |= {"29.py:13 (train) ran": "cell 2, line 13 (train) ran"}
    texts |= {f'File "{kernel}", line 3': 'File "cell 2", line 3'}
    assert {text: named(text) for text in texts} == texts
    shell = None
    assert cell_names({CELLS: code_owner.cell_numbers()}) is None


def test_texts_of_files_are_kept_within_bounds(tmp_path, monkeypatch):
    monkeypatch.setattr(code_owner, "LARGEST", 2_280)
    monkeypatch.setattr(code_owner, "LARGEST_SUM", 3_480)
    for name, count in (("a", 191), ("b", 190), ("c", 101), ("d", 100), ("e", 1)):
        (tmp_path / f"{name}.py").write_text("x = 'é é'\n" * count, encoding="utf-8")
    rows = code_owner.source_records([str(tmp_path / f"{name}.py") for name in "abcdef"], 4)
    kept, sizes = [False, True, False, True, False, False], (2292, 2280, 1212, 1200, 12, None)
    places = [(row["file"][-4], row["slice"], row["bytes"]) for row in rows]
    assert places == [*zip("abcdef", [4] * 6, sizes, strict=True)]
    assert [row["text"] is not None for row in rows] == kept
    assert [row["reason"] is None for row in rows] == kept
    assert rows[1]["text"] == "x = 'é é'\n" * 190
