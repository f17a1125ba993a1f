"""Names of modules: one path per living object, whatever the script does with its modules."""

from __future__ import annotations

import copy
import gc
import json
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from profstack.capture.module_names import ModuleNames, script_label
from profstack.models import is_loss, parameter_count
from profstack.storage.schema.recorded import RECORDED
from profstack.storage.vocabulary import MODULE_PREFIX, STEP_PARTS


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.head = nn.Linear(4, 2)


def paths(names: ModuleNames) -> list[str]:
    return list(names.by_path)


def test_root_and_children_have_paths() -> None:
    net, names = Net(), ModuleNames()
    root = names.root(net, "net")
    assert paths(names) == ["Net", "Net.encoder", "Net.encoder.0", "Net.encoder.1", "Net.head"]
    assert (root.path, root.label, root.type, root.parent_id) == ("Net", "net", "Net", None)
    inner = names.known(net.encoder[0])
    assert inner is not None
    assert inner.type == "Linear"
    assert inner.parent_id == names.by_path["Net.encoder"].module_id
    assert inner.range_name == f"{MODULE_PREFIX}{inner.module_id}"
    assert names.root(net, None) is root
    assert names.by_number()[inner.module_id] is inner


def test_second_living_instance_is_numbered() -> None:
    first, second, names = Net(), Net(), ModuleNames()
    assert names.root(first, None).path == "Net"
    named = names.root(second, None)
    assert (named.path, named.instance) == ("Net#2", 2)
    assert names.known(second.head) is names.by_path["Net#2.head"]
    assert names.known(first.head) is names.by_path["Net.head"]


def test_module_made_anew_keeps_the_path_of_the_one_it_replaced() -> None:
    names = ModuleNames()
    for _ in range(5):
        net = Net()
        assert names.root(net, None).path == "Net"
        assert names.known(net.encoder[1]) is names.by_path["Net.encoder.1"]
        del net
    assert len(names.by_path) == 5


def test_another_model_is_not_taken_for_the_one_before() -> None:
    """A sweep makes one model after the other: same class, other sizes or other parts."""
    names = ModuleNames()

    def name(*parts: nn.Module) -> list[str]:
        net = nn.Sequential(*parts)
        root = names.root(net, None)
        named = [names.known(part) for part in net]
        assert root.parameters == parameter_count(net)
        for one, part in zip(named, net, strict=True):
            assert one is not None
            assert one.type == type(part).__name__
            assert one.parent_id == root.module_id
        return [one.path for one in named if one is not None]

    assert name(nn.Linear(2, 2), nn.ReLU()) == ["Sequential.0", "Sequential.1"]
    assert name(nn.Linear(2, 2), nn.ReLU()) == ["Sequential.0", "Sequential.1"]
    # As many parameters, but another activation: the part alone is another one.
    assert name(nn.Linear(2, 2), nn.GELU()) == ["Sequential.0", "Sequential.1#2"]
    assert name(nn.Linear(9, 2), nn.ReLU()) == ["Sequential#2.0", "Sequential#2.1"]
    assert name(nn.Linear(2, 2), nn.GELU()) == ["Sequential.0", "Sequential.1#2"]


def test_part_that_outlives_its_whole_keeps_its_path() -> None:
    names, net = ModuleNames(), Net()
    names.root(net, None)
    head = net.head
    del net
    other = Net()
    names.root(other, None)
    kept = names.known(head)
    assert kept is not None
    assert kept.path == "Net.head"
    new = names.known(other.head)
    assert new is not None
    assert new.path == "Net.head#2"


def test_reused_address_is_no_known_module() -> None:
    names = ModuleNames()
    net = nn.Linear(2, 2)
    names.root(net, None)
    address = id(net)
    del net
    others = [nn.Identity() for _ in range(50)]
    for other in others:
        assert names.known(other) is None
    # The point of the test only where an address came round again, which it mostly does.
    assert address or others


def test_modules_are_held_weakly() -> None:
    names = ModuleNames()
    net = Net()
    alive = weakref.ref(net)
    names.root(net, None)
    del net
    gc.collect()
    assert alive() is None


def test_shared_module_keeps_its_first_path() -> None:
    class Shares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.again = self.first

    net, names = Shares(), ModuleNames()
    names.root(net, None)
    named = names.known(net.again)
    assert named is not None
    assert (named.path, named.aliases) == ("Shares.first", ["Shares.again"])
    assert json.loads(named.record()["aliases"]) == ["Shares.again"]


def test_part_called_before_the_whole() -> None:
    net, names = Net(), ModuleNames()
    names.root(net.head, None)
    names.root(net, None)
    named = names.known(net.head)
    assert named is not None
    assert (named.path, named.aliases, named.parent_id) == ("Linear", ["Net.head"], None)


def test_modules_in_a_plain_list_are_told_apart() -> None:
    net, names = Net(), ModuleNames()
    root = names.root(net, None)
    loose = [nn.Linear(2, 2), nn.Linear(2, 2)]
    assert [names.inner(module, root).path for module in loose] == ["Net.Linear", "Net.Linear#2"]
    # And stay apart when they are called again.
    assert [names.inner(module, root).path for module in loose] == ["Net.Linear", "Net.Linear#2"]
    assert all(names.inner(module, root).parent_id == root.module_id for module in loose)


def test_module_added_later_is_found_below_its_caller() -> None:
    net, names = Net(), ModuleNames()
    root = names.root(net, None)
    net.late = nn.Sequential(nn.Linear(2, 2))
    assert names.inner(net.late, root).path == "Net.Sequential"
    assert names.known(net.late[0]) is names.by_path["Net.Sequential.0"]


def test_module_that_holds_the_one_around_it() -> None:
    class Child(nn.Module):
        parent: nn.Module

    net, names = Net(), ModuleNames()
    net.child = Child()
    net.child.parent = net
    names.root(net, None)
    assert paths(names)[-1] == "Net.child"
    assert "Net.child.parent" not in names.by_path


def test_module_with_answers_of_its_own() -> None:
    class Strange(Net):
        def named_modules(self, memo: Any = None, prefix: str = "") -> Iterator[Any]:  # type: ignore[override]
            raise RuntimeError("not for you")

        def parameters(self, recurse: bool = True) -> Iterator[Any]:
            raise RuntimeError("not for you")

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("not for you")

        __hash__ = None  # type: ignore[assignment]

    names = ModuleNames()
    strange = Strange()
    assert names.root(strange, None).parameters is None
    assert "Strange.encoder.0" in names.by_path
    assert names.known(strange) is names.by_path["Strange"]


def test_a_copy_is_another_module() -> None:
    net, names = Net(), ModuleNames()
    names.root(net, None)
    copied = copy.deepcopy(net)
    assert names.known(copied) is None
    assert names.root(copied, None).path == "Net#2"


def test_nothing_is_put_on_the_module() -> None:
    net, names = Net(), ModuleNames()
    before = set(vars(net)), set(vars(net.head))
    names.root(net, None)
    assert (set(vars(net)), set(vars(net.head))) == before


def test_parameters_are_counted_once() -> None:
    net = Net()
    assert parameter_count(net) == (16 + 4) + (8 + 2)
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    assert parameter_count(tied) == 16 + 4 + 4
    assert parameter_count(nn.LazyLinear(3)) is None
    assert parameter_count(nn.ReLU()) == 0


def test_the_constants_of_frozen_torchscript_are_its_parameters() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
    frozen = torch.jit.freeze(torch.jit.trace(net, torch.randn(1, 4)))
    assert not list(frozen.parameters())
    assert parameter_count(frozen) == parameter_count(net) == (12 + 3) + (6 + 2)
    # A mode that it got from outside changes nothing.
    assert parameter_count(nn.Sequential(frozen, nn.Linear(2, 2)).eval()) == 15 + 8 + 6
    assert parameter_count(torch.fx.symbolic_trace(nn.Sequential(nn.ReLU()))) == 0
    assert parameter_count(torch.jit.script(nn.ReLU())) == 0


@pytest.mark.parametrize(
    ("module", "loss"),
    [
        (nn.CrossEntropyLoss(), True),
        (nn.MSELoss(), True),
        (type("MyLoss", (nn.Module,), {})(), True),
        (type("LabelSmoothingCriterion", (nn.Module,), {})(), True),
        (type("WithLoss", (Net,), {})(), False),
        (type("Glossary", (nn.Module,), {})(), False),
        (nn.Linear(2, 2), False),
    ],
)
def test_which_modules_are_losses(module: nn.Module, loss: bool) -> None:
    assert is_loss(module) is loss


def test_rows_fit_their_table() -> None:
    names = ModuleNames()
    names.root(Net(), "net")
    rows = RECORDED["modules"].rows(named.record() for named in names.by_path.values())
    assert len(rows) == 5


def test_parts_of_a_step_are_no_modules() -> None:
    assert all(number < 0 for number in STEP_PARTS)
    assert len(set(STEP_PARTS.values())) == len(STEP_PARTS)
    assert all(name.startswith("(") for name in STEP_PARTS.values())


# -- labels --------------------------------------------------------------------------------------


class Labelled:
    """Called like a module; asks for its own label from the caller's frame."""

    def __call__(self) -> str | None:
        return script_label(self, sys._getframe(1))


at_module_level = Labelled()
_hidden = Labelled()
# Called where no function is running.
label_in_module = at_module_level()

POSITIONS = sys.version_info >= (3, 11)


def test_label_at_module_level() -> None:
    assert label_in_module == "at_module_level"


def test_global_called_in_a_function() -> None:
    assert at_module_level() == "at_module_level"
    assert _hidden() is None


@pytest.mark.skipif(not POSITIONS, reason="frames know their columns from Python 3.11 on")
def test_label_in_a_function() -> None:
    net = Labelled()
    assert net() == "net"
    # fmt: off
    assert (
        net
        ()
    ) == "net"
    # fmt: on
    held = type("Held", (), {})()
    held.model = net
    assert held.model() == "held.model"
    nets = [net]
    assert nets[0]() is None

    def inner() -> str | None:
        return net()

    assert inner() == "net"


def test_function_called_in_between_is_no_label() -> None:
    net = Labelled()
    assert list(map(Labelled.__call__, [net])) == [None]


def test_locals_of_the_caller_are_not_held() -> None:
    class Big:
        pass

    def train() -> weakref.ref[Big]:
        net, big = Labelled(), Big()
        alive = weakref.ref(big)
        net()
        del big
        return alive if alive() is None else _fail()

    def _fail() -> Any:
        raise AssertionError("still held by the frame")

    train()


def test_locals_the_script_took_itself_are_left_alone() -> None:
    net = Labelled()
    mine = locals()
    before = dict(mine)
    later = "set after locals()"
    net()
    assert mine == before, later


def test_code_without_a_source_has_no_label() -> None:
    found: dict[str, Any] = {"Labelled": Labelled}
    exec("def step():\n    net = Labelled()\n    return net()\nlabel = step()", found)
    assert found["label"] is None


@pytest.mark.parametrize("value", [torch.relu, len])
def test_label_of_anything(value: Callable[..., Any]) -> None:
    assert script_label(value, sys._getframe()) is None
