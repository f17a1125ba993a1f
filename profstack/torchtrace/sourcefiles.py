"""The text of the user's own files in which lines were seen, for listings that show the rest too.

Only files that have rows anyway, and none of a size that nobody reads: a recording is sent to
people, and must stay small.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from typing import Any

# Bytes of one file, and of all together, that are kept.
LARGEST = 200_000
LARGEST_SUM = 2_000_000


def source_records(files: Iterable[str], index: int) -> list[dict[str, Any]]:
    """Rows of `source_files`, the most important file first; why a text is lacking where it is.

    The text is the one that lines are quoted from, as it was when the script was read, if it has
    been changed since.
    """
    left = LARGEST_SUM
    rows = []
    for file in files:
        text = "".join(linecache.getlines(file)).encode("utf-8", "replace")
        reason = None
        if not text:
            reason = "its text could not be read"
        elif len(text) > LARGEST:
            reason = f"it has more than {LARGEST // 1000} kB"
        elif len(text) > left:
            reason = f"the files before it have {LARGEST_SUM // 1_000_000} MB together"
        else:
            left -= len(text)
        rows.append(
            {
                "slice": index,
                "file": file,
                "text": text.decode("utf-8") if reason is None else None,
                "bytes": len(text) or None,
                "reason": reason,
            }
        )
    return rows
