"""flops-profiler behind its fence: the tool's own figures, and a script that notices nothing.

The tool itself is run beside, as its users run it; what it leaves behind is cleaned up here.
"""

from __future__ import annotations

import copy
import importlib
import pickle
import re
import subprocess
import sys
import textwrap
import threading
import traceback
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from conftest import clean_environment
from flops_profiler import profiler as tool
from torch import nn
from torch_slice import Quiet

from profstack.analysis.flops import KNOWN_MISSES
from profstack.capture.hooks import DISCOVER, TorchHooks
from profstack.capture.module_names import ModuleNames
from profstack.readers.flops import flops_profiler
from profstack.readers.flops.flops_profiler import FencedFlopsProfiler, counted_functions

OWNERS = (torch, torch.Tensor, F, nn.Module, nn.LSTM, tool)
LISTS = ("module_flop_count", "module_mac_count", "module_profile_lists", "old_functions")
Counts = dict[str, int | None]


def attributes() -> dict[Any, dict[str, Any]]:
    """Every attribute of what the tool patches, by identity."""
    return {owner: dict(vars(owner)) for owner in OWNERS}


def assert_untouched(before: dict[Any, dict[str, Any]]) -> None:
    for owner, names in before.items():
        now = dict(vars(owner))
        assert [name for name in names if now.get(name) is not names[name]] == [], owner
        # Submodules are imported whenever somebody asks for them; copying caches its own.
        new = {name for name in now.keys() - names if not isinstance(now[name], ModuleType)}
        assert new <= {"__slotnames__"}, owner
    assert [len(getattr(tool, name)) for name in LISTS] == [0, 0, 0, 0]


@pytest.fixture(autouse=True, scope="module")
def _others_have_patched() -> None:
    """What dynamo and transformers replace in torch, for good, when they are first used."""
    importlib.import_module("torch._dynamo")
    gpt2()


@pytest.fixture
def before() -> Iterator[dict[Any, dict[str, Any]]]:
    """All attributes as they were; what a test left behind is an error of the test's subject."""
    names = attributes()
    yield names
    assert_untouched(names)


def by_the_tool(model: nn.Module, *inputs: Any) -> Counts:
    """The tool's own figure of every module, hooks and patches and all; then cleaned up."""
    names = attributes()
    profiler = tool.FlopsProfiler(model)
    try:
        profiler.start_profile()
        model(*inputs)
        paths = model.named_modules(prefix=type(model).__name__)
        counts = {path: module.__flops__ for path, module in paths}
        profiler.end_profile()
    finally:
        for owner in (torch, torch.Tensor, F):
            for name in [name for name in vars(owner) if name not in names[owner]]:
                delattr(owner, name)
            for name, value in names[owner].items():
                if vars(owner)[name] is not value:
                    setattr(owner, name, value)
        for name in LISTS:
            getattr(tool, name).clear()
    return {path: count for path, count in counts.items() if count}


class Fenced:
    """What one slice behind the fence gave."""

    def __init__(self, fence: FencedFlopsProfiler, names: ModuleNames) -> None:
        self.fence = fence
        self._modules = names.by_number()

    def rows(self, left_out: tuple[int, ...] = ()) -> list[dict[str, Any]]:
        rows = self.fence.records(3, self._modules, left_out)
        for row in rows:
            assert row["slice"] == 3
            assert row["counter"] == "flops-profiler"
            assert row["backward"] == 0
            row["path"] = self._modules[row["module_id"]].path
        return rows

    def by_path(self, left_out: tuple[int, ...] = ()) -> Counts:
        counts: Counts = defaultdict(int)
        for row in self.rows(left_out):
            counts[row["path"]] += row["flop"] or 0
        return {path: count for path, count in counts.items() if count}

    def flop(self, function: str) -> list[int | None]:
        return [row["flop"] for row in self.rows() if row["operator"] == function]


@contextmanager
def fenced(fence: FencedFlopsProfiler | None = None) -> Iterator[Fenced]:
    """A slice with the real hooks on the calls of modules, and the fence told of them."""
    fence = fence or FencedFlopsProfiler()
    hooks = TorchHooks(torch, Quiet(), ModuleNames())
    hooks.install()
    hooks.set_mode(DISCOVER)
    result = Fenced(fence, hooks.names)
    try:
        fence.start()
        hooks.listen(fence)
        yield result
    finally:
        hooks.listen(None)
        fence.stop()
        hooks.remove()
        result._modules = hooks.names.by_number()


def count(model: Callable[..., Any], *inputs: Any) -> Fenced:
    with fenced() as result:
        model(*inputs)
    return result


class Calls(nn.Module):
    """Calls one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=4, dilation=2, bias=False),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
        nn.Softmax(-1),
    )


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2Model

    size = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 50, "n_positions": 16}
    no_tokens = {"bos_token_id": None, "eos_token_id": None}
    return GPT2Model(GPT2Config(attn_implementation="eager", **size, **no_tokens))


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 2)), (torch.ones(5, 6),)),
        (conv_net, (torch.ones(2, 4, 24, 24),)),
        (lambda: nn.TransformerEncoderLayer(8, 2, 16), (torch.ones(3, 2, 8),)),
        (gpt2, (torch.ones(2, 8, dtype=torch.long),)),
    ],
    ids=["mlp", "convolutions", "encoder", "gpt2"],
)
def test_figures_are_the_tools_own(make, inputs, before):
    model = make()
    expected = by_the_tool(model, *inputs)
    assert expected
    assert count(model, *inputs).by_path() == expected


def test_the_tool_itself_leaves_a_mess_where_the_fence_leaves_none(before):
    # Were it clean, the fence would be for nothing.
    model = conv_net()
    names = attributes()
    profiler = tool.FlopsProfiler(model)
    profiler.start_profile()
    profiler.end_profile()
    bmm = torch.bmm
    torch.bmm = names[torch]["bmm"]
    for name in [name for name in vars(torch.Tensor) if name not in names[torch.Tensor]]:
        delattr(torch.Tensor, name)
    for name in LISTS:
        getattr(tool, name).clear()
    assert bmm is torch.matmul


class StopError(Exception):
    """Raised by the script."""


def test_nothing_is_left_when_the_script_raises(before):
    def fail(x: torch.Tensor) -> torch.Tensor:
        F.relu(x)
        raise StopError

    model = nn.Sequential(nn.Linear(4, 4), Calls(fail))
    with pytest.raises(StopError), fenced():
        model(torch.ones(2, 4))
    assert_untouched(before)
    with fenced() as caught:
        with pytest.raises(StopError):
            model(torch.ones(2, 4))
        assert_untouched({owner: before[owner] for owner in (torch, torch.Tensor, F)})
    assert caught.by_path() == {"Sequential.0": 64, "Sequential.1": 8}


def test_names_are_patched_in_forward_calls_alone(before):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    seen = []
    model[1].forward = lambda x: seen.append(vars(F)["relu"] is before[F]["relu"]) or x
    with fenced():
        patched = {owner: before[owner] for owner in (torch, torch.Tensor, F)}
        assert_untouched(patched)
        loss = model(torch.ones(2, 4)).sum()
        assert_untouched(patched)
        F.relu(loss).backward()
    assert seen == [False]


@pytest.mark.parametrize("missing", ["MODULE_HOOK_MAPPING", "_patch_functionals"])
def test_nothing_is_left_when_its_start_fails(monkeypatch, missing):
    monkeypatch.delattr(tool, missing)
    names = attributes()
    with pytest.raises(AttributeError, match=missing), fenced():
        pass
    assert_untouched(names)
    monkeypatch.undo()
    assert count(nn.Linear(2, 2), torch.ones(1, 2)).by_path() == {"Linear": 8}


def test_nothing_is_left_when_patching_fails_half_way(before, monkeypatch):
    real = flops_profiler.counted_functions
    monkeypatch.setattr(
        flops_profiler,
        "counted_functions",
        lambda *args: [*real(*args), (torch, "no_such_function", len)],
    )
    fence = FencedFlopsProfiler()
    fence.start()
    with pytest.raises(AttributeError, match="no_such_function"):
        fence.enter("module", "Net", nn.Identity())
    assert_untouched({owner: before[owner] for owner in (torch, torch.Tensor, F)})
    fence.stop()


def test_stop_in_the_middle_of_a_call_and_twice(before):
    fence = FencedFlopsProfiler()
    fence.start()
    fence.enter("module", "Net", nn.Identity())
    assert F.relu is not before[F]["relu"]
    fence.stop()
    assert_untouched(before)
    fence.stop()
    fence.leave("module", "Net")
    assert_untouched(before)


def test_what_the_script_puts_there_meanwhile_stays_the_scripts(before):
    def mine(x: torch.Tensor, inplace: bool = False) -> torch.Tensor:
        return x * 0

    def replace(x: torch.Tensor) -> torch.Tensor:
        F.relu = mine
        return F.relu(x)

    try:
        result = count(Calls(replace), torch.ones(2))
        assert F.relu is mine
    finally:
        F.relu = before[F]["relu"]
    assert result.flop("relu") == []


def test_it_is_not_reentrant_and_says_so(before):
    with fenced() as outer:
        second = FencedFlopsProfiler()
        assert "only once at a time" in (second.busy_reason() or "")
        with pytest.raises(RuntimeError, match="only once"):
            second.start()
        second.stop()
        nn.Linear(2, 2)(torch.ones(1, 2))
    assert outer.by_path() == {"Linear": 8}
    assert FencedFlopsProfiler().busy_reason() is None


def test_a_script_that_uses_the_tool_itself_gets_its_own_figures(before):
    model = conv_net()
    x = torch.ones(2, 4, 24, 24)
    expected = by_the_tool(model, x)
    with fenced() as result:
        assert by_the_tool(model, x) == expected
    assert result.by_path() == expected


# -- what the tool fails on ---------------------------------------------------------------------


def failure(result: Fenced) -> str:
    [(slug, text)] = result.fence.notes()
    assert slug == "flops-uncounted"
    return text


@pytest.mark.parametrize(
    ("model", "inputs", "function", "reason"),
    [
        (nn.ConvTranspose2d(4, 8, 3), (2, 4, 8, 8), "conv_transpose2d", NameError),
        (nn.Conv2d(4, 8, 3, padding="same"), (2, 4, 8, 8), "conv2d", TypeError),
        (nn.Conv2d(4, 8, 3), (4, 8, 8), "conv2d", AssertionError),
        (Calls(lambda x: F.interpolate(x, (4, 4))), (1, 1, 2, 2), "interpolate", TypeError),
    ],
    ids=["transposed", "same", "without batch", "positional size"],
)
def test_what_its_formulas_raise_becomes_a_reason(model, inputs, function, reason, before):
    x = torch.ones(*inputs)
    expected = model(x)
    with pytest.raises(reason):
        by_the_tool(model, x)
    with fenced() as result:
        assert torch.equal(model(x), expected)
    assert result.flop(function) == [None]
    assert failure(result).startswith(f"flops-profiler could not count {function}: ")
    assert reason.__name__ in failure(result)


def test_a_model_without_parameters_is_counted(before):
    model = nn.Sequential(nn.ReLU())
    with pytest.raises(StopIteration):
        tool.FlopsProfiler(model)
    assert count(model, torch.ones(3)).by_path() == {"Sequential.0": 3}


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.LSTM(4, 8), (3, 2, 4)),
        (nn.GRU(4, 8), (3, 2, 4)),
        (nn.RNN(4, 8, nonlinearity="relu"), (3, 2, 4)),
        (nn.LSTMCell(4, 8), (2, 4)),
        (nn.GRUCell(4, 8), (2, 4)),
        (nn.RNNCell(4, 8), (2, 4)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_recurrent_layers_are_left_out_with_a_reason(layer, shape, before):
    x = torch.ones(*shape)
    result = count(nn.Sequential(layer), x)
    [row] = result.rows()
    assert row["flop"] is None
    assert "multiply-add" in failure(result)
    # It is named as torch names the function: the time of that is known.
    assert f"aten::{row['operator']}" in operators(layer, x)


def test_the_tool_counts_a_multiply_add_of_recurrent_layers_once(before):
    # 6 vectors through (4 + 8) x 32 weights are 2,304 multiply-adds.
    assert 2304 < by_the_tool(nn.LSTM(4, 8), torch.ones(3, 2, 4))["LSTM"] < 2 * 2304


def test_calls_with_and_without_a_figure_have_rows_of_their_own(before):
    weight = torch.ones(8, 4, 3, 3)
    model = Calls(lambda x: (F.conv2d(x, weight), F.conv2d(x, weight, padding="same")))
    rows = count(model, torch.ones(1, 4, 8, 8)).rows()
    found = {row["flop"]: row["calls"] for row in rows}
    assert found == {2 * 36 * 8 * 4 * 9: 1, None: 1}


def test_other_threads_are_not_counted(before):
    relu = []

    def elsewhere(x: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=lambda: relu.append(F.relu(x)))
        thread.start()
        thread.join()
        return F.relu(x)

    result = count(Calls(elsewhere), torch.ones(3))
    assert torch.equal(relu[0], torch.ones(3))
    assert [row["calls"] for row in result.rows()] == [1]


@pytest.mark.parametrize(
    ("operator", "call", "right"),
    [
        (
            "aten::scaled_dot_product_attention",
            lambda: F.scaled_dot_product_attention(*[torch.ones(1, 2, 4, 8)] * 3),
            2 * 2 * 2 * 4 * 4 * 8,
        ),
        ("aten::matmul", lambda: torch.ones(3, 4) @ torch.ones(4, 5), 2 * 3 * 4 * 5),
        ("aten::mv", lambda: torch.mv(torch.ones(3, 4), torch.ones(4)), 2 * 3 * 4),
        ("aten::dot", lambda: torch.dot(torch.ones(4), torch.ones(4)), 2 * 4),
        (
            "aten::addmm_",
            lambda: torch.ones(3, 5).addmm_(torch.ones(3, 4), torch.ones(4, 5)),
            2 * 3 * 4 * 5,
        ),
        ("aten::add", lambda: torch.ones(3) + torch.ones(3), 3),
        ("aten::mul", lambda: torch.ones(3) * torch.ones(3), 3),
        (
            "aten::bilinear",
            lambda: F.bilinear(torch.ones(3, 4), torch.ones(3, 4), torch.ones(5, 4, 4)),
            2 * 3 * 4 * 4 * 5,
        ),
        ("aten::cdist", lambda: torch.cdist(torch.ones(3, 4), torch.ones(3, 4)), 3 * 3 * 4),
    ],
)
def test_known_misses_are_missed(operator, call, right, before):
    assert "counted as 0" in KNOWN_MISSES[operator]
    assert right > 0
    assert sum(by_the_tool(Calls(call)).values()) == 0
    assert count(Calls(call)).by_path() == {}


def test_known_miscounts_are_miscounted(before):
    vector = by_the_tool(Calls(lambda: torch.matmul(torch.ones(3, 4), torch.ones(4))))["Calls"]
    assert vector == 4 * (2 * 3 * 4)
    assert "as often as the vector is long" in KNOWN_MISSES["aten::matmul"]
    batch = by_the_tool(Calls(lambda: torch.matmul(torch.ones(3, 4), torch.ones(7, 4, 5))))["Calls"]
    assert batch * 7 == 7 * 2 * 3 * 4 * 5
    assert "broadcast" in KNOWN_MISSES["aten::matmul"]
    spatial = by_the_tool(Calls(lambda: F.interpolate(torch.ones(2, 3, 4, 4), size=(8, 8))))
    assert spatial["Calls"] == 8 * 8
    assert "batch and channels" in KNOWN_MISSES["aten::upsample_nearest2d"]


# -- a script that notices nothing --------------------------------------------------------------


def losses(observed: int | None) -> list[float]:
    """Four steps of training with dropout and batch norm, one of them behind the fence."""
    torch.manual_seed(3)
    model = nn.Sequential(conv_net(), nn.Dropout(0.2), nn.Linear(3, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    found = []
    for step in range(4):
        x = torch.randn(4, 4, 24, 24)
        with fenced() if step == observed else warnings.catch_warnings():
            loss = model(x).square().mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def test_losses_are_the_same_to_the_last_digit(before):
    plain = losses(None)
    assert len(set(plain)) == 4
    assert losses(1) == plain


def operators(model: nn.Module, x: torch.Tensor) -> set[str]:
    with torch.autograd.profiler.profile() as profile, torch.no_grad():
        model(x)
    return {event.name for event in profile.function_events}


def test_fused_paths_stay_on(before):
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        plain = model(x)
        with fenced():
            fused = operators(model, x)
            assert torch.equal(model(x), plain)
    assert "aten::_transformer_encoder_layer_fwd" in fused
    assert "aten::_transformer_encoder_layer_fwd" in KNOWN_MISSES


def test_modules_get_no_hook_and_no_attribute(before):
    model = conv_net()
    attributes_before = [dict(vars(module)) for module in model.modules()]
    during = []
    model[1].forward = lambda x: during.append([dict(vars(m)) for m in model.modules()]) or x
    attributes_before[2]["forward"] = model[1].forward
    with fenced():
        model(torch.ones(1, 4, 24, 24))
        del model[1].forward
        del attributes_before[2]["forward"]
        assert torch.equal(copy.deepcopy(model)[0].weight, model[0].weight)
        assert pickle.loads(pickle.dumps(model))[7].bias.shape == (3,)
    assert [list(names) for names in during[0]][3:] == [
        list(names) for names in attributes_before[3:]
    ]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert [set(vars(module)) for module in model.modules()] == list(map(set, attributes_before))


def test_a_traceback_shows_no_frame_of_ours(before):
    model = Calls(lambda x: F.linear(x, torch.ones(2, 7)))
    texts = []
    for observed in (False, True):
        with fenced() if observed else warnings.catch_warnings():
            try:
                model(torch.ones(1, 2))
            except RuntimeError:
                texts.append(traceback.format_exc())
    assert "linear" in texts[0]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "function",
    [lambda x: F.softmax(x + 0), lambda x: F.upsample(x, scale_factor=2)],
    ids=["softmax", "upsample"],
)
@pytest.mark.filterwarnings("always")
def test_a_warning_names_the_scripts_line(function, before):
    model = Calls(function)
    places = []
    for observed in (False, True):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with fenced() if observed else warnings.catch_warnings():
                model(torch.ones(1, 1, 2))
        places.append([(str(each.message), each.filename, each.lineno) for each in caught])
    assert places[0]
    assert places[0] == places[1]
    assert {place[1] for place in places[0]} == {__file__}


class Heard(torch.Tensor):
    """A tensor that is told of every function called with it."""

    told: list[Any] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.told.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_tensors_with_a_handler_hear_what_they_hear_without_us(before):
    model = Calls(lambda x: torch.matmul(F.relu(x), torch.ones(3)))
    told = []
    for observed in (False, True):
        Heard.told.clear()
        x = torch.ones(3).as_subclass(Heard)
        with fenced() if observed else warnings.catch_warnings():
            model(x)
        told.append(list(Heard.told))
    assert F.relu in told[0]
    assert told[0] == told[1]
    result = count(model, torch.ones(3).as_subclass(Heard))
    assert result.flop("relu") == [None]
    assert "Heard" in result.fence.notes()[0][1]


class Listening(torch.overrides.TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.told.append(func)
        return func(*args, **(kwargs or {}))


def test_a_mode_hears_what_it_hears_without_us_and_is_counted_through(before):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    told = []
    for observed in (False, True):
        with fenced() if observed else warnings.catch_warnings() as result:
            model(torch.ones(2, 4))
            with Listening() as mode:
                model(torch.ones(2, 4))
        told.append(mode.told)
    assert F.relu in told[0]
    assert told[0] == told[1]
    assert result.by_path() == {"Sequential.0": 2 * 64, "Sequential.1": 2 * 8}


def graph(model: nn.Module) -> str:
    """What torch.jit makes of a model, without the numbers it gives to classes."""
    return re.sub(r"___torch_mangle_\d+\.", "", str(torch.jit.trace(model, torch.ones(2, 4)).graph))


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
@pytest.mark.parametrize(
    "trace", [lambda model: torch.fx.symbolic_trace(model).graph, graph], ids=["fx", "jit"]
)
def test_a_trace_of_a_model_has_no_node_more(trace, before):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    plain = trace(model)
    fence = FencedFlopsProfiler()
    fence.start()
    fence.enter("module", "Sequential", model)
    try:
        assert F.relu is not before[F]["relu"]
        assert str(trace(model)) == str(plain)
    finally:
        fence.stop()


COMPILED = """
    import sys, torch
    from torch import nn
    observed = OBSERVED
    from torch._dynamo.utils import counters

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        def forward(self, x):
            return torch.relu(self.second(nn.functional.relu(self.first(x))))

    torch.manual_seed(0)
    net = Net()
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.compile(net, backend="aot_eager")
        def forward(self, x):
            return self.net(nn.functional.gelu(x))
    model = Around()
    x = torch.ones(2, 4)
    if observed:
        from profstack.readers.flops.flops_profiler import FencedFlopsProfiler
        fence = FencedFlopsProfiler()
        fence.start()
        gelu = nn.functional.gelu
        fence.enter("module", "Around", model)
        assert nn.functional.gelu is not gelu
    print(model(x).sum().item())
    if observed:
        assert nn.functional.gelu is gelu
        fence.leave("module", "Around")
        fence.enter("module", "Around", model)
        print(model(x).sum().item())
        fence.leave("module", "Around")
        fence.stop()
        assert fence.records(0, {}) == []
        assert fence.notes()[0][0] == "gave-way", fence.notes()
        assert "dynamo" in (fence.busy_reason() or "")
        assert torch._dynamo.callback.callback_handler.start_callbacks == []
    else:
        print(model(x).sum().item())
    print(model(x).sum().item())
    print(dict(counters["frames"]), dict(counters["stats"]), dict(counters["graph_break"]))
"""


@pytest.mark.slow
def test_what_is_compiled_in_its_slice_is_compiled_as_without_it():
    answers = []
    for observed in (False, True):
        code = textwrap.dedent(COMPILED).replace("OBSERVED", str(observed))
        answer = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env=clean_environment(),
            check=False,
        )
        assert answer.returncode == 0, answer.stderr
        answers.append(answer.stdout)
    assert "unique_graphs" in answers[0]
    assert answers[0] == answers[1]


# -- the slice ----------------------------------------------------------------------------------


def test_rows_are_forward_work_by_function_and_step(before):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with fenced() as result:
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            result.fence.step_ended(0)
            result.fence.step_begun(0)
    rows = [(row["path"], row["operator"], row["calls"], row["flop"]) for row in result.rows()]
    assert rows == [("Sequential.0", "linear", 3, 192), ("Sequential.1", "relu", 3, 24)]
    assert result.by_path(left_out=(0, 2)) == {"Sequential.0": 64, "Sequential.1": 8}
    assert result.fence.notes() == []


def test_work_done_again_in_a_backward_pass_is_not_forward_work(before):
    from torch.utils.checkpoint import checkpoint

    inner = nn.Linear(4, 4)
    model = Calls(lambda x: checkpoint(inner, x, use_reentrant=False))
    with fenced() as result:
        model(torch.ones(2, 4)).sum().backward()
    assert [row["calls"] for row in result.rows()] == [1]


def test_a_slice_without_counted_functions_says_so(before):
    result = count(Calls(lambda x: x + x), torch.ones(2))
    assert result.rows() == []
    assert [slug for slug, _ in result.fence.notes()] == ["empty-capture"]


def test_reasons_and_version(monkeypatch):
    assert FencedFlopsProfiler.unavailable_reason() is None
    assert FencedFlopsProfiler.version() == "0.1.2"
    monkeypatch.setattr(flops_profiler.importlib.util, "find_spec", lambda name: None)
    assert "pip install 'profstack[all]'" in (FencedFlopsProfiler.unavailable_reason() or "")
    monkeypatch.setattr(flops_profiler, "has_compiled", lambda: True)
    assert "dynamo" in (FencedFlopsProfiler().busy_reason() or "")


def test_the_table_of_functions_is_the_tools_own(before):
    found = counted_functions(tool, torch)
    names = {(owner, name) for owner, name, _ in found}
    assert len(names) == len(found) == 49
    assert {(F, "linear"), (torch, "bmm"), (torch.Tensor, "baddbmm")} <= names
    assert all(formula.__module__ == tool.__name__ for _, _, formula in found)
