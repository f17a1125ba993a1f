"""The table of source lines: what each layer saw on them, joined by file and line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profstack.merge.recorded import Recorded, Selection, nullable
from profstack.privacy import home_relative

LineKey = tuple[str, int]


def lines(
    recorded: Recorded,
    selection: Selection | None,
    *others: Mapping[LineKey, Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Rows of `lines`, file by file: times of the torch layer, and what other layers saw.

    `others` are further columns by file and line, each with the text of its lines.
    """
    rows = _timed_lines(recorded, selection) if selection is not None else {}
    for columns in others:
        for key, values in columns.items():
            row = rows.setdefault(key, {"source": None})
            row.update({**values, "source": row["source"] or values.get("source")})
    return [
        {"file": home_relative(file), "line": line, **rows[file, line]}
        for file, line in sorted(rows)
    ]


def _timed_lines(recorded: Recorded, selection: Selection) -> dict[LineKey, dict[str, Any]]:
    """The columns of time by file and line."""
    frame = recorded.rows("lines", selection)
    columns = ["calls", "python_s", "operator_s", "device_s"]
    # A line whose count was given up in one slice has no count at all.
    given_up = frame[frame["calls"].isna()]
    uncounted = set(zip(given_up["file"], given_up["line"], strict=True))
    grouped = frame.groupby(["file", "line"])
    summed = grouped[columns].sum(min_count=1)
    sources = grouped["source"].first()
    return {
        (str(file), int(line)): {
            "source": nullable(source),
            "calls": selection.per_step(total["calls"]) if (file, line) not in uncounted else None,
            "python_s": selection.per_step(total["python_s"]),
            "operator_s": selection.per_step(total["operator_s"]),
            "device_s": selection.per_step(total["device_s"]),
        }
        for (file, line), total, source in zip(
            summed.index.tolist(), summed.to_dict("records"), sources.tolist(), strict=True
        )
    }
