"""Parts of a run left out to know what they cost: saving, logging, evaluating. Nothing to keep."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
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


class Evaluations:
    """Tells the batches of an evaluation from those of a training."""

    def __init__(self, torch: Any) -> None:
        self._models: list[Any] = []
        self._trained: list[Any] = []
        self._loader = torch.utils.data.DataLoader

    def root(self, model: Any) -> None:
        """Take a model that the script calls."""
        self._models.append(model)

    def follow(self, evaluated: Callable[[], bool]) -> None:
        """Ask after each evaluation's first batch whether the evaluation is to end there."""
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        register_optimizer_step_pre_hook(self._trains)
        iterate = self._loader.__iter__

        @functools.wraps(iterate)
        def __iter__(loader: Any) -> Any:
            batches = iterate(loader)
            return self._batches(batches, evaluated) if self._now() else batches

        self._loader.__iter__ = __iter__

    def _batches(self, batches: Any, evaluated: Callable[[], bool]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            # A model may be put into training mode after the first batch was taken.
            if number == 1 and self._now() and evaluated():
                return
            yield batch

    def _trains(self, *step: Any) -> None:
        known = {id(each) for each in self._trained}
        self._trained += [each for each in self._models if each.training and id(each) not in known]

    def _now(self) -> bool:
        """Return whether all models that were in training mode at a step are so no longer."""
        return bool(self._trained) and not any(each.training for each in self._trained)


def _one_batch(run: Run) -> None:
    """End each evaluation after its first batch: the script has results of some kind."""

    def evaluated() -> bool:
        run.took_hold()
        return True

    evaluations = Evaluations(run.torch)
    evaluations.follow(evaluated)
    run.once_at_root(evaluations.root)


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
