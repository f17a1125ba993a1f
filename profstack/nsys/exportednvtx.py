"""NVTX in an export: ranges, and the names of their domains and categories, events of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from profstack.nsys.exportfile import PROCESS_BITS, Column, ExportFile
from profstack.nsys.exportframes import frame_of

_DETAILS = "ANALYSIS_DETAILS"
TABLE = "NVTX_EVENTS"
_STYLES = ("push_pop", "start_end")
# A text stands in the event itself, or among the strings if it was registered.
_TEXT = {"text": Column("text", kind="text"), "text_id": Column("textId", from_one=True)}
# A payload has one of these types; another one, of a fraction, is none that we know.
_PAYLOADS = ("int64Value", "int32Value", "uint32Value", "uint64Value")


@dataclass(frozen=True)
class EventTypes:
    """The numbers by which an export tells its NVTX events apart."""

    push_pop: tuple[int, ...]
    start_end: tuple[int, ...]
    category: tuple[int, ...]
    domain: tuple[int, ...]

    @classmethod
    def of(cls, file: ExportFile) -> EventTypes:
        """As the file's own enumeration has them, or as nsys has always had them."""
        known: dict[str, int] = {}
        if "name" in file.schema.get("ENUM_NSYS_EVENT_TYPE", ()):
            known = dict(file.rows("SELECT name, CAST(id AS INTEGER) FROM ENUM_NSYS_EVENT_TYPE"))

        def number(name: str, usual: int) -> int:
            return known.get(name, usual)

        # Those with a t come from a text file of ranges that was imported by nsys.
        return cls(
            push_pop=(number("NvtxPushPopRange", 59), number("NvtxtPushPopRange", 70)),
            start_end=(number("NvtxStartEndRange", 60), number("NvtxtStartEndRange", 71)),
            category=(number("NvtxCategory", 33), number("NvtxtCategory", 64)),
            domain=(number("NvtxDomainCreate", 75),),
        )

    @property
    def ranges(self) -> tuple[int, ...]:
        """Ranges of either style."""
        return self.push_pop + self.start_end


def is_type(types: tuple[int, ...]) -> str:
    """SQL for events of these types."""
    return f"eventType IN ({', '.join(map(str, types))})"


def domains_of(file: ExportFile, types: EventTypes) -> dict[tuple[int, int], str | None]:
    """The names of all domains, by process and number."""
    wanted = {"thread": Column("globalTid", needed=True), "domain": Column("domainId"), **_TEXT}
    read = file.columns(TABLE, wanted, is_type(types.domain))
    processes = ((read["thread"] >> 24) & PROCESS_BITS).tolist()
    keys = zip(processes, read["domain"].tolist(), strict=True)
    return dict(zip(keys, _texts(file, read).tolist(), strict=True))


def read_ranges(
    file: ExportFile, process: int, types: EventTypes
) -> tuple[pd.DataFrame, list[str]]:
    """The ranges of a process, and the text of each that had no end when the capture ended."""
    wanted = {
        "start": Column("start", needed=True),
        "end": Column("end", needed=True),
        "thread": Column("globalTid", needed=True),
        "type": Column("eventType", needed=True),
        "domain": Column("domainId"),
        "category": Column("category", from_one=True),
        **_TEXT,
    }
    payloads = [name for name in _PAYLOADS if name in file.schema.get(TABLE, ())]
    wanted |= {name: Column(name, kind="payload") for name in payloads}
    where = f"{is_type(types.ranges)} AND {file.is_of(TABLE, process)}"
    read = file.columns(TABLE, wanted, where, order="start")
    texts = _texts(file, read)
    # An older nsys gives a range that is still open the end of the capture itself.
    still_open = (read["end"] < read["start"]) | np.isin(read["end"], _ends(file))
    domains = {
        number: name for (pid, number), name in domains_of(file, types).items() if pid == process
    }
    frame = frame_of(
        "ranges",
        {
            "start": read["start"],
            "end": read["end"],
            "thread": read["thread"],
            "style": np.array(_STYLES, dtype=object)[
                np.isin(read["type"], types.start_end).astype(int)
            ],
            "domain": _named(read["domain"], domains, otherwise=""),
            "category": _categories(file, process, types, read),
            "text": np.where(pd.isna(texts), "", texts),
            "payload": _first_known([read[name] for name in payloads], len(texts)),
        },
    )
    closed = frame[~still_open].reset_index(drop=True)
    return closed, frame["text"][still_open].tolist()


def _ends(file: ExportFile) -> list[int]:
    """When the capture ended, by the clock of its events."""
    # The same moment where the clock begins with the capture.
    known = [name for name in ("duration", "stopTime") if name in file.schema.get(_DETAILS, ())]
    found = (file.rows(f"SELECT {name} FROM {_DETAILS}") for name in known)
    return [end for rows in found for (end,) in rows if end]


def _categories(
    file: ExportFile, process: int, types: EventTypes, read: dict[str, Any]
) -> np.ndarray:
    """The category of each range; a category belongs to a domain."""
    wanted = {"domain": Column("domainId"), "category": Column("category"), **_TEXT}
    where = f"{is_type(types.category)} AND {file.is_of(TABLE, process)}"
    told = file.columns(TABLE, wanted, where)
    names = {
        _joined(domain, category): text
        for domain, category, text in zip(
            told["domain"].tolist(), told["category"].tolist(), _texts(file, told), strict=True
        )
    }
    return _named(_joined(read["domain"], read["category"]), names, otherwise=None)


def _joined(domain: Any, category: Any) -> Any:
    """One number for both; no domain and the default one are the same."""
    return (np.maximum(domain, 0) << 32) | (category & 0xFFFFFFFF)


def _named(numbers: np.ndarray, names: dict[int, Any], *, otherwise: str | None) -> np.ndarray:
    distinct, where = np.unique(numbers, return_inverse=True)
    texts = np.empty(len(distinct), dtype=object)
    texts[:] = [names.get(int(number)) or otherwise for number in distinct]
    return texts[where]


def _texts(file: ExportFile, read: dict[str, Any]) -> np.ndarray:
    inline = read["text"]
    return np.where(pd.isna(inline), file.strings(read["text_id"]), inline)


def _first_known(columns: list[np.ndarray], count: int) -> np.ndarray:
    """Row by row the first value that is one; None where none is."""
    first = np.full(count, None, dtype=object)
    for column in reversed(columns):
        known = ~pd.isna(column)
        first[known] = column[known]
    return first
