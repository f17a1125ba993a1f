"""The trial inside a process: what its observer notes, where changes took hold, what is written."""

import json
import subprocess
import sys

from profstack.changes.process import FILE

HEAD = """
import sys
from pathlib import Path
import torch
from profstack.changes import process
process.begin(
    Path.cwd(), torch, {options}, lambda name, do: sys.modules.get(name) and do(sys.modules[name])
)
from torch import nn, optim
"""
# The line of a script that its own text begins with.
FIRST = HEAD.count("\n") + 1
MANY = """
import logging, random
class Mine(optim.Adam):
    pass
class Net(nn.Sequential):
    pass
data = torch.utils.data.TensorDataset(torch.randn(12, 4))
loader = torch.utils.data.DataLoader(data, batch_size=3, num_workers=0)
small, net = nn.Linear(4, 4), Net(nn.Linear(4, 9), nn.Linear(9, 9), nn.Linear(9, 2))
before = [each.clone() for each in net.parameters()]
descent = Mine(net.parameters(), foreach=True)
for (x,) in loader:
    with torch.autocast("cpu", enabled=False):
        out = net(small(x))
    loss = nn.MSELoss()(out, torch.zeros_like(out))
    loss.backward()
    descent.step()
    descent.zero_grad(set_to_none=False)
with torch.autocast("cpu", dtype=torch.bfloat16):
    net(x)
net.eval(), small.eval()
for number, batch in enumerate(loader):
    pass
for _ in range(2):
    torch.save(1, "saved.pt")
logging.getLogger("mine").warning("once")
print(number, random.random(), torch.rand(1).item())
"""


def trial(folder, body, **options):
    """What a script's process has told, and what it printed."""
    wanted = {"changes": {}, "observe": False, "seed": 5} | options
    path = folder / "train.py"
    path.write_text(HEAD.replace("{options}", repr(wanted)) + body)
    (folder / "logs").mkdir()
    done = subprocess.run(
        [sys.executable, path], check=True, capture_output=True, text=True, cwd=folder, timeout=120
    )
    return json.loads((folder / FILE).read_text()), done.stdout.split()


def line(body, text):
    return FIRST + body[: body.index(text)].count("\n")


def test_the_observer_notes_what_a_script_makes_and_calls(tmp_path):
    told, printed = trial(tmp_path, MANY, observe=True)
    seen = told["seen"]
    [loader], [optimizer], root = seen["loaders"], seen["optimizers"], seen["root"]
    assert (loader["batch_size"], loader["num_workers"], loader["map_style"]) == (3, 0, True)
    assert loader["line"] == line(MANY, "loader = ")
    assert (optimizer["name"], optimizer["base"]) == ("Mine", "Adam")
    assert (optimizer["fused"], optimizer["foreach"]) == (False, True)
    assert optimizer["line"] == line(MANY, "descent = ")
    # The model with most parameters of the two.
    assert (root["class"], root["name"], root["parameters"]) == ("Net", "net", 45 + 90 + 20)
    assert (root["line"], root["dtype"]) == (line(MANY, "        out = net"), "float32")
    assert (root["blocks"], root["block"], root["convolutions"]) == (3, "Linear", 0)
    # Autocast that is off counts as little as what libraries log.
    calls = {"save": 2, "backward": 4, "zero_grad to zeros": 4, "autocast": 1, "logging": 1}
    assert seen["calls"] == {**calls, "evaluation": 1, "calls with gradients": 1}
    assert (seen["trains"], seen["device"]) == (True, "cpu")
    # An evaluation that is only noted goes to its end.
    assert printed[0] == "3"
    assert {name: len(rows) for name, rows in told["results"].items()} == {
        "losses": 4, "gradients": 4, "outputs": 5, "inputs": 5, "random": 5,
    }  # fmt: skip


def test_a_change_notes_its_places_and_the_seed_holds(tmp_path):
    changes = {"no-saving": None, "no-evaluation": None, "fused-optimizer": None}
    told, printed = trial(tmp_path, MANY, changes=changes)
    assert (told["seen"], told["failed"]) == (None, {})
    places = {name: [[row[1], row[2]] for row in rows] for name, rows in told["held"].items()}
    assert places["no-saving"] == [[line(MANY, "    torch.save"), 2]]
    assert places["fused-optimizer"] == [[line(MANY, "descent = "), 1]]
    assert [count for _, count in places["no-evaluation"]] == [1]
    assert not (tmp_path / "saved.pt").exists()
    assert printed[0] == "0"
    again = tmp_path / "again"
    again.mkdir()
    plain, others = trial(again, MANY)
    assert (plain["held"], others[1]) == ({}, printed[1])
    assert plain["results"]["inputs"] == told["results"]["inputs"]
    other = tmp_path / "other"
    other.mkdir()
    assert trial(other, MANY, seed=6)[1][1] != printed[1]


BROKEN = """
class Net(nn.Linear):
    def compile(self):
        raise OSError("no compiler")
net, twin = Net(3, 3), nn.Linear(3, 3)
given = net.weight.detach().clone()
for _ in range(70):
    net(torch.ones(2, 3))
    twin(torch.ones(2, 3))
print(torch.equal(net.weight, given), torch.equal(net(torch.ones(1, 3)), nn.functional.linear(
    torch.ones(1, 3), given, net.bias)), nn.Module.__call__.__qualname__)
"""


def test_a_change_that_fails_is_told_and_the_script_goes_on(tmp_path):
    told, printed = trial(tmp_path, BROKEN, changes={"compile": None})
    assert told["failed"] == {"compile": "OSError: no compiler"}
    # Only a first run changes parameters; the calls of modules are followed no longer.
    assert printed == ["True", "True", "Module._wrapped_call_impl"]


def test_a_model_gets_its_change_alone_among_others_of_its_class(tmp_path):
    body = """
one, other = nn.Linear(3, 3), nn.Linear(3, 3)
metric = nn.Identity()
for net in (metric, one, one):
    net(torch.ones(2, 3))
print(one(torch.ones(2, 3)).requires_grad, type(one).forward(other, torch.ones(2, 3)).requires_grad)
"""
    told, printed = trial(tmp_path, body, changes={"inference-mode": None})
    assert printed == ["False", "True"]
    assert sum(row[2] for row in told["held"]["inference-mode"]) == 3


def test_a_first_run_changes_last_digits_and_a_forked_process_writes_nothing(tmp_path):
    body = """
import os
net = nn.Linear(30, 3)
given = net.weight.detach().clone()
net(torch.ones(2, 30))
if (child := os.fork()) == 0:
    torch.Tensor.backward(net(torch.ones(2, 30)).sum())
    sys.exit()
os.waitpid(child, 0)
apart = (net.weight - given).abs()
print((apart > 0).float().mean().item() > 0.9, (apart < 3e-7 * given.abs()).all().item())
print(Path("logs/trial.json").exists())
"""
    told, printed = trial(tmp_path, body, observe=True)
    assert printed == ["True", "True", "False"]
    assert told["seen"]["trains"] is False
