"""Whoever catches everything in the measured process asks whose the error is."""

import ast

from tests.support.processes import CHECKOUT

# What runs in the measured process while the script does.
PACKAGE = CHECKOUT / "profstack"
IN_THE_SCRIPT = [
    *(PACKAGE / "capture").glob("*.py"),
    *(PACKAGE / "readers").rglob("*.py"),
    *(CHECKOUT / "wrappers").glob("*.py"),
    *(PACKAGE / f"{name}.py" for name in ("guard", "layer", "models", "session", "environment")),
    *(PACKAGE / "launch" / f"{name}.py" for name in ("child", "in_process")),
]
# A decorated generator throws the error into the script's own.
ASKING = "is_scripts _is_for_script( self._passes( .caught( inner.throw inner.athrow"
# Functions in which no handler of a signal runs: bodies of profstack's own threads, and what
# `delay_signals` calls.
UNINTERRUPTED = ("_run", "run", "finish_engine", "record_without_torch")


def missing(path):
    """Return the handlers of a file that catch everything and ask nothing."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    free = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name in UNINTERRUPTED
        for inner in ast.walk(node)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and id(node) not in free:
            text = ast.unparse(node)
            kind = None if node.type is None else ast.unparse(node.type)
            asks = any(part in text for part in ASKING.split()) or text.endswith("raise")
            if kind in (None, "Exception", "BaseException") and not asks:
                found.append(f"{path.name}:{node.lineno}")
    return found


def test_no_handler_is_without_the_question():
    assert len(IN_THE_SCRIPT) > 30
    assert [each for path in IN_THE_SCRIPT for each in missing(path)] == []
