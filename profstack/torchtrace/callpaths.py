"""One tree of a step: Python functions, the operators they call, and the kernels these launch.

In a profile with stacks the calls of functions are events as operators are, on the same clock, so
that what lies inside what is known exactly. Events are merged by their path: the same function
called twice from the same place is one node with two calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np

from profstack.regions import RANGE_PREFIX, STEP_PARTS, UNATTRIBUTED
from profstack.torchtrace.attribution import Attribution, attribute
from profstack.torchtrace.callees import (
    FUNCTION,
    KERNEL,
    OPERATOR,
    OURS,
    SHOWN,
    Callee,
    called_functions,
    called_texts,
)
from profstack.torchtrace.eventkinds import (
    DEVICE_KINDS,
    HOST_KINDS,
    OPERATOR_KIND,
    PYTHON_KIND,
    kinds_of,
)
from profstack.torchtrace.events import (
    EVALUATE,
    Bools,
    Interned,
    Ints,
    clip_to_steps,
    column,
    integers,
    of_observed_thread,
    read_host,
)

BACKWARD_OF = "backward of "
_S = 1e-9


@dataclass
class Node:
    """One node of the tree; times in nanoseconds."""

    callee: Callee
    parent: Node | None
    calls: int = 0
    total: int = 0
    inside: int = 0
    device: int = 0
    children: dict[Any, Node] = field(default_factory=dict)

    def child(self, callee: Callee) -> Node:
        """The node of what it calls, made at the first call."""
        key = (callee.kind, callee.name, callee.file, callee.line)
        found = self.children.get(key)
        if found is None:
            found = self.children[key] = Node(callee, self)
        return found

    def below(self) -> Iterator[Node]:
        """All nodes below it, callers before callees, in the order of their first calls."""
        waiting = list(reversed(self.children.values()))
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children.values()))


def path_records(
    events: Sequence[Any],
    boundaries_ns: Sequence[int],
    modules: Mapping[int, Any],
    index: int,
    *,
    device: bool,
) -> list[dict[str, Any]]:
    """Rows of `call_paths` of a slice with stacks, callers before what they call.

    `events` are all raw events of a profile that began with `SLICE_RANGE`, `boundaries_ns` the
    edges of its steps, `modules` the names of the modules by number; `device` says that one was
    in use, and times of kernels are known.
    """
    kinds = kinds_of(events)
    observed = of_observed_thread(events).tolist()
    each = list(zip(events, kinds, observed, strict=True))
    functions = _in_step(
        [event for event, kind, on in each if on and kind == PYTHON_KIND], boundaries_ns
    )
    host = read_host([event for event, kind, on in each if on and kind in HOST_KINDS])
    clip_to_steps(host, boundaries_ns)
    owned = attribute(host, boundaries_ns, lambda number: modules[number].is_loss)
    names = Interned(called_texts(functions), len(functions))
    callees = called_functions(names.values)
    operators = _operators(owned)
    of_function = names.ids.astype(np.int64)
    timeline = _Timeline.of(owned, operators, functions, of_function, len(callees), boundaries_ns)
    callees += [Callee(OPERATOR, name) for name in host.names.values]
    root = Node(Callee(FUNCTION, ""), None)
    of_event = _grow(root, timeline, callees, _backward_names(owned, modules))
    if device:
        kernels = [event for event, kind, _ in each if kind in DEVICE_KINDS]
        _hang(root, owned, operators, of_event, kernels)
    return _rows(root, index, device=device)


def _in_step(events: Sequence[Any], boundaries_ns: Sequence[int]) -> list[Any]:
    """The events that reach into the step: switching the profiler on and off is calls too."""
    start = integers(events, "start_ns")
    end = start + integers(events, "duration_ns")
    inside = (end > boundaries_ns[0]) & (start < boundaries_ns[-1])
    return list(compress(events, inside.tolist()))


def _backward_names(owned: Attribution, modules: Mapping[int, Any]) -> dict[int, Callee]:
    """For every evaluation of a backward function, by position: the node of whose work it is."""
    evaluated = owned.events.names.where(lambda name: name.startswith(EVALUATE))
    owners = owned.owner[evaluated].tolist()
    made = {
        owner: Callee(OPERATOR, BACKWARD_OF + _owner_name(owner, modules)) for owner in set(owners)
    }
    return {
        position: made[owner]
        for position, owner in zip(np.flatnonzero(evaluated).tolist(), owners, strict=True)
    }


def _owner_name(owner: int, modules: Mapping[int, Any]) -> str:
    return modules[owner].path if owner > 0 else STEP_PARTS.get(owner, STEP_PARTS[UNATTRIBUTED])


# -- the tree ----------------------------------------------------------------------------------


def _operators(owned: Attribution) -> Ints:
    """Positions of the operators among the host's events: no ranges, which nobody calls."""
    events = owned.events
    kinds = Interned(kinds_of(events.raw(np.arange(len(events)))), len(events))
    chosen = kinds.where(lambda kind: kind == OPERATOR_KIND) & ~events.memory
    chosen &= ~events.names.where(lambda name: name.startswith(RANGE_PREFIX))
    return np.flatnonzero(chosen)


@dataclass
class _Timeline:
    """Calls and operators in the order in which they begin, callers before callees.

    `callee` numbers what was called; `position` is an operator's among the host's events, else
    -1; `begun` tells those that began in the step from those that were running before.
    """

    thread: Ints
    start: Ints
    end: Ints
    callee: Ints
    position: Ints
    begun: Bools

    @classmethod
    def of(
        cls,
        owned: Attribution,
        operators: Ints,
        events: Sequence[Any],
        function: Ints,
        functions: int,
        boundaries_ns: Sequence[int],
    ) -> _Timeline:
        """Both kinds of events together, cut off at the step's edges."""
        host, first, last = owned.events, boundaries_ns[0], boundaries_ns[-1]
        begin = integers(events, "start_ns")
        start = np.concatenate((begin, host.start[operators]))
        until = np.concatenate((begin + integers(events, "duration_ns"), host.end[operators]))
        thread = np.concatenate((integers(events, "start_thread_id"), host.thread[operators]))
        called = host.names.ids[operators].astype(np.int64) + functions
        callee = np.concatenate((function, called))
        position = np.concatenate((np.full(len(events), -1, np.int64), operators))
        inside = np.flatnonzero((until > first) & (start < last))
        # Of two that begin together the longer one calls, and of equal ones the function.
        keys = (position[inside], -until[inside], start[inside], thread[inside])
        order = inside[np.lexsort(keys)]
        return cls(
            thread[order],
            np.maximum(start[order], first),
            np.minimum(until[order], last),
            callee[order],
            position[order],
            start[order] >= first,
        )


def _grow(
    root: Node,
    timeline: _Timeline,
    callees: Sequence[Callee],
    backward: Mapping[int, Callee],
) -> dict[int, Node]:
    """Add every event to the tree; gives the nodes of the operators, by position.

    What ends after its caller, since a clock was read between the two, ends with it.
    """
    of_event: dict[int, Node] = {}
    # What is going on: its end, its node or its caller's, and whether it is profstack's.
    going: list[tuple[int, Node, bool]] = []
    thread = None
    columns = (timeline.thread, timeline.start, timeline.end, timeline.callee, timeline.position)
    rows = zip(*(each.tolist() for each in (*columns, timeline.begun)), strict=True)
    for on, start, end, number, position, begun in rows:
        if on != thread:
            thread = on
            going.clear()
        while going and going[-1][0] <= start:
            going.pop()
        limit, node, ours = going[-1] if going else (end, root, False)
        end = min(end, limit)
        callee = callees[number]
        if callee.fate != SHOWN or (ours and callee.follows):
            going.append((end, node, callee.fate == OURS or ours))
            continue
        if position in backward:
            node = node.child(backward[position])
            _count(node, end - start, begun=begun)
        node = node.child(callee)
        _count(node, end - start, begun=begun)
        if position >= 0:
            of_event[position] = node
        going.append((end, node, False))
    return of_event


def _count(node: Node, length: int, *, begun: bool) -> None:
    node.calls += begun
    node.total += length
    assert node.parent is not None
    node.parent.inside += length


def _hang(
    root: Node,
    owned: Attribution,
    operators: Ints,
    of_event: Mapping[int, Node],
    kernels: Sequence[Any],
) -> None:
    """Add the kernels under the operators that launched them; others stand by themselves."""
    numbers = owned.events.integers("correlation_id", operators).tolist()
    launched_by = {
        number: of_event[position]
        for number, position in zip(numbers, operators.tolist(), strict=True)
        if number > 0 and position in of_event
    }
    linked = integers(kernels, "linked_correlation_id").tolist()
    lengths = integers(kernels, "duration_ns").tolist()
    names = list(column(kernels, "name"))
    for name, number, length in zip(names, linked, lengths, strict=True):
        node: Node | None = launched_by.get(number, root).child(Callee(KERNEL, name))
        assert node is not None
        node.calls += 1
        while node is not None:
            node.device += length
            node = node.parent


def _rows(root: Node, index: int, *, device: bool) -> list[dict[str, Any]]:
    nodes = list(root.below())
    numbers = {id(node): number for number, node in enumerate(nodes, 1)}
    rows = []
    for node in nodes:
        callee = node.callee
        # A kernel runs beside the host, whose time it takes none of.
        on_host = callee.kind != KERNEL
        rows.append(
            {
                "slice": index,
                "node": numbers[id(node)],
                "parent": numbers.get(id(node.parent)),
                "kind": callee.kind,
                "name": callee.name,
                "file": callee.file,
                "line": callee.line,
                "calls": node.calls,
                "total_s": node.total * _S if on_host else None,
                "self_s": (node.total - node.inside) * _S if on_host else None,
                "device_s": node.device * _S if device else None,
            }
        )
    return rows
