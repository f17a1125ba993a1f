"""An engine in the process that it measures: from its folder to its page.

What `profstack run` divides between two processes is done in one here, before the engine begins
and after it has ended.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
import weakref
from typing import Any

from profstack import child, registry
from profstack.engine.core import Engine
from profstack.engine.observers import Observers
from profstack.environment import environment_facts
from profstack.errors import told_to_callers
from profstack.frozen import Recording, folder_name
from profstack.interrupts import is_scripts
from profstack.merge.machinepeaks import keep_peaks
from profstack.privacy import presentable_argv
from profstack.recording import Writer, create_folder
from profstack.report.write import write_report
from profstack.runfacts import iso, run_times, write_run
from profstack.runner import device_facts, live_optimizers, make_plan, torch_facts
from profstack.slices import Targets
from profstack.watch import Sampler

# Engines that may be measuring, for processes forked meanwhile.
_MEASURED: weakref.WeakSet[Engine] = weakref.WeakSet()
_watches_forks = False


class InProcess:
    """One session's own engine; `stopped_by` is what ended it early, if anything did."""

    def __init__(
        self, name: str, layers: list[str], targets: Targets, *, keep_source: bool = True
    ) -> None:
        self.name = name
        self.keep_source = keep_source
        self.layers = layers
        self.targets = targets
        self.stopped_by: str | None = None
        self._temporary: weakref.finalize[Any, Any] | None = None
        self._base = ""
        self._started = self._began = 0.0
        self._environment: dict[str, object] = {}

    def begin(self, torch: Any, output: str | None, *, force: bool) -> Engine:
        """Make the folder, arm the engine and let it look for steps."""
        if output is None:
            self._base = output = tempfile.mkdtemp(prefix="profstack-")
            self._temporary = weakref.finalize(self, _remove, self._base, os.getpid())
            output = os.path.join(self._base, folder_name(self.name))
        with told_to_callers("output"):
            folder = create_folder(folder_name(self.name), output, force=force)
        # Its load is not yet the session's own.
        self._environment = environment_facts(_program_folder())
        self._started, self._began = time.time(), time.perf_counter()
        layers, left_out = registry.beside_nsys(self.layers)
        writer = Writer(folder, keep_source=self.keep_source)
        writer.facts({"environment": torch_facts(torch)})
        self.engine = Engine(
            folder,
            torch,
            writer,
            Observers(folder, layers, writer, left_out),
            lambda: make_plan(layers, self.targets),
            self.targets,
            live_optimizers=live_optimizers,
            wait_for_page=False,
        )
        self._write_run({"started_at": iso(self._started)})
        child.adopt(self.engine)
        try:
            _abandon_in_children(self.engine)
            if "watch" in layers:
                # One that keeps time as the recording does.
                self.engine.tools["watch"] = Sampler(self.engine.log.origin)
            word = registry.word_of_nsys()
            if word is not None:
                self.note(*word)
            self.engine.begin()
        except BaseException:
            child.let_go()
            self.engine.abandon()
            raise
        return self.engine

    def note(self, slug: str, text: str) -> None:
        """Something that the reader of the report should know."""
        if not self.engine.events.done:
            self.engine.observers.note(slug, text)

    def finish(self, failed: type[BaseException] | None, tell: bool) -> Recording:
        """End the recording and write its page; `tell` where that is."""
        engine = self.engine
        writer, torch = engine.log.writer, engine.hooks.torch
        try:
            if failed is not None:
                writer.facts({"uncaught": failed.__name__})
            writer.facts({"environment": {**torch_facts(torch), **device_facts(torch)}})
            engine.finish()
        except Exception as error:
            scripts = is_scripts(error)
            engine.disarm(error)
            if scripts:
                raise
        finally:
            child.let_go()
            writer.close()
        self._write_run(
            {
                **run_times(self._started, time.perf_counter() - self._began),
                "stopped_by": self.stopped_by,
            }
        )
        # Those that are known: the program does not wait while they are measured.
        keep_peaks(engine.folder, measure=False)
        page = write_report(engine.folder)
        if tell:
            _say(f"Wrote {page}")
        recording = Recording(engine.folder)
        if self._temporary is not None:
            # From here on the folder goes with the recording.
            self._temporary.detach()
            weakref.finalize(recording, _remove, self._base, os.getpid())
        return recording

    def _write_run(self, facts: dict[str, Any]) -> None:
        content = {
            "script": self.name,
            "argv": presentable_argv(program()),
            # The process goes on: it has no exit code.
            "in_process": True,
            "run": facts,
            "environment": self._environment,
        }
        write_run(self.engine.folder, content)


def _in_notebook() -> bool:
    return "ipykernel" in sys.modules


def program() -> list[str]:
    """The command line of this program; that of a notebook's kernel says nothing of it."""
    words = list(getattr(sys, "argv", ()))
    return [] if _in_notebook() or not any(words) else words


def _program_folder() -> str:
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.path.dirname(os.path.abspath(main)) if main else os.getcwd()


def _abandon_in_children(engine: Engine) -> None:
    """A process forked while the session is open is not measured."""
    global _watches_forks
    _MEASURED.add(engine)
    if not _watches_forks and hasattr(os, "register_at_fork"):
        _watches_forks = True
        os.register_at_fork(after_in_child=_abandon)


def _abandon() -> None:
    for engine in list(_MEASURED):
        if not engine.events.done:
            engine.abandon()


def _remove(folder: str, process: int) -> None:
    """Remove a temporary folder; a forked child leaves its parent's alone."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _say(text: str) -> None:
    try:
        sys.stderr.write(f"{text}\n")
    except Exception as error:
        # A closed stream is no reason to lose the recording.
        if is_scripts(error):
            raise
