"""The kinds of memory: parameters, gradients, optimizer state, activations.

A block has one kind for all its life, and its owner is the innermost mark around the operator that
allocated it: a module's call, a backward function (which belongs to the module whose forward made
it) or an optimizer. The kind follows from the block's life: an activation is alive when the
backward pass begins, a gradient when it ends, optimizer state when the optimizer has ended.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from profstack.guard import is_scripts
from profstack.models import instances_of
from profstack.readers.device_gaps import at
from profstack.readers.memory.blocks import Blocks
from profstack.readers.torchtrace.attribution import Attribution
from profstack.readers.torchtrace.columns import Bools, Ints
from profstack.readers.torchtrace.scopes import (
    BACKWARD,
    EVALUATED,
    FORWARD,
    OPTIMIZED,
    RECOMPUTED,
    REGION,
)
from profstack.storage import vocabulary

PARAMETERS = "parameters"
GRADIENTS = "gradients"
OPTIMIZER_STATE = "optimizer state"
ACTIVATIONS = "activations"
TEMPORARIES = "temporaries"
INPUTS = "inputs"
BUFFERS = "buffers"
HELD = "held by the script"
UNOWNED = "not attributed"
KINDS = (
    *(PARAMETERS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, TEMPORARIES),
    *(INPUTS, BUFFERS, HELD, UNOWNED),
)
NUMBERS = {kind: number for number, kind in enumerate(KINDS)}
# Parts of a step in which an optimizer works.
_OPTIMIZERS = (vocabulary.OPTIMIZER, vocabulary.ZERO_GRAD)
_NOTHING, _CALL, _LOSS_CALL, _PASS, _UPDATE, _EMPTYING = range(6)
_UPDATES = (_UPDATE, _EMPTYING)


@dataclass
class Timeline:
    """The order of outermost calls, backward passes and optimizers in a slice.

    All times in nanoseconds. `starts`, `ends` and `what` are in order of time; `calls` and
    `passes` are those of the outermost calls and of the backward passes alone, as (starts, ends).
    """

    starts: Ints
    ends: Ints
    what: Ints
    calls: tuple[Ints, Ints]
    passes: tuple[Ints, Ints]
    steps: Ints

    def begins_next(self, times: Ints) -> Ints:
        """Return the begin of the next backward pass in the same step; `_NEVER` for none."""
        found = _start_after(times, self.passes[0])
        return np.where(found < _start_after(times, self.steps), found, _NEVER)

    def around(self, times: Ints) -> tuple[Ints, Ints]:
        """Return the last mark before each time and the next one, in the same step."""
        next_ = np.searchsorted(self.starts, times, side="right")
        begun = at(self.steps, np.searchsorted(self.steps, times, side="right") - 1, -_NEVER)
        in_step = at(self.starts, next_ - 1, -_NEVER) >= begun
        before = np.where(in_step, at(self.what, next_ - 1, _NOTHING), _NOTHING)
        in_step = at(self.starts, next_, _NEVER) < _start_after(times, self.steps)
        return before, np.where(in_step, at(self.what, next_, _NOTHING), _NOTHING)

    def loses_next(self, times: Ints) -> Bools:
        """Return whether the next mark after each time, but for optimizers, is a loss or a pass."""
        return np.isin(self.without(*_UPDATES).around(times)[1], (_PASS, _LOSS_CALL))

    def without(self, *kinds: int) -> Timeline:
        """Return it without marks of these kinds."""
        kept = ~np.isin(self.what, kinds)
        return replace(self, starts=self.starts[kept], ends=self.ends[kept], what=self.what[kept])


_NEVER = np.iinfo(np.int64).max


def timeline(
    owned: Attribution, boundaries_ns: Sequence[int], is_loss: Callable[[int], bool]
) -> Timeline:
    """Find the outermost marks of a slice."""
    scopes, events = owned.scopes, owned.events
    inner = (BACKWARD, EVALUATED, OPTIMIZED, RECOMPUTED)
    forward = np.flatnonzero(np.isin(scopes.kind, (FORWARD, REGION)))
    forward = forward[scopes.climb(scopes.above[forward], inner) == 0]
    losses = [number for number in np.unique(scopes.module[forward]).tolist() if is_loss(number)]
    is_loss_call = np.isin(scopes.module[forward], losses)
    backward = np.flatnonzero(owned.in_backward & (scopes.kind > 0))
    above = scopes.above[backward]
    backward = backward[(above == 0) | ~owned.in_backward[np.maximum(above - 1, 0)]]
    backward = backward[np.argsort(events.start[backward], kind="stable")]
    # Backward functions as passes: one lasts until a module is called.
    begun, reached = events.start[backward], np.maximum.accumulate(events.end[backward])
    called = np.searchsorted(np.sort(events.start[forward]), begun)
    first = np.ones(len(begun), np.bool_)
    first[1:] = (begun[1:] > reached[:-1]) & (called[1:] > called[:-1])
    passes = begun[first], reached[np.roll(first, -1)]
    updates = scopes.marks(OPTIMIZED)
    updates = updates[scopes.above[updates] == 0]
    starts = np.concatenate((events.start[forward], passes[0], events.start[updates]))
    ends = np.concatenate((events.end[forward], passes[1], events.end[updates]))
    what = np.concatenate(
        (
            np.where(is_loss_call, _LOSS_CALL, _CALL),
            np.full(len(passes[0]), _PASS),
            np.where(scopes.scope[updates] == vocabulary.ZERO_GRAD, _EMPTYING, _UPDATE),
        )
    )
    order = np.argsort(starts, kind="stable")
    calls = forward[np.argsort(events.start[forward], kind="stable")]
    return Timeline(
        starts[order],
        ends[order],
        what[order],
        (events.start[calls], events.end[calls]),
        passes,
        np.array(boundaries_ns, np.int64),
    )


@dataclass
class Owned:
    """Kind (an index of `KINDS`) and owner of every block, and whether a backward pass took it.

    `owner` is a module's number or a step part's, 0 for none.
    """

    kind: Ints
    owner: Ints
    backward: Bools

    def with_(self, other: Owned) -> Owned:
        """Return these and the others after them."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Owned(*map(np.concatenate, pairs))


def classify(owned: Attribution, blocks: Blocks, when: Timeline) -> Owned:
    """Find kinds and owners of the blocks that were allocated in the slice."""
    seen = blocks.position >= 0
    position = np.maximum(blocks.position, 0)
    scopes, events = owned.scopes, owned.events
    if not len(events):
        return Owned(
            np.full_like(position, NUMBERS[UNOWNED]), np.zeros_like(position), ~seen & False
        )
    begin, end = blocks.begin, blocks.end
    backward = owned.in_backward[position] & seen
    before = when.around(begin)[0]
    work_after = when.without(*_UPDATES).around(begin)[1]
    owner = np.where(seen, owned.owner[position], 0)
    outside = seen & (scopes.nearest[position] == 0)
    owner = np.where(outside, _part(when, begin), owner)
    owner = np.where(backward & (owner == 0), vocabulary.UNATTRIBUTED, owner)
    mark = np.maximum(scopes.nearest[position] - 1, 0)
    update = np.isin(owner, _OPTIMIZERS)
    fresh = outside & (work_after == _CALL) & ~np.isin(before, (_CALL, _LOSS_CALL))
    outlives_pass = end > _end_of(begin, *when.passes)
    # For second derivatives a later pass frees blocks. A gradient that is replaced while gradients
    # are accumulated is not one of these.
    freed = np.maximum(blocks.freed, 0)
    gathering = owned.owner[freed] == vocabulary.ACCUMULATION
    saved_again = (blocks.freed >= 0) & owned.in_backward[freed] & ~gathering
    again = _outermost_again(owned, mark)
    outlives_again = (again > 0) & (end > events.end[np.maximum(again - 1, 0)])
    next_pass = when.begins_next(begin)
    has_pass = next_pass < _NEVER
    called = _end_of(begin, *when.calls)
    step_end = _start_after(begin, when.steps)
    kept = np.where(has_pass, end > next_pass, (end > called) & (called < _NEVER))
    held = outside & ~has_pass & (end > np.minimum(step_end, when.steps[-1]))
    first_call = _start_after(begin, when.calls[0])
    rules = (
        (~seen, UNOWNED),
        (update & (end > events.end[mark]), OPTIMIZER_STATE),
        (update, TEMPORARIES),
        (backward & outlives_again, ACTIVATIONS),
        (backward & (again > 0), TEMPORARIES),
        (backward & outlives_pass & ~saved_again, GRADIENTS),
        (backward & outlives_pass, ACTIVATIONS),
        (backward, TEMPORARIES),
        (fresh & (end > first_call), INPUTS),
        (fresh, TEMPORARIES),
        (kept & (~outside | has_pass), ACTIVATIONS),
        (held, HELD),
    )
    kind = np.select(
        [rule for rule, _ in rules], [NUMBERS[name] for _, name in rules], NUMBERS[TEMPORARIES]
    )
    return Owned(kind, owner, backward)


def _part(when: Timeline, times: Ints) -> Ints:
    """Return the part of the step at each time, which is between two outermost marks.

    Gradients are set to zero before the model is called, or between the loss and its backward pass.
    """
    before, after = when.without(_EMPTYING).around(times)
    work_before, work_after = when.without(*_UPDATES).around(times)
    called = np.isin(before, (_CALL, _LOSS_CALL))
    losing = called & np.isin(after, (_PASS, _LOSS_CALL))
    waiting = (work_before == _NOTHING) & (work_after == _CALL)
    updating = (before == _PASS) & (after == _UPDATE)
    parts = [vocabulary.LOSS, vocabulary.WAIT, vocabulary.BEFORE_OPTIMIZER]
    return np.select([losing, waiting, updating], parts, vocabulary.OUTSIDE)


def _end_of(times: Ints, starts: Ints, ends: Ints) -> Ints:
    """Return the end of the stretch around each time; `_NEVER` where there is none."""
    end = at(ends, np.searchsorted(starts, times, side="right") - 1, -_NEVER)
    return np.where(times <= end, end, _NEVER)


def _start_after(times: Ints, starts: Ints) -> Ints:
    """Return the next start after each time; `_NEVER` where there is none."""
    return at(starts, np.searchsorted(starts, times, side="right"), _NEVER)


def _outermost_again(owned: Attribution, mark: Ints) -> Ints:
    """Return the outermost repeated call around each mark (plus 1), 0 for none."""
    scopes = owned.scopes
    found, current = np.zeros_like(mark), mark + 1
    while True:
        # The repeated calls end at the backward function that needs them.
        climbing = at(scopes.kind, current - 1, 0) == RECOMPUTED
        if not climbing.any():
            return found
        found[climbing] = current[climbing]
        current = np.where(climbing, at(scopes.above, current - 1, 0), 0)


# --- Memory of live tensors at one moment ---------------------------------------------------------

# All objects known to the interpreter are visited once, by type alone: no code of the script runs.
# Tensors that share a block of memory count once, by the block's address and size.
#
# The CPU's allocator does not record the release of a block from before the profile. A weak
# reference to the block's storage does; its callback consists of the interpreter's own functions,
# in which no handler of a signal can run.

# A script may hold more tensors than can be visited in the time of a switch.
MOST_TENSORS = 200_000
# torch's CUDA allocator allocates multiples of this.
CUDA_UNIT = 512
# Optimizers keep their state in dictionaries and lists of tensors, seldom nested.
_DEEPEST = 3
_SPARSE = {
    "torch.sparse_coo": ("_values", "_indices"),
    "torch.sparse_csr": ("values", "crow_indices", "col_indices"),
    "torch.sparse_csc": ("values", "ccol_indices", "row_indices"),
    "torch.sparse_bsr": ("values", "crow_indices", "col_indices"),
    "torch.sparse_bsc": ("values", "ccol_indices", "row_indices"),
}
_clock = time.perf_counter_ns


@dataclass
class Block:
    """A block of memory of tensors.

    `holders` are weak references to its modules; a gradient and an optimizer's state belong to the
    module of their parameter. `died_ns` gets the time (`time.perf_counter_ns`) of its release,
    where that is watched.
    """

    nbytes: int
    kind: str
    shared: bool
    holders: list[weakref.ref[Any]] = field(default_factory=list)
    died_ns: list[int] = field(default_factory=list)
    watched: weakref.ref[Any] | None = None


@dataclass
class Alive:
    """Blocks by device and address, and the totals of the devices' allocators."""

    blocks: dict[tuple[str, int], Block] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    # Tensors whose memory could not be found, and those that were too many.
    unread: int = 0
    left_out: int = 0


def find_alive(*, watched: bool = False) -> Alive:
    """Find all blocks of live tensors; with `watched` those of the CPU record their release."""
    torch = sys.modules["torch"]
    cuda: Any = torch.cuda
    # No mode or subclass of the script may see the calls.
    with torch._C.DisableTorchFunction():
        alive = _Walk(torch, watched).found()
        for number in range(cuda.device_count() if cuda.is_initialized() else 0):
            if total := cuda.memory_allocated(number):
                alive.totals[f"cuda:{number}"] = total
    return alive


class _Walk:
    """A visit of all live objects."""

    def __init__(self, torch: Any, watched: bool) -> None:
        self._torch, self._watched = torch, watched
        self._bases = (torch.nn.Module, torch.optim.Optimizer, torch.Tensor)
        self._base = torch._C.TensorBase
        self._address = torch._C._data_address
        self._alive = Alive()
        # By identity of a parameter, while the walk holds it: the modules it belongs to.
        self._holders: dict[int, list[weakref.ref[Any]]] = {}

    def found(self) -> Alive:
        """Find what is alive, the most specific kinds first."""
        modules, optimizers, tensors = self._by_type()
        parameters = dict(self._parameters(modules, optimizers))
        for parameter in parameters.values():
            self._add(parameter, PARAMETERS, parameter)
        # Without a module or an optimizer the script itself updates tensors with gradients.
        loose, parameter_type = not parameters, self._torch.nn.Parameter
        leaves = [tensor for tensor in tensors if self._is_learned(tensor)]
        for leaf in leaves:
            if id(leaf) not in parameters and (loose or issubclass(type(leaf), parameter_type)):
                self._add(leaf, PARAMETERS, None)
        for leaf in {**parameters, **{id(leaf): leaf for leaf in leaves}}.values():
            self._add(leaf, GRADIENTS, leaf)
        for optimizer in optimizers:
            for parameter, state in _items(_own(optimizer, "state")):
                for tensor in self._tensors_in(state):
                    self._add(tensor, OPTIMIZER_STATE, parameter)
        for module in modules:
            for _, buffer in _items(_own(module, "_buffers")):
                if self._is_tensor(buffer):
                    self._holders.setdefault(id(buffer), []).append(weakref.ref(module))
                    self._add(buffer, BUFFERS, buffer)
        for tensor in tensors:
            self._add(tensor, HELD, None)
        return self._alive

    def _by_type(self) -> tuple[list[Any], list[Any], list[Any]]:
        """Return all live modules, optimizers and tensors, in order of age."""
        ours = instances_of(*self._bases)
        modules, optimizers, tensors = (
            [thing for thing in ours if issubclass(type(thing), base)] for base in self._bases
        )
        self._alive.left_out = max(len(tensors) - MOST_TENSORS, 0)
        return modules, optimizers, tensors[:MOST_TENSORS]

    def _parameters(self, modules: list[Any], optimizers: list[Any]) -> Iterator[tuple[int, Any]]:
        """Yield parameters by identity; those of modules first, which become their holders."""
        for module in modules:
            for _, parameter in _items(_own(module, "_parameters")):
                if self._is_tensor(parameter):
                    self._holders.setdefault(id(parameter), []).append(weakref.ref(module))
                    yield id(parameter), parameter
        for optimizer in optimizers:
            for group in _listed(_own(optimizer, "param_groups")):
                for name, parameters in _items(group):
                    if name == "params":
                        yield from ((id(each), each) for each in self._tensors_in(parameters))

    # The handlers here are no `Guard`s: they run once for each of the script's tensors.

    def _is_learned(self, tensor: Any) -> bool:
        """Return whether it is a leaf that accumulates gradients."""
        try:
            leaf = self._base.is_leaf.__get__(tensor)
            return bool(leaf and self._base.requires_grad.__get__(tensor))
        except Exception as error:
            if is_scripts(error):
                raise
            return False

    def _add(self, tensor: Any, kind: str, of: Any) -> None:
        """Add the block of a tensor, or of its gradient, with the holders of `of`."""
        try:
            if kind == GRADIENTS:
                # A tensor that is no leaf has no gradient, and torch warns on access.
                is_leaf = self._base.is_leaf.__get__(tensor)
                tensor = self._base.grad.__get__(tensor) if is_leaf else None
            for part in self._parts(tensor) if tensor is not None else ():
                self._add_block(part, kind, self._holders.get(id(of), ()))
        except Exception as error:
            if is_scripts(error):
                raise
            # A tensor under a transform, or of a library with its own layout.
            self._alive.unread += 1

    def _parts(self, tensor: Any) -> Iterator[Any]:
        """Yield the tensors that have the memory: the tensor, or its parts."""
        layout = str(self._base.layout.__get__(tensor))
        flatten = getattr(type(tensor), "__tensor_flatten__", None)
        if layout in _SPARSE:
            if self._torch._C._len_torch_dispatch_stack():
                raise ValueError("the parts of a sparse tensor cannot be asked for unseen")
            for name in _SPARSE[layout]:
                yield getattr(self._base, name)(tensor)
        elif flatten is not None:
            for name in flatten(tensor)[0]:
                yield from self._parts(getattr(tensor, name))
        elif layout == "torch.strided":
            yield tensor

    def _add_block(self, tensor: Any, kind: str, holders: Any) -> None:
        # Not `data_ptr`: that copies a copy-on-write tensor.
        address = self._address(tensor)
        if not address:
            return
        device = self._base.device.__get__(tensor)
        key = (str(device), address)
        known = self._alive.blocks.get(key)
        if known is not None:
            if known.kind == kind:
                known.holders.extend(holders)
            return
        storage = self._base.untyped_storage(tensor)
        nbytes = storage.nbytes()
        if device.type == "cuda":
            nbytes = -(-nbytes // CUDA_UNIT) * CUDA_UNIT
        shared = device.type == "cpu" and storage.is_shared()
        if shared and kind == HELD:
            # Batches from the workers of a DataLoader are in shared memory.
            kind = INPUTS
        block = self._alive.blocks[key] = Block(nbytes, kind, shared, list(holders))
        if self._watched and device.type == "cpu":
            # The callback adds the time to the list without running a line of Python.
            add_time = partial(next, map(block.died_ns.append, iter(_clock, None)))
            block.watched = weakref.ref(storage, add_time)

    def _tensors_in(self, value: Any, depth: int = 0) -> Iterator[Any]:
        if self._is_tensor(value):
            yield value
        elif depth < _DEEPEST:
            for inner in (*(each for _, each in _items(value)), *_listed(value)):
                yield from self._tensors_in(inner, depth + 1)

    def _is_tensor(self, thing: Any) -> bool:
        return issubclass(type(thing), self._torch.Tensor)


def _own(thing: Any, name: str) -> Any:
    """Return an attribute of an object, without its class's own attribute access."""
    return object.__getattribute__(thing, "__dict__").get(name)


def _items(value: Any) -> list[tuple[Any, Any]]:
    return list(dict.items(value)) if issubclass(type(value), dict) else []


def _listed(value: Any) -> list[Any]:
    if issubclass(type(value), tuple):
        return list(tuple.__iter__(value))
    return list(list.__iter__(value)) if issubclass(type(value), list) else []
