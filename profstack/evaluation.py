"""Evaluation between training steps, seen where the script switches to it.

A wrapper on the calls themselves would cost every step a Python frame; `eval()` and
`train(False)` come once for many calls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from profstack.passthrough import compiling, strip_frame


def in_training(module: Any) -> bool:
    """The module's mode; frozen TorchScript has none left, and does what evaluation does."""
    return bool(getattr(module, "training", False))


class EvaluationWatch:
    """Wraps `train` of the class of one root module, which `eval` calls too.

    `report` is told of a module of that class that has been switched to evaluation.
    """

    def __init__(self, torch: Any, report: Callable[[Any], None]) -> None:
        self._torch = torch
        self._report = report
        self.watched: type | None = None
        self._wrapper: Any = None
        self._own: Any = None

    def stands_on(self, root: Any) -> bool:
        """Whether the wrapper is on the root's class, and nobody else's on top of it."""
        kind = type(root)
        return self.watched is kind and kind.__dict__.get("train") is self._wrapper

    def put(self, root: Any) -> None:
        """Watch the class of `root`; nothing is done where it has no `train` to wrap."""
        kind = type(root)
        original = getattr(kind, "train", None)
        if original is None or kind is self._torch.nn.Module:
            return
        self._own = kind.__dict__.get("train")
        self._wrapper = self._train(original)
        kind.train = self._wrapper
        self.watched = kind

    def take_off(self) -> None:
        """Leave the class as it was found; a wrapper that somebody put on top stays theirs."""
        kind, self.watched = self.watched, None
        if kind is None or kind.__dict__.get("train") is not self._wrapper:
            return
        if self._own is None:
            del kind.train  # type: ignore[attr-defined]  # put there above
        else:
            kind.train = self._own  # type: ignore[attr-defined]  # had it before

    def _train(self, original: Any) -> Any:
        under_dynamo, compiler = compiling(self._torch)
        report = self._report

        @functools.wraps(original)
        def train(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                result = original(self, *args, **kwargs)
            except BaseException as error:
                strip_frame(error)
                raise
            if not (under_dynamo() or compiler._is_compiling_flag) and not in_training(self):
                report(self)
            return result

        return train
