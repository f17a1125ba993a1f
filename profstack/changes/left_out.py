"""Parts of a run left out to know what they cost: saving, logging, evaluating. Nothing to keep."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
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
    measure="run",
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
    measure="run",
)


def _one_batch(run: Run) -> None:
    """End each evaluation after its first batch: the script has results of some kind."""
    loader, models = run.torch.utils.data.DataLoader, list[Any]()
    iterate = loader.__iter__

    @functools.wraps(iterate)
    def __iter__(self: Any) -> Iterator[Any]:
        if not is_evaluating(models):
            return iterate(self)
        run.took_hold()
        return itertools.islice(iterate(self), 1)

    loader.__iter__ = __iter__
    run.once_at_root(lambda model: models.append(model) if model.training else None)


def is_evaluating(models: Sequence[Any]) -> bool:
    """Return whether models that were in training mode when first called are so no longer."""
    return bool(models) and not any(each.training for each in models)


NO_EVALUATION = Change(
    "no-evaluation",
    "end each evaluation after its first batch",
    "equal",
    _counted("evaluation", "no DataLoader is gone through by a model in evaluation mode"),
    _one_batch,
    findings=("evaluation-cost",),
    to_know=True,
    measure="run",
)

CHANGES = (NO_SAVING, NO_LOGGING, NO_EVALUATION)
