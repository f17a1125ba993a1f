"""For tests of memory by line: memory in use that the tests set, by code that is not the script's.

`take(5)` has 5 bytes in use for as long as it lives. Tracers of this process see these bytes in
place of its own, so that figures are exact whatever the machine does.
"""

import sys
from contextlib import contextmanager
from pathlib import Path

from profstack.readers.memory import readings, tracer

HEAP = [0]
KEPT = []
_CODE = """
class take:
    def __init__(self, size):
        self.size = size
        heap[0] += size
    def __del__(self):
        heap[0] -= self.size
def ends_step(pause, go_on):
    heap[0] += 7
    pause()
    heap[0] += 80
    go_on()
    heap[0] += 5
def starts(tracer):
    tracer.start()
    before = tracer.readings.count
    tracer.go_on()
    return before, tracer.readings.count
resident = lambda: 1000 + heap[0]
in_use = lambda counter: 1 + heap[0]
"""
LIBRARY = {"heap": HEAP, "HEAP": HEAP, "KEPT": KEPT}
exec(compile(_CODE, "/library.py", "exec"), LIBRARY)
take, starts = LIBRARY["take"], LIBRARY["starts"]


@contextmanager
def memory_is_set(monkeypatch, file):
    """Within this, the folder of `file` is the script's, its memory `HEAP`; no other tracer is on.

    What is in `KEPT` is let go of at the end.
    """
    monkeypatch.setattr(tracer, "script_folder", lambda: str(Path(file).parent))
    monkeypatch.setattr(readings, "resident_reader", lambda: LIBRARY["resident"])
    monkeypatch.setattr(readings.HeapCounter, "read", LIBRARY["in_use"])
    HEAP[0], before = 0, sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(before)
    KEPT.clear()


def marked(text):
    """Numbers of the lines that end with a comment like `@mark`, by the mark."""
    lines = enumerate(text.splitlines(), 1)
    return {line.partition("# @")[2]: number for number, line in lines if "# @" in line}
