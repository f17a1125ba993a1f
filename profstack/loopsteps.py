"""The loop that `Session.steps` gives: each item, with what is done with it, is a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import TYPE_CHECKING, Generic, TypeVar

from profstack.passthrough import strip_frame

if TYPE_CHECKING:
    from profstack.engine.marks import Marks

Item = TypeVar("Item")


class LoopSteps(Generic[Item]):
    """The items of an iterable, with a step for each; it is as long as that is."""

    def __init__(self, marks: Marks | None, iterable: Iterable[Item], place: object) -> None:
        self._marks = marks
        self._iterable = iterable
        self._place = place

    def __len__(self) -> int:
        if isinstance(self._iterable, Sized):
            return len(self._iterable)
        raise TypeError(f"{type(self._iterable).__name__} has no length")

    def __iter__(self) -> Iterator[Item]:
        marks = self._marks
        if marks is None or not marks.begin(self._place):
            yield from self._iterable
            return
        cut = True
        try:
            for item in self._iterable:
                held = [item]
                del item
                # Whoever lets go of the batch inside the step frees it.
                yield held.pop()
                marks.ended()
            cut = False
        except Exception as error:
            # Of the loader's: what the loop itself raises never comes by here.
            strip_frame(error)
            raise
        finally:
            marks.end(cut=cut)
