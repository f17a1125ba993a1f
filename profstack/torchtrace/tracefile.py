"""A Chrome trace read from a file event by event: the file is never held as a whole.

The file is whatever somebody hands over, so that nothing in it is believed: it may be cut off, no
JSON, no trace, one endless line, or a few compressed bytes that unfold into a disk full.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from profstack.errors import RecordingError

# What is read at once; an event has some hundreds of characters.
CHUNK = 1 << 20
# No single event or value beside them is longer than this: torch's longest are stacks of frames.
LONGEST = 64 << 20
# A trace that unfolds into more than this is refused.
MOST_CHARACTERS = 8 << 30

_GZIP = b"\x1f\x8b"
_BLANK = re.compile(r"[ \t\n\r]*")
_BETWEEN = re.compile(r"[ \t\n\r]*,[ \t\n\r]*")
_BROKEN = "the file ends in the middle of the trace"
_AGAIN = "save the trace again, and wait until it is written"
_NO_TRACE = "this is no Chrome trace"
_EXPORT = "give a file that `export_chrome_trace` of torch.profiler wrote"


class TraceFile:
    """One trace, read once: `events` first, then what else the file says in `header`.

    The events' fractions of numbers are kept as text, since a time in microseconds with three
    digits behind the point may have more digits than a float holds.
    """

    def __init__(self, path: Path, most: int = MOST_CHARACTERS) -> None:
        self.path = path
        self.header: dict[str, Any] = {}
        self._most = most
        self._read = 0
        self._file: IO[str] | None = None
        self._text, self._at = "", 0
        self._decode = json.JSONDecoder(parse_float=str).raw_decode

    def events(self) -> Iterator[Any]:
        """Every element of `traceEvents`, in the order of the file.

        Raises RecordingError with what is wrong with the file, where, and what to do.
        """
        try:
            with open(self.path, "rb") as plain:
                zipped = plain.read(2) == _GZIP
            opened: Callable[..., Any] = gzip.open if zipped else open
            with opened(self.path, "rt", encoding="utf-8-sig", errors="replace") as file:
                self._file = file
                yield from self._top()
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise self._error(f"{_BROKEN} ({error})", _AGAIN) from error
        except OSError as error:
            raise self._error(f"cannot be read: {error.strerror or error}") from error
        except RecursionError:
            raise self._error("its values lie too deep inside one another", _EXPORT) from None
        except ValueError as error:
            # A whole number of thousands of digits, which Python refuses to read.
            raise self._error(f"{_NO_TRACE}: {error}", _EXPORT) from error
        finally:
            self._file, self._text = None, ""

    def _top(self) -> Iterator[Any]:
        opening = self._next(_BLANK)
        if opening == "[":
            # The other form of the format: events alone.
            yield from self._elements()
            return
        if opening != "{":
            what = "the file is empty" if not opening else _NO_TRACE
            raise self._error(what, _EXPORT)
        self._at += 1
        found = False
        while self._next(_BLANK) not in ("}", ""):
            key = self._value()
            if not isinstance(key, str) or self._next(_BLANK) != ":":
                raise self._error(_NO_TRACE, _EXPORT)
            self._at += 1
            opening = self._next(_BLANK)
            if key == "traceEvents" and opening == "[":
                found = True
                yield from self._elements()
            else:
                self.header[key] = self._value()
            if self._next(_BLANK) == ",":
                self._at += 1
        if not found:
            raise self._error("this JSON file has no traceEvents", _EXPORT)
        if self._next(_BLANK) != "}":
            raise self._unexpected()

    def _elements(self) -> Iterator[Any]:
        """What stands in the list that begins here."""
        self._at += 1
        while self._next(_BLANK) != "]":
            yield self._value()
            # The usual case first: a comma, and no end of what was read.
            between = _BETWEEN.match(self._text, self._at)
            if between is not None and between.end() < len(self._text):
                self._at = between.end()
            elif self._next(_BLANK) == ",":
                self._at += 1
            elif self._next(_BLANK) != "]":
                raise self._unexpected()
        self._at += 1

    def _next(self, blank: re.Pattern[str]) -> str:
        """The next character after blanks, "" at the end of the file."""
        while True:
            match = blank.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def _value(self) -> Any:
        """The value that begins here; a number must have something after it."""
        while True:
            try:
                value, end = self._decode(self._text, self._at)
                if end < len(self._text) or not self._more():
                    self._at = end
                    return value
            except json.JSONDecodeError as error:
                # Cut off by the end of what was read, or wrong: that is known with more of it.
                if len(self._text) - self._at > LONGEST:
                    raise self._error(f"{_NO_TRACE}: {error.msg}", _EXPORT) from error
                if not self._more(len(self._text) - self._at):
                    what = f"{_BROKEN}, or is no JSON ({error.msg})"
                    raise self._error(what, _AGAIN) from error

    def _more(self, least: int = 0) -> bool:
        """Read on, at least `least` characters; False at the end of the file."""
        assert self._file is not None
        # As much again as there is already: a long value is tried a few times only.
        text = self._file.read(max(CHUNK, least))
        self._read += len(text)
        if self._read > self._most:
            what = f"the trace has more than {self._most >> 20:,} MiB"
            raise self._error(what, "record fewer steps with torch.profiler's schedule")
        self._text = self._text[self._at :] + text
        self._at = 0
        return bool(text)

    def _unexpected(self) -> RecordingError:
        if self._next(_BLANK):
            return self._error(_NO_TRACE, _EXPORT)
        return self._error(_BROKEN, _AGAIN)

    def _error(self, what: str, next_step: str = "") -> RecordingError:
        return RecordingError(what, where=str(self.path), next_step=next_step)
