"""What the watch holds in memory: the stacks it has met as a tree, and its samples.

Both are bounded, whatever the script does and for however long. Used from the script's first
line on: nothing may be imported here that a bare interpreter has not loaded.
"""

import os
import sys

# As typing's own, which is not to be imported here; type checkers know the name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType
    from typing import Any

# Samples held before every second one gives its weight to the next.
MOST_HELD = 50_000
# Different frames of the tree; those for which no room is left count for the one that called them.
MOST_FRAMES = 50_000
# Frames of one stack, from the innermost.
DEEPEST = 500
_MOST_FILES = 10_000

# Kinds of source files, as to what of them stays in a stack.
_KEPT, _MACHINERY, _PASSING, _OWN = range(4)
# profstack's modules through which the script's calls pass: what is inside is the script's work.
_PASSED_THROUGH = frozenset(
    os.path.join(os.path.dirname(os.path.abspath(__file__)), *name.split("/")) + ".py"
    for name in (
        *("child", "decorated", "evaluation", "hooks/calls", "hooks/passes"),
        *("engine/marks", "inprocess", "loopsteps", "session", "userregions"),
    )
)


class Stacks:
    """Frames numbered from 1 as a tree: each number stands for a line and all that led to it."""

    def __init__(self) -> None:
        here = os.path.dirname(os.path.abspath(__file__))
        # What the files of profstack itself begin with.
        self.own: tuple[str, ...] = (os.path.join(here, ""),)
        # Whether something had to be left out.
        self.cut = False
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._new: list[dict[str, Any]] = []
        self._kinds: dict[str, int] = {}

    def place(self, frame: "FrameType | None") -> "int | None":
        """The number of the stack that ends in `frame`, 0 where there is no room for it.

        None where profstack itself is at work.
        """
        chain: list[tuple[CodeType, int | None]] = []
        kinds, passed = self._kinds, False
        # Nothing else is done on the way: what a function that returns meanwhile has held lives on
        # as long as its frame is held here.
        for _ in range(DEEPEST):
            if frame is None:
                break
            code = frame.f_code
            kind = kinds.get(code.co_filename)
            if kind is None:
                kind = self._kind(code.co_filename)
            if kind == _OWN and not passed:
                return None
            passed = passed or kind == _PASSING
            if kind == _KEPT or (kind == _MACHINERY and not chain):
                chain.append((code, frame.f_lineno))
            frame = frame.f_back
        self.cut = self.cut or frame is not None
        frame = None
        return self._number(chain)

    def _number(self, chain: "list[tuple[CodeType, int | None]]") -> int:
        numbers, parent = self._numbers, 0
        for code, line in reversed(chain):
            key = (parent, line, code.co_filename, code.co_name, code.co_firstlineno)
            number = numbers.get(key)
            if number is None:
                if len(numbers) >= MOST_FRAMES:
                    self.cut = True
                    break
                number = numbers[key] = len(numbers) + 1
                self._new.append(
                    {
                        "frame": number,
                        "parent": parent or None,
                        "file": code.co_filename,
                        "line": line,
                        "name": code.co_name,
                        "function_line": code.co_firstlineno,
                    }
                )
            parent = number
        return parent

    def _kind(self, file: str) -> int:
        kind = _KEPT
        if file.startswith("<frozen importlib"):
            # As in tracebacks: left out, unless the import machinery is itself at work.
            kind = _MACHINERY
        elif file.startswith(self.own):
            kind = _PASSING if file in _PASSED_THROUGH else _OWN
        if len(self._kinds) >= _MOST_FILES:
            self._kinds.clear()
        self._kinds[file] = kind
        return kind

    def take(self) -> "list[dict[str, Any]]":
        """Records of the frames that are new since the last time."""
        new, self._new = self._new, []
        return new

    def memory_bytes(self) -> int:
        """What the tree takes, without the names, which belong to the script's code."""
        each = sys.getsizeof((0,) * 5) + 2 * sys.getsizeof(1 << 20)
        rows = sum(sys.getsizeof(row) for row in self._new[:1]) * len(self._new)
        return sys.getsizeof(self._numbers) + each * len(self._numbers) + rows


class Samples:
    """Samples as parallel lists: a tuple for each would be work for the garbage collector."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._frames: list[int] = []
        self._regions: list[str | None] = []
        self._rss: list[int | None] = []
        self._weights: list[float] = []

    def __len__(self) -> int:
        return len(self._times)

    def add(
        self,
        t_s: float,
        rss: "int | None",
        frame: int = 0,
        region: "str | None" = None,
        weight: float = 0.0,
    ) -> None:
        """One sample; with weight 0 a reading of the resident set that stands for no time."""
        self._times.append(t_s)
        self._frames.append(frame)
        self._regions.append(region)
        self._rss.append(rss)
        self._weights.append(weight)
        if len(self._times) >= MOST_HELD:
            self._thin()

    def _thin(self) -> None:
        """Every second sample gives its weight to the next one; mere readings stay."""
        weights, kept, owed = self._weights, 0, 0.0
        columns: list[list[Any]]
        columns = [self._times, self._frames, self._regions, self._rss, weights]
        for number, weight in enumerate(weights):
            follows = weights[number + 1] if number + 1 < len(weights) else 0.0
            if weight and follows and not owed:
                owed = weight
                continue
            for column in columns:
                column[kept] = column[number]
            weights[kept] = weight + owed
            kept, owed = kept + 1, 0.0
        for column in columns:
            del column[kept:]

    def records(self) -> "list[dict[str, Any]]":
        """All of them, in order of time."""
        rows = zip(self._times, self._frames, self._regions, self._rss, self._weights, strict=True)
        return [
            {
                "t_s": t_s,
                "frame": frame or None,
                "region": region,
                "rss_bytes": rss,
                "weight": weight,
            }
            for t_s, frame, region, rss, weight in rows
        ]

    def memory_bytes(self) -> int:
        """What they take: two floats, an integer, and a place in each of five lists."""
        each = 2 * sys.getsizeof(0.0) + sys.getsizeof(1 << 40) + 5 * 8
        return each * len(self._times)
