"""Parts of a run left out to know what they cost: saving and logging. No changes to keep."""

from __future__ import annotations

import functools
from typing import Any

from profstack.changes.contract import Change, Run, Seen


def _counted(name: str, lacks: str) -> Any:
    def applies(seen: Seen) -> str | None:
        return None if seen.calls.get(name) else lacks

    return applies


def _no_saving(run: Run) -> None:
    @functools.wraps(run.torch.save)
    def save(*args: Any, **kwargs: Any) -> None:
        run.took_hold()

    run.torch.save = save


NO_SAVING = Change(
    "no-saving",
    "leave out torch.save",
    "equal",
    _counted("save", "nothing is saved by torch.save"),
    _no_saving,
    findings=("saving-cost",),
    to_know=True,
)


def _no_logging(run: Run) -> None:
    import logging

    logging.disable(logging.CRITICAL)
    run.took_hold()

    def arrived(module: Any) -> None:
        for name in ("add_scalar", "add_scalars", "add_histogram", "add_image", "add_text"):
            setattr(module.SummaryWriter, name, lambda self, *args, **kwargs: None)

    run.when_imported("torch.utils.tensorboard.writer", arrived)


NO_LOGGING = Change(
    "no-logging",
    "leave out logging and TensorBoard's writers",
    "equal",
    _counted("logging", "nothing is logged by logging or TensorBoard"),
    _no_logging,
    findings=("logging-cost",),
    to_know=True,
)

CHANGES = (NO_SAVING, NO_LOGGING)
