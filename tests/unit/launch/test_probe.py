"""What `doctor` asks in a process of its own, asked in this one."""

import json
import sys
from importlib import metadata

import pytest
import torch

from profstack.launch import probe
from tests.support.commands import fails


@pytest.fixture
def answer(capsys):
    def answer(what):
        probe.main([what])
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return answer


def test_torch_is_tried_and_its_profiler_delivers_or_says_why_not(answer, monkeypatch):
    found, device = answer("torch"), torch.cuda.is_available()
    facts = [found[name] for name in ("version", "cuda_build", "cuda", "kineto")]
    assert facts == [torch.__version__, torch.version.cuda, device, True]
    assert found["cpu_events"] > 3
    assert (found["device_events"] > 0, "gpu" in found) == (device, device)
    monkeypatch.setattr(torch.profiler, "profile", fails(OSError("no\n driver")))
    found = answer("torch")
    assert found["profiler_reason"] == "OSError: no driver"
    assert (found["version"], "cpu_events" in found) == (torch.__version__, False)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "ModuleNotFoundError" in answer("torch")["reason"]


def test_packages_are_imported(answer, tmp_path, monkeypatch):
    (tmp_path / "broken_one.py").write_text("import no_such_part\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = answer("packages:memory-profiler,no-such-package,broken-one")
    broken, version = found.pop("broken-one"), metadata.version("memory-profiler")
    absent, known = {"version": None, "reason": ""}, {"version": version, "reason": None}
    assert found == {"memory-profiler": known, "no-such-package": absent}
    assert (broken["version"], "no_such_part" in broken["reason"]) == (None, True)
