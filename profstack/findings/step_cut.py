"""Shares of a clean step by what its own thread did.

The times come from the torch layer's slice, in which every nanosecond of a step belongs to one
module or part of the step. Four things are known better than from there, and take precedence:

- how long a step waits before its first work is measured in the clean steps themselves. The other
  shares are scaled to what that leaves, since a profiler slows operators and not a sleep;
- what reads and writes files (by cProfile) is no wait for data and no Python;
- what the loop does after the optimizer's step, and is no step's input, is no wait. Where the
  clean steps ask torch's DataLoader they tell how long it takes, and what goes by before;
- for how long the thread did not run is read from its clock in the clean slices. What the wait
  does not explain of it is taken from the times that no operator covers: only there can a thread
  of the CPU be idle unseen. It is a lower bound: idle parts of the wait are not counted.

Python is time outside operators: of modules in their forward, of the optimizer, and between the
parts of a step. What autograd's engine does between operators of a backward pass is none.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, NamedTuple

from profstack.analysis.modules import TIMED
from profstack.code_owner import BUILTIN_FILE
from profstack.findings import reading
from profstack.storage import vocabulary
from profstack.storage.reader import (
    FEWEST_STEPS,
    LARGEST_FACTOR,
    Recorded,
    Row,
    Selection,
    added,
    sums,
)
from profstack.storage.schema.report import Place, Report
from profstack.storage.schema.rows import FunctionRow, ModuleLineRow, StepRow

# Why the torch layer has no slice however many steps a script makes, and what helps then.

# What helps where the layer's slices were too few, too short or too slow.
MORE_STEPS = "let the script make more steps, or longer ones"
LONGER_STEPS = "longer steps are slowed less"
_UNDER_NSYS = "run the script once without nsys, and import the report into that recording"


def without_torch(report: Report) -> tuple[str, str | None] | None:
    """Return why it was not armed, and what to do, where anything helps; None where it was."""
    row = next((row for row in report["layers"] if row["name"] == "torch"), None)
    if row is None:
        ways = "--light, --layers and --skip, or layers= of a Session"
        return "the torch layer was not asked for", f"leave out {ways}"
    if row["status"] not in ("skipped", "unavailable", "failed"):
        return None
    because = f" ({row['reason']})" if row["reason"] else ""
    under_nsys = any(each["slug"] == "under-nsys" for each in report["warnings"])
    step = _UNDER_NSYS if row["status"] == "skipped" and under_nsys else None
    return f"the torch layer is {row['status']}{because}", step


def had_all_slices(report: Report) -> bool:
    """Whether the run's steps were enough for every slice, so that more would change nothing."""
    return any(row["kind"] == "watch" and row.get("round") != 0 for row in report["slices"])


def unusable(timed: Selection | None, report: Report) -> tuple[str | None, str | None]:
    """Return why the torch layer's slices say nothing of a clean step, and what helps."""
    no_slice = "the torch layer has no slice of these steps", MORE_STEPS
    if timed is None:
        return without_torch(report) or no_slice
    if not timed.wall_s:
        return no_slice
    if reading.is_profiled(report):
        return None, None
    if timed.paused:
        return "the torch layer's slice holds a rare pause", MORE_STEPS
    effect = {row["layer"]: row for row in report["probe_effect"]}.get("torch")
    factor, note = (effect["factor"], effect["note"]) if effect else (None, None)
    done = had_all_slices(report)
    more = None if done else MORE_STEPS
    if timed.steps < FEWEST_STEPS:
        return f"the torch layer saw {timed.in_words()} and {FEWEST_STEPS} are needed", more
    if effect is None or factor is None:
        return f"how much the torch layer slowed its steps is not known: {note}", more
    if factor <= LARGEST_FACTOR:
        return None, None
    if note is not None:
        # What the steps took more than clean ones is not the layer's doing alone.
        return f"the torch layer's slices tell nothing of a clean step: {note}", more
    low, high = effect["ci95_low"], effect["ci95_high"]
    if low is not None and low <= 1:
        # Steps that differ so much among themselves, or other work, explain it all.
        return (
            f"how much the torch layer slowed its steps is not known: they took {factor:.1f} times "
            f"as long as the clean ones beside them (95 %: {low:.1f} to {high:.1f} times)"
        ), more
    slowed = f"the torch layer slowed its steps {factor:.1f} times, which is too much"
    return slowed, LONGER_STEPS if done else more


def clean_wait_share(report: Report, fewest: int = FEWEST_STEPS) -> float | None:
    """Return the share of the clean steps' time that went by before their first work."""
    known = _waited(report)
    return _share(known, "wait_s") if len(known) >= fewest else None


class CleanLoader(NamedTuple):
    """What torch's DataLoader is to the wait of the clean steps, as shares of their time.

    `before` went by before it was asked for a batch, `inside` until the batches were there.
    """

    before: float
    inside: float


def clean_loader(report: Report, fewest: int = FEWEST_STEPS) -> CleanLoader | None:
    """Return it as the clean steps measured it; None where they did not ask a DataLoader."""
    known = _waited(report)
    if len(known) < fewest or all(row.get("loader_s") is None for row in known):
        return None
    return CleanLoader(_share(known, "before_loader_s"), _share(known, "loader_s"))


def _waited(report: Report) -> list[StepRow]:
    counted = set(report["benchmark"]["counted_steps"])
    rows = (row for row in report["tables"]["steps"] if row["index"] in counted)
    return [row for row in rows if row["wait_s"] is not None and row["wall_s"]]


def _share(rows: Sequence[StepRow], column: str) -> float:
    times = (float(row.get(column) or 0.0) for row in rows)  # type: ignore[arg-type]
    return sum(times) / reading.total(rows, "wall_s")


# Work of a loop after the optimizer's step that no step takes as its input: metrics, logs, averages
# of weights, callbacks. It goes by before the next step's first work, as the making of a batch
# does. It is recognised by the text of the loop over the steps: a statement after the one with the
# optimizer's step makes no input where nothing that it binds, or could change, is read by the
# statements before. Where a library has the loop the names of its hooks tell.

# What Lightning, Trainer and loops like Keras' call once a step has been made.
_HOOKS = frozenset(
    ("on_train_batch_end", "on_batch_end", "on_step_end", "on_log", "on_train_step_end")
)

Loop = ast.For | ast.AsyncFor | ast.While

# What is asked of models and optimizers alone.
_OF_TRAINING = frozenset(("step", "zero_grad", "parameters", "train", "eval", "state_dict"))
# What a file defines or imports.
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.alias)


class AfterStep(NamedTuple):
    """The share of the lines' time outside a step's work that is no input's, how much of that is
    outside operators, the line with most of it, the function of the user's that this is in where
    the loop calls it, and all such functions.

    Of hooks `seconds` is their time per clean step, and `line` the definition of the longest.
    `until_asked` says that nothing else comes before the loop's next item is asked for.
    """

    share: float
    outside_operators: float
    line: Place
    name: str | None
    functions: frozenset[reading.FunctionKey]
    seconds: float | None = None
    until_asked: bool = False


def after_step(report: Report) -> AfterStep | None:
    """Return what such statements take; None where there are none, or no lines were followed."""
    rows, names = report["tables"]["module_lines"], vocabulary.STEP_PARTS
    step = optimizer_line(report)
    # The statements after the step in its loop that make no input.
    text = reading.text_of_file(report, step["file"]) if step is not None else None
    after = _without_input(text, step["line"]) if text and step is not None else _NOTHING_AFTER
    statements = after.statements
    graph = reading.CallGraph(report)
    own = {key for key, row in graph.rows.items() if row["own"]}
    functions = _called(graph, own, statements)
    hooks = {key for key in own if key.name in _HOOKS}
    functions |= hooks | (graph.below(hooks) & own)
    seconds, hook = _time_of_hooks([graph.rows[key] for key in hooks])
    places = {(step["file"], at) for each in statements for at in _lines(each) if step is not None}
    for key in functions:
        places |= {(row["file"], row["line"]) for row in graph.lines_of(key)}
    idle = [row for row in rows if row["module"] in (None, names[vocabulary.WAIT])]
    followed = [row for row in idle if (row["file"], row["line"]) in places]
    whole, taken = sum(map(reading.line_s, idle)), sum(map(reading.line_s, followed))
    if not whole or not taken:
        return None
    python = reading.total(followed, "python_s") / taken
    if hook is not None and not statements:
        # The line that calls the library has all of its Python, slowed as the line is followed.
        hook_name = reading.qualified_name(report, hook, hook["name"])
        return AfterStep(taken / whole, python, hook, hook_name, frozenset(functions), seconds)
    line = max(followed, key=reading.line_s)
    around, name = graph.function_around(line), None
    if around is not None and around in functions:
        name = reading.qualified_name(report, graph.rows[around], around.name)
    share, all_of_it = taken / whole, after.until_asked
    return AfterStep(share, python, line, name, frozenset(functions), until_asked=all_of_it)


def _time_of_hooks(rows: Sequence[FunctionRow]) -> tuple[float | None, FunctionRow | None]:
    """Return what hooks take of a clean step with all that they call, and the longest of them."""
    first = reading.largest(rows, "total_s")
    if first is None or not first["self_s"] or first["calibrated_s"] is None:
        return None, first
    return reading.total(rows, "total_s") * first["calibrated_s"] / first["self_s"], first


class _After(NamedTuple):
    """Statements of a loop after the optimizer's step that make no input, and whether these are all
    that comes before its next item is asked for.
    """

    statements: tuple[ast.stmt, ...]
    until_asked: bool


_NOTHING_AFTER = _After((), False)


def optimizer_line(report: Report) -> ModuleLineRow | None:
    """Return the user's own line with most of the optimizer's time."""
    rows, name = report["tables"]["module_lines"], vocabulary.STEP_PARTS[vocabulary.OPTIMIZER]
    return max((row for row in rows if row["module"] == name), key=reading.line_s, default=None)


def loop_around(tree: ast.AST, line: int) -> Loop | None:
    """Return the innermost loop with a line in it."""
    loops = (node for node in ast.walk(tree) if isinstance(node, Loop))
    around = (loop for loop in loops if line in _lines(loop))
    return max(around, key=lambda node: node.lineno, default=None)


@cache
def _without_input(text: str, step: int) -> _After:
    tree = reading.parse_source(text)
    loop = loop_around(tree, step) if tree is not None else None
    if tree is None or loop is None:
        return _NOTHING_AFTER
    nodes = list(ast.walk(tree))
    # Several statements on one line have one time.
    last = [at for at, each in enumerate(loop.body) if step in _lines(each)] or [len(loop.body)]
    header = [loop.test] if isinstance(loop, ast.While) else [loop.iter, loop.target]
    before, after = [*header, *loop.body[: last[-1] + 1]], loop.body[last[-1] + 1 :]
    read, bound = _names(before, ast.Load), _names(before, ast.Store)
    # Objects that live on from step to step could be changed by a statement that reads them;
    # modules, classes and functions that the file defines or imports are taken not to be, and what
    # is but called or stepped (a model, an optimizer) makes no input.
    named = (node for node in nodes if isinstance(node, _NAMED))
    defined = {(getattr(node, "asname", None) or node.name).split(".")[0] for node in named}
    lasting = read - bound - defined - _workers(before)
    statements = tuple(
        each
        for each in after
        if not _names([each], ast.Store) & read
        and not _names([each], ast.Load) & lasting
        # Gradients set to zero are the next step's, wherever that stands.
        and not any(getattr(node, "attr", None) == "zero_grad" for node in ast.walk(each))
    )
    return _After(statements, isinstance(loop, ast.For) and len(statements) == len(after))


def _names(nodes: Iterable[ast.AST], kind: type[ast.expr_context]) -> set[str]:
    inside = (each for node in nodes for each in ast.walk(node))
    return {each.id for each in inside if isinstance(each, ast.Name) and isinstance(each.ctx, kind)}


def _workers(nodes: Iterable[ast.AST]) -> set[str]:
    """Return names that are read but to be called with arguments, or to make a step of training."""
    inside = [each for node in nodes for each in ast.walk(node)]
    called = {id(each.func) for each in inside if isinstance(each, ast.Call) and each.args}
    of_steps = (each for each in inside if isinstance(each, ast.Attribute))
    called |= {id(each.value) for each in of_steps if each.attr in _OF_TRAINING}
    names = [each for each in inside if isinstance(each, ast.Name)]
    others = {each.id for each in names if id(each) not in called}
    return {each.id for each in names} - others


def _lines(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _called(
    graph: reading.CallGraph, own: set[reading.FunctionKey], statements: Sequence[ast.stmt]
) -> set[reading.FunctionKey]:
    """Return the user's own functions that statements call by name, and those that these call."""
    nodes = (each for statement in statements for each in ast.walk(statement))
    called = (node.func for node in nodes if isinstance(node, ast.Call))
    # The name of a plain call, or that of the method.
    names = {getattr(each, "id", getattr(each, "attr", None)) for each in called}
    named = {key for key in own if key.name in names}
    return named | (graph.below(named) & own)


# Reading and writing of files and sockets, outside the loading of data: the own time of the
# functions that do so, by cProfile: built-in functions of files, sockets and databases, and torch's
# own way of saving. Time that a `DataLoader` calls for is loading, and belongs to the wait; where a
# function is called from several places its time is divided as the callers' edges are.

# Methods of files and sockets, and functions of the system, as cProfile names them.
_BUILT_IN = re.compile(
    r"<method '(?:read\w*|write\w*|flush|close|truncate|recv\w*|send\w*|connect|accept|tofile"
    r"|execute\w*|commit|fetch\w*)' of '(?:_?io\.|_?socket\.|_?ssl\.|sqlite3\.|numpy\.|mmap\.)"
    r"|<built-in method (?:_?io\.open\w*|(?:posix|nt)\.(?:p?read\w*|p?write\w*|open|close|f\w*sync"
    r"|sendfile|stat|lstat|listdir|scandir|replace|rename|unlink|mkdir)|numpy\.\w*fromfile"
    r"|builtins\.print|torch\._C\.(?:write_\w+|get_(?:record|storage)\w*))>"
    r"|' of 'torch\._C\.PyTorchFile(?:Reader|Writer)'"
    r"|<method '(?:dump|load)' of '_pickle\."
)
# Written in Python, but their own time is the opening and closing of archives in C++.
_FILES = re.compile(r"torch[/\\]serialization\.py$")
_LOADERS = re.compile(r"torch[/\\]utils[/\\]data[/\\]")
# Recursion is followed no further than this.
_DEEPEST = 60


class IoTime(NamedTuple):
    """Seconds of a clean step, None with a reason; the user's own function that asks for it, and
    the one that reads or writes most.
    """

    seconds: float | None
    function: FunctionRow | None = None
    heaviest: FunctionRow | None = None
    reason: str | None = None


def io_time(graph: reading.CallGraph) -> IoTime:
    """Return the reading and writing of a step, by cProfile's functions and calls."""
    if not graph.rows:
        return IoTime(None, reason="no slice of cProfile tells which functions a step calls")
    loading = loading_share(graph)
    known = {key: row["calibrated_s"] for key, row in graph.rows.items() if is_io(row)}
    if None in known.values():
        why = "the slices of cProfile are too short, slowed too much or hold a pause"
        return IoTime(None, reason=why)
    outside = {key: (time or 0.0) * (1 - loading(key)) for key, time in known.items()}
    seconds = sum(outside.values())
    if not seconds:
        return IoTime(0.0)
    heaviest = graph.rows[max(outside, key=lambda key: outside[key])]
    return IoTime(seconds, graph.own_caller(outside), heaviest)


def loading_share(graph: reading.CallGraph) -> Callable[[reading.FunctionKey], float]:
    """Return the share of a function's time that the loading of data calls for, by its key."""
    memo: dict[reading.FunctionKey, float] = {}

    def share(key: reading.FunctionKey, depth: int = 0) -> float:
        if _LOADERS.search(key.file):
            return 1.0
        if key not in memo:
            above = graph.callers_s.get(key, {})
            whole = sum(above.values())
            memo[key] = 0.0
            if whole and depth < _DEEPEST:
                parts = (time * share(caller, depth + 1) for caller, time in above.items())
                memo[key] = sum(parts) / whole
        return memo[key]

    return share


def is_io(row: FunctionRow) -> bool:
    """Whether a function's own time is that of reading or writing."""
    if row["file"] == BUILTIN_FILE:
        return _BUILT_IN.search(row["name"]) is not None
    return _FILES.search(row["file"]) is not None


COLLECTIVE = re.compile(r"^(?:gloo|nccl|mpi|ucc|c10d):", re.IGNORECASE)
# What the parts of a step that are no modules belong to.
_PARTS = {
    **dict.fromkeys((vocabulary.OPTIMIZER, vocabulary.ZERO_GRAD), "optimizer"),
    vocabulary.BEFORE_OPTIMIZER: "optimizer",
    vocabulary.LOSS: "loss",
    vocabulary.OUTSIDE: "other",
    vocabulary.UNATTRIBUTED: "python",
}
# Operators in which a host waits for its device: no work of its own.
_WAITS = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero")
# An operator whose call takes less of its own than this is mostly the cost of being called.
SMALL_S = 10e-6
# Work outside modules before their first call is in the clean wait too: from this share on
# the wait is the torch layer's.
_FUNCTIONAL = 0.05


@dataclass
class Cut:
    """Shares of a clean step. `wait` is None where it is not known, `torch` whether the torch
    layer's slice could be used: without it only the wait is known.

    `small` and `communication` are inside the other shares.
    """

    median_s: float
    torch: bool = False
    torch_reason: str | None = None
    # What to do about that, where anything helps.
    torch_step: str | None = MORE_STEPS
    wait: float | None = None
    wait_is: Literal["clean", "calibrated"] = "calibrated"
    has_loader: bool = False
    # What the clean steps themselves tell of the loader.
    loader: CleanLoader | None = None
    # What else comes before the first work, None without a loader; it is inside other shares.
    before_beside_loader: float | None = None
    io: float | None = None
    io_time: IoTime = field(default_factory=lambda: IoTime(None))
    python: float = 0.0
    forward: float = 0.0
    loss: float = 0.0
    backward: float = 0.0
    optimizer: float = 0.0
    idle: float | None = None
    other: float = 0.0
    small: float = 0.0
    small_calls: float = 0.0
    # Time of the operators in which a host waits for its device.
    in_waits: float = 0.0
    communication: float = 0.0
    communication_name: str | None = None
    # A share of the clean step over the same share of the torch layer's slice.
    scale: float = 1.0
    # The loop's work after the optimizer's step, its share, and how much of that is Python.
    after: AfterStep | None = None
    after_step: float = 0.0
    after_python: float = 0.0
    # Without a DataLoader: whether the wait is the making of a batch, and the function with most.
    makes_batch: bool = False
    maker: FunctionRow | None = None


def host_cut(recorded: Recorded, report: Report) -> Cut | None:
    """Return the cut of the report's clean step; None where there is no clean step."""
    median_s = reading.clean_step_s(report)
    if median_s is None:
        return None
    cut = Cut(median_s, io_time=io_time(reading.CallGraph(report)))
    clean_wait, cut.loader = clean_wait_share(report), clean_loader(report)
    timed = recorded.select("torch", TIMED)
    cut.torch_reason, cut.torch_step = unusable(timed, report)
    if cut.torch_reason is not None or timed is None:
        cut.wait, cut.wait_is = clean_wait, "clean"
        return cut
    cut.torch = True
    own = _OwnTimes(recorded, timed)
    _add_wait(cut, own, clean_wait, report)
    _add_parts(cut, own)
    _add_communication(cut, own, report)
    if report["benchmark"]["target"] is not None:
        # The calls of a benchmark wait for no data.
        cut.other, cut.wait = cut.other + (cut.wait or 0.0), 0.0
    _take_io(cut)
    _take_after_step(cut, report)
    _take_idle(cut, own, report)
    return cut


class _OwnTimes:
    """Own times of the torch layer's slices by module or part, as shares of their steps."""

    def __init__(self, recorded: Recorded, timed: Selection) -> None:
        self.timed = timed
        times = recorded.rows("module_times", timed)
        self.forward = self._shares(times, "forward_self_s")
        self.backward = self._shares(times, "backward_self_s")
        self.operators = recorded.rows("operators", timed)
        self.owned = [row for row in self.operators if row["module_id"] is not None]
        self.forward_ops, self.backward_ops = (
            self._shares((row for row in self.owned if bool(row["backward"]) == is_back), "self_s")
            for is_back in (False, True)
        )
        self.loose_ops = self.share(row for row in self.operators if row["module_id"] is None)
        # The backward pass outside operators: autograd's engine, or waiting.
        self.backward_gap = sum(
            max(share - self.backward_ops.get(number, 0.0), 0.0)
            for number, share in self.backward.items()
        )
        # The modules that are losses: named so, and without parameters.
        self.losses = {
            row["module_id"]
            for row in recorded.table("modules")
            if str(row["type"]).lower().endswith(("loss", "criterion")) and not row["parameters"]
        }

    def _shares(self, rows: Iterable[Row], column: str) -> dict[int, float]:
        found = sums(rows, ["module_id"], [column])
        return {number: (totals[column] or 0.0) / self.timed.wall_s for (number,), totals in found}

    def share(self, operators: Iterable[Row]) -> float:
        """Return the share of the steps that operators take themselves."""
        return (added(row["self_s"] for row in operators) or 0.0) / self.timed.wall_s


def _add_wait(cut: Cut, own: _OwnTimes, clean_wait: float | None, report: Report) -> None:
    """Add how long the step waits for data, and what else comes before its first work."""
    traced = min(max(own.forward.get(vocabulary.WAIT, 0.0), 0.0), 1.0)
    outside = own.forward.get(vocabulary.OUTSIDE, 0.0)
    before = wait_alone(clean_wait, traced, own.forward.get(vocabulary.ZERO_GRAD, 0.0), outside)
    cut.wait_is = "calibrated" if before is None else "clean"
    before = traced if before is None else before
    cut.scale = (1 - before) / (1 - traced) if traced < 1 else 0.0
    cut.wait = before
    loaded = [
        row
        for row in report["tables"]["regions"]
        if row["path"].startswith("enumerate(DataLoader)") and row["wall_s"] is not None
    ]
    cut.has_loader = bool(loaded)
    if not loaded or not traced:
        return
    step_s = own.timed.wall_s / own.timed.steps
    in_loader = min(reading.total(loaded, "wall_s") / step_s, traced)
    operators = reading.total(loaded, "operator_s") / step_s
    rest = before * (1 - in_loader / traced)
    if cut.loader is not None and cut.wait_is == "clean":
        rest = max(before - cut.loader.inside, 0.0)
    # Operators outside modules are the loader's, the other work's outside modules, or in the wait
    # beside the loader.
    loose = max(own.loose_ops - operators - outside, 0.0)
    loose = min(loose * before / traced, rest)
    cut.wait = before - rest
    cut.before_beside_loader = rest
    cut.other += loose
    cut.python += rest - loose


def wait_alone(
    clean_wait: float | None, traced: float, zeroed: float, outside: float
) -> float | None:
    """Return the wait of the clean steps less what the torch layer gives to others.

    In clean steps all that comes before the first module's call or backward pass is the wait. The
    torch layer tells gradients set to zero from it (`zeroed`), and the work of functions; of its
    wait (`traced`) a second one within a step is a part, and clean steps have none. None where the
    two differ too much.
    """
    if clean_wait is None or outside > _FUNCTIONAL:
        return None
    with_zero = abs(clean_wait - traced - zeroed) < abs(clean_wait - traced)
    found = clean_wait - zeroed if with_zero else clean_wait
    return min(max(found, 0.0), 1.0) if found >= 0.5 * traced else None


def _add_parts(cut: Cut, own: _OwnTimes) -> None:
    """Add forward, loss, backward and optimizer without their Python, which is one share."""
    names = dict.fromkeys(own.losses, "loss") | _PARTS
    parts: dict[str, float] = defaultdict(float)
    for number, share in own.forward.items():
        if number == vocabulary.WAIT:
            continue
        name, gap = names.get(number, "forward"), 0.0
        if name not in ("python", "other"):
            gap = min(max(share - own.forward_ops.get(number, 0.0), 0.0), share)
        parts[name] += share - gap
        parts["python"] += gap
    parts["backward"] = sum(own.backward.values())
    for name, share in parts.items():
        setattr(cut, name, getattr(cut, name) + share * cut.scale)
    cut.in_waits = own.share(row for row in own.operators if row["name"] in _WAITS) * cut.scale
    for _, totals in sums(
        own.owned, ["name", "shapes", "module_id", "backward"], ("calls", "self_s")
    ):
        share = (totals["self_s"] or 0.0) / own.timed.wall_s * cut.scale
        calls = (totals["calls"] or 0.0) / own.timed.steps
        if share * cut.median_s < SMALL_S * calls:
            cut.small += share
            cut.small_calls += calls


def _add_communication(cut: Cut, own: _OwnTimes, report: Report) -> None:
    """Add collectives between ranks, as far as the steps' thread has nothing else to do then."""
    regions = [
        row
        for row in report["tables"]["regions"]
        if COLLECTIVE.match(row["path"]) and row["wall_s"]
    ]
    named = [row for row in own.operators if COLLECTIVE.match(row["name"])]
    operators = own.share(named)
    if not regions and not operators:
        return
    step_s = own.timed.wall_s / own.timed.steps
    whole = max(reading.total(regions, "wall_s") / step_s, operators)
    room = (own.backward_gap + operators) * cut.scale + cut.python
    cut.communication = min(whole * cut.scale, room)
    longest = reading.largest(regions, "wall_s")
    cut.communication_name = named[0]["name"] if longest is None else longest["path"]


def _take_io(cut: Cut) -> None:
    """Take reading and writing from the wait that no loader explains, then from Python."""
    seconds = cut.io_time.seconds
    if seconds is None:
        return
    whole = seconds / cut.median_s
    cut.io = 0.0
    if not cut.has_loader and cut.wait is not None:
        cut.io = min(whole, cut.wait)
        cut.wait -= cut.io
    from_python = min(whole - cut.io, cut.python)
    cut.python -= from_python
    cut.io += from_python


def _take_after_step(cut: Cut, report: Report) -> None:
    """Take what follows the optimizer's step and makes no input; its files are taken already.

    Beside a loader it is not in the wait, but in what else comes before the first work.
    """
    cut.after = after_step(report) if cut.wait is not None else None
    if cut.after is None or cut.wait is None:
        return
    rest = cut.before_beside_loader
    before = (cut.wait if rest is None else cut.wait + rest) + (cut.io or 0.0)
    taken = cut.after.share * before
    if cut.loader is not None and cut.wait_is == "clean":
        whole = cut.loader.before
        taken = whole if cut.after.until_asked else min(taken, whole)
    taken = min(max(taken - (cut.io or 0.0), 0.0), cut.wait if rest is None else rest)
    if cut.after.seconds is not None:
        taken = min(cut.after.seconds / cut.median_s, cut.wait if rest is None else rest)
    python = taken * cut.after.outside_operators
    if rest is None:
        cut.wait -= taken
    else:
        python = min(python, cut.python)
        taken = python + min(taken - python, cut.other)
        cut.python, cut.other = cut.python - python, cut.other - (taken - python)
    cut.after_step, cut.after_python = taken, python


def _take_idle(cut: Cut, own: _OwnTimes, report: Report) -> None:
    """Take the time in which the thread was idle from what no operator covers."""
    processes = report["processes"]
    off_s, step_s = processes["off_cpu_s"], processes["step_s"]
    if off_s is None or not step_s:
        return
    unexplained = (off_s - (processes["no_core_s"] or 0.0)) / step_s
    unexplained -= (cut.wait or 0.0) + (cut.io or 0.0)
    engine = min(own.backward_gap * cut.scale, cut.backward)
    room = cut.python + cut.after_python + engine
    idle = min(max(unexplained, 0.0), room)
    if idle <= 0:
        return
    cut.idle = idle
    after_idle = idle * cut.after_python / room
    cut.after_step, cut.after_python = cut.after_step - after_idle, cut.after_python - after_idle
    cut.python -= idle * cut.python / room
    cut.backward -= idle * engine / room
