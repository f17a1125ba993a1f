"""What of a module's own time is Python: the part in which none of its operators ran.

Both times come from the same slice, so that the difference is exact. Of the parts of a step
outside modules it is not told: the wait's operators are not told from other work outside modules.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

# Sums of the same times in another order: a difference this small beside them is none.
_ROUNDING = 1e-6


def add_python_cost(
    modules: Sequence[dict[str, Any]], operators: Sequence[Mapping[str, Any]]
) -> None:
    """Fill `python_s` of the modules; it stays null where a row is no module, or where operators
    took longer than the module did, as those of other threads can."""
    inside: dict[str, float] = defaultdict(float)
    for row in operators:
        if row["module"] is not None and row["self_s"] is not None:
            inside[row["module"]] += row["self_s"]
    for row in modules:
        own = row.get("self_s")
        if own is None or row["path"].startswith("("):
            continue
        rest = own - inside[row["path"]]
        if rest >= -_ROUNDING * own:
            row["python_s"] = max(rest, 0.0)
