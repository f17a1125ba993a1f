"""What torch puts around a model leaves its paths as they are: DDP, FSDP, fully_shard, compile.

The distributed ones run for real: two ranks under gloo, started once for all of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import CHECKOUT, clean_environment
from torch import nn
from torch_slice import observe, self_s

from profstack.capture.hooks import HookState
from profstack.capture.module_names import ModuleNames
from profstack.models import class_name, innermost
from profstack.storage.vocabulary import STEP_PARTS

Row = dict[str, Any]

RANK = textwrap.dedent(
    """
    import json, sys
    rank, store, tests = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    sys.path.insert(0, tests)
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch_slice import observe, self_s

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(16, 16)

        def forward(self, x):
            return torch.relu(self.fc(x))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(2))
            self.head = nn.Linear(16, 4)

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    def plain():
        return Net()

    def ddp():
        return DistributedDataParallel(Net())

    def fsdp():
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        net, cpu = Net(), torch.device("cpu")
        for number, block in enumerate(net.blocks):
            net.blocks[number] = FSDP(block, device_id=cpu)
        return FSDP(net, device_id=cpu)

    def sharded():
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        net, mesh = Net(), init_device_mesh("cpu", (2,))
        for block in net.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(net, mesh=mesh)

    said = {}
    for make in (plain, ddp, fsdp, sharded):
        torch.manual_seed(0)
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x = torch.randn(8, 16)

        def step():
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()

        seen = observe(step, steps=2, warm=1)
        named = {each.module_id: each for each in seen.modules.values()}
        said[make.__name__] = {
            "wall_s": seen.wall_s,
            "rows": {path: {**row, "self_s": self_s(row)} for path, row in seen.rows.items()},
            "aliases": {each.path: each.aliases for each in named.values()},
            "parents": {
                each.path: named[each.parent_id].path if each.parent_id else None
                for each in named.values()
            },
        }
        dist.barrier()
    print(json.dumps(said))
    dist.destroy_process_group()
    """
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks saw of the same model in every wrapper."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = clean_environment(PYTHONPATH=str(CHECKOUT), OMP_NUM_THREADS="1")
    started = [
        subprocess.Popen(
            [
                *(sys.executable, "-c", RANK, str(rank), str(folder / "store")),
                str(CHECKOUT / "tests"),
            ],
            stdout=subprocess.PIPE,
            stderr=(folder / f"errors-{rank}").open("wb"),
            env=environment,
        )
        for rank in range(2)
    ]
    try:
        printed = [each.communicate(timeout=120)[0] for each in started]
    finally:
        for each in started:
            each.kill()
    for rank, each in enumerate(started):
        assert each.returncode == 0, (folder / f"errors-{rank}").read_text()[-3000:]
    return [json.loads(text) for text in printed]


PATHS = {"Net", "Net.blocks.0", "Net.blocks.0.fc", "Net.blocks.1", "Net.blocks.1.fc", "Net.head"}


def called(said: dict[str, Any]) -> dict[str, Row]:
    """Rows of modules that ran, by path."""
    return {path: row for path, row in said["rows"].items() if row["module_id"] > 0}


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp", "sharded"])
def test_the_paths_are_those_of_the_model_without_a_wrapper(
    ranks: list[dict[str, Any]], wrapper: str
) -> None:
    for said in ranks:
        assert set(called(said["plain"])) == PATHS
        rows = called(said[wrapper])
        own = {path for path in rows if not path.endswith(")")}
        assert own == PATHS
        assert all(rows[path]["calls"] == 2 for path in PATHS)
        # What a wrapper does in its backward pass takes no layer's gradient away from it.
        for path in ("Net.blocks.0.fc", "Net.blocks.1.fc", "Net.head"):
            assert rows[path]["forward_s"] > 0
            assert rows[path]["backward_s"] > 0


def test_a_wrapper_is_a_row_of_its_own_around_the_model(ranks: list[dict[str, Any]]) -> None:
    said = ranks[0]
    ddp, fsdp = said["ddp"], said["fsdp"]
    wrapper = "Net (DistributedDataParallel)"
    assert set(called(ddp)) - PATHS == {wrapper}
    assert ddp["parents"]["Net"] == wrapper
    assert ddp["parents"][wrapper] is None
    assert ddp["rows"][wrapper]["forward_s"] >= ddp["rows"]["Net"]["forward_s"]
    assert ddp["aliases"]["Net"] == ["DistributedDataParallel.module"]
    around = {"Net", "Net.blocks.0", "Net.blocks.1"}
    sharding = {f"{path} (FullyShardedDataParallel)" for path in around}
    assert set(called(fsdp)) - PATHS == sharding
    assert fsdp["parents"]["Net.blocks.0"] == "Net.blocks.0 (FullyShardedDataParallel)"
    assert fsdp["aliases"]["Net.blocks.0"] == ["Net.blocks.0._fsdp_wrapped_module"]
    # fully_shard puts nothing around: it makes another class of the module's own.
    assert set(called(said["sharded"])) == PATHS


@pytest.mark.parametrize("wrapper", ["plain", "ddp", "fsdp", "sharded"])
def test_the_rows_of_a_rank_add_up_to_its_steps(ranks: list[dict[str, Any]], wrapper: str) -> None:
    for said in ranks:
        rows = said[wrapper]["rows"].values()
        assert sum(row["self_s"] for row in rows) == pytest.approx(
            said[wrapper]["wall_s"], abs=5e-9
        )
        assert all(row["self_s"] >= 0 for row in rows)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(8, 8)
        self.fc2 = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.relu(self.fc1(x)))


def optimized(net: nn.Module) -> nn.Module:
    return torch.compile(net, backend="eager")  # type: ignore[return-value]


def names_of(*called_: nn.Module) -> ModuleNames:
    names = ModuleNames()
    for module in called_:
        names.root(module, None)
    return names


def test_a_compiled_model_goes_by_the_name_of_the_model() -> None:
    net = Net()
    fast = optimized(net)
    names = names_of(fast)
    assert set(names.by_path) == {"Net", "Net.fc1", "Net.fc2"}
    named, inside = names.known(fast), names.known(net)
    assert named is not None
    assert inside is not None
    assert named.module_id == inside.module_id
    assert names.by_path["Net"].aliases == ["OptimizedModule._orig_mod"]


def test_a_model_that_ran_before_it_was_wrapped_keeps_its_row() -> None:
    net = Net()
    names = names_of(net, nn.DataParallel(net), optimized(net))
    assert set(names.by_path) == {"Net", "Net.fc1", "Net.fc2", "Net (DataParallel)"}
    assert names.by_path["Net"].parent_id == names.by_path["Net (DataParallel)"].module_id


def test_wrappers_in_wrappers() -> None:
    net = Net()
    names = names_of(optimized(nn.DataParallel(optimized(net))))
    assert set(names.by_path) == {"Net", "Net.fc1", "Net.fc2", "Net (DataParallel)"}


def test_a_wrapped_part_has_the_path_of_the_part() -> None:
    whole = nn.Sequential(nn.DataParallel(Net()), optimized(Net()))
    names = names_of(whole)
    assert set(names.by_path) == {
        *("Sequential", "Sequential.0", "Sequential.0.fc1", "Sequential.0.fc2"),
        *("Sequential.0 (DataParallel)", "Sequential.1", "Sequential.1.fc1", "Sequential.1.fc2"),
    }
    around = names.by_path["Sequential.0 (DataParallel)"]
    assert names.by_path["Sequential.0"].parent_id == around.module_id
    assert around.parent_id == names.by_path["Sequential"].module_id


def test_two_wrapped_models_of_one_class_are_two() -> None:
    first, second = nn.DataParallel(Net()), nn.DataParallel(Net())
    names = names_of(first, second)
    roots = {path for path in names.by_path if "." not in path}
    assert roots == {"Net", "Net (DataParallel)", "Net#2", "Net#2 (DataParallel)"}


def test_a_class_of_the_scripts_with_the_name_of_a_wrapper_is_none() -> None:
    class DataParallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 2)

    model = DataParallel()
    assert innermost(model) is model
    assert class_name(model) == "DataParallel"
    assert set(names_of(model).by_path) == {"DataParallel", "DataParallel.module"}


def test_a_wrapped_models_range_is_found_when_it_is_called_alone() -> None:
    """A script evaluates `wrapper.module`: what is called in eval mode must be told of."""
    wrapper = nn.DataParallel(Net())
    names = names_of(wrapper)
    names.begin_ranges()
    assert {id(wrapper), id(wrapper.module)} == set(names.root_ranges)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_owns_its_forward_and_backward(backend: str) -> None:
    torch._dynamo.reset()
    try:
        net = Net()
        fast = torch.compile(net, backend=backend)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x = torch.randn(4, 8)

        def step() -> None:
            optimizer.zero_grad()
            fast(x).sum().backward()
            optimizer.step()

        seen = observe(step, warm=3)
    finally:
        torch._dynamo.reset()
    rows = seen.rows
    assert {path for path in rows if path not in STEP_PARTS.values()} == {"Net"}
    assert rows["Net"]["calls"] == 3
    host = seen.host()
    regions = host.names.where(lambda name: name.startswith("Torch-Compiled Region"))
    assert regions.sum() == 3
    assert rows["Net"]["forward_self_s"] >= host.duration[regions].sum() * 1e-9
    assert rows["Net"]["backward_self_s"] > 0
    assert sum(map(self_s, rows.values())) == pytest.approx(seen.wall_s, abs=5e-9)


def test_a_compiled_function_has_a_row_that_says_so() -> None:
    torch._dynamo.reset()
    try:
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x = torch.randn(4, 8)

        @torch.compile(backend="aot_eager")
        def forward(x: torch.Tensor) -> torch.Tensor:
            return net(x).pow(2)

        def step() -> None:
            optimizer.zero_grad()
            forward(x).sum().backward()
            optimizer.step()

        # The first observed step compiles anew: it is one whose calls have ranges.
        seen = observe(step, warm=3, steps=4, left_out=(0,))
    finally:
        torch._dynamo.reset()
    row = seen.rows["(compiled functions)"]
    assert row["calls"] == 3
    assert row["forward_self_s"] > 0
    assert row["backward_self_s"] > 0
    # The graph that the compiler made is no module of the script's.
    assert not [path for path in seen.rows if "GraphModule" in path]
    assert sum(map(self_s, seen.rows.values())) > 0


def _on_a_thread(python_made: bool, run: Callable[[], None]) -> None:
    import _thread
    import threading

    if python_made:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return
    done = _thread.allocate_lock()
    done.acquire()

    def running() -> None:
        try:
            run()
        finally:
            done.release()

    _thread.start_new_thread(running, ())
    assert done.acquire(timeout=30)


@pytest.mark.parametrize("python_made", [False, True])
def test_ranges_on_a_thread_of_autograds_own(python_made: bool) -> None:
    """A device's thread is none of Python's; one started below `threading` stands for it here."""
    state = HookState(torch, None, ModuleNames(), ranging=-1)  # type: ignore[arg-type]
    asked: list[bool] = []

    class Asks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            asked.append(state.ranges_here())
            return grad

    def run() -> None:
        asked.append(state.ranges_here())
        Asks.apply(torch.ones(2, requires_grad=True)).sum().backward()

    _on_a_thread(python_made, run)
    assert asked == [False, not python_made]
    state.ranging = None
    assert not state.ranges_here()
