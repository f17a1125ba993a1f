"""Read a pickle of plain values without loading it.

Loading a pickle runs whatever its writer put into it. This reader knows the opcodes of None,
booleans, numbers, texts, bytes, lists, tuples, dictionaries and sets alone, of protocols 0 to 5;
any other one ends it. Nothing is imported, called or built beside these values.

A value may be in the result several times, and in itself: whoever walks it must bound the walk.
"""

from __future__ import annotations

import pickle
import pickletools
import struct
from collections.abc import Callable
from typing import Final

# Digits of a number that is written as text.
MOST_DIGITS: Final = 1000
# Keys of dictionaries and members of sets that are no text: their hashes can be made to meet, and
# then each takes as long as all before it.
MOST_OTHER_KEYS: Final = 10_000

# Bytes that values take in memory, about: of an entry, of an empty container, of any other value.
_ENTRY, _CONTAINER, _SET, _VALUE = 32, 96, 240, 56

_FREQUENT = tuple(each[0] for each in (pickle.BINGET, pickle.LONG_BINGET, pickle.MARK, pickle.STOP))
_NAMES = {ord(each.code): each.name for each in pickletools.opcodes}


# Bits of a whole number that can be a key.
_KEY_BITS = 1024


def _is_key(value: object) -> bool:
    if isinstance(value, int):
        return value.bit_length() <= _KEY_BITS
    return value is None or isinstance(value, (str, float, bytes))


class PickleError(Exception):
    """The pickle is damaged, too large, or holds more than plain values; its text says which."""


def read_plain(data: bytes, *, most_bytes: int = 1 << 30) -> object:
    """Return the value in a pickle; raises PickleError for anything but plain values.

    `most_bytes` bounds what the values take in memory, as this module estimates it.
    """
    return _Machine(data, most_bytes).run()


class _Machine:
    """Runs the opcodes of one pickle; `_marks` are heights of the stack."""

    def __init__(self, data: bytes, most_bytes: int) -> None:
        self._data, self._at, self._room = data, 0, most_bytes
        self._stack: list[object] = []
        self._marks: list[int] = []
        self._memo: dict[int, object] = {}
        self._other_keys = 0

    def run(self) -> object:
        """Return the value that is left at the end."""
        table, data, end = self._table(), self._data, len(self._data)
        stack, memo, marks = self._stack, self._memo, self._marks
        get, long_get, mark, stop = _FREQUENT
        at = 0
        try:
            while at < end:
                opcode = data[at]
                at += 1
                # Most opcodes of a long pickle are these: without a call each.
                if opcode == get:
                    stack.append(memo[data[at]])
                    at += 1
                elif opcode == long_get:
                    at += 4
                    stack.append(memo[int.from_bytes(data[at - 4 : at], "little")])
                elif opcode == mark:
                    marks.append(len(stack))
                elif opcode == stop:
                    return stack.pop()
                else:
                    self._at = at
                    table[opcode]()
                    at = self._at
        except PickleError:
            raise
        except LookupError:
            raise PickleError(f"it is damaged: a value is missing at byte {at:,}") from None
        except (ValueError, TypeError, struct.error, OverflowError) as error:
            raise PickleError(f"it is damaged at byte {at:,} ({error})") from None
        raise PickleError("it ends early")

    def _table(self) -> list[Callable[[], None]]:
        """Return what to do by opcode, for all but those that `run` does itself."""
        table: list[Callable[[], None]] = [self._unknown] * 256
        for opcode, action in {**self._of_scalars(), **self._of_containers()}.items():
            table[opcode[0]] = action
        return table

    def _unknown(self) -> None:
        opcode = self._data[self._at - 1]
        name = _NAMES.get(opcode)
        what = f"opcode {name}" if name else f"byte {opcode:#04x}, which is no opcode"
        raise PickleError(f"it holds more than plain values: {what} at byte {self._at - 1:,}")

    # --- Parts of the data

    def _take(self, count: int) -> bytes:
        """Return the next bytes."""
        start, self._at = self._at, self._at + count
        if self._at > len(self._data):
            raise PickleError("it ends early")
        return self._data[start : self._at]

    def _whole(self, count: int) -> int:
        """Return an unsigned number of `count` bytes."""
        return int.from_bytes(self._take(count), "little")

    def _sized(self, count: int) -> bytes:
        """Return bytes behind their number, which has `count` bytes."""
        found = self._take(self._whole(count))
        self._spend(_VALUE + len(found))
        return found

    def _line(self, most: int | None = MOST_DIGITS) -> bytes:
        """Return the bytes up to the end of the line."""
        end = self._data.find(b"\n", self._at)
        if end < 0:
            raise PickleError("it ends early")
        if most is not None and end - self._at > most:
            raise PickleError(f"a number at byte {self._at:,} has more than {most:,} characters")
        return self._take(end + 1 - self._at)[:-1]

    def _spend(self, size: int) -> None:
        self._room -= size
        if self._room < 0:
            raise PickleError("its values would take too much memory")

    # --- Scalars

    def _of_scalars(self) -> dict[bytes, Callable[[], None]]:
        push, whole, sized = self._stack.append, self._whole, self._sized

        def signed(data: bytes) -> int:
            return int.from_bytes(data, "little", signed=True)

        def text(data: bytes) -> str:
            return data.decode("utf-8", "surrogatepass")

        def positive(count: int) -> bytes:
            size = signed(self._data[self._at : self._at + count])
            if size < 0:
                raise PickleError(f"a size at byte {self._at:,} is negative")
            return sized(count)

        return {
            pickle.PROTO: self._protocol,
            # A frame only says how much to read at once.
            pickle.FRAME: lambda: self._skip(8),
            pickle.NONE: lambda: push(None),
            pickle.NEWTRUE: lambda: push(True),
            pickle.NEWFALSE: lambda: push(False),
            pickle.INT: self._int,
            pickle.LONG: lambda: push(int(self._line().removesuffix(b"L"), 0)),
            pickle.BININT: lambda: push(signed(self._take(4))),
            pickle.BININT1: lambda: push(self._take(1)[0]),
            pickle.BININT2: lambda: push(whole(2)),
            pickle.LONG1: lambda: push(signed(self._take(self._take(1)[0]))),
            pickle.LONG4: lambda: push(signed(positive(4))),
            pickle.FLOAT: lambda: push(float(self._line())),
            pickle.BINFLOAT: lambda: push(struct.unpack(">d", self._take(8))[0]),
            pickle.UNICODE: self._escaped,
            pickle.SHORT_BINUNICODE: lambda: push(text(sized(1))),
            pickle.BINUNICODE: lambda: push(text(sized(4))),
            pickle.BINUNICODE8: lambda: push(text(sized(8))),
            pickle.SHORT_BINBYTES: lambda: push(sized(1)),
            pickle.BINBYTES: lambda: push(sized(4)),
            pickle.BINBYTES8: lambda: push(sized(8)),
            pickle.BYTEARRAY8: lambda: push(bytearray(sized(8))),
        }

    def _skip(self, count: int) -> None:
        self._take(count)

    def _protocol(self) -> None:
        if (version := self._whole(1)) > pickle.HIGHEST_PROTOCOL:
            raise PickleError(f"it is of protocol {version}, which is not known")

    def _int(self) -> None:
        line = self._line()
        # Protocols 0 and 1 write booleans as numbers with a 0 before them.
        booleans = {b"00": False, b"01": True}
        self._stack.append(booleans[line] if line in booleans else int(line, 0))

    def _escaped(self) -> None:
        line = self._line(None)
        self._spend(_VALUE + len(line))
        self._stack.append(line.decode("raw-unicode-escape"))

    # --- Containers and the memo

    def _of_containers(self) -> dict[bytes, Callable[[], None]]:
        memo = self._memo
        return {
            pickle.POP: self._pop,
            pickle.POP_MARK: self._skip_marked,
            pickle.DUP: lambda: self._stack.append(self._top()),
            pickle.EMPTY_LIST: lambda: self._contain([]),
            pickle.EMPTY_DICT: self._empty_dict,
            pickle.EMPTY_TUPLE: lambda: self._contain(()),
            pickle.EMPTY_SET: lambda: self._contain(set()),
            pickle.LIST: lambda: self._contain(self._marked()),
            pickle.TUPLE: lambda: self._contain(tuple(self._marked())),
            pickle.TUPLE1: lambda: self._contain(tuple(self._last(1))),
            pickle.TUPLE2: lambda: self._contain(tuple(self._last(2))),
            pickle.TUPLE3: lambda: self._contain(tuple(self._last(3))),
            pickle.DICT: self._dict,
            pickle.FROZENSET: lambda: self._contain(frozenset(self._members(self._marked()))),
            pickle.APPEND: lambda: self._extend(self._last(1)),
            pickle.APPENDS: lambda: self._extend(self._marked()),
            pickle.SETITEM: lambda: self._fill(self._last(2)),
            pickle.SETITEMS: lambda: self._fill(self._marked()),
            pickle.ADDITEMS: lambda: self._add(self._marked()),
            pickle.PUT: lambda: self._put(int(self._line())),
            pickle.BINPUT: lambda: self._put(self._whole(1)),
            pickle.LONG_BINPUT: lambda: self._put(self._whole(4)),
            pickle.MEMOIZE: self._memoize,
            pickle.GET: lambda: self._stack.append(memo[int(self._line())]),
        }

    def _top(self) -> object:
        """Return the last value, which a mark must not hide."""
        if self._marks and self._marks[-1] >= len(self._stack):
            raise PickleError(f"it is damaged: a value is missing at byte {self._at:,}")
        return self._stack[-1]

    def _pop(self) -> None:
        # A mark can be taken off in this way, too.
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self._stack.pop()

    def _last(self, count: int) -> list[object]:
        """Take the last values off the stack."""
        start = len(self._stack) - count
        if start < (self._marks[-1] if self._marks else 0):
            raise PickleError(f"it is damaged: a value is missing at byte {self._at:,}")
        found = self._stack[start:]
        del self._stack[start:]
        return found

    def _marked(self) -> list[object]:
        """Take the values behind the last mark off the stack, with the mark."""
        start = self._marks.pop()
        found = self._stack[start:]
        del self._stack[start:]
        return found

    def _skip_marked(self) -> None:
        self._marked()

    def _contain(self, container: object) -> None:
        is_set = isinstance(container, (set, frozenset))
        self._spend(_SET if is_set else _CONTAINER)
        self._stack.append(container)

    def _extend(self, values: list[object]) -> None:
        target = self._top()
        if not isinstance(target, list):
            raise PickleError(f"values are appended to no list at byte {self._at:,}")
        target.extend(values)

    def _dict(self) -> None:
        values = self._marked()
        self._contain({})
        self._fill(values)

    def _fill(self, values: list[object]) -> None:
        target = self._top()
        if not isinstance(target, dict) or len(values) % 2:
            raise PickleError(f"entries are no part of a dictionary at byte {self._at:,}")
        self._spend(_ENTRY * len(values))
        keys = values[::2]
        target.update(zip(self._members(keys), values[1::2], strict=True))

    def _add(self, values: list[object]) -> None:
        target = self._top()
        if not isinstance(target, set):
            raise PickleError(f"members are added to no set at byte {self._at:,}")
        self._spend(_ENTRY * len(values))
        target.update(self._members(values))

    def _members(self, values: list[object]) -> list[object]:
        """Return values that can be keys: scalars, and tuples of scalars.

        The hash of a deeper one may take for ever.
        """
        if set(map(type, values)) == {str}:
            return values
        for value in values:
            if type(value) is str:
                continue
            parts = value if isinstance(value, tuple) else (value,)
            if not all(map(_is_key, parts)):
                raise PickleError(f"a key at byte {self._at:,} is no plain value")
            self._other_keys += len(parts) or 1
            if self._other_keys > MOST_OTHER_KEYS:
                raise PickleError(f"more than {MOST_OTHER_KEYS:,} of its keys are no text")
        return values

    def _empty_dict(self) -> None:
        # `_contain` without its question: every entry of a history is one.
        self._room -= _CONTAINER
        if self._room < 0:
            self._spend(0)
        self._stack.append({})

    def _memoize(self) -> None:
        stack, marks, memo = self._stack, self._marks, self._memo
        if marks and marks[-1] >= len(stack):
            self._top()
        memo[len(memo)] = stack[-1]
        self._room -= _CONTAINER
        if self._room < 0:
            self._spend(0)

    def _put(self, number: int) -> None:
        if number < 0:
            raise PickleError(f"a number of the memo at byte {self._at:,} is negative")
        self._spend(_CONTAINER)
        self._memo[number] = self._top()


# All opcodes that are read.
_IDLE = _Machine(b"", 0)
KNOWN: Final = frozenset(
    {pickle.BINGET, pickle.LONG_BINGET, pickle.MARK, pickle.STOP}
    | _IDLE._of_scalars().keys()
    | _IDLE._of_containers().keys()
)
