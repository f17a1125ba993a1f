"""Options that several commands have: how their words are read, and which layers they choose."""

from __future__ import annotations

import argparse
from typing import Any

from profstack import registry
from profstack.errors import UsageError


def chosen_layers(layers: str | None, skip: str | None) -> tuple[list[str], dict[str, str]]:
    """The layers asked for, and those left out with why; an unknown name raises UsageError."""
    known = registry.layer_names()
    chosen = layers.split(",") if layers else list(known)
    skipped = skip.split(",") if skip else []
    for name in (*chosen, *skipped):
        if name not in known:
            raise UsageError(f"no layer '{name}'", next_step=f"the layers are {', '.join(known)}")
    kept = [name for name in known if name in chosen and name not in skipped]
    if not kept:
        raise UsageError("no layer is left", next_step=f"the layers are {', '.join(known)}")
    kept, left_out = registry.beside_nsys(kept)
    if not kept:
        raise UsageError(
            f"under Nsight Systems there is no layer {' or '.join(left_out)}",
            next_step=f"the layers are {', '.join(registry.BESIDE_NSYS)} there",
        )
    return kept, left_out


def count(text: str) -> int:
    """A whole number above 0."""
    value: int = _read(int, text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def number(text: str) -> float:
    """A number above 0."""
    value: float = _read(float, text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _read(kind: type[Any], text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is no number") from None
