"""The table of source lines: what each layer saw on them, joined by file and line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profstack.merge.modules import module_paths
from profstack.merge.recorded import Recorded, Selection, nullable, records
from profstack.ownfiles import Places
from profstack.privacy import home_relative

LineKey = tuple[str, int]
_TIMES = ("python_s", "operator_s", "backward_s", "device_s")


def lines(
    recorded: Recorded,
    selection: Selection | None,
    *others: Mapping[LineKey, Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Rows of `lines`, the user's own files first: times of the torch layer, and what others saw.

    What a library does stands on the line of the user's that called it; the library's functions
    are in `functions`. `others` are further columns by file and line, each with the text of its
    lines.
    """
    rows = _timed_lines(recorded, selection) if selection is not None else {}
    for columns in others:
        for key, values in columns.items():
            row = rows.setdefault(key, {"source": None, "reason": None})
            kept = {name: row[name] or values.get(name) for name in ("source", "reason")}
            row.update({**values, **kept})
    places = Places.read(recorded.facts)
    own = {key: places.is_own(key[0]) if places is not None else None for key in rows}
    return [
        {"file": home_relative(key[0]), "line": key[1], **rows[key], "own": own[key]}
        for key in sorted(rows, key=lambda key: (own[key] is False, key))
    ]


def module_lines(recorded: Recorded, selection: Selection | None) -> list[dict[str, Any]]:
    """Rows of `module_lines`: each line's time by the module it was spent in, lines in order.

    The rows of a line add up to its row in `lines`; what neither a module nor a part of the step
    owns has no module.
    """
    if selection is None:
        return []
    paths = module_paths(recorded)
    frame = recorded.rows("module_lines", selection)
    given_up = frame[frame["calls"].isna()]
    uncounted = set(zip(given_up["file"], given_up["line"], strict=True))
    keys = ["file", "line", "module_id"]
    summed = frame.groupby(keys, dropna=False)[["calls", *_TIMES]].sum(min_count=1)
    rows = []
    for (file, line, number), totals in zip(
        summed.index.tolist(), summed.to_dict("records"), strict=True
    ):
        module = nullable(number)
        calls = None if (file, line) in uncounted else selection.per_step(totals["calls"])
        rows.append(
            {
                "module": paths.get(int(module)) if module is not None else None,
                "file": home_relative(str(file)),
                "line": int(line),
                "calls": calls,
                **{name: selection.per_step(totals[name]) for name in _TIMES},
            }
        )
    return rows


def source_texts(recorded: Recorded) -> list[dict[str, Any]]:
    """The text of the user's own files, in the order in which they were seen: file, text, reason.

    Where slices tell of one file more than once, the first text stands: it is what the script was
    read from.
    """
    texts: dict[str, dict[str, Any]] = {}
    for row in records(recorded.frames["source_files"]):
        known = texts.get(row["file"])
        if known is None or known["text"] is None:
            texts[row["file"]] = {
                "file": home_relative(str(row["file"])),
                **{name: row[name] for name in ("text", "bytes", "reason")},
            }
    return list(texts.values())


def _timed_lines(recorded: Recorded, selection: Selection) -> dict[LineKey, dict[str, Any]]:
    """The columns of time by file and line."""
    frame = recorded.rows("lines", selection)
    # A line whose count was given up in one slice has no count at all.
    given_up = frame[frame["calls"].isna()]
    uncounted = set(zip(given_up["file"], given_up["line"], strict=True))
    grouped = frame.groupby(["file", "line"])
    summed = grouped[["calls", *_TIMES]].sum(min_count=1)
    texts = grouped[["source", "reason"]].first()
    return {
        (str(file), int(line)): {
            "source": nullable(text["source"]),
            "reason": nullable(text["reason"]),
            "calls": selection.per_step(total["calls"]) if (file, line) not in uncounted else None,
            **{name: selection.per_step(total[name]) for name in _TIMES},
        }
        for (file, line), total, text in zip(
            summed.index.tolist(), summed.to_dict("records"), texts.to_dict("records"), strict=True
        )
    }
