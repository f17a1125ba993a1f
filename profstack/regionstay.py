"""One stay in a region of the script's, and whether the code that has entered it stands still.

Loaded with the script's first region: nothing is imported here that costs anything.
"""

from _thread import get_ident

from profstack.regionsums import ENDLESS

# As typing's own, which is not to be imported here; type checkers know the name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

# What names a region, where it is profstack's own.
OWN = "profstack.region"

# Flags of code objects: of generators and asynchronous ones, and of whatever may stand still.
_GENERATES = 0x20 | 0x200
SUSPENDS = _GENERATES | 0x80
_ENTERS = frozenset(("__enter__", "__aenter__"))


class Stay:
    """One stay in a region, from when it is entered until it is left.

    `previous` is what was entered before it in its context, `around` the stay that it lies in;
    `frame` is the generator or coroutine that has entered it, which may stand still meanwhile.
    Others may be entered and left in between, in any order, where code that `takes_turns` has
    entered it. `source` is what named it.
    """

    __slots__ = (
        "around",
        "counts",
        "entered",
        "frame",
        "is_left",
        "name",
        "path",
        "previous",
        "source",
        "takes_turns",
        "thread",
    )

    around: "Stay | None"

    def __init__(self, name: str, previous: "Stay | None", frame: "FrameType | None") -> None:
        self.name = self.path = name
        self.previous = previous
        self.frame = frame
        self.takes_turns = frame is not None
        self.source = OWN
        self.thread = get_ident()
        self.counts = True
        self.is_left = False
        # Until it is known it lies in no slice.
        self.entered = ENDLESS


def frame_to_keep(frame: "FrameType") -> "FrameType | None":
    """The frame, if it may stand still while the region is open without being around anything.

    A generator made into a context manager is different: what it has entered is around the body.
    """
    resumed_by = frame.f_back
    if resumed_by is not None and resumed_by.f_code.co_name in _ENTERS:
        return None
    return frame


def is_elsewhere(stay: Stay) -> bool:
    """Whether the stay belongs to a generator that stands still: what runs now is not in it.

    A coroutine that stands still may be waiting for what runs now, as the task it has started.
    """
    frame = stay.frame
    return frame is not None and frame.f_code.co_flags & _GENERATES != 0 and frame.f_back is None


def stands_still(stay: Stay) -> bool:
    """Whether the generator or coroutine that has entered the region waits to be resumed."""
    frame = stay.frame
    return frame is not None and frame.f_back is None
