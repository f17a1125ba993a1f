"""flops-profiler behind its fence: the tool's own figures, and a script that notices nothing.

The tool itself is run beside, as its users run it; what it leaves behind is cleaned up here.
"""

from collections import Counter
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from flops_profiler import profiler as tool
from torch import nn
from torch.utils.checkpoint import checkpoint

from profstack.readers.flops.flops_profiler import FencedFlopsProfiler
from tests.support.wrapped import installed_hooks

PATCHED = (torch, torch.Tensor, F)
LISTS = ("module_flop_count", "module_mac_count", "module_profile_lists", "old_functions")


def attributes():
    """Every attribute of what the tool patches, by identity."""
    return {owner: dict(vars(owner)) for owner in (*PATCHED, nn.Module, nn.LSTM, tool)}


def assert_untouched(before, owners=None):
    for owner in owners or before:
        names, now = before[owner], dict(vars(owner))
        assert [name for name in names if now.get(name) is not names[name]] == [], owner
        # Submodules are imported whenever somebody asks for them; copying caches its own.
        new = {name for name in now.keys() - names if not isinstance(now[name], ModuleType)}
        assert new <= {"__slotnames__"}, owner
    assert [len(getattr(tool, name)) for name in LISTS] == [0, 0, 0, 0]


@pytest.fixture(autouse=True, scope="module")
def _dynamo_has_patched():
    """What dynamo replaces in torch, for good, when it is first used."""
    torch.compile(torch.relu, backend="eager")(torch.ones(1))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


@pytest.fixture(autouse=True)
def before():
    """All attributes as they were; what a test leaves behind is an error of the fence."""
    names = attributes()
    yield names
    assert_untouched(names)


def by_the_tool(model, *inputs):
    """The tool's own figure of every module, hooks and patches and all; then cleaned up."""
    names, profiler = attributes(), tool.FlopsProfiler(model)
    try:
        profiler.start_profile()
        model(*inputs)
        paths = model.named_modules(prefix=type(model).__name__)
        counts = {path: module.__flops__ for path, module in paths if module.__flops__}
        profiler.end_profile()
    finally:
        for owner in PATCHED:
            for name in vars(owner).keys() - names[owner]:
                delattr(owner, name)
            for name, value in names[owner].items():
                if vars(owner)[name] is not value:
                    setattr(owner, name, value)
        for name in LISTS:
            getattr(tool, name).clear()
    return counts


@contextmanager
def fenced():
    """A slice behind the fence, with the real hooks on the calls of modules: its `rows`."""
    fence = FencedFlopsProfiler()

    def rows(left_out=()):
        modules = hooks.names.by_number()
        found = [tuple(row.values()) for row in fence.records(3, modules, left_out)]
        assert {(*row[:2], row[4]) for row in found} <= {(3, "flops-profiler", 0)}
        return [(modules[row[2]].path, row[3], *row[5:7]) for row in found]

    def by_path():
        counts = Counter()
        for path, _, _, flop in rows():
            counts[path] += flop or 0
        return {path: flop for path, flop in counts.items() if flop}

    with installed_hooks() as hooks:
        try:
            fence.start()
            hooks.listen(fence)
            yield SimpleNamespace(fence=fence, rows=rows, by_path=by_path, notes=fence.notes)
        finally:
            fence.stop()


def count(model, *inputs):
    with fenced() as result:
        model(*inputs)
    return result


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.ones(1))

    def forward(self, *args):
        return self.function(*args)


def conv_net():
    first = nn.Conv2d(4, 8, 3, stride=2, padding=1)
    second = nn.Conv2d(8, 8, 3, groups=4, dilation=2, bias=False)
    after = (nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    return nn.Sequential(first, nn.BatchNorm2d(8), nn.ReLU(), second, *after, nn.Softmax(-1))


@pytest.mark.parametrize(("make", "shape"), [
    (lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 2)), (5, 6)),
    (conv_net, (2, 4, 24, 24)), (lambda: nn.TransformerEncoderLayer(8, 2, 16), (3, 2, 8)),
])  # fmt: skip
def test_figures_are_the_tools_own(make, shape):
    model, x = make(), torch.ones(shape)
    expected = by_the_tool(model, x)
    assert (count(model, x).by_path(), bool(expected)) == (expected, True)
    # A script that uses the tool itself gets its own figures.
    with fenced() as result:
        assert by_the_tool(model, x) == expected
    assert result.by_path() == expected


def test_rows_are_forward_work_by_function_and_step():
    inner = nn.Linear(4, 4)
    # Work done again in a backward pass is not forward work.
    model = nn.Sequential(Calls(lambda x: checkpoint(inner, x, use_reentrant=False)), nn.ReLU())
    with fenced() as result:
        for number in range(3):
            model(torch.ones(2 + number, 4)).sum().backward()
            result.fence.step_ended(number)
    for left_out, steps, rows in (((), 3, 9), ((0, 2), 1, 3)):
        linear = ("Sequential.0.Linear", "linear", steps, rows * 32)
        assert result.rows(left_out) == [linear, ("Sequential.1", "relu", steps, rows * 4)]
    assert result.notes() == []


def test_what_its_formulas_raise_and_recurrent_layers_have_a_reason():
    for model, shape, function, reason in (
        (nn.ConvTranspose2d(4, 8, 3), (2, 4, 8, 8), "conv_transpose2d", NameError),
        (nn.Conv2d(4, 8, 3, padding="same"), (2, 4, 8, 8), "conv2d", TypeError),
    ):
        x = torch.ones(shape)
        expected = model(x)
        with pytest.raises(reason):
            by_the_tool(model, x)
        with fenced() as result:
            assert torch.equal(model(x), expected)
        assert [flop for _, name, _, flop in result.rows() if name == function] == [None]
        ((slug, text),) = result.notes()
        parts = (f" {function}: " in text, reason.__name__ in text)
        assert (slug, *parts) == ("flops-uncounted", True, True)
    for kind in ("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell"):
        # A recurrent network of rectified units has a function of its own.
        layer = getattr(nn, kind)(4, 8, **{"nonlinearity": "relu"} if kind == "RNN" else {})
        x = torch.ones(2, 4) if kind.endswith("Cell") else torch.ones(3, 2, 4)
        result = count(nn.Sequential(layer), x)
        ((_, _, _, flop),), ((slug, text),) = result.rows(), result.notes()
        assert (slug, flop, "multiply-add" in text) == ("flops-uncounted", None, True)


def test_names_are_patched_in_forward_calls_alone_also_when_the_script_raises(before):
    def fail(x):
        F.relu(x)
        raise KeyError

    model = nn.Sequential(nn.Linear(4, 4), Calls(fail))
    with fenced() as caught:
        with pytest.raises(KeyError):
            model(torch.ones(2, 4))
        assert_untouched(before, PATCHED)
    assert caught.by_path() == {"Sequential.0": 64, "Sequential.1": 8}
    seen = []
    model = Calls(lambda x: (seen.append(F.relu is before[F]["relu"]), F.relu(x))[1])
    with fenced():
        assert_untouched(before, PATCHED)
        loss = model(torch.ones(2, 4, requires_grad=True)).sum()
        assert_untouched(before, PATCHED)
        loss.register_hook(lambda _: seen.append(F.relu is before[F]["relu"]))
        F.relu(loss).backward()
    assert seen == [False, True]
    # Stopped in the middle of a call, and twice.
    fence = FencedFlopsProfiler()
    fence.start()
    fence.enter("module", "Net", nn.Identity())
    assert F.relu is not before[F]["relu"]
    fence.stop()
    assert_untouched(before)
    fence.stop()
    fence.leave("module", "Net")
    fence.enter("module", "Net", nn.Identity())


def test_it_gives_way_to_the_first_compilation(before):
    handler = torch._dynamo.callback.callback_handler

    def compiles(x):
        for starts in handler.start_callbacks:
            starts()
        assert_untouched(before, PATCHED)
        return F.relu(x)

    result = count(nn.Sequential(nn.Linear(4, 4), Calls(compiles)), torch.ones(2, 4))
    assert (result.rows(), handler.start_callbacks) == ([], [])
    assert [slug for slug, _ in result.notes()] == ["gave-way"]
