"""The wrappers on torch: on and off without a trace, and unseen by what passes through."""

import pickle
import sys
import traceback
from collections import Counter

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from profstack.capture import hooks as module
from profstack.capture.hooks import DISCOVER, LIGHT, OFF, QUIET, RANGES, ROOT, TorchHooks
from profstack.capture.module_names import ModuleNames
from profstack.layer import Listener
from profstack.storage.vocabulary import BACKWARD_RANGE, CLOSURE_RANGE
from tests.support.engine import Hears, elsewhere
from tests.support.wrapped import installed_hooks

MODES = (OFF, DISCOVER, RANGES, ROOT, LIGHT, QUIET)
ones = torch.ones


class Hooked(TorchHooks):
    """Hooks that are the sink of their own events, as words."""

    def __init__(self):
        self.heard, self.given = [], None
        self.waiting = self.follows_calls = self.follows_backward = True
        super().__init__(torch, self, ModuleNames())

    def first_activity(self, module, args, kwargs):
        self.heard.append("first")
        self.given, self.waiting = (module, args, kwargs), False

    def evaluated(self, named):
        self.heard.append(f"evaluated {named and named.path}")

    def switched(self, module, named):
        if not module.training:
            self.evaluated(named)

    def generate_ended(self, found, *, completed):
        self.found = found
        self.heard.append(f"generate_ended {completed}")

    def __getattr__(self, name):
        if "_" not in name.strip("_") or name[0] == "_":
            raise AttributeError(name)
        return lambda subject=None, named=None: self.heard.append(
            f"{name} {named.path if named else type(subject).__name__}"
        )

    def told(self, work, *arguments, follows=True):
        self.heard.clear()
        self.follows_calls = self.follows_backward = self.waiting = follows
        work(*arguments)
        return self.heard.copy()

    def words(self, work, *arguments):
        return Counter(each.split()[0] for each in self.told(work, *arguments))

    def ranges(self, work):
        with torch.profiler.profile() as profile:
            self.emit_ranges(True)
            work()
            self.emit_ranges(False)
        return Counter(event.name() for event in profile.profiler.kineto_results.events())


@pytest.fixture
def hooked():
    made = Hooked()
    made.install()
    yield made
    made.remove()


def standing():
    hooks, pre_hooks = nn.modules.module, optimizers._global_optimizer_pre_hooks
    dicts = pre_hooks, hooks._global_forward_hooks, hooks._global_forward_pre_hooks
    return (
        *(nn.Module.__dict__["__call__"], *map(vars(nn.Sequential).get, ("train", "__call__"))),
        *(torch.autograd.backward, torch.autograd.grad, *map(tuple, dicts)),
        tuple(optimizers._global_optimizer_post_hooks.values()),
        vars(_BaseDataLoaderIter)["__next__"],
    )


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def sgd(net=None):
    return torch.optim.SGD(net.parameters() if net else [nn.Parameter(ones(1))], lr=0.1)


def test_everything_is_as_it_was_found(hooked):
    hooked.remove()
    before, net = standing(), model()
    # Wrappers of all module calls (a), the root's (r), passes (p), `train` (t), optimizers (o) and
    # batches (b).
    on = {OFF: "", QUIET: "t", LIGHT: "r", ROOT: "rpb", DISCOVER: "apob", RANGES: "apo"}
    for mode in (*MODES, *reversed(MODES), RANGES):
        for _ in range(2):
            hooked.set_mode(mode, net)
            now = standing()
        put = zip("atrpob", (0, 1, 2, 3, 5, 9), strict=True)
        found = {letter for letter, place in put if now[place] != before[place]}
        assert (found, hooked.state.mode) == ({*on[mode]}, mode)
        net(ones(3, 4)).sum().backward()
        kept = pickle.loads(pickle.dumps(net)).modules()
        for each, fresh in zip(kept, model().modules(), strict=True):
            assert list(vars(each)) == list(vars(fresh))
            assert not any((each._forward_hooks, each._forward_pre_hooks, each._backward_hooks))
    hooked.set_mode(OFF, backward=True)
    assert torch.autograd.backward is not before[3]
    hooked.set_mode(ROOT, net)
    hooked.set_mode(ROOT, nn.Linear(2, 2))
    assert (hooked.root_class, "__call__" in vars(nn.Sequential)) == (nn.Linear, False)
    hooked.install()
    for _ in range(2):
        hooked.remove()
        assert standing() == before


def test_a_class_with_a_call_of_its_own(hooked):
    class Own(nn.Sequential):
        def __call__(self, *args):
            return super().__call__(*args) + 1

    net = Own(nn.Linear(2, 2), nn.ReLU())
    plain, results = net(ones(1, 2)), []
    for mode in (OFF, DISCOVER, RANGES, ROOT):
        hooked.set_mode(mode, net)
        told = hooked.told(lambda: results.append(net(ones(1, 2))))
        assert told == ["first", "call_started Own", "call_ended Own"] * (mode != OFF)
        assert hooked.given is None or hooked.given[0] is net
    hooked.set_mode(LIGHT, net)
    assert hooked.told(lambda: results.append(net.eval()(ones(1, 2)))) == ["evaluated Own"]
    assert all(torch.equal(each, plain) for each in results)
    assert "__call__" in vars(Own)


@pytest.mark.parametrize("mode", MODES)
def test_one_training_step_and_one_evaluation(hooked, mode, monkeypatch):
    net, x = model(), ones(3, 4)
    opt = sgd(net)
    hooked.set_mode(DISCOVER)
    net(x)

    def work():
        net.train()(x).sum().backward()
        opt.step()
        net.eval()
        net(x)

    hooked.set_mode(mode, net)
    begin, ended, end = "call_started Sequential", "call_ended Sequential", "optimizer_ended SGD"
    every, listened = mode in (DISCOVER, RANGES, ROOT), mode == DISCOVER
    starts = ["optimizer_started SGD"] * listened
    passes = ["backward_started NoneType", "backward_ended NoneType"]
    evaluated = ["evaluated Sequential"] * (mode != OFF)
    all_told = ["first", begin, ended, *passes, *starts, end, begin, ended]
    assert hooked.told(work) == (all_told if every else [end, *evaluated])
    # Where neither calls nor passes end steps, nothing is told of their ends.
    rest = [begin, *starts, end, begin] if every else [end, *evaluated]
    if mode == RANGES:
        rest = [begin, end, begin]
    assert hooked.told(work, follows=False) == rest
    monkeypatch.setattr(torch.compiler, "_is_compiling_flag", True, raising=False)
    assert hooked.told(work) == []


def test_what_is_called_is_listened_to_on_one_thread(hooked):
    hears, net, x = Hears(), nn.Sequential(nn.ReLU()), ones(1, requires_grad=True)
    hooked.set_mode(DISCOVER)
    hooked.listen(hears)
    elsewhere(net, ones(1))
    net(x).sum().backward()
    sgd().step()
    with pytest.raises(ValueError, match="on purpose"):
        Broken()(x)
    hooked.listen(None)
    net(x)
    assert hears.heard == [
        *("+module Sequential Sequential", "+module Sequential.0 ReLU"),
        *("-module Sequential.0", "-module Sequential"),
        *("+backward backward bool", "-backward backward"),
        *("+optimizer SGD SGD", "-optimizer SGD", "+module Broken Broken", "-module Broken"),
    ]
    hears.heard.clear()
    hooked.listen(hears)
    assert sgd().step(lambda: net(x).sum()).item() == 1
    told = [each.split()[0] for each in hears.heard]
    inner = ["+module", "+module", "-module", "-module"]
    assert told == ["+optimizer", "+closure", *inner, "-closure", "-optimizer"]
    with pytest.raises(ValueError, match="on purpose") as caught:
        sgd().step(closure=lambda: Broken()(x))
    assert own_frames(caught.value) == [] or sys.version_info < (3, 11)


def test_forward_done_again_in_backward_is_no_outermost_call(hooked):
    for mode in (DISCOVER, ROOT):
        net, x = model(), ones(3, 4, requires_grad=True)

        def work(net=net, x=x):
            for reentrant in (True, False):
                checkpoint(net, x, use_reentrant=reentrant).sum().backward()

        hooked.set_mode(mode, net)
        words = hooked.words(work)
        twice = ("call_started", "call_ended", "backward_started", "backward_ended")
        assert {name: words[name] for name in twice} == dict.fromkeys(twice, 2)


def test_generate_once_however_it_ends(hooked):
    class Mixin:
        def generate(self, depth):
            if depth < 0:
                raise KeyError(depth)
            return depth if depth == 0 else self.generate(depth - 1)

    original = Mixin.generate
    hooked.install_generate(type("library", (), {"GenerationMixin": Mixin}))
    told = hooked.told(Mixin().generate, 3)
    assert told == ["first", "generate_started Mixin", "generate_ended True"]
    assert (type(hooked.given[0]), hooked.given[1:]) == (Mixin, ((3,), {}))
    assert set(hooked.found) == {"sequences", "prompt_tokens", "new_tokens", "cached", "can_end"}
    hooked.heard.clear()
    with pytest.raises(KeyError) as caught:
        Mixin().generate(-1)
    assert own_frames(caught.value) == []
    assert hooked.heard == ["generate_started Mixin", "generate_ended False"]
    hooked.remove()
    assert Mixin.generate is original


def test_batches_are_timed_in_the_wait_and_errors_pass_as_they_are(hooked):
    class Nested(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return [*DataLoader([1, 2])][2 * index]

    net, batches = model(), DataLoader(Nested(), batch_size=None)
    expected = {mode: ["batch_asked float"] * (mode in (DISCOVER, ROOT)) for mode in MODES}
    for mode in MODES:
        hooked.set_mode(mode, net)
        one = iter(batches)
        assert hooked.told(next, one) == expected[mode]
        with pytest.raises(IndexError) as raised:
            hooked.told(next, one)
        assert hooked.heard == expected[mode]
        assert own_frames(raised.value) == [] or sys.version_info < (3, 11)
        assert hooked.told(list, DataLoader([], batch_size=None)) == expected[mode]
        # In the step, after its first work, they are no part of its wait.
        assert hooked.told(next, iter(batches), follows=False) == []


def test_a_scripts_own_way_to_take_batches_stays(hooked, monkeypatch):
    original, taken = _BaseDataLoaderIter.__next__, []

    def counted(self):
        taken.append(1)
        return own(self)

    for own, on in ((original, OFF), (None, DISCOVER)):
        hooked.set_mode(on)
        own = own or _BaseDataLoaderIter.__next__  # ours is inside the script's
        monkeypatch.setattr(_BaseDataLoaderIter, "__next__", counted)
        for mode in (DISCOVER, RANGES, DISCOVER, OFF):
            hooked.set_mode(mode)
            assert list(DataLoader([1, 2], batch_size=None)) == [1, 2]
            assert _BaseDataLoaderIter.__next__ is counted
        assert len(taken) == 4 * 3
        taken.clear()
        monkeypatch.undo()


@pytest.mark.parametrize("follows", [True, False])
def test_each_module_and_pass_has_its_range(hooked, follows):
    nets = [model(), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()]
    hooked.set_mode(DISCOVER)
    nets[0](ones(3, 4))
    hooked.follows_calls = hooked.follows_backward = follows
    hooked.set_mode(RANGES)

    def work():
        for _ in range(2):
            nets[0](ones(3, 4)).sum().backward()
        with torch.no_grad():
            nets[1](ones(1, 3, 8))
        nets[0].eval()
        nets[0](ones(3, 4))

    hooked.heard.clear()
    names = hooked.ranges(work)
    calls = {"Sequential": 3, "Sequential.2": 3, "TransformerEncoderLayer": 1}
    assert {path: names[hooked.names.by_path[path].range_name] for path in calls} == calls
    assert (names[BACKWARD_RANGE], names["aten::_transformer_encoder_layer_fwd"]) == (2, 1)
    # The first call of a known root says nothing but that it evaluates.
    told = Counter(each.split()[0] for each in hooked.heard)
    assert (told["evaluated"], told["backward_ended"]) == ((0, 2) if follows else (1, 0))


def test_the_closure_of_an_optimizer_has_a_range_of_its_own(hooked, monkeypatch):
    opt, given = sgd(), []

    def closure(*found):
        given.append(found)
        if len(given) == 4:
            raise KeyError(4)
        return ones(1) * 7

    def work():
        assert opt.step(closure) is not None
        assert opt.step(closure=closure).item() == 7
        opt.step()

    hooked.set_mode(ROOT, model())
    assert hooked.ranges(work)[CLOSURE_RANGE] == 0
    hooked.set_mode(RANGES)
    assert hooked.ranges(lambda: opt.step(closure=closure))[CLOSURE_RANGE] == 1
    with pytest.raises(KeyError) as caught:
        hooked.ranges(lambda: opt.step(closure))
    assert own_frames(caught.value) == [] or sys.version_info < (3, 11)
    assert (hooked.ranges(work)[CLOSURE_RANGE], given) == (2, [()] * 6)

    # What another optimizer takes may be anything; a closure may have attributes of its own.
    class Other(torch.optim.SGD):
        def step(self, model):
            return model

    class Closure:
        def __call__(self):
            return 5

    net, own = model(), Closure()
    results = []
    other = Other(net.parameters(), 0.1)
    assert hooked.ranges(lambda: results.append(other.step(net)))[CLOSURE_RANGE] == 0
    assert hooked.ranges(lambda: results.append(other.step(closure)))[CLOSURE_RANGE] == 0
    assert hooked.ranges(lambda: opt.step(own))[CLOSURE_RANGE] == 0
    assert results == [net, closure]
    # Dynamo guards these hooks for an optimizer that it compiles.
    hooked.set_mode(OFF)
    monkeypatch.setattr(module, "has_compiled", lambda: True)
    hooked.set_mode(RANGES)
    assert hooked.ranges(work)[CLOSURE_RANGE] == 0


class Broken(nn.Module):
    def forward(self, x):
        raise ValueError("on purpose")


def own_frames(error):
    frames = traceback.extract_tb(error.__traceback__)
    return [frame.filename for frame in frames if "profstack/capture" in frame.filename]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="3.10 adds an entry for a bare raise")
@pytest.mark.parametrize("mode", [DISCOVER, RANGES, ROOT, LIGHT])
def test_error_passes_without_a_frame_of_ours(hooked, mode):
    net = nn.Sequential(nn.Linear(4, 4), Broken())

    def raised(work, kind, *given):
        with pytest.raises(kind) as caught:
            work(*given)
        assert own_frames(caught.value) == []
        return [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]

    plain = raised(net, ValueError, ones(1, 4))
    with torch.profiler.profile():
        for case in range(4):
            hooked.follows_calls = hooked.follows_backward = case < 2
            hooked.set_mode(mode, net)
            hooked.emit_ranges(case % 2 > 0)
            assert raised(net, ValueError, ones(1, 4)) == plain
            raised(ones(3, requires_grad=True).backward, RuntimeError)
        hooked.emit_ranges(False)
    net = nn.Sequential(nn.ReLU())
    assert hooked.words(net, ones(1))["call_started"] == (mode != LIGHT)


@pytest.mark.parametrize("given", [{}, {"retain_graph": True}, {"retain_graph": False},
    {"retain_graph": True, "create_graph": True}, {"create_graph": True}])  # fmt: skip
@pytest.mark.parametrize("how", ["tensor", "backward", "grad", "by place"])
def test_a_listener_is_told_of_passes_that_keep_their_graph(given, how):
    told = []

    class Passes(Listener):
        def enter(self, kind, name, module=None):
            told.append((kind, module))

    x = torch.ones(3, requires_grad=True)
    loss, autograd = (x * x).sum(), torch.autograd
    options = [given.get("retain_graph"), given.get("create_graph", False)]
    work = {
        "tensor": lambda: loss.backward(**given),
        "backward": lambda: autograd.backward(loss, **given),
        "grad": lambda: autograd.grad(loss, x, **given),
        "by place": lambda: (
            autograd.backward(loss, None, *options),
            autograd.grad((x * x).sum(), x, None, *options),
        ),
    }[how]
    with installed_hooks() as hooks:
        hooks.listen(Passes())
        work()
    # What asks for single gradients may need each of them, and adds none up.
    keeps = None if how == "grad" else given == {"retain_graph": True}
    assert told == [("backward", keeps), ("backward", None)][: 1 + (how == "by place")]
