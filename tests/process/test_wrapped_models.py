"""What torch puts around a model leaves its paths as they are: DDP, FSDP, fully_shard, for real."""

import json

import pytest

from tests.support.processes import run_python

RANK = """
import json, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard
from torch.nn.parallel import DistributedDataParallel
from tests.support.torch_slices import observe, self_s
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
class Block(nn.Sequential): pass
class Net(nn.Sequential): pass
def net():
    blocks = (Block(nn.Linear(16, 16), nn.ReLU()) for _ in range(2))
    return Net(*blocks, nn.Linear(16, 4))
def fsdp(net):
    cpu = torch.device("cpu")
    for number in range(2):
        net[number] = FSDP(net[number], device_id=cpu)
    return FSDP(net, device_id=cpu)
def sharded(net):
    mesh = init_device_mesh("cpu", (1,))
    for block in net[:2]:
        fully_shard(block, mesh=mesh)
    return fully_shard(net, mesh=mesh)
ways = {"plain": lambda net: net, "ddp": DistributedDataParallel, "fsdp": fsdp, "sharded": sharded}
said = {}
for name, wrap in ways.items():
    torch.manual_seed(0)
    model = wrap(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(8, 16)
    def step():
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    seen = observe(step, steps=2, warm=1)
    named = {each.module_id: each for each in seen.modules.values()}
    said[name] = {
        "wall_s": seen.wall_s,
        "rows": {path: {**row, "self_s": self_s(row)} for path, row in seen.rows.items()},
        "aliases": {each.path: each.aliases for each in named.values()},
        "parents": {
            each.path: named[each.parent_id].path if each.parent_id else None
            for each in named.values()
        },
    }
print(json.dumps(said))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What one rank alone saw of the same model in every wrapper."""
    store = tmp_path_factory.mktemp("rank") / "store"
    return json.loads(run_python("-c", RANK, store, timeout=280).stdout)


PATHS = {"Net", "Net.0", "Net.0.0", "Net.0.1", "Net.1", "Net.1.0", "Net.1.1", "Net.2"}


def called(said):
    return {path: row for path, row in said["rows"].items() if row["module_id"] > 0}


@pytest.mark.parametrize("wrapper", ["plain", "ddp", "fsdp", "sharded"])
def test_the_paths_are_those_of_the_model_and_their_rows_add_up_to_its_steps(seen, wrapper):
    said = seen[wrapper]
    self_times = [row["self_s"] for row in said["rows"].values()]
    assert sum(self_times) == pytest.approx(said["wall_s"], abs=5e-9)
    assert min(self_times) >= 0
    rows = called(said)
    assert {path for path in rows if not path.endswith(")")} == PATHS
    assert all(rows[path]["calls"] == 2 for path in PATHS)
    # What a wrapper does in its backward pass takes no layer's gradient away from it.
    for path in ("Net.0.0", "Net.1.0", "Net.2"):
        assert rows[path]["forward_s"] > 0
        assert rows[path]["backward_s"] > 0


def test_a_wrapper_is_a_row_of_its_own_around_the_model(seen):
    ddp, fsdp = seen["ddp"], seen["fsdp"]
    wrapper = "Net (DistributedDataParallel)"
    assert set(called(ddp)) - PATHS == {wrapper}
    assert (ddp["parents"]["Net"], ddp["parents"][wrapper]) == (wrapper, None)
    assert ddp["rows"][wrapper]["forward_s"] >= ddp["rows"]["Net"]["forward_s"]
    assert ddp["aliases"]["Net"] == ["DistributedDataParallel.module"]
    sharding = {f"{path} (FullyShardedDataParallel)" for path in ("Net", "Net.0", "Net.1")}
    assert set(called(fsdp)) - PATHS == sharding
    assert fsdp["parents"]["Net.0"] == "Net.0 (FullyShardedDataParallel)"
    assert fsdp["aliases"]["Net.0"] == ["Net.0._fsdp_wrapped_module"]
    # fully_shard puts nothing around: it makes another class of the module's own.
    assert set(called(seen["sharded"])) == PATHS
