"""`profstack.benchmark(...)`: the benchmark of a model or a function that a program holds.

It is `profstack bench` without a process of its own: what the program has done before (its caches,
its heap, its threads) is in the figures, and there is no spread between processes.
"""

from __future__ import annotations

import functools
import inspect
import os
import shutil
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from profstack import benchfolder, child, registry
from profstack.benchlayers import record_layers
from profstack.benchmark.benchrun import BOTH, MODES, Asked, BenchRun
from profstack.benchmark.clock import Clock
from profstack.benchmark.inputs import leading_dimension
from profstack.benchmark.subject import READ, STATED, Subject, of_model
from profstack.environment import environment_facts
from profstack.errors import UsageError, told_to_callers
from profstack.frozen import Recording, folder_name
from profstack.merge.machinepeaks import keep_peaks
from profstack.privacy import presentable_argv
from profstack.recording import create_folder
from profstack.report.write import write_report
from profstack.runfacts import run_times, write_run
from profstack.runner import device_facts, torch_facts

_POLICY = ("warmup", "repeat", "target", "max_s", "max_warmup_s", "collect")


def benchmark(
    target: Any,
    /,
    *inputs: Any,
    named_inputs: Mapping[str, Any] | None = None,
    name: str | None = None,
    gradients: bool = False,
    batch_size: int | None = None,
    mode: str = BOTH,
    warmup: int | None = None,
    repeat: int | None = None,
    target_interval: float | None = None,
    max_seconds: float | None = None,
    collect: bool = False,
    mistakes: bool = False,
    ablation: bool = False,
    compare: Sequence[str] = (),
    throughput: bool = False,
    search: str = "binary",
    dtypes: Sequence[str] = (),
    memory_limit: int | None = None,
    max_batch: int | None = None,
    layers: Sequence[str] | None = None,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> Recording:
    """Measure a model or a function called with these inputs, and give the recording.

    A model is called in its own mode, without gradients unless `gradients`; a function as it is.
    `batch_size` is what one call takes in where the inputs do not tell. `mode` is `synchronised`,
    `pipelined` or `both`; `warmup` and `repeat` are fixed counts, else the data decide, until the
    interval of the median reaches no further than `target_interval` (a fraction, 0.01 by default)
    or `max_seconds` (10) are over; `collect` leaves the garbage collector on. `mistakes`,
    `ablation`, `compare`, `throughput`, `search`, `dtypes`, `memory_limit` (bytes) and `max_batch`
    ask for more, as the options of `profstack bench` do. `layers` are those to record with after
    the clean measurement (default: all; an empty list for none). `output` is the folder (default: a
    temporary one, which goes with the recording; `recording.save()` copies it).

    Raises UsageError for arguments that make no sense and inside a measured run, RecordingError
    for a folder in use, and what the target raises as it is.
    """
    asked = Asked(
        mode=_one_of("mode", mode, MODES),
        policy=_policy(warmup, repeat, target_interval, max_seconds, collect=collect),
        mistakes=mistakes,
        ablation=ablation,
        compare=list(compare),
        throughput=throughput,
        search=search,
        dtypes=list(dtypes),
        memory_limit=memory_limit,
        max_batch=max_batch,
    )
    subject = _subject(target, inputs, named_inputs, name, gradients, batch_size)
    chosen = _layers(layers)
    _check_alone()
    return _Here(subject, asked, chosen, output, force=force).measure()


def _policy(
    warmup: int | None,
    repeat: int | None,
    target: float | None,
    max_seconds: float | None,
    *,
    collect: bool,
) -> dict[str, Any]:
    values = (warmup, repeat, target, max_seconds, max_seconds, collect)
    given = {key: value for key, value in zip(_POLICY, values, strict=True) if value is not None}
    for key, value in given.items():
        if key != "collect" and not value > 0:
            raise UsageError(f"{key} is {value}", next_step="give a number above 0")
    return given


def _one_of(what: str, value: str, known: Sequence[str]) -> str:
    if value not in known:
        raise UsageError(f"no {what} {value!r}", next_step=f"give one of {', '.join(known)}")
    return value


def _subject(
    target: Any,
    inputs: tuple[Any, ...],
    named_inputs: Mapping[str, Any] | None,
    name: str | None,
    gradients: bool,
    batch_size: int | None,
) -> Subject:
    import torch

    if isinstance(target, torch.nn.Module):
        return of_model(
            target, inputs, named_inputs, name=name, gradients=gradients, batch_size=batch_size
        )
    if not callable(target) or isinstance(target, type) or inspect.iscoroutinefunction(target):
        raise UsageError(
            f"benchmark measures models and functions, not {target!r}",
            next_step="give a model with its inputs, or a function that does the work",
        )
    named = dict(named_inputs or {})
    read = leading_dimension((inputs, named))
    return Subject(
        name or str(getattr(target, "__name__", type(target).__name__)),
        functools.partial(target, *inputs, **named) if inputs or named else target,
        gradients=gradients,
        batch_size=read if batch_size is None else batch_size,
        batch_size_is=STATED if batch_size is not None else READ if read is not None else None,
        why_no_batches="a function's inputs are its own business: give a model with its inputs",
    )


def _layers(layers: Sequence[str] | None) -> list[str]:
    known = registry.all_layer_names()
    if layers is None:
        return registry.layer_names()
    chosen = [layers] if isinstance(layers, str) else list(layers)
    for one in chosen:
        _one_of("layer", one, known)
    return [one for one in known if one in chosen]


def _check_alone() -> None:
    """Raise UsageError where something of profstack's observes this process already."""
    if os.environ.get("PROFSTACK") == "0":
        raise UsageError("PROFSTACK=0 switches profstack off", next_step="unset it to measure")
    if child.is_armed():
        raise UsageError(
            "a benchmark inside a measured run would measure its observers",
            next_step="run the program by itself, or leave the session first",
        )


class _Here:
    """One benchmark in this process, from its folder to its page."""

    def __init__(
        self,
        subject: Subject,
        asked: Asked,
        layers: list[str],
        output: str | os.PathLike[str] | None,
        *,
        force: bool,
    ) -> None:
        self.subject = subject
        self.layers = layers
        self._temporary = tempfile.mkdtemp(prefix="profstack-") if output is None else None
        name = folder_name(f"bench-{subject.name}")
        where = os.path.join(self._temporary, name) if self._temporary else os.fspath(output or "")
        with told_to_callers("output"):
            self.folder = create_folder(name, where, force=force)
        main = getattr(sys.modules.get("__main__"), "__file__", None)
        program = os.path.dirname(os.path.abspath(main)) if main else os.getcwd()
        self._environment = environment_facts(program)
        self._run = BenchRun(subject, asked, Clock())
        self._started, self._began = time.time(), time.perf_counter()

    def measure(self) -> Recording:
        """The clean measurement, the parts and the layers; an error in the target is raised."""
        try:
            self._measure()
        except BaseException as error:
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)
            else:
                # What there is stays where it was wanted.
                self._write(f"{type(error).__name__}: {error}")
            raise
        page = self._write(None)
        recording = Recording(self.folder)
        if self._temporary is not None:
            weakref.finalize(recording, _remove, self._temporary, os.getpid())
        else:
            sys.stderr.write(f"Wrote {page}\n")
        return recording

    def _measure(self) -> None:
        self._run.check()
        self._run.clean()
        self._run.parts()
        if self.layers:
            output = self.folder / benchfolder.LAYERS
            record_layers(self.subject, self.subject.name, self.layers, output=output)

    def _write(self, error: str | None) -> Path:
        """Make one recording of what was measured; returns its page."""
        import torch

        figures = self._run.result if self._run.result.get("median_s") is not None else None
        fact = benchfolder.joined([{"figures": figures, "error": error}], [1 if error else 0])
        has_layers = benchfolder.take_layers(self.folder)
        self._write_run({**torch_facts(torch), **device_facts(torch)})
        why = "the benchmark ended before its layers began" if self.layers else "none was asked for"
        names = [] if has_layers else registry.layer_names()
        benchfolder.write_figures(self.folder, fact, dict.fromkeys(names, why))
        keep_peaks(self.folder, measure=has_layers and "torch" in self.layers)
        return write_report(self.folder)

    def _write_run(self, of_torch: Mapping[str, Any]) -> None:
        from profstack.inprocess import program

        content = {
            "script": self.subject.name,
            "argv": presentable_argv(program()),
            # The process goes on: it has no exit code.
            "in_process": True,
            "run": run_times(self._started, time.perf_counter() - self._began),
            "environment": {**self._environment, **of_torch},
        }
        write_run(self.folder, content)


def _remove(folder: str, process: int) -> None:
    """Remove a temporary folder; a forked child leaves its parent's alone."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
