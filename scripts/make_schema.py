"""Make profstack/report/report.schema.json from the typed dictionaries of the report.

python scripts/make_schema.py
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Annotated, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))

from profstack.storage.schema.column import declaration  # noqa: E402  # of this checkout
from profstack.storage.schema.report import Report  # noqa: E402

SCHEMA = CHECKOUT / "profstack" / "report" / "report.schema.json"

_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_DESCRIPTION = (
    "What report.json holds. Null stands for what was not measured. Times are host seconds per "
    "step unless a name says otherwise."
)


def schema_text() -> str:
    """Return the JSON schema that every report.json keeps to.

    It has a line for each part of the report and each of its tables.
    """
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "profstack report",
        "description": _DESCRIPTION,
        **_object(Report),
    }
    return _opened(schema, ("properties", "tables", "properties")) + "\n"


def _opened(schema: object, keys: tuple[str, ...], margin: str = "") -> str:
    """Write an object with one line per entry; in the entry `keys` begins with, again."""
    if not isinstance(schema, dict):
        return json.dumps(schema)
    lines = []
    for key, value in schema.items():
        within = _opened(value, keys[1:], margin + " ") if keys[:1] == (key,) else None
        text = within or json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        lines.append(f"{margin} {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + f"\n{margin}}}"


def _object(fields: type) -> dict[str, object]:
    """Return the schema of a typed dictionary: other fields are refused."""
    hints = get_type_hints(fields, include_extras=True)
    required = fields.__required_keys__  # type: ignore[attr-defined]  # every TypedDict has it
    return {
        "type": "object",
        "required": [name for name in hints if name in required],
        "properties": {name: _schema(hint) for name, hint in hints.items()},
        "additionalProperties": False,
    }


def _schema(hint: object) -> dict[str, object]:
    """Return the schema of a type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bare, meaning, notes = declaration(hint)
        keys = [note.text for note in notes if note.about == "key"]
        return {
            **_schema(bare),
            **({"required": keys} if keys else {}),
            **({"description": meaning} if meaning else {}),
        }
    if origin is Literal:
        return {"const": arguments[0]} if len(arguments) == 1 else {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        # Simple types, of which one may have more to say, or null.
        options = [_schema(option) for option in arguments]
        joined = {key: value for option in options for key, value in option.items()}
        if "enum" in joined:
            return {"enum": [*joined["enum"], None]}  # type: ignore[misc]  # it is a list
        return {**joined, "type": [option["type"] for option in options]}
    if origin is list:
        return {"type": "array", **_within("items", arguments[0])}
    if origin is dict:
        return {"type": "object", **_within("additionalProperties", arguments[1])}
    if isinstance(hint, type) and is_typeddict(hint):
        return _object(hint)
    if isinstance(hint, type) and hint in _SIMPLE:
        return {"type": _SIMPLE[hint]}
    raise TypeError(f"the JSON schema knows no type {hint!r}")


def _within(key: str, hint: object) -> dict[str, object]:
    """Return the schema of the values in a list or mapping; values of any type have none."""
    return {} if hint is object else {key: _schema(hint)}


def main() -> int:
    """Write the file."""
    SCHEMA.write_text(schema_text(), encoding="utf-8")
    sys.stdout.write(f"Wrote {SCHEMA.relative_to(CHECKOUT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
