"""A comparison as annotations of GitHub Actions: lines that its runner shows beside the code."""

from __future__ import annotations

import os
from collections.abc import Iterator

from profstack.storage.schema.comparison import Comparison

# GitHub shows no more of a kind and step.
_MOST = 10


def github(comparison: Comparison, top: str) -> list[str]:
    """Return the annotations; `top` is the folder of the repository.

    A broken rule is an error and an unclear one a warning. Without rules, parts of the step that
    became slower beyond noise are warnings.
    """
    return list(_lines(comparison, top))[:_MOST]


def _lines(comparison: Comparison, top: str) -> Iterator[str]:
    for gate in comparison["gates"]:
        if gate["result"] != "kept":
            level = "error" if gate["result"] == "broken" else "warning"
            title = f"profstack: {gate['rule']} is {gate['result']}"
            yield command(level, gate["text"], title, _inside(gate["file"], top), gate["line"])
    if comparison["gates"] or comparison["verdict"]["slug"] != "slower":
        return
    for part in sorted(comparison["parts"], key=lambda part: -part["difference_s"]):
        file = _inside(part["file"], top)
        if part["beyond_noise"] and part["difference_s"] > 0 and file is not None:
            title = f"profstack: {part['name']} became slower"
            text = part["cause"] or comparison["verdict"]["sentence"]
            yield command("warning", text, title, file, part["line"])


def command(level: str, text: str, title: str, file: str | None, line: int | None) -> str:
    """Return one workflow command, escaped by the rules of GitHub's runner."""
    named = {"file": file, "line": None if file is None or line is None else str(line)}
    given = {**{name: value for name, value in named.items() if value}, "title": title}
    properties = ",".join(f"{name}={_property(value)}" for name, value in given.items())
    return f"::{level} {properties}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _inside(file: str | None, top: str) -> str | None:
    """Return a file's path below the repository's top; None for a file outside it."""
    if file is None:
        return None
    # A recording has `~` in place of the home folder, in which GitHub's runners have the workspace.
    whole = os.path.expanduser(file) if file.startswith("~/") else file
    inside = os.path.relpath(os.path.join(top, whole), top)
    return None if inside.split(os.sep)[0] == os.pardir else inside.replace(os.sep, "/")
