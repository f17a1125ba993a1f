"""The figures of what is made up, in `data/made_up`: tables whose columns are told beside them."""

import json
from pathlib import Path


def made_up(name):
    """Rows of a file's tables by their names, with what it holds besides tables."""
    text = (Path(__file__).parent / "data" / "made_up" / f"{name}.json").read_text(encoding="utf-8")
    return {part: value.get("rows", value) for part, value in json.loads(text).items()}
