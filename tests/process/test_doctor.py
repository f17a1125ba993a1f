"""`profstack doctor` and the peaks on this machine: what is said is what an honest try finds."""

import json
import time
from importlib import metadata

import torch

from profstack.layer import layer_names
from tests.support.processes import CHECKOUT, package, run_python
from tests.support.recorded_runs import TRAIN

LAYERS = """
from profstack.layer import Description, Wrapper
class Sound(Wrapper):
    name = 'sound'
    occupies = frozenset()
    description = Description('counting', 'sounder', '', '', '', '')
    def start(self, context): ...
    def stop(self): ...
    def take(self): ...
"""
ENTRIES = """
[profstack.wrappers]
sound = others_layers:Sound
absent = no_such_module:Thing
cprofile = others_layers:Sound
"""


def test_what_is_here_works_beside_broken_packages_and_in_any_folder(tmp_path):
    beside = package(tmp_path, "others", LAYERS, ENTRIES)
    # A folder that shadows modules.
    (tmp_path / "here").mkdir()
    for name in ("queue.py", "torch.py"):
        (tmp_path / "here" / name).write_text("raise SystemExit('shadowed')\n")
    code = "import sys; sys.path.pop(0); from profstack.commands import main;"
    code += "sys.exit(main(['doctor', '--format', 'json']))"
    where = {"cwd": tmp_path / "here", "env": {"PYTHONPATH": f"{beside}:{CHECKOUT}"}}
    answer = json.loads(run_python("-c", code, **where).stdout)
    assert answer["ok"] is True
    checks = {(each["group"], each["name"]): each for each in answer["checks"]}
    layers = {name: each["works"] for (group, name), each in checks.items() if group == "layer"}
    assert [name for name in (*layer_names(), "sound") if layers[name] is not True] == []
    assert "no_such_module" in json.dumps(answer)
    tools = {name: each for (group, name), each in checks.items() if group == "tool"}
    assert tools["torch"]["version"] == torch.__version__
    for name in ("numpy", "pandas", "rich", "snakeviz", "nvtx", "memory-profiler"):
        assert tools[name]["works"] is True
        assert tools[name]["version"] == metadata.version(name)
    assert bool(tools["cuda"]["works"]) == torch.cuda.is_available()
    # No place of the user's is told but that of the interpreter, which may lie there.
    assert answer.pop("executable")
    assert str(CHECKOUT) not in json.dumps(answer)


def test_the_first_run_does_not_wait_for_the_peaks_and_its_page_gets_them(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    more = {"PROFSTACK_PEAKS": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    words = ("-m", "profstack", "run", "--layers", "torch", "-o", "rec", "train.py", "20")
    said = run_python(*words, cwd=tmp_path, env=more).stderr.splitlines()
    assert ["in the background" in said[-2], said[-1]] == [True, "Wrote rec/report.html"]
    first = (tmp_path / "rec" / "report.html").stat().st_ino
    end = time.monotonic() + 200
    while time.monotonic() < end and (tmp_path / "rec" / "report.html").stat().st_ino == first:
        time.sleep(0.5)
    found = json.loads((tmp_path / "rec" / "report.json").read_text())["roofline"]["peaks"]
    assert [rate["dtype"] for rate in found["flop_per_s"]] == ["float32"], found["reason"]
    # The next run finds them.
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
