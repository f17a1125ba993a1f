"""The layers of a benchmark: the same callable once more, under every layer in turn.

It comes after the clean measurement, in the same process, and its figures explain that one: what
it records is the recording in which the benchmark's own figures then stand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from profstack.benchmark.subject import Subject
from profstack.engine.marks import Marks, marks_of
from profstack.flops import copies as flopcopies
from profstack.frozen import Recording
from profstack.inprocess import InProcess
from profstack.passthrough import strip_frame
from profstack.slices import Targets

# Calls go on for so long at most, once every layer has had its first slice.
MAX_SECONDS = 60.0


def record_layers(
    subject: Subject,
    name: str,
    layers: Sequence[str],
    *,
    output: Path | None = None,
    targets: Targets | None = None,
    max_seconds: float = MAX_SECONDS,
) -> Recording:
    """Call the subject as often as the layers need, and give the recording.

    `output` is a folder that is not there yet, None for a temporary one. What the subject raises
    is raised again when the recording has been ended.
    """
    import torch

    own = InProcess(name, list(layers), targets if targets is not None else Targets())
    engine = own.begin(torch, None if output is None else str(output), force=False)
    marks = marks_of(engine)
    failed: BaseException | None = None
    try:
        step = subject.step
        with subject.conditions(), flopcopies.given(step):
            _repeat(own, marks, step, max_seconds)
    except BaseException as error:
        strip_frame(error)
        failed = error
        raise
    finally:
        marks.close(failed=failed is not None)
        recording = own.finish(type(failed) if failed is not None else None, False)
    return recording


def _repeat(own: InProcess, marks: Marks, call: Callable[[], Any], max_seconds: float) -> None:
    """Each call is a step, until every slice that was planned is over or the time is."""
    if not marks.begin(object()):
        return
    try:
        _, _, in_time = marks.repeat(call, max_seconds)
    except BaseException as error:
        strip_frame(error)
        raise
    if not in_time:
        own.stopped_by = "max_seconds"
        own.note(
            "bench-layers",
            f"the layers' calls ended after {max_seconds:g} s, before all rounds were over",
        )
