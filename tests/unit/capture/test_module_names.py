"""Names of modules: one path per living object, whatever the script does with its modules."""

import copy
import gc
import sys
import weakref

import pytest
from torch import nn

from profstack.capture.module_names import ModuleNames, script_label
from profstack.models import parameter_count
from profstack.storage.vocabulary import MODULE_PREFIX


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.head = nn.Linear(4, 2)


PATHS = ["Net", "Net.encoder", "Net.encoder.0", "Net.encoder.1", "Net.head"]


def named_roots(*modules):
    names = ModuleNames()
    for module in modules:
        names.root(module, None)
    return names


def test_root_and_children_have_paths_and_rows():
    net, names = Net(), ModuleNames()
    net.encoder[0].bias.requires_grad_(False)
    before = set(vars(net)), set(vars(net.head))
    root = names.root(net, "net")
    assert list(names.by_path) == PATHS
    assert (root.path, root.label, root.type, root.parent_id) == ("Net", "net", "Net", None)
    inner = names.known(net.encoder[0])
    assert names.root(net, None) is names.inner(net, inner) is root
    assert list(names.by_number()) == [1, 2, 3, 4, 5]
    assert (names.by_number()[3], inner.range_name) == (inner, f"{MODULE_PREFIX}3")
    rows = [named.record() for named in names.by_path.values()]
    names = ("module_id", "path", "label", "type", "instance", "parent_id", "parameters", "aliases")
    values = (3, "Net.encoder.0", None, "Linear", 1, 2, 20, "[]")
    own = {"own_parameters": 20, "own_bytes": 80, "own_trainable": 16}
    assert rows[2] == {**dict(zip(names, values, strict=True)), **own}
    assert (set(vars(net)), set(vars(net.head))) == before
    first, second = Net(), Net()
    names = named_roots(first, second, copy.deepcopy(first))
    assert list(names.by_path)[::5] == ["Net", "Net#2", "Net#3"]
    found = [names.known(each).path for each in (first.head, second, second.head)]
    assert found == ["Net.head", "Net#2", "Net#2.head"]
    assert {names.by_path[f"Net#2{rest}"].instance for rest in ("", ".encoder.1")} == {2}


def test_module_made_anew_keeps_the_path_of_the_one_it_replaced():
    """And another model is not taken for the one before: same class, other sizes or parts."""
    names = ModuleNames()

    def name(*parts):
        net = nn.Sequential(*parts)
        root = names.root(net, None)
        named = [names.known(part) for part in net]
        assert root.parameters == parameter_count(net)
        kinds = [(type(part).__name__, root.module_id) for part in net]
        assert [(one.type, one.parent_id) for one in named] == kinds
        return " ".join(one.path.removeprefix("Sequential") for one in named)

    for _ in range(3):
        assert name(nn.Linear(2, 2), nn.ReLU()) == ".0 .1"
    assert len(names.by_path) == 3
    # As many parameters, but another activation: the part alone is another one.
    assert name(nn.Linear(2, 2), nn.GELU()) == ".0 .1#2"
    assert name(nn.Linear(9, 2), nn.ReLU()) == "#2.0 #2.1"
    assert name(nn.Linear(2, 2), nn.GELU()) == ".0 .1#2"


def test_part_that_outlives_its_whole_keeps_its_path():
    net = Net()
    names, head, alive = named_roots(net), net.head, weakref.ref(net)
    del net
    gc.collect()
    assert alive() is None
    other = Net()
    names.root(other, None)
    assert [names.known(each).path for each in (head, other.head)] == ["Net.head", "Net.head#2"]
    # By its ranges, too: those of what is dead are gone.
    names.begin_ranges()
    inner = {id(each) for each in other.modules() if each is not other}
    assert (set(names.root_ranges), set(names.inner_ranges)) == ({id(other)}, inner | {id(head)})
    del other
    gc.collect()
    known = names.root_ranges, names.by_identity, names.inner_ranges
    assert list(map(set, known)) == [set(), {id(head)}, {id(head)}]
    names.end_ranges()
    assert (names.inner_ranges, names.root_ranges) == ({}, {})


def test_shared_module_keeps_its_first_path():
    net, loss = Net(), nn.MSELoss()
    net.again, net.loss = net.head, loss
    names = named_roots(net.encoder[0], net, loss)
    named = names.known(net.head)
    assert (named.path, named.aliases) == ("Net.head", ["Net.again"])
    assert named.record()["aliases"] == '["Net.again"]'
    # A part called before the whole is a root, with its path in the whole as an alias.
    part = names.known(net.encoder[0])
    assert (part.path, part.aliases, part.parent_id) == ("Linear", ["Net.encoder.0"], None)
    names.begin_ranges()
    assert {names.by_identity[key].path for key in names.root_ranges} == {"Linear", "Net"}
    assert names.by_path["Net.loss"].is_loss


def test_modules_that_are_no_attributes_go_by_their_class_below_their_caller():
    net = Net()
    names = named_roots(net)
    root, loose = names.by_path["Net"], [nn.Linear(2, 2), nn.Linear(2, 2)]
    for _ in range(2):
        paths = [names.inner(module, root).path for module in loose]
        assert paths == ["Net.Linear", "Net.Linear#2"]
    assert {names.by_path[path].parent_id for path in paths} == {root.module_id}
    net.late = nn.Sequential(nn.Linear(2, 2))
    assert names.inner(net.late, root).path == "Net.Sequential"
    assert names.known(net.late[0]) is names.by_path["Net.Sequential.0"]
    # One may hold the one around it, or nothing.
    net = Net()
    net.child = nn.Module()
    net.child.parent = net
    net.register_module("none", None)
    assert list(named_roots(net).by_path) == [*PATHS, "Net.child"]


class Labelled:
    """Called like a module; asks for its own label from the caller's frame."""

    def __call__(self):
        return script_label(self, sys._getframe(1))


at_module_level = Labelled()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="frames know their columns from 3.11 on")
def test_label_in_a_function():
    net, held = Labelled(), type("Held", (), {})()
    held.model = net

    def inner():
        return net()

    over_lines = net(
        # Nothing.
    )
    labels = [net(), inner(), over_lines, held.model(), at_module_level()]
    assert labels == ["net", "net", "net", "held.model", "at_module_level"]
    # A function called in between is no label.
    assert [[net][0](), *map(Labelled.__call__, [net])] == [None, None]
