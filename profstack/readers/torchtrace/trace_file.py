"""The bytes of a saved trace, decompressed, in pieces that are cut between two events.

So memory holds one piece and never the file. It may come from anywhere: cut off, no JSON, or a few
compressed bytes that unfold into very many.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from profstack.errors import RecordingError
from profstack.readers.formats import GZIP

# Bytes read at once: with the events decoded from them they fit no cache, but cost little memory.
PIECE = 4 << 20
# No single event is longer than this: torch's longest are stacks of frames.
LONGEST = 64 << 20
# A trace that unfolds into more than this is refused.
MOST_BYTES = 16 << 30
# The header before the events is no longer than this.
_LONGEST_HEADER = 8 << 20

# Between two events: any of these keys begins one.
_CUT = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|bp)"\s*:)')
# The same as Kineto writes it.
_KINETO_CUT, _AFTER = b'},\n  {\n    "ph"', 2
_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_END = re.compile(rb"(?:^|\}|,)\s*\](?=\s*(?:[,}]|$))")

_EXPORT = "give a file that `export_chrome_trace` of torch.profiler wrote"


class TraceFile:
    """The bytes of a trace, decompressed, as pieces of whole events; then the `header`.

    `truncated` says that the file ends before its end.
    """

    def __init__(self, path: Path, most: int = MOST_BYTES) -> None:
        self.path = path
        self.header: dict[str, object] = {}
        self.truncated = False
        self.bytes = 0
        self._most = most

    def pieces(self) -> Iterator[bytes]:
        """Yield the events in pieces: some events with commas between, without the list's brackets.

        Raises RecordingError for a file that is no trace.
        """
        try:
            blocks = self._blocks()
            text, head = self._begin(blocks)
            for block in blocks:
                text += block
                if len(text) < PIECE:
                    continue
                cut = _last_cut(text)
                if cut:
                    yield text[:cut]
                    # The comma between the events.
                    text = text[cut:].lstrip(b" \t\r\n,")
                elif len(text) > LONGEST:
                    raise self.error(f"an event is longer than {LONGEST >> 20} MiB", _EXPORT)
            yield self._end(text, head)
        except OSError as error:
            raise self.error(f"cannot be read: {error.strerror or error}") from error

    def _begin(self, blocks: Iterator[bytes]) -> tuple[bytes, bytes]:
        """Return the text from the first event on, and the header before the events."""
        text = b""
        for block in blocks:
            text += block
            if not text.strip():
                continue
            start = text.removeprefix(b"\xef\xbb\xbf").lstrip()
            if start.startswith(b"["):
                return start[1:], b""
            if not start.startswith(b"{"):
                raise self.error("this is no Chrome trace", _EXPORT)
            if (found := _LIST.search(start)) is not None:
                return start[found.end() :], start[: found.end()]
            if len(text) > _LONGEST_HEADER:
                break
        what = "this JSON file has no traceEvents" if text.strip() else "the file is empty"
        raise self.error(what, _EXPORT)

    def _end(self, text: bytes, head: bytes) -> bytes:
        """Return the last events of the file, and read what is beside the events."""
        for found in _END.finditer(text):
            rest = text[found.end() :]
            try:
                if head:
                    self.header = _object(head + b"]" + rest)
                elif rest.strip():
                    continue
            except ValueError:
                continue
            return text[: found.end() - 1]
        self.truncated = True
        try:
            self.header = _object(head + b"]}") if head else {}
        except ValueError:
            self.header = {}
        return text

    def _blocks(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            unpack = _unpacker() if file.read(2) == GZIP else None
            file.seek(0)
            while block := file.read(PIECE):
                for part in [block] if unpack is None else unpack(block):
                    self.bytes += len(part)
                    if self.bytes > self._most:
                        what = f"the trace has more than {self._most >> 20:,} MiB"
                        raise self.error(what, "record fewer steps with torch.profiler's schedule")
                    yield part

    def error(self, what: str, next_step: str = "") -> RecordingError:
        """Return an error of this file."""
        return RecordingError(what, where=str(self.path), next_step=next_step)


def _unpacker() -> Callable[[bytes], Iterator[bytes]]:
    """Return a function that decompresses a file of gzip block by block, as far as it is whole.

    It never gives more than a piece at once: a few compressed bytes may unfold into a full disk.
    """
    packed = zlib.decompressobj(zlib.MAX_WBITS | 16)

    def unpack(block: bytes) -> Iterator[bytes]:
        nonlocal packed
        try:
            while block:
                yield packed.decompress(block, PIECE)
                block = packed.unconsumed_tail
                if packed.eof and packed.unused_data[:2] == GZIP:
                    # Several files of gzip one behind the other are one file.
                    block = packed.unused_data
                    packed = zlib.decompressobj(zlib.MAX_WBITS | 16)
        except zlib.error:
            return

    return unpack


def _object(text: bytes) -> dict[str, object]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("no object")
    return {key: value for key, value in found.items() if key != "traceEvents"}


def _last_cut(text: bytes) -> int:
    """Return the place after the last event that surely ends here; 0 for none."""
    at = text.rfind(_KINETO_CUT)
    if at >= 0:
        return at + 1
    last = 0
    # The cut is near the end, but for the longest events.
    for start in (max(0, len(text) - (1 << 16)), 0):
        for found in _CUT.finditer(text, start):
            last = found.start() + 1
        if last:
            break
    return last
