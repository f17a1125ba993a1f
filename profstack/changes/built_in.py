"""The changes that can be tried, by name: those of profstack, and those of other packages."""

from __future__ import annotations

from importlib.metadata import entry_points

from profstack.changes import (
    compilation,
    data_loading,
    distributed,
    left_out,
    model_calls,
    optimizers,
    precision,
    processor,
)
from profstack.changes.contract import Change
from profstack.errors import UsageError

GROUP = "profstack.changes"
# In the order in which they are tried: what helps most often comes first, what costs most last.
_FAMILIES = (data_loading, optimizers, model_calls, precision, processor, compilation, distributed)


def changes() -> dict[str, Change]:
    """Return all changes by name; one of another package stands for a built-in one of its name.

    Raise UsageError for one that cannot be loaded.
    """
    found = {each.name: each for family in (*_FAMILIES, left_out) for each in family.CHANGES}
    for point in entry_points(group=GROUP):
        try:
            change = point.load()
        except Exception as error:
            raise UsageError(
                f"the change {point.name!r} cannot be loaded ({type(error).__name__}: {error})",
                where=point.value,
                next_step="update or remove the package that offers it",
            ) from None
        if not isinstance(change, Change):
            what = f"the change {point.name!r} is no profstack.changes.contract.Change"
            raise UsageError(what, where=point.value, next_step="tell the package's authors")
        found[change.name] = change
    return found
