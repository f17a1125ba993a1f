"""`profstack doctor`: what it says of layers and tools, by the answers of its probes."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from profstack.commands import doctor, main
from profstack.layer import layer_names
from profstack.readers.nsys import tool
from tests.support.commands import fails

TORCH = {"version": "2.13.0+cpu", "cuda_build": None, "kineto": True, "cpu_events": 5}
TORCH |= {"cuda": False, "device_events": False}
CUDA = {**TORCH, "cuda_build": "12.8", "cuda": True, "gpu": "H200", "capability": "9.0"}
NAMES = ("numpy", "pandas", "nvtx", "memory-profiler", "flops-profiler", "thop", "fvcore")
REQUIRED = {"cprofile", "torch", "kineto", "numpy", "flops", "watch"}


@pytest.fixture
def probes(monkeypatch):
    """Probes that answer that everything works, and how else they end; nsys is not installed."""
    layers = {name: {"tool": f"{name}er", "version": "1.5", "reason": None} for name in
              layer_names()}  # fmt: skip
    packages = {name: {"version": "2.5", "reason": None} for name in (*NAMES, "rich", "snakeviz")}
    made = SimpleNamespace(asked=[], ends={}, packages=packages, torch=dict(TORCH))
    made.layers = {"layers": layers, "problems": []}

    def run(command, **how):
        made.asked.append((command, how))
        what = command[-1].partition(":")[0]
        if isinstance(end := made.ends.get(what), Exception):
            raise end
        said = f"noise\n{json.dumps(getattr(made, what))}\n"
        return SimpleNamespace(**{"returncode": 0, "stderr": "", "stdout": said, **(end or {})})

    monkeypatch.setattr(doctor.subprocess, "run", run)
    monkeypatch.setattr(tool, "find_nsys", fails(tool.NsysError("nsys was not found")))
    facts = ("implementation", "python", "platform", "cpu", "usable_cores")
    monkeypatch.setattr(doctor, "environment_facts", lambda: dict.fromkeys(facts, "Kµ"))
    return made


def checks():
    return {f"{check.group} {check.name}": check for check in doctor.gather()}


def test_where_everything_works_it_says_so(probes, capsys):
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert main(["doctor", "--format", "json"]) == 0
    printed = capsys.readouterr().out
    answer = json.loads(printed)
    assert (answer["ok"], answer["environment"]["cpu"], "Kµ" in printed) == (True, "Kµ", True)
    lines = text.splitlines()
    for check in answer["checks"]:
        row = f"{check['group']:<5}  {check['name']} "
        line = next(line for line in lines if line.startswith(row))
        assert ((check["version"] or "–") in line, check["detail"] in line) == (True, True)
    assert {check["name"] for check in answer["checks"] if check["required"]} == REQUIRED
    assert "  nsys: the package nsight-systems" in lines
    assert ("\x1b" in text, "not work here" in text) == (False, False)
    asked, root = probes.asked[:3], str(Path(doctor.__file__).parents[2])
    for (command, how), what in zip(asked, ("layers", "torch", "packages"), strict=True):
        assert (command[:2], command[3]) == ([sys.executable, "-c"], root)
        assert command[4].partition(":")[0] == what
        assert (how["timeout"], how["stdin"]) == (300, subprocess.DEVNULL)
    assert set(NAMES) < set(asked[2][0][4].partition(":")[2].split(","))


def test_a_torch_that_cannot_be_used_is_a_failure(probes, capsys):
    driver = {"returncode": 1, "stdout": "", "stderr": "x\nOSError: no driver\n"}
    for torch, end, said in (
        ({"reason": "ModuleNotFoundError: No module named 'torch'"}, None, "No module named"),
        ({"version": "2.5.1+cpu"}, None, "2.5.1+cpu is older than 2.6"),
        ({}, {"returncode": -11}, "the check was ended by signal 11"),
        ({}, driver, "the check ended with code 1: OSError: no driver"),
        ({}, subprocess.TimeoutExpired("python", 300), "the check did not end within 300 s"),
    ):
        probes.torch, probes.ends = {**TORCH, **torch}, {"torch": end}
        assert main(["doctor"]) == 1
        printed = capsys.readouterr().out
        assert (said in printed, "  torch: pip install 'torch>=2.6'" in printed) == (True, True)
        last = printed.splitlines()[-1]
        assert (last.startswith("profstack does not work here: "), "torch" in last) == (True, True)
        assert main(["doctor", "--format", "json"]) == 1
        assert json.loads(capsys.readouterr().out)["ok"] is False


def test_a_torch_that_works_and_its_profiler(probes):
    for version in ("2.6.0", "2.10", "3.0", "git-abc", ""):
        probes.torch["version"] = version
        assert checks()["tool torch"].works
    for torch, reason in (
        ({}, None), ({"cpu_events": 0}, "a profiled multiplication left no event"),
        ({"profiler_reason": "OSError: x"}, "OSError: x"), ({"reason": "no torch"}, "no torch"),
    ):  # fmt: skip
        probes.torch = {**TORCH, **torch}
        found = checks()
        shown = (found["layer torch"].works, found["layer torch"].detail)
        assert shown == (reason is None, reason or "by torcher")
        assert found["layer cprofile"].works


def test_the_device_is_stated(probes):
    for torch, cuda, said, cupti in (
        (TORCH, None, "without CUDA", None),
        ({**CUDA, "cuda": False}, None, "no usable GPU", None),
        (CUDA, True, "H200, compute capability 9.0", False),
        ({**CUDA, "device_events": 2}, True, "H200", True),
    ):
        probes.torch = torch
        found = checks()
        device = found["tool cuda"]
        assert (device.works, device.version) == (cuda, torch["cuda_build"])
        assert said in device.detail
        assert (found["tool cupti"].works if cuda else None) is cupti
        assert main(["doctor"]) == 0
