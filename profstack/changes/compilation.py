"""Changes by compiling: the whole model, or the block of it that repeats."""

from __future__ import annotations

from typing import Any

from profstack.changes.contract import Change, Edit, Run, Seen


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
    excludes=("compile-block",),
    findings=("small-operators",),
)


def repeated_block(model: Any) -> list[Any]:
    """Return the objects of the class with most parameters that a model has at least twice.

    Blocks inside blocks count by the outermost.
    """
    found: dict[type, list[Any]] = {}
    inside: set[int] = set()
    for module in model.modules():
        if (
            module is model
            or id(module) in inside
            or type(module).__module__.startswith("torch.nn.modules.container")
        ):
            continue
        found.setdefault(type(module), []).append(module)
    several = {kind: each for kind, each in found.items() if len(each) > 1}

    def parameters(blocks: list[Any]) -> int:
        return sum(number.numel() for block in blocks for number in block.parameters())

    if not several:
        return []
    kind = max(several, key=lambda each: parameters(several[each]))
    return several[kind]


def _compile_block(run: Run) -> None:
    def change(model: Any) -> None:
        for block in repeated_block(model):
            block.compile()
            run.took_hold()

    run.once_at_root(change)


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
    findings=("compilation-cost",),
)

CHANGES = (COMPILE, COMPILE_BLOCK)
