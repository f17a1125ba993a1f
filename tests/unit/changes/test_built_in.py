"""Each change: when it can apply, what it patches, and that it notes where it took hold."""

from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from profstack.changes import built_in, processor
from profstack.changes.compilation import repeated_block
from profstack.changes.contract import KINDS, Change, Run, Seen
from profstack.errors import UsageError
from profstack.findings.rules import RULES
from tests.support.tables import cases

CHANGES = built_in.changes()
ROWS = [torch.ones(2)] * 8


@pytest.fixture
def make(monkeypatch):
    """Make a change in this process; what it patches is put back after the test."""
    kinds = [DataLoader, nn.Module, torch.optim.Optimizer, torch.optim.Adam, torch.optim.SGD]
    kinds += [nn.Linear, nn.Sequential]
    for kind in kinds:
        for name in ("__init__", "__iter__", "zero_grad", "forward"):
            if name in vars(kind):
                monkeypatch.setattr(kind, name, vars(kind)[name])
    monkeypatch.setattr(torch, "save", torch.save)
    threads = torch.get_num_threads()
    precision = torch.get_float32_matmul_precision()

    def make(name, value=None):
        run = Run(torch, value, {})
        CHANGES[name].patch(run)
        return run

    yield make
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)


def test_each_change_is_a_remedy_of_findings_that_exist():
    slugs = {slug for change in CHANGES.values() for slug in change.findings}
    assert slugs - {rule.slug for rule in RULES} == set()
    assert slugs >= {"data-starved", "unfused-optimizer", "module-dominates", "no-kv-cache"}


def lines(run):
    return {place and place.line: count for place, count in run.held.items()}


class Stream(IterableDataset):
    def __iter__(self):
        return iter(ROWS)


@cases(
    "name value given expected",
    ("workers", 2, {}, {"num_workers": 2}),
    ("workers", 0, {"num_workers": 2, "prefetch_factor": 3, "persistent_workers": True},
     {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False}),
    ("workers", 2, {"dataset": Stream()}, {"num_workers": 0}),
    ("workers", 2, {"num_workers": 2}, {"num_workers": 2}),
    ("persistent-workers", None, {"num_workers": 1}, {"persistent_workers": True}),
    ("persistent-workers", None, {}, {"persistent_workers": False}),
    ("prefetch", 8, {"num_workers": 1}, {"prefetch_factor": 8}),
    ("prefetch", 8, {}, {"prefetch_factor": None}),
    ("batch-size", 2, {"batch_size": 3}, {"batch_size": 6}),
    ("batch-size", 4, {}, {"batch_size": 4}),
    ("batch-size", 4, {"batch_size": None}, {"batch_size": None}),
)  # fmt: skip
def test_loaders_get_their_options(make, name, value, given, expected):
    plain = DataLoader(**{"dataset": ROWS, **given})
    run = make(name, value)
    changed = DataLoader(**{"dataset": ROWS, **given})
    assert {each: getattr(changed, each) for each in expected} == expected
    differs = any(getattr(plain, each) != getattr(changed, each) for each in expected)
    assert sum(lines(run).values()) == differs


@cases("name kind flag given", ("fused-optimizer", "Adam", "fused", {}),
       ("fused-optimizer", "SGD", "fused", {"lr": 0.1}),
       ("fused-optimizer", "Adam", "fused", {"foreach": True}),
       ("fused-optimizer", "Adam", "fused", {"fused": False}),
       ("foreach-optimizer", "SGD", "foreach", {"foreach": None, "lr": 0.1}),
       ("foreach-optimizer", "Adam", "foreach", {"fused": True}))  # fmt: skip
def test_optimizers_get_one_operator(make, name, kind, flag, given):
    net = nn.Linear(3, 2)
    run = make(name)
    made = getattr(torch.optim, kind)(net.parameters(), **given)
    assert (made.defaults[flag], sum(lines(run).values())) == (True, 1)
    net(torch.ones(1, 3)).sum().backward()
    made.step()
    getattr(torch.optim, kind)(net.parameters(), **{flag: True, "lr": 0.1})
    assert sum(lines(run).values()) == 1


def test_gradients_are_dropped(make):
    net = nn.Linear(3, 2)
    run = make("set-to-none")
    for times in (1, 2):
        net(torch.ones(1, 3)).sum().backward()
        net.zero_grad(set_to_none=False)
        assert (net.weight.grad, sum(lines(run).values())) == (None, times)
    net.zero_grad()
    assert sum(lines(run).values()) == 2


@cases("name dtype", ("bfloat16", torch.bfloat16), ("inference-mode", torch.float32))
def test_the_models_calls_are_wrapped(make, name, dtype):
    net = nn.Linear(3, 2)
    run = make(name)
    (wrap,) = run.root_hooks
    out = wrap(net, net.forward)(torch.ones(1, 3))
    assert (out.dtype, out.is_inference()) == (dtype, name == "inference-mode")
    assert sum(lines(run).values()) == 1
    # In compiled code it would break the graph.
    run.torch = SimpleNamespace(compiler=SimpleNamespace(is_compiling=lambda: True))
    wrap(net, net.forward)(torch.ones(1, 3))
    assert sum(lines(run).values()) == 1


def test_models_are_changed_before_their_first_call(make):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout())
    for name in ("channels-last", "eval-mode"):
        run = make(name)
        (change,) = run.at_root
        change(net)
        assert sum(lines(run).values()) == 1
    assert net[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert not net[1].training


def test_flags_of_torch(make):
    make("threads", 1)
    make("matmul-precision", "medium")
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == (1, "medium")
    run = make("no-saving")
    torch.save({}, "/nowhere/at/all")
    assert sum(lines(run).values()) == 1
    assert CHANGES["waiting-threads"].environment("PASSIVE")["OMP_WAIT_POLICY"] == "PASSIVE"


def test_operators_side_by_side_are_set_once(make, monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "set_num_interop_threads", asked.append)
    assert sum(lines(make("interop-threads", 3)).values()) == 1
    assert asked == [3]
    assert CHANGES["interop-threads"].values(Seen(cores=4, interop=4)) == [1, 8]
    assert CHANGES["interop-threads"].values(Seen(cores=1, interop=3)) == [1, 2]


def test_an_evaluation_ends_after_its_first_batch(make):
    net, asked, loader = nn.Linear(2, 1), nn.Linear(2, 1).eval(), DataLoader(ROWS, batch_size=2)
    run, descent = make("no-evaluation"), torch.optim.SGD(net.parameters(), lr=0.1)
    # A model that is never trained is no sign of an evaluation, nor one before the training.
    for model in (asked, net.eval()):
        run.at_root[0](model)
    assert (len(list(loader)), lines(run)) == (4, {})
    net.train()
    descent.step()
    assert (len(list(loader)), lines(run)) == (4, {})
    net.eval()
    assert (len(list(loader)), sum(lines(run).values())) == (1, 1)
    # A training whose model is put into training mode after its first batch.
    assert len([net.train() for _ in loader]) == 4
    assert sum(lines(run).values()) == 1


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)


def test_the_block_that_repeats_has_most_parameters():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Sequential(Block(), Block(), Block()))
    assert {type(block) for block in repeated_block(net)} == {Block}
    assert len(repeated_block(net)) == 3
    assert repeated_block(nn.Sequential(nn.Linear(2, 2), nn.ReLU())) == []


# --- When a change can apply ---

LOADER = {"num_workers": 0, "batch_size": 4, "pin_memory": False, "persistent_workers": False}
LOADER |= {"map_style": True}
ADAM = {"name": "Adam", "base": "Adam", "fused": False, "foreach": False}
ROOT = {"dtype": "float32", "training": True, "convolutions": 0, "blocks": 0, "attention": None}


def names(**seen):
    """The changes that can apply, to a training if nothing else is said."""
    known = {"cores": 4, "threads": 4, "root": ROOT, "trains": True} | seen
    return {name for name, change in CHANGES.items() if change.applies(Seen(**known)) is None}


ANYWHERE = {"threads", "waiting-threads", "bound-threads", "bfloat16", "compile"}
ANYWHERE |= {"matmul-precision"}
# These depend on the machine.
OF_MACHINE = {"allocator", "huge-pages"}


@cases(
    "more gone seen",
    ({"eval-mode"}, set(), {"trains": False}),
    (set(), set(), {}),
    ({"workers", "batch-size"}, set(), {"loaders": [LOADER]}),
    ({"batch-size"}, set(), {"loaders": [LOADER | {"map_style": False}]}),
    ({"workers", "batch-size", "persistent-workers", "prefetch"}, set(),
     {"loaders": [LOADER | {"num_workers": 2}]}),
    ({"fused-optimizer", "foreach-optimizer"}, set(), {"optimizers": [ADAM]}),
    ({"foreach-optimizer"}, set(), {"optimizers": [ADAM | {"base": "RMSprop"}]}),
    ({"foreach-optimizer"}, set(), {"optimizers": [ADAM | {"fused": True}]}),
    ({"set-to-none"}, set(), {"calls": {"zero_grad to zeros": 3}}),
    ({"channels-last"}, set(), {"root": ROOT | {"convolutions": 2}}),
    ({"compile-block", "gradient-checkpointing"}, set(), {"root": ROOT | {"blocks": 3}}),
    ({"no-checkpointing"}, set(), {"calls": {"checkpoint": 3}}),
    (set(), {"compile"}, {"calls": {"compile": 1}}),
    (set(), {"bfloat16"}, {"calls": {"autocast": 1}}),
    (set(), {"bfloat16", "matmul-precision"}, {"root": ROOT | {"dtype": "bfloat16"}}),
    ({"eval-mode", "inference-mode"}, set(),
     {"calls": {"calls with gradients": 1}, "trains": False}),
    (set(), set(), {"root": ROOT | {"training": False}, "trains": False}),
    ({"kv-cache"}, set(), {"calls": {"generate without a cache": 2}}),
    ({"fused-attention"}, set(), {"root": ROOT | {"attention": "eager"}}),
    ({"ddp-buckets", "ddp-bucket-view"}, set(), {"wrapped": [{"static_graph": True}]}),
    ({"no-saving"}, set(), {"calls": {"save": 2}}),
    ({"no-logging"}, set(), {"calls": {"logging": 2}}),
    ({"no-evaluation"}, set(), {"calls": {"evaluation": 2}}),
    ({"interop-threads"}, set(), {"calls": {"script": 1}}),
    (set(), set(), {"calls": {"script": 1, "interop": 1}}),
    (set(), {"waiting-threads", "bound-threads"}, {"threads": 1}),
    (set(), {"threads", "waiting-threads", "bound-threads"}, {"threads": 1, "cores": 1}),
    (set(), {"bfloat16", "compile", "matmul-precision"}, {"root": {}}),
)  # fmt: skip
def test_what_was_seen_decides_what_is_tried(more, gone, seen):
    assert names(**seen) - OF_MACHINE == ANYWHERE - gone | more


@cases(
    "mode glibc expected",
    ("madvise", "glibc 2.36", True), ("madvise", "glibc 2.34", False), ("madvise", None, False),
    ("always", "glibc 2.36", False), (None, "glibc 2.36", False),
)  # fmt: skip
def test_huge_pages_need_a_kernel_and_a_library_that_give_them(monkeypatch, mode, glibc, expected):
    monkeypatch.setattr(processor, "huge_page_mode", lambda: mode)
    monkeypatch.setattr(processor.os, "confstr", lambda _: glibc)
    assert ("huge-pages" in names()) == expected


def test_variables_are_added_to_what_the_user_has_set(monkeypatch):
    made = CHANGES["cuda-allocator"].environment
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    assert made(None) == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    assert made(None)["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True,max_split_size_mb:64"
    assert CHANGES["allocator"].holds("no-such-library") is False


def test_on_a_gpu_other_changes_apply():
    seen = names(device="cuda", loaders=[LOADER], root=ROOT | {"convolutions": 1})
    assert {"pin-memory", "float16", "tf32", "cudnn-benchmark", "cuda-allocator"} <= seen
    assert not {"threads", "huge-pages", "allocator"} & seen


def test_values_are_others_than_the_present_ones():
    seen = Seen(cores=8, threads=4, loaders=[LOADER])
    assert CHANGES["workers"].values(seen) == [1, 2, 4, 7, 8]
    assert CHANGES["workers"].values(Seen(cores=2, loaders=[LOADER | {"num_workers": 1}])) == [0, 2]
    assert CHANGES["threads"].values(seen) == [8, 1]


def test_changes_say_what_they_may_do_and_exclude_each_other_both_ways():
    for name, change in CHANGES.items():
        assert (change.name, change.results in KINDS, bool(change.summary)) == (name, True, True)
        assert (change.patch is None) == (change.environment is not None)
        assert set(change.excludes) <= CHANGES.keys()
        is_both_ways = all(name in CHANGES[other].excludes for other in change.excludes)
        assert is_both_ways or name == "gradient-checkpointing"


def test_other_packages_may_add_changes(monkeypatch):
    own = Change("own", "do it", "equal", lambda seen: None, lambda run: None)
    monkeypatch.setattr("tests.support.tables.OWN", own, raising=False)
    points = {"own": "tests.support.tables:OWN"}

    def entry_points(group):
        assert group == "profstack.changes"
        return [EntryPoint(name, value, group) for name, value in points.items()]

    monkeypatch.setattr(built_in, "entry_points", entry_points)
    assert built_in.changes()["own"] is own
    for value, said in (("tests.support.tables:nothing", "cannot be loaded"),
                        ("tests.support.tables:of", "is no profstack.changes")):  # fmt: skip
        points["own"] = value
        with pytest.raises(UsageError, match=said):
            built_in.changes()
