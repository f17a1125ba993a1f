"""Changes by compiling: the whole model, or the block of it that repeats."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from typing import Any

from profstack.changes.contract import Called, Change, Edit, Run, Seen, Value


def _reason(seen: Seen) -> str | None:
    if not seen.root:
        return "no model was called"
    return "the script compiles already" if seen.calls.get("compile") else None


def _compile(run: Run) -> None:
    def change(model: Any) -> None:
        model.compile()
        run.took_hold()

    run.once_at_root(change)


COMPILE = Change(
    "compile",
    "compile the model (torch.compile)",
    "digits",
    _reason,
    _compile,
    edit=Edit(before_loop="{model}.compile()"),
    on_call=lambda torch, target, value, device: Called(torch.compile(target)),
    excludes=("compile-block",),
    findings=("small-operators", "module-dominates"),
)


def repeated_block(model: Any) -> list[Any]:
    """Return the objects of the class with most parameters that a model has at least twice.

    What lies inside such an object is a part of it.
    """
    counts = Counter(type(module) for module in model.modules() if module is not model)
    found: dict[type, list[Any]] = defaultdict(list)
    waiting = list(model.children())
    while waiting:
        module = waiting.pop(0)
        if counts[type(module)] > 1 and not type(module).__module__.endswith(".container"):
            found[type(module)].append(module)
        else:
            waiting += module.children()

    def parameters(blocks: list[Any]) -> int:
        return sum(number.numel() for block in blocks for number in block.parameters())

    several = [blocks for blocks in found.values() if len(blocks) > 1]
    return max(several, key=parameters, default=[])


def _compile_block(run: Run) -> None:
    def change(model: Any) -> None:
        for block in repeated_block(model):
            block.compile()
            run.took_hold()

    run.once_at_root(change)


def _called_with_blocks(torch: Any, model: Any, value: Value | None, _: str) -> Called:
    made = copy.deepcopy(model)
    for block in repeated_block(made):
        block.compile()
    return Called(made)


COMPILE_BLOCK = Change(
    "compile-block",
    "compile the block of the model that repeats: less to compile",
    "digits",
    lambda seen: (
        _reason(seen)
        or (None if seen.root.get("blocks", 0) > 1 else "no block of the model repeats")
    ),
    _compile_block,
    edit=Edit(
        before_loop="for block in {model}.modules():\n"
        "    if type(block).__name__ == {block!r}:\n"
        "        block.compile()"
    ),
    excludes=("compile",),
    on_call=_called_with_blocks,
    of_model=True,
    findings=("compilation-cost", "small-operators", "module-dominates"),
)

CHANGES = (COMPILE, COMPILE_BLOCK)
