"""Record the process that this code runs in: from the recording's folder to its page.

`profstack run` divides this between two processes. Here one does it all, before the engine begins
and after it has ended.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from profstack import layer
from profstack.capture.engine import Engine
from profstack.capture.loops import BeginAt
from profstack.capture.observers import Observers
from profstack.capture.run import (
    CountOptions,
    device_facts,
    live_optimizers,
    make_plan,
    torch_facts,
)
from profstack.capture.slices import Targets
from profstack.environment import environment_facts
from profstack.errors import naming_arguments
from profstack.guard import Guard
from profstack.launch import child
from profstack.launch.peaks import keep_peaks
from profstack.privacy import presentable_argv
from profstack.readers.watch import Sampler
from profstack.recording import Recording, folder_name
from profstack.report.files import write_report
from profstack.storage.folder import Writer, create_folder, iso, run_times, write_run

# Engines that may be measuring, for processes forked meanwhile.
_MEASURED: weakref.WeakSet[Engine] = weakref.WeakSet()


class ProgramFolder:
    """The folder of a recording that a program makes of itself.

    Without `output` it is temporary: it goes with this object, or with the recording in it.
    """

    def __init__(self, name: str, output: str | None, *, force: bool) -> None:
        self.is_temporary = output is None
        self._base = ""
        self._finalizer: weakref.finalize[[str, int], ProgramFolder] | None = None
        if output is None:
            self._base = tempfile.mkdtemp(prefix="profstack-")
            self._finalizer = weakref.finalize(self, _remove, self._base, os.getpid())
            output = os.path.join(self._base, folder_name(name))
        with naming_arguments("output"):
            self.path = create_folder(folder_name(name), output, force=force)
        main = getattr(sys.modules.get("__main__"), "__file__", None)
        # Before the measurement: its load is not yet the program's own.
        self._environment = environment_facts(
            os.path.dirname(os.path.abspath(main)) if main else os.getcwd()
        )
        self.started, self._began = time.time(), time.perf_counter()

    def write_run(
        self,
        script: str,
        run: Mapping[str, object],
        environment: Mapping[str, object] | None = None,
    ) -> None:
        """Write the facts of the run itself; the process goes on, so it has no exit code."""
        # The command line of a notebook's kernel says nothing of the program.
        words = [] if "ipykernel" in sys.modules else list(getattr(sys, "argv", ()))
        content = {
            "script": script,
            "argv": presentable_argv(words if any(words) else []),
            "in_process": True,
            "begun_clock_s": self._began,
            "run": run,
            "environment": {**self._environment, **(environment or {})},
        }
        write_run(self.path, content)

    def times(self) -> dict[str, Any]:
        """Return the times of the run, which has just ended."""
        return run_times(self.started, time.perf_counter() - self._began)

    def recording(self) -> Recording:
        """Return the recording, with which a temporary folder goes from here on."""
        recording = Recording(self.path)
        if self._finalizer is not None:
            self._finalizer.detach()
            weakref.finalize(recording, _remove, self._base, os.getpid())
        return recording

    def remove(self) -> None:
        """Remove a temporary folder now."""
        if self._finalizer is not None:
            self._finalizer()


def name_page(page: object) -> None:
    """Write where the page is to standard error; a closed stream is no reason to fail."""
    with Guard():
        sys.stderr.write(f"Wrote {page}\n")


@dataclass
class InProcess:
    """A session's own engine; `stopped_by` is what ended it early, if anything did."""

    name: str
    layers: list[str]
    targets: Targets
    keep_source: bool = True
    sync: bool = False
    begin_at: BeginAt | None = None
    memory_by: str = layer.OWN_TRACER
    counting: CountOptions | None = None
    stopped_by: str | None = None

    def begin(self, torch: Any, output: str | None, *, force: bool) -> Engine:
        """Make the folder, arm the engine and let it look for steps."""
        self._folder = ProgramFolder(self.name, output, force=force)
        folder = self._folder.path
        layers, left_out = layer.beside_nsys(self.layers)
        writer = Writer(folder, keep_source=self.keep_source)
        writer.facts({"environment": torch_facts(torch), "synchronised": self.sync})
        self.engine = Engine(
            torch,
            Observers(layers, writer, left_out, self.memory_by),
            lambda: make_plan(layers, self.targets, None, self.counting),
            self.targets,
            live_optimizers=live_optimizers,
            wait_for_page=False,
            begin_at=self.begin_at,
        )
        self.engine.log.synchronised = self.sync
        self._folder.write_run(self.name, {"started_at": iso(self._folder.started)})
        child.attach(self.engine)
        try:
            _MEASURED.add(self.engine)
            if "watch" in layers:
                # One that keeps time as the recording does.
                self.engine.tools["watch"] = Sampler(self.engine.log.origin)
            for slug, text in layer.nsys_notes():
                self.note(slug, text)
            self.engine.begin()
        except BaseException:
            child.detach()
            self.engine.abandon()
            raise
        writer.facts({"arming": [0.0, time.perf_counter() - self.engine.log.origin]})
        return self.engine

    def note(self, slug: str, text: str) -> None:
        """Record something that the reader of the report should know."""
        if not self.engine.events.done:
            self.engine.observers.log.note(slug, text)

    def finish(self, failed: type[BaseException] | None, tell: bool) -> Recording:
        """End the recording and write its page; `tell` says where that is."""
        self.end(failed)
        # Only known peaks: the program does not wait while others are measured.
        keep_peaks(self.engine.folder, measure=False)
        page = write_report(self.engine.folder)
        if tell:
            name_page(page)
        return self._folder.recording()

    def end(self, failed: type[BaseException] | None) -> None:
        """End the recording without a page; `failed` is the error that ended the program's part."""
        engine = self.engine
        writer, torch = engine.log.writer, engine.hooks.torch
        ending = time.perf_counter() - engine.log.origin
        try:
            with Guard(failed=engine.disarm, always=True):
                if failed is not None:
                    writer.facts({"uncaught": failed.__name__})
                writer.facts({"environment": {**torch_facts(torch), **device_facts(torch)}})
                engine.finish()
                writer.facts({"finishing": [ending, time.perf_counter() - engine.log.origin]})
        finally:
            child.detach()
            writer.close()
        run = {**self._folder.times(), "stopped_by": self.stopped_by}
        self._folder.write_run(self.name, run)


def _abandon() -> None:
    """Leave a process unmeasured that is forked while a session is open."""
    for engine in list(_MEASURED):
        if not engine.events.done:
            engine.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon)


def _remove(folder: str, process: int) -> None:
    """Remove a temporary folder; a forked child leaves its parent's alone."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
