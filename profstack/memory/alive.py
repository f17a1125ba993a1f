"""What tensors hold at one moment: parameters, gradients, optimizer state, and what else is held.

Everything that the interpreter knows is gone through once, by type alone: no object of the
script's is asked anything that its own code could answer. Tensors that share a block of memory
are counted once, by the block's address and size.

The CPU's allocator does not tell when a block is given back that it gave out before the profile.
A weak reference to the block's storage does; its callback is made of functions of the
interpreter's alone, in which no handler of a signal can run.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from profstack.interrupts import is_scripts
from profstack.liveobjects import instances_of
from profstack.memory.kinds import (
    BUFFERS,
    GRADIENTS,
    HELD,
    INPUTS,
    OPTIMIZER_STATE,
    PARAMETERS,
)

# A script may hold more tensors than can be gone through in the time of a switch.
MOST_TENSORS = 200_000
# torch's CUDA allocator gives out multiples of this.
CUDA_UNIT = 512
# Optimizers keep their state in dictionaries and lists of tensors, seldom one in another.
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
    """A block of memory that tensors lie in.

    `holders` are weak references to the modules it belongs to: that of the parameter for its
    gradient and its optimizer's state. `died_ns` gets the time (`time.perf_counter_ns`) at which
    it is given back, where that is watched.
    """

    nbytes: int
    kind: str
    shared: bool
    holders: list[weakref.ref[Any]] = field(default_factory=list)
    died_ns: list[int] = field(default_factory=list)
    watched: weakref.ref[Any] | None = None


@dataclass
class Alive:
    """Blocks by device and address, and what devices' allocators say that is alive in all."""

    blocks: dict[tuple[str, int], Block] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    # Tensors whose memory could not be told, and those that were too many.
    unread: int = 0
    left_out: int = 0


def find_alive(*, watched: bool = False) -> Alive:
    """All blocks that live tensors lie in; with `watched` those of the CPU tell when they die."""
    torch = sys.modules["torch"]
    # Neither a mode nor a subclass of the script's is to hear of it.
    with torch._C.DisableTorchFunction():
        return _Walk(torch, watched).found()


class _Walk:
    """Goes through all live objects once."""

    def __init__(self, torch: Any, watched: bool) -> None:
        self._torch, self._watched = torch, watched
        self._base = torch._C.TensorBase
        self._address = torch._C._data_address
        self._alive = Alive()
        # By identity of a parameter, while the walk holds it: the modules it belongs to.
        self._holders: dict[int, list[weakref.ref[Any]]] = {}

    def found(self) -> Alive:
        """What is alive, the more telling kinds first."""
        modules, optimizers, tensors = self._by_type()
        parameters = dict(self._parameters(modules, optimizers))
        for parameter in parameters.values():
            self._add(parameter, PARAMETERS, parameter)
        # Without a module or an optimizer the script itself updates what gathers gradients.
        loose = not parameters
        leaves = [tensor for tensor in tensors if self._is_learned(tensor)]
        for leaf in leaves:
            if id(leaf) not in parameters and (loose or self._is_parameter(leaf)):
                self._add(leaf, PARAMETERS, None)
        for leaf in {**parameters, **{id(leaf): leaf for leaf in leaves}}.values():
            self._add_gradient(leaf)
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
        self._alive.totals = self._totals()
        return self._alive

    def _by_type(self) -> tuple[list[Any], list[Any], list[Any]]:
        """All live modules, optimizers and tensors, in order of age."""
        torch = self._torch
        bases = (torch.nn.Module, torch.optim.Optimizer, torch.Tensor)
        ours = instances_of(*bases)
        modules, optimizers, tensors = (
            [thing for thing in ours if issubclass(type(thing), base)] for base in bases
        )
        self._alive.left_out = max(len(tensors) - MOST_TENSORS, 0)
        return modules, optimizers, tensors[:MOST_TENSORS]

    def _parameters(self, modules: list[Any], optimizers: list[Any]) -> Iterator[tuple[int, Any]]:
        """Parameters by identity; of modules first, which they are remembered to belong to."""
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

    def _is_learned(self, tensor: Any) -> bool:
        """Whether it is a leaf that gathers gradients."""
        try:
            leaf = self._base.is_leaf.__get__(tensor)
            return bool(leaf and self._base.requires_grad.__get__(tensor))
        except Exception as error:
            if is_scripts(error):
                raise
            return False

    def _is_parameter(self, tensor: Any) -> bool:
        return issubclass(type(tensor), self._torch.nn.Parameter)

    def _add_gradient(self, parameter: Any) -> None:
        try:
            leaf = self._base.is_leaf.__get__(parameter)
            # One that is no leaf has no gradient, and torch warns of the question.
            gradient = self._base.grad.__get__(parameter) if leaf else None
        except Exception as error:
            if is_scripts(error):
                raise
            self._alive.unread += 1
            return
        if gradient is not None:
            self._add(gradient, GRADIENTS, parameter)

    def _add(self, tensor: Any, kind: str, of: Any) -> None:
        """Count the block that a tensor lies in, and what holds it: the holders of `of`."""
        try:
            for part in self._parts(tensor):
                self._add_block(part, kind, self._holders.get(id(of), ()))
        except Exception as error:
            if is_scripts(error):
                raise
            # One under a transform, or of a library that lays tensors out in its own way.
            self._alive.unread += 1

    def _parts(self, tensor: Any) -> Iterator[Any]:
        """The tensors that have the memory: the tensor, or what it is made of."""
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
        # Not `data_ptr`: that makes a copy of what is to be copied when it is written to.
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
            # Batches come from the workers of a DataLoader by memory that is shared.
            kind = INPUTS
        block = self._alive.blocks[key] = Block(nbytes, kind, shared, list(holders))
        if self._watched and device.type == "cpu":
            block.watched = weakref.ref(storage, _noting(block.died_ns))

    def _tensors_in(self, value: Any, depth: int = 0) -> Iterator[Any]:
        if self._is_tensor(value):
            yield value
        elif depth < _DEEPEST:
            for inner in (*(each for _, each in _items(value)), *_listed(value)):
                yield from self._tensors_in(inner, depth + 1)

    def _is_tensor(self, thing: Any) -> bool:
        return issubclass(type(thing), self._torch.Tensor)

    def _totals(self) -> dict[str, int]:
        cuda = self._torch.cuda
        if not cuda.is_initialized():
            return {}
        counts = {f"cuda:{n}": cuda.memory_allocated(n) for n in range(cuda.device_count())}
        return {device: count for device, count in counts.items() if count}


def _noting(times: list[int]) -> Callable[[Any], Any]:
    """A callback that adds the time to a list, without a line of Python being run."""
    return partial(next, map(times.append, iter(_clock, None)))


def _own(thing: Any, name: str) -> Any:
    """What an object has under a name, read past whatever its class makes of the question."""
    return object.__getattribute__(thing, "__dict__").get(name)


def _items(value: Any) -> list[tuple[Any, Any]]:
    return list(dict.items(value)) if issubclass(type(value), dict) else []


def _listed(value: Any) -> list[Any]:
    if issubclass(type(value), tuple):
        return list(tuple.__iter__(value))
    return list(list.__iter__(value)) if issubclass(type(value), list) else []
