"""The wrappers on torch: on and off without a trace, and unseen by what passes through."""

from __future__ import annotations

import copy
import functools
import io
import pickle
import subprocess
import sys
import textwrap
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from conftest import CHECKOUT, clean_environment
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils.checkpoint import checkpoint

from profstack.capture.hooks import DISCOVER, LIGHT, OFF, RANGES, ROOT, TorchHooks
from profstack.capture.module_names import ModuleInfo, ModuleNames
from profstack.storage.vocabulary import BACKWARD_RANGE

MODES = (OFF, DISCOVER, RANGES, ROOT)


class Recorder:
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        self.waiting = True
        self.follows_calls = True
        self.follows_backward = True
        self.told: list[tuple[Any, ...]] = []

    def first_activity(self, module: Any, args: Any, kwargs: Any) -> None:
        self.told.append(("first", module))
        self.waiting = False

    def call_started(self, module: Any, named: ModuleInfo) -> None:
        self.told.append(("call", named.path))

    def call_ended(self, module: Any, named: ModuleInfo) -> None:
        self.told.append(("called", named.path))

    def evaluated(self, named: ModuleInfo) -> None:
        self.told.append(("evaluated", named.path))

    def backward_started(self) -> None:
        self.told.append(("backward",))

    def backward_ended(self) -> None:
        self.told.append(("backward over",))

    def optimizer_started(self, optimizer: Any) -> None:
        self.told.append(("optimizer", type(optimizer).__name__))

    def optimizer_ended(self, optimizer: Any) -> None:
        self.told.append(("optimizer over", type(optimizer).__name__))

    def generate_started(self) -> None:
        self.told.append(("generate",))

    def generate_ended(self, *, completed: bool) -> None:
        self.told.append(("generate over", completed))

    def words(self) -> Counter[str]:
        return Counter(word for word, *_ in self.told)


class Hooked:
    def __init__(self) -> None:
        self.sink = Recorder()
        self.hooks = TorchHooks(torch, self.sink, ModuleNames())


@pytest.fixture
def hooked() -> Iterator[Hooked]:
    made = Hooked()
    made.hooks.install()
    yield made
    made.hooks.remove()


def standing() -> tuple[Any, ...]:
    """Everything of torch that the wrappers may touch."""
    return (
        nn.Module.__call__,
        nn.Module.__dict__["__call__"],
        torch.autograd.backward,
        torch.autograd.grad,
        tuple(optimizers._global_optimizer_pre_hooks.values()),
        tuple(optimizers._global_optimizer_post_hooks.values()),
        "__call__" in vars(nn.Sequential),
        tuple(nn.modules.module._global_forward_hooks),
        tuple(nn.modules.module._global_forward_pre_hooks),
    )


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def train_step(net: nn.Module, opt: torch.optim.Optimizer) -> None:
    opt.zero_grad()
    net(torch.ones(3, 4)).sum().backward()
    opt.step()


# -- on and off ----------------------------------------------------------------------------------


def test_everything_is_as_it_was_found() -> None:
    before = standing()
    net = model()
    for _ in range(2):
        made = Hooked()
        made.hooks.install()
        for mode in (*MODES, *reversed(MODES), RANGES):
            made.hooks.set_mode(mode, net)
            train_step(net, torch.optim.SGD(net.parameters(), lr=0.1))
        made.hooks.remove()
        assert standing() == before
        made.hooks.remove()
        assert standing() == before


@pytest.mark.parametrize("mode", MODES)
def test_patched_functions_keep_name_and_signature(hooked: Hooked, mode: str) -> None:
    import inspect

    hooked.hooks.remove()
    names = ("backward", "grad")
    plain = [inspect.signature(getattr(torch.autograd, name)) for name in names]
    hooked.hooks.install()
    hooked.hooks.set_mode(mode, model())
    for name, signature in zip(names, plain, strict=True):
        patched = getattr(torch.autograd, name)
        assert patched.__name__ == name
        assert patched.__module__ == "torch.autograd"
        assert inspect.signature(patched) == signature
        assert pickle.loads(pickle.dumps(patched)) is patched


def test_patch_of_the_scripts_own_on_calls_is_kept(hooked: Hooked) -> None:
    net, seen = model(), []
    original = nn.Module.__call__

    def own(self: Any, *args: Any) -> Any:
        seen.append(type(self).__name__)
        return original(self, *args)

    nn.Module.__call__ = own  # type: ignore[method-assign]
    try:
        for mode in (DISCOVER, RANGES, OFF, ROOT, OFF):
            seen.clear()
            hooked.hooks.set_mode(mode, net)
            net(torch.ones(3, 4))
            assert seen == ["Sequential", "Linear", "ReLU", "Linear"], mode
        hooked.hooks.remove()
        assert nn.Module.__call__ is own
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]


def test_patch_put_on_over_ours_is_kept_and_counts_nothing_twice(hooked: Hooked) -> None:
    before = nn.Module.__call__
    hooked.hooks.set_mode(DISCOVER)
    ours, seen = nn.Module.__call__, []

    def own(self: Any, *args: Any) -> Any:
        seen.append(type(self).__name__)
        return ours(self, *args)

    nn.Module.__call__ = own  # type: ignore[method-assign]
    net = model()
    hooked.hooks.set_mode(OFF)
    assert nn.Module.__call__ is own
    hooked.hooks.set_mode(RANGES)
    hooked.sink.told.clear()
    net(torch.ones(3, 4))
    assert hooked.sink.words()["call"] == 1
    assert seen == ["Sequential", "Linear", "ReLU", "Linear"]
    hooked.hooks.set_mode(OFF)
    # The script takes its own off again and puts back what it found: ours, switched off by now.
    nn.Module.__call__ = ours  # type: ignore[method-assign]
    hooked.sink.told.clear()
    net(torch.ones(3, 4))
    assert hooked.sink.told == []
    hooked.hooks.remove()
    assert nn.Module.__call__ is before


def test_class_with_a_call_of_its_own(hooked: Hooked) -> None:
    class Own(nn.Sequential):
        def __call__(self, *args: Any) -> Any:
            return super().__call__(*args) + 1

    net = Own(nn.Linear(2, 2), nn.ReLU())
    plain = net(torch.ones(1, 2))
    for mode in (*MODES, OFF, ROOT):
        hooked.hooks.set_mode(mode, net)
        hooked.sink.told.clear()
        hooked.sink.waiting = True
        assert torch.equal(net(torch.ones(1, 2)), plain)
        if mode != OFF:
            assert hooked.sink.told[0] == ("first", net), mode
            assert hooked.sink.words()["call"] == 1
    hooked.hooks.set_mode(LIGHT, net)
    hooked.sink.told.clear()
    net.eval()
    assert torch.equal(net(torch.ones(1, 2)), plain)
    assert hooked.sink.told == [("evaluated", "Own")]
    assert "__call__" in vars(Own)
    hooked.hooks.remove()
    assert torch.equal(net(torch.ones(1, 2)), plain)


# -- what is told --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [DISCOVER, RANGES, ROOT])
def test_one_training_step(hooked: Hooked, mode: str) -> None:
    net = model()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    hooked.hooks.set_mode(mode, net)
    train_step(net, opt)
    words = hooked.sink.words()
    assert (words["call"], words["called"], words["first"]) == (1, 1, 1)
    assert (words["backward"], words["backward over"]) == (1, 1)
    assert words["optimizer over"] == 1
    assert hooked.sink.told[0] == ("first", net)


def test_names_are_those_of_the_objects(hooked: Hooked) -> None:
    hooked.hooks.set_mode(RANGES)
    nets = [model(), model()]
    with torch.profiler.profile() as profile:
        hooked.hooks.emit_ranges(True)
        for net in nets:
            net(torch.ones(3, 4)).sum().backward()
    names = Counter(event.name() for event in profile.profiler.kineto_results.events())
    by_path = hooked.hooks.names.by_path
    for path in ("Sequential", "Sequential.2", "Sequential#2", "Sequential#2.0"):
        assert names[by_path[path].range_name] == 1
    assert names[BACKWARD_RANGE] == 2


class First(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Second(First):
    pass


class Third(First):
    pass


def test_ranges_follow_modules_that_come_and_go(hooked: Hooked) -> None:
    """Addresses come round again within a slice, and a part may outlive its whole."""
    hooks, x = hooked.hooks, torch.ones(1)
    called: Counter[str] = Counter()
    kept: list[nn.Module] = [Second(), Third(), First()]

    def use(number: int) -> None:
        parts = [First(), Second(), Third()][number % 3 :]
        net = nn.Sequential(*parts, *kept[number % 4 :])
        net(x)
        called.update(type(part).__name__ for part in net)
        called["Sequential"] += 1

    hooks.set_mode(DISCOVER)
    for number in range(12):
        use(number)
    called.clear()
    hooks.set_mode(RANGES)
    with torch.profiler.profile() as profile:
        hooks.emit_ranges(True)
        for number in range(30):
            use(number)
            if number % 10 == 0:
                kept.pop(0)
    types = {named.range_name: named.type for named in hooks.names.by_path.values()}
    events = profile.profiler.kineto_results.events()
    assert Counter(types[event.name()] for event in events if event.name() in types) == called


@pytest.mark.parametrize("reentrant", [True, False])
def test_forward_done_again_in_backward_is_no_outermost_call(
    hooked: Hooked, reentrant: bool
) -> None:
    net = model()
    hooked.hooks.set_mode(DISCOVER)
    x = torch.ones(3, 4, requires_grad=True)
    for _ in range(2):
        checkpoint(net, x, use_reentrant=reentrant).sum().backward()
    words = hooked.sink.words()
    assert (words["call"], words["called"]) == (2, 2)
    assert (words["backward"], words["backward over"]) == (2, 2)


def test_gradient_inside_a_forward(hooked: Hooked) -> None:
    class Energy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            force = torch.autograd.grad(self.net(x).sum(), x, create_graph=True)[0]
            return self.net(force)

    net = Energy()
    hooked.hooks.set_mode(RANGES)
    net(torch.ones(3, 4, requires_grad=True)).sum().backward()
    words = hooked.sink.words()
    assert words["call"] == 1
    assert words["backward over"] == 2
    # After the pass inside, the second call is again one inside `Energy`.
    assert "Sequential" not in hooked.hooks.names.by_path


def test_generate_once_however_it_ends(hooked: Hooked) -> None:
    class Mixin:
        def generate(self, depth: int) -> int:
            if depth < 0:
                raise KeyError(depth)
            return depth if depth == 0 else self.generate(depth - 1)

    library = type("library", (), {"GenerationMixin": Mixin})
    original = Mixin.generate
    hooked.hooks.install_generate(library)
    assert Mixin().generate(3) == 0
    with pytest.raises(KeyError):
        Mixin().generate(-1)
    words = [told for told in hooked.sink.told if told[0].startswith("generate")]
    assert words == [
        ("generate",), ("generate over", True), ("generate",), ("generate over", False),
    ]  # fmt: skip
    hooked.hooks.remove()
    assert Mixin.generate is original


# -- what passes through -------------------------------------------------------------------------


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("on purpose")


def own_frames(error: BaseException) -> list[str]:
    frames = traceback.extract_tb(error.__traceback__)
    return [frame.filename for frame in frames if "profstack" in frame.filename.split("/")[-2:]]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="3.10 adds an entry for a bare raise")
@pytest.mark.parametrize("mode", [DISCOVER, RANGES, ROOT])
def test_error_passes_without_a_frame_of_ours(hooked: Hooked, mode: str) -> None:
    net = nn.Sequential(nn.Linear(4, 4), Broken())
    with pytest.raises(ValueError, match="on purpose") as plain:
        net(torch.ones(1, 4))
    hooked.hooks.set_mode(mode, net)
    with pytest.raises(ValueError, match="on purpose") as caught:
        net(torch.ones(1, 4))
    assert own_frames(caught.value) == []
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names == [frame.name for frame in traceback.extract_tb(plain.value.__traceback__)]
    with pytest.raises(RuntimeError) as caught_backward:
        torch.ones(3, requires_grad=True).backward()
    assert own_frames(caught_backward.value) == []
    # The next call is an outermost one again.
    hooked.sink.told.clear()
    model()(torch.ones(1, 4))
    assert hooked.sink.words()["call"] == 1


def test_module_that_cannot_be_named_is_called_all_the_same(hooked: Hooked) -> None:
    net = model()

    def broken(*_: Any) -> Any:
        raise RuntimeError("no name")

    hooked.hooks.names.root = broken  # type: ignore[method-assign]
    hooked.hooks.set_mode(RANGES)
    with torch.profiler.profile() as profile:
        hooked.hooks.emit_ranges(True)
        assert net(torch.ones(3, 4)).shape == (3, 2)
    names = [event.name() for event in profile.profiler.kineto_results.events()]
    assert not any(name.startswith("profstack::") for name in names)


@pytest.mark.parametrize("mode", [DISCOVER, RANGES])
def test_a_call_may_begin_before_the_profiler_and_end_under_it(hooked: Hooked, mode: str) -> None:
    profile = torch.profiler.profile()

    class Starting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            profile.start()
            hooked.hooks.emit_ranges(True)
            return x

    net = nn.Sequential(Starting(), nn.Identity())
    hooked.hooks.set_mode(mode)
    net(torch.ones(2))
    try:
        assert net[1](torch.ones(2)).shape == (2,)
        # Also on a thread that nobody observes.
        thread = threading.Thread(target=net[1], args=(torch.ones(2),))
        thread.start()
        thread.join()
    finally:
        hooked.hooks.emit_ranges(False)
        profile.stop()
    names = [event.name() for event in profile.profiler.kineto_results.events()]
    emitted = [name for name in names if name.startswith("profstack::module")]
    assert len(emitted) == (2 if mode == RANGES else 0)


def test_nothing_is_put_on_modules(hooked: Hooked) -> None:
    net = model()
    before = pickle.dumps(net)
    hooked.hooks.set_mode(RANGES, net)
    net(torch.ones(3, 4)).sum().backward()
    net.zero_grad()
    assert pickle.dumps(net) == before
    assert list(copy.deepcopy(net).state_dict()) == list(net.state_dict())
    saved = io.BytesIO()
    torch.save(net, saved)
    saved.seek(0)
    loaded = torch.load(saved, weights_only=False)
    assert type(loaded) is nn.Sequential
    for module in net.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._backward_hooks


@pytest.mark.parametrize("mode", MODES)
def test_results_are_the_same_to_the_last_digit(hooked: Hooked, mode: str) -> None:
    def losses() -> list[str]:
        net = model()
        opt = torch.optim.Adam(net.parameters(), lr=0.1)
        hooked.hooks.set_mode(mode, net) if mode else None
        found = []
        for _ in range(5):
            opt.zero_grad()
            loss = net(torch.ones(3, 4)).pow(2).sum()
            loss.backward()
            opt.step()
            found.append(loss.item().hex())
        return found

    with_hooks = losses()
    hooked.hooks.remove()
    mode = ""
    assert losses() == with_hooks


def test_fused_paths_stay_on(hooked: Hooked) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    hooked.hooks.set_mode(RANGES)
    with torch.no_grad(), torch.profiler.profile() as profile:
        hooked.hooks.emit_ranges(True)
        layer(torch.ones(1, 3, 8))
    names = {event.name() for event in profile.profiler.kineto_results.events()}
    assert "aten::_transformer_encoder_layer_fwd" in names


def test_threads_do_not_see_each_others_modules(hooked: Hooked) -> None:
    hooked.hooks.set_mode(DISCOVER)
    nets = [model() for _ in range(4)]
    inside = threading.Barrier(4)

    class Waits(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inside.wait(timeout=30)
            return x

    for net in nets:
        net.append(Waits())
    errors: list[BaseException] = []

    def run(net: nn.Module) -> None:
        try:
            for _ in range(20):
                net(torch.ones(1, 4))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(net,)) for net in nets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    # Each call is outermost on its own thread, though another model's is running elsewhere.
    assert hooked.sink.words()["call"] == 80
    roots = [named for named in hooked.hooks.names.by_path.values() if named.parent_id is None]
    assert {named.type for named in roots} == {"Sequential"}


# -- compilation ---------------------------------------------------------------------------------

COMPILED = textwrap.dedent(
    """
    import sys
    import torch
    # What calls of modules look like, dynamo notes when it is imported.
    import torch._dynamo
    from torch import nn

    modes = sys.argv[1:]
    if modes:
        sys.path.insert(0, TESTS)
        from test_torch_hooks import Hooked
        made = Hooked()
        made.hooks.install()

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    net[1].register_forward_hook(lambda module, given, made: made * 1.0)
    fast = torch.compile(net, backend="aot_eager")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    @torch.compile(backend="eager")
    def forces(x):
        return net(x).sum()

    for number in range(3):
        if number < len(modes):
            # The class of what was compiled has a way of its own to be called.
            made.hooks.set_mode(modes[number], net if number < 2 else fast)
        loss = fast(torch.ones(3, 4)).sum() + forces(torch.ones(2, 4))
        loss.backward()
        optimizer.step()
        print(loss.item().hex())
    counters = torch._dynamo.utils.counters
    print(sorted(counters["stats"].items()), sorted(counters["graph_break"].items()))
    print(sorted(counters["frames"].items()))
    """
)


@pytest.fixture(scope="module")
def compiled_plain() -> str:
    return run_compiled()


def run_compiled(*arguments: str) -> str:
    script = COMPILED.replace("TESTS", repr(str(CHECKOUT / "tests")))
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        env=clean_environment(PYTHONPATH=str(CHECKOUT), OMP_NUM_THREADS="1"),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# What is on changes between steps: nothing compiled before may have to be compiled again.
@pytest.mark.parametrize("modes", [(DISCOVER, RANGES, OFF), (RANGES, DISCOVER), (OFF, ROOT, ROOT)])
def test_compiled_graphs_and_breaks_are_those_of_plain_torch(
    modes: tuple[str, ...], compiled_plain: str
) -> None:
    assert "unique_graphs" in compiled_plain
    assert run_compiled(*modes) == compiled_plain


def test_a_patch_of_the_scripts_around_ours_is_compiled_too(hooked: Hooked) -> None:
    """Dynamo reads torch's function where it meets our wrapper, but not where it meets theirs."""
    plain = nn.Module.__call__
    net = model()
    for mode in (DISCOVER, RANGES):
        hooked.hooks.set_mode(mode)
        ours: Any = nn.Module.__call__
        assert ours._torchdynamo_inline is plain

        @functools.wraps(ours)
        def theirs(self: nn.Module, *args: Any, ours: Any = ours) -> Any:
            return ours(self, *args)

        assert not hasattr(theirs, "_torchdynamo_inline")
        assert theirs.__wrapped__ is ours  # type: ignore[attr-defined]
        assert torch.equal(net(torch.ones(1, 4)), plain(net, torch.ones(1, 4)))


def test_symbolic_trace(hooked: Hooked) -> None:
    plain = torch.fx.symbolic_trace(model()).code
    hooked.hooks.set_mode(DISCOVER)
    assert torch.fx.symbolic_trace(model()).code == plain
    hooked.sink.told.clear()
    model()(torch.ones(1, 4))
    assert hooked.sink.words()["call"] == 1


def test_scripted_module(hooked: Hooked) -> None:
    call: Callable[..., Any] = torch.jit.script(model())
    plain = call(torch.ones(1, 4))
    for mode in MODES:
        hooked.hooks.set_mode(mode, call)
        assert torch.equal(call(torch.ones(1, 4)), plain)
