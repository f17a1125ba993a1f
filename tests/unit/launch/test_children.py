"""Which processes are followed, what tells them so, and when one begins to record."""

import os
import sys
from types import SimpleNamespace

import pytest
import torch

from profstack.launch import children
from tests.support.tables import cases

HERE = sys.executable
NAME, BIN = os.path.basename(HERE), os.path.dirname(HERE)


@cases("program arguments path own",
    (None, [HERE, "x.py"], "", True), (None, HERE, "", True),
    (HERE, ["another name", "x.py"], "", True),
    (None, [HERE, "-u", "-X", "dev", "-c", "1", "-I"], "", True),
    (None, [HERE, "-X", "dev", "-I", "x.py"], "", False), (None, [HERE, "-sE", "x.py"], "", False),
    (None, ["/bin/sh", HERE], "", False), (None, [NAME, "x.py"], "/nowhere", False),
    (None, [NAME, "x.py"], f"/nowhere{os.pathsep}{BIN}", True),
    (None, [], "", False), (None, iter([HERE, "x.py"]), "", False))  # fmt: skip
def test_this_interpreter_is_followed_where_it_reads_its_environment(program, arguments, path, own):
    assert children.is_own(program, arguments, {"PATH": path}) is own


def test_code_that_arms_is_put_before_that_of_spawned_processes_alone():
    started = []
    util = SimpleNamespace(spawnv_passfds=lambda *given: started.append(given))
    children.follow_spawned(util, "/rec")
    for module in ("spawn", "forkserver", "resource_tracker"):
        util.spawnv_passfds(HERE, ["py", "-c", f"from multiprocessing.{module} import x"], [3])
    codes = [words[2] for _, words, _ in started]
    assert ["'/rec'" in code and code.count("\n") == 0 for code in codes] == [True, True, False]
    assert all(code.endswith("import x") for code in codes)
    children.stop_following()
    util.spawnv_passfds(HERE, ["py", "-c", "from multiprocessing.spawn import x"], [])
    assert "'/rec'" not in started[-1][1][2]


@pytest.mark.parametrize("is_worker", [False, True])
def test_recording_begins_after_the_second_call_but_in_a_loaders_worker(is_worker, monkeypatch):
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: is_worker or None)
    original, began = torch.nn.Module.__call__, []
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    look_out = children.LookOut(torch, lambda: began.append(torch.nn.Module.__call__))
    model(torch.ones(1, 2))
    with pytest.raises(RuntimeError) as caught:
        model[0](torch.ones(1, 5))
    assert [each.name for each in caught.traceback][1:2] == [original.__name__]
    assert began == []
    model(torch.ones(1, 2))
    look_out.begin()
    assert began == ([] if is_worker else [original])
    assert torch.nn.Module.__call__ is original
