"""The page's data in two parts: what the overview needs as it is, and all else compressed.

A page is mostly rows of tables that nobody looks at before a view is opened. Each of them goes
into the page as compressed text of its own, which the browser inflates when a view asks for it.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from typing import Any

# What the page has at once: the overview is drawn from it alone.
PLAIN = ("facts", "overview", "bench", "base")
# Parts that are no tables bear their own name, but for the series beside the table of steps.
_NAMES = {"steps": "step_series"}


def divide(page: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The plain part of a page's data, and the other parts by name.

    A part is a piece of the page's data: inflated, it is put where it was taken from. The plain
    part's `parts` says how many rows each has, so that a view knows whether it has anything.
    """
    packs = {name: {"tables": {name: table}} for name, table in page["tables"].items()}
    sizes = {name: table["total"] for name, table in page["tables"].items()}
    for key, value in page.items():
        if value and key not in (*PLAIN, "tables"):
            name = _NAMES.get(key, key)
            packs[name] = {key: value}
            sizes[name] = _size(value)
    return {**{key: page[key] for key in PLAIN if key in page}, "parts": sizes}, packs


def _size(value: Any) -> int:
    """How many points or entries a part has; at least one, since it may still hold a reason."""
    return max(len(value.get("points", value) if isinstance(value, Mapping) else value), 1)


def packed(part: Any) -> str:
    """A part as compressed text: JSON, gzip, base64; the same part gives the same text."""
    text = json.dumps(part, separators=(",", ":"), allow_nan=False)
    return packed_text(text)


def packed_text(text: str) -> str:
    """A text compressed with gzip and written in base64, as the page's scripts inflate it."""
    # Surrogates that no encoding can write would be names of files that are no UTF-8.
    content = text.encode("utf-8", "replace")
    return base64.b64encode(gzip.compress(content, compresslevel=6, mtime=0)).decode("ascii")
